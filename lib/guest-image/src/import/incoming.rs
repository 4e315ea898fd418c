//! Incoming bytes, written to a file.

use super::{
    Cancel, DiskImportError, ImportError, MOST, PAGE, PIECE, Source, key_of, unpack::fill,
};
use crate::{error::io_error, key::CacheKey};
use forkyard_types::{ByteCount, ImageName};
use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::Path,
};

/// Writes what comes in to a file; the key of what will be made of it.
pub(super) fn take_in(
    name: &ImageName,
    source: Source,
    mut from: impl Read,
    to: &Path,
    cancel: &Cancel,
) -> Result<CacheKey, ImportError> {
    let file = File::create_new(to).map_err(io_error("create", to))?;
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE];
    let mut size = 0;
    loop {
        cancel.check()?;
        let filled = fill(&mut from, &mut piece);
        let filled = filled.map_err(|source| ImportError::Incoming { source })?;
        if filled == 0 {
            break;
        }
        if size + filled as u64 > MOST.0 {
            let size = ByteCount(size + filled as u64);
            return Err(DiskImportError::TooLarge { size, most: MOST }.into());
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
