//! The completely fair scheduler: the host's default.
//!
//! Problem: weighted shares without time slices fixed in advance. Terms
//! (Wang §4.3.3, §4.4.2): *vruntime*, the time a vCPU has run, divided by its
//! weight; *latency*, the period in which each that waits runs once; *minimum
//! granularity*, the least any runs. Rule: the least vruntime runs, for
//!
//! ```text
//! T_p     = latency, or n · min if that is longer      (n in the queue)
//! T_slice = T_p · w / Σw
//! ```
//!
//! One that wakes is given at most half a latency of credit for having slept,
//! and takes the CPU if it is behind by the wake-up granularity. Constants: as
//! Linux 2.6.34 has them on 8 CPUs, four times its 6, 0.75 and 1 ms.

use super::virtual_time::{VirtualTimes, weighted};
use crate::{
    parts::{EnqueueReason, Rule},
    queues::QueuePlace,
    tree::Tree,
    units::{CpuId, Nanos, VcpuId},
    world::World,
};
use serde::{Deserialize, Serialize};

/// Constants of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CfsKnobs {
    /// Period in which each runs once.
    pub latency: Nanos,
    /// The least any runs.
    pub min_granularity: Nanos,
    /// Lead one that wakes must have to take a CPU.
    pub wakeup_granularity: Nanos,
}

impl Default for CfsKnobs {
    fn default() -> Self {
        Self {
            latency: Nanos::millis(24),
            min_granularity: Nanos::millis(3),
            wakeup_granularity: Nanos::millis(4),
        }
    }
}

/// The rule.
#[derive(Clone, Debug, Default)]
pub struct Cfs {
    knobs: CfsKnobs,
    times: VirtualTimes,
}

impl Cfs {
    /// With constants of one's own.
    pub fn new(knobs: CfsKnobs) -> Self {
        Self {
            knobs,
            times: VirtualTimes::default(),
        }
    }
}

impl Rule for Cfs {
    fn init(&mut self, _: &World, vcpu: VcpuId) {
        self.times.set(vcpu, 0);
    }

    fn enter(
        &mut self,
        world: &World,
        queue: &Tree,
        cpu: CpuId,
        vcpu: VcpuId,
        why: EnqueueReason,
    ) -> QueuePlace {
        if why == EnqueueReason::Woke {
            self.times.raise(cpu, queue, world[cpu].running);
            let credit = self.knobs.latency.signed() / 2;
            let least = self.times.floor(cpu).saturating_sub(credit);
            self.times.set(vcpu, self.times.of(vcpu).max(least));
        }
        QueuePlace::at(self.times.of(vcpu))
    }

    fn charge(&mut self, world: &World, queue: &Tree, cpu: CpuId, vcpu: VcpuId, ran: Nanos) {
        self.times
            .add(vcpu, weighted(ran, world.params(vcpu).weight));
        self.times.raise(cpu, queue, Some(vcpu));
    }

    fn slice(&mut self, world: &World, queue: &Tree, _: CpuId, vcpu: VcpuId) -> Nanos {
        let weight = |vcpu| u64::from(world.params(vcpu).weight);
        let all = weight(vcpu) + queue.iter().map(|(_, other)| weight(other)).sum::<u64>();
        let waiting = u64::try_from(queue.len()).unwrap_or(u64::MAX);
        let least = self.knobs.min_granularity.scale(waiting + 1, 1);
        let period = self.knobs.latency.max(least);
        let slice = period.scale(weight(vcpu), all);
        // Linux 2.6.34 lets small weights have small slices, but its tick
        // rounds them up; a millisecond is the shortest tick it has.
        slice.max(Nanos::millis(1))
    }

    fn moved(&mut self, vcpu: VcpuId, from: CpuId, to: CpuId) {
        self.times.moved(vcpu, from, to);
    }

    fn preempts(&self, world: &World, woken: VcpuId, running: VcpuId) -> bool {
        let lead = self.knobs.wakeup_granularity.signed();
        self.times.of(woken).saturating_add(lead) < self.standing(world, running)
    }

    fn standing(&self, world: &World, vcpu: VcpuId) -> i64 {
        let since = weighted(world.runs_for(vcpu), world.params(vcpu).weight);
        self.times.of(vcpu).saturating_add(since)
    }

    fn shift(&mut self, vcpu: VcpuId, by: i64) {
        self.times.add(vcpu, by);
    }
}
