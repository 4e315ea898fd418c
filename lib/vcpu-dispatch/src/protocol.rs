//! Messages of the dispatcher's socket: one JSON value a line, an answer to
//! each.

use forkyard_sched::{Parallel, Policy};
use forkyard_types::SchedSettings;
pub use forkyard_types::{
    CpuSched as CpuShown, SchedLevel as Level, SchedMeans as Means, SchedPause as Because,
    SchedState as Shown, VcpuSched as VcpuShown, VmSched as VmShown,
};
use serde::{Deserialize, Serialize};

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

impl Wanted {
    /// Settings of this process' VM.
    pub fn of(pid: u32, settings: SchedSettings) -> Self {
        let SchedSettings {
            level,
            policy,
            parallel,
            weight,
            cap,
            slice_us,
            period_us,
        } = settings;
        Self {
            pid,
            name: None,
            threads: None,
            level,
            policy,
            parallel,
            weight,
            cap,
            slice_us,
            period_us,
        }
    }
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

/// Answer of the dispatcher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    /// State of the dispatcher, once the request is carried out.
    Done(Shown),
    /// Reason for which the request cannot be carried out as it stands.
    Refused(String),
    /// Failure of the host.
    Failed(String),
}
