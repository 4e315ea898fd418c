//! Why a request came to nothing.

use forkyard_types::ApiError;
use std::{io, path::PathBuf};

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No daemon answers on its socket.
    #[error("no daemon answers on {}", socket.display())]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// The daemon refused, or failed.
    #[error(transparent)]
    Refused(#[from] ApiError),
    /// The connection broke off.
    #[error("the daemon closed the connection")]
    Broke {
        /// How.
        #[from]
        source: hyper::Error,
    },
    /// The request cannot be written.
    #[error("the request cannot be written")]
    Request {
        /// Why.
        #[from]
        source: hyper::http::Error,
    },
    /// What was said makes no sense: the daemon may be of another version.
    #[error("the daemon's answer is not what was expected; is it of another version?")]
    Nonsense {
        /// Where.
        #[from]
        source: serde_json::Error,
    },
}
