//! Descriptors passed between processes over a Unix stream socket.
//!
//! At most one goes with a message. Descriptors a peer adds uninvited are
//! closed here, so that no peer can fill our table.

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// Most descriptors one message carries: the kernel's `SCM_MAX_FD`.
const MAX_FDS: usize = 253;

/// Sends all of `bytes`; `fd`, if any, arrives with the first of them.
pub fn send(stream: &UnixStream, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let raw: Vec<RawFd> = fd.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    let sent = loop {
        let iov = [IoSlice::new(bytes)];
        let flags = MsgFlags::MSG_NOSIGNAL;
        match sendmsg::<UnixAddr>(stream.as_raw_fd(), &iov, control, flags, None) {
            Err(nix::errno::Errno::EINTR) => {}
            result => break result?,
        }
    };
    // The rest, if the socket's buffer was too full for all, needs no descriptor.
    (&mut &*stream).write_all(&bytes[sent..])
}

/// Receives up to `buffer.len()` bytes (0 at the end of the stream), and the
/// descriptor that came with them, which no program we start will inherit.
pub fn receive(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    // Room for all a message can carry: what does not fit could not be closed.
    let mut space = nix::cmsg_space!([RawFd; MAX_FDS]);
    loop {
        let mut iov = [IoSliceMut::new(buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message =
            match recvmsg::<UnixAddr>(stream.as_raw_fd(), &mut iov, Some(&mut space), flags) {
                Err(nix::errno::Errno::EINTR) => continue,
                result => result?,
            };
        let mut received = Vec::new();
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = control {
                // SAFETY: the kernel has just made these descriptors for us,
                // so they are open and no other code owns them.
                received.extend(
                    raw.into_iter()
                        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
                );
            }
        }
        return Ok((message.bytes, received.into_iter().next()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn descriptor_arrives_with_the_first_byte() {
        let (here, there) = UnixStream::pair().expect("pair");
        let file =
            crate::memory::anonymous_file("test", forkyard_types::ByteCount(0)).expect("memfd");
        file.write_all_at(b"contents", 0).expect("writes");
        send(&here, b"look", Some(file.as_fd())).expect("sends");
        let (n, fd) = receive(&there, &mut [0; 2]).expect("receives");
        let mut text = [0; 8];
        File::from(fd.expect("passed"))
            .read_exact_at(&mut text, 0)
            .expect("reads");
        assert_eq!((n, &text), (2, b"contents"));
        assert!(matches!(receive(&there, &mut [0; 8]), Ok((2, None))));
    }

    #[test]
    fn end_of_stream_is_zero_bytes() {
        let (here, there) = UnixStream::pair().expect("pair");
        drop(here);
        assert!(matches!(receive(&there, &mut [0; 8]), Ok((0, None))));
    }

    #[test]
    fn message_larger_than_the_socket_buffer_arrives_whole() {
        let (here, there) = UnixStream::pair().expect("pair");
        let sent: Vec<u8> = (0..1_000_000u32).map(|i| i.to_le_bytes()[0]).collect();
        let copy = sent.clone();
        let sender = std::thread::spawn(move || send(&here, &copy, None));
        let (mut got, mut buffer) = (Vec::new(), vec![0; 65536]);
        loop {
            match receive(&there, &mut buffer).expect("receives") {
                (0, _) => break,
                (n, _) => got.extend_from_slice(&buffer[..n]),
            }
        }
        sender.join().expect("no panic").expect("sends");
        assert_eq!(got, sent);
    }
}
