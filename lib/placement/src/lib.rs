//! Choice of nodes for clones.
//!
//! ```text
//! Allocator   reserve a wish, release a grant
//! policy      a picture of the cluster and a wish --> places, or why there are none
//! Book        where the picture is kept: keys, and what is in them
//! Ledger      the allocator on etcd: read the picture, decide, and write the
//!             grant if nothing was granted meanwhile, or else begin again
//! Slurm       the allocator on Slurm: a grant is an allocation of Slurm's
//! Rooms       either of them
//! ```
//!
//! The policy is pure. Of a wish for n clones, m ≤ n may be granted, as a
//! ticket of the paper (SnowFlock, section 2.1) promises m ≤ n.

mod book;
mod ledger;
pub mod policy;
mod rooms;
pub mod slurm;

pub use book::{Book, Offer};
pub use ledger::{AllocateError, Ledger};
pub use policy::{CloneLayout, CloneNeed, Picture, PlacementDenied, Wish};
pub use rooms::Rooms;
pub use slurm::{Slurm, SlurmError};

use forkyard_types::{NodeName, TicketId};
use serde::{Deserialize, Serialize};

/// Clones on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClones {
    /// The node.
    pub node: NodeName,
    /// Number of clones; not 0.
    pub clones: u16,
}

/// Grant of room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Id of the grant.
    pub id: TicketId,
    /// User; none if it counts against no quota.
    pub user: Option<String>,
    /// Node that asked for it, and gives it back.
    pub holder: NodeName,
    /// Room that each clone takes.
    pub need: CloneNeed,
    /// Nodes and their shares; each node once.
    pub places: Vec<NodeClones>,
}

impl Grant {
    /// Clones granted.
    pub fn count(&self) -> u16 {
        self.places.iter().map(|place| place.clones).sum()
    }

    /// Those granted on a node.
    pub fn on(&self, node: &NodeName) -> u16 {
        let here = self.places.iter().filter(|place| place.node == *node);
        here.map(|place| place.clones).sum()
    }
}

/// Source of grants of room. What was granted is taken until it is released, or
/// until its holder is lost.
pub trait Allocator {
    /// Reason why nothing was granted.
    type Error;

    /// Grants as much of a wish as there is room for, on behalf of a node. What was
    /// granted and not heard of, because this was cancelled or its answer lost, is
    /// among what [`Allocator::granted_to`] tells.
    fn reserve(
        &self,
        holder: &NodeName,
        wish: &Wish,
    ) -> impl Future<Output = Result<Grant, Self::Error>> + Send;

    /// Gives back what was granted; no error if it was given back before.
    fn release(&self, grant: TicketId) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Lists the grants that a node received and has not given back.
    fn granted_to(
        &self,
        holder: &NodeName,
    ) -> impl Future<Output = Result<Vec<TicketId>, Self::Error>> + Send;
}
