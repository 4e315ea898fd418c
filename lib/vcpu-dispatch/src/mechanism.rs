//! By what turns are enforced: the freezer, or sched_ext.
//!
//! ```text
//! policy's decision --> Freezer:  a group for each thread, frozen or not
//!                   \-> SchedExt: every vCPU's turn, told to a scheduler in BPF
//! ```
//!
//! The freezer stops threads that are not to run, and is there on every kernel. With
//! sched_ext the kernel asks a program of ours what a CPU is to run: none is
//! stopped, and nothing but the turn keeps a thread from running.

use crate::{DispatchError, guard::DispatchGuard, protocol::Means, sched_ext::SchedExt};
use std::path::Path;

/// By what turns are enforced.
#[derive(Debug)]
pub enum Mechanism {
    /// Threads that are not to run are frozen.
    Freezer,
    /// The kernel is told whose turn it is.
    SchedExt(SchedExt),
}

impl Mechanism {
    /// sched_ext, with the scheduler that was compiled to `object`. It is loaded
    /// when a VM is first enforced. Refuses at once where the kernel has no
    /// sched_ext, another scheduler has it, or this was built without.
    pub fn sched_ext(object: &Path) -> Result<Self, DispatchError> {
        Ok(Self::SchedExt(SchedExt::new(object)?))
    }

    /// Returns the means.
    pub fn means(&self) -> Means {
        match self {
            Self::Freezer => Means::Freezer,
            Self::SchedExt(_) => Means::SchedExt,
        }
    }
}

/// CPU time that a thread is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// On this CPU, by the host's number.
    On(u32),
    /// Nowhere yet.
    Waits,
    /// The vCPU slept: anywhere, should it wake.
    Free,
}

/// Means that act on threads, and the guard that undoes it.
#[derive(Debug)]
pub(crate) struct Hands {
    pub(crate) guard: DispatchGuard,
    pub(crate) mechanism: Mechanism,
}
