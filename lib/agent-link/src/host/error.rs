//! Reasons why a guest could not be talked to.

use crate::{EncodeError, FrameError};
use std::{io, path::PathBuf, sync::Arc, time::Duration};

/// Reason why a guest could not be talked to.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// There is no QEMU at the other end.
    #[error("cannot connect to {}", path.display())]
    Connect {
        /// The port's socket.
        path: PathBuf,
        /// Error of the host.
        source: Arc<io::Error>,
    },
    /// QEMU has closed the connection.
    #[error(
        "the link to the guest is closed: its VM was stopped, removed or reset, or its QEMU ended"
    )]
    Closed,
    /// The connection failed.
    #[error("the link to the guest failed")]
    Io {
        /// Error of the host.
        source: Arc<io::Error>,
    },
    /// The guest did not answer in time.
    #[error("waited {after:?} for {what}")]
    Timeout {
        /// Event that was waited for.
        what: &'static str,
        /// Time that it was waited for.
        after: Duration,
    },
    /// More was to be said to it than one message holds.
    #[error("the request is too long for the guest's agent")]
    TooLong {
        /// Error of the encoder.
        source: EncodeError,
    },
    /// The guest could not.
    #[error("the guest could not {what}: {why}")]
    Refused {
        /// Question to the guest.
        what: &'static str,
        /// Reason that the guest gave.
        why: String,
    },
    /// The agent is of another version.
    #[error(
        "the guest's agent speaks version {guest} of the protocol, this host {}: restart the guest",
        crate::VERSION
    )]
    Version {
        /// Version of the guest's agent.
        guest: u16,
    },
    /// The message of the guest makes no sense.
    #[error("the guest sent an invalid message")]
    Protocol {
        /// Error of the frame.
        source: Arc<FrameError>,
    },
    /// The VM goes on at another host, and the way there broke.
    #[error("the VM has moved to {host}, and the connection to that host broke")]
    Moved {
        /// Name of that host here.
        host: String,
        /// Reason why there was no connection; none if there was one.
        source: Option<Arc<io::Error>>,
    },
    /// The guest sent more than it was given room for, or lost the command.
    #[error("the guest's agent lost track of the command")]
    Lost,
}

impl LinkError {
    /// Tells whether the guest may merely be slow.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }
}
