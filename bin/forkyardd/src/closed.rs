//! Ports that no guest reaches: etcd, each node's API and pages, peers' APIs.
//!
//! A guest's packets leave under its host's address, which these ports may let in.

use crate::{cluster::Node, peers::PeersFile};
use forkyard_fork::{Closed, Host};
use forkyard_types::Transport;
use std::{
    collections::BTreeSet,
    error::Error,
    net::{SocketAddr, SocketAddrV4},
    time::Duration,
};
use tokio::{
    net::lookup_host,
    time::{sleep, timeout},
};

/// Longest time until names are looked up again.
const AGAIN: Duration = Duration::from_secs(30);
/// Longest wait for a name.
const NAME: Duration = Duration::from_secs(5);

/// Closes the cluster's ports to guests, as they are known now. Cancel-safe.
pub async fn of_cluster(node: &Node, host: &Host) {
    let mut closed = BTreeSet::new();
    for reach in node.cluster().reaches() {
        closed.extend(port(reach.api, Transport::Tcp));
        closed.extend(port(reach.pages, Transport::Udp));
    }
    closed.extend(look_up(node.cluster().etcd()).await);
    close(host, closed).await;
}

/// Keeps the cluster's ports closed to guests, for ever. Cancel-safe.
pub async fn keep_cluster(node: &Node, host: &Host) {
    loop {
        of_cluster(node, host).await;
        let _ = timeout(AGAIN, node.cluster().changed()).await;
    }
}

/// Keeps the ports of peers closed to guests, for ever. Cancel-safe.
pub async fn keep_peers(file: &PeersFile, host: &Host) {
    loop {
        // What is wrong with the file is told to those who need a peer.
        if let (Ok(places), Ok(pages)) = (file.places(), file.pages()) {
            let mut closed = look_up(places).await;
            closed.extend(pages.into_iter().filter_map(|at| port(at, Transport::Udp)));
            close(host, closed).await;
        }
        sleep(AGAIN).await;
    }
}

async fn close(host: &Host, closed: BTreeSet<Closed>) {
    if let Err(error) = host.close_to_guests(closed).await {
        tracing::error!(
            error = &error as &dyn Error,
            "ports of other hosts are not closed to guests"
        );
    }
}

async fn look_up(places: Vec<(String, u16)>) -> BTreeSet<Closed> {
    let mut closed = BTreeSet::new();
    for (name, number) in places {
        match timeout(NAME, lookup_host((name.as_str(), number))).await {
            Ok(Ok(found)) => closed.extend(found.filter_map(|at| port(at, Transport::Tcp))),
            Ok(Err(error)) => {
                tracing::warn!(host = name, %error, "no address: it is not closed to guests");
            }
            Err(_) => tracing::warn!(host = name, "no address in time: not closed to guests"),
        }
    }
    closed
}

/// Guests have IPv4 alone.
fn port(at: SocketAddr, transport: Transport) -> Option<Closed> {
    let at = match at {
        SocketAddr::V4(at) => at,
        SocketAddr::V6(at) => SocketAddrV4::new(at.ip().to_ipv4_mapped()?, at.port()),
    };
    Some(Closed { at, transport })
}
