//! Keeps this node's lease, and what it says of itself with it.

use crate::{
    ClusterError, NodeAddresses, Standing, Tenure,
    membership::{from_json, to_json},
    records::Member,
};
use forkyard_etcd::{Compare, Etcd, EtcdError, LeaseId, Op, Txn};
use forkyard_placement::{Book, Offer};
use forkyard_types::NodeName;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// State of the keeper.
#[derive(Debug)]
struct Kept {
    tenure: Tenure,
    lease: Option<LeaseId>,
    /// Offer of this node, and the one that etcd was told last.
    offer: Offer,
    told: Option<Offer>,
}

/// This node's lease.
#[derive(Debug)]
pub(crate) struct Keeper {
    etcd: Etcd,
    book: Book,
    name: NodeName,
    reach: NodeAddresses,
    fingerprint: String,
    length: Duration,
    kept: Mutex<Kept>,
    /// Told when the standing may have changed for the better.
    renewed: watch::Sender<()>,
}

impl Keeper {
    pub fn new(
        etcd: Etcd,
        book: Book,
        (name, reach, fingerprint): (NodeName, NodeAddresses, String),
        length: Duration,
        offer: Offer,
    ) -> Self {
        Self {
            etcd,
            book,
            name,
            reach,
            fingerprint,
            length,
            kept: Mutex::new(Kept {
                tenure: Tenure::new(length),
                lease: None,
                offer,
                told: None,
            }),
            renewed: watch::Sender::new(()),
        }
    }

    /// Returns the standing of this node at this moment.
    pub fn standing(&self) -> Standing {
        self.lock().tenure.standing(Instant::now())
    }

    /// The lease, if there is one.
    pub fn lease(&self) -> Option<LeaseId> {
        self.lock().lease
    }

    /// Returns once this node stands so that `wanted` holds. Cancel-safe.
    pub async fn wait(&self, wanted: impl Fn(Standing) -> bool) {
        let mut renewed = self.renewed.subscribe();
        loop {
            let standing = self.standing();
            if wanted(standing) {
                return;
            }
            let look = match standing {
                Standing::Holding { until } => until,
                Standing::Fenced | Standing::Removed => Instant::now() + self.length,
            };
            tokio::select! {
                // The sender lives as long as this.
                _ = renewed.changed() => {}
                () = tokio::time::sleep_until(look.into()) => {}
            }
        }
    }

    /// Changes what is said of this node from now on.
    pub fn say(&self, change: impl FnOnce(&mut Offer)) {
        change(&mut self.lock().offer);
    }

    /// Keeps the lease for ever. Cancel-safe; cancelled, the lease runs out.
    pub async fn keep(&self) {
        loop {
            self.turn().await;
            let pace = self.lock().tenure.pace();
            tokio::time::sleep(pace).await;
        }
    }

    /// One turn: renews the lease, or gets one.
    pub async fn turn(&self) {
        // A turn that takes longer has renewed nothing in time.
        let turn = tokio::time::timeout(self.length / 3, self.try_turn()).await;
        match turn {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "lease not renewed"
                );
            }
            Err(_) => tracing::warn!("lease not renewed in time"),
        }
        self.renewed.send_replace(());
    }

    async fn try_turn(&self) -> Result<(), ClusterError> {
        let (lease, standing) = {
            let kept = self.lock();
            (kept.lease, kept.tenure.standing(Instant::now()))
        };
        if standing == Standing::Removed {
            return Ok(());
        }
        let asked = Instant::now();
        let lease = match lease {
            Some(lease) => match self.etcd.keep_alive(lease).await {
                Ok(()) => lease,
                Err(EtcdError::LeaseGone) => {
                    let mut kept = self.lock();
                    kept.tenure.lapsed();
                    (kept.lease, kept.told) = (None, None);
                    tracing::warn!("the lease has run out");
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            },
            None => self.etcd.grant(self.length).await?,
        };
        self.tell_with(lease).await?;
        let mut kept = self.lock();
        kept.lease = Some(lease);
        kept.tenure.renewed(asked);
        Ok(())
    }

    /// Tells etcd what is to be said of this node, if that has changed.
    pub async fn tell(&self) -> Result<(), ClusterError> {
        match self.lease() {
            Some(lease) => self.tell_with(lease).await,
            None => Ok(()),
        }
    }

    async fn tell_with(&self, lease: LeaseId) -> Result<(), ClusterError> {
        let (offer, told) = {
            let kept = self.lock();
            (kept.offer.clone(), kept.told.clone())
        };
        if told.as_ref() == Some(&offer) {
            return Ok(());
        }
        let node = self.book.key("nodes", self.name.as_str());
        let key = self.book.offer(&self.name);
        let Some(entry) = self.etcd.get(&node).await? else {
            return self.was_removed();
        };
        let member: Member = from_json(&entry)?;
        if member.fingerprint != self.fingerprint {
            return self.was_removed();
        }
        let mut then = vec![Op::Put(key.clone(), to_json(&key, &offer)?, Some(lease))];
        if member.reach != self.reach {
            let member = Member {
                reach: self.reach,
                ..member
            };
            then.push(Op::Put(node.clone(), to_json(&node, &member)?, None));
        }
        let outcome = self.etcd.txn(Txn {
            when: vec![Compare::Unchanged(node, entry.changed)],
            then,
            otherwise: Vec::new(),
        });
        if !outcome.await?.held {
            return Err(ClusterError::Crowded);
        }
        self.lock().told = Some(offer);
        Ok(())
    }

    fn was_removed(&self) -> Result<(), ClusterError> {
        let mut kept = self.lock();
        if kept.tenure.standing(Instant::now()) != Standing::Removed {
            tracing::error!(node = %self.name, "this node was removed from the cluster");
        }
        kept.tenure.removed();
        drop(kept);
        self.renewed.send_replace(());
        Err(ClusterError::Removed {
            node: self.name.clone(),
        })
    }

    /// Checks a claim that this node was removed.
    pub async fn check(&self) {
        self.lock().told = None;
        if let Err(error) = self.tell().await {
            tracing::debug!(error = &error as &dyn std::error::Error, "not told");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
