//! Credit2, Xen's second (Gutierrez §2.2.6; Dunlap 2010).
//!
//! Problem: Credit's shares are rough, and it serves those badly that sleep
//! often and need little. Terms: CPUs share a queue; every vCPU has *credits*
//! that it spends the faster the lighter it is. Rule: the most credits run, until
//! the next has more or for 10 ms at most and half a millisecond at least; when
//! the one picked has none left, all get as many as one begins with,
//! and none keeps more than that and a little. One that wakes takes the CPU
//! of the one with the least credits, if it leads by the *migration resistance*.
//! Constants: 10.5 ms to begin with; 0.5 ms least slice, carry-over and
//! resistance. No cap, as in Xen's first version.

use super::slot;
use crate::{
    params::USUAL_WEIGHT,
    parts::{EnqueueReason, Rekey, Rule},
    queues::{QueueLayout, QueuePlace},
    tree::Tree,
    units::{CpuId, Nanos, VcpuId},
    world::World,
};

const BEGIN: i64 = 10_500_000;
const LEAST: Nanos = Nanos::micros(500);
const MOST: Nanos = Nanos::millis(10);
const RESISTANCE: i64 = 500_000;

/// The rule.
#[derive(Clone, Debug, Default)]
pub struct Credit2 {
    credits: Vec<i64>,
}

/// Credits a time costs at this weight.
fn cost(time: Nanos, weight: u32) -> i64 {
    time.scale(USUAL_WEIGHT.into(), weight.into()).signed()
}

impl Credit2 {
    fn credit(&self, vcpu: VcpuId) -> i64 {
        self.credits.get(vcpu.at()).copied().unwrap_or(0)
    }
}

impl Rule for Credit2 {
    fn layout(&self) -> QueueLayout {
        QueueLayout::Shared
    }

    fn init(&mut self, _: &World, vcpu: VcpuId) {
        *slot(&mut self.credits, vcpu) = BEGIN;
    }

    fn enter(
        &mut self,
        _: &World,
        _: &Tree,
        _: CpuId,
        vcpu: VcpuId,
        _: EnqueueReason,
    ) -> QueuePlace {
        QueuePlace::at(-self.credit(vcpu))
    }

    fn charge(&mut self, world: &World, _: &Tree, _: CpuId, vcpu: VcpuId, ran: Nanos) {
        *slot(&mut self.credits, vcpu) -= cost(ran, world.params(vcpu).weight);
    }

    fn slice(&mut self, world: &World, queue: &Tree, _: CpuId, vcpu: VcpuId) -> Nanos {
        let next = queue.first().map_or(0, |(key, _)| (-key.major).max(0));
        let lead = u64::try_from(self.credit(vcpu) - next).unwrap_or(0);
        let weight = world.params(vcpu).weight;
        Nanos(lead)
            .scale(weight.into(), USUAL_WEIGHT.into())
            .clamp(LEAST, MOST)
    }

    fn preempts(&self, world: &World, woken: VcpuId, running: VcpuId) -> bool {
        RESISTANCE - self.credit(woken) < self.standing(world, running)
    }

    fn standing(&self, world: &World, vcpu: VcpuId) -> i64 {
        cost(world.runs_for(vcpu), world.params(vcpu).weight) - self.credit(vcpu)
    }

    fn picked(&mut self, world: &World, vcpu: VcpuId) -> Rekey {
        let credit = self.credit(vcpu);
        if credit > 0 {
            return Rekey::None;
        }
        // As often as it takes for this one to have some.
        let gift = BEGIN * (-credit / BEGIN + 1);
        for (other, _) in world.vcpus() {
            let credit = slot(&mut self.credits, other);
            *credit = (*credit + gift).min(BEGIN + LEAST.signed());
        }
        Rekey::All
    }
}
