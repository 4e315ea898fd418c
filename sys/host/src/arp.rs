//! Announcements of addresses to the neighbours on a cable, and questions for those that they have.

use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    net::if_::if_nametoindex,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{MsgFlags, recv},
};
use std::{
    io,
    mem::{size_of, zeroed},
    net::Ipv4Addr,
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
    time::{Duration, Instant},
};

/// A frame of ARP over Ethernet: header, and question.
const FRAME: usize = 14 + 28;
const BROADCAST: [u8; 6] = [0xff; 6];
const ARP: u16 = 0x0806;
/// Length of an address of the kernel's packet sockets.
const LENGTH: libc::socklen_t = 20;
const _: () = assert!(size_of::<libc::sockaddr_ll>() == LENGTH as usize);

/// Tells the neighbours at an interface that an address is reached by it: those that know another place
/// forget it. Sends one frame, and waits for nothing. Takes CAP_NET_RAW.
pub fn announce(interface: &str, ip: Ipv4Addr) -> io::Result<()> {
    let mac = hardware_address(interface)?;
    // Hears nothing.
    let cable = Cable::open(interface, 0)?;
    cable.send(&question(mac, ip, ip))
}

/// Asks the neighbours at an interface for addresses, twice, and returns those that one of them has.
/// Blocks for so long. Takes CAP_NET_RAW.
pub fn answered(interface: &str, ips: &[Ipv4Addr], within: Duration) -> io::Result<Vec<Ipv4Addr>> {
    let mac = hardware_address(interface)?;
    let cable = Cable::open(interface, ARP)?;
    let mut found = Vec::new();
    for _ in 0..2 {
        for ip in ips {
            // Of no address yet, so that none that hears it learns one.
            cable.send(&question(mac, Ipv4Addr::UNSPECIFIED, *ip))?;
        }
        let end = Instant::now() + within / 2;
        while let Some(frame) = cable.receive(end)? {
            found.extend(speaker(&frame, mac).filter(|ip| ips.contains(ip)));
        }
    }
    Ok(found)
}

/// Frames of one interface.
struct Cable {
    socket: OwnedFd,
    at: libc::sockaddr_ll,
}

impl Cable {
    /// Receives frames of this protocol, or none.
    fn open(interface: &str, protocol: u16) -> io::Result<Self> {
        let index = if_nametoindex(interface)?;
        // SAFETY: the call takes numbers alone.
        let socket = unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            )
        };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor has just been made, and nothing else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: all zeros is a valid `sockaddr_ll`: it consists of integers.
        let mut at: libc::sockaddr_ll = unsafe { zeroed() };
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        at.sll_family = u16::try_from(libc::AF_PACKET).map_err(invalid)?;
        at.sll_protocol = protocol.to_be();
        at.sll_ifindex = i32::try_from(index).map_err(invalid)?;
        at.sll_halen = 6;
        at.sll_addr[..6].copy_from_slice(&BROADCAST);
        // SAFETY: the socket is open for the call, and `at` is an initialised address of its family, as long as
        // is said. The kernel reads it and does not keep it.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const at).cast(), LENGTH) };
        match bound {
            0 => Ok(Self { socket, at }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the socket is open for the call; `frame` is initialised and as long as is said, and so is
        // `at`, which is an address of the socket's family. The kernel reads both and keeps neither.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const self.at).cast(),
                LENGTH,
            )
        };
        match sent {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The beginning of the next frame before this instant, if there is one.
    fn receive(&self, end: Instant) -> io::Result<Option<[u8; FRAME]>> {
        let mut frame = [0; FRAME];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
            let mut waits = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut waits, left) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            }
            match recv(self.socket.as_raw_fd(), &mut frame, MsgFlags::empty()) {
                Ok(_) => return Ok(Some(frame)),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Address that the sender of a frame of ARP says to have, unless that is this machine.
fn speaker(frame: &[u8; FRAME], own: [u8; 6]) -> Option<Ipv4Addr> {
    let is_arp = frame[12..20] == [8, 6, 0, 1, 8, 0, 6, 4];
    let ip = <[u8; 4]>::try_from(&frame[28..32]).ok()?;
    (is_arp && frame[22..28] != own).then(|| ip.into())
}

/// A question for an address: about itself, an announcement; of none, a probe (RFC 5227).
fn question(mac: [u8; 6], of: Ipv4Addr, about: Ipv4Addr) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    let parts = [
        &BROADCAST[..],
        &mac,
        &ARP.to_be_bytes(),
        // Ethernet, IPv4, their lengths, a request.
        &[0, 1, 8, 0, 6, 4, 0, 1],
        &mac,
        &of.octets(),
        &[0; 6],
        &about.octets(),
    ];
    for (to, from) in frame.iter_mut().zip(parts.concat()) {
        *to = from;
    }
    frame
}

/// Ethernet address of an interface in the network namespace of the calling thread: /sys may show another's.
fn hardware_address(interface: &str) -> io::Result<[u8; 6]> {
    let none = || {
        io::Error::new(
            io::ErrorKind::Unsupported,
            "the interface has no Ethernet address",
        )
    };
    let mut all = getifaddrs()?.filter(|it| it.interface_name == interface);
    all.find_map(|it| it.address?.as_link_addr()?.addr())
        .ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_a_question_about_the_senders_own_address() {
        let (mac, ip) = ([2, 0, 0, 0, 0, 9], Ipv4Addr::new(192, 0, 2, 7));
        let frame = question(mac, ip, ip);
        let golden = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 6, // Ethernet
            0, 1, 8, 0, 6, 4, 0, 1, // a request
            2, 0, 0, 0, 0, 9, 192, 0, 2, 7, // sender
            0, 0, 0, 0, 0, 0, 192, 0, 2, 7, // target
        ];
        assert_eq!(frame, golden);
        assert_eq!(speaker(&frame, [2; 6]), Some(ip));
        assert_eq!(speaker(&frame, mac), None, "its own");
        assert_eq!(speaker(&[0; FRAME], mac), None, "of another protocol");
    }

    #[test]
    fn an_interface_that_is_not_there_is_refused() {
        announce("nosuchlink0", Ipv4Addr::LOCALHOST).expect_err("no interface");
    }
}
