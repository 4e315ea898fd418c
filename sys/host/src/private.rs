//! Files that are the owner's alone, whatever the umask.

use std::{
    fs::{File, Permissions},
    io,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

const MODE: u32 = 0o600;

/// Opens a file to read and write that only its owner may open, created if missing and
/// otherwise as it is. One that others could open is closed to them from now on.
pub fn open(path: &Path) -> io::Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(MODE)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(MODE))?;
    Ok(file)
}

/// Creates a file that only its owner may open, in place of what it held.
pub fn create(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    file.set_len(0)?;
    Ok(file)
}

/// Creates a file that only its owner may open. Fails if it exists.
pub fn create_new(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_closed_to_others_also_those_that_were_open_to_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let mode = |path: &Path| {
            let facts = path.metadata().expect("it is there");
            facts.permissions().mode() & 0o777
        };
        let path = folder.path().join("old");
        std::fs::write(&path, "held").expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("set");
        open(&path).expect("opens");
        assert_eq!(
            (mode(&path), std::fs::read(&path).ok()),
            (MODE, Some(b"held".to_vec()))
        );
        create(&path).expect("creates");
        assert_eq!(
            (mode(&path), std::fs::read(&path).ok()),
            (MODE, Some(vec![]))
        );
        assert!(create_new(&path).is_err());
        create_new(&folder.path().join("new")).expect("creates");
        assert_eq!(mode(&folder.path().join("new")), MODE);
    }
}
