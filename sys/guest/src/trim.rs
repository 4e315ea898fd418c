//! Telling a disk which of its blocks hold no file.

use std::{fs::File, io, os::fd::AsRawFd};

/// `struct fstrim_range` of linux/fs.h.
#[repr(C)]
#[derive(Debug)]
struct Range {
    start: u64,
    length: u64,
    least: u64,
}

nix::ioctl_readwrite!(
    /// Discards free blocks; says how many bytes that were.
    fitrim,
    b'X',
    121,
    Range
);

/// Discards all free blocks of the file system that a folder is on, and returns their bytes. One
/// that knows no discarding is an error of the kind `Unsupported`.
pub fn trim(folder: &File) -> io::Result<u64> {
    let mut range = Range {
        start: 0,
        length: u64::MAX,
        least: 0,
    };
    // SAFETY: the request reads and writes one `Range`, which lives until it returns.
    unsafe { fitrim(folder.as_raw_fd(), &raw mut range) }?;
    Ok(range.length)
}
