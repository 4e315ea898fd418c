//! From a VM that stands still to an image layer.
//!
//! Copies the pages a process has for itself: what a booted VM ever touched,
//! or what a clone changed of the image it is a private view of. The file that
//! comes out is a memory file laid out as `forkyard_image` describes.
//!
//! ```text
//! capture(..) --vCPUs may go on--> Captured --finish--> sealed layer file
//! ```
//!
//! Stops and resumes nothing: the caller does, and whatever writes to the
//! region between its two calls leaves the image torn. The process must stay
//! the caller's to wait for, or its number may come to mean another.

mod copier;
mod error;
mod listing;

pub use error::CaptureError;
pub use forkyard_sys_host::memory::HostAddr;
pub use forkyard_sys_host::userfault::Userfault;

use copier::Copier;
use forkyard_image::{LayerBuilder, Lineage, Slot};
use forkyard_sys_host::memory::{anonymous_file, seal};
use forkyard_sys_host::pagemap::PageMap;
use forkyard_types::{ByteCount, PageCount, PageNo};
use listing::Listing;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

/// A VM's memory in its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRegion {
    /// Address of its first page in the process.
    pub start: HostAddr,
    /// Pages in it.
    pub pages: PageCount,
}

impl MemoryRegion {
    /// Refuses what is not whole pages of one address space.
    fn check(&self) -> Result<(), CaptureError> {
        let end = self.start.page(PageNo(self.pages.0));
        match self.start.is_page_aligned() && end.is_some() {
            true => Ok(()),
            false => Err(CaptureError::Region {
                start: self.start.0,
            }),
        }
    }
}

/// Selection of the pages of a region that are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// All that are the process's own.
    Private,
    /// These, and from then on the kernel notes which are written. Only for
    /// memory that is watched (`forkyard_sys_host::userfault`).
    PrivateAndTrack,
    /// Those written since they were last copied and noted, which go over an
    /// image of that time. Watched memory again; noting goes on.
    ///
    /// A page that the process gave up meanwhile (a guest that reported it
    /// free) is not among them: its old content shines through, as it may.
    Dirty,
}

/// Amounts that were looked at and copied, and the time that took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounts {
    /// Pages private to the process.
    pub scanned: PageCount,
    /// Pages of these that hold data: the image's own.
    pub captured: PageCount,
    /// Pages of these that are zero: they take no space.
    pub zero: PageCount,
    /// From the call of [`capture`] to its return.
    pub elapsed: Duration,
}

/// A complete copy that is no layer file yet.
#[derive(Debug)]
pub struct Captured {
    file: File,
    builder: LayerBuilder,
    counts: CaptureCounts,
}

/// Copies pages of `region` with so many threads, this one among them. Blocks
/// until done; the process's vCPUs must stand still meanwhile and may go on
/// once it returns.
///
/// If they do not stand still and writes are noted, what was written meanwhile
/// is torn or old in this image, and among those that a later capture of the
/// written pages puts right.
pub fn capture(
    pid: u32,
    region: MemoryRegion,
    lineage: Lineage,
    pages: Pages,
    threads: NonZeroUsize,
) -> Result<Captured, CaptureError> {
    let begin = Instant::now();
    region.check()?;
    // Sparse, with a slot for every page: no thread need wait for another to
    // learn where it may write.
    let destination = |source| CaptureError::Destination { source };
    let size = Slot(region.pages.0).offset().map(ByteCount);
    let size = size.ok_or(CaptureError::Region {
        start: region.start.0,
    })?;
    let file = anonymous_file("forkyard-image", size).map_err(destination)?;
    let copier = Copier::new(pid, region, lineage, pages, &file)?;
    let (builder, mut counts) = thread::scope(|scope| {
        let others: Vec<_> = (1..threads.get())
            .map(|_| {
                thread::Builder::new()
                    .name("capture".into())
                    .spawn_scoped(scope, || copier.run())
            })
            .collect();
        let mut result = copier.run();
        for other in others {
            // A thread that cannot be had is one fewer, not a failure: the
            // others take its share.
            let Ok(other) = other else { continue };
            let other = other.join().unwrap_or(Err(CaptureError::Thread));
            result = result.and_then(|(mut builder, counts)| {
                let (theirs, more) = other?;
                builder.append(theirs);
                Ok((builder, sum(counts, more)))
            });
        }
        result
    })?;
    counts.elapsed = begin.elapsed();
    Ok(Captured {
        file,
        builder,
        counts,
    })
}

impl Captured {
    /// Returns the amounts that were copied.
    pub fn counts(&self) -> CaptureCounts {
        self.counts
    }

    /// Completes the layer file and seals it against any change. Needs the
    /// process no more.
    pub fn finish(self) -> Result<File, CaptureError> {
        self.builder.finish(&self.file)?;
        seal(&self.file).map_err(|source| CaptureError::Destination { source })?;
        Ok(self.file)
    }
}

/// Counts the pages of `region` that [`capture`] would look at now, without
/// stopping or copying anything.
pub fn count(pid: u32, region: MemoryRegion, pages: Pages) -> Result<PageCount, CaptureError> {
    region.check()?;
    let mut listing = Listing::to_look(pid, region, pages)?;
    let mut counted = PageCount(0);
    for first in (0..region.pages.0).step_by(copier::UNIT) {
        let left = usize::try_from(region.pages.0 - first).unwrap_or(usize::MAX);
        let listed = listing.next(PageNo(first), left.min(copier::UNIT))?;
        counted.0 += listed.len() as u64;
    }
    Ok(counted)
}

fn open_map(pid: u32) -> Result<PageMap, CaptureError> {
    PageMap::open(pid).map_err(|source| map_failed(pid, source))
}

/// A process that has ended has no page map, or an empty one until it is waited for.
fn map_failed(pid: u32, source: io::Error) -> CaptureError {
    let gone = matches!(
        source.kind(),
        ErrorKind::NotFound | ErrorKind::UnexpectedEof
    );
    if gone || source.raw_os_error() == Some(copier::ESRCH) {
        CaptureError::Gone { pid }
    } else {
        CaptureError::PageMap { pid, source }
    }
}

fn sum(a: CaptureCounts, b: CaptureCounts) -> CaptureCounts {
    CaptureCounts {
        scanned: PageCount(a.scanned.0 + b.scanned.0),
        captured: PageCount(a.captured.0 + b.captured.0),
        zero: PageCount(a.zero.0 + b.zero.0),
        elapsed: a.elapsed.max(b.elapsed),
    }
}
