//! Ports that no guest reaches: etcd, each node's API and pages, peers' APIs.
//!
//! A guest's packets leave under its host's address, which these ports may let in. Those of nodes and peers are closed
//! at each address that is known of them: which one a packet comes to is the guest's to choose. Those of etcd are closed
//! at every address, but for ports that guests reach other servers at.
//!
//! What was closed last is kept by the host, and is closed from the start of the next daemon on, before
//! anything is known. A name that has no address for the moment opens nothing.

use crate::PeersFile;
use forkyard_cluster::Cluster;
use forkyard_fork::{Closed, Host};
use forkyard_types::Transport;
use std::{
    collections::BTreeSet,
    error::Error,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};
use tokio::{
    net::lookup_host,
    time::{sleep, timeout},
};

/// UDP port of a host's pages, unless it is said.
pub const PAGES: u16 = 7434;
/// Longest time until names are looked up again.
const AGAIN: Duration = Duration::from_secs(30);
/// Longest wait for etcd's list of its members.
const MEMBERS: Duration = Duration::from_secs(5);
/// Longest wait for a name.
const NAME: Duration = Duration::from_secs(5);

/// Closes the cluster's ports to guests, as they are known now. Cancel-safe.
pub async fn of_cluster(cluster: &Cluster, host: &Host) {
    let mut closed = BTreeSet::new();
    for reach in cluster.reaches() {
        closed.extend(of_node(reach.api, reach.pages));
    }
    let mut places = cluster.etcd();
    let members = timeout(MEMBERS, cluster.etcd_members()).await;
    let members = members.map_err(|_| "no answer in time".to_owned());
    let in_part = match members.and_then(|told| told.map_err(|error| error.to_string())) {
        Ok(members) => {
            places.extend(members);
            false
        }
        Err(error) => {
            tracing::warn!(
                error,
                "etcd does not list its members: what was closed to guests stays so"
            );
            true
        }
    };
    let (shared, own): (Vec<_>, Vec<_>) =
        places.into_iter().partition(|(_, port)| is_shared(*port));
    let mut etcd = look_up(shared).await;
    etcd.in_part |= in_part;
    etcd.closed
        .extend(own.iter().map(|(_, port)| of_etcd(*port)));
    close(host, closed, etcd).await;
}

/// True for a port that guests reach other servers at: it cannot be closed everywhere.
fn is_shared(port: u16) -> bool {
    port < 1024
}

/// A port of etcd at every address: etcd may listen on more of a machine's than it tells, and where it wants
/// no certificate a packet that reaches it is obeyed.
fn of_etcd(number: u16) -> Closed {
    Closed {
        at: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, number),
        transport: Transport::Tcp,
    }
}

/// Keeps the cluster's ports closed to guests, for ever. Cancel-safe.
pub async fn keep_cluster(cluster: &Cluster, host: &Host) {
    loop {
        of_cluster(cluster, host).await;
        let _ = timeout(AGAIN, cluster.changed()).await;
    }
}

/// Keeps the ports of peers closed to guests, for ever. Cancel-safe.
pub async fn keep_peers(file: &PeersFile, host: &Host) {
    loop {
        // What is wrong with the file is told to requests that need a peer.
        if let Ok(doors) = file.doors() {
            let mut all = Found::default();
            for door in doors {
                let found = look_up(vec![(door.host, door.api)]).await;
                all.in_part |= found.in_part;
                all.closed
                    .extend(of_peer(&found.closed, door.api, door.pages));
            }
            close(host, BTreeSet::new(), all).await;
        }
        sleep(AGAIN).await;
    }
}

/// Opens what an earlier daemon closed, for this one knows of no other host. Cancel-safe.
pub async fn nothing(host: &Host) {
    close(host, BTreeSet::new(), Found::default()).await;
}

/// Addresses of places by name.
#[derive(Debug, Default)]
struct Found {
    closed: BTreeSet<Closed>,
    /// A name had none.
    in_part: bool,
}

/// Closes what is known, and what was looked up; if some of that was not found, what was closed before stays so.
async fn close(host: &Host, mut closed: BTreeSet<Closed>, found: Found) {
    closed.extend(found.closed);
    if found.in_part {
        closed.extend(host.closed_to_guests());
    }
    if let Err(error) = host.close_to_guests(closed).await {
        tracing::error!(
            error = &error as &dyn Error,
            "ports of other hosts are not closed to guests"
        );
    }
}

