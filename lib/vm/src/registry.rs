//! The VMs of a host: their names, which numbers are taken, which disk
//! slices are in use. Bookkeeping only.

use crate::{Vm, VmError, events, lock};
use forkyard_disk::Chains;
use forkyard_events::Broadcast;
use forkyard_records::{RecordsError, VmRecord};
use forkyard_types::{FIRST_FAMILY_GID, VM_UIDS, VmId};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

/// Group of a family's QEMUs.
pub fn gid(number: forkyard_records::FamilyNo) -> u32 {
    FIRST_FAMILY_GID + u32::from(number.0)
}

/// The VMs of a host.
#[derive(Debug, Default)]
pub struct Registry {
    /// Broadcast of their coming, changing and going.
    events: Broadcast,
    /// True if changes are announced: not while VMs of an earlier daemon are
    /// taken over.
    announces: bool,
    vms: BTreeMap<VmId, Arc<Vm>>,
    uids: Uids,
    chains: Chains,
}

type Uids = Arc<Mutex<BTreeSet<u32>>>;

/// A user that no other QEMU runs as: given back when dropped, unless a record
/// keeps it.
#[derive(Debug)]
pub struct Uid {
    uid: u32,
    uids: Option<Uids>,
}

impl Uid {
    /// Returns the number.
    /// A VM by its id.
    pub fn get(&self) -> u32 {
        self.uid
    }

    /// Leaves it to a record, which gives it back when it goes.
    pub fn keep(mut self) -> u32 {
        self.uids = None;
        self.uid
    }
}

impl Drop for Uid {
    fn drop(&mut self) {
        if let Some(uids) = &self.uids {
            lock(uids).remove(&self.uid);
        }
    }
}

impl Registry {
    /// No VM; what changes is told here once it is announced.
    pub fn new(events: Broadcast) -> Self {
        Self {
            events,
            ..Self::default()
        }
    }

    /// Tells of VMs from here on.
    pub fn announce(&mut self) {
        self.announces = true;
        for vm in self.vms.values() {
            vm.tell(&self.events);
        }
    }

    /// A user no other QEMU runs as.
    pub fn take_uid(&mut self) -> Result<Uid, RecordsError> {
        let mut taken = lock(&self.uids);
        let mut users = VM_UIDS;
        let free = users.find(|uid| !taken.contains(uid));
        let uid = free.ok_or(RecordsError::Exhausted {
            what: "VM",
            limit: VM_UIDS.end - VM_UIDS.start,
        })?;
        taken.insert(uid);
        let uids = Some(self.uids.clone());
        Ok(Uid { uid, uids })
    }

    /// Gives back the user that a record kept.
    pub fn give_back_uid(&mut self, uid: u32) {
        lock(&self.uids).remove(&uid);
    }

    /// Counts a recorded VM's or shell's user and slices as taken.
    pub fn occupy(&mut self, record: &VmRecord) {
        lock(&self.uids).insert(record.uid);
        let mut under: Option<&PathBuf> = None;
        for slice in record.chain.iter().rev() {
            // Known already if it is shared with a relative.
            if let Err(error) = self.chains.add_slice(slice, under.map(PathBuf::as_path)) {
                tracing::trace!(%error, "slice known");
            }
            under = Some(slice);
        }
        if let Some(top) = record.chain.first()
            && let Err(error) = self.chains.attach(record.id, top)
        {
            tracing::error!(vm = %record.id, %error, "disk chain cannot be followed");
        }
    }

    /// Notes that a VM writes to another of the slices known, and names those
    /// that are not needed any more.
    pub fn move_to(&mut self, vm: VmId, slice: &Path) -> Vec<PathBuf> {
        let unused = self.chains.attach(vm, slice);
        unused.unwrap_or_else(|error| {
            tracing::error!(%vm, %error, "disk chain cannot be followed");
            Vec::new()
        })
    }

