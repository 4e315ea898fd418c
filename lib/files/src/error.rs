//! Reasons for a copy that failed.

use std::{io, path::PathBuf};

/// Reason for a copy that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// A path cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// A path cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The path.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// The stream cannot be read or written.
    #[error("the stream broke off")]
    Stream(#[source] io::Error),
    /// The stream ends too early.
    #[error("the stream ended before its last member: it is cut off, or no tar stream")]
    Short,
    /// The stream is no tar stream, or one of an unknown form.
    #[error("the stream is no tar stream that is known here: {0}")]
    Format(&'static str),
    /// A member would lie where nothing was asked for.
    #[error("the stream has {path:?}, which was not asked for")]
    Unasked {
        /// Path of the entry, for people.
        path: String,
    },
    /// The destination cannot be what was asked for.
    #[error("cannot make {}: {why}", path.display())]
    Place {
        /// The destination.
        path: PathBuf,
        /// Reason, and remedy.
        why: &'static str,
    },
    /// The sender failed, and said why.
    #[error("{0}")]
    Sender(String),
}

impl FilesError {
    /// Wraps an error of reading the stream.
    pub(crate) fn stream(error: io::Error) -> Self {
        match error.kind() == io::ErrorKind::UnexpectedEof {
            true => Self::Short,
            false => Self::Stream(error),
        }
    }
}
