//! A cluster: hosts whose daemons know each other, and where each VM is.
//!
//! ```text
//! Tenure      whether this node may act for the cluster: it holds its lease, or not
//! Roll        the nodes, and those that are alive; follows etcd
//! Invitation  how a host becomes a node; the authority signs for it
//! Cluster     all of that, wired: nodes, places for clones, clients of other nodes
//! report      which VMs this node has, for the others to find
//! volumes     at which node each volume is at home
//! ```
//!
//! Everything shared is in etcd, whose transactions are the only arbiter. A
//! node's records are written by that node alone, and by the node that removes it.
//! Starts no VM and stops none.

mod admin;
mod cluster;
mod error;
mod invitation;
mod keeper;
mod membership;
mod news;
mod numbers;
mod places;
mod records;
mod report;
mod roll;
mod tenancy;
mod tenure;
#[cfg(test)]
mod testing;
mod volumes;

pub use admin::Force;
pub use cluster::{Allocation, Cluster, PlainEtcd, Settings};
pub use error::ClusterError;
pub use forkyard_etcd::Endpoint;
pub use forkyard_placement::{CloneLayout, CloneNeed, Grant, NodeClones, PlacementDenied, Wish};
pub use invitation::{InvalidInvitation, Token};
pub use membership::is_of_node;
pub use news::{NodeStates, news};
pub use places::{Claim, Reservation};
pub use records::{NodeAddresses, VmWhereabouts};
pub use tenancy::Kept;
pub use tenure::{Standing, Tenure};
pub use volumes::VolumeHome;
