//! Places of volumes: each has one node at a time, in a term that only grows.
//!
//! A record is changed on condition that it is as it was seen, so that of two nodes that change it one
//! learns that it came too late. It goes with no lease: the volume of a node that is lost is there
//! still, until another node promotes a copy of it.

use crate::{
    Cluster, ClusterError,
    membership::{from_json, to_json},
};
use forkyard_etcd::{Compare, KeyEntry, Keys, Op, Txn};
use forkyard_types::{ByteCount, NodeName, Term, VmName};
use serde::{Deserialize, Serialize};

/// Part of the book.
const PART: &str = "volumes";

/// Place of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeHome {
    /// Name of the volume.
    pub name: VmName,
    /// Node where it is at home.
    pub node: NodeName,
    /// Term in which it is.
    pub term: Term,
    /// Size of the disk.
    pub size: ByteCount,
}

impl Cluster {
    /// Returns the place of a volume, by its identity. Cancel-safe.
    pub async fn volume(&self, id: &str) -> Result<Option<VolumeHome>, ClusterError> {
        let found = self.volume_entry(id).await?;
        found.as_ref().map(from_json).transpose()
    }

    /// Returns the places of all volumes, by their identities. Cancel-safe.
    pub async fn volumes(&self) -> Result<Vec<(String, VolumeHome)>, ClusterError> {
        let shared = self.shared();
        let range = shared.etcd.range(&shared.book.all(PART)).await?;
        let prefix = shared.book.key(PART, "");
        let read = |entry: &KeyEntry| {
            let id = entry.key.strip_prefix(&prefix).unwrap_or_default();
            Ok((id.to_owned(), from_json(entry)?))
        };
        range.entries.iter().map(read).collect()
    }

    /// Changes the place of a volume, if it is at this node in this term still; of one that has no place,
    /// if it has none still. False: it has not. After an error that [says so](ClusterError::Etcd) it may have
    /// been changed all the same: look at it again.
    pub async fn change_volume(
        &self,
        id: &str,
        from: Option<(NodeName, Term)>,
        to: Option<VolumeHome>,
    ) -> Result<bool, ClusterError> {
        let shared = self.shared();
        let key = shared.book.key(PART, id);
        let found = self.volume_entry(id).await?;
        let is_as_seen = match (&found, &from) {
            (None, None) => true,
            (Some(entry), Some((node, term))) => {
                let said: VolumeHome = from_json(entry)?;
                said.node == *node && said.term == *term
            }
            (None, Some(_)) | (Some(_), None) => false,
        };
        if !is_as_seen {
            return Ok(false);
        }
        let outcome = shared.etcd.txn(Txn {
            when: vec![match found {
                Some(entry) => Compare::Unchanged(key.clone(), entry.changed),
                None => Compare::Absent(Keys::One(key.clone())),
            }],
            then: vec![match to {
                Some(home) => Op::Put(key.clone(), to_json(&key, &home)?, None),
                None => Op::Delete(Keys::One(key)),
            }],
            otherwise: Vec::new(),
        });
        Ok(outcome.await?.held)
    }

    async fn volume_entry(&self, id: &str) -> Result<Option<KeyEntry>, ClusterError> {
        let shared = self.shared();
        Ok(shared.etcd.get(&shared.book.key(PART, id)).await?)
    }

    /// The node whose API has this address, with its port or without.
    pub fn node_at(&self, address: &str) -> Option<NodeName> {
        self.shared().roll.with(|nodes| {
            let mut members = nodes.members.iter();
            let is_at = |api: std::net::SocketAddr| {
                api.to_string() == address || api.ip().to_string() == address
            };
            let found = members.find(|(_, member)| is_at(member.reach.api));
            found.map(|(name, _)| name.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::founded;
    use forkyard_etcd::server::Server;
    use std::time::Duration;

    #[tokio::test]
    async fn of_two_changes_to_the_place_of_a_volume_that_was_seen_one_comes_too_late() {
        let mut server = Server::start().expect("etcd");
        let folder = tempfile::tempdir().expect("a folder");
        let cluster = founded(&server, folder.path()).await;
        let at = |node: &str, term: u64| VolumeHome {
            name: "d".parse().expect("a name"),
            node: node.parse().expect("a name"),
            term: Term(term),
            size: ByteCount(4096),
        };
        let (first, landed, back) = (at("a", 1), at("b", 2), at("a", 3));
        assert_eq!(cluster.volume("7f").await.expect("asked"), None);
        let change = async |from: Option<&VolumeHome>, to: Option<&VolumeHome>| {
            let from = from.map(|home| (home.node.clone(), home.term));
            let changed = cluster.change_volume("7f", from, to.cloned()).await;
            changed.expect("asked")
        };
        assert!(!change(Some(&first), Some(&landed)).await, "none yet");
        assert!(change(None, Some(&first)).await);
        assert!(!change(None, Some(&landed)).await, "there is one");
        let (taken, kept) = tokio::join!(
            change(Some(&first), Some(&landed)),
            change(Some(&first), Some(&back))
        );
        assert_ne!(taken, kept);
        let now = cluster.volume("7f").await.expect("asked");
        let now = now.expect("a place");
        assert_eq!(now, if taken { landed } else { back });
        let all = cluster.volumes().await.expect("asked");
        assert_eq!(all, [("7f".to_owned(), now.clone())]);
        assert!(!change(Some(&first), None).await);
        server.stop().expect("killed");
        assert!(cluster.volume("7f").await.is_err());
        server.go_on().expect("etcd again");
        while cluster.volume("7f").await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(change(Some(&now), None).await);
        assert_eq!(cluster.volumes().await.expect("asked"), []);
    }
}
