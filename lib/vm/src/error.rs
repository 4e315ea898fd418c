//! Reasons why a VM could not do what it was asked.

use crate::{PortError, SessionError};
use forkyard_agent_link::LinkError;
use forkyard_records::RecordsError;
use forkyard_types::{ApiError, ErrorKind, VmName, VmState};
use forkyard_vmm::{VmmError, VmmErrorKind};

/// Reason why a VM could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VmError {
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// No VM of that name or id.
    #[error("there is no VM {name:?}")]
    Unknown {
        /// Requested name.
        name: String,
    },
    /// The guest could not read or write a file.
    #[error("{said}")]
    Files {
        /// Kind of failure.
        kind: ErrorKind,
        /// Message of the guest.
        said: String,
    },
    /// The VM is not in a state for it.
    #[error("{vm} is {state}, not running")]
    NotRunning {
        /// The VM.
        vm: VmName,
        /// State of the VM.
        state: VmState,
    },
    /// The VM stands still.
    #[error("{vm} is paused")]
    Paused {
        /// The VM.
        vm: VmName,
    },
    /// The VM runs, as far as is known, and its QEMU does not answer.
    #[error("{vm} does not answer: {why}")]
    Silent {
        /// The VM.
        vm: VmName,
        /// Operation that was tried.
        why: String,
    },
    /// The VM's console accepts no input: it was lost when the VM was taken
    /// over.
    #[error("the console of {vm} cannot be reached")]
    NoConsole {
        /// The VM.
        vm: VmName,
    },
    /// The VM is stopped here because it may run elsewhere.
    #[error("{vm} may run on host {host}: that host is being asked")]
    Moving {
        /// The VM.
        vm: VmName,
        /// The other host.
        host: String,
    },
    /// A port of the guest cannot be connected to.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A command that the guest keeps cannot be reached.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The guest did not answer as it should.
    #[error("the guest's agent failed")]
    Link(#[from] LinkError),
    /// QEMU failed.
    #[error("the VM's QEMU failed")]
    Vmm(#[from] VmmError),
    /// The records cannot be used.
    #[error(transparent)]
    Store(#[from] RecordsError),
}

impl VmError {
    /// As the API tells it.
    pub fn to_api(&self) -> ApiError {
        ApiError::of(self, self.kind(), self.hint())
    }

    /// Classifies the error for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_) => ErrorKind::Invalid,
            Self::Unknown { .. } => ErrorKind::NotFound,
            Self::Files { kind, .. } => *kind,
            Self::Port(error) => error.kind(),
            Self::Session(error) => error.kind(),
            Self::NotRunning { .. } | Self::Paused { .. } | Self::Moving { .. } => {
                ErrorKind::Conflict
            }
            Self::Silent { .. } => ErrorKind::Timeout,
            Self::Link(error) => link_kind(error),
            Self::Vmm(error) => engine_kind(error),
            Self::Store(error) => records_kind(error),
            Self::NoConsole { .. } => ErrorKind::Host,
        }
    }

    /// Returns advice to the user.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Unknown { .. } => "`forkyard ps` lists the VMs",
            Self::NotRunning { .. } => {
                "`forkyard start` boots one that has stopped, unless it is a clone; `forkyard rm` removes it"
            }
            Self::Paused { .. } => "`forkyard resume` lets it go on",
            Self::Silent { .. } => {
                "it is tried again every few seconds; `forkyard restart` boots it again if it has booted before, `forkyard rm` ends it"
            }
            Self::Link(LinkError::TooLong { .. }) => {
                "arguments, environment and names have 256 KiB together: put what is longer into a file, or on standard input"
            }
            Self::Port(error) => error.hint(),
            Self::Session(error) => error.hint(),
            Self::Vmm(error) => return engine_hint(error),
            Self::Store(error) => return records_hint(error),
            Self::Invalid(_)
            | Self::Files { .. }
            | Self::NoConsole { .. }
            | Self::Moving { .. }
            | Self::Link(_) => return None,
        })
    }
}

/// Classifies an error of a guest's agent.
pub fn link_kind(error: &LinkError) -> ErrorKind {
    if matches!(error, LinkError::TooLong { .. }) {
        return ErrorKind::Invalid;
    }
    // The VM has ended or begun anew, as its state tells.
    if matches!(error, LinkError::Closed) {
        return ErrorKind::Conflict;
    }
    match error.is_timeout() {
        true => ErrorKind::Timeout,
        false => ErrorKind::Guest,
    }
}

/// Classifies an error of the engine.
pub fn engine_kind(error: &VmmError) -> ErrorKind {
    match error.kind() == VmmErrorKind::Timeout {
        true => ErrorKind::Timeout,
        false => ErrorKind::Host,
    }
}

/// Classifies an error of the records.
pub fn records_kind(error: &RecordsError) -> ErrorKind {
    let is_taken = matches!(
        error,
        RecordsError::NameTaken { .. }
            | RecordsError::SubstrateNameTaken { .. }
            | RecordsError::TokenNameTaken { .. }
    );
    if is_taken {
        return ErrorKind::Conflict;
    }
    match matches!(error, RecordsError::Exhausted { .. }) {
        true => ErrorKind::Exhausted,
        false => ErrorKind::Host,
    }
}

/// Returns advice about an error of the engine.
pub fn engine_hint(error: &VmmError) -> Option<&'static str> {
    matches!(error, VmmError::NoCgroup).then_some(
        "`mount -t cgroup2 none /sys/fs/cgroup` mounts one; `ip netns exec` hides it: use `nsenter --net=/run/netns/NAME forkyardd`",
    )
}

/// Returns advice about an error of the records.
pub fn records_hint(error: &RecordsError) -> Option<&'static str> {
    let hints = [
        (
            matches!(error, RecordsError::NameTaken { .. }),
            "choose another name, or remove that VM",
        ),
        (
            matches!(error, RecordsError::Full { .. }),
            "`forkyard image rm` or `forkyard rm` makes room, if images and VMs are on that disk",
        ),
    ];
    hints
        .into_iter()
        .find_map(|(applies, hint)| applies.then_some(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_vm_that_is_asked_is_told_as_its_state() {
        assert_eq!(link_kind(&LinkError::Closed), ErrorKind::Conflict);
        assert_eq!(link_kind(&LinkError::Lost), ErrorKind::Guest);
    }
}
