//! Files that are the owner's alone, whatever the umask.

use nix::unistd::geteuid;
use std::{
    fs::{DirBuilder, File, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
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

/// Creates a folder, and those above it, that only its owner may write, whatever the umask. No error
/// if it exists.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Folder in which others than its user could put what they like.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignFolder {
    /// The folder is another user's.
    #[error(
        "{} belongs to user {owner}, a user that could put anything there: choose a folder of your own, or chown it",
        folder.display()
    )]
    Owner {
        /// The folder.
        folder: PathBuf,
        /// Number of its user.
        owner: u32,
    },
    /// Others may write to it.
    #[error(
        "others may write to {} (mode {mode:o}): chmod go-w it, or choose another folder",
        folder.display()
    )]
    Open {
        /// The folder.
        folder: PathBuf,
        /// Mode of the folder.
        mode: u32,
    },
}

/// Refuses a folder of Forkyard's own in which others could lay files or links. No error if there
/// is none yet.
pub fn check_owner(folder: &Path) -> Result<(), ForeignFolder> {
    // As a link first: the user who laid it says where it leads.
    if let Ok(link) = folder.symlink_metadata()
        && link.is_symlink()
        && link.uid() != 0
        && link.uid() != geteuid().as_raw()
    {
        let (folder, owner) = (folder.to_owned(), link.uid());
        return Err(ForeignFolder::Owner { folder, owner });
    }
    let Ok(about) = folder.metadata() else {
        return Ok(());
    };
    let (owner, mode) = (about.uid(), about.mode() & 0o7777);
    let folder = folder.to_owned();
    if owner != 0 && owner != geteuid().as_raw() {
        return Err(ForeignFolder::Owner { folder, owner });
    }
    match mode & 0o022 {
        0 => Ok(()),
        _ => Err(ForeignFolder::Open { folder, mode }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_refused_in_which_others_could_lay_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let set = |mode| {
            std::fs::set_permissions(folder.path(), Permissions::from_mode(mode)).expect("set");
            check_owner(folder.path())
        };
        assert_eq!((set(0o700), set(0o755)), (Ok(()), Ok(())));
        for mode in [0o770, 0o777, 0o1777] {
            let refused = set(mode).expect_err("open to others");
            assert!(
                refused.to_string().contains("others may write"),
                "{refused}"
            );
        }
        assert_eq!(check_owner(&folder.path().join("none")), Ok(()));
        if geteuid().is_root() {
            set(0o755).expect("closed");
            std::os::unix::fs::chown(folder.path(), Some(65534), None).expect("root may");
            let refused = check_owner(folder.path()).expect_err("another's");
            assert!(refused.to_string().contains("user 65534"), "{refused}");
            let link = folder.path().join("link");
            std::os::unix::fs::symlink("/etc", &link).expect("linked");
            assert_eq!(check_owner(&link), Ok(()));
            std::os::unix::fs::lchown(&link, Some(65534), None).expect("root may");
            let refused = check_owner(&link).expect_err("another's link");
            assert!(refused.to_string().contains("user 65534"), "{refused}");
        } else {
            assert_eq!(check_owner(Path::new("/proc/1")), Ok(()), "root's");
        }
    }

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
