//! Devices, FIFOs, open files and files of the kernel's: written into, as `cp` does, and never replaced. And files
//! that have no name until they are whole.

use crate::{Entry, EntryKind, FilesError, PIECE, Reader, Unpacked};
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, FcntlArg, OFlag, fcntl},
    sys::{
        stat::{SFlag, fstatat},
        statfs::{self, FsType, statfs},
    },
    unistd::{AccessFlags, access, linkat},
};
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read, Write as _},
    os::{
        fd::{AsRawFd as _, BorrowedFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::Path,
    thread::sleep,
    time::Duration,
};

/// Tries to find a FIFO's reader, which may be just about to open it, and the time between two.
const TRIES: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(50);

/// Opens what is written into. Does not wait for the reader of a FIFO: there may never be one.
fn open(path: &Path) -> Result<File, FilesError> {
    let failed = |source| FilesError::Write {
        path: path.into(),
        source,
    };
    let mut options = File::options();
    options
        .write(true)
        .truncate(true)
        .custom_flags((OFlag::O_NOCTTY | OFlag::O_NONBLOCK).bits());
    for tried in 1.. {
        match options.open(path) {
            Ok(file) => {
                // From now on its reader sets the pace.
                let flags = fcntl(&file, FcntlArg::F_GETFL).map_err(|e| failed(e.into()))?;
                let flags = OFlag::from_bits_truncate(flags) - OFlag::O_NONBLOCK;
                fcntl(&file, FcntlArg::F_SETFL(flags)).map_err(|e| failed(e.into()))?;
                return Ok(file);
            }
            Err(error) if error.raw_os_error() != Some(Errno::ENXIO as i32) => {
                return Err(failed(error));
            }
            Err(_) if tried < TRIES => sleep(BETWEEN),
            Err(_) => break,
        }
    }
    Err(FilesError::Place {
        path: path.into(),
        why: "it is no file, but a FIFO or device, and nothing reads from it",
    })
}

/// Tells whether a file can be written into, and another one cannot take its name: one of /proc, or one in
/// a folder that is read-only.
pub fn cannot_be_replaced(path: &Path) -> bool {
    let above = match path.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    };
    let writable = |path: &Path| access(path, AccessFlags::W_OK).is_ok();
    is_made_up(path) || !writable(above) && writable(path)
}

/// Writes a file's content into a device, a FIFO or a file that is open.
pub(crate) fn through(
    reader: &mut Reader<impl Read>,
    entry: &Entry,
    path: &Path,
    said: &mut dyn FnMut(String),
) -> Result<Unpacked, FilesError> {
    let failed = |source| FilesError::Write {
        path: path.into(),
        source,
    };
    let EntryKind::File { size, extents } = &entry.kind else {
        let why = "it is a device or FIFO, which takes files alone";
        let path = path.into();
        return Err(FilesError::Place { path, why });
    };
    let every = extents.clone().unwrap_or_else(|| vec![(0, *size)]);
    let mut file = open(path)?;
    let (mut buffer, mut at, mut bytes) = (vec![0; PIECE], 0, 0);
    for (offset, length) in every.into_iter().chain([(*size, 0)]) {
        // What is written into has no holes.
        io::copy(&mut io::repeat(0).take(offset - at), &mut file).map_err(failed)?;
        let mut left = length;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            let read = reader.data(&mut buffer[..most])?;
            if read == 0 {
                return Err(FilesError::Short);
            }
            file.write_all(&buffer[..read]).map_err(failed)?;
            left -= read as u64;
        }
        at = offset + length;
        bytes += length;
    }
    if let Some(more) = reader.next_entry()? {
        let path = String::from_utf8_lossy(&more.path).into_owned();
        return Err(FilesError::Unasked { path });
    }
    reader.notes.drain(..).for_each(&mut *said);
    reader.drain()?;
    Ok(Unpacked { files: 1, bytes })
}

/// Refuses to replace a device, FIFO or socket.
pub(crate) fn spare(dir: BorrowedFd<'_>, name: &OsStr) -> nix::Result<()> {
    let Ok(about) = fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) else {
        return Ok(());
    };
    let kind = SFlag::from_bits_truncate(about.st_mode) & SFlag::S_IFMT;
    match [SFlag::S_IFREG, SFlag::S_IFLNK, SFlag::S_IFDIR].contains(&kind) {
        true => Ok(()),
        false => Err(Errno::EEXIST),
    }
}

/// Gives a file its first name.
pub(crate) fn give_name(file: &File, dir: BorrowedFd<'_>, name: &OsStr) -> nix::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(
        AT_FDCWD,
        own.as_str(),
        dir,
        name,
        AtFlags::AT_SYMLINK_FOLLOW,
    )
}

/// Tells whether a path is of a file system that the kernel makes up.
pub(crate) fn is_made_up(at: &Path) -> bool {
    const CONFIGFS: FsType = FsType(0x6265_6570);
    const SECURITYFS: FsType = FsType(0x7363_6673);
    const DEVPTS: FsType = FsType(0x1cd1);
    let kinds = [
        statfs::PROC_SUPER_MAGIC,
        statfs::SYSFS_MAGIC,
        statfs::CGROUP_SUPER_MAGIC,
        statfs::CGROUP2_SUPER_MAGIC,
        statfs::DEBUGFS_MAGIC,
        statfs::TRACEFS_MAGIC,
        statfs::BPF_FS_MAGIC,
        CONFIGFS,
        SECURITYFS,
        DEVPTS,
    ];
    statfs(at).is_ok_and(|about| kinds.contains(&about.filesystem_type()))
}
