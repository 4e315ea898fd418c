//! Small files that hold this VM's identity.

use nix::fcntl::OFlag;
use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

/// Bytes of such a file that are read.
const MOST: u64 = 1 << 20;

/// Writes a file whole, in place. Not emptied first: a file system that finds
/// a file emptied and written again takes care that it is on the disk when it
/// is closed (ext4's `auto_da_alloc`), and all that runs in a clone before its
/// user code does.
pub fn put(path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> io::Result<()> {
    let text = text.as_ref();
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        // A FIFO without a reader would hold this up for ever.
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    let before = file.metadata()?.len();
    file.write_all_at(text, 0)?;
    let now = text.len() as u64;
    if before > now {
        file.set_len(now)?;
    }
    Ok(())
}

/// Reads at most [`MOST`] bytes of a file. Does not block on a FIFO that has no writer.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    let file = File::options()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_was_put_there_last_whatever_its_length() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("name");
        for text in ["short\n", "a good deal longer\n", "p\n", ""] {
            put(&path, text).expect("written");
            assert_eq!(std::fs::read_to_string(&path).expect("there"), text);
        }
    }
}