async fn look_up(places: Vec<(String, u16)>) -> Found {
    let mut all = Found::default();
    for (name, number) in places {
        let found = timeout(NAME, lookup_host((name.as_str(), number))).await;
        match found.map_err(io::Error::from).and_then(|found| found) {
            Ok(found) => {
                let closed = found.filter_map(|at| port(at, Transport::Tcp));
                all.closed.extend(closed);
            }
            Err(error) => {
                tracing::warn!(host = name, %error, "no address: what was closed to guests stays so");
                all.in_part = true;
            }
        }
    }
    all
}

/// Both ports of a peer, at each of its addresses: those of its name, and that of its pages.
fn of_peer(known: &BTreeSet<Closed>, api: u16, pages: Option<SocketAddr>) -> BTreeSet<Closed> {
    let known = known.iter().map(|closed| IpAddr::V4(*closed.at.ip()));
    let hosts = known.chain(pages.map(|at| at.ip()));
    let all = hosts.flat_map(|ip| {
        let pages = pages.unwrap_or(SocketAddr::new(ip, PAGES));
        of_node(SocketAddr::new(ip, api), pages)
    });
    all.collect()
}

/// Both ports of a node, at both of its addresses.
fn of_node(api: SocketAddr, pages: SocketAddr) -> impl Iterator<Item = Closed> {
    [api.ip(), pages.ip()].into_iter().flat_map(move |ip| {
        let api = port(SocketAddr::new(ip, api.port()), Transport::Tcp);
        let pages = port(SocketAddr::new(ip, pages.port()), Transport::Udp);
        api.into_iter().chain(pages)
    })
}

/// Guests have IPv4 alone.
fn port(at: SocketAddr, transport: Transport) -> Option<Closed> {
    let at = match at {
        SocketAddr::V4(at) => at,
        SocketAddr::V6(at) => SocketAddrV4::new(at.ip().to_ipv4_mapped()?, at.port()),
    };
    Some(Closed { at, transport })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_ports_are_closed_at_each_of_its_addresses() {
        let at = |text: &str| text.parse().expect("an address");
        let closed: BTreeSet<_> = of_node(at("10.0.0.1:7433"), at("10.1.0.1:7434")).collect();
        let want = [
            ("10.0.0.1:7433", Transport::Tcp),
            ("10.0.0.1:7434", Transport::Udp),
            ("10.1.0.1:7433", Transport::Tcp),
            ("10.1.0.1:7434", Transport::Udp),
        ];
        let want = want.map(|(at, transport)| Closed {
            at: at.parse().expect("an address"),
            transport,
        });
        assert_eq!(closed, BTreeSet::from(want));
        let six = of_node(at("[2001:db8::1]:1"), at("10.1.0.1:2"));
        assert_eq!(six.count(), 2, "guests have IPv4 alone");
    }

    #[test]
    fn a_peers_ports_are_closed_at_each_of_its_addresses() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let known = ["10.0.0.1:7433", "10.0.0.2:7433"].map(at);
        let known: BTreeSet<_> = known
            .into_iter()
            .filter_map(|at| port(at, Transport::Tcp))
            .collect();
        let told = |pages: Option<&str>| {
            let closed = of_peer(&known, 7433, pages.map(at));
            let words = closed.iter().map(|it| (it.at.to_string(), it.transport));
            words.collect::<BTreeSet<_>>()
        };
        let both = |ip: &str, pages: u16| {
            [
                (format!("{ip}:7433"), Transport::Tcp),
                (format!("{ip}:{pages}"), Transport::Udp),
            ]
        };
        let want = ["10.0.0.1", "10.0.0.2"].map(|ip| both(ip, 7434));
        assert_eq!(told(None), want.into_iter().flatten().collect());
        let want = ["10.0.0.1", "10.0.0.2", "10.1.0.9"].map(|ip| both(ip, 9));
        assert_eq!(
            told(Some("10.1.0.9:9")),
            want.into_iter().flatten().collect()
        );
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_told_of_and_costs_no_other() {
        let found = look_up(vec![("127.0.0.1".into(), 1), ("127.0.0.2".into(), 2)]).await;
        assert_eq!((found.closed.len(), found.in_part), (2, false));
        // A name that can be none.
        let found = look_up(vec![("..".into(), 1), ("127.0.0.1".into(), 1)]).await;
        assert_eq!((found.closed.len(), found.in_part), (1, true));
    }
}
