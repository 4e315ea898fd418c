//! Borrowed virtual time (Duda and Cheriton 1999; Gutierrez §2.2.2).
//!
//! Problem: weighted shares, and at once low latency for some, without
//! real-time guarantees. Terms: the *actual virtual time* A of a vCPU grows with
//! the time it runs, divided by its weight; its *effective* one is E = A − W
//! while it is *warped*, else E = A. Rule: the least E runs, until it leads the
//! next by the *context-switch allowance* C, so that none is switched more
//! often than that. One that wakes has A raised to the least A of its queue, and
//! begins to warp if its domain has a warp; it stops when it has run for the
//! limit L or sleeps, and after the limit has to stay unwarped for U. Constant:
//! C = 5 ms. Lag between two that wait is at most C plus the warp.

use super::{
    slot,
    virtual_time::{VirtualTimes, unweighted, weighted},
};
use crate::{
    params::Warp,
    parts::{EnqueueReason, Rule},
    queues::QueuePlace,
    tree::Tree,
    units::{CpuId, Nanos, VcpuId},
    world::World,
};

/// Context-switch allowance.
const ALLOWANCE: Nanos = Nanos::millis(5);
/// Slice of a vCPU while no other waits.
const ALONE: Nanos = Nanos::millis(30);

/// State of a vCPU's warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Warping {
    /// The vCPU jumps the queue, for so long yet.
    On { left: Nanos },
    /// The vCPU does not, nor before this instant.
    Off { until: Nanos },
}

impl Default for Warping {
    fn default() -> Self {
        Self::Off { until: Nanos::ZERO }
    }
}

/// The rule.
#[derive(Clone, Debug, Default)]
pub struct Bvt {
    times: VirtualTimes,
    warping: Vec<Warping>,
}

impl Bvt {
    fn effective(&self, world: &World, vcpu: VcpuId) -> i64 {
        let actual = self.times.of(vcpu);
        match (self.warping.get(vcpu.at()), world.params(vcpu).warp) {
            (Some(Warping::On { .. }), Some(warp)) => actual.saturating_sub(warp.back.signed()),
            _ => actual,
        }
    }

    fn begin(&mut self, vcpu: VcpuId, warp: Warp, now: Nanos) {
        let warping = slot(&mut self.warping, vcpu);
        if let Warping::Off { until } = *warping
            && until <= now
        {
            *warping = Warping::On { left: warp.limit };
        }
    }
}

impl Rule for Bvt {
    fn init(&mut self, _: &World, vcpu: VcpuId) {
        self.times.set(vcpu, 0);
        *slot(&mut self.warping, vcpu) = Warping::default();
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
            let actual = self.times.of(vcpu).max(self.times.floor(cpu));
            self.times.set(vcpu, actual);
            if let Some(warp) = world.params(vcpu).warp {
                self.begin(vcpu, warp, world.now);
            }
        }
        QueuePlace::at(self.effective(world, vcpu))
    }

    fn charge(&mut self, world: &World, queue: &Tree, cpu: CpuId, vcpu: VcpuId, ran: Nanos) {
        self.times
            .add(vcpu, weighted(ran, world.params(vcpu).weight));
        self.times.raise(cpu, queue, Some(vcpu));
        let rest = world.params(vcpu).warp.map_or(Nanos::ZERO, |w| w.rest);
        let warping = slot(&mut self.warping, vcpu);
        if let Warping::On { left } = *warping {
            let slept = world[vcpu].state() == crate::world::State::Asleep;
            *warping = match left.minus(ran) {
                Nanos::ZERO => Warping::Off {
                    until: world.now + rest,
                },
                _ if slept => Warping::default(),
                left => Warping::On { left },
            };
        }
    }

    fn slice(&mut self, world: &World, queue: &Tree, _: CpuId, vcpu: VcpuId) -> Nanos {
        let Some((key, _)) = queue.first() else {
            return ALONE;
        };
        let weight = world.params(vcpu).weight;
        let behind = key.major.saturating_sub(self.effective(world, vcpu)).max(0);
        let slice = unweighted(behind, weight) + ALLOWANCE;
        match self.warping.get(vcpu.at()) {
            Some(Warping::On { left }) => slice.min(*left),
            Some(Warping::Off { .. }) | None => slice,
        }
    }

    fn moved(&mut self, vcpu: VcpuId, from: CpuId, to: CpuId) {
        self.times.moved(vcpu, from, to);
    }

    fn preempts(&self, world: &World, woken: VcpuId, running: VcpuId) -> bool {
        let warped = matches!(self.warping.get(woken.at()), Some(Warping::On { .. }));
        let lead = match warped {
            true => 0,
            false => ALLOWANCE.signed(),
        };
        self.effective(world, woken).saturating_add(lead) < self.standing(world, running)
    }

    fn standing(&self, world: &World, vcpu: VcpuId) -> i64 {
        let since = weighted(world.runs_for(vcpu), world.params(vcpu).weight);
        self.effective(world, vcpu).saturating_add(since)
    }

    fn shift(&mut self, vcpu: VcpuId, by: i64) {
        self.times.add(vcpu, by);
    }
}
