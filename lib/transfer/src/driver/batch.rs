//! Packets that go out together.
//!
//! A page that does not pack is several packets of one length. Given to the kernel
//! at once they pass through it as one, and are cut apart by the network card or right
//! before it (UDP segmentation offload, since Linux 4.18). What arrives is the same.

use super::socket;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};
use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// Most packets that go together: what the oldest kernel takes.
const PACKETS: usize = 64;
/// And most bytes: a datagram's, without headers.
const BYTES: usize = 65_000;

/// See the module.
#[derive(Debug)]
pub(super) struct Batch {
    to: Option<SocketAddr>,
    bytes: Vec<u8>,
    /// Length of each packet; the last may be shorter.
    each: usize,
    /// True if the kernel takes several at once.
    together: bool,
}

impl Batch {
    pub fn new() -> Self {
        Self {
            to: None,
            bytes: Vec::new(),
            each: 0,
            together: true,
        }
    }

    /// Adds a packet, and [sends](Self::send) those it cannot go together with.
    pub fn add(&mut self, socket: &UdpSocket, packet: &[u8], to: SocketAddr) -> io::Result<()> {
        let all = self.bytes.len() + packet.len();
        let fits = self.together
            && self.to == Some(to)
            && packet.len() <= self.each
            && self.bytes.len().is_multiple_of(self.each)
            && all <= BYTES.min(self.each * PACKETS);
        if !fits {
            self.send(socket)?;
            (self.to, self.each) = (Some(to), packet.len());
        }
        self.bytes.extend_from_slice(packet);
        Ok(())
    }

    /// Sends what there is. What cannot be sent now is as if it had been lost on the way.
    pub fn send(&mut self, socket: &UdpSocket) -> io::Result<()> {
        let Some(to) = self.to.take() else {
            return Ok(());
        };
        let sent = self.send_to(socket, to);
        self.bytes.clear();
        match sent {
            Err(error) if !socket::is_passing(&error) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn send_to(&mut self, socket: &UdpSocket, to: SocketAddr) -> io::Result<()> {
        if self.bytes.len() > self.each {
            match at_once(socket, &self.bytes, self.each, to) {
                Err(error) if !socket::is_passing(&error) => {
                    // Here that is not done, at least not on this way out.
                    self.together = false;
                }
                passed => return passed,
            }
        }
        let mut packets = self.bytes.chunks(self.each.max(1));
        packets.try_for_each(|packet| socket.send_to(packet, to).map(|_| ()))
    }
}

fn at_once(socket: &UdpSocket, bytes: &[u8], each: usize, to: SocketAddr) -> io::Result<()> {
    let each = u16::try_from(each).map_err(io::Error::other)?;
    let segments = [ControlMessage::UdpGsoSegments(&each)];
    let (fd, to) = (socket.as_raw_fd(), SockaddrStorage::from(to));
    sendmsg(
        fd,
        &[IoSlice::new(bytes)],
        &segments,
        MsgFlags::empty(),
        Some(&to),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn pair() -> (UdpSocket, UdpSocket, SocketAddr) {
        let [from, to] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("bound"));
        to.set_read_timeout(Some(Duration::from_secs(10)))
            .expect("set");
        let at = to.local_addr().expect("bound");
        (from, to, at)
    }

    fn arrive(socket: &UdpSocket, packets: &[Vec<u8>]) {
        let mut buffer = [0; 2000];
        for packet in packets {
            let length = socket.recv(&mut buffer).expect("arrived");
            assert_eq!(&buffer[..length], packet);
        }
    }

    #[test]
    fn packets_arrive_one_by_one_and_in_order() {
        for together in [true, false] {
            let (from, to, at) = pair();
            let mut batch = Batch {
                together,
                ..Batch::new()
            };
            let lengths = [44, 1100, 1100, 1100, 900, 1100, 1200, 1200, 30, 30];
            let packets: Vec<_> = (0u8..)
                .zip(lengths)
                .map(|(n, length)| vec![n; length])
                .collect();
            for packet in &packets {
                batch.add(&from, packet, at).expect("sent");
            }
            batch.send(&from).expect("sent");
            assert_eq!(batch.together, together);
            arrive(&to, &packets);
        }
    }

    #[test]
    fn more_than_the_kernel_takes_at_once_arrives_all_the_same() {
        let (from, to, at) = pair();
        let mut batch = Batch::new();
        let packets: Vec<_> = (0..60).map(|n| vec![n; 1400]).collect();
        for packet in &packets {
            batch.add(&from, packet, at).expect("sent");
        }
        batch.send(&from).expect("sent");
        arrive(&to, &packets);
    }

    #[test]
    fn who_cannot_be_reached_holds_nobody_up() {
        let (from, to, at) = pair();
        let mut batch = Batch::new();
        let nowhere = "127.0.0.1:1".parse().expect("an address");
        for _ in 0..3 {
            batch.add(&from, &[1; 100], nowhere).expect("as if lost");
            batch.add(&from, &[1; 100], nowhere).expect("as if lost");
            batch.send(&from).expect("as if lost");
        }
        batch.add(&from, &[2; 100], at).expect("sent");
        batch.send(&from).expect("sent");
        arrive(&to, &[vec![2; 100]]);
    }
}
