//! Mount namespaces in which there is nothing but what was put there.
//!
//! ```text
//! Piece::of(path) -- a copy of one mount, detached --+
//!                                                     v
//! Jail::build --> tmpfs as root, pieces at their own paths
//!   add, remove, within: later, by the holder of the jail
//! ```
//!
//! A jail is reached by its descriptor alone, never by a path: that of the
//! process that builds it may itself be in a `chroot`, where the namespace's
//! root has no name and may not be pivoted.

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, setns, unshare},
    sys::stat::{Mode, umask},
    unistd::{fchdir, pivot_root},
};
use std::{
    ffi::{CStr, CString, c_int, c_uint},
    fs::{self, File},
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::{ffi::OsStrExt, fs::symlink},
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

/// Folders of programs, libraries and firmware.
pub const PROGRAMS: [&str; 9] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/ld.so.cache",
    "/etc/alternatives",
];

/// The thread's own; `/proc/self` would be the process's.
const OWN: &str = "/proc/thread-self/ns/mnt";
/// Bytes and files of a jail's own: a device state, and places for pieces.
const OWN_SIZE: &CStr = c"80m";
const OWN_FILES: &CStr = c"65536";
/// Whatever the process's is: a process in a jail may make nothing in it.
const OTHERS_READ: Mode = Mode::from_bits_truncate(0o022);

/// A mount namespace. It goes with the last process in it and the last of these.
#[derive(Clone, Debug)]
pub struct Jail(Arc<OwnedFd>);

/// Use that may be made of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Read and executed.
    Program,
    /// Opened as the device that it is.
    Device,
    /// Read, and written by the users that its mode allows.
    Data,
    /// Likewise, with programs in it that are executed.
    Tree,
}

/// A file or folder of the caller's, to be put into a jail where it is here.
#[derive(Debug)]
pub struct JailPiece {
    tree: OwnedFd,
    at: PathBuf,
    /// Likewise, without a link on the way.
    real: PathBuf,
    is_folder: bool,
}

/// The pieces of a jail, and its symbolic links.
pub type JailContent = (Vec<JailPiece>, Vec<(PathBuf, PathBuf)>);

/// Takes hold of what programs need to run: their folders, and devices that every program
/// may have. What is not there is left out.
pub fn programs() -> io::Result<JailContent> {
    let (mut pieces, mut links) = (Vec::new(), Vec::new());
    for path in PROGRAMS.map(Path::new) {
        match fs::read_link(path) {
            Ok(target) => links.push((path.to_owned(), target)),
            Err(_) => pieces.extend(JailPiece::if_there(path, Use::Program)?),
        }
    }
    for path in ["/dev/null", "/dev/zero", "/dev/urandom"] {
        pieces.extend(JailPiece::if_there(Path::new(path), Use::Device)?);
    }
    Ok((pieces, links))
}

