//! Tar streams, packed and unpacked where blocking does no harm, while their
//! pieces come and go elsewhere.

use std::{
    io::{self, Read, Write},
    path::Path,
};
use tar::{Archive, Builder, EntryType};
use tokio::sync::mpsc::{Receiver, Sender};

/// A stream that arrives in pieces. To be read where blocking does no harm.
#[derive(Debug)]
pub struct Incoming {
    pieces: Receiver<Vec<u8>>,
    piece: io::Cursor<Vec<u8>>,
}

impl Incoming {
    /// One that ends with its pieces.
    pub fn new(pieces: Receiver<Vec<u8>>) -> Self {
        let piece = io::Cursor::default();
        Self { pieces, piece }
    }
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.piece.read(buffer)? {
                0 => match self.pieces.blocking_recv() {
                    Some(next) => self.piece = io::Cursor::new(next),
                    None => return Ok(0),
                },
                read => return Ok(read),
            }
        }
    }
}

/// A stream that leaves in pieces. To be written where blocking does no harm.
#[derive(Debug)]
pub struct Outgoing {
    pieces: Sender<Vec<u8>>,
    piece: Vec<u8>,
    size: usize,
}

impl Outgoing {
    /// One whose pieces are of this size, the last but for it.
    pub fn new(pieces: Sender<Vec<u8>>, size: usize) -> Self {
        let piece = Vec::with_capacity(size);
        Self {
            pieces,
            piece,
            size,
        }
    }
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.size - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        if self.piece.len() == self.size {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let next = Vec::with_capacity(self.size);
        let piece = std::mem::replace(&mut self.piece, next);
        // Whoever took them has failed, and says why.
        let sent = self.pieces.blocking_send(piece);
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Packs a file or a folder, under the name `top`; links as links.
pub fn pack(from: &Path, top: &str, to: Outgoing) -> io::Result<()> {
    let mut builder = Builder::new(to);
    builder.follow_symlinks(false);
    if from.symlink_metadata()?.is_dir() {
        builder.append_dir_all(top, from)?;
    } else {
        builder.append_path_with_name(from, top)?;
    }
    builder.into_inner()?.flush()
}

/// Unpacks files, folders and links below a folder; all else in the stream is
/// passed over, and so is what would lie elsewhere. Reads the stream to its end.
pub fn unpack(from: impl Read, into: &Path) -> io::Result<()> {
    let mut archive = Archive::new(from);
    archive.set_preserve_mtime(true);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        let known = [
            EntryType::Regular,
            EntryType::Continuous,
            EntryType::Directory,
            EntryType::Symlink,
            EntryType::Link,
        ];
        if known.contains(&kind) {
            entry.unpack_in(into)?;
        }
    }
    io::copy(&mut archive.into_inner(), &mut io::sink()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};
    use tokio::sync::mpsc;

    #[test]
    fn a_folder_arrives_as_it_left_in_pieces_of_any_size() {
        let (here, there) = (dir(), dir());
        let from = here.path().join("from");
        fs::create_dir_all(from.join("deep/deeper")).expect("made");
        fs::write(from.join("deep/file"), vec![7; 100_000]).expect("written");
        symlink("deep/file", from.join("link")).expect("linked");
        let (pieces, arriving) = mpsc::channel(4);
        let packing = std::thread::spawn(move || pack(&from, "top", Outgoing::new(pieces, 1000)));
        unpack(Incoming::new(arriving), there.path()).expect("unpacked");
        packing.join().expect("ran").expect("packed");
        let top = there.path().join("top");
        assert_eq!(
            fs::read(top.join("deep/file")).expect("there").len(),
            100_000
        );
        assert_eq!(
            fs::read_link(top.join("link")).expect("a link"),
            Path::new("deep/file")
        );
        assert!(top.join("deep/deeper").is_dir());
    }

    #[test]
    fn a_guest_cannot_write_outside_of_the_destination() {
        let outside = dir();
        let into = outside.path().join("into");
        fs::create_dir(&into).expect("made");
        let mut builder = Builder::new(Vec::new());
        let mut add = |kind, path: &str, link: &str| {
            let mut header = tar::Header::new_old();
            header.set_entry_type(kind);
            header.set_mode(0o4777);
            header.set_size(if kind == EntryType::Regular { 4 } else { 0 });
            // Past the crate's own care: a guest takes none.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
            header.set_cksum();
            let content: &[u8] = if kind == EntryType::Regular {
                b"evil"
            } else {
                b""
            };
            builder.append(&header, content).expect("appended");
        };
        add(EntryType::Regular, "../escaped", "");
        add(EntryType::Symlink, "way", "..");
        add(EntryType::Regular, "way/escaped", "");
        add(EntryType::Char, "device", "");
        add(EntryType::Regular, "fine", "");
        let stream = builder.into_inner().expect("whole");
        // Told of, or passed over; never followed.
        let _ = unpack(&stream[..], &into);
        assert!(!outside.path().join("escaped").exists());
        assert!(!into.join("device").exists());
        if let Ok(facts) = fs::metadata(into.join("fine")) {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(facts.permissions().mode() & 0o7000, 0);
        }
    }

    fn dir() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }
}
