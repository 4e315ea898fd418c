//! Round robin.
//!
//! Problem: the simplest policy that starves none; Xen's demonstration of its
//! scheduler interface (Gutierrez §2.2.1). Rule: each runs for a quantum, then
//! goes to the end of its queue. Constant: the quantum, 10 ms. Weights, caps
//! and everything else are nothing to it.

use crate::{
    parts::{EnqueueReason, Rule},
    queues::QueuePlace,
    tree::Tree,
    units::{CpuId, Nanos, VcpuId},
    world::World,
};

/// The rule.
#[derive(Clone, Copy, Debug)]
pub struct RoundRobin {
    quantum: Nanos,
}

impl Default for RoundRobin {
    fn default() -> Self {
        Self {
            quantum: Nanos::millis(10),
        }
    }
}

impl Rule for RoundRobin {
    fn init(&mut self, _: &World, _: VcpuId) {}

    fn enter(&mut self, _: &World, _: &Tree, _: CpuId, _: VcpuId, _: EnqueueReason) -> QueuePlace {
        // All the same: the order of arrival decides.
        QueuePlace::at(0)
    }

    fn charge(&mut self, _: &World, _: &Tree, _: CpuId, _: VcpuId, _: Nanos) {}

    fn slice(&mut self, _: &World, _: &Tree, _: CpuId, _: VcpuId) -> Nanos {
        self.quantum
    }

    fn preempts(&self, _: &World, _: VcpuId, _: VcpuId) -> bool {
        false
    }
}
