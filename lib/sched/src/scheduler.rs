//! The interface between an engine, which owns time and CPUs, and a policy.
//!
//! It has the functions of Xen's `struct scheduler` (Gutierrez, listing 2.1).
//! The engine calls one at a time, after it has brought the [`World`] up to
//! date; the policy reads the world and answers with data:
//!
//! ```text
//! engine --init, wake, sleep, tick, migrate--> policy --kicks, moves--> engine
//! engine --do_schedule(cpu, what the last one did)--> policy --vCPU, slice--> engine
//! ```
//!
//! The same calls in the same order give the same answers: a policy reads no
//! clock and has no chance but that of its seed.

use crate::{
    params::{InvalidParams, Params},
    units::{CpuId, DomainId, Nanos, VcpuId},
    world::World,
};
use std::fmt;

/// Time between two ticks of a CPU: as Credit's.
pub const TICK: Nanos = Nanos::millis(10);

/// Next wish of the vCPU that ran on a CPU until now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// To run on: its slice was over, or the CPU was wanted for another.
    Wait,
    /// To sleep.
    Sleep,
}

/// Account of the vCPU that ran on a CPU until now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// vCPU that ran.
    pub vcpu: VcpuId,
    /// For how long since it was picked.
    pub time: Nanos,
    /// Next wish of it.
    pub then: Then,
}

/// vCPU that a CPU is to run, and for how long at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// vCPU to run; none if the CPU is to idle.
    pub vcpu: Option<VcpuId>,
    /// Time from now in which `do_schedule` is to be called at the latest.
    pub slice: Nanos,
}

/// A vCPU that a policy took from one CPU's queue to another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// vCPU that was moved.
    pub vcpu: VcpuId,
    /// From where; nowhere if it had never been placed.
    pub from: Option<CpuId>,
    /// To where.
    pub to: CpuId,
}

/// Actions that a policy wants beside its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// CPUs on which `do_schedule` is to be called at once, in this order.
    pub kicks: Vec<CpuId>,
    /// vCPUs that were moved. They are in their new queues already.
    pub moves: Vec<Move>,
}

impl Orders {
    /// Asks for a CPU to be scheduled anew.
    pub fn kick(&mut self, cpu: CpuId) {
        if !self.kicks.contains(&cpu) {
            self.kicks.push(cpu);
        }
    }
}

/// The queue of one CPU, as [`Scheduler::dump`] tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDump {
    /// CPU of the queue.
    pub cpu: CpuId,
    /// vCPUs that wait, front first, each with the key it is ordered by.
    pub waiting: Vec<(VcpuId, i64)>,
    /// vCPUs that may not run before this instant.
    pub parked: Vec<(VcpuId, Nanos)>,
}

/// The state of a policy, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// The policy.
    pub policy: String,
    /// Queues of the scheduler.
    pub queues: Vec<QueueDump>,
}

/// A scheduling policy.
pub trait Scheduler: fmt::Debug + Send {
    /// Returns the name.
    fn name(&self) -> &'static str;

    /// A domain was set up; it has no vCPUs yet.
    fn init_domain(&mut self, _world: &World, _domain: DomainId) {}

    /// A domain is about to go; its vCPUs have gone.
    fn destroy_domain(&mut self, _world: &World, _domain: DomainId) {}

    /// A vCPU was set up, asleep.
    fn init_vcpu(&mut self, world: &World, vcpu: VcpuId);

    /// A vCPU is about to go. It does not run.
    fn destroy_vcpu(&mut self, world: &World, vcpu: VcpuId);

    /// A vCPU that waited went to sleep. (One that ran is told of by
    /// `do_schedule`.)
    fn sleep(&mut self, world: &World, vcpu: VcpuId);

    /// A vCPU that slept waits for a CPU.
    fn wake(&mut self, world: &World, vcpu: VcpuId, orders: &mut Orders);

    /// The CPU on which a vCPU would best wait.
    fn pick_cpu(&mut self, world: &World, vcpu: VcpuId) -> CpuId;

    /// Chooses the vCPU that a CPU runs next, `last` having run there until
    /// now. The world already has it waiting or asleep, and the CPU free.
    fn do_schedule(
        &mut self,
        world: &World,
        cpu: CpuId,
        last: Option<Ran>,
        orders: &mut Orders,
    ) -> Pick;

    /// Time has passed; called for every CPU, in order, every
    /// [`TICK`].
    fn tick(&mut self, world: &World, cpu: CpuId, orders: &mut Orders);

    /// Puts a vCPU on another CPU, on which it may run. One that runs is kicked
    /// off and goes there; one that sleeps will wake up there.
    fn migrate(&mut self, world: &World, vcpu: VcpuId, to: CpuId, orders: &mut Orders);

    /// Checks whether a domain could have these parameters. The engine puts
    /// them into the world if so.
    fn adjust(
        &mut self,
        world: &World,
        domain: DomainId,
        params: &Params,
    ) -> Result<(), InvalidParams>;

    /// Describes its state, for people.
    fn dump(&self, world: &World) -> Dump;

    /// The CPU in whose queue a vCPU is, or to which it belongs while it runs
    /// or sleeps.
    fn home(&self, vcpu: VcpuId) -> Option<CpuId>;

    /// Lists the vCPUs that wait in the queue of a CPU, front first.
    fn waiting(&self, cpu: CpuId) -> Vec<VcpuId>;
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "policy {}", self.policy)?;
        for queue in &self.queues {
            write!(f, "{}:", queue.cpu)?;
            for (vcpu, key) in &queue.waiting {
                write!(f, " {vcpu}({key})")?;
            }
            for (vcpu, until) in &queue.parked {
                write!(f, " {vcpu}(until {until})")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
