//! Which VMs this node has, for the other nodes to find.
//!
//! What etcd was told last is remembered, and only what differs is told again.
//! A VM's record and its name go in one transaction: who finds the one finds
//! the other.

use crate::{
    ClusterError,
    membership::{from_json, to_json},
    records::{Named, Placed},
};
use forkyard_allocate::{Book, Offer};
use forkyard_etcd::{Etcd, Keys, Op, Txn};
use forkyard_types::{FamilyId, NodeName, Room, VmId, VmState, VmView};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Steps of one transaction: etcd takes 128.
const STEPS: usize = 120;

/// What etcd was told of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    name: String,
    record: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    told: Option<BTreeMap<VmId, Told>>,
    owners: BTreeMap<FamilyId, String>,
}

/// What the others know of this node's VMs.
#[derive(Debug)]
pub(crate) struct Report {
    etcd: Etcd,
    book: Book,
    node: NodeName,
    state: Mutex<State>,
    /// One at a time.
    turn: tokio::sync::Mutex<()>,
}

impl Report {
    pub fn new(etcd: Etcd, book: Book, node: NodeName) -> Self {
        Self {
            etcd,
            book,
            node,
            state: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// A family is this user's.
    pub fn own(&self, family: FamilyId, user: String) {
        self.lock().owners.insert(family, user);
    }

    /// Whose a family is, as far as is known.
    pub fn owner(&self, family: FamilyId) -> Option<String> {
        self.lock().owners.get(&family).cloned()
    }

    /// What this node's VMs take.
    pub fn sum(&self, vms: &[VmView], offer: &mut Offer) {
        let owners = &self.lock().owners;
        offer.taken = Room::default();
        offer.users.clear();
        offer.vms = u32::try_from(vms.len()).unwrap_or(u32::MAX);
        for vm in vms.iter().filter(|vm| takes_room(vm.state)) {
            let vcpus = u32::from(vm.vcpus_taken());
            offer.taken.vcpus = offer.taken.vcpus.saturating_add(vcpus);
            offer.taken.memory.0 = offer.taken.memory.0.saturating_add(vm.memory.0);
            if let Some(user) = owners.get(&vm.family) {
                *offer.users.entry(user.clone()).or_default() += vcpus;
            }
        }
    }

    /// Tells of these VMs, and of no others any more. Not cancel-safe in what it
    /// remembers: on an error all is told again the next time.
    pub async fn tell(&self, vms: &[VmView]) -> Result<(), ClusterError> {
        let _turn = self.turn.lock().await;
        let known = self.lock().told.take();
        let mut told = match known {
            Some(told) => told,
            None => self.recall().await?,
        };
        let mut next = BTreeMap::new();
        for vm in vms {
            let placed = Placed {
                node: self.node.clone(),
                user: self.owner(vm.family),
                vm: vm.clone(),
            };
            let key = self.book.key("vms", vm.id.as_str());
            let record = to_json(&key, &placed)?;
            let name = vm.name.to_string();
            next.insert(vm.id, Told { name, record });
        }
        let mut ops = Vec::new();
        for (id, now) in &next {
            match told.remove(id) {
                Some(before) if before == *now => {}
                before => {
                    if let Some(before) = before
                        && before.name != now.name
                    {
                        ops.push(Op::Delete(Keys::One(self.name_key(&before.name, *id))));
                    }
                    let named = Named {
                        node: self.node.clone(),
                        vm: Some(*id),
                    };
                    let (key, name) = (
                        self.book.key("vms", id.as_str()),
                        self.name_key(&now.name, *id),
                    );
                    let named = to_json(&name, &named)?;
                    ops.push(Op::Put(key, now.record.clone(), None));
                    ops.push(Op::Put(name, named, None));
                }
            }
        }
        for (id, gone) in told {
            ops.push(Op::Delete(Keys::One(self.book.key("vms", id.as_str()))));
            ops.push(Op::Delete(Keys::One(self.name_key(&gone.name, id))));
        }
        while !ops.is_empty() {
            let some: Vec<_> = ops.drain(..ops.len().min(STEPS)).collect();
            self.etcd
                .txn(Txn {
                    then: some,
                    ..Txn::default()
                })
                .await?;
        }
        self.lock().told = Some(next);
        Ok(())
    }

    /// What an earlier daemon told of this node, and whose families are.
    async fn recall(&self) -> Result<BTreeMap<VmId, Told>, ClusterError> {
        let range = self.etcd.range(&self.book.all("vms")).await?;
        let mut told = BTreeMap::new();
        for entry in range.entries {
            let placed: Placed = match from_json(&entry) {
                Ok(placed) => placed,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "passed over");
                    continue;
                }
            };
            if let Some(user) = placed.user {
                self.lock().owners.entry(placed.vm.family).or_insert(user);
            }
            if placed.node == self.node {
                let name = placed.vm.name.to_string();
                let record = entry.value;
                told.insert(placed.vm.id, Told { name, record });
            }
        }
        Ok(told)
    }

    fn name_key(&self, name: &str, id: VmId) -> String {
        name_key(&self.book, name, id.as_str())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn name_key(book: &Book, name: &str, end: &str) -> String {
    book.key("names", &format!("{name}/{end}"))
}

/// Whether a VM in this state takes any of its node's room.
fn takes_room(state: VmState) -> bool {
    match state {
        VmState::Starting | VmState::Warm | VmState::Running | VmState::Paused => true,
        VmState::Stopped | VmState::Checkpoint | VmState::Ending => false,
    }
}
