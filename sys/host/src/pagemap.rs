//! Pages of a process that are its own: `/proc/PID/pagemap`.

use crate::memory::HostAddr;
use forkyard_types::PAGE_SIZE;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes the kernel gives for one page.
const ENTRY: usize = size_of::<u64>();
/// Entries read by one system call.
const BATCH: usize = 1024;

/// One page of a process, as the kernel describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagemapEntry(u64);

impl PagemapEntry {
    const FILE_OR_SHARED: u64 = 1 << 61;
    const SWAPPED: u64 = 1 << 62;
    const PRESENT: u64 = 1 << 63;

    /// Tells whether the page belongs to this process alone: anonymous memory
    /// it touched, or its own copy of a page of a private file mapping. False
    /// for what it never touched and for what it only read from a file.
    pub fn is_private(self) -> bool {
        self.0 & (Self::PRESENT | Self::SWAPPED) != 0 && self.0 & Self::FILE_OR_SHARED == 0
    }
}

/// The page map of one process.
#[derive(Debug)]
pub struct PageMap(File);

impl PageMap {
    /// Opens it; needs the right to trace the process.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/pagemap")).map(Self)
    }

    /// Describes the pages from `start` on, one entry each. `UnexpectedEof`
    /// when the process has given up its memory: it is ending.
    pub fn read(&self, start: HostAddr, entries: &mut [PagemapEntry]) -> io::Result<()> {
        let mut raw = [0; BATCH * ENTRY];
        let mut offset = start.0 / PAGE_SIZE as u64 * ENTRY as u64;
        for batch in entries.chunks_mut(BATCH) {
            let raw = &mut raw[..batch.len() * ENTRY];
            self.0.read_exact_at(raw, offset)?;
            for (entry, bytes) in batch.iter_mut().zip(raw.as_chunks::<ENTRY>().0) {
                *entry = PagemapEntry(u64::from_ne_bytes(*bytes));
            }
            offset += raw.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use std::num::NonZeroUsize;

    fn private(mapping: &Mapping, pages: usize) -> Vec<bool> {
        let map = PageMap::open(std::process::id()).expect("our own");
        let mut entries = vec![PagemapEntry::default(); pages];
        map.read(mapping.address(), &mut entries).expect("reads");
        entries.into_iter().map(PagemapEntry::is_private).collect()
    }

    #[test]
    fn only_touched_anonymous_pages_are_private() {
        let mapping =
            Mapping::anonymous(NonZeroUsize::new(3 * PAGE_SIZE).expect("not zero")).expect("maps");
        mapping.write(PAGE_SIZE, b"x").expect("inside");
        assert_eq!(private(&mapping, 3), [false, true, false]);
    }

    #[test]
    fn page_of_a_file_is_private_only_once_written() {
        let file = crate::memory::anonymous_file("test", forkyard_types::ByteCount(3 * 4096))
            .expect("memfd");
        let mapping = Mapping::private(&file, NonZeroUsize::new(3 * PAGE_SIZE).expect("not zero"))
            .expect("maps");
        mapping.read(0, &mut [0]).expect("inside");
        mapping.write(2 * PAGE_SIZE, b"x").expect("inside");
        assert_eq!(private(&mapping, 3), [false, false, true]);
    }
}
