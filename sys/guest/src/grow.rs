//! Growing a file system while it is used.

use std::{fs::File, io, os::fd::AsRawFd};

nix::ioctl_write_ptr!(
    /// Has an ext4 file system be of that many blocks.
    ext4_resize,
    b'f',
    16,
    u64
);

/// Has the ext4 file system that a folder is on fill a disk of so many bytes. Blocks for as long as
/// that takes; what was done of it stays. Smaller ones stay as they are.
pub fn fill(folder: &File, bytes: u64) -> io::Result<()> {
    let facts = nix::sys::statfs::fstatfs(folder)?;
    if facts.filesystem_type() != nix::sys::statfs::EXT4_SUPER_MAGIC {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let block = u64::try_from(facts.block_size()).map_err(io::Error::other)?;
    let blocks = bytes.checked_div(block).unwrap_or_default();
    // SAFETY: the request reads one number, which lives until it returns.
    unsafe { ext4_resize(folder.as_raw_fd(), &raw const blocks) }?;
    Ok(())
}
