//! Use that VMs make of their host, at one instant.

use crate::{ByteCount, VmView};
use serde::{Deserialize, Serialize};

/// `GET /v1/usage`: what every VM has used of the host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Usage {
    /// Time of the look, in microseconds of the host's uptime: the
    /// difference between two answers is the time between them.
    pub at_us: u64,
    /// Processors of the host.
    pub cpus: u32,
    /// Processor time that the host wanted and did not get since it started, being
    /// virtual itself, in microseconds of all its processors together.
    pub stolen_us: u64,
    /// Every VM, the oldest first.
    pub vms: Vec<VmUsage>,
}

/// Resources one VM has used.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmUsage {
    /// The VM.
    pub vm: VmView,
    /// Processor time its QEMU has used since it started, in microseconds;
    /// 0 for a VM that does not run, as the sizes below.
    pub cpu_us: u64,
    /// Time its virtual processors have waited for one of the host's, in
    /// microseconds: what it has wanted and not got.
    pub waited_us: u64,
    /// Bytes of the host's memory its QEMU has mapped, shared ones included.
    pub resident: ByteCount,
    /// Bytes of these that are its own.
    pub private: ByteCount,
    /// Forks of it so far.
    pub forks: u32,
    /// Clones kept warm for its next fork; 0 while a fork is under way.
    pub warm: u16,
}

/// Use that a guest makes of what its machine has, as its own kernel counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestUsage {
    /// Virtual processors that are online.
    pub vcpus: u32,
    /// Ticks since the guest booted in which they worked, of all of them together.
    pub busy: u64,
    /// All ticks since the guest booted.
    pub ticks: u64,
    /// Memory that its kernel has for use.
    pub memory: ByteCount,
    /// Memory that programs and the kernel use, caches that can be dropped left out.
    pub memory_used: ByteCount,
    /// Content of files that is kept in memory.
    pub memory_cache: ByteCount,
    /// Size of its root file system.
    pub disk: ByteCount,
    /// Bytes of that which are not free.
    pub disk_used: ByteCount,
}
