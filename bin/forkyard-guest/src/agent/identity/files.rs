//! Small files that say who this VM is.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

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
        .open(path)?;
    let before = file.metadata()?.len();
    file.write_all_at(text, 0)?;
    let now = text.len() as u64;
    if before > now {
        file.set_len(now)?;
    }
    Ok(())
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
