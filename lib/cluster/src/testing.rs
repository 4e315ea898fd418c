//! A cluster of one node, for tests.

use crate::{Allocation, Cluster, NodeAddresses, PlainEtcd, Settings};
use forkyard_etcd::server::Server;
use forkyard_types::{ByteCount, Room};
use std::{net::Ipv4Addr, path::Path, time::Duration};

/// Founds a cluster with the node `a`, which keeps its files in this folder.
pub(crate) async fn founded(server: &Server, folder: &Path) -> Cluster {
    let api = (Ipv4Addr::LOCALHOST, 7).into();
    let cluster = Cluster::start(Settings {
        etcd: vec![server.endpoint()],
        etcd_tls: None,
        plain_etcd: PlainEtcd::default(),
        name: "a".parse().expect("a name"),
        reach: NodeAddresses {
            api,
            pages: api,
            tunnel: Ipv4Addr::LOCALHOST,
        },
        offers: Room {
            vcpus: 8,
            memory: ByteCount(1 << 40),
        },
        lease: Duration::from_secs(600),
        folder: folder.join("cluster"),
        invitation: None,
        allocation: Allocation::default(),
    });
    cluster.await.expect("founded")
}
