//! From a raw disk image to a layer.

use crate::{Checksum, ImageError, LayerBuilder, Lineage, Slot};
use forkyard_types::{ByteCount, PAGE_SIZE, PageCount, PageNo};
use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Pages copied at once.
const CHUNK: usize = 64;

static ZERO_PAGE: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// Result of [`write_file`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteSummary {
    /// Size of the image: the source's, its last page filled up with zeros.
    pub pages: PageCount,
    /// Pages of it that hold data; the others are zero and take no space.
    pub data: PageCount,
}

/// Copies a raw disk (a file, sparse or not, or a block device) into the empty
/// file `dest`, which is a layer of its own afterwards: `lineage` should name
/// no parent, or the zero pages left out would show the parent's. Holes are
/// skipped unread. Leaves the file positions of `source` anywhere.
pub fn write_file(
    source: &File,
    lineage: Lineage,
    dest: &File,
) -> Result<WriteSummary, ImageError> {
    let size = (&mut &*source)
        .seek(SeekFrom::End(0))
        .map_err(cannot_read)?;
    let pages = ByteCount(size).pages();
    let mut builder = LayerBuilder::new(lineage, pages);
    let mut next = Slot(0);
    let mut buffer = vec![0; CHUNK * PAGE_SIZE];
    let mut from = 0;
    while let Some(data) = next_data(source, from, size).map_err(cannot_read)? {
        let mut at = data.start;
        while at < data.end {
            let want = usize::try_from(data.end - at)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            source
                .read_exact_at(&mut buffer[..want], at)
                .map_err(cannot_read)?;
            // The last page of the source may be partly there.
            let whole = want.next_multiple_of(PAGE_SIZE);
            buffer[want..whole].fill(0);
            let first = PageNo(at / PAGE_SIZE as u64);
            next = store(&mut builder, dest, first, next, &buffer[..whole])?;
            at += want as u64;
        }
        from = data.end;
    }
    let data = builder.finish(dest)?;
    Ok(WriteSummary { pages, data })
}

/// Writes the pages that are not zero to the slots from `next` on; answers the
/// first slot free after them.
fn store(
    builder: &mut LayerBuilder,
    dest: &File,
    first: PageNo,
    mut next: Slot,
    bytes: &[u8],
) -> Result<Slot, ImageError> {
    let mut number = first.0;
    let pages = bytes.as_chunks::<PAGE_SIZE>().0;
    for run in pages.chunk_by(|a, b| (*a == ZERO_PAGE) == (*b == ZERO_PAGE)) {
        if run.first().is_some_and(|page| *page != ZERO_PAGE) {
            let too_far = || ImageError::Write {
                source: io::ErrorKind::FileTooLarge.into(),
            };
            let failed = |source| ImageError::Write { source };
            let offset = next.offset().ok_or_else(too_far)?;
            dest.write_all_at(run.as_flattened(), offset)
                .map_err(failed)?;
            for (page, number) in run.iter().zip(number..) {
                builder.data(PageNo(number), next, Checksum::of(page));
                next.0 += 1;
            }
        }
        number += run.len() as u64;
    }
    Ok(next)
}

/// The next stretch of `source` that is no hole, in whole pages, from the page
/// that starts at `from` on. A source that knows no holes is all data.
fn next_data(source: &File, from: u64, size: u64) -> io::Result<Option<Range<u64>>> {
    if from >= size {
        return Ok(None);
    }
    let page = PAGE_SIZE as u64;
    let at = i64::try_from(from).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let start = match lseek(source, at, Whence::SeekData) {
        Ok(start) => start,
        Err(Errno::ENXIO) => return Ok(None),
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => return Ok(Some(from..size)),
        Err(errno) => return Err(errno.into()),
    };
    let end = lseek(source, start, Whence::SeekHole)?;
    let start = u64::try_from(start).unwrap_or(from) / page * page;
    let end = u64::try_from(end).unwrap_or(size).next_multiple_of(page);
    Ok(Some(start.max(from)..end.min(size)))
}

fn cannot_read(source: io::Error) -> ImageError {
    ImageError::Read { source }
}
