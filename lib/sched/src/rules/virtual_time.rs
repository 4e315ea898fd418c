//! Virtual times: how long each has run, by its weight, relative to the CPU it
//! is on. What BVT and CFS share.

use super::slot;
use crate::{
    params::USUAL_WEIGHT,
    tree::Tree,
    units::{CpuId, Nanos, VcpuId},
};

/// A span as virtual time for this weight.
pub(super) fn weighted(span: Nanos, weight: u32) -> i64 {
    span.scale(USUAL_WEIGHT.into(), weight.into()).signed()
}

/// The span that lets virtual time advance so far.
pub(super) fn unweighted(virtual_span: i64, weight: u32) -> Nanos {
    let span = Nanos(u64::try_from(virtual_span).unwrap_or(0));
    span.scale(weight.into(), USUAL_WEIGHT.into())
}

/// Virtual times of the vCPUs, and of each CPU the one that none falls behind.
#[derive(Clone, Debug, Default)]
pub(super) struct VirtualTimes {
    of: Vec<i64>,
    floors: Vec<i64>,
}

impl VirtualTimes {
    pub(super) fn of(&self, vcpu: VcpuId) -> i64 {
        self.of.get(vcpu.at()).copied().unwrap_or(0)
    }

    /// Returns the virtual time that the queue of a CPU has come to. Never goes
    /// back.
    pub(super) fn floor(&self, cpu: CpuId) -> i64 {
        self.floors.get(cpu.at()).copied().unwrap_or(0)
    }

    pub(super) fn set(&mut self, vcpu: VcpuId, to: i64) {
        *slot(&mut self.of, vcpu) = to;
    }

    pub(super) fn add(&mut self, vcpu: VcpuId, by: i64) {
        let time = slot(&mut self.of, vcpu);
        *time = time.saturating_add(by);
    }

    /// Raises the floor to the least of the queue and of one beside it.
    pub(super) fn raise(&mut self, cpu: CpuId, queue: &Tree, beside: Option<VcpuId>) {
        let front = queue.first().map(|(_, vcpu)| self.of(vcpu));
        let beside = beside.map(|vcpu| self.of(vcpu));
        let Some(least) = front.into_iter().chain(beside).min() else {
            return;
        };
        if self.floors.len() <= cpu.at() {
            self.floors.resize(cpu.at() + 1, 0);
        }
        let floor = &mut self.floors[cpu.at()];
        *floor = (*floor).max(least);
    }

    /// Keeps its lead over the others when it changes CPUs.
    pub(super) fn moved(&mut self, vcpu: VcpuId, from: CpuId, to: CpuId) {
        let by = self.floor(to).saturating_sub(self.floor(from));
        self.add(vcpu, by);
    }
}
