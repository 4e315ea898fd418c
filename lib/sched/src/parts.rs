//! Parts that policies are composed of: a rule that orders a queue, a filter
//! that says where a vCPU may wait, and a hook that may change a choice.

use crate::{
    params::{InvalidParams, Params},
    queues::{QueueLayout, QueuePlace, Queues},
    scheduler::Orders,
    tree::{QueueKey, Tree},
    units::{CpuId, DomainId, Nanos, VcpuId},
    world::World,
};
use std::fmt;

/// Reason why a vCPU enters a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueReason {
    /// The vCPU slept.
    Woke,
    /// The vCPU ran, and would run on.
    Ran,
    /// The vCPU comes from another CPU's queue.
    Moved,
    /// An instant it named has come.
    Due,
    /// The vCPU's order has changed.
    Rekeyed,
}

/// Extent of a change of order: all queues, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rekey {
    /// All have changed.
    All,
    /// None has changed.
    None,
}

/// Ways in which vCPUs come to CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// A CPU with nothing to do takes one that waits elsewhere.
    Steal,
    /// Besides, at each tick, from a queue longer by two or more.
    Even,
    /// Each stays on the CPU it was first given, the one least reserved.
    Bound,
    /// Only waking moves a vCPU.
    Stay,
}

/// Orders the queue of a CPU, and says how long one may run.
pub trait Rule: fmt::Debug + Send {
    /// Returns the layout: whether CPUs share queues.
    fn layout(&self) -> QueueLayout {
        QueueLayout::PerCpu
    }

    /// A vCPU was set up.
    fn init(&mut self, world: &World, vcpu: VcpuId);

    /// Returns its place in the queue of a CPU that it enters.
    fn enter(
        &mut self,
        world: &World,
        queue: &Tree,
        cpu: CpuId,
        vcpu: VcpuId,
        why: EnqueueReason,
    ) -> QueuePlace;

    /// Charges it for the time it ran on a CPU that has this queue.
    fn charge(&mut self, world: &World, queue: &Tree, cpu: CpuId, vcpu: VcpuId, ran: Nanos);

    /// Returns the time it may run, after it was picked, and taken out of the
    /// queue.
    fn slice(&mut self, world: &World, queue: &Tree, cpu: CpuId, vcpu: VcpuId) -> Nanos;

    /// Notes that it is about to enter another CPU's queue.
    fn moved(&mut self, _vcpu: VcpuId, _from: CpuId, _to: CpuId) {}

    /// Tells whether one that woke is to run in place of one that runs.
    fn preempts(&self, world: &World, woken: VcpuId, running: VcpuId) -> bool;

    /// Among those that run, the one with the greatest is the first to give way.
    fn standing(&self, _world: &World, _vcpu: VcpuId) -> i64 {
        0
    }

    /// Time has passed.
    fn tick(&mut self, _world: &World, _cpu: CpuId) -> Rekey {
        Rekey::None
    }

    /// One was picked.
    fn picked(&mut self, _world: &World, _vcpu: VcpuId) -> Rekey {
        Rekey::None
    }

    /// Tells whether a CPU whose front is `mine` should rather have `theirs`.
    fn covets(&self, mine: Option<QueueKey>, _theirs: QueueKey) -> bool {
        mine.is_none()
    }

    /// Tells whether an instant that a waiting vCPU named ends the slice of one
    /// that runs.
    fn punctual(&self) -> bool {
        false
    }

    /// Moves a vCPU's virtual time; not for rules that have none.
    fn shift(&mut self, _vcpu: VcpuId, _by: i64) {}

    /// Refuses what it could not keep. `home` tells the CPU of each vCPU.
    fn admit(
        &self,
        _world: &World,
        _domain: DomainId,
        _params: &Params,
        _home: &dyn Fn(VcpuId) -> Option<CpuId>,
    ) -> Result<(), InvalidParams> {
        Ok(())
    }
}

/// Says where a vCPU may wait.
pub trait QueueFilter: fmt::Debug + Send {
    /// Tells whether it may wait at this CPU. If there is no such CPU, it may
    /// at all that its affinity allows.
    fn allows(&self, world: &World, queues: &Queues, vcpu: VcpuId, cpu: CpuId) -> bool;
}

/// May change a choice.
pub trait Hook: fmt::Debug + Send {
    /// A CPU is about to choose.
    fn before(&mut self, _world: &World, _queues: &mut Queues, _rule: &mut dyn Rule, _cpu: CpuId) {}

    /// Chooses the vCPU to run, the front being the usual choice. Must be in
    /// the CPU's queue.
    fn choose(
        &mut self,
        _world: &World,
        _queues: &mut Queues,
        _rule: &mut dyn Rule,
        _cpu: CpuId,
        front: VcpuId,
    ) -> VcpuId {
        front
    }

    /// One was chosen, for so long: how long it is to be.
    fn chosen(
        &mut self,
        _world: &World,
        _queues: &Queues,
        _cpu: CpuId,
        _vcpu: VcpuId,
        slice: Nanos,
        _orders: &mut Orders,
    ) -> Nanos {
        slice
    }

    /// Tells whether one that wakes may not take this CPU now.
    fn shields(&self, _world: &World, _cpu: CpuId) -> bool {
        false
    }

    /// A vCPU is gone.
    fn forget(&mut self, _vcpu: VcpuId) {}
}

/// Anywhere its affinity allows.
#[derive(Clone, Copy, Debug)]
pub struct Anywhere;

impl QueueFilter for Anywhere {
    fn allows(&self, _: &World, _: &Queues, _: VcpuId, _: CpuId) -> bool {
        true
    }
}

/// No vCPU waits where a sibling waits or runs.
///
/// Problem: siblings in one queue run one after the other, so that one spins
/// for a lock whose holder cannot run before it stops (Wang §4.3.1: 20 to 43 %
/// of the time under the host's default). Rule: where a vCPU is placed, when it
/// is made, wakes up or is moved, the CPUs of its siblings are taken out of the
/// choice (§4.5, `SCHED_DISPATCH` of algorithm 2; "balance scheduling" of
/// Sukwong and Kim). A domain with more vCPUs than CPUs is placed anywhere.
#[derive(Clone, Copy, Debug)]
pub struct Balance;

impl QueueFilter for Balance {
    fn allows(&self, world: &World, queues: &Queues, vcpu: VcpuId, cpu: CpuId) -> bool {
        !world
            .siblings(vcpu)
            .any(|sibling| queues.occupies(world, sibling, cpu))
    }
}

/// The front it is.
#[derive(Clone, Copy, Debug)]
pub struct PlainFront;

impl Hook for PlainFront {}