impl JailPiece {
    /// As [`JailPiece::of`]; none of a path at which there is nothing.
    pub fn if_there(path: &Path, r#use: Use) -> io::Result<Option<Self>> {
        match Self::of(path, r#use) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    /// Takes hold of what an absolute path leads to, with all that is mounted
    /// below it. It is what it is now, whatever becomes of the path. Needs root.
    pub fn of(path: &Path, r#use: Use) -> io::Result<Self> {
        if !path.is_absolute() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let real = fs::canonicalize(path)?;
        let is_folder = real.is_dir();
        let text = CString::new(path.as_os_str().as_bytes())?;
        let flags =
            libc::OPEN_TREE_CLONE | libc::O_CLOEXEC as c_uint | libc::AT_RECURSIVE as c_uint;
        // SAFETY: `text` is a C string that outlives the call, which returns a
        // descriptor that no other code owns, or fails.
        let tree = unsafe {
            owned(libc::syscall(
                libc::SYS_open_tree,
                libc::AT_FDCWD,
                text.as_ptr(),
                flags,
            ))
        }?;
        let attributes = match r#use {
            Use::Program => {
                libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV
            }
            Use::Device => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC,
            Use::Data => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC,
            Use::Tree => libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        };
        restrict(&tree, attributes)?;
        Ok(Self {
            tree,
            at: path.to_owned(),
            real,
            is_folder,
        })
    }

    /// Puts it into the root that the calling thread has.
    fn place(&self) -> io::Result<()> {
        // A link of a piece that is there already leads on as it does here.
        let at = if self.at.ancestors().any(Path::is_symlink) {
            &self.real
        } else {
            &self.at
        };
        if let Some(parent) = at.parent() {
            fs::create_dir_all(parent)?;
        }
        match (self.is_folder, at.exists()) {
            (_, true) => {}
            (true, false) => fs::create_dir(at)?,
            (false, false) => drop(File::create(at)?),
        }
        let text = CString::new(at.as_os_str().as_bytes())?;
        move_mount(&self.tree, &text)
    }
}

impl Jail {
    /// Makes a jail of these pieces, and of symbolic links, each a path and
    /// where that leads. Needs root. Blocks for about a millisecond.
    pub fn build(pieces: Vec<JailPiece>, links: Vec<(PathBuf, PathBuf)>) -> io::Result<Self> {
        apart(move || {
            unshare(CloneFlags::CLONE_NEWNS)?;
            let own = File::open(OWN)?;
            // Entering it anew leads to its root, out of any `chroot`.
            setns(&own, CloneFlags::CLONE_NEWNS)?;
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            let root = tmpfs()?;
            move_mount(&root, c"/")?;
            fchdir(&root)?;
            // A root that lies under no other cannot be exchanged: it stays,
            // out of sight for all processes that enter by the descriptor.
            match pivot_root(".", ".") {
                Ok(()) => umount2(".", MntFlags::MNT_DETACH)?,
                Err(nix::errno::Errno::EINVAL) => {}
                Err(error) => return Err(error.into()),
            }
            setns(&own, CloneFlags::CLONE_NEWNS)?;
            umask(OTHERS_READ);
            for piece in &pieces {
                piece.place()?;
            }
            for (path, target) in &links {
                symlink(target, path)?;
            }
            Ok(Self(Arc::new(own.into())))
        })
    }

    /// The jail that a process is in; none if that is the caller's own.
    pub fn of_process(pid: u32) -> io::Result<Option<Self>> {
        use std::os::unix::fs::MetadataExt;
        let theirs = File::open(format!("/proc/{pid}/ns/mnt"))?;
        let (there, here) = (theirs.metadata()?.ino(), fs::metadata(OWN)?.ino());
        Ok((there != here).then(|| Self(Arc::new(theirs.into()))))
    }

    /// Puts another piece into it. Blocks for some system calls.
    pub fn add(&self, piece: JailPiece) -> io::Result<()> {
        self.within(move || piece.place())
    }

    /// Takes a file out of it; a process that has it open keeps it. No error if it is not
    /// there. Blocks for some system calls.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        self.within(move || {
            match umount2(&path, MntFlags::MNT_DETACH) {
                // No such file, or none of its own.
                Ok(()) | Err(nix::errno::Errno::ENOENT | nix::errno::Errno::EINVAL) => {}
                Err(error) => return Err(error.into()),
            }
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                Ok(()) | Err(_) => Ok(()),
            }
        })
    }

    /// Does something in it, where its root is the root, and waits for it.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        apart(move || {
            // A thread that shares its root with others may enter no other.
            unshare(CloneFlags::CLONE_FS)?;
            setns(&*self.0, CloneFlags::CLONE_NEWNS)?;
            umask(OTHERS_READ);
            work()
        })
    }
}

impl AsRawFd for Jail {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Does something in a thread of its own, which ends with it.
fn apart<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let done = thread::scope(|scope| scope.spawn(work).join());
    done.map_err(|_| io::Error::other("the thread panicked"))?
}

