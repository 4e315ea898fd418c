//! The allocator on etcd. There is no process that allocates: a node that needs
//! room reads the picture, decides, and writes the grant in a transaction that
//! holds only if no node has granted anything since. Of two at once one wins
//! and the other decides again, so one of them always gets on.

use crate::{Allocator, Book, Grant, Picture, PlacementDenied, SlurmError, Wish, book::written};
use forkyard_etcd::{Compare, Etcd, EtcdError, KeyEntry, Keys, LeaseId, Op, Revision, Txn};
use forkyard_types::{NodeName, TicketId};

/// Times that others may be quicker. Each time one of them was granted
/// something.
const TRIES: u32 = 200;

/// Reason why nothing was granted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocateError {
    /// There is no room, or it may not be taken.
    #[error(transparent)]
    Denied(#[from] PlacementDenied),
    /// Others were always quicker.
    #[error(
        "no room was reserved in {TRIES} attempts: other requests were granted some at each; try again"
    )]
    Crowded,
    /// etcd cannot be used.
    #[error("room cannot be reserved")]
    Etcd(#[from] EtcdError),
    /// Slurm cannot be used, or does not give what there is room for.
    #[error("Slurm allocates no room")]
    Slurm(#[from] SlurmError),
    /// The grant cannot be written down.
    #[error("the grant cannot be recorded")]
    Unwritable(#[from] serde_json::Error),
}

/// The allocator on etcd.
#[derive(Clone, Debug)]
pub struct Ledger {
    etcd: Etcd,
    book: Book,
    /// Grants go with it.
    lease: Option<LeaseId>,
}

impl Ledger {
    /// Reads and writes this book. Grants go with the lease, if one is given.
    pub fn new(etcd: Etcd, book: Book, lease: Option<LeaseId>) -> Self {
        Self { etcd, book, lease }
    }

    /// The cluster as it is now.
    pub async fn picture(&self) -> Result<Picture, AllocateError> {
        Ok(self.look().await?.0)
    }

    async fn look(&self) -> Result<(Picture, Revision), AllocateError> {
        let outcome = self.etcd.txn(Txn {
            then: self.looks(),
            ..Txn::default()
        });
        Ok(self.seen(outcome.await?.found()))
    }

    /// A look at everything, and at the ledger, at once.
    fn looks(&self) -> Vec<Op> {
        let ledger = Keys::One(self.book.ledger());
        let all = self.book.parts().into_iter().chain([ledger]);
        all.map(Op::Get).collect()
    }

    fn seen(&self, mut found: Vec<Vec<KeyEntry>>) -> (Picture, Revision) {
        let ledger = found.pop().unwrap_or_default();
        let changed = ledger.first().map_or(Revision(0), |entry| entry.changed);
        (self.book.picture(&found), changed)
    }
}

impl Allocator for Ledger {
    type Error = AllocateError;

    async fn reserve(&self, holder: &NodeName, wish: &Wish) -> Result<Grant, AllocateError> {
        let (mut picture, mut at) = self.look().await?;
        for _ in 0..TRIES {
            let grant = Grant {
                id: TicketId::random(),
                user: wish.user.clone(),
                holder: holder.clone(),
                need: wish.need,
                places: picture.lay_out(wish)?,
            };
            let outcome = self.etcd.txn(Txn {
                when: vec![Compare::Unchanged(self.book.ledger(), at)],
                then: vec![
                    Op::Put(self.book.ledger(), grant.id.as_str().into(), None),
                    Op::Put(self.book.grant(grant.id), written(&grant)?, self.lease),
                ],
                otherwise: self.looks(),
            });
            let outcome = match outcome.await {
                Ok(outcome) => outcome,
                Err(error) if error.is_unknown() => {
                    // It may have been granted: its key tells.
                    return match self.etcd.get(&self.book.grant(grant.id)).await {
                        Ok(Some(_)) => Ok(grant),
                        Ok(None) | Err(_) => Err(error.into()),
                    };
                }
                Err(error) => return Err(error.into()),
            };
            if outcome.held {
                return Ok(grant);
            }
            (picture, at) = self.seen(outcome.found());
        }
        Err(AllocateError::Crowded)
    }

    async fn release(&self, grant: TicketId) -> Result<(), AllocateError> {
        Ok(self.etcd.delete(&Keys::One(self.book.grant(grant))).await?)
    }

    async fn granted_to(&self, holder: &NodeName) -> Result<Vec<TicketId>, AllocateError> {
        let grants = self.picture().await?.grants.into_iter();
        let own = grants.filter(|grant| grant.holder == *holder);
        Ok(own.map(|grant| grant.id).collect())
    }
}