    /// Frozen slices of a VM, the upper ones first, and how many VMs have each.
    pub fn frozen(&self, vm: VmId) -> Vec<(PathBuf, usize)> {
        let frozen = self.chains.chain_of(vm).into_iter().skip(1);
        frozen
            .map(|slice| (slice.to_owned(), self.chains.users(slice)))
            .collect()
    }

    /// Notes that a VM's active slice lies over this lower one from here on,
    /// and names the slices that are not needed any more.
    pub fn shorten(&mut self, vm: VmId, onto: &Path) -> Vec<PathBuf> {
        self.chains.shorten(vm, onto)
    }

    /// Notes that a VM's active slice lies over none from here on, and names the slices that are not
    /// needed any more.
    pub fn part(&mut self, vm: VmId) -> Vec<PathBuf> {
        self.chains.part(vm)
    }

    /// Gives back what a VM or shell had, all but its user, and names the slices
    /// that are not needed. Its user stays its own until its record has gone: no two
    /// records may have one.
    pub fn vacate(&mut self, record: &VmRecord) -> Vec<PathBuf> {
        let vm = self.vms.remove(&record.id);
        if let Some(vm) = vm.filter(|_| self.announces) {
            events::removed(&self.events, &vm.record());
        }
        self.chains.detach(record.id)
    }

    /// Lists a VM from here on.
    pub fn insert(&mut self, vm: Arc<Vm>) {
        let known = self.vms.insert(vm.id, vm.clone());
        if !self.announces {
            return;
        }
        vm.tell(&self.events);
        if known.is_none() {
            events::created(&self.events, &vm.record());
        }
    }

    /// A VM by its id.
    pub fn get(&self, id: VmId) -> Option<Arc<Vm>> {
        self.vms.get(&id).cloned()
    }

    /// By name or by id.
    pub fn find(&self, word: &str) -> Result<Arc<Vm>, VmError> {
        let by_id = word.parse().ok().and_then(|id| self.get(id));
        let by_name = || {
            self.vms
                .values()
                .find(|vm| vm.name().as_str() == word)
                .cloned()
        };
        by_id.or_else(by_name).ok_or_else(|| VmError::Unknown {
            name: word.to_owned(),
        })
    }

    /// Every VM, the oldest first.
    pub fn all(&self) -> Vec<Arc<Vm>> {
        let mut all: Vec<_> = self.vms.values().cloned().collect();
        all.sort_by_cached_key(|vm| vm.place());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::{ByteCount, Epoch, FamilyId, Member, VmState};

    fn record(uid: u32) -> VmRecord {
        let id = VmId::random();
        VmRecord {
            id,
            name: id.as_str().parse().expect("a name"),
            family: FamilyId::random(),
            member: Member(0),
            birth: None,
            generation: 0,
            epoch: Epoch::random(),
            image: "tiny".into(),
            vcpus: 1,
            memory: ByteCount::default(),
            booted: ByteCount::default(),
            uid,
            accel: "tcg".into(),
            state: VmState::Warm,
            created: 0,
            warm: 0,
            memory_image: None,
            chain: Vec::new(),
            machine: None,
            secrets: Vec::new(),
            request: None,
            disk_image: None,
            failure: None,
            kernel: None,
            notes: Vec::new(),
            volume: None,
            publish: Vec::new(),
            data: Vec::new(),
            cpu: None,
        }
    }

    #[test]
    fn a_users_number_is_free_only_once_it_is_given_back() {
        let mut registry = Registry::default();
        let first = registry.take_uid().expect("there are many").keep();
        registry.vacate(&record(first));
        // The store may still have it, and refuses another.
        let second = registry.take_uid().expect("there are many");
        assert_ne!(first, second.get());
        registry.give_back_uid(first);
        assert_eq!(registry.take_uid().expect("free again").get(), first);
    }

    #[test]
    fn a_users_number_that_no_record_came_to_keep_gives_itself_back() {
        let mut registry = Registry::default();
        let lost = registry.take_uid().expect("there are many");
        let number = lost.get();
        drop(lost);
        assert_eq!(registry.take_uid().expect("free again").get(), number);
    }
}
