//! Address of an etcd.

use std::{fmt, net::IpAddr, str::FromStr};

/// Port of etcd's clients, where none is said.
const PORT: u16 = 2379;

/// Address of an etcd: `http://HOST:2379`, or `https://…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) secure: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Text that is no place of an etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address of an etcd: wanted http://HOST:PORT or https://HOST:PORT")]
pub struct InvalidEndpoint(String);

impl Endpoint {
    /// Tells whether TLS is spoken there.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Name or address, an IPv6 one without brackets, and port.
    pub fn place(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    fn is_loopback(&self) -> bool {
        let address: Result<IpAddr, _> = self.host.parse();
        self.host == "localhost" || address.is_ok_and(|it| it.is_loopback())
    }

    /// True if it is spoken to in the clear and over the network.
    pub fn is_open(&self) -> bool {
        !self.secure && !self.is_loopback()
    }

    /// As the head of a request names it.
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let invalid = || InvalidEndpoint(text.to_owned());
        let (secure, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) | None => return Err(invalid()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let uri: hyper::Uri = text.parse().map_err(|_| invalid())?;
        let host = uri.host().unwrap_or_default();
        if host.is_empty() || rest.contains(['/', '@', '?', '#']) {
            return Err(invalid());
        }
        let port = match uri.port_u16() {
            Some(port) => port,
            None if rest == host => PORT,
            // Something stands where a port would, and is none.
            None => return Err(invalid()),
        };
        let host = host.trim_matches(['[', ']']).to_owned();
        Ok(Self { secure, host, port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_in_the_clear_beyond_this_host_is_open() {
        for (text, open) in [
            ("http://10.0.0.9:2379", true),
            ("http://etcd.example", true),
            ("https://10.0.0.9:2379", false),
            ("http://localhost", false),
            ("http://127.0.0.1:1", false),
            ("http://[::1]:2379", false),
        ] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert_eq!(endpoint.is_open(), open, "{text}");
        }
    }

    #[test]
    fn an_endpoint_survives_its_text() {
        for text in ["http://127.0.0.1:2379", "https://etcd.example:1"] {
            let endpoint: Endpoint = text.parse().expect(text);
            assert_eq!(endpoint.to_string(), text);
        }
        let short: Result<Endpoint, _> = "http://e/".parse();
        assert_eq!(
            short.map(|it| it.to_string()),
            Ok("http://e:2379".to_owned())
        );
        let six: Endpoint = "http://[fd00::1]:9".parse().expect("an address");
        assert_eq!((six.host.as_str(), six.port), ("fd00::1", 9));
        assert_eq!(six.to_string(), "http://[fd00::1]:9");
    }

    #[test]
    fn what_says_more_or_less_than_a_place_is_refused() {
        for text in [
            "",
            "e:2379",
            "ftp://e",
            "http://",
            "http://e/v3",
            "http://u@e",
            "http://e:99999",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
