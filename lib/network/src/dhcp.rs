//! Addresses for guests that ask for them by DHCP (RFC 2131): those without the
//! agent. The answer follows from the MAC, as the plan has it: there is no
//! lease to remember, to run out or to be exhausted, and a guest that asks twice, or
//! asks the next daemon, hears the same.
//!
//! Requests are hostile input: of bounded size and rate (see `rules`), refused
//! before they are decoded unless they look like a client's, and answered with
//! nothing but the asker's own place on its own network.

use crate::{NetworkError, Subnet};
use dhcproto::{
    Decodable, Decoder, Encodable,
    v4::{DhcpOption, Message, MessageType, Opcode, OptionCode},
};
use forkyard_types::{Mac, Route};
use nix::{
    libc,
    sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, SockaddrIn, bind, sendmsg,
        setsockopt, socket, sockopt,
    },
};
use std::{
    ffi::OsString,
    io::{self, IoSlice},
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsRawFd,
};
use tokio::{net::UdpSocket, task::JoinHandle};

const SERVER: u16 = 67;
const CLIENT: u16 = 68;
/// Seconds that mean for ever.
const FOR_EVER: u32 = u32::MAX;
/// Length of what precedes the options, which end in a byte at least.
const HEAD: usize = 241;
/// As much as fits a frame.
const MOST: usize = 1500;
/// Request, by Ethernet, with a MAC of six bytes.
const CLIENTS_HEAD: [u8; 3] = [1, 1, 6];

/// Answers on one family's bridge, until dropped.
#[derive(Debug)]
pub(crate) struct Service(JoinHandle<()>);

impl Service {
    pub fn start(bridge: &str, subnet: Subnet, route: Option<Route>) -> Result<Self, NetworkError> {
        let socket = open(bridge).map_err(|source| NetworkError::Dhcp {
            link: bridge.to_owned(),
            source,
        })?;
        Ok(Self(tokio::spawn(serve(socket, subnet, route))))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn serve(socket: UdpSocket, subnet: Subnet, route: Option<Route>) {
    let mut request = [0; MOST];
    loop {
        let length = match socket.recv(&mut request).await {
            Ok(length) => length,
            Err(error) => return tracing::warn!(%error, "DHCP is answered no more"),
        };
        if let Some(answer) = answer(&request[..length], subnet, route.as_ref())
            && let Err(error) = send(&socket, subnet.gateway(), &answer)
        {
            tracing::debug!(%error, "DHCP answer not sent");
        }
    }
}

/// Makes the answer to a request, if it is one that deserves an answer.
fn answer(request: &[u8], subnet: Subnet, route: Option<&Route>) -> Option<Vec<u8>> {
    (request.len() >= HEAD && request.starts_with(&CLIENTS_HEAD)).then_some(())?;
    let request = Message::decode(&mut Decoder::new(request)).ok()?;
    let place = subnet.holder(Mac(request.chaddr().try_into().ok()?))?;
    let gateway = subnet.gateway();
    let options = request.opts();
    // Another server's offer was taken.
    if let Some(DhcpOption::ServerIdentifier(server)) = options.get(OptionCode::ServerIdentifier)
        && *server != gateway
    {
        return None;
    }
    let wants = match options.get(OptionCode::RequestedIpAddress) {
        Some(DhcpOption::RequestedIpAddress(ip)) => *ip,
        Some(_) | None => request.ciaddr(),
    };
    let verdict = match wants.is_unspecified() || wants == place.ip {
        true => MessageType::Ack,
        false => MessageType::Nak,
    };
    let asked = options.msg_type()?;
    let replies = [
        (MessageType::Discover, MessageType::Offer),
        (MessageType::Request, verdict),
        (MessageType::Inform, MessageType::Ack),
    ];
    let (_, kind) = replies.into_iter().find(|(of, _)| *of == asked)?;
    let mut reply = Message::default();
    reply
        .set_opcode(Opcode::BootReply)
        .set_xid(request.xid())
        .set_flags(request.flags())
        .set_chaddr(&place.mac.0);
    let options = reply.opts_mut();
    options.insert(DhcpOption::MessageType(kind));
    options.insert(DhcpOption::ServerIdentifier(gateway));
    if kind != MessageType::Nak {
        let mask = u32::MAX << (32 - u32::from(place.prefix));
        options.insert(DhcpOption::SubnetMask(mask.into()));
        if let Some(route) = route {
            options.insert(DhcpOption::Router(vec![route.gateway]));
            if !route.resolvers.is_empty() {
                options.insert(DhcpOption::DomainNameServer(route.resolvers.clone()));
            }
        }
        if asked != MessageType::Inform {
            options.insert(DhcpOption::AddressLeaseTime(FOR_EVER));
            reply.set_yiaddr(place.ip);
        }
    }
    reply.to_vec().ok()
}

fn open(bridge: &str) -> io::Result<UdpSocket> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    // Other servers, on other interfaces, are left alone.
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    setsockopt(&socket, sockopt::BindToDevice, &OsString::from(bridge))?;
    setsockopt(&socket, sockopt::Broadcast, &true)?;
    // To answer as the gateway also where the host has not its address.
    setsockopt(&socket, sockopt::IpTransparent, &true)?;
    let all = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, SERVER);
    bind(socket.as_raw_fd(), &SockaddrIn::from(all))?;
    UdpSocket::from_std(socket.into())
}

