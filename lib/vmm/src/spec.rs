//! Specification of a machine, as its owner asks for it.

use crate::{Accel, ProcessId};
use forkyard_sys_host::process::Bounds;
use forkyard_types::{ByteCount, Mac, NbdDisk, VmId};
use serde::{Deserialize, Serialize};
use std::{num::NonZeroU8, os::fd::OwnedFd, path::PathBuf};

/// The user a QEMU runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// A network interface.
#[derive(Debug)]
pub struct Nic {
    /// An open queue of a tap.
    pub tap: OwnedFd,
    /// The guest's address on it. A clone's device state brings the parent's.
    pub mac: Mac,
}

/// Limits on a QEMU's use of the host: by cgroup v2, where that has the
/// controllers; and anywhere by resource limits, which count threads alike, but
/// of memory the mapped part, not the used one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Memory of the process, guest and all.
    pub memory: Option<ByteCount>,
    /// Threads.
    pub pids: Option<u32>,
}

impl Limits {
    /// As resource limits. What QEMU maps without using it, the cache of
    /// translated code and stacks, comes on top.
    pub(crate) fn bounds(self) -> Bounds {
        const UNUSED: u64 = 2 << 30;
        Bounds {
            threads: self.pids.map(u64::from),
            private: self.memory.map(|most| most.0 + UNUSED),
            file: None,
            processor: None,
        }
    }
}

/// Root disk that a machine starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootDisk {
    /// A slice, which the machine writes.
    Slice(PathBuf),
    /// A volume, which the machine writes. It has no slices: its server freezes it.
    Volume(NbdDisk),
}

/// Disk of a machine beside its root disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDrive {
    /// Serial number, by which the guest tells it: 20 characters at most.
    pub serial: String,
    /// Volume, or snapshot of one.
    pub disk: NbdDisk,
    /// True if the machine writes nothing to it.
    pub is_read_only: bool,
}

/// A machine, however its state comes to be. A parent and its clones differ
/// in nothing that the guest can see but the address of the interface.
#[derive(Debug)]
pub struct MachineSpec {
    /// The VM.
    pub id: VmId,
    /// Directory: exists, and no other machine's. QEMU needs no access.
    pub dir: PathBuf,
    /// User that QEMU runs as.
    pub owner: Owner,
    /// Number of vCPUs.
    pub vcpus: NonZeroU8,
    /// Size of its memory: whole MiB.
    pub memory: ByteCount,
    /// Memory that its guest found when it booted: all of it, unless the machine is made for a state
    /// of one that had less.
    pub booted: ByteCount,
    /// Accelerator.
    pub accel: Accel,
    /// Features of the CPU that it is not given, as the engine names them.
    pub withheld: Vec<String>,
    /// Disk: a qcow2 file that `owner` may write, over others it may read.
    pub disk: Option<RootDisk>,
    /// Other disks, 8 at most.
    pub data: Vec<DataDrive>,
    /// Folder of the socket of the server of volumes, if a disk is one, or lies over one.
    pub volumes: Option<PathBuf>,
    /// Network interface.
    pub nic: Option<Nic>,
    /// Limits on its use of the host.
    pub limits: Limits,
    /// True if its guest reports which pages are free, and the host takes them
    /// back.
    pub page_reporting: bool,
}

/// Kernel that a VM boots, given to it directly. `owner` can read the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// A bzImage, or an ELF file with a PVH entry.
    pub image: PathBuf,
    /// An initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// The kernel's command line.
    pub cmdline: String,
}

/// A machine that boots.
#[derive(Debug)]
pub struct BootSpec {
    /// The machine.
    pub machine: MachineSpec,
    /// Kernel to boot; none to boot what its firmware finds on the disk.
    pub kernel: Option<Kernel>,
}

/// A machine that waits for another's state.
#[derive(Debug)]
pub struct ShellSpec {
    /// The machine. Its disk is a slice over the parent's active one.
    pub machine: MachineSpec,
    /// File whose content its memory is a private view of. `owner` can open
    /// it for reading and writing, as QEMU does; it writes nothing.
    pub memory_file: PathBuf,
}

/// All it takes to find a machine again after a restart of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRecord {
    /// The VM.
    pub id: VmId,
    /// Directory of the machine.
    pub dir: PathBuf,
    /// QEMU of the machine.
    pub process: ProcessId,
    /// Size of its memory.
    pub memory: ByteCount,
    /// Accelerator.
    pub accel: Accel,
    /// QEMU's number of the descriptor it saves device state through; none of
    /// one that does so through a file in its jail.
    pub state_fd: Option<i32>,
    /// QEMU's number of the descriptor its memory is watched by, if it has one.
    pub track_fd: i32,
}
