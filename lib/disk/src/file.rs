//! The files of slices: access to them, and copies of empty ones.

use crate::DiskError;
use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, fchown},
    path::Path,
};

/// Access to a slice: one user may write it, one group read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceAccess {
    /// The user its QEMU runs as.
    pub uid: u32,
    /// The group of the family, whose QEMUs have it below their own slices.
    pub gid: u32,
}

const MODE: u32 = 0o640;
/// Of a slice that is not written any more.
const SEALED: u32 = 0o440;

/// Largest file taken for an empty slice: a disk of some 500 TiB has one.
const MAX_EMPTY: u64 = 64 << 20;

/// Gives a slice to a user and a group. Blocks for two calls.
pub fn set_access(path: &Path, access: SliceAccess) -> Result<(), DiskError> {
    // Narrowed before it changes hands: no other user may read it meanwhile.
    fs::set_permissions(path, Permissions::from_mode(MODE))
        .map_err(DiskError::io("change mode of", path))?;
    chown(path, Some(access.uid), Some(access.gid)).map_err(DiskError::io("give away", path))
}

/// Takes a frozen slice from the user that wrote it; its group reads it as before. A QEMU that was
/// taken over could otherwise change what its relatives' disks are made of, and so could the next
/// VM to run as that user. No error if it is sealed already. Blocks for three calls.
pub fn seal(path: &Path) -> Result<(), DiskError> {
    let now = fs::metadata(path).map_err(DiskError::io("look at", path))?;
    if now.uid() == 0 && now.mode() & 0o7777 == SEALED {
        return Ok(());
    }
    chown(path, Some(0), None).map_err(DiskError::io("take back", path))?;
    fs::set_permissions(path, Permissions::from_mode(SEALED))
        .map_err(DiskError::io("change mode of", path))
}

/// Makes another empty slice over the same backing: a copy of one that
/// nothing was written to yet. Fails if `to` exists; leaves no part of it if
/// it fails. Blocks for about a millisecond.
pub fn copy_template(from: &Path, to: &Path, access: SliceAccess) -> Result<(), DiskError> {
    let empty = read_empty(from)?;
    let file = File::options()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(to)
        .map_err(DiskError::io("create", to))?;
    // The mode asked for at its creation is cut by the umask.
    let written = file
        .set_permissions(Permissions::from_mode(MODE))
        .and_then(|()| write_sparse(&file, &empty))
        .and_then(|()| fchown(&file, Some(access.uid), Some(access.gid)));
    written.map_err(|error| {
        // The first error is the one to tell of.
        let _ = fs::remove_file(to);
        DiskError::io("write", to)(error)
    })
}

fn read_empty(path: &Path) -> Result<Vec<u8>, DiskError> {
    let size = fs::metadata(path).map_err(DiskError::io("look at", path))?;
    if size.len() > MAX_EMPTY {
        let path = path.to_owned();
        return Err(DiskError::NotEmpty { path });
    }
    fs::read(path).map_err(DiskError::io("read", path))
}

/// Writes the blocks that are not zero: an empty slice is nearly all zeros,
/// and a hundred clones should not take a hundred times its size.
fn write_sparse(file: &File, bytes: &[u8]) -> io::Result<()> {
    const BLOCK: usize = 4096;
    let mut at = 0;
    file.set_len(u64::try_from(bytes.len()).map_err(io::Error::other)?)?;
    for block in bytes.chunks(BLOCK) {
        if block.iter().any(|byte| *byte != 0) {
            file.write_all_at(block, at)?;
        }
        at += BLOCK as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCESS: SliceAccess = SliceAccess {
        uid: 61_234,
        gid: 61_235,
    };

    #[test]
    fn a_copy_is_the_same_takes_no_space_for_zeros_and_is_given_away() {
        let dir = tempfile::tempdir().expect("dir");
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let mut bytes = vec![0; 300_001];
        bytes[5] = 1;
        bytes[300_000] = 2;
        fs::write(&from, &bytes).expect("written");
        copy_template(&from, &to, ACCESS).expect("copied");
        assert_eq!(fs::read(&to).expect("read"), bytes);
        let file = fs::metadata(&to).expect("there");
        assert_eq!((file.uid(), file.gid()), (ACCESS.uid, ACCESS.gid));
        assert_eq!(file.mode() & 0o7777, MODE);
        assert!(file.blocks() * 512 <= 4 * 4096, "{}", file.blocks());
    }

    #[test]
    fn a_file_that_exists_is_not_copied_over() {
        let dir = tempfile::tempdir().expect("dir");
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::write(&from, "empty slice").expect("written");
        fs::write(&to, "someone's disk").expect("written");
        let refused = copy_template(&from, &to, ACCESS);
        assert!(matches!(refused, Err(DiskError::Io { .. })), "{refused:?}");
        assert_eq!(fs::read(&to).expect("read"), b"someone's disk");
    }

    #[test]
    fn a_disk_in_use_is_no_template() {
        let dir = tempfile::tempdir().expect("dir");
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let file = File::create(&from).expect("created");
        file.set_len(MAX_EMPTY + 1).expect("sparse");
        let refused = copy_template(&from, &to, ACCESS);
        assert!(matches!(refused, Err(DiskError::NotEmpty { .. })));
        assert!(!to.exists());
    }

    #[test]
    fn a_slice_is_its_owners_to_write_and_its_familys_to_read() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("slice");
        fs::write(&path, "").expect("written");
        set_access(&path, ACCESS).expect("given");
        let file = fs::metadata(&path).expect("there");
        assert_eq!((file.uid(), file.gid()), (ACCESS.uid, ACCESS.gid));
        assert_eq!(file.mode() & 0o7777, 0o640);
    }

    #[test]
    fn a_sealed_slice_is_its_familys_to_read_and_of_no_vm_to_write() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("slice");
        fs::write(&path, "").expect("written");
        set_access(&path, ACCESS).expect("given");
        for _ in 0..2 {
            seal(&path).expect("sealed");
            let file = fs::metadata(&path).expect("there");
            assert_eq!((file.uid(), file.gid()), (0, ACCESS.gid));
            assert_eq!(file.mode() & 0o7777, 0o440);
        }
        set_access(&path, ACCESS).expect("given");
        let file = fs::metadata(&path).expect("there");
        assert_eq!((file.uid(), file.mode() & 0o7777), (ACCESS.uid, MODE));
    }
}
