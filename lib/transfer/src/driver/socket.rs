//! Sockets, and waiting for several of them.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longest datagram there is.
pub(super) const LONGEST: usize = 65_536;
/// Wanted of the kernel for what comes while we do something else; it may
/// give less.
const BUFFER: usize = 4 << 20;

/// A socket for what goes to and comes from one peer at a time. Multicast
/// leaves by the interface that has the address, and goes no further than the
/// link.
pub(super) fn unicast(at: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(at)?;
    socket.set_nonblocking(true)?;
    if at.is_ipv4() {
        socket.set_multicast_ttl_v4(1)?;
    }
    enlarge(&socket);
    Ok(socket)
}

/// A socket that hears one group, by the interface that has the address `by`.
pub(super) fn group(group: SocketAddrV4, by: Ipv4Addr) -> io::Result<UdpSocket> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    // Several clients on one host listen to one group.
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    // Bound to the group and not to any address: a host hears, on one port, all
    // groups that anybody on it has joined.
    bind(fd.as_raw_fd(), &SockaddrIn::from(group))?;
    let socket = UdpSocket::from(fd);
    socket.join_multicast_v4(group.ip(), &by)?;
    enlarge(&socket);
    Ok(socket)
}

fn enlarge(socket: &UdpSocket) {
    // What it gives is enough; the protocol copes with what is lost.
    let _ = setsockopt(socket, sockopt::RcvBuf, &BUFFER);
    let _ = setsockopt(socket, sockopt::SndBuf, &BUFFER);
}

/// The IPv4 address of `at`, if it has one that says which interface is meant.
pub(super) fn interface(at: SocketAddr) -> Option<Ipv4Addr> {
    match at.ip() {
        IpAddr::V4(ip) if !ip.is_unspecified() => Some(ip),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

/// The next datagram; `None` if there is none now. An error that tells of an
/// earlier datagram of ours says nothing here: the peer's silence will.
pub(super) fn receive<'a>(
    socket: &UdpSocket,
    buffer: &'a mut [u8],
) -> io::Result<Option<(&'a [u8], SocketAddr)>> {
    loop {
        match socket.recv_from(buffer) {
            Ok((length, from)) => return Ok(Some((&buffer[..length], from))),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether an error is about the network, which may be another next time.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::Interrupted
            | ErrorKind::NetworkUnreachable
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::WouldBlock
            | ErrorKind::PermissionDenied
    ) || error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}

/// Wakes a thread that [waits](wait).
#[derive(Debug)]
pub(super) struct Waker {
    out: UnixStream,
    end: UnixStream,
}

impl Waker {
    pub fn new() -> io::Result<Self> {
        let (out, end) = UnixStream::pair()?;
        out.set_nonblocking(true)?;
        end.set_nonblocking(true)?;
        Ok(Self { out, end })
    }

    pub fn wake(&self) {
        // If it is full, then the thread has been woken often enough.
        let _ = (&self.out).write_all(&[0]);
    }

    fn calm(&self) {
        while matches!((&self.end).read(&mut [0; 64]), Ok(64)) {}
    }
}

/// Blocks until a socket has something, the waker is used, or it is `until`.
pub(super) fn wait(
    waker: &Waker,
    sockets: &[&UdpSocket],
    until: Option<Instant>,
) -> io::Result<()> {
    let mut fds = vec![PollFd::new(waker.end.as_fd(), PollFlags::POLLIN)];
    let readable = sockets
        .iter()
        .map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN));
    fds.extend(readable);
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    match ppoll(&mut fds, left.map(timespec), None) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    waker.calm();
    Ok(())
}

fn timespec(duration: Duration) -> TimeSpec {
    TimeSpec::from_duration(duration)
}
