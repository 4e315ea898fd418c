//! Room and names that this node has taken in the cluster, and gives back.

use crate::{
    Cluster, ClusterError, Grant, VmWhereabouts, Wish,
    cluster::Shared,
    membership::{from_json, to_json},
    records::{Named, Placed},
    report::name_key,
};
use forkyard_etcd::{Compare, Keys, Op, Txn};
use forkyard_placement::Allocator;
use forkyard_types::{NodeName, TicketId, VmId, VmName};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Time after which a grant without a holder is given back: the answer to the
/// node that asked for it was lost.
const FORGOTTEN: Duration = Duration::from_secs(30);
/// Before etcd is tried again.
const AGAIN: Duration = Duration::from_secs(1);

impl Cluster {
    /// Reserves what is wished for, or a part of it. It is held until it is
    /// dropped, or until this node is lost. Cancel-safe: what is not held is
    /// given back before long.
    pub async fn reserve(&self, wish: &Wish) -> Result<Reservation, ClusterError> {
        self.may_act()?;
        let shared = self.shared();
        let grant = shared.rooms().reserve(&shared.name, wish).await?;
        shared.taken().held.insert(grant.id);
        let shared = shared.clone();
        Ok(Reservation { grant, shared })
    }

    /// Finds the VM of this name or id, if any node has told of it. Of
    /// several of one name, the one that was told of first.
    pub async fn find(&self, word: &str) -> Result<Option<VmWhereabouts>, ClusterError> {
        let shared = self.shared();
        if word.is_empty() || word.contains('/') {
            return Ok(None);
        }
        let (id, names) = (
            shared.book.key("vms", word),
            Keys::Prefix(name_key(&shared.book, word, "")),
        );
        let outcome = shared.etcd.txn(Txn {
            then: vec![Op::Get(Keys::One(id)), Op::Get(names)],
            ..Txn::default()
        });
        let mut found = outcome.await?.found().into_iter();
        if let Some(entry) = found.next().unwrap_or_default().first() {
            let Placed { node, vm, .. } = from_json(entry)?;
            return Ok(Some(VmWhereabouts { node, vm: vm.id }));
        }
        let mut named = found.next().unwrap_or_default();
        named.sort_by_key(|entry| entry.created);
        for entry in &named {
            let Named { node, vm } = from_json(entry)?;
            if let Some(vm) = vm {
                return Ok(Some(VmWhereabouts { node, vm }));
            }
        }
        Ok(None)
    }

    /// Keeps a name for a VM that is about to be made here, until dropped. An
    /// error if a VM has it, anywhere.
    pub async fn claim(&self, name: &VmName) -> Result<Claim, ClusterError> {
        self.may_act()?;
        let shared = self.shared();
        let all = Keys::Prefix(name_key(&shared.book, name.as_str(), ""));
        let id = TicketId::random();
        let key = name_key(&shared.book, name.as_str(), id.as_str());
        let mine = Named {
            node: shared.name.clone(),
            vm: None,
        };
        let outcome = shared.etcd.txn(Txn {
            when: vec![Compare::Absent(all.clone())],
            then: vec![Op::Put(
                key.clone(),
                to_json(&key, &mine)?,
                shared.keeper.lease(),
            )],
            otherwise: vec![Op::Get(all)],
        });
        let outcome = outcome.await?;
        if outcome.held {
            let shared = shared.clone();
            return Ok(Claim { key, shared });
        }
        let taken = outcome.found().concat();
        let node = match taken.first() {
            Some(entry) => from_json::<Named>(entry)?.node,
            None => shared.name.clone(),
        };
        let name = name.clone();
        Err(ClusterError::VmNameTaken { name, node })
    }
}

/// Room that is reserved, until dropped.
#[derive(Debug)]
pub struct Reservation {
    grant: Grant,
    shared: Arc<Shared>,
}

impl Reservation {
    /// Returns the grant.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Returns the node that reserved it.
    pub fn holder(&self) -> &NodeName {
        &self.grant.holder
    }

    /// Tells whether none of it is on the node that reserved it.
    pub fn is_elsewhere(&self) -> bool {
        self.grant.on(self.holder()) == 0
    }

    /// These VMs were made of it. Where VMs count by themselves it is given back now;
    /// else once none of them is left: see [`Cluster::kept`].
    pub fn settle(self, vms: BTreeSet<VmId>) {
        if self.shared.rooms().outlives_making() && !vms.is_empty() {
            self.shared.keep(self.grant.id, vms);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut taken = self.shared.taken();
        taken.held.remove(&self.grant.id);
        if taken.kept.contains_key(&self.grant.id) {
            return;
        }
        taken.spent.insert(self.grant.id);
        self.shared.dropped.notify_one();
    }
}

/// A name that is kept for a VM about to be made, until dropped.
#[derive(Debug)]
pub struct Claim {
    key: String,
    shared: Arc<Shared>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let (shared, key) = (self.shared.clone(), std::mem::take(&mut self.key));
        // Where nothing runs any more, it goes with the node's lease.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = shared.etcd.delete(&Keys::One(key)).await {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "a name is kept on"
                    );
                }
            });
        }
    }
}

impl Shared {
    /// Gives back what was dropped, and what was not held for a while, for
    /// ever. Cancel-safe.
    pub async fn tidy(&self) {
        let (mut unheld, mut unused) = (BTreeSet::new(), BTreeSet::new());
        let mut sweep = tokio::time::interval(FORGOTTEN);
        loop {
            let outcome = tokio::select! {
                () = self.dropped.notified() => self.release_spent().await,
                _ = sweep.tick() => match self.release_forgotten(&mut unheld).await {
                    Ok(()) => self.release_numbers(&mut unused).await,
                    failed => failed,
                },
            };
            if let Err(error) = outcome {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "room not given back"
                );
                tokio::time::sleep(AGAIN).await;
                self.dropped.notify_one();
            }
        }
    }

    async fn release_spent(&self) -> Result<(), ClusterError> {
        let spent: Vec<_> = self.taken().spent.iter().copied().collect();
        for grant in spent {
            self.rooms().release(grant).await?;
            self.taken().spent.remove(&grant);
        }
        Ok(())
    }

    /// One that is found without a holder twice in a row was not just being granted.
    async fn release_forgotten(&self, unheld: &mut BTreeSet<TicketId>) -> Result<(), ClusterError> {
        let granted = self.rooms().granted_to(&self.name).await?;
        let now: BTreeSet<_> = {
            let taken = self.taken();
            let unheld = granted
                .into_iter()
                .filter(|id| !taken.held.contains(id) && !taken.kept.contains_key(id));
            unheld.collect()
        };
        for grant in now.intersection(unheld) {
            self.rooms().release(*grant).await?;
        }
        *unheld = now;
        Ok(())
    }
}
