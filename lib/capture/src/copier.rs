//! The copying itself: what each thread does with its share of a region.
//!
//! A thread takes one unit after the other until none is left, so that threads
//! end together however unevenly the private pages lie. Pages go through a
//! buffer the size of a core's second-level cache: looking for zeros and
//! hashing cost little there, and a page that turns out zero never
//! takes space in the destination. Two cores copy 128 MiB in 40 ms so; reading
//! straight into a mapping of the destination took half as long again, for the
//! page faults (MADV_POPULATE_WRITE did not help: the kernel zeroes each page first).

use crate::{CaptureCounts, CaptureError, MemoryRegion, Pages, listing::Listing, open_map};
use forkyard_image::{Checksum, LayerBuilder, Lineage, Slot};
use forkyard_sys_host::memory::{MemoryRange, read_process, write_all_at};
use forkyard_sys_host::pagemap::{PageMap, PagemapEntry};
use forkyard_types::{PAGE_SIZE, PageCount, PageNo};
use std::fs::File;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pages a thread takes at a time: the slots of these are its own.
pub(crate) const UNIT: usize = 1024;
/// Pages that go through the buffer at once: 256 KiB. No batch can have more
/// pieces than pages, so this also keeps within what one system call takes.
const BATCH: usize = 64;

/// Error of the kernel for a process that does not exist.
pub(crate) const ESRCH: i32 = 3;

type Page = [u8; PAGE_SIZE];
static ZERO_PAGE: Page = [0; PAGE_SIZE];

/// One capture, shared by its threads.
#[derive(Debug)]
pub(crate) struct Copier<'a> {
    pid: u32,
    region: MemoryRegion,
    lineage: Lineage,
    pages: Pages,
    map: PageMap,
    file: &'a File,
    next: AtomicU64,
    failed: AtomicBool,
}

/// Tools and findings of one thread.
struct Worker {
    listing: Listing,
    buffer: Vec<Page>,
    builder: LayerBuilder,
    counts: CaptureCounts,
}

impl<'a> Copier<'a> {
    pub fn new(
        pid: u32,
        region: MemoryRegion,
        lineage: Lineage,
        pages: Pages,
        file: &'a File,
    ) -> Result<Self, CaptureError> {
        let map = open_map(pid)?;
        let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok(Self {
            pid,
            region,
            lineage,
            pages,
            map,
            file,
            next,
            failed,
        })
    }

    /// Copies units until none is left, or until any thread has failed.
    pub fn run(&self) -> Result<(LayerBuilder, CaptureCounts), CaptureError> {
        let mut worker = Worker {
            listing: Listing::new(self.pid, self.region, self.pages)?,
            buffer: vec![ZERO_PAGE; BATCH],
            builder: LayerBuilder::new(self.lineage, self.region.pages),
            counts: CaptureCounts::default(),
        };
        while !self.failed.load(Ordering::Relaxed) {
            let first = self.next.fetch_add(UNIT as u64, Ordering::Relaxed);
            let Some(left) = self
                .region
                .pages
                .0
                .checked_sub(first)
                .filter(|left| *left > 0)
            else {
                break;
            };
            let pages = usize::try_from(left).unwrap_or(usize::MAX).min(UNIT);
            if let Err(error) = self.unit(&mut worker, PageNo(first), pages) {
                self.failed.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok((worker.builder, worker.counts))
    }

    fn unit(&self, worker: &mut Worker, first: PageNo, pages: usize) -> Result<(), CaptureError> {
        let Worker {
            listing,
            buffer,
            builder,
            counts,
        } = worker;
        let mut wanted = listing.next(first, pages)?.into_iter();
        // The unit's data is packed into its first slots.
        let mut slot = Slot(first.0);
        loop {
            let batch: Vec<PageNo> = wanted.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(());
            }
            let copied = &mut buffer[..batch.len()];
            self.read(&batch, copied)?;
            let data = self.write(copied, slot)?;
            for (page, number) in copied.iter().zip(&batch) {
                if *page == ZERO_PAGE {
                    builder.zero(*number);
                } else {
                    builder.data(*number, slot, Checksum::of(page));
                    slot.0 += 1;
                }
            }
            counts.scanned.0 += batch.len() as u64;
            counts.captured.0 += data.0;
            counts.zero.0 += batch.len() as u64 - data.0;
        }
    }

    /// Copies these pages of the process, one after the other, to `out`.
    fn read(&self, batch: &[PageNo], out: &mut [Page]) -> Result<(), CaptureError> {
        let pieces: Vec<MemoryRange> = batch
            .chunk_by(|a, b| a.0 + 1 == b.0)
            .filter_map(|run| {
                let start = self.region.start.page(*run.first()?)?;
                Some(MemoryRange {
                    start,
                    bytes: run.len() * PAGE_SIZE,
                })
            })
            .collect();
        let out = out.as_flattened_mut();
        let (have, source) = match read_process(self.pid, &pieces, out) {
            Ok(have) if have == out.len() => return Ok(()),
            Ok(have) => (have, io::ErrorKind::UnexpectedEof.into()),
            Err(source) if source.raw_os_error() == Some(ESRCH) => {
                return Err(CaptureError::Gone { pid: self.pid });
            }
            Err(source) => (0, source),
        };
        // A process that ends between two calls loses its memory page by page,
        // and its page map as a whole.
        if self
            .map
            .read(self.region.start, &mut [PagemapEntry::default()])
            .is_err()
        {
            return Err(CaptureError::Gone { pid: self.pid });
        }
        let page = batch.get(have / PAGE_SIZE).copied().unwrap_or_default();
        Err(CaptureError::Memory {
            pid: self.pid,
            page,
            source,
        })
    }

    /// Writes those of `pages` that are not zero to the slots from `slot` on;
    /// answers how many.
    fn write(&self, pages: &[Page], slot: Slot) -> Result<PageCount, CaptureError> {
        let mut data: Vec<IoSlice<'_>> = pages
            .chunk_by(|a, b| (*a == ZERO_PAGE) == (*b == ZERO_PAGE))
            .filter(|run| run.first().is_some_and(|page| *page != ZERO_PAGE))
            .map(|run| IoSlice::new(run.as_flattened()))
            .collect();
        let bytes: usize = data.iter().map(|run| run.len()).sum();
        let destination = |source| CaptureError::Destination { source };
        if bytes > 0 {
            let offset = slot
                .offset()
                .ok_or_else(|| destination(io::ErrorKind::FileTooLarge.into()))?;
            write_all_at(self.file, &mut data, offset).map_err(destination)?;
        }
        Ok(PageCount((bytes / PAGE_SIZE) as u64))
    }
}
