//! Leads from outside the host to one VM, in the words of its owner: ports of the host, and
//! addresses of the VM's own.

use crate::{
    BadWord, Transport,
    network::{as_text, port_of},
};
use serde::{Deserialize, Serialize};
use std::{fmt, net::Ipv4Addr, str::FromStr};

/// `POST /v1/vms/{id}/published`: more ports of the host that are to lead to a VM, and more
/// addresses of its own.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishRequest {
    /// The ports, `[ADDRESS:]PORT:GUESTPORT[/udp]`, and the addresses, `ADDRESS/routed` or
    /// `ADDRESS/bridge`: all of them or none.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>, min_items = 1, max_items = 256))]
    pub ports: Vec<Publish>,
}

/// Lead from outside the host to one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Publish {
    /// A port of the host.
    Port(PublishedPort),
    /// An address of the VM's own.
    Address(OwnAddress),
}

/// A port of the host that leads to one of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublishedPort {
    /// The host's address; every one of them if none is given.
    pub address: Option<Ipv4Addr>,
    /// The host's port.
    pub port: u16,
    /// The guest's port.
    pub guest_port: u16,
    /// Of which transport.
    pub transport: Transport,
}

/// An address by which one VM is reached from outside the host, and seen there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnAddress {
    ip: Ipv4Addr,
    reach: Reach,
}

/// Way in which packets for an address get to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// The network outside has a route to the host for them.
    Routed,
    /// The address lies in a network of the host's, whose members ask for it by ARP.
    Bridge,
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Routed => "routed",
            Self::Bridge => "bridge",
        })
    }
}

impl OwnAddress {
    /// The address, if it is one of a single machine.
    pub fn new(ip: Ipv4Addr, reach: Reach) -> Option<Self> {
        // 0/8 is "this network", 240/4 is reserved or broadcast.
        let of_none = ip.is_loopback()
            || ip.is_multicast()
            || ip.is_link_local()
            || matches!(ip.octets()[0], 0 | 240..);
        (!of_none).then_some(Self { ip, reach })
    }

    /// The address itself.
    pub fn ip(self) -> Ipv4Addr {
        self.ip
    }

    /// Way in which packets for it get to the host.
    pub fn reach(self) -> Reach {
        self.reach
    }
}

impl fmt::Display for OwnAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.reach)
    }
}

impl PublishedPort {
    fn overlaps(self, other: Self) -> bool {
        let same_address = match (self.address, other.address) {
            (Some(a), Some(b)) => a == b,
            (None, _) | (_, None) => true,
        };
        same_address && self.port == other.port && self.transport == other.transport
    }
}

impl fmt::Display for PublishedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = self.address {
            write!(f, "{address}:")?;
        }
        write!(f, "{}:{}/{}", self.port, self.guest_port, self.transport)
    }
}

impl Publish {
    /// Tells whether both want the same port of the same address, or the same address.
    pub fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (Self::Port(one), Self::Port(other)) => one.overlaps(other),
            (Self::Address(one), Self::Address(other)) => one.ip == other.ip,
            (Self::Port(port), Self::Address(own)) | (Self::Address(own), Self::Port(port)) => {
                port.address == Some(own.ip)
            }
        }
    }

    /// The address, if it is one.
    pub fn own_address(self) -> Option<OwnAddress> {
        match self {
            Self::Address(own) => Some(own),
            Self::Port(_) => None,
        }
    }
}

impl FromStr for Publish {
    type Err = BadWord;

    fn from_str(word: &str) -> Result<Self, BadWord> {
        let address = |word: &str, reach| {
            let own = OwnAddress::new(word.parse().ok()?, reach)?;
            Some(Self::Address(own))
        };
        let parse = || {
            let (ports, transport) = match word.split_once('/') {
                None | Some((_, "tcp")) => (word.trim_end_matches("/tcp"), Transport::Tcp),
                Some((ports, "udp")) => (ports, Transport::Udp),
                Some((word, "routed")) => return address(word, Reach::Routed),
                Some((word, "bridge")) => return address(word, Reach::Bridge),
                Some(_) => return None,
            };
            let (rest, guest_port) = ports.rsplit_once(':')?;
            let (address, port) = match rest.split_once(':') {
                Some((address, port)) => (Some(address.parse().ok()?), port),
                None => (None, rest),
            };
            Some(Self::Port(PublishedPort {
                address: address.filter(|address: &Ipv4Addr| !address.is_unspecified()),
                port: port_of(port)?,
                guest_port: port_of(guest_port)?,
                transport,
            }))
        };
        parse().ok_or_else(|| {
            BadWord::new(
                word,
                "[ADDRESS:]PORT:GUESTPORT, and /udp if not TCP is meant; or ADDRESS/routed or \
                 ADDRESS/bridge, of an address that one machine may have",
            )
        })
    }
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port) => port.fmt(f),
            Self::Address(own) => own.fmt(f),
        }
    }
}

/// Lead that is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Unpublish {
    /// A port of the host, on whichever of its addresses.
    Port(u16, Transport),
    /// An address of the VM's own.
    Address(Ipv4Addr),
}

impl Unpublish {
    /// Tells whether it closes this one.
    pub fn closes(self, publish: Publish) -> bool {
        match (self, publish) {
            (Self::Port(number, transport), Publish::Port(port)) => {
                (port.port, port.transport) == (number, transport)
            }
            (Self::Address(ip), Publish::Address(own)) => own.ip == ip,
            (Self::Port(..), Publish::Address(_)) | (Self::Address(_), Publish::Port(_)) => false,
        }
    }
}

impl FromStr for Unpublish {
    type Err = BadWord;

