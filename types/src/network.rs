//! Rights of a family on the network, in the words its owner uses: the same on
//! the command line, in JSON and in the records.

use crate::{Destination, Publish};
use serde::{Deserialize, Serialize};
use std::{fmt, net::Ipv4Addr, num::NonZeroU16, str::FromStr};

/// Rights of a family's VMs beyond talking to each other. Its founder's owner
/// decides; clones have it from there.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkPolicy {
    /// Way to the outside, if there is one.
    pub out: WayOut,
    /// All that may be reached, networks and host names; if empty, whatever is no private network.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub allow: Vec<Destination>,
    /// Destinations that may not be reached, even if it is allowed: names are asked of no resolver there, either.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub deny: Vec<Allow>,
    /// Most that each VM may send out, and most that it may receive from there.
    pub rate: Option<BitRate>,
    /// Ports of the host that lead to the founder, and addresses of its own.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub publish: Vec<Publish>,
}

impl NetworkPolicy {
    /// Tells whether packets of the family go beyond its own network at all.
    pub fn is_routed(&self) -> bool {
        self.out == WayOut::Nat || !self.publish.is_empty()
    }
}

/// `POST /v1/vms/{id}/egress`: what the VMs of a family may reach from now on, instead of what was said
/// before.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EgressRequest {
    /// Way out, if any.
    pub out: WayOut,
    /// All that may be reached, networks and host names; if empty, whatever is no private network.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>, max_items = 256))]
    pub allow: Vec<Destination>,
    /// Destinations that may not be reached, even if it is allowed.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>, max_items = 256))]
    pub deny: Vec<Allow>,
}

impl EgressRequest {
    /// Most networks that are allowed, and most that are denied.
    pub const MOST: usize = 256;
}

/// Right of a family's VMs to open connections to the outside.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WayOut {
    /// They may not.
    #[default]
    None,
    /// They may, as if the host did.
    Nat,
}

/// Reason why a word is no network, rate or port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?}: wanted {wanted}")]
pub struct BadWord {
    word: String,
    wanted: &'static str,
}

impl BadWord {
    pub(crate) fn new(word: &str, wanted: &'static str) -> Self {
        Self {
            word: word.to_owned(),
            wanted,
        }
    }
}

/// A TCP port of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GuestPort(NonZeroU16);

impl GuestPort {
    /// The port of this number; none for 0.
    pub fn new(number: u16) -> Option<Self> {
        NonZeroU16::new(number).map(Self)
    }

    /// Returns the number.
    pub fn number(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for GuestPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for GuestPort {
    type Err = BadWord;

    fn from_str(word: &str) -> Result<Self, BadWord> {
        word.parse().map(Self).map_err(|_| BadWord {
            word: word.to_owned(),
            wanted: "a port: 1 to 65535",
        })
    }
}

/// A destination: an address or a network, and a port of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Allow {
    network: Ipv4Addr,
    prefix: u8,
    port: Option<u16>,
}

impl Allow {
    /// The network's address: no bit is set that is not of its prefix.
    pub fn network(self) -> Ipv4Addr {
        self.network
    }

    /// Length of the network's prefix, 32 at most.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// The one port meant, of TCP and UDP; if none, all of it.
    pub fn port(self) -> Option<u16> {
        self.port
    }
}

impl FromStr for Allow {
    type Err = BadWord;

