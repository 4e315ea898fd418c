//! The engine: a trait for what Forkyard needs of a virtual machine monitor,
//! and stock QEMU behind it.
//!
//! ```text
//! boot  ------------------------------> Machine --stop, freeze_disk, save_descriptor, cont--+
//! shell --> Shell (memory and disk open) --load(descriptor)--> Machine <-- adopt(record)    |
//!             ^------------------------- the state of the parent --------------------------+
//! ```
//!
//! A QEMU runs without privileges, in a session, sandbox, cgroup and root of its
//! own, and outlives the daemon that started it. Everything it uses in its VM's
//! directory it inherits as an open descriptor, so that the directory may
//! belong to the daemon alone; of other files it sees those of its disk and its
//! memory, and what it takes to run.
//!
//! Decides nothing: no ids, paths, users or sizes are chosen here. Memory is
//! neither read nor copied here either; [`Machine::ram`] says where it lies.

mod accel;
mod argv;
mod calls;
mod cgroup;
pub mod console;
mod cpu;
mod disk;
mod engine;
mod error;
pub mod files;
mod growth;
mod inherited;
mod jail;
mod layout;
mod link;
mod machine;
mod process;
mod qemu;
mod qemu_log;
mod qmp;
mod region;
mod resources;
mod rotating_log;
mod sched_boost;
mod shell;
mod spec;

pub use accel::{Accel, AccelChoice, Probe, UnknownAccel, Verdict};
pub use console::Console;
pub use engine::{Cause, Copied, Engine, Machine, Overlay, RunState, Shell, Told};
pub use error::{QmpError, VmmError, VmmErrorKind};
pub use forkyard_sys_host::userfault::Userfault;
pub use growth::{
    BLOCK, MOST_DISK, Ungrown, check_disk, check_memory, check_vcpus, most_memory, most_vcpus,
};
pub use layout::page_of_frames;
pub use machine::QemuMachine;
pub use process::{Exit, ProcessId};
pub use qemu::{Qemu, QemuConfig};
pub use region::Region;
pub use sched_boost::SchedBoost;
pub use shell::QemuShell;
pub use spec::{
    BootSpec, DataDrive, Kernel, Limits, MachineRecord, MachineSpec, Nic, Owner, RootDisk,
    ShellSpec,
};
