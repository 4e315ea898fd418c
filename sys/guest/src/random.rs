//! Fresh randomness for the kernel.

use std::{
    fs::OpenOptions,
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
};

/// Length of a seed: 32 bytes, as much as the kernel's generator takes in.
pub const SEED: usize = 32;

#[repr(C)]
struct Pool {
    entropy_bits: libc::c_int,
    size: libc::c_int,
    bytes: [u8; SEED],
}
const _: () = assert!(
    size_of::<Pool>() == 8 + SEED,
    "struct rand_pool_info and its bytes"
);

mod request {
    nix::ioctl_write_ptr_bad!(
        /// RNDADDENTROPY: mixes bytes in and counts them as random.
        add_entropy,
        0x4008_5203,
        super::Pool
    );
    nix::ioctl_none_bad!(
        /// RNDRESEEDCRNG: draws the generator's key anew from the pool.
        reseed,
        0x5207
    );
}

/// Mixes a secret seed into the kernel's generator and makes every number
/// drawn from now on depend on it.
pub fn reseed(seed: [u8; SEED]) -> io::Result<()> {
    let device = OpenOptions::new()
        .write(true)
        // Root in the guest may have put a FIFO there.
        .custom_flags(nix::libc::O_NONBLOCK)
        .open("/dev/urandom")?;
    let pool = Pool {
        entropy_bits: 8 * 32,
        size: 32,
        bytes: seed,
    };
    // SAFETY: the device is open for the call, and `pool` is an initialised
    // rand_pool_info followed by as many bytes as its size says.
    unsafe { request::add_entropy(device.as_raw_fd(), &raw const pool) }?;
    // SAFETY: the device is open for the call, which takes no argument.
    unsafe { request::reseed(device.as_raw_fd()) }?;
    Ok(())
}
