//! Errors on either side of the control socket.

use crate::{InheritError, PagerRefusal};
use std::io;
use std::path::PathBuf;

/// Reason why a call to the pager failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PagerError {
    /// The pager understood and will not do it.
    #[error("pager refuses")]
    Refused(#[source] PagerRefusal),
    /// No pager listens there.
    #[error("cannot connect to the pager at {}", socket.display())]
    Connect {
        /// Control socket of the pager.
        socket: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// The connection broke. Whether the call took effect is not known.
    #[error("connection to the pager broke")]
    Transport {
        /// Error of the host.
        source: io::Error,
    },
    /// The pager did not answer in time. It may yet do what it was asked.
    #[error("the pager has not answered in time: it is stopped, or has too much to do")]
    Silent,
    /// The pager is of another version.
    #[error("pager speaks version {theirs}, this program {ours}")]
    Version {
        /// Version that the pager speaks.
        theirs: u32,
        /// Version that this client speaks.
        ours: u32,
    },
    /// The pager answered something else than what was asked.
    #[error("the pager's answer is not one to the request")]
    Answer,
}

impl PagerError {
    /// Tells whether the pager did not answer in time. It may yet do what it
    /// was asked.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Silent)
    }

    /// Returns the pager's refusal, if it was the pager that refused.
    pub fn refusal(&self) -> Option<&PagerRefusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Connect { .. }
            | Self::Transport { .. }
            | Self::Silent
            | Self::Version { .. }
            | Self::Answer => None,
        }
    }
}

/// Reason why a pager could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Another pager answers at the same socket.
    #[error("another pager serves {}", socket.display())]
    AlreadyRunning {
        /// The socket.
        socket: PathBuf,
    },
    /// A living file system of the same kind is mounted there.
    #[error("{} is in use by another pager", mount.display())]
    MountInUse {
        /// The mount point.
        mount: PathBuf,
    },
    /// The file system could not be mounted.
    #[error("cannot mount {}", mount.display())]
    Mount {
        /// The mount point.
        mount: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// The control socket could not be made.
    #[error("cannot listen at {}", socket.display())]
    Listen {
        /// The socket.
        socket: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// State that must survive this process could not be handed to the keeper.
    #[error("cannot start a keeper")]
    Keeper {
        /// Error of the host.
        source: io::Error,
    },
    /// A pager is to take over that does not know how it was started.
    #[error("the pager has no command to start its successor with")]
    NoPrograms,
    /// There is nothing that could be taken over.
    #[error("cannot take over")]
    Inherit(#[from] InheritError),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread {
        /// Error of the host.
        source: io::Error,
    },
}
