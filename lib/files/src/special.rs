//! Devices, FIFOs and open files: written into, as `cp` does, and never replaced. And files that have no name
//! until they are whole.

use crate::{Entry, FilesError, Kind, PIECE, Reader, Unpacked};
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag},
    sys::stat::{SFlag, fstatat},
    unistd::linkat,
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
};

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
    let Kind::File { size, extents } = &entry.kind else {
        let why = "it is a device or FIFO, which takes files alone";
        let path = path.into();
        return Err(FilesError::Place { path, why });
    };
    let every = extents.clone().unwrap_or_else(|| vec![(0, *size)]);
    let mut file = File::options()
        .write(true)
        .truncate(true)
        .custom_flags(OFlag::O_NOCTTY.bits())
        .open(path)
        .map_err(failed)?;
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
