//! Interface to a virtual machine monitor.

use crate::{
    Accel, AccelChoice, BootSpec, Console, Exit, MachineRecord, Probe, Region, SchedBoost,
    ShellSpec, Verdict, VmmError,
};
use async_trait::async_trait;
use forkyard_sys_host::userfault::Userfault;
use forkyard_types::{ByteCount, GuestCpu, VmId};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    num::NonZeroU8,
    path::{Path, PathBuf},
};

/// Makes machines.
///
/// An object, so that a host can be run on another engine than QEMU: what is above
/// knows machines by these three traits alone. Every engine passes the same
/// conformance suite.
#[async_trait]
pub trait Engine: fmt::Debug + Send + Sync {
    /// Chooses an accelerator; a proof is remembered in `cache`. Takes up to
    /// [`Probe::within`] once for each kernel. Cancel-safe.
    async fn choose_accel(
        &self,
        choice: AccelChoice,
        probe: &Probe,
        cache: &Path,
    ) -> Result<Verdict, VmmError>;

    /// Starts a machine that boots; returns once its vCPUs run.
    /// Cancel-safe: a machine not returned is killed.
    async fn boot(&self, spec: BootSpec) -> Result<Box<dyn Machine>, VmmError>;

    /// Starts a machine that waits for a state, its memory mapped and its disk
    /// open. Cancel-safe: a shell not returned is killed.
    async fn shell(&self, spec: ShellSpec) -> Result<Box<dyn Shell>, VmmError>;

    /// Takes charge of a machine that an earlier daemon started.
    /// [`VmmError::Gone`] if its process is no more. Cancel-safe.
    async fn adopt(&self, record: MachineRecord) -> Result<Box<dyn Machine>, VmmError>;

    /// Ends a machine known by its record alone, whatever state it is in, and
    /// removes what is left of it on the host, its directory excepted. No
    /// error if there is nothing left. Cancel-safe: call it again.
    async fn discard(&self, record: &MachineRecord) -> Result<(), VmmError>;

    /// Lists the VMs that processes may run for, recorded or not: what a daemon that
    /// died may have left. Blocks for a listing.
    fn vms(&self) -> Result<Vec<VmId>, VmmError>;

    /// Ends whatever runs for a VM. No error if nothing does. Cancel-safe: call it
    /// again.
    async fn end_processes(&self, vm: VmId) -> Result<(), VmmError>;

    /// Ends whatever runs for a VM, and removes the sockets in its directory: what a
    /// daemon leaves that dies before it has recorded a machine. No error if there is
    /// nothing. Cancel-safe: call it again.
    async fn clear(&self, vm: VmId, dir: &Path) -> Result<(), VmmError>;

    /// Says which CPU its guests are given. Blocks for a start of its program, once.
    fn cpu(&self, accel: Accel) -> Result<GuestCpu, VmmError>;

    /// Names the features that a guest must not be given for its CPU to have no more than this one
    /// has. Blocks for a start of its program, once.
    fn withhold(&self, accel: Accel, most: &GuestCpu) -> Result<Vec<String>, VmmError>;

    /// Says which program it runs, and of which version: a state that one has saved is not for
    /// others to load. Blocks for a start of that program, once.
    fn version(&self) -> Result<String, VmmError>;

    /// Removes what the engine itself has on the host, if no VM runs. It starts no more
    /// after this.
    fn close(&self) -> Result<(), VmmError>;
}

/// A machine complete with memory and disk, waiting for a state. Dropping it
/// kills it.
#[async_trait]
pub trait Shell: fmt::Debug + Send + Sync {
    /// Returns the record that [`Engine::discard`] needs should the daemon die.
    fn record(&self) -> &MachineRecord;

    /// Takes a state as [`Machine::save_descriptor`] gave it; returns once the
    /// vCPUs run. If it fails the shell has ended and is cleaned up.
    /// Cancel-safe: a machine not returned is killed.
    async fn load(self: Box<Self>, descriptor: &[u8]) -> Result<Box<dyn Machine>, VmmError>;

    /// Ends it and removes what is left of it. Cancel-safe: it ends anyway.
    async fn kill(self: Box<Self>) -> Result<(), VmmError>;

    /// Resolves once it has ended. Cancel-safe.
    fn exited(&self) -> BoxFuture<'static, Exit>;
}

/// A machine that runs, or did. Dropping it leaves it running: the next
/// daemon adopts it by its record.
///
/// Every call is bounded in time. Unless said otherwise a call is cancel-safe
/// in that the machine stays usable, but what was asked may still happen.
#[async_trait]
pub trait Machine: fmt::Debug + Send + Sync {
    /// All it takes to adopt it.
    fn record(&self) -> &MachineRecord;

    /// Socket of the guest's agent. Listens from the start; one client at a time.
    fn agent_socket(&self) -> &Path;

    /// The guest's serial console.
    fn console(&self) -> &Console;

    /// Has the threads that serve the machine, not those that run its guest, go
    /// before all guests of the host until this is dropped: for as long as the
    /// guest stands still and waits for them. None where the engine has no such threads.
    fn precedence(&self) -> Option<SchedBoost>;

    /// Stops the vCPUs. No error if they stand still.
    async fn stop(&self) -> Result<(), VmmError>;

    /// Lets the vCPUs go on. No error if they run.
    async fn cont(&self) -> Result<(), VmmError>;

    /// Asks what the machine is doing.
    async fn run_state(&self) -> Result<RunState, VmmError>;

    /// The file its disk is written to, as the machine has it; none without a
    /// disk.
    async fn active_slice(&self) -> Result<Option<PathBuf>, VmmError>;

