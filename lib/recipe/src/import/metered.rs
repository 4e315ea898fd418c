//! Tar streams of unknown origin, read in bounded memory.
//!
//! A tar's headers may promise names and attributes of any length, and whoever
//! reads them keeps these in memory. Here a stream gives only so many bytes
//! between one entry's content and the next's.

use std::{
    cell::Cell,
    io::{self, Read},
    rc::Rc,
};
use tar::{Archive, Entries, Entry};

/// Most bytes of headers in front of an entry: names and attributes included.
const HEADERS: u64 = 1 << 20;
/// What is read beyond an entry's content, to the end of its block.
const BLOCK: u64 = 512;

/// A stream that gives as much as is left.
pub(super) struct Metered<R> {
    from: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.left.get()).unwrap_or(usize::MAX);
        if left == 0 && !buffer.is_empty() {
            return Err(io::Error::other("its headers are larger than headers are"));
        }
        let most = left.min(buffer.len());
        let read = self.from.read(&mut buffer[..most])?;
        self.left.set(self.left.get() - read as u64);
        Ok(read)
    }
}

/// An archive whose entries are looked at one after the other.
pub(super) struct Tar<R: Read> {
    archive: Archive<Metered<R>>,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Tar<R> {
    pub fn new(from: R) -> Self {
        let left = Rc::new(Cell::new(HEADERS));
        let metered = Metered {
            from,
            left: left.clone(),
        };
        Self {
            archive: Archive::new(metered),
            left,
        }
    }

    /// Shows each entry; whoever looks at one need not read it. Then the rest
    /// of the stream is read, to its end.
    pub fn each<E: From<io::Error>>(
        mut self,
        mut look: impl FnMut(&mut Entry<'_, Metered<R>>) -> Result<(), E>,
    ) -> Result<R, E> {
        {
            let mut entries = self.archive.entries()?;
            while let Some(mut entry) = next(&mut entries, &self.left)? {
                look(&mut entry)?;
                // What is left of it, and of its block, is not of its successor.
                io::copy(&mut entry, &mut io::sink())?;
            }
        }
        Ok(self.archive.into_inner().from)
    }
}

fn next<'a, R: Read>(
    entries: &mut Entries<'a, Metered<R>>,
    left: &Cell<u64>,
) -> io::Result<Option<Entry<'a, Metered<R>>>> {
    left.set(HEADERS);
    let entry = entries.next().transpose()?;
    if let Some(entry) = &entry {
        // As long as the archive has it: that of a sparse file may be longer.
        let stored = entry.header().entry_size().unwrap_or(0).max(entry.size());
        left.set(stored.saturating_add(BLOCK));
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tar::{Builder, EntryType, Header};

    fn header(kind: EntryType, size: u64) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o644);
        header.as_old_mut().name[0] = b'x';
        header.set_cksum();
        header
    }

    fn look(archive: impl Read) -> Result<Vec<u64>, io::Error> {
        let mut sizes = Vec::new();
        let rest = Tar::new(archive).each::<io::Error>(|entry| {
            sizes.push(entry.size());
            Ok(())
        });
        rest.map(|_| sizes)
    }

    #[test]
    fn entries_of_any_size_pass_and_need_not_be_read() {
        let mut builder = Builder::new(Vec::new());
        for size in [0, 1, 512, HEADERS * 3 + 7] {
            let content = io::repeat(1).take(size);
            builder
                .append(&header(EntryType::Regular, size), content)
                .expect("appended");
        }
        let archive = builder.into_inner().expect("whole");
        let sizes = look(&archive[..]).expect("read");
        assert_eq!(sizes, [0, 1, 512, HEADERS * 3 + 7]);
    }

    #[test]
    fn a_header_without_end_is_not_read_to_its_end() {
        for kind in [EntryType::XHeader, EntryType::GNULongName] {
            let endless = header(kind, u64::MAX >> 8);
            let stream = endless.as_bytes().chain(io::repeat(b'x'));
            look(stream).expect_err("it has no end");
        }
    }
}
