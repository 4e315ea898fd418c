//! Records of a cluster in etcd beside the allocator's book.
//!
//! ```text
//! PREFIX/authority        the cluster's authority, and the keeper of its key: Founded
//! PREFIX/nodes/NODE       a Member; there until it is removed
//! PREFIX/invitations/ID   an Invited; goes when it has expired or was used
//! PREFIX/vms/ID           a Placed: a VM as its node last told of it
//! PREFIX/names/NAME/ID    a Named: on which node the VM of that name is, or
//!                         that a node is about to make one
//! PREFIX/families/NUMBER  a Numbered: which family has this number
//! PREFIX/volumes/ID       a VolumeHome: at which node a volume is at home, in which term
//! ```

use forkyard_types::{FamilyId, NodeName, VmId, VmView};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr};

/// Addresses of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAddresses {
    /// Address of the API, by TLS.
    pub api: SocketAddr,
    /// Address at which its pager offers page images to other nodes.
    pub pages: SocketAddr,
    /// End of the tunnels that families' networks go through.
    pub tunnel: Ipv4Addr,
}

/// A cluster was founded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Founded {
    /// Certificate of the node's authority, in PEM.
    pub authority: String,
    /// The node that keeps its key.
    pub keeper: NodeName,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Fingerprint of the certificate: a host that presents it is this node.
    pub fingerprint: String,
    /// Addresses.
    pub reach: NodeAddresses,
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
    /// Node of the VM.
    pub node: NodeName,
    /// Owner; none: the operator.
    pub user: Option<String>,
    /// The VM.
    pub vm: VmView,
}

/// Record of the holder of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    /// On which node.
    pub node: NodeName,
    /// The VM; none if it is still to be made.
    pub vm: Option<VmId>,
}

/// Record of the holder of a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Numbered {
    /// The node that took it, and gives it back.
    pub node: NodeName,
    /// For which family.
    pub family: FamilyId,
}

/// Node of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmWhereabouts {
    /// Node of the family.
    pub node: NodeName,
    /// The VM.
    pub vm: VmId,
}
