//! The run queues: the vCPUs that wait or are parked at each CPU, and to which CPU
//! each vCPU belongs. Keeps order; has no opinion on it.

use crate::{
    dice::Dice,
    tree::{QueueKey, Tree},
    units::{CpuId, Nanos, VcpuId},
    world::{State, World},
};
use std::collections::BTreeSet;

/// Choice whether each CPU has a queue of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueLayout {
    /// Each CPU has one.
    PerCpu,
    /// All share one.
    Shared,
}

/// Position of a vCPU in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePlace {
    /// The vCPU waits, ordered by major and minor.
    Queue {
        /// First key of the order.
        major: i64,
        /// Second key, among equals of the first.
        minor: i64,
        /// Time at which its order must be looked at again.
        until: Option<Nanos>,
    },
    /// The vCPU may not run before this instant.
    Parked(Nanos),
}

impl QueuePlace {
    /// Waits in this order until it is picked.
    pub fn at(major: i64) -> Self {
        Self::Queue {
            major,
            minor: 0,
            until: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Spot {
    home: Option<CpuId>,
    key: Option<QueueKey>,
    alarm: Option<Nanos>,
}

/// All queues of a policy.
#[derive(Clone, Debug)]
pub struct Queues {
    layout: QueueLayout,
    trees: Vec<Tree>,
    alarms: Vec<BTreeSet<(Nanos, VcpuId)>>,
    spots: Vec<Spot>,
    seq: u64,
    pub(crate) dice: Dice,
}

impl Queues {
    pub(crate) fn new(layout: QueueLayout, cpus: usize, seed: u64) -> Self {
        let queues = match layout {
            QueueLayout::PerCpu => cpus,
            QueueLayout::Shared => 1,
        };
        Self {
            layout,
            trees: vec![Tree::default(); queues],
            alarms: vec![BTreeSet::new(); queues],
            spots: Vec::new(),
            seq: 0,
            dice: Dice::new(seed),
        }
    }

    fn queue(&self, cpu: CpuId) -> usize {
        match self.layout {
            QueueLayout::PerCpu => cpu.at(),
            QueueLayout::Shared => 0,
        }
    }

    fn spot(&mut self, vcpu: VcpuId) -> &mut Spot {
        if self.spots.len() <= vcpu.at() {
            self.spots.resize(vcpu.at() + 1, Spot::default());
        }
        &mut self.spots[vcpu.at()]
    }

    /// Returns the way in which CPUs share queues.
    pub fn layout(&self) -> QueueLayout {
        self.layout
    }

    /// Returns the queue of vCPUs that wait at a CPU.
    pub fn tree(&self, cpu: CpuId) -> &Tree {
        &self.trees[self.queue(cpu)]
    }

    /// The CPU a vCPU belongs to.
    pub fn home(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.spots.get(vcpu.at())?.home
    }

    /// Returns the key that a waiting vCPU is ordered by.
    pub fn key(&self, vcpu: VcpuId) -> Option<QueueKey> {
        self.spots.get(vcpu.at())?.key
    }

    /// Returns its scheduling ordinate: the number of vCPUs before it in its
    /// queue. `None` if it does not wait.
    pub fn ordinate(&self, vcpu: VcpuId) -> Option<usize> {
        let home = self.home(vcpu)?;
        Some(self.tree(home).rank(self.key(vcpu)?))
    }

    /// Lists the vCPUs parked at a CPU, and until when.
    pub fn parked(&self, cpu: CpuId) -> Vec<(VcpuId, Nanos)> {
        let alarms = self.alarms[self.queue(cpu)].iter();
        let parked = alarms.filter(|(_, vcpu)| self.key(*vcpu).is_none());
        parked.map(|&(until, vcpu)| (vcpu, until)).collect()
    }

    /// Counts the vCPUs that wait for a CPU or run on it.
    pub fn load(&self, world: &World, cpu: CpuId) -> usize {
        self.tree(cpu).len() + usize::from(world[cpu].running.is_some())
    }

    /// Tells whether a vCPU that does not sleep belongs to a CPU.
    pub fn occupies(&self, world: &World, vcpu: VcpuId, cpu: CpuId) -> bool {
        self.home(vcpu) == Some(cpu) && world[vcpu].state() != State::Asleep
    }

    pub(crate) fn set_home(&mut self, vcpu: VcpuId, cpu: CpuId) {
        self.spot(vcpu).home = Some(cpu);
    }

    pub(crate) fn put(&mut self, vcpu: VcpuId, cpu: CpuId, place: QueuePlace) {
        self.seq += 1;
        self.put_as(vcpu, cpu, place, self.seq);
    }

    fn put_as(&mut self, vcpu: VcpuId, cpu: CpuId, place: QueuePlace, seq: u64) {
        let queue = self.queue(cpu);
        let (key, alarm) = match place {
            QueuePlace::Queue {
                major,
                minor,
                until,
            } => (Some(QueueKey { major, minor, seq }), until),
            QueuePlace::Parked(until) => (None, Some(until)),
        };
        if let Some(key) = key {
            self.trees[queue].insert(key, vcpu);
        }
        if let Some(alarm) = alarm {
            self.alarms[queue].insert((alarm, vcpu));
        }
        *self.spot(vcpu) = Spot {
            home: Some(cpu),
            key,
            alarm,
        };
    }

    /// Takes a vCPU out of its queue, or from where it is parked. It keeps its
    /// home.
    pub(crate) fn take(&mut self, vcpu: VcpuId) {
        let Some(home) = self.home(vcpu) else { return };
        let queue = self.queue(home);
        let spot = self.spot(vcpu);
        let (key, alarm) = (spot.key.take(), spot.alarm.take());
        if let Some(key) = key {
            self.trees[queue].remove(key);
        }
        if let Some(alarm) = alarm {
            self.alarms[queue].remove(&(alarm, vcpu));
        }
    }

    /// Gives a vCPU that waits another place in its queue; among equals it
    /// stands where it would have stood.
    pub(crate) fn replace(&mut self, vcpu: VcpuId, place: QueuePlace) {
        let (Some(home), Some(QueueKey { seq, .. })) = (self.home(vcpu), self.key(vcpu)) else {
            return;
        };
        self.take(vcpu);
        self.put_as(vcpu, home, place, seq);
    }

    /// Takes out one whose instant has come.
    pub(crate) fn due(&mut self, cpu: CpuId, now: Nanos) -> Option<VcpuId> {
        let &(alarm, vcpu) = self.alarms[self.queue(cpu)].first()?;
        (alarm <= now).then(|| {
            self.take(vcpu);
            vcpu
        })
    }

    /// The next such instant.
    pub(crate) fn next_alarm(&self, cpu: CpuId) -> Option<Nanos> {
        self.alarms[self.queue(cpu)].first().map(|&(at, _)| at)
    }

    pub(crate) fn forget(&mut self, vcpu: VcpuId) {
        self.take(vcpu);
        *self.spot(vcpu) = Spot::default();
    }
}
