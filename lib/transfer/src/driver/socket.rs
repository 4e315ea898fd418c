//! Sockets, and waiting for several of them.

use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrIn, SockaddrStorage,
    bind, recvmsg, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;
use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::slice::Chunks;
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
    prepare(&socket);
    Ok(socket)
}

/// A socket that hears one group, by the interface that has the address `by`.
pub(super) fn group(group: SocketAddrV4, by: Ipv4Addr) -> io::Result<UdpSocket> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    // Several clients on one host listen to one group.
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    // Bound to the group and not to any address: a host hears, on one port, all
    // groups that any program on it has joined.
    bind(fd.as_raw_fd(), &SockaddrIn::from(group))?;
    let socket = UdpSocket::from(fd);
    socket.join_multicast_v4(group.ip(), &by)?;
    prepare(&socket);
    Ok(socket)
}

fn prepare(socket: &UdpSocket) {
    // What it gives is enough; the protocol copes with what is lost.
    let _ = setsockopt(socket, sockopt::RcvBuf, &BUFFER);
    let _ = setsockopt(socket, sockopt::SndBuf, &BUFFER);
    // Packets that were sent together may come so (UDP GRO, since Linux 5.0).
    let _ = setsockopt(socket, sockopt::UdpGroSegment, &true);
}

/// The IPv4 address of `at`, if it has one that says which interface is meant.
pub(super) fn interface(at: SocketAddr) -> Option<Ipv4Addr> {
    match at.ip() {
        IpAddr::V4(ip) if !ip.is_unspecified() => Some(ip),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

/// The next datagrams, of one sender; `None` if there are none now. An error that tells of
/// an earlier datagram of ours says nothing here: the peer's silence will.
pub(super) fn receive<'a>(
    socket: &UdpSocket,
    buffer: &'a mut [u8],
) -> io::Result<Option<(Chunks<'a, u8>, SocketAddr)>> {
    loop {
        match once(socket, buffer) {
            Ok(Some((length, each, from))) => {
                return Ok(Some((buffer[..length].chunks(each), from)));
            }
            // Of none of ours: it is not reported.
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

/// All bytes, those of each datagram but the last, which may be shorter, and their sender.
fn once(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Option<(usize, usize, SocketAddr)>> {
    let mut control = cmsg_space!(i32);
    let mut slices = [IoSliceMut::new(buffer)];
    let received = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut slices,
        Some(&mut control),
        MsgFlags::empty(),
    )?;
    let each = received.cmsgs()?.find_map(|message| {
        let ControlMessageOwned::UdpGroSegments(each) = message else {
            return None;
        };
        usize::try_from(each).ok()
    });
    let from = received.address.as_ref().and_then(address);
    // One that is empty is no chunk: no packet is empty.
    Ok(from.map(|from| (received.bytes, each.unwrap_or(received.bytes).max(1), from)))
}

fn address(from: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = from.as_sockaddr_in().map(|it| SocketAddr::V4((*it).into()));
    v4.or_else(|| {
        from.as_sockaddr_in6()
            .map(|it| SocketAddr::V6((*it).into()))
    })
}

/// Tells whether an error is of the network, which may be another next time.
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
    if fds.first().is_some_and(|fd| fd.any() != Some(false)) {
        waker.calm();
    }
    Ok(())
}

fn timespec(duration: Duration) -> TimeSpec {
    TimeSpec::from_duration(duration)
}
