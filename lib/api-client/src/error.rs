//! Reasons why a request came to nothing.

use crate::Place;
use forkyard_tls::TlsError;
use forkyard_types::ApiError;
use std::{io, path::PathBuf, time::Duration};

/// Reason why a request came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No daemon answers on its socket.
    #[error("no daemon answers on {}", socket.display())]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// Nothing answers there on the network.
    #[error("no daemon answers at {place}")]
    Unreachable {
        /// Place of the daemon.
        place: Place,
        /// Error of the network.
        source: io::Error,
    },
    /// The daemon is there, and does not answer.
    #[error("the daemon at {place} does not answer: a ping was left without an answer for {} s", after.as_secs())]
    Hangs {
        /// The daemon.
        place: Place,
        /// Time the ping was waited for.
        after: Duration,
    },
    /// The peer is not shown to be the daemon.
    #[error("the server at {place} is not proven to be the daemon")]
    NotTrusted {
        /// Place of the daemon.
        place: Place,
        /// Cause.
        source: io::Error,
    },
    /// A daemon on the network wants a token.
    #[error("{place} takes a token, and FORKYARD_TOKEN is not set")]
    NoToken {
        /// The daemon.
        place: Place,
    },
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls {
        /// Cause.
        #[from]
        source: TlsError,
    },
    /// The daemon refused, or failed.
    #[error(transparent)]
    Refused(#[from] ApiError),
    /// The connection broke off.
    #[error("the daemon closed the connection")]
    Broke {
        /// Error of the connection.
        #[from]
        source: hyper::Error,
    },
    /// The request cannot be written.
    #[error("the request cannot be written")]
    Request {
        /// Cause.
        #[from]
        source: hyper::http::Error,
    },
    /// The answer makes no sense: the daemon may be of another version.
    #[error("the daemon's answer cannot be parsed: use a client and a daemon of one version")]
    Nonsense {
        /// Error of the parser, with its place.
        #[from]
        source: serde_json::Error,
    },
}

impl ClientError {
    /// Tells whether there may be a daemon on the socket that this user may not
    /// talk to.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::NoDaemon { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Tells whether there is no daemon to talk to, rather than one that
    /// refused.
    pub fn is_no_daemon(&self) -> bool {
        match self {
            Self::NoDaemon { .. }
            | Self::Unreachable { .. }
            | Self::Hangs { .. }
            | Self::NotTrusted { .. }
            | Self::NoToken { .. }
            | Self::Tls { .. } => true,
            Self::Refused(_)
            | Self::Broke { .. }
            | Self::Request { .. }
            | Self::Nonsense { .. } => false,
        }
    }

    /// Returns advice to the user.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Refused(refused) => refused.hint.as_deref(),
            Self::Unreachable { .. } => {
                Some("is FORKYARD_URL right, and does `forkyardd --listen` run there?")
            }
            Self::Hangs { .. } => Some(
                "look at its log; if it stays so, end it and start it again: its VMs run on, and the next daemon takes them over",
            ),
            Self::NotTrusted { .. } => Some(
                "set FORKYARD_CA to its certificate's fingerprint (sha256:…), which `forkyard token create` \
                 shows on its host, or to a file with that certificate or what vouches for it",
            ),
            Self::NoToken { .. } => Some("`forkyard token create NAME` on that host makes one"),
            Self::NoDaemon { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some(
                    "the socket is root's, and the group's that `forkyardd --group` names: run this as root, become a member of the group (`usermod -aG GROUP USER`, then log in anew), or use a token over the network (`forkyardd --listen`, `forkyard token create`)",
                )
            }
            Self::NoDaemon { .. }
            | Self::Tls { .. }
            | Self::Broke { .. }
            | Self::Request { .. }
            | Self::Nonsense { .. } => None,
        }
    }
}
