//! Taps: Ethernet cables into user space.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::{AsRawFd, OwnedFd},
};

/// Longest name of a network interface: the kernel's field less its final zero.
pub const NAME_MAX: usize = libc::IFNAMSIZ - 1;

mod request {
    nix::ioctl_write_ptr_bad!(
        /// Makes an open `/dev/net/tun` one end of an interface.
        tunsetiff,
        0x4004_54ca,
        libc::ifreq
    );
}
const _: () = assert!(size_of::<libc::ifreq>() == 40, "what TUNSETIFF reads");

/// Creates the tap `name` and returns its end of the cable. The tap goes when
/// the last copy of the descriptor is closed: it cannot be leaked. Frames carry
/// the virtio-net header. Fails if an interface of that name has an owner.
pub fn create(name: &str) -> io::Result<OwnedFd> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains('\0') {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a name for an interface",
        ));
    }
    let tun: File = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    // SAFETY: all zeros is a valid `ifreq`: numbers, bytes, and pointers that
    // this request does not look at.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags =
        i16::try_from(flags).map_err(|_| io::Error::other("flags of a tap do not fit"))?;
    // SAFETY: `tun` is open for the call, and `request` is an initialised
    // `ifreq`, which is what TUNSETIFF reads and writes.
    unsafe { request::tunsetiff(tun.as_raw_fd(), &raw const request) }?;
    Ok(tun.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_the_kernel_would_cut_is_refused() {
        for name in ["", "sixteen-letters-", "with\0zero"] {
            let error = create(name).expect_err("no name");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
    }
}
