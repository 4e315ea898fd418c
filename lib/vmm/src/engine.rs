//! What Forkyard needs of a virtual machine monitor.

use crate::{BootSpec, Console, Exit, MachineRecord, Precedence, Region, ShellSpec, VmmError};
use forkyard_sys_host::userfault::Userfault;
use std::{
    future::Future,
    path::{Path, PathBuf},
};

/// Makes machines.
pub trait Engine: Send + Sync {
    /// A machine that runs, or did.
    type Machine: Machine;
    /// A machine that waits for a state.
    type Shell: Shell<Machine = Self::Machine>;

    /// Starts a machine that boots; returns once its vCPUs run.
    /// Cancel-safe: a machine not returned is killed.
    fn boot(&self, spec: BootSpec) -> impl Future<Output = Result<Self::Machine, VmmError>> + Send;

    /// Starts a machine that waits for a state, its memory mapped and its disk
    /// open. Cancel-safe: a shell not returned is killed.
    fn shell(&self, spec: ShellSpec) -> impl Future<Output = Result<Self::Shell, VmmError>> + Send;

    /// Takes charge of a machine that an earlier daemon started.
    /// [`VmmError::Gone`] if its process is no more. Cancel-safe.
    fn adopt(
        &self,
        record: MachineRecord,
    ) -> impl Future<Output = Result<Self::Machine, VmmError>> + Send;

    /// Ends a machine known by its record alone, whatever state it is in, and
    /// removes what is left of it on the host, its directory excepted. No
    /// error if there is nothing left. Cancel-safe: call it again.
    fn discard(&self, record: &MachineRecord) -> impl Future<Output = Result<(), VmmError>> + Send;
}

/// A machine complete with memory and disk, waiting for a state. Dropping it
/// kills it.
pub trait Shell: Send + Sync + 'static {
    /// What it becomes.
    type Machine: Machine;

    /// What [`Engine::discard`] needs should the daemon die.
    fn record(&self) -> &MachineRecord;

    /// Takes a state as [`Machine::save_descriptor`] gave it; returns once the
    /// vCPUs run. If it fails the shell has ended and is cleaned up.
    /// Cancel-safe: a machine not returned is killed.
    fn load(
        self,
        descriptor: &[u8],
    ) -> impl Future<Output = Result<Self::Machine, VmmError>> + Send;

    /// Ends it and removes what is left of it. Cancel-safe: it ends anyway.
    fn kill(self) -> impl Future<Output = Result<(), VmmError>> + Send;

    /// Resolves once it has ended. Cancel-safe.
    fn exited(&self) -> impl Future<Output = Exit> + Send + 'static;
}

