//! The allocator on Slurm: what is granted is an allocation of Slurm's, and ends
//! with it.
//!
//! ```text
//! scontrol show nodes, squeue --> picture --policy--> places --salloc--> the allocation
//! ```
//!
//! Slurm keeps the room, and its own limits; quotas and draining nodes are the
//! cluster's, and where clones go is decided by the same policy. Asked for is
//! exactly what was decided, an allocation for each node, at once or not at all:
//! another node may have been quicker, and then it is decided again. Nodes are called in
//! Slurm what they are called in the cluster.

mod command;
mod parse;
pub mod server;

pub use command::SlurmError;

use crate::{AllocateError, Allocator, Grant, Ledger, NodeClones, Offer, Picture, Wish};
use command::Commands;
use forkyard_types::{NodeName, TicketId};
use parse::{Held, Whose, grants, nodes};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// Before the id of every grant, in its allocation's name.
const NAME: &str = "forkyard-";
/// Times that Slurm may refuse what there was room for.
const TRIES: u32 = 4;
/// Before it is decided again.
const AGAIN: Duration = Duration::from_millis(500);
/// Seconds in which Slurm finds room, or says that it does not.
const IMMEDIATE: &str = "--immediate=2";

/// The allocator on Slurm.
#[derive(Clone, Debug)]
pub struct Slurm {
    /// Ledger of quotas and of draining nodes.
    ledger: Ledger,
    partition: Option<String>,
    commands: Commands,
}

impl Slurm {
    /// Allocates in a partition, or in Slurm's default one.
    pub fn new(ledger: Ledger, partition: Option<String>) -> Self {
        Self {
            ledger,
            partition,
            commands: Commands::default(),
        }
    }

    /// The Slurm of this configuration, rather than the one that this host has.
    pub fn of(self, conf: PathBuf) -> Self {
        Self {
            commands: Commands::of(conf),
            ..self
        }
    }

    /// The cluster as it is now: its nodes that Slurm has, with the room that Slurm
    /// sees.
    pub async fn picture(&self) -> Result<Picture, AllocateError> {
        Ok(self.look().await?.0)
    }

    /// Lists a node's grants that are still complete: a grant of several nodes ends
    /// with the first of its allocations that does.
    pub async fn whole_of(&self, holder: &NodeName) -> Result<Vec<TicketId>, AllocateError> {
        let grants = self.grants().await?.into_iter();
        let own = grants.filter(|(_, held)| held.whose.holder == *holder && held.is_whole());
        Ok(own.map(|(grant, _)| grant).collect())
    }

    async fn look(&self) -> Result<(Picture, BTreeMap<TicketId, Held>), AllocateError> {
        let (picture, nodes, grants) =
            tokio::join!(self.ledger.picture(), self.nodes(), self.grants());
        let (mut picture, nodes, grants) = (picture?, nodes?, grants?);
        // All that is taken is taken in Slurm, for as long as it is.
        picture.grants.clear();
        let mut taken: BTreeMap<String, u32> = BTreeMap::new();
        for whose in grants.values().map(|held| &held.whose) {
            if let Some(user) = &whose.user {
                *taken.entry(user.clone()).or_default() += whose.vcpus;
            }
        }
        for (name, offer) in std::mem::take(&mut picture.offers) {
            let Some(node) = nodes.get(&name) else {
                continue;
            };
            if node.draining {
                picture.draining.insert(name.clone());
            }
            let offer = Offer {
                offers: node.offers,
                taken: node.taken,
                // Wherever they are: the sum is what counts.
                users: std::mem::take(&mut taken),
                ..offer
            };
            picture.offers.insert(name, offer);
        }
        Ok((picture, grants))
    }

    async fn nodes(&self) -> Result<BTreeMap<NodeName, parse::Node>, SlurmError> {
        let words = ["--oneliner", "show", "nodes"];
        let shown = self.commands.run("scontrol", &words).await?;
        Ok(nodes(&shown, self.partition.as_deref()))
    }

