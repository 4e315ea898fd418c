//! This host among others: peers that an operator names, or the nodes of a cluster.
//!
//! ```text
//! homes    where volumes are at home
//! peers    other hosts as the host's core sees them, asked over the network
//! node     what a node of a cluster does in the background: reports, fences
//! places   nodes for VMs and clones that are to be made
//! volumes  volumes of all nodes
//! tenants  VMs and the room that was handed out for them
//! closed   ports of all these that guests do not reach
//! news     events that the cluster tells of
//! ```

pub mod closed;
mod homes;
mod news;
mod node;
mod peers;
mod places;
mod tenants;
mod volumes;

pub use node::{Fence, Node, Ready};
pub use peers::{Nodes, PeerPorts, PeersFile};
pub use tenants::ForkRooms;

/// Path at which a host has another one make clones.
pub const CLONES: &str = "/v1/peer/clones";

/// Path at which a host has a VM move to another one.
pub const MIGRATIONS: &str = "/v1/peer/migrations";

/// Path at which a host has another one make VMs of a substrate.
pub const ACTIVATIONS: &str = "/v1/peer/activations";
