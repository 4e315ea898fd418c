//! Reasons why a slice could not be made.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// Reason why a slice could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// `qemu-img` could not be started.
    #[error("cannot run {}", program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// `qemu-img` failed.
    #[error("qemu-img could not create {}: {said}", path.display())]
    QemuImg {
        /// The slice.
        path: PathBuf,
        /// Exit status of the program.
        status: ExitStatus,
        /// Message of the program.
        said: String,
    },
    /// The output of `qemu-img` about a slice makes no sense.
    #[error("qemu-img's output about {} is invalid: {why}", path.display())]
    QemuImgSaid {
        /// The slice.
        path: PathBuf,
        /// Fault of the output.
        why: String,
    },
    /// `qemu-img` did not come to an end.
    #[error("creating {} took longer than {after:?}", path.display())]
    Timeout {
        /// The slice.
        path: PathBuf,
        /// The patience it had.
        after: Duration,
    },
    /// A path would mean something else to a process that opens the slice later.
    #[error("{} is not absolute", path.display())]
    Relative {
        /// The path.
        path: PathBuf,
    },
    /// The backing file is not what it was said to be.
    #[error("{} is no qcow2 file", path.display())]
    NotQcow2 {
        /// The file.
        path: PathBuf,
    },
    /// A template is larger than an empty slice can be.
    #[error("{} is too large to be an empty slice", path.display())]
    NotEmpty {
        /// The file.
        path: PathBuf,
    },
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

impl DiskError {
    /// Tells whether a program said that the file system has no room left.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::QemuImg { said, .. } if said.contains("No space left on device"))
    }

    pub(crate) fn io(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}