/// An empty file system in memory, attached nowhere.
fn tmpfs() -> io::Result<OwnedFd> {
    // SAFETY: takes a C string and an integer, and returns a descriptor that is
    // no other code's, or fails.
    let context = unsafe {
        owned(libc::syscall(
            libc::SYS_fsopen,
            c"tmpfs".as_ptr(),
            libc::FSOPEN_CLOEXEC,
        ))
    }?;
    let options = [
        (c"size", OWN_SIZE),
        (c"nr_inodes", OWN_FILES),
        (c"mode", c"0755"),
    ];
    for (key, value) in options {
        configure(&context, libc::FSCONFIG_SET_STRING, Some((key, value)))?;
    }
    configure(&context, libc::FSCONFIG_CMD_CREATE, None)?;
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    // SAFETY: takes a descriptor that is open and integers, and returns a
    // descriptor that no other code owns, or fails.
    unsafe {
        owned(libc::syscall(
            libc::SYS_fsmount,
            context.as_raw_fd(),
            libc::FSMOUNT_CLOEXEC,
            attributes,
        ))
    }
}

fn configure(context: &OwnedFd, command: c_uint, option: Option<(&CStr, &CStr)>) -> io::Result<()> {
    let (key, value) = option.map_or((std::ptr::null(), std::ptr::null()), |(key, value)| {
        (key.as_ptr(), value.as_ptr())
    });
    // SAFETY: the descriptor is open, and both pointers are null, which the
    // commands without an option want, or C strings that outlive the call.
    done(unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            command,
            key,
            value,
            0,
        )
    })
}

/// Attaches a detached mount.
fn move_mount(tree: &OwnedFd, at: &CStr) -> io::Result<()> {
    // SAFETY: the descriptor is open, and both paths are C strings that outlive
    // the call.
    done(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            at.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    })
}

/// Narrows what may be done by a detached mount and all below it, and has it
/// share nothing of what is mounted there with where it came from.
fn restrict(tree: &OwnedFd, attributes: u64) -> io::Result<()> {
    let wanted = libc::mount_attr {
        attr_set: attributes,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    // SAFETY: the descriptor is open, the path a C string, and the structure is
    // read for exactly its size during the call.
    done(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const wanted,
            size_of::<libc::mount_attr>(),
        )
    })
}

/// Owns the descriptor that a call returned.
///
/// # Safety
///
/// If it is a number, it must be that of a descriptor that no other code knows of.
unsafe fn owned(returned: libc::c_long) -> io::Result<OwnedFd> {
    let number = c_int::try_from(returned).map_err(io::Error::other)?;
    match number {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
    }
}

