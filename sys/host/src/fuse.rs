//! Connections to the kernel's FUSE that outlive the process that made them.
//!
//! A connection is an open `/dev/fuse`: a process that has the descriptor can serve it,
//! one process after the other. Libraries, however, begin with a handshake that
//! the kernel holds once. [`handshake`] plays the kernel's part in it, and
//! [`redirect`] puts the true connection behind the descriptor afterwards.

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Operation number of the handshake.
const INIT: u32 = 26;
/// Number of the message that makes the kernel send again what it has sent and
/// no process has answered.
const NOTIFY_RESEND: i32 = 7;
/// Bytes of a request's header, and of the handshake's body.
const HEADER: usize = 40;
const BODY: usize = 64;

/// Set in the number of a request that the kernel has sent before.
pub const RESENT: u64 = 1 << 63;

/// A descriptor from which a handshake can be read, and to which the answer can
/// be written. `version` and `read_ahead` are what the kernel is said to offer.
pub fn handshake(version: (u32, u32), read_ahead: u32) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let kind = SockType::SeqPacket;
    let (kernel, server) = socketpair(AddressFamily::Unix, kind, None, flags)?;
    let mut request = [0; HEADER + BODY];
    let length = u32::try_from(request.len()).map_err(io::Error::other)?;
    let numbers = [(0, length), (4, INIT), (8, 1)];
    let body = [(0, version.0), (4, version.1), (8, read_ahead)];
    let body = body.map(|(at, number)| (HEADER + at, number));
    for (at, number) in numbers.into_iter().chain(body) {
        request[at..at + 4].copy_from_slice(&number.to_ne_bytes());
    }
    let kernel = File::from(kernel);
    (&kernel).write_all(&request)?;
    Ok((server, kernel.into()))
}

/// Makes `descriptor`, which another owner goes on to use, refer to what `to`
/// refers to.
pub fn redirect(descriptor: impl AsFd, to: impl AsFd) -> io::Result<()> {
    let (from, to) = (descriptor.as_fd().as_raw_fd(), to.as_fd().as_raw_fd());
    // SAFETY: takes two descriptors, both open for the call, and closes what
    // the first referred to: the number stays open throughout and stays its
    // owner's, so no owner is left with one that means nothing.
    match unsafe { libc::dup3(to, from, libc::O_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Has the kernel send every request again that was read from this connection
/// and never answered; they are marked as [`RESENT`]. `InvalidInput` where the
/// kernel cannot (before Linux 6.9).
pub fn resend(connection: &File) -> io::Result<()> {
    let mut message = [0; 16];
    message[..4].copy_from_slice(&16u32.to_ne_bytes());
    message[4..8].copy_from_slice(&NOTIFY_RESEND.to_ne_bytes());
    (&mut &*connection).write_all(&message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn handshake_is_one_whole_message() {
        let (server, _kernel) = handshake((7, 40), 4096).expect("a pair");
        let mut request = [0xee; 200];
        let got = File::from(server).read(&mut request).expect("is there");
        assert_eq!(got, HEADER + BODY);
        assert_eq!(request[..8], [104, 0, 0, 0, 26, 0, 0, 0]);
        assert_eq!(request[40..48], [7, 0, 0, 0, 40, 0, 0, 0]);
    }

    #[test]
    fn redirected_descriptor_reads_from_the_other() {
        let (reader, mut writer) = io::pipe().expect("pipe");
        let (nothing, _kernel) = handshake((7, 40), 0).expect("a pair");
        let mut nothing = File::from(nothing);
        redirect(&nothing, &reader).expect("both open");
        drop(reader);
        writer.write_all(b"x").expect("writes");
        let mut byte = [0];
        nothing.read_exact(&mut byte).expect("reads");
        assert_eq!(byte, *b"x");
    }
}
