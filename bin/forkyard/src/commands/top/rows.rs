//! Rows made of two samples: one a VM, clones under their parents. Pure.

use crate::output;
use forkyard_types::{ByteCount, FamilyId, Usage, VmId, VmName, VmState, VmUsage};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Titles of the columns.
pub const HEADS: [&str; 8] = [
    "VM", "STATE", "CPU%", "PRIVATE", "RESIDENT", "MEMORY", "FORKS", "WARM",
];

/// One VM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Name of the VM.
    pub name: VmName,
    /// Id of the VM.
    pub id: VmId,
    /// Family of the VM.
    pub family: FamilyId,
    /// The VM it is a clone of.
    pub parent: Option<VmId>,
    /// Number of its ancestors among those listed.
    pub depth: usize,
    /// State of the VM.
    pub state: VmState,
    /// Processor time in percent of one processor.
    pub cpu_percent: f64,
    /// Bytes of the host's memory that are its own.
    pub private: ByteCount,
    /// Private pages, and those it shares.
    pub resident: ByteCount,
    /// Memory as the guest sees it.
    pub memory: ByteCount,
    /// Forks of it.
    pub forks: u32,
    /// Clones kept warm for it.
    pub warm: u16,
}

impl Row {
    /// As text.
    pub fn cells(&self) -> [String; 8] {
        [
            format!("{}{}", "  ".repeat(self.depth), self.name),
            output::word(&self.state),
            format!("{:.1}", self.cpu_percent),
            self.private.to_string(),
            self.resident.to_string(),
            self.memory.to_string(),
            self.forks.to_string(),
            self.warm.to_string(),
        ]
    }
}

/// One row a VM that there is `now`; families after one another, each VM
/// before its clones. One whose parent is gone stands where that would.
pub fn rows(before: &Usage, now: &Usage) -> Vec<Row> {
    let earlier: HashMap<_, _> = before
        .vms
        .iter()
        .map(|it| ((it.vm.id, it.vm.pid), it.cpu_us))
        .collect();
    let elapsed = now.at_us.saturating_sub(before.at_us).max(1);
    let here: HashSet<_> = now.vms.iter().map(|it| it.vm.id).collect();
    let mut clones: BTreeMap<Option<VmId>, Vec<&VmUsage>> = BTreeMap::new();
    for it in &now.vms {
        let parent = it.vm.parent.filter(|parent| here.contains(parent));
        clones.entry(parent).or_default().push(it);
    }
    for siblings in clones.values_mut() {
        siblings.sort_by_key(|it| it.vm.member);
    }
    // Families in the order of their oldest member, for they come by age.
    let families: Vec<_> = now.vms.iter().map(|it| it.vm.family).collect();
    let mut roots = clones.remove(&None).unwrap_or_default();
    roots.sort_by_key(|it| families.iter().position(|family| *family == it.vm.family));
    let mut open: Vec<_> = roots.into_iter().rev().map(|root| (0, root)).collect();
    let mut rows = Vec::new();
    while let Some((depth, it)) = open.pop() {
        let spent = earlier
            .get(&(it.vm.id, it.vm.pid))
            .map_or(0, |earlier| it.cpu_us.saturating_sub(*earlier));
        rows.push(row(it, depth, percent(spent, elapsed)));
        let children = clones.remove(&Some(it.vm.id)).unwrap_or_default();
        open.extend(children.into_iter().rev().map(|child| (depth + 1, child)));
    }
    rows
}

fn row(it: &VmUsage, depth: usize, cpu_percent: f64) -> Row {
    Row {
        name: it.vm.name.clone(),
        id: it.vm.id,
        family: it.vm.family,
        parent: it.vm.parent,
        depth,
        state: it.vm.state,
        cpu_percent,
        private: it.private,
        resident: it.resident,
        memory: it.vm.memory,
        forks: it.forks,
        warm: it.warm,
    }
}

/// To a tenth: more digits would be noise.
fn percent(spent_us: u64, elapsed_us: u64) -> f64 {
    let tenths = u128::from(spent_us) * 1000 / u128::from(elapsed_us);
    f64::from(u32::try_from(tenths).unwrap_or(u32::MAX)) / 10.0
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use forkyard_types::{Address, Epoch, Mac, Member, VmView};

    /// A VM with so many seconds of processor time.
    pub fn vm(name: &str, family: FamilyId, member: u16, parent: Option<VmId>) -> VmUsage {
        VmUsage {
            vm: VmView {
                id: VmId::random(),
                name: name.parse().expect("a name"),
                state: VmState::Running,
                family,
                member: Member(member),
                parent,
                fork: None,
                epoch: Epoch::random(),
                image: "tiny".into(),
                vcpus: 1,
                granted: None,
                memory: ByteCount(1 << 28),
                address: Address {
                    ip: [10, 0, 0, 1].into(),
                    prefix: 16,
                    mac: Mac([2, 0, 0, 0, 0, 1]),
                },
                pid: Some(u32::from(member) + 100),
                accel: "tcg".into(),
                created: 7,
                published: Vec::new(),
                silence: None,
                memory_wait_percent: None,
                host: None,
                moving: None,
                awaits: Vec::new(),
                failure: None,
                labels: forkyard_types::Labels::default(),
                ends: None,
                idle: None,
                asleep: false,
                restart: forkyard_types::Restart::No,
                starts: None,
            },
            cpu_us: 0,
            waited_us: 0,
            resident: ByteCount(2 << 20),
            private: ByteCount(1 << 20),
            forks: 0,
            warm: 0,
        }
    }

    /// A sample.
    pub fn at(at_us: u64, vms: &[VmUsage]) -> Usage {
        Usage {
            at_us,
            cpus: 2,
            stolen_us: 0,
            vms: vms.to_vec(),
        }
    }

    fn shown(usage: &Usage) -> Vec<String> {
        let rows = rows(usage, usage);
        rows.iter().map(|row| row.cells()[0].clone()).collect()
    }

    #[test]
    fn clones_stand_under_their_parents_and_families_apart() {
        let (f, g) = (FamilyId::random(), FamilyId::random());
        let p = vm("p", f, 0, None);
        let q = vm("q", g, 0, None);
        let p1 = vm("p-1", f, 1, Some(p.vm.id));
        let p2 = vm("p-2", f, 2, Some(p.vm.id));
        let p3 = vm("p-3", f, 3, Some(p1.vm.id));
        let all = at(1, &[p, q, p2, p3, p1]);
        assert_eq!(shown(&all), ["p", "  p-1", "    p-3", "  p-2", "q"]);
    }

    #[test]
    fn a_clone_of_a_vm_that_is_gone_is_not_lost() {
        let f = FamilyId::random();
        let orphan = vm("p-1", f, 1, Some(VmId::random()));
        let child = vm("p-2", f, 2, Some(orphan.vm.id));
        assert_eq!(shown(&at(1, &[orphan, child])), ["p-1", "  p-2"]);
    }

    #[test]
    fn percent_is_of_one_processor_and_of_the_time_between() {
        let mut p = vm("p", FamilyId::random(), 0, None);
        let before = at(1_000_000, std::slice::from_ref(&p));
        p.cpu_us = 3_000_000;
        let now = at(3_000_000, std::slice::from_ref(&p));
        assert_eq!(rows(&before, &now)[0].cells()[2], "150.0");
        // A QEMU that is not the one of before has used nothing that we know of.
        p.vm.pid = Some(7);
        let other = at(3_000_000, &[p]);
        assert_eq!(rows(&before, &other)[0].cells()[2], "0.0");
    }
}
