//! Destinations by host name.

use crate::{Allow, BadWord};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Longest name, and longest label of one.
const NAME: usize = 253;
const LABEL: usize = 63;

/// A host name, or all names below one, and a port if one is meant: `example.org`, `*.example.org:443`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedHost {
    /// All names below it are meant, and not itself.
    below: bool,
    /// In lower case, without a dot at its end.
    name: String,
    port: Option<u16>,
}

impl NamedHost {
    /// The one port meant, of TCP and UDP; if none, all of it.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// True if a name, in lower case and without a dot at its end, is meant.
    pub fn matches(&self, name: &str) -> bool {
        match (self.below, name.strip_suffix(&self.name)) {
            (false, rest) => rest == Some(""),
            (true, Some(rest)) => rest.len() > 1 && rest.ends_with('.'),
            (true, None) => false,
        }
    }
}

impl FromStr for NamedHost {
    type Err = BadWord;

    fn from_str(word: &str) -> Result<Self, BadWord> {
        let parse = || {
            let (host, port) = match word.rsplit_once(':') {
                Some((host, port)) => (host, Some(port.parse().ok().filter(|port| *port != 0)?)),
                None => (word, None),
            };
            let (below, name) = match host.strip_prefix("*.") {
                Some(name) => (true, name),
                None => (false, host),
            };
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            let fits = |label: &str| (1..=LABEL).contains(&label.len()) && label.bytes().all(plain);
            // A number at its end is a mistaken address.
            let last = name.rsplit('.').next()?;
            let is_name = last.bytes().any(|byte| byte.is_ascii_alphabetic());
            let whole = name.len() <= NAME && name.split('.').all(fits);
            (is_name && whole).then_some(Self { below, name, port })
        };
        parse().ok_or_else(|| {
            BadWord::new(
                word,
                "a host name as example.org or *.example.org, and :PORT if one is meant",
            )
        })
    }
}

impl fmt::Display for NamedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.below {
            f.write_str("*.")?;
        }
        f.write_str(&self.name)?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// A destination that a family may reach: a network, or a host name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Destination {
    /// By address.
    Network(Allow),
    /// By name.
    Host(NamedHost),
}

impl FromStr for Destination {
    type Err = BadWord;

    fn from_str(word: &str) -> Result<Self, BadWord> {
        let wanted = "a network as 192.0.2.0/24, an address, or a host name as example.org or *.example.org, \
                      and :PORT if one is meant";
        let network = word.parse().map(Self::Network);
        network
            .or_else(|_| word.parse().map(Self::Host))
            .map_err(|_: BadWord| BadWord::new(word, wanted))
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) => network.fmt(f),
            Self::Host(host) => host.fmt(f),
        }
    }
}

impl TryFrom<String> for Destination {
    type Error = BadWord;

    fn try_from(word: String) -> Result<Self, BadWord> {
        word.parse()
    }
}

impl From<Destination> for String {
    fn from(destination: Destination) -> Self {
        destination.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_networks_are_told_apart_and_nonsense_is_neither() {
        for (word, shown) in [
            ("example.org", "example.org"),
            ("Example.ORG.", "example.org"),
            ("*.example.org:443", "*.example.org:443"),
            ("db:5432", "db:5432"),
            ("192.0.2.0/24:443", "192.0.2.0/24:443"),
            ("192.0.2.7", "192.0.2.7/32"),
        ] {
            let read: Destination = word.parse().expect(word);
            assert_eq!(read.to_string(), shown);
            let is_network = matches!(read, Destination::Network(_));
            assert_eq!(is_network, shown.contains('/'), "{word}");
        }
        for wrong in [
            "",
            ".",
            "*",
            "*.",
            "a..b",
            "192.0.2",
            "192.0.2.300",
            "example.org:0",
            "example.org:x",
            "a b",
            "é.org",
            "a.*.b",
            "192.0.2.1/33",
        ] {
            assert!(wrong.parse::<Destination>().is_err(), "{wrong}");
        }
        assert!("a".repeat(64).parse::<NamedHost>().is_err());
    }

    #[test]
    fn a_pattern_is_for_names_below_and_not_for_those_that_end_alike() {
        let host: NamedHost = "*.example.org".parse().expect("a pattern");
        for (name, meant) in [
            ("a.example.org", true),
            ("a.b.example.org", true),
            ("example.org", false),
            (".example.org", false),
            ("evilexample.org", false),
            ("a.example.org.evil", false),
        ] {
            assert_eq!(host.matches(name), meant, "{name}");
        }
        let one: NamedHost = "example.org".parse().expect("a name");
        assert!(one.matches("example.org") && !one.matches("www.example.org"));
    }
}
