//! Data that goes from the stream into a file. Out of a pipe the kernel moves it.

use super::Reader;
use crate::FilesError;
use nix::{
    errno::Errno,
    fcntl::{SpliceFFlags, splice},
};
use std::{
    fs::File,
    io::{self, BufReader, Read, Write},
};

/// Bytes of a member that are worth it: headers and small files are read ahead, many at once.
const MUCH: u64 = 64 << 10;

impl Reader<BufReader<File>> {
    /// Starts with a stream that comes through a pipe: much data goes into files without a copy of ours.
    pub fn of_pipe(pipe: File) -> io::Result<Self> {
        let same = pipe.try_clone()?;
        Ok(Self {
            pipe: Some((same, |from| from.buffer().is_empty())),
            ..Self::new(BufReader::new(pipe))
        })
    }
}

impl<R: Read> Reader<R> {
    /// Writes data of the present member to a file, so many bytes at most. Returns how many it wrote, 0 at
    /// the member's end; or the error of the file.
    pub(crate) fn data_into(
        &mut self,
        mut file: &File,
        most: u64,
        buffer: &mut [u8],
    ) -> Result<io::Result<usize>, FilesError> {
        let want = usize::try_from(most.min(self.left)).unwrap_or(usize::MAX);
        while let Some((pipe, is_at)) = &self.pipe
            && self.left >= MUCH
            && want > 0
            && is_at(&self.from)
        {
            match splice(pipe, None, file, None, want, SpliceFFlags::SPLICE_F_MOVE) {
                Ok(0) => return Err(FilesError::Short),
                Ok(moved) => {
                    self.left -= moved as u64;
                    return Ok(Ok(moved));
                }
                Err(Errno::EINTR) => {}
                // A file system that takes no pages.
                Err(Errno::EINVAL) => self.pipe = None,
                Err(error) => return Ok(Err(error.into())),
            }
        }
        let most = want.min(buffer.len());
        let read = self.data(&mut buffer[..most])?;
        Ok(file.write_all(&buffer[..read]).map(|()| read))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CopyTarget, Noted, TarWriter, WantedMembers, pack, unpack};
    use std::{fs, os::unix::fs::FileExt, thread};

    #[test]
    fn a_tree_that_comes_through_a_pipe_is_the_same() {
        let dir = tempfile::tempdir().expect("a folder");
        let from = dir.path().join("from");
        fs::create_dir(&from).expect("made");
        let long: Vec<u8> = (0..1_000_003_u32).flat_map(u32::to_le_bytes).collect();
        for (name, bytes) in [("empty", &[][..]), ("few", b"few bytes"), ("long", &long)] {
            fs::write(from.join(name), bytes).expect("written");
        }
        // Read ahead and moved by the kernel in turns.
        let sizes = [1, 65_535, 65_536, 65_537, 2, 200_001, 3];
        for size in sizes {
            fs::write(from.join(size.to_string()), &long[..size]).expect("written");
        }
        let holes = File::create(from.join("holes")).expect("made");
        holes.set_len(30 << 20).expect("long");
        holes.write_all_at(b"here", 5_000_001).expect("written");
        let (pipe, mut to) = io::pipe().expect("a pipe");
        let tree = from.clone();
        let sends = thread::spawn(move || {
            let mut writer = TarWriter::new(&mut to);
            pack(&tree, b"from", &mut writer, Noted::InStream).expect("packed");
            writer.finish().expect("sent");
        });
        let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
        let target = CopyTarget {
            path: &dir.path().join("to"),
            wanted: WantedMembers::Any,
        };
        let reader = Reader::of_pipe(pipe).expect("open");
        let done = unpack(reader, target, &mut |_| {}).expect("unpacked");
        sends.join().expect("sent");
        let named = ["empty", "few", "long", "holes"].map(str::to_owned);
        let names = named.into_iter().chain(sizes.map(|size| size.to_string()));
        assert_eq!(done.files, 11);
        for name in names {
            let read = |folder: &str| fs::read(dir.path().join(folder).join(&name)).expect("there");
            assert!(read("from") == read("to"), "{name}");
        }
    }
}