/// A machine that runs, or did. Dropping it leaves it running: the next
/// daemon adopts it by its record.
///
/// Every call is bounded in time. Unless said otherwise a call is cancel-safe
/// in that the machine stays usable, but what was asked may still happen.
pub trait Machine: Send + Sync + 'static {
    /// All it takes to adopt it.
    fn record(&self) -> &MachineRecord;

    /// Socket of the guest's agent. Listens from the start; one client at a time.
    fn agent_socket(&self) -> &Path;

    /// The guest's serial console.
    fn console(&self) -> &Console;

    /// Has the threads that serve the machine, not those that run its guest, go
    /// before all guests of the host until this is dropped: for as long as the
    /// guest stands still and waits for them. Nothing where the host forbids it.
    fn precedence(&self) -> Precedence;

    /// Stops the vCPUs. No error if they stand still.
    fn stop(&self) -> impl Future<Output = Result<(), VmmError>> + Send;

    /// Lets the vCPUs go on. No error if they run.
    fn cont(&self) -> impl Future<Output = Result<(), VmmError>> + Send;

    /// Asks what the machine is doing.
    fn run_state(&self) -> impl Future<Output = Result<RunState, VmmError>> + Send;

    /// The file its disk is written to, as the machine has it; none without a
    /// disk.
    fn active_slice(&self) -> impl Future<Output = Result<Option<PathBuf>, VmmError>> + Send;

    /// Opens an empty slice over the VM's active one: the part of a freeze
    /// that need not wait for the pause. The file's header must name the
    /// active slice's file as its backing, for those who open it later.
    ///
    /// If cancelled, the slice may stay open until the machine is adopted anew.
    fn prepare_overlay(
        &self,
        path: &Path,
    ) -> impl Future<Output = Result<Overlay, VmmError>> + Send;

    /// Makes the overlay the active slice; the former one is never written
    /// again. The vCPUs must stand still for it to match a descriptor.
    fn freeze_disk(&self, overlay: Overlay) -> impl Future<Output = Result<(), VmmError>> + Send;

    /// Copies the slices over `base`, the uppermost first of `upper`, into
    /// `base`, and takes them out of the disk; the guest runs on. All must be frozen,
    /// opened by this machine as its own, and used by no other. No slice may
    /// be frozen meanwhile. Once `give_up` resolves it is called off: then it fails,
    /// and the disk is as it was.
    ///
    /// If cancelled, it is carried out all the same until the next call.
    fn fold_disk(
        &self,
        upper: &[PathBuf],
        base: &Path,
        give_up: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = Result<(), VmmError>> + Send;

    /// The same the other way: copies them into the active slice. They may be
    /// anyone's and stay as they are; the active one must have nothing opened
    /// over it, by anyone. Called off, what was copied stays: the disk reads
    /// the same.
    fn lift_disk(
        &self,
        upper: &[PathBuf],
        base: &Path,
        give_up: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = Result<(), VmmError>> + Send;

    /// Closes an overlay that was not used.
    fn discard_overlay(
        &self,
        overlay: Overlay,
    ) -> impl Future<Output = Result<(), VmmError>> + Send;

    /// Saves the state of CPUs and devices, without memory and disks. The
    /// vCPUs must stand still.
    fn save_descriptor(&self) -> impl Future<Output = Result<Vec<u8>, VmmError>> + Send;

    /// Where the guest's memory lies in the address space of the process.
    fn ram(&self) -> impl Future<Output = Result<Region, VmmError>> + Send;

    /// What it takes to have the kernel note which pages of its memory are
    /// written; none where the kernel or the engine has no such thing.
    fn write_log(&self) -> Option<Userfault>;

    /// Ends it at once and removes what is left of it on the host, its
    /// directory excepted. No error if it has ended. Cancel-safe: call again.
    fn kill(&self) -> impl Future<Output = Result<(), VmmError>> + Send;

    /// Ends it with its disks in good order, then does as [`Machine::kill`].
    fn quit(&self) -> impl Future<Output = Result<(), VmmError>> + Send;

    /// Resolves once its vCPUs were last seen to stop, by whatever; never after its
    /// end. Cancel-safe.
    fn stopped(&self) -> impl Future<Output = ()> + Send + 'static;

    /// Resolves once its process has ended. Cancel-safe.
    fn exited(&self) -> impl Future<Output = Exit> + Send + 'static;

    /// What ended it, as far as it said so before; to be asked once it has ended.
    /// Cancel-safe.
    fn cause(&self) -> impl Future<Output = Cause> + Send + 'static;
}

/// What ended a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Its guest switched it off.
    PoweredOff,
    /// Its guest reset it: to restart, or because its kernel gave up.
    Reset,
    /// It was told to end by this program or the host.
    Told,
    /// It said nothing: it was killed, or failed.
    #[default]
    Unknown,
}

/// What a machine is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunState {
    /// Its vCPUs run.
    Running,
    /// It was stopped on request, or is being saved.
    Paused,
    /// It has no state yet.
    Waiting,
    /// It stopped by itself: the accelerator, a disk or the guest's kernel failed.
    Failed,
    /// The guest switched it off.
    Ended,
}

/// A slice that is open but not yet in use.
#[derive(Debug)]
#[must_use = "an overlay stays open until it is used or discarded"]
pub struct Overlay {
    pub(crate) number: u64,
    /// The slice that was active when this one was opened.
    pub(crate) over: u64,
    pub(crate) path: PathBuf,
}

impl Overlay {
    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
