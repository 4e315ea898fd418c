//! Resolvers of guests: those the host asks, as far as
//! a guest can reach them.

use std::{fs, net::Ipv4Addr, net::UdpSocket};

/// The second is what systemd-resolved, which the first then leads to on the
/// loopback, asks itself.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];
/// As many as a resolver library looks at.
const MOST: usize = 3;

/// The host's resolvers. None if all of them are on the host itself, which
/// guests do not reach.
pub(crate) fn find() -> Vec<Ipv4Addr> {
    FILES
        .iter()
        .map(|file| parse(&fs::read_to_string(file).unwrap_or_default()))
        .map(|mut found| {
            found.retain(|address| !is_own(*address));
            found.truncate(MOST);
            found
        })
        .find(|found| !found.is_empty())
        .unwrap_or_default()
}

/// Resolvers that the host asks itself, those on it included.
pub(crate) fn asked() -> Vec<Ipv4Addr> {
    let mut found = parse(&fs::read_to_string(FILES[0]).unwrap_or_default());
    found.truncate(MOST);
    found
}

/// The IPv4 name servers of a resolv.conf(5).
fn parse(text: &str) -> Vec<Ipv4Addr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then_some(())?;
        words.next()?.parse().ok()
    };
    text.lines().filter_map(server).collect()
}

/// Tells whether the host itself has this address: only one's own can be bound to.
fn is_own(address: Ipv4Addr) -> bool {
    address.is_loopback() || address.is_unspecified() || UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_and_nothing_else() {
        let text = "# nameserver 192.0.2.1\nsearch example.org\nnameserver 192.0.2.2\n\
                    nameserver\t192.0.2.3 # second\nnameserver fe80::1\nnameserver\noptions edns0\n";
        let want = [Ipv4Addr::new(192, 0, 2, 2), Ipv4Addr::new(192, 0, 2, 3)];
        assert_eq!(parse(text), want);
    }

    #[test]
    fn what_answers_on_the_host_itself_is_of_no_use_to_a_guest() {
        assert!(is_own(Ipv4Addr::LOCALHOST) && is_own(Ipv4Addr::UNSPECIFIED));
        assert!(!is_own(Ipv4Addr::new(192, 0, 2, 1)));
    }
}
