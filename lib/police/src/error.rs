//! Reasons for which the police did not begin, or not end.

use forkyard_types::{ErrorKind, SchedPolicy};
use std::{error::Error, io, path::PathBuf};

/// Reason for which the police did not begin, or not end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoliceError {
    /// No police is there.
    #[error("no police watches this host's VMs")]
    None,
    /// Another was begun before.
    #[error("the police goes on already, with other options")]
    Other,
    /// VMs are scheduled already.
    #[error("VMs are scheduled there already, by the policy {policy}")]
    Scheduled {
        /// The policy.
        policy: SchedPolicy,
    },
    /// The settings make no sense.
    #[error("{0}")]
    Settings(&'static str),
    /// Capped VMs could not be let go.
    #[error("capped still: {}", names.join(", "))]
    StayCapped {
        /// Names of the VMs.
        names: Vec<String>,
        /// Reason, of the first of them.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The host failed.
    #[error("cannot look at what is scheduled")]
    Host(#[source] Box<dyn Error + Send + Sync>),
    /// The record cannot be written.
    #[error("cannot write {path}", path = .path.display())]
    Record {
        /// File of the record.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// The task broke off.
    #[error("the police broke off: this is a bug, and VMs may be capped still")]
    Broke(#[source] tokio::task::JoinError),
}

impl PoliceError {
    /// Classifies the error for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::None => ErrorKind::NotFound,
            Self::Other | Self::Scheduled { .. } => ErrorKind::Conflict,
            Self::Settings(_) => ErrorKind::Invalid,
            Self::StayCapped { .. } | Self::Host(_) | Self::Record { .. } | Self::Broke(_) => {
                ErrorKind::Host
            }
        }
    }

    /// Returns advice to the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::None => Some("begin with `forkyard friendly police`"),
            Self::Other => Some("end that first: `forkyard friendly police --end`"),
            Self::Scheduled { .. } => Some("release them first: `forkyard sched release VM`"),
            Self::StayCapped { .. } | Self::Broke(_) => {
                Some("let them go by `forkyard sched release VM`")
            }
            Self::Settings(_) | Self::Host(_) | Self::Record { .. } => None,
        }
    }
}
