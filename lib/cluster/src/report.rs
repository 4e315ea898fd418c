//! VMs of this node, for the other nodes to find.
//!
//! What etcd was told last is remembered, and only what differs is told again.
//! A VM's record and its name go in one transaction: a node that finds the one finds
//! the other.
//!
//! A VM may move to another node, which tells of it from then on, and may do so
//! before this node has told that it has it no longer. So this node puts a new
//! record over whatever is there, but changes and removes only what it put
//! itself; and says nothing of a VM that is leaving.

use crate::{
    ClusterError,
    membership::{from_json, to_json},
    records::{Named, Placed},
};
use forkyard_etcd::{Compare, Etcd, Keys, Op, Revision, Txn};
use forkyard_placement::{Book, Offer};
use forkyard_types::{FamilyId, NodeName, Room, VmId, VmState, VmView};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// VMs of one transaction, of at most three steps each: etcd takes 128.
const AT_ONCE: usize = 40;

/// Record of a VM as etcd has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    name: String,
    record: Vec<u8>,
    /// Revision at which its record was put: if it is another now, another node did.
    at: Revision,
}

/// Change to one VM's record, on condition that it is as it was written last.
#[derive(Debug)]
struct Step {
    id: VmId,
    when: Vec<Compare>,
    then: Vec<Op>,
}

#[derive(Debug, Default)]
struct State {
    told: Option<BTreeMap<VmId, Told>>,
    owners: BTreeMap<FamilyId, String>,
}

/// Account of this node's VMs that the other nodes see.
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

    /// Returns the owner of a family, as far as is known.
    pub fn owner(&self, family: FamilyId) -> Option<String> {
        self.lock().owners.get(&family).cloned()
    }

    /// Sums the room this node's VMs take.
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

    /// Tells of these VMs, and of no others any more; of those that are leaving, nothing. Not
    /// cancel-safe in what it remembers: on an error all is told again the next time.
    pub async fn tell(&self, vms: &[VmView], leaving: &BTreeSet<VmId>) -> Result<(), ClusterError> {
        let _turn = self.turn.lock().await;
        let known = self.lock().told.take();
        let mut told = match known {
            Some(told) => told,
            None => self.recall().await?,
        };
        let mut next: BTreeMap<_, _> = { leaving.iter() }
            .filter_map(|id| told.remove_entry(id))
            .collect();
        let mut steps = Vec::new();
        for vm in vms.iter().filter(|vm| !leaving.contains(&vm.id)) {
            let before = told.remove(&vm.id);
            let now = self.record(vm, before.as_ref())?;
            if before.as_ref() != Some(&now) {
                steps.push(self.put(vm.id, &now, before)?);
            }
            next.insert(vm.id, now);
        }
        for (id, gone) in &told {
            steps.push(Step {
                id: *id,
                when: vec![Compare::Unchanged(self.key(*id), gone.at)],
                then: [self.key(*id), self.name_key(&gone.name, *id)]
                    .map(|key| Op::Delete(Keys::One(key)))
                    .into(),
            });
        }
        while !steps.is_empty() {
            let some = steps.drain(..steps.len().min(AT_ONCE)).collect();
            for (id, at) in self.say(some).await? {
                if let Some(told) = next.get_mut(&id) {
                    told.at = at;
                }
            }
        }
        self.lock().told = Some(next);
        Ok(())
    }

    /// Builds the record to write for a VM, as if it were written already.
    fn record(&self, vm: &VmView, before: Option<&Told>) -> Result<Told, ClusterError> {
        let placed = Placed {
            node: self.node.clone(),
            user: self.owner(vm.family),
            vm: vm.clone(),
        };
        Ok(Told {
            name: vm.name.to_string(),
            record: to_json(&self.key(vm.id), &placed)?,
            at: before.map_or(Revision(0), |before| before.at),
        })
    }

    fn put(&self, id: VmId, now: &Told, before: Option<Told>) -> Result<Step, ClusterError> {
        let (key, name) = (self.key(id), self.name_key(&now.name, id));
        let named = Named {
            node: self.node.clone(),
            vm: Some(id),
        };
        let named = to_json(&name, &named)?;
        let mut step = Step {
            id,
            when: Vec::new(),
            then: vec![
                Op::Put(key.clone(), now.record.clone(), None),
                Op::Put(name, named, None),
            ],
        };
        if let Some(before) = before {
            step.when.push(Compare::Unchanged(key, before.at));
            if before.name != now.name {
                let former = self.name_key(&before.name, id);
                step.then.push(Op::Delete(Keys::One(former)));
            }
        }
        Ok(step)
    }

    /// Says these together, or else each that may be said by itself. Answers which were, and
    /// when.
    async fn say(&self, steps: Vec<Step>) -> Result<Vec<(VmId, Revision)>, ClusterError> {
        let all = |steps: &[Step]| Txn {
            when: steps.iter().flat_map(|it| it.when.clone()).collect(),
            then: steps.iter().flat_map(|it| it.then.clone()).collect(),
            ..Txn::default()
        };
        let outcome = self.etcd.txn(all(&steps)).await?;
        if outcome.held {
            let said = steps.iter().map(|step| (step.id, outcome.revision));
            return Ok(said.collect());
        }
        let mut said = Vec::new();
        for step in &steps {
            let outcome = self.etcd.txn(all(std::slice::from_ref(step))).await?;
            match outcome.held {
                true => said.push((step.id, outcome.revision)),
                false => tracing::debug!(vm = %step.id, "another node tells of it"),
            }
        }
        Ok(said)
    }

    fn key(&self, id: VmId) -> String {
        self.book.key("vms", id.as_str())
    }

    /// Reads the records an earlier daemon wrote of this node, and the owners
    /// of families.
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
                let (record, at) = (entry.value, entry.changed);
                told.insert(placed.vm.id, Told { name, record, at });
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

/// Tells whether a VM in this state takes any of its node's room.
fn takes_room(state: VmState) -> bool {
    match state {
        VmState::Starting | VmState::Warm | VmState::Running | VmState::Paused => true,
        VmState::Stopped | VmState::Checkpoint | VmState::Ending => false,
    }
}
