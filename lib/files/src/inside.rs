//! Paths inside a directory that is to become a root file system.
//!
//! Its symbolic links mean what they will mean in the guest: `/bin -> usr/bin`
//! and `/var/run -> /run` lead to places inside it, never to the host's.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Component, Path, PathBuf},
};

/// Links followed before giving up, as the kernel does.
const MAX_LINKS: usize = 40;

/// Returns where `path` is on the host, its directories made where they are missing.
/// The last part itself is not followed: it may be a link, or nothing yet.
pub fn place(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::other("not a path below the root"));
    };
    Ok(directory(root, path.parent().unwrap_or(Path::new("/")))?.join(name))
}

/// Returns where the directory `path` is on the host; made if missing.
pub fn directory(root: &Path, path: &Path) -> io::Result<PathBuf> {
    directory_with(root, path, 0o755)
}

/// Opens or makes a directory, with the mode that it has if it is made.
pub fn directory_with(root: &Path, path: &Path, mode: u32) -> io::Result<PathBuf> {
    let mut left: VecDeque<OsString> = names(path);
    let mut below = PathBuf::new();
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            below.pop();
            continue;
        }
        let here = root.join(&below).join(&name);
        match fs::symlink_metadata(&here) {
            Ok(found) if found.is_symlink() => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(io::Error::other("too many symbolic links"));
                }
                let target = fs::read_link(&here)?;
                if target.is_absolute() {
                    below.clear();
                }
                for part in names(&target).into_iter().rev() {
                    left.push_front(part);
                }
            }
            Ok(found) if found.is_dir() => below.push(name),
            Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mode = if left.is_empty() { mode } else { 0o755 };
                fs::DirBuilder::new().mode(mode).create(&here)?;
                // Whatever this process's umask.
                fs::set_permissions(&here, fs::Permissions::from_mode(mode))?;
                below.push(name);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(root.join(below))
}

fn names(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_lead_to_places_inside() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        fs::create_dir_all(root.join("usr/bin")).expect("made");
        fs::create_dir(root.join("var")).expect("made");
        symlink("usr/bin", root.join("bin")).expect("made");
        symlink("/run", root.join("var/run")).expect("made");
        symlink("../../../../up", root.join("var/far")).expect("made");
        symlink("var/opt", root.join("opt")).expect("made");
        symlink("/../nowhere/yet", root.join("proc")).expect("made");

        let cases = [
            ("/bin/sh", "usr/bin/sh"),
            ("/var/run/lock/x", "run/lock/x"),
            ("/var/far/x", "up/x"),
            ("/new/dirs/x", "new/dirs/x"),
            ("/opt/forkyard/x", "var/opt/forkyard/x"),
            ("/proc/x", "nowhere/yet/x"),
            ("/x", "x"),
        ];
        for (path, place_wanted) in cases {
            let found = place(root, Path::new(path)).expect(path);
            assert_eq!(found, root.join(place_wanted), "{path}");
            assert!(found.parent().expect("below the root").is_dir(), "{path}");
        }
    }

    #[test]
    fn loop_of_links_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        symlink("b", dir.path().join("a")).expect("made");
        symlink("a", dir.path().join("b")).expect("made");
        place(dir.path(), Path::new("/a/x")).expect_err("it never ends");
    }

    #[test]
    fn file_in_the_way_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("a"), "").expect("written");
        let error = place(dir.path(), Path::new("/a/x")).expect_err("a is a file");
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }
}
