//! Scheduling of VMs' vCPUs on a host: what is wanted, and the present state.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A policy's name.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SchedPolicy {
    /// Round robin.
    Rr,
    /// Borrowed virtual time.
    Bvt,
    /// Reservations, none beyond what there is.
    Atropos,
    /// Simple earliest deadline first.
    Sedf,
    /// Credit.
    Credit,
    /// Credit2.
    Credit2,
    /// The host's default.
    Cfs,
    /// The default with siblings apart.
    Balance,
    /// Gangs that any vCPU starts.
    Procco,
    /// Gangs that CPU 0 starts.
    Cpuco,
    /// Self-boosted co-scheduling.
    Sbco,
    /// Speed balancing.
    Speed,
}

/// There is no policy of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no such policy: choose one of rr, bvt, atropos, sedf, credit, credit2, cfs, balance, procco, cpuco, sbco, speed"
)]
pub struct UnknownPolicy;

impl SchedPolicy {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Rr,
        Self::Bvt,
        Self::Atropos,
        Self::Sedf,
        Self::Credit,
        Self::Credit2,
        Self::Cfs,
        Self::Balance,
        Self::Procco,
        Self::Cpuco,
        Self::Sbco,
        Self::Speed,
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Bvt => "bvt",
            Self::Atropos => "atropos",
            Self::Sedf => "sedf",
            Self::Credit => "credit",
            Self::Credit2 => "credit2",
            Self::Cfs => "cfs",
            Self::Balance => "balance",
            Self::Procco => "procco",
            Self::Cpuco => "cpuco",
            Self::Sbco => "sbco",
            Self::Speed => "speed",
        }
    }
}

impl fmt::Display for SchedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for SchedPolicy {
    type Err = UnknownPolicy;
    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or(UnknownPolicy)
    }
}

/// Relation of a domain's vCPUs: whether they work on one thing and wait for
/// each other.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Parallel {
    /// They do: worth keeping together.
    Yes,
    /// Not known to.
    #[default]
    No,
}

/// SchedLevel of the dispatcher's intervention with a VM.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SchedLevel {
    /// Watches.
    #[default]
    Observe,
    /// Sets affinity, niceness and deadlines, and lets the host schedule.
    Place,
    /// Decides which vCPUs run, by freezing the others.
    Enforce,
}

/// By what turns are enforced.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchedMeans {
    /// Threads that are not to run are frozen.
    #[default]
    Freezer,
    /// The kernel is told whose turn it is.
    SchedExt,
}

/// `PUT /v1/vms/{vm}/sched`: how a VM's vCPUs are to be scheduled. What is absent stays as it is.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedSettings {
    /// Level of intervention. With a policy, enforce; but place under balance, procco, cpuco and
    /// sbco unless the vCPUs wait for each other.
    pub level: Option<SchedLevel>,
    /// The policy: of all VMs of the host that are scheduled, for they share the CPUs.
    pub policy: Option<SchedPolicy>,
    /// Relation of its vCPUs.
    pub parallel: Option<Parallel>,
    /// Weight; 256 is usual.
    #[cfg_attr(feature = "schema", schema(maximum = 4_294_967_295_u32))]
    pub weight: Option<u32>,
    /// Cap in per cent of one CPU; 0 lifts it. Under credit.
    #[cfg_attr(feature = "schema", schema(maximum = 4_294_967_295_u32))]
    pub cap: Option<u32>,
    /// Time reserved for each vCPU, in µs of every period; 0 for none. Under sedf and atropos.
    pub slice_us: Option<u64>,
    /// The period, in µs.
    pub period_us: Option<u64>,
}

/// `PUT /v1/sched/processes/{pid}`: how the vCPUs of any QEMU of the host are to be scheduled.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedProcess {
    /// Threads of its vCPUs, in the guest's order; found by their names if absent.
    pub threads: Option<Vec<u32>>,
    /// The settings.
    pub settings: SchedSettings,
}

/// A vCPU, over the last second.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VcpuSched {
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

/// Reason for which a VM is let go for a while.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SchedPause {
    /// The VM's vCPUs block often: they give their CPUs away by themselves.
    Blocks,
    /// None waits for a CPU.
    Alone,
}

/// A VM that is scheduled.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmSched {
    /// Name of the VM.
    pub name: String,
    /// The QEMU's process.
    pub pid: u32,
    /// SchedLevel of intervention that is wanted.
    pub level: SchedLevel,
    /// Present level of intervention.
    pub now: SchedLevel,
    /// Reason for which that is less far, if it is.
    pub because: Option<SchedPause>,
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
    pub vcpus: Vec<VcpuSched>,
}

/// A CPU, and the vCPUs it is meant for.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuSched {
    /// The host's number of it.
    pub cpu: u32,
    /// Threads waiting in its queue, front first.
    pub waiting: Vec<u32>,
    /// The thread it is meant to run.
    pub running: Option<u32>,
}

/// State of a host's dispatcher, and of the VMs that it schedules.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedState {
    /// The policy.
    pub policy: SchedPolicy,
    /// By what it is enforced.
    #[serde(default)]
    pub means: SchedMeans,
    /// The part of one CPU that the dispatcher itself took in the last second.
    pub own: f64,
    /// The CPU time it has taken in all, in ns.
    pub own_ns: u64,
    /// The process that lets everything go should the dispatcher die.
    pub guard: u32,
    /// Times it changed the running vCPU, in all.
    pub switches: u64,
    /// The CPUs.
    pub cpus: Vec<CpuSched>,
    /// The VMs.
    pub vms: Vec<VmSched>,
}
