//! Keys of etcd that hold the picture of the cluster.
//!
//! ```text
//! PREFIX/offers/NODE     what a node offers and what its VMs take: an Offer; goes with its lease
//! PREFIX/grants/TICKET   what was granted and is no VM yet: a Grant; goes with its holder's lease
//! PREFIX/draining/NODE   it takes nothing new
//! PREFIX/quotas/USER     vCPUs a user may have, as a number
//! PREFIX/ledger          changed by every grant: two of them cannot be made of one picture
//! ```

use crate::{Grant, Picture};
use forkyard_etcd::{KeyEntry, Keys};
use forkyard_types::{NodeName, Room, TicketId};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;

/// Offer of a node, for as long as it lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Room of the node in all.
    pub offers: Room,
    /// Room its VMs take.
    pub taken: Room,
    /// Number of its VMs.
    pub vms: u32,
    /// vCPUs of these by user.
    pub users: BTreeMap<String, u32>,
}

/// The keys of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Book {
    prefix: String,
}

impl Default for Book {
    fn default() -> Self {
        Self::new("/forkyard")
    }
}

impl Book {
    /// All under this prefix, which ends in no slash.
    pub fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    /// A key of any part.
    pub fn key(&self, part: &str, name: &str) -> String {
        format!("{}/{part}/{name}", self.prefix)
    }

    /// All keys of a part.
    pub fn all(&self, part: &str) -> Keys {
        Keys::Prefix(self.key(part, ""))
    }

    /// Returns the key of a node's offer.
    pub fn offer(&self, node: &NodeName) -> String {
        self.key("offers", node.as_str())
    }

    /// Returns the key of a grant.
    pub fn grant(&self, grant: TicketId) -> String {
        self.key("grants", grant.as_str())
    }

    /// Returns the key that says that the node takes nothing new.
    pub fn draining(&self, node: &NodeName) -> String {
        self.key("draining", node.as_str())
    }

    /// Returns the key of a user's quota.
    pub fn quota(&self, user: &str) -> String {
        self.key("quotas", user)
    }

    /// The key that every grant changes.
    pub fn ledger(&self) -> String {
        format!("{}/ledger", self.prefix)
    }

    /// Returns the ranges of keys that make up the picture, in this order.
    pub(crate) fn parts(&self) -> [Keys; 4] {
        ["offers", "grants", "draining", "quotas"].map(|part| self.all(part))
    }

    /// The picture that was found, part for part. What makes no sense is left
    /// out: it may be of another version, and is not to stop everything.
    pub(crate) fn picture(&self, found: &[Vec<KeyEntry>]) -> Picture {
        let part = |number: usize| found.get(number).map(Vec::as_slice).unwrap_or_default();
        Picture {
            offers: part(0)
                .iter()
                .filter_map(|entry| Some((node_of(entry)?, read(entry)?)))
                .collect(),
            grants: part(1).iter().filter_map(read).collect(),
            draining: part(2).iter().filter_map(node_of).collect(),
            quotas: part(3)
                .iter()
                .filter_map(|entry| {
                    let user = entry.key.strip_prefix(&self.quota(""))?;
                    Some((user.to_owned(), read(entry)?))
                })
                .collect(),
        }
    }
}

/// The name at a key's end.
fn node_of(entry: &KeyEntry) -> Option<NodeName> {
    entry.key.rsplit('/').next()?.parse().ok()
}

fn read<T: DeserializeOwned>(entry: &KeyEntry) -> Option<T> {
    serde_json::from_slice(&entry.value).ok()
}

/// A grant as it is kept.
pub(crate) fn written(grant: &Grant) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(grant)
}