/// To all, for the guest that asks has no address yet.
fn send(socket: &UdpSocket, gateway: Ipv4Addr, answer: &[u8]) -> io::Result<()> {
    let from = libc::in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: libc::in_addr {
            s_addr: u32::from(gateway).to_be(),
        },
        ipi_addr: libc::in_addr { s_addr: 0 },
    };
    let to = SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::BROADCAST, CLIENT));
    sendmsg(
        socket.as_raw_fd(),
        &[IoSlice::new(answer)],
        &[ControlMessage::Ipv4PacketInfo(&from)],
        MsgFlags::empty(),
        Some(&to),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::Member;
    use proptest::prelude::*;

    fn subnet() -> Subnet {
        Subnet::of(5).expect("room")
    }

    fn request(kind: MessageType, mac: Mac, asked: Option<Ipv4Addr>) -> Vec<u8> {
        let mut request = Message::default();
        request.set_chaddr(&mac.0).set_xid(77);
        request.opts_mut().insert(DhcpOption::MessageType(kind));
        if let Some(asked) = asked {
            let asked = DhcpOption::RequestedIpAddress(asked);
            request.opts_mut().insert(asked);
        }
        request.to_vec().expect("encoded")
    }

    fn answered(request: &[u8]) -> Option<Message> {
        let answer = answer(request, subnet(), None)?;
        Some(Message::decode(&mut Decoder::new(&answer)).expect("decoded"))
    }

    #[test]
    fn a_guest_is_told_its_place_in_the_plan_and_no_other() {
        let place = subnet().address(Member(9)).expect("room");
        let offer = answered(&request(MessageType::Discover, place.mac, None)).expect("an offer");
        assert_eq!((offer.yiaddr(), offer.xid()), (place.ip, 77));
        assert!(offer.opts().has_msg_type(MessageType::Offer));
        assert_eq!(offer.opts().get(OptionCode::Router), None);
        let kind = |asked| {
            let answer = answered(&request(MessageType::Request, place.mac, Some(asked)));
            let answer = answer.expect("an answer");
            (answer.opts().msg_type(), answer.yiaddr())
        };
        assert_eq!(kind(place.ip), (Some(MessageType::Ack), place.ip));
        let nak = (Some(MessageType::Nak), Ipv4Addr::UNSPECIFIED);
        assert_eq!(kind(subnet().founder().ip), nak);
    }

    #[test]
    fn the_way_out_is_told_where_there_is_one() {
        let place = subnet().founder();
        let route = Route {
            gateway: subnet().gateway(),
            resolvers: vec![Ipv4Addr::new(192, 0, 2, 53)],
        };
        let request = request(MessageType::Discover, place.mac, None);
        let answer = answer(&request, subnet(), Some(&route)).expect("an offer");
        let offer = Message::decode(&mut Decoder::new(&answer)).expect("decoded");
        let router = DhcpOption::Router(vec![route.gateway]);
        assert_eq!(offer.opts().get(OptionCode::Router), Some(&router));
        let resolvers = DhcpOption::DomainNameServer(route.resolvers);
        assert_eq!(
            offer.opts().get(OptionCode::DomainNameServer),
            Some(&resolvers)
        );
    }

    #[test]
    fn nobody_of_another_family_is_answered_and_no_server() {
        let stranger = Subnet::of(6).expect("room").founder();
        assert!(answered(&request(MessageType::Discover, stranger.mac, None)).is_none());
        let own = subnet().founder();
        assert!(answered(&request(MessageType::Offer, own.mac, None)).is_none());
        assert!(answered(&request(MessageType::Release, own.mac, None)).is_none());
    }

    proptest! {
        #[test]
        fn whatever_is_asked_is_answered_with_the_askers_own_place_or_not_at_all(
            changes in prop::collection::vec((0..400usize, any::<u8>()), 0..20),
            tail in prop::collection::vec(any::<u8>(), 0..200),
            keep in 0..400usize,
        ) {
            let mut bytes = request(MessageType::Discover, subnet().founder().mac, None);
            bytes.pop();
            bytes.extend(tail);
            for (at, value) in changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            bytes.truncate(keep);
            if let Some(answer) = answered(&bytes) {
                let own = subnet().holder(Mac(bytes[28..34].try_into().expect("six")));
                let ip = own.expect("of this family").ip;
                prop_assert!([ip, Ipv4Addr::UNSPECIFIED].contains(&answer.yiaddr()));
            }
        }
    }
}
