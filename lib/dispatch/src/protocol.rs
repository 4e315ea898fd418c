//! Messages of the dispatcher's socket: one JSON value a line, an answer to
//! each.

use forkyard_sched::{Parallel, Policy};
use serde::{Deserialize, Serialize};

/// Level of the dispatcher's intervention with a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Watches.
    #[default]
    Observe,
    /// Sets affinity, niceness and deadlines, and lets the host schedule.
    Place,
    /// Decides which vCPUs run, by freezing the others.
    Enforce,
}

/// By what turns are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Means {
    /// Threads that are not to run are frozen.
    #[default]
    Freezer,
    /// The kernel is told whose turn it is.
    SchedExt,
}

/// Settings of a VM. What is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wanted {
    /// The QEMU's process.
    pub pid: u32,
    /// Name to give it.
    pub name: Option<String>,
    /// Threads of its vCPUs, in the guest's order; found by their names if
    /// absent.
    pub threads: Option<Vec<u32>>,
    /// Level of intervention.
    pub level: Option<Level>,
    /// The policy: of all VMs, for they share the CPUs.
    pub policy: Option<Policy>,
    /// True if its vCPUs wait for each other.
    pub parallel: Option<Parallel>,
    /// Weight; 256 is usual.
    pub weight: Option<u32>,
    /// Cap in per cent of one CPU; 0 lifts it.
    pub cap: Option<u32>,
    /// Time reserved for each vCPU, in µs of every period; 0 for none.
    pub slice_us: Option<u64>,
    /// The period, in µs.
    pub period_us: Option<u64>,
}

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// Schedule a VM so.
    Set(Wanted),
    /// Let a VM go, and forget it.
    Release {
        /// The QEMU's process.
        pid: u32,
    },
    /// Tell everything.
    Show,
}

/// A vCPU, over the last second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VcpuShown {
    /// The guest's number of it.
    pub index: u32,
    /// Thread of the vCPU.
    pub tid: u32,
    /// The CPU it is meant to be on.
    pub cpu: Option<u32>,
    /// The part of a CPU it had.
    pub share: f64,
    /// Time running of time running and waiting.
    pub speed: f64,
    /// Time its turns have given it since it was first scheduled, in ns.
    pub given_ns: u64,
    /// Time it has waited for them, in ns.
    pub waited_ns: u64,
    /// True if a sibling is meant to be on the same CPU.
    pub stacked: bool,
    /// Place in its queue; absent if it does not wait.
    pub ordinate: Option<u32>,
}

/// Why a VM is let go for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Because {
    /// The VM's vCPUs block often: they give their CPUs away by themselves.
    Blocks,
    /// None waits for a CPU.
    Alone,
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmShown {
    /// Name of the VM.
    pub name: String,
    /// The QEMU's process.
    pub pid: u32,
    /// Level of intervention that is wanted.
    pub level: Level,
    /// Present level of intervention.
    pub now: Level,
    /// Why that is less far, if it is.
    pub because: Option<Because>,
    /// Weight.
    pub weight: u32,
    /// Cap in per cent of a CPU.
    pub cap: Option<u32>,
    /// True if its vCPUs wait for each other.
    pub parallel: Parallel,
    /// Sleeps of a vCPU a second.
    pub sleeps: f64,
    /// The part of the time that a vCPU sleeps.
    pub asleep: f64,
    /// Greatest difference of its waiting vCPUs' places.
    pub distance: u32,
    /// vCPUs of the VM.
    pub vcpus: Vec<VcpuShown>,
}

/// A CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuShown {
    /// The host's number of it.
    pub cpu: u32,
    /// Threads waiting in its queue, front first.
    pub waiting: Vec<u32>,
    /// The thread it is meant to run.
    pub running: Option<u32>,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// The policy.
    pub policy: Policy,
    /// By what it is enforced.
    #[serde(default)]
    pub means: Means,
    /// The part of one CPU that the dispatcher itself took in the last second.
    pub own: f64,
    /// The CPU time it has taken in all, in ns.
    pub own_ns: u64,
    /// The process that lets everything go should the dispatcher die.
    pub guard: u32,
    /// Times it changed the running vCPU, in all.
    pub switches: u64,
    /// The CPUs.
    pub cpus: Vec<CpuShown>,
    /// The VMs.
    pub vms: Vec<VmShown>,
}

/// Answer of the dispatcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    /// State of the dispatcher, once the request is carried out.
    Done(Shown),
    /// Why not.
    Refused(String),
}