    async fn grants(&self) -> Result<BTreeMap<TicketId, Held>, SlurmError> {
        Ok(grants(&self.commands.squeue(parse::FORMAT).await?, NAME))
    }

    /// Has Slurm allocate exactly this: one allocation for each node, for of one that
    /// spans several Slurm itself would choose how much of it is where.
    async fn allocate(&self, grant: &Grant) -> Result<(), SlurmError> {
        let parts = grant.places.iter().map(|place| self.part(grant, place));
        let outcomes = futures::future::join_all(parts).await;
        outcomes.into_iter().collect()
    }

    async fn part(&self, grant: &Grant, place: &NodeClones) -> Result<(), SlurmError> {
        let vcpus = u32::from(grant.need.vcpus.max(1));
        let whose = Whose {
            holder: grant.holder.clone(),
            parts: grant.places.len(),
            vcpus: vcpus.saturating_mul(grant.count().into()),
            user: grant.user.clone(),
        };
        let mib = grant.need.memory.0.div_ceil(1 << 20);
        let mut words = vec![
            "--no-shell".to_owned(),
            IMMEDIATE.to_owned(),
            "--nodes=1".to_owned(),
            format!("--nodelist={}", place.node),
            format!("--ntasks={}", place.clones),
            format!("--cpus-per-task={vcpus}"),
            format!("--mem={}M", mib.saturating_mul(place.clones.into())),
            format!("--job-name={}", name(grant.id)),
            format!("--comment={}", whose.to_comment()),
        ];
        let partition = self.partition.iter();
        words.extend(partition.map(|partition| format!("--partition={partition}")));
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        self.commands.run("salloc", &words).await.map(drop)
    }

    /// Tells whether a grant keeps within its user's quota. Of several made of one
    /// picture, Slurm's numbers tell which was first.
    async fn keeps_quota(&self, grant: &Grant) -> Result<bool, AllocateError> {
        let Some(user) = &grant.user else {
            return Ok(true);
        };
        let (picture, grants) = self.look().await?;
        let Some(limit) = picture.quotas.get(user) else {
            return Ok(true);
        };
        let own = grants.get(&grant.id).map_or(u64::MAX, |held| held.first);
        let before = grants
            .values()
            .filter(|held| held.whose.user.as_ref() == Some(user) && held.first <= own);
        let taken = before.map(|held| held.whose.vcpus);
        Ok(taken.fold(0, u32::saturating_add) <= *limit)
    }
}

impl Allocator for Slurm {
    type Error = AllocateError;

    async fn reserve(&self, holder: &NodeName, wish: &Wish) -> Result<Grant, AllocateError> {
        let mut refusal = None;
        for _ in 0..TRIES {
            let grant = Grant {
                id: TicketId::random(),
                user: wish.user.clone(),
                holder: holder.clone(),
                need: wish.need,
                places: self.picture().await?.lay_out(wish)?,
            };
            match self.allocate(&grant).await {
                Ok(()) if self.keeps_quota(&grant).await? => return Ok(grant),
                Ok(()) => {}
                // Others were quicker, or Slurm knows more than it shows.
                Err(error @ SlurmError::Failed { .. }) => refusal = Some(error),
                Err(error) => {
                    self.release(grant.id).await?;
                    return Err(error.into());
                }
            }
            self.release(grant.id).await?;
            tokio::time::sleep(AGAIN).await;
        }
        Err(refusal.map_or(AllocateError::Crowded, AllocateError::Slurm))
    }

    async fn release(&self, grant: TicketId) -> Result<(), AllocateError> {
        // Says nothing of one that has ended.
        let words = ["--quiet", &format!("--name={}", name(grant))];
        self.commands.run("scancel", &words).await?;
        Ok(())
    }

    async fn granted_to(&self, holder: &NodeName) -> Result<Vec<TicketId>, AllocateError> {
        let grants = self.grants().await?.into_iter();
        let own = grants.filter(|(_, held)| held.whose.holder == *holder);
        Ok(own.map(|(grant, _)| grant).collect())
    }
}

fn name(grant: TicketId) -> String {
    format!("{NAME}{grant}")
}
