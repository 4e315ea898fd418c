//! Announcement of an address: gratuitous ARP (RFC 5227, section 3).

use nix::{
    net::if_::if_nametoindex,
    sys::socket::{AddressFamily, SockFlag, SockType, socket},
};
use std::{io, net::Ipv4Addr, os::fd::AsRawFd};

/// ETH_P_ARP, in the order of the network as a protocol is given to the kernel.
const ARP: u16 = 0x0806_u16.to_be();
const EVERYBODY: [u8; 6] = [0xff; 6];

/// Tells every neighbour on `interface` that `ip` is at `mac`: a host that has asked
/// for it in vain need not wait until it asks again.
pub fn announce(interface: &str, mac: [u8; 6], ip: Ipv4Addr) -> io::Result<()> {
    let index = libc::c_int::try_from(if_nametoindex(interface)?).map_err(io::Error::other)?;
    // Of protocol 0: it receives nothing.
    let socket = socket(
        AddressFamily::Packet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let mut everybody = libc::sockaddr_ll {
        sll_family: libc::sa_family_t::try_from(libc::AF_PACKET).map_err(io::Error::other)?,
        sll_protocol: ARP,
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0; 8],
    };
    everybody.sll_addr[..6].copy_from_slice(&EVERYBODY);
    let packet = packet(mac, ip);
    let length =
        libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).map_err(io::Error::other)?;
    // SAFETY: the socket is open; `packet` and `everybody` are read for the
    // lengths given, which are their own, and only during the call.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            packet.as_ptr().cast(),
            packet.len(),
            0,
            (&raw const everybody).cast(),
            length,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A question for one's own address, which no host answers and all hear.
fn packet(mac: [u8; 6], ip: Ipv4Addr) -> Vec<u8> {
    // Ethernet, IPv4, the lengths of their addresses, request.
    let head = [0, 1, 8, 0, 6, 4, 0, 1];
    let ip = ip.octets();
    [&head[..], &mac[..], &ip[..], &[0; 6][..], &ip[..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_as_the_standard_says() {
        let said = packet([2, 0, 0, 0, 0, 7], Ipv4Addr::new(192, 0, 2, 7));
        let want = [
            0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 7, 192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 192, 0, 2, 7,
        ];
        assert_eq!(said, want);
    }
}
