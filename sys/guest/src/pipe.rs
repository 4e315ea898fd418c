//! What lies in a pipe.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

nix::ioctl_read_bad!(
    /// Says how many bytes can be read at once.
    fionread,
    libc::FIONREAD,
    libc::c_int
);

/// Returns the bytes that a pipe holds.
pub fn holds(pipe: &impl AsFd) -> io::Result<usize> {
    let mut bytes = 0;
    // SAFETY: the request writes one number, which lives until it returns.
    unsafe { fionread(pipe.as_fd().as_raw_fd(), &raw mut bytes) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}