    fn from_str(word: &str) -> Result<Self, BadWord> {
        let parse = || match word.split_once('/') {
            None if word.contains('.') => word.parse().ok().map(Self::Address),
            None | Some((_, "tcp")) => {
                let port = port_of(word.trim_end_matches("/tcp"))?;
                Some(Self::Port(port, Transport::Tcp))
            }
            Some((port, "udp")) => Some(Self::Port(port_of(port)?, Transport::Udp)),
            Some((word, "routed" | "bridge")) => word.parse().ok().map(Self::Address),
            Some(_) => None,
        };
        parse().ok_or_else(|| {
            BadWord::new(
                word,
                "a port of the host, and /udp if not TCP is meant, or an address of the VM's own",
            )
        })
    }
}

impl fmt::Display for Unpublish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port, transport) => write!(f, "port {port}/{transport} of the host"),
            Self::Address(ip) => write!(f, "address {ip}"),
        }
    }
}

as_text!(Publish);

impl TryFrom<String> for Unpublish {
    type Error = BadWord;

    fn try_from(word: String) -> Result<Self, BadWord> {
        word.parse()
    }
}

impl From<Unpublish> for String {
    fn from(closed: Unpublish) -> Self {
        match closed {
            Unpublish::Port(port, transport) => format!("{port}/{transport}"),
            Unpublish::Address(ip) => ip.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_mean_what_their_help_says() {
        let Ok(Publish::Port(publish)) = "127.0.0.1:8080:80".parse() else {
            panic!("a port");
        };
        assert_eq!(
            (publish.address, publish.port, publish.guest_port),
            (Some(Ipv4Addr::LOCALHOST), 8080, 80)
        );
        let Ok(Publish::Port(any)) = "0.0.0.0:53:5353/udp".parse() else {
            panic!("a port");
        };
        assert_eq!((any.address, any.transport), (None, Transport::Udp));
        let ip = Ipv4Addr::new(192, 0, 2, 7);
        for (word, reach) in [
            ("192.0.2.7/routed", Reach::Routed),
            ("192.0.2.7/bridge", Reach::Bridge),
        ] {
            let own = OwnAddress::new(ip, reach).expect("of one machine");
            assert_eq!(word.parse(), Ok(Publish::Address(own)));
            assert_eq!(word.parse(), Ok(Unpublish::Address(ip)));
        }
        assert_eq!("192.0.2.7".parse(), Ok(Unpublish::Address(ip)));
        assert_eq!("80".parse(), Ok(Unpublish::Port(80, Transport::Tcp)));
        assert_eq!("80/tcp".parse(), Ok(Unpublish::Port(80, Transport::Tcp)));
        assert_eq!("53/udp".parse(), Ok(Unpublish::Port(53, Transport::Udp)));
    }

    #[test]
    fn nonsense_is_refused() {
        for word in [
            "",
            "80",
            "80:0",
            "0:80",
            "80:80/sctp",
            "80:80/tcp/tcp",
            "a:80:80",
            "1:2:3:4",
            "192.0.2.7",
            "192.0.2.7/24",
            "192.0.2.7:80/bridge",
            "::1/bridge",
        ] {
            assert!(word.parse::<Publish>().is_err(), "{word}");
        }
        for word in ["", "0", "80:80", "80/sctp", "65536", "/udp", "1.2.3"] {
            assert!(word.parse::<Unpublish>().is_err(), "{word}");
        }
    }

    #[test]
    fn addresses_that_no_single_machine_has_are_refused() {
        for ip in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.1.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
        ] {
            for reach in ["routed", "bridge"] {
                let word = format!("{ip}/{reach}");
                assert!(word.parse::<Publish>().is_err(), "{word}");
            }
        }
    }

    #[test]
    fn an_address_overlaps_with_itself_and_with_all() {
        let [all, one, two, udp, own, routed] = [
            "80:1",
            "10.0.0.1:80:2",
            "10.0.0.2:80:2",
            "80:1/udp",
            "10.0.0.1/bridge",
            "10.0.0.1/routed",
        ]
        .map(|word| word.parse::<Publish>().expect("a lead"));
        assert!(all.overlaps(one) && one.overlaps(all) && one.overlaps(one));
        assert!(!one.overlaps(two) && !all.overlaps(udp));
        assert!(own.overlaps(routed) && own.overlaps(one) && one.overlaps(own));
        // Ports of all addresses are of the host's.
        assert!(!own.overlaps(two) && !own.overlaps(all));
    }

    #[test]
    fn what_is_closed_is_what_was_named_alone() {
        let closes = |what: &str, lead: &str| {
            let what: Unpublish = what.parse().expect("a word");
            what.closes(lead.parse().expect("a lead"))
        };
        assert!(closes("80", "80:1") && closes("80", "192.0.2.1:80:1"));
        assert!(!closes("80/udp", "80:1") && !closes("81", "80:81"));
        assert!(closes("192.0.2.7", "192.0.2.7/bridge"));
        assert!(!closes("192.0.2.8", "192.0.2.7/bridge"));
        assert!(!closes("192.0.2.7", "192.0.2.7:80:1"));
    }

    proptest! {
        #[test]
        fn whatever_is_understood_is_written_so_that_it_is_understood_again(
            word in "([0-9]{1,3}\\.){0,3}[0-9]{1,3}(:[0-9]{1,5}){0,2}(/udp|/tcp|/routed|/bridge)?"
        ) {
            if let Ok(publish) = word.parse::<Publish>() {
                prop_assert_eq!(publish.to_string().parse(), Ok(publish));
            }
            if let Ok(closed) = word.parse::<Unpublish>() {
                prop_assert_eq!(String::from(closed).parse(), Ok(closed));
            }
        }
    }
}