    fn from_str(word: &str) -> Result<Self, BadWord> {
        let parse = || {
            let (network, port) = match word.rsplit_once(':') {
                Some((network, port)) => (network, Some(port_of(port)?)),
                None => (word, None),
            };
            let (address, prefix) = match network.split_once('/') {
                Some((address, prefix)) => (address, prefix.parse().ok()?),
                None => (network, 32),
            };
            let address: Ipv4Addr = address.parse().ok()?;
            let host_bits = match prefix {
                0 => u32::MAX,
                1..=31 => u32::MAX >> prefix,
                32 => 0,
                33.. => return None,
            };
            (u32::from(address) & host_bits == 0).then_some(Self {
                network: address,
                prefix,
                port,
            })
        };
        parse().ok_or_else(|| BadWord {
            word: word.to_owned(),
            wanted: "a network as 192.0.2.0/24, or an address, and :PORT if one is meant",
        })
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// Bits a second, from `16kbit` to `100gbit`.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = String, pattern = "^((100|[1-9][0-9]?)g|(100000|[1-9][0-9]{0,4})m|(1[6-9]|[2-9][0-9]|[1-9][0-9]{2,7}|100000000)k|(1[6-9][0-9]{3}|[2-9][0-9]{4}|[1-9][0-9]{5,10}|100000000000))bit$"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BitRate(u64);

impl BitRate {
    /// Less would not carry a packet a second; more, nothing here measures.
    const BOUNDS: std::ops::RangeInclusive<u64> = 16_000..=100_000_000_000;
    const UNITS: [(&'static str, u64); 4] = [
        ("gbit", 1_000_000_000),
        ("mbit", 1_000_000),
        ("kbit", 1_000),
        ("bit", 1),
    ];

    /// As bytes a second.
    pub fn bytes(self) -> u64 {
        self.0 / 8
    }
}

impl FromStr for BitRate {
    type Err = BadWord;

    fn from_str(word: &str) -> Result<Self, BadWord> {
        let parse = || {
            let (number, unit) = Self::UNITS
                .iter()
                .find_map(|(name, unit)| Some((word.strip_suffix(name)?, unit)))?;
            let number: u64 = number.parse().ok()?;
            let bits = number.checked_mul(*unit)?;
            Self::BOUNDS.contains(&bits).then_some(Self(bits))
        };
        parse().ok_or_else(|| BadWord {
            word: word.to_owned(),
            wanted: "a rate as 10mbit: bit, kbit, mbit or gbit, from 16kbit to 100gbit",
        })
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, unit): &&(&str, u64)| self.0.is_multiple_of(*unit);
        let (name, unit) = Self::UNITS.iter().find(fits).unwrap_or(&("bit", 1));
        write!(f, "{}{name}", self.0 / unit)
    }
}

/// Protocol that a port belongs to.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

pub(crate) fn port_of(word: &str) -> Option<u16> {
    word.parse().ok().filter(|port| *port != 0)
}

macro_rules! as_text {
    ($($name:ty),*) => {$(
        impl TryFrom<String> for $name {
            type Error = BadWord;

            fn try_from(word: String) -> Result<Self, BadWord> {
                word.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    )*};
}
pub(crate) use as_text;
as_text!(Allow, BitRate);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_mean_what_their_help_says() {
        let allow: Allow = "192.0.2.0/24:443".parse().expect("a network and a port");
        assert_eq!(
            (allow.network(), allow.prefix(), allow.port()),
            (Ipv4Addr::new(192, 0, 2, 0), 24, Some(443))
        );
        let all: Allow = "0.0.0.0/0".parse().expect("everything");
        assert_eq!((all.prefix(), all.port()), (0, None));
        let one: Allow = "192.0.2.7".parse().expect("an address");
        assert_eq!(one.prefix(), 32);
        assert_eq!("10mbit".parse().map(BitRate::bytes), Ok(1_250_000));
    }

    #[test]
    fn nonsense_is_refused() {
        for word in [
            "",
            "x",
            "192.0.2.1/24",
            "1.2.3.4/33",
            "1.2.3.4:0",
            "1.2.3.4/8/8",
            "::1",
        ] {
            assert!(word.parse::<Allow>().is_err(), "{word}");
        }
        for word in [
            "",
            "10",
            "mbit",
            "-1mbit",
            "1bit",
            "1000gbit",
            "99999999999999999999bit",
        ] {
            assert!(word.parse::<BitRate>().is_err(), "{word}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_understood_is_written_so_that_it_is_understood_again(
            word in "([0-9]{1,3}\\.){0,3}[0-9]{1,3}[/:0-9]{0,4}(:[0-9]{1,5}){0,2}([gmk]?bit)?"
        ) {
            if let Ok(allow) = word.parse::<Allow>() {
                prop_assert_eq!(allow.to_string().parse(), Ok(allow));
            }
            if let Ok(rate) = word.parse::<BitRate>() {
                prop_assert_eq!(rate.to_string().parse(), Ok(rate));
            }
        }
    }
}