    /// Opens an empty slice over the VM's active one: the part of a freeze
    /// that need not wait for the pause. The file's header must name the
    /// active slice's file as its backing, for programs that open it later.
    ///
    /// If cancelled, the slice may stay open until the machine is adopted anew.
    async fn prepare_overlay(&self, path: &Path) -> Result<Overlay, VmmError>;

    /// Makes the overlay the active slice; the former one is never written
    /// again. The vCPUs must stand still for it to match a descriptor.
    async fn freeze_disk(&self, overlay: Overlay) -> Result<(), VmmError>;

    /// Copies the slices over `base`, the uppermost first of `upper`, into
    /// `base`, and takes them out of the disk; the guest runs on. All must be frozen,
    /// opened by this machine as its own, and used by no other. No slice may
    /// be frozen meanwhile. Once `give_up` resolves it is called off: then it fails,
    /// and the disk is as it was.
    ///
    /// If cancelled, it is carried out all the same until the next call.
    async fn fold_disk(
        &self,
        upper: &[PathBuf],
        base: &Path,
        give_up: BoxFuture<'_, ()>,
    ) -> Result<(), VmmError>;

    /// Copies the slices below into the active one: the other direction. They
    /// may be shared and stay as they are; the active one must have nothing
    /// opened over it, by any process. Called off, what was copied stays: the disk
    /// reads the same.
    async fn lift_disk(
        &self,
        upper: &[PathBuf],
        base: &Path,
        give_up: BoxFuture<'_, ()>,
    ) -> Result<(), VmmError>;

    /// Copies all that the active slice lies over, files of these names, into it, a bounded number of bytes a second
    /// (0: no bound), and tells how far it is; the guest runs on. Then it lies over nothing. Nothing may be
    /// opened over it meanwhile by any machine. Called off, what was copied stays: the disk reads the same. No
    /// error if it lies over nothing already.
    ///
    /// If cancelled, it is carried out all the same until the next call.
    async fn own_disk(
        &self,
        below: &[PathBuf],
        speed: ByteCount,
        told: Told<'_>,
        give_up: BoxFuture<'_, ()>,
    ) -> Result<(), VmmError>;

    /// Closes an overlay that was not used.
    async fn discard_overlay(&self, overlay: Overlay) -> Result<(), VmmError>;

    /// Saves the state of CPUs and devices, without memory and disks. The
    /// vCPUs must stand still.
    async fn save_descriptor(&self) -> Result<Vec<u8>, VmmError>;

    /// Adds processors one by one until it has so many; its guest finds them when it looks. It must
    /// have places for them ([`most_vcpus`](crate::most_vcpus)).
    async fn add_vcpus(&self, total: NonZeroU8) -> Result<(), VmmError>;

    /// Makes the active slice a disk of that size, which is no smaller than it was; its guest hears of it.
    /// A size that it has already is told again.
    async fn grow_disk(&self, size: ByteCount) -> Result<(), VmmError>;

    /// Finds the guest's memory in the address space of the process.
    async fn ram(&self) -> Result<Region, VmmError>;

    /// Returns the userfault descriptor by which the kernel notes which pages
    /// of its memory are written; none where the kernel or the engine has no
    /// such thing.
    fn write_log(&self) -> Option<Userfault>;

    /// Ends it at once and removes what is left of it on the host, its
    /// directory excepted. No error if it has ended. Cancel-safe: call again.
    async fn kill(&self) -> Result<(), VmmError>;

    /// Ends it with its disks in good order, then does as [`Machine::kill`].
    async fn quit(&self) -> Result<(), VmmError>;

    /// Resolves once its vCPUs were last seen to stop, by whatever; never after its
    /// end. Cancel-safe.
    fn stopped(&self) -> BoxFuture<'static, ()>;

    /// Resolves once the connection to it has broken: it may run on, and can be adopted.
    /// Cancel-safe.
    fn lost(&self) -> BoxFuture<'static, ()>;

    /// Resolves once its process has ended. Cancel-safe.
    fn exited(&self) -> BoxFuture<'static, Exit>;

    /// Returns the cause of its end, as far as it was announced; to be asked once
    /// it has ended. Cancel-safe.
    fn cause(&self) -> BoxFuture<'static, Cause>;
}

/// Cause of a machine's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Cause {
    /// The guest switched it off.
    PoweredOff,
    /// The guest reset it: to restart, or because its kernel gave up.
    Reset,
    /// This program or the host told it to end.
    Told,
    /// No cause was announced: it was killed, or failed.
    #[default]
    Unknown,
}

/// Run state of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RunState {
    /// The vCPUs run.
    Running,
    /// The machine was stopped on request, or is being saved.
    Paused,
    /// The machine has no state yet.
    Waiting,
    /// The machine stopped by itself: the accelerator, a disk or the guest's
    /// kernel failed.
    Failed,
    /// The guest switched it off.
    Ended,
}

/// Progress of the copy of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of the disk that are done.
    pub copied: ByteCount,
    /// Bytes of it that there are to do.
    pub total: ByteCount,
}

/// Hears how far a disk is copied, many times a second.
pub type Told<'a> = &'a (dyn Fn(Copied) + Send + Sync);

/// A slice that is open but not yet in use.
#[derive(Debug)]
#[must_use = "an overlay stays open until it is used or discarded"]
pub struct Overlay {
    /// The engine's number of it.
    pub number: u64,
    /// The slice that was active when this one was opened.
    pub over: u64,
    /// Path of the file.
    pub path: PathBuf,
}
