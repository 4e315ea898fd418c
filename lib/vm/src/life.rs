//! The states of a VM, as this daemon knows them.
//!
//! ```text
//!            .--------------- boots again ----------------.
//!            v                                            |
//! .--> Starting --> Running <--> Paused     Ending --> Stopped
//! |                  |  ^ `--------'----------^
//! record             v  |
//!                 Unreached (by a new daemon)      Checkpoint: never runs
//! ```
//!
//! What can be said of a VM in one state alone lies in that state: one that stopped has no
//! machine and no silence. Each state says what is recorded of it, which is what the next
//! daemon finds.

use crate::lock;
use forkyard_agent_link::Guest;
use forkyard_capture::MemoryRegion;
use forkyard_types::{ByteCount, PAGE_SIZE, VmState};
use forkyard_vmm::Machine;
use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicBool, Ordering},
};

/// The state of a VM.
#[derive(Clone, Debug)]
pub enum Life {
    /// The VM boots, or is being cloned. Nothing is served to its guest yet.
    Starting {
        /// Machine, once there is one.
        body: Option<Arc<RunningVm>>,
        /// True if it had stopped, and is recorded so until it runs: a daemon that dies
        /// meanwhile leaves it stopped.
        again: bool,
    },
    /// The guest runs.
    Running(Arc<RunningVm>),
    /// The VM is paused at its user's request.
    Paused(Arc<RunningVm>),
    /// The machine runs as far as is known, but connecting to it failed; that is
    /// retried.
    Unreached {
        /// Reason.
        why: String,
        /// True if it is paused at its user's request.
        paused: bool,
    },
    /// The machine is being ended.
    Ending,
    /// The VM has no machine.
    Stopped,
    /// The VM never runs: a snapshot of another VM.
    Checkpoint,
}

impl Life {
    /// Returns the state to record; none: as before.
    pub fn recorded(&self) -> Option<VmState> {
        match self {
            Self::Starting { again: false, .. } => Some(VmState::Starting),
            Self::Starting { again: true, .. } | Self::Stopped => Some(VmState::Stopped),
            Self::Running(_) | Self::Unreached { paused: false, .. } => Some(VmState::Running),
            Self::Paused(_) | Self::Unreached { paused: true, .. } => Some(VmState::Paused),
            Self::Checkpoint => Some(VmState::Checkpoint),
            Self::Ending => None,
        }
    }

    /// As users see it.
    pub fn shown(&self) -> VmState {
        match self {
            Self::Starting { .. } => VmState::Starting,
            Self::Running(_) | Self::Unreached { paused: false, .. } => VmState::Running,
            Self::Paused(_) | Self::Unreached { paused: true, .. } => VmState::Paused,
            Self::Ending => VmState::Ending,
            Self::Stopped => VmState::Stopped,
            Self::Checkpoint => VmState::Checkpoint,
        }
    }

    /// Returns the machine, if there is one that is connected to.
    pub fn running(&self) -> Option<&Arc<RunningVm>> {
        match self {
            Self::Running(body) | Self::Paused(body) => Some(body),
            Self::Starting { body, .. } => body.as_ref(),
            Self::Unreached { .. } | Self::Ending | Self::Stopped | Self::Checkpoint => None,
        }
    }

    /// Tells whether the guest runs, or would if it were not paused.
    pub fn is_running(&self) -> bool {
        match self {
            Self::Running(_) | Self::Paused(_) | Self::Unreached { .. } => true,
            Self::Starting { .. } | Self::Ending | Self::Stopped | Self::Checkpoint => false,
        }
    }

    /// Tells whether the user wants the VM paused.
    pub fn is_paused(&self) -> bool {
        match self {
            Self::Paused(_) | Self::Unreached { paused: true, .. } => true,
            Self::Starting { .. }
            | Self::Running(_)
            | Self::Unreached { paused: false, .. }
            | Self::Ending
            | Self::Stopped
            | Self::Checkpoint => false,
        }
    }

    /// Returns the percent of the last time in which its programs waited for memory, if that is much.
    pub fn memory_wait(&self) -> Option<u8> {
        let percent = self.running()?.guest.memory_wait();
        (percent > 0).then_some(percent)
    }

    /// Returns why it does not answer, if it does not.
    pub fn silence(&self) -> Option<String> {
        match self {
            Self::Unreached { why, .. } => Some(why.clone()),
            Self::Starting { .. }
            | Self::Running(_)
            | Self::Paused(_)
            | Self::Ending
            | Self::Stopped
            | Self::Checkpoint => self.running()?.silence(),
        }
    }
}

/// A machine that is connected to, and its guest.
#[derive(Debug)]
pub struct RunningVm {
    /// The machine.
    pub machine: Box<dyn Machine>,
    /// The agent of its guest.
    pub guest: Guest,
    noted: OnceLock<bool>,
    /// Reason why it does not answer, if it does not.
    silence: Mutex<Option<String>>,
    /// True if the VM was asked to end.
    stopping: AtomicBool,
    /// The console's end when the VM came up.
    former_words: OnceLock<Vec<u8>>,
}

impl RunningVm {
    /// A machine that is connected to.
    pub fn new(machine: Box<dyn Machine>, guest: Guest) -> Self {
        Self {
            machine,
            guest,
            noted: OnceLock::new(),
            silence: Mutex::default(),
            stopping: AtomicBool::default(),
            former_words: OnceLock::new(),
        }
    }

    /// Tells whether the kernel notes writes to the VM's memory, from the first
    /// call on.
    pub fn is_noted(&self, memory: MemoryRegion) -> bool {
        *self.noted.get_or_init(|| {
            let Some(log) = self.machine.write_log() else {
                return false;
            };
            let len = ByteCount(memory.pages.0 * PAGE_SIZE as u64);
            match log.watch(memory.start, len) {
                Ok(()) => true,
                Err(error) => {
                    tracing::info!(%error, "writes to memory are not noted");
                    false
                }
            }
        })
    }

    /// Notes that it does not answer, for this reason; or that it does again. Returns what was
    /// noted before. For a VM that is listed, `Vm::set_unresponsive` tells of it, too.
    pub fn set_unresponsive(&self, why: Option<String>) -> Option<String> {
        std::mem::replace(&mut *lock(&self.silence), why)
    }

    /// Returns why it does not answer, if it does not.
    pub fn silence(&self) -> Option<String> {
        lock(&self.silence).clone()
    }

    /// Notes that it was asked to end.
    pub fn note_stopping(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Tells whether the VM was asked to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Notes the last words that the console holds of a former life. The first call counts.
    pub fn note_former_words(&self, said: Vec<u8>) {
        self.former_words.get_or_init(|| said);
    }

    /// Returns the last words of a former life: the console's end when the VM came up.
    pub fn former_words(&self) -> &[u8] {
        self.former_words.get().map_or(&[], Vec::as_slice)
    }
}
