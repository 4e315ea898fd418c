//! The allocator that an operator chose.

use crate::{AllocateError, Allocator, Grant, Ledger, Picture, Slurm, Wish};
use forkyard_types::{NodeName, TicketId};

/// Source of grants of a cluster's room.
#[derive(Clone, Debug)]
pub enum Rooms {
    /// The nodes themselves, by a ledger in etcd: VMs that there are, are counted by
    /// themselves, and a grant is for those to come.
    Ledger(Ledger),
    /// Slurm: a grant is for as long as its VMs live.
    Slurm(Slurm),
}

impl Rooms {
    /// The cluster as it is now.
    pub async fn picture(&self) -> Result<Picture, AllocateError> {
        match self {
            Self::Ledger(ledger) => ledger.picture().await,
            Self::Slurm(slurm) => slurm.picture().await,
        }
    }

    /// Lists a node's grants that are still complete.
    pub async fn whole_of(&self, holder: &NodeName) -> Result<Vec<TicketId>, AllocateError> {
        match self {
            Self::Ledger(ledger) => ledger.granted_to(holder).await,
            Self::Slurm(slurm) => slurm.whole_of(holder).await,
        }
    }

    /// Tells whether a grant is to be kept for as long as its VMs live.
    pub fn outlives_making(&self) -> bool {
        match self {
            Self::Ledger(_) => false,
            Self::Slurm(_) => true,
        }
    }
}

impl Allocator for Rooms {
    type Error = AllocateError;

    async fn reserve(&self, holder: &NodeName, wish: &Wish) -> Result<Grant, AllocateError> {
        match self {
            Self::Ledger(ledger) => ledger.reserve(holder, wish).await,
            Self::Slurm(slurm) => slurm.reserve(holder, wish).await,
        }
    }

    async fn release(&self, grant: TicketId) -> Result<(), AllocateError> {
        match self {
            Self::Ledger(ledger) => ledger.release(grant).await,
            Self::Slurm(slurm) => slurm.release(grant).await,
        }
    }

    async fn granted_to(&self, holder: &NodeName) -> Result<Vec<TicketId>, AllocateError> {
        match self {
            Self::Ledger(ledger) => ledger.granted_to(holder).await,
            Self::Slurm(slurm) => slurm.granted_to(holder).await,
        }
    }
}
