//! Reasons why a machine could not do what was asked of it.

use crate::{ProcessId, RunState};
use qapi::ErrorClass;
use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// Reason why the engine failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VmmError {
    /// QEMU could not be started.
    #[error("cannot start {}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// QEMU ended while something was asked of it.
    #[error("QEMU (pid {pid}) died, {}: {stderr}", Status(*status))]
    Died {
        /// Process id.
        pid: u32,
        /// Exit status; unknown of a process that is not our child.
        status: Option<ExitStatus>,
        /// The last it said.
        stderr: String,
    },
    /// The process of a record is no more.
    #[error("{process} is gone")]
    Gone {
        /// The process.
        process: ProcessId,
    },
    /// Something did not happen in time.
    #[error("{what} took longer than {after:?}")]
    Timeout {
        /// Kind of value that is wrong.
        what: &'static str,
        /// The patience it had.
        after: Duration,
    },
    /// QEMU would not do it, or the connection to it failed.
    #[error("QMP {command} failed")]
    Qmp {
        /// The command.
        command: &'static str,
        /// Cause.
        source: QmpError,
    },
    /// QEMU answered something that makes no sense.
    #[error("{command} answered {text:?}")]
    Answer {
        /// The command.
        command: &'static str,
        /// The answer.
        text: String,
    },
    /// The guest memory that QEMU names is no mapping of its process.
    #[error("no memory of process {pid} at {hva:#x}")]
    NoMemory {
        /// The process.
        pid: u32,
        /// The address QEMU gave.
        hva: u64,
    },
    /// The machine is not in the state the request needs.
    #[error("machine is {state:?}")]
    WrongState {
        /// State of the machine.
        state: RunState,
    },
    /// The machine has no disk to freeze.
    #[error("machine has no disk")]
    NoDisk,
    /// Another overlay was frozen since this one was prepared.
    #[error("{} no longer lies over the active slice", path.display())]
    StaleOverlay {
        /// File of the disk.
        path: PathBuf,
    },
    /// A slice is not one of those the machine opened itself.
    #[error("{} is no slice of this machine's own", path.display())]
    NoSlice {
        /// File of the disk.
        path: PathBuf,
    },
    /// Slices could not be folded. They are as they were.
    #[error("the disk's slices could not be folded: {said}")]
    Fold {
        /// Message of QEMU.
        said: String,
    },
    /// A path cannot be said to QEMU.
    #[error("{} is not UTF-8", path.display())]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// The host has no cgroup v2.
    #[error("no cgroup v2 file system is mounted")]
    NoCgroup,
    /// The host refused something.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// Operation that was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
}

/// Class of an error, for callers to branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VmmErrorKind {
    /// The machine's process has ended.
    Gone,
    /// The operation took too long; the machine may be in any state.
    Timeout,
    /// The request does not fit the state of the machine.
    Refused,
    /// The host or QEMU failed.
    Host,
}

impl VmmError {
    /// Classifies the error, in place of matching every variant.
    pub fn kind(&self) -> VmmErrorKind {
        match self {
            Self::Died { .. } | Self::Gone { .. } => VmmErrorKind::Gone,
            Self::Timeout { .. } => VmmErrorKind::Timeout,
            Self::Qmp { source, .. } => match source {
                QmpError::Timeout { .. } => VmmErrorKind::Timeout,
                QmpError::Refused { .. } => VmmErrorKind::Refused,
                QmpError::Connect { .. }
                | QmpError::Greeting { .. }
                | QmpError::Answer { .. }
                | QmpError::Closed => VmmErrorKind::Host,
            },
            Self::NoDisk
            | Self::NoSlice { .. }
            | Self::StaleOverlay { .. }
            | Self::WrongState { .. } => VmmErrorKind::Refused,
            Self::Spawn { .. }
            | Self::Answer { .. }
            | Self::NoMemory { .. }
            | Self::Fold { .. }
            | Self::Path { .. }
            | Self::NoCgroup
            | Self::Io { .. } => VmmErrorKind::Host,
        }
    }

    pub(crate) fn io(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}

/// Reason why a command was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QmpError {
    /// There is no listener.
    #[error("cannot connect to {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// The listener does not speak QMP.
    #[error("no QMP greeting")]
    Greeting {
        /// Fault of the greeting.
        source: io::Error,
    },
    /// QEMU refused the command.
    #[error("{class:?}: {desc}")]
    Refused {
        /// QEMU's classification.
        class: ErrorClass,
        /// Reason that QEMU gave.
        desc: String,
    },
    /// The answer is not of the form promised.
    #[error("answer not understood")]
    Answer {
        /// Fault of the answer.
        source: io::Error,
    },
    /// The connection broke before the answer.
    #[error("connection closed")]
    Closed,
    /// No answer came in time.
    #[error("no answer within {after:?}")]
    Timeout {
        /// The patience it had.
        after: Duration,
    },
}

/// End of a process, in words.
struct Status(Option<ExitStatus>);

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(status) => status.fmt(f),
            None => f.write_str("how is not known"),
        }
    }
}
