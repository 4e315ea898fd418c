//! Incoming bytes, written to a file.

use super::{
    ArchiveError, Cancel, DiskError, ImportError, MOST, PAGE, PIECE, Source, compressed, job,
    key_of,
};
use crate::{error::io_error, key::Key};
use forkyard_types::{ByteCount, ImageName};
use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::Path,
};

/// Writes what comes in to a file, an archive unpacked; the key of what will be made
/// of it.
pub(super) fn take_in(
    name: &ImageName,
    source: Source,
    from: impl Read,
    to: &Path,
    cancel: &Cancel,
) -> Result<Key, ImportError> {
    let Source::Oci { size, .. } = source else {
        let too_large = |size| DiskError::TooLarge { size, most: MOST }.into();
        let incoming = |source| ImportError::Incoming { source };
        return write_down(
            name,
            source,
            from,
            to,
            cancel,
            (MOST, &too_large),
            &incoming,
        );
    };
    // What broke off on its way is not to be told from what was cut off before.
    let unreadable = |source: io::Error| match source.kind() == io::ErrorKind::UnexpectedEof {
        true => ImportError::Incoming { source },
        false => ArchiveError::Tar { source }.into(),
    };
    let unpacked = compressed::unpacked(from).map_err(unreadable)?;
    let most = match unpacked.by {
        None => MOST,
        Some(_) => job::unpacked_at_most(size),
    };
    let too_large = |_| ArchiveError::Unpacks { most }.into();
    let most = (most, &too_large as _);
    write_down(name, source, unpacked.from, to, cancel, most, &unreadable)
}

pub(super) fn write_down(
    name: &ImageName,
    source: Source,
    mut from: impl Read,
    to: &Path,
    cancel: &Cancel,
    (most, too_large): (ByteCount, &dyn Fn(ByteCount) -> ImportError),
    unreadable: &dyn Fn(io::Error) -> ImportError,
) -> Result<Key, ImportError> {
    let file = File::create_new(to).map_err(io_error("create", to))?;
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE];
    let mut size = 0;
    loop {
        cancel.check()?;
        let mut filled = 0;
        while filled < piece.len() {
            let read = from.read(&mut piece[filled..]);
            match read.map_err(unreadable)? {
                0 => break,
                read => filled += read,
            }
        }
        if filled == 0 {
            break;
        }
        if size + filled as u64 > most.0 {
            return Err(too_large(ByteCount(size + filled as u64)));
        }
        hasher.update(&piece[..filled]);
        write_sparse(&file, &piece[..filled], size).map_err(io_error("write", to))?;
        size += filled as u64;
    }
    file.set_len(size).map_err(io_error("write", to))?;
    let mut key = key_of(name, source);
    key.add(hasher.finalize().as_bytes());
    Ok(key.finish())
}

/// Writes the pages that are not zero; `at` is a whole number of pages.
pub(super) fn write_sparse(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    for (page, at) in bytes.chunks(PAGE).zip((at..).step_by(PAGE)) {
        if page.iter().any(|byte| *byte != 0) {
            file.write_all_at(page, at)?;
        }
    }
    Ok(())
}
