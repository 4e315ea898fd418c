//! What is kept of a cluster in etcd beside the allocator's book.
//!
//! ```text
//! PREFIX/authority        the cluster's authority, and who keeps its key: Founded
//! PREFIX/nodes/NODE       a Member; there until it is removed
//! PREFIX/invitations/ID   an Invited; goes when it has expired or was used
//! PREFIX/vms/ID           a Placed: a VM as its node last told of it
//! PREFIX/names/NAME/ID    a Named: on which node the VM of that name is, or
//!                         that somebody is about to make one
//! PREFIX/families/NUMBER  a Numbered: which family has this number
//! ```

use forkyard_types::{FamilyId, NodeName, VmId, VmView};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr};

/// Where a node is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// Its API, by TLS.
    pub api: SocketAddr,
    /// Where its pager offers page images to other nodes.
    pub pages: SocketAddr,
    /// Its end of the tunnels that families' networks go through.
    pub tunnel: Ipv4Addr,
}

/// A cluster was founded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Founded {
    /// Its authority's certificate, in PEM.
    pub authority: String,
    /// The node that keeps its key.
    pub keeper: NodeName,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Its certificate's fingerprint: who shows it is this node.
    pub fingerprint: String,
    /// Where it is reached.
    pub reach: Reach,
    /// Seconds since 1970 at which it joined.
    pub joined: u64,
}

/// A host was invited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Invited {
    /// BLAKE3 of the secret, in hexadecimal.
    pub hash: String,
}

/// A VM, and where it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Placed {
    /// Its node.
    pub node: NodeName,
    /// Whose it is.
    pub user: Option<String>,
    /// The VM.
    pub vm: VmView,
}

/// Who has a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    /// On which node.
    pub node: NodeName,
    /// The VM; none if it is still to be made.
    pub vm: Option<VmId>,
}

/// Who has a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Numbered {
    /// The node that took it, and gives it back.
    pub node: NodeName,
    /// For which family.
    pub family: FamilyId,
}

/// Where a VM is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// Its node.
    pub node: NodeName,
    /// The VM.
    pub vm: VmId,
}
