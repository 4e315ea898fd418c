//! Reasons why the host's control groups could not be used.

use std::{io, path::PathBuf};

/// Reason why a control group could not be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path}", path = .path.display())]
pub struct FreezerError {
    /// Operation that was tried.
    pub what: &'static str,
    /// On what.
    pub path: PathBuf,
    /// Error of the host.
    pub source: io::Error,
}

impl FreezerError {
    pub(crate) fn of(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self { what, path, source }
    }
}