fn done(returned: libc::c_long) -> io::Result<()> {
    match returned {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, path::Component, process::Command};

    fn jail(data: &Path) -> Jail {
        let program = |path: &str| JailPiece::of(Path::new(path), Use::Program).expect("root");
        let pieces = vec![
            program("/usr"),
            JailPiece::of(Path::new("/dev/null"), Use::Device).expect("root"),
            JailPiece::of(data, Use::Data).expect("root"),
        ];
        let links =
            ["/bin", "/lib", "/lib64"].map(|path| (path.into(), format!("usr{path}").into()));
        Jail::build(pieces, links.into()).expect("root")
    }

    fn names(folder: &str) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(folder)?.flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        Ok(names)
    }

    #[test]
    fn there_is_nothing_in_a_room_but_what_was_put_there() {
        let file = tempfile::NamedTempFile::new().expect("file");
        let path = file.path().to_owned();
        let first = path.components().nth(1).map(Component::as_os_str);
        let first = first.expect("absolute").to_string_lossy().into_owned();
        let jail = jail(&path);
        let known = ["bin", "dev", "lib", "lib64", "usr"].map(str::to_owned);
        let mut expected: Vec<_> = known.into_iter().chain([first]).collect();
        expected.sort();
        assert_eq!(jail.within(|| names("/")).expect("listed"), expected);
        assert_eq!(jail.within(|| names("/..")).expect("listed"), expected);
        assert_eq!(jail.within(|| names("/dev")).expect("listed"), ["null"]);
        jail.within(|| {
            assert!(File::create("/usr/planted").is_err(), "it is read-only");
            File::options().write(true).open("/dev/null")?;
            File::options().append(true).open(&path)?.write_all(b"seen")
        })
        .expect("within");
        assert_eq!(fs::read(file.path()).expect("read"), b"seen");
    }

    #[test]
    fn a_piece_that_comes_later_is_seen_and_one_taken_out_is_not() {
        let [first, later] = [(); 2].map(|()| tempfile::NamedTempFile::new().expect("file"));
        let jail = jail(first.path());
        let there = || jail.within(|| Ok(later.path().exists())).expect("entered");
        assert!(!there());
        let piece = JailPiece::of(later.path(), Use::Data).expect("root");
        jail.add(piece).expect("added");
        assert!(there());
        jail.remove(later.path()).expect("removed");
        assert!(!there());
        jail.remove(later.path()).expect("no error again");
        assert!(later.path().exists(), "here it stays");
    }

    /// `/usr/lib/ssl/certs` is a link to `/etc/ssl/certs`, and the folder that cargo has TLS libraries look into.
    #[test]
    fn a_piece_behind_a_link_of_another_is_put_where_that_leads() {
        let folder = tempfile::tempdir().expect("folder");
        let path = |name: &str| folder.path().join(name);
        for name in ["links", "real"] {
            fs::create_dir(path(name)).expect("folder");
        }
        fs::write(path("real/file"), "x").expect("written");
        symlink(path("real"), path("links/there")).expect("linked");
        let links = || JailPiece::of(&path("links"), Use::Program).expect("root");
        for behind in ["links/there", "links/there/file"] {
            let real = || JailPiece::of(&path("real"), Use::Program).expect("root");
            let behind = || JailPiece::of(&path(behind), Use::Program).expect("root");
            let orders = [
                vec![links(), behind()],
                vec![links(), real(), behind()],
                vec![links(), behind(), real()],
            ];
            for pieces in orders {
                let jail = Jail::build(pieces, Vec::new()).expect("built");
                let read = jail.within(|| fs::read_to_string(path("links/there/file")));
                assert_eq!(read.expect("read"), "x");
            }
        }
    }

    #[test]
    fn building_one_changes_nothing_here_and_a_process_is_found_to_be_in_it() {
        let before = fs::read_to_string("/proc/thread-self/mounts").expect("mounts");
        let file = tempfile::NamedTempFile::new().expect("file");
        let jail = jail(file.path());
        let after = fs::read_to_string("/proc/thread-self/mounts").expect("mounts");
        assert_eq!(before, after);
        let mut child = jail
            .within(|| Command::new("/usr/bin/sleep").arg("600").spawn())
            .expect("sleep");
        let found = Jail::of_process(child.id()).expect("alive");
        assert!(found.is_some());
        let own = Jail::of_process(std::process::id()).expect("alive");
        assert!(own.is_none());
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }

    /// As a daemon's may be: its root is a folder like any other.
    #[test]
    fn a_room_can_be_built_in_a_chroot_whose_root_is_no_mount() {
        let folder = tempfile::tempdir().expect("folder");
        let inner = folder.path().to_owned();
        let seen = apart(move || {
            unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            for name in ["proc", "usr"] {
                let at = inner.join(name);
                fs::create_dir(&at)?;
                let from = Path::new("/").join(name);
                let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
                mount(Some(&from), &at, none, flags, none)?;
            }
            fs::write(inner.join("own"), "x")?;
            std::os::unix::fs::chroot(&inner)?;
            std::env::set_current_dir("/")?;
            let piece = |path: &str, r#use| JailPiece::of(Path::new(path), r#use);
            let pieces = vec![piece("/usr", Use::Program)?, piece("/own", Use::Data)?];
            let jail = Jail::build(pieces, Vec::new())?;
            jail.within(|| names("/"))
        });
        assert_eq!(seen.expect("built"), ["own", "usr"]);
    }
}
