//! A tar stream that is passed on as it is, and read meanwhile: a sender that failed is told from one that ended.

use forkyard_files::{EntryKind, FilesError, Reader};
use forkyard_types::FilesWritten;
use std::io::{self, Read, Write};

struct Tee<R, W> {
    from: R,
    to: W,
    /// Error of writing.
    failed: Option<io::Error>,
}

impl<R: Read, W: Write> Read for Tee<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.to.write_all(&buffer[..read]).map_err(|error| {
            self.failed = Some(error);
            io::Error::other("what was read cannot be passed on")
        })?;
        Ok(read)
    }
}

/// Passes a whole stream on; fails as one that unpacks it would.
pub fn pass(from: impl Read, to: impl Write) -> Result<FilesWritten, FilesError> {
    let failed = None;
    let mut reader = Reader::new(Tee { from, to, failed });
    read(&mut reader).map_err(|error| match reader.into_source().failed {
        Some(failed) => unwritten(failed),
        None => error,
    })
}

fn read(reader: &mut Reader<impl Read>) -> Result<FilesWritten, FilesError> {
    let mut done = FilesWritten {
        files: 0,
        bytes: 0,
        notes: Vec::new(),
    };
    while let Some(entry) = reader.next_entry()? {
        done.notes.append(&mut reader.notes);
        match entry.kind {
            EntryKind::File { size, extents } => {
                let data = extents.map(|all| all.iter().map(|extent| extent.1).sum());
                done.bytes += data.unwrap_or(size);
                done.files += 1;
            }
            EntryKind::Folder => {}
            EntryKind::Link(_) | EntryKind::Same(_) | EntryKind::Fifo | EntryKind::Device => {
                done.files += 1
            }
        }
    }
    done.notes.append(&mut reader.notes);
    reader.drain()?;
    Ok(done)
}

/// An error of writing to standard output.
pub fn unwritten(source: io::Error) -> FilesError {
    FilesError::Write {
        path: "standard output".into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_files::{Noted, TarWriter, pack};

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_stream_is_passed_on_as_it_is_and_one_that_breaks_off_or_gives_up_is_told() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("f"), [7; 3000]).expect("written");
        let mut stream = Vec::new();
        let mut writer = TarWriter::new(&mut stream);
        pack(dir.path(), b"d", &mut writer, Noted::InStream).expect("packed");
        writer.finish().expect("whole");
        let mut passed = Vec::new();
        let done = pass(&stream[..], &mut passed).expect("whole");
        assert_eq!((done.files, done.bytes), (1, 3000));
        assert_eq!(passed, stream);
        let short = pass(&stream[..2000], io::sink());
        assert!(matches!(short, Err(FilesError::Short)), "{short:?}");
        let full = pass(&stream[..], Full);
        assert!(
            matches!(&full, Err(FilesError::Write { source, .. }) if source.kind() == io::ErrorKind::StorageFull),
            "{full:?}"
        );
        let mut gave_up = Vec::new();
        let mut writer = TarWriter::new(&mut gave_up);
        writer
            .word("FORKYARD.failure", "it is a device")
            .expect("written");
        let told = pass(&gave_up[..], io::sink());
        assert!(
            matches!(&told, Err(FilesError::Sender(why)) if why == "it is a device"),
            "{told:?}"
        );
    }
}
