//! Reasons why a snapshot could not be taken, kept, opened or brought to life.

use forkyard_agent_link::{LinkError, VERSION};
use forkyard_capture::CaptureError;
use forkyard_disk::DiskError;
use forkyard_host::PartsError;
use forkyard_image::ImageError;
use forkyard_network::NetworkError;
use forkyard_pager::PagerError;
use forkyard_records::RecordsError;
use forkyard_types::{ErrorKind, VmId, VmName};
use forkyard_vm::{VmError, link_kind};
use forkyard_vmm::VmmError;
use forkyard_volume_disks::VolumeError;
use std::{
    io,
    path::{Path, PathBuf},
};

/// Reason why a snapshot could not be taken, kept, opened or brought to life.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The host's own records or state are not as they should be.
    #[error("{0}")]
    Broken(String),
    /// A VM of this id is here.
    #[error("a VM of id {id} is here already")]
    IsHere {
        /// The id.
        id: VmId,
    },
    /// A part of the host failed.
    #[error(transparent)]
    Parts(#[from] PartsError),
    /// A volume could not be frozen, or opened.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The guest did not answer as it should.
    #[error("the guest's agent failed")]
    Link(#[from] LinkError),
    /// Memory could not be captured.
    #[error("the VM's memory could not be captured")]
    Capture(#[from] CaptureError),
    /// Memory cannot be copied ahead.
    #[error(
        "this host cannot note which pages of a VM are written, as a live fork needs (Linux 6.7)"
    )]
    NotNoted,
    /// The agent in a checkpoint's memory is of another version.
    #[error(
        "the agent in the memory of checkpoint {vm} speaks {} of its messages, this daemon version {VERSION}",
        version_of(*agent)
    )]
    OtherAgent {
        /// The checkpoint.
        vm: VmName,
        /// Version of the agent; 0: an earlier one than those that are recorded.
        agent: u16,
    },
    /// A file of a checkpoint is not what was written to it.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Error of the pager.
        source: PagerError,
    },
}

fn version_of(agent: u16) -> String {
    match agent {
        0 => "an earlier version".to_owned(),
        version => format!("version {version}"),
    }
}

/// Has an error of a part of the host be one of that part.
macro_rules! of_parts {
    ($($error:ty),*) => {
        $(impl From<$error> for SnapshotError {
            fn from(error: $error) -> Self {
                Self::Parts(error.into())
            }
        })*
    };
}

of_parts!(
    VmError,
    VmmError,
    RecordsError,
    PagerError,
    ImageError,
    DiskError,
    NetworkError
);

impl SnapshotError {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let failed = PartsError::io(what, path);
        move |source| Self::Parts(failed(source))
    }

    /// Classifies the error for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Parts(error) => error.kind(),
            Self::Volume(error) => error.kind(),
            Self::Link(error) => link_kind(error),
            Self::NotNoted | Self::OtherAgent { .. } | Self::IsHere { .. } => ErrorKind::Conflict,
            Self::Broken(_) | Self::Capture(_) | Self::Damaged { .. } => ErrorKind::Host,
        }
    }

    /// Returns advice to the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Parts(error) => error.hint(),
            Self::Volume(error) => error.hint(),
            Self::NotNoted => Some("fork without --live, or run VMs under Linux 6.7 or later"),
            Self::OtherAgent { .. } => Some(
                "its disk is whole: `forkyard image commit CHECKPOINT IMAGE` makes an image of it, or fork it with the version of Forkyard that took it",
            ),
            Self::Damaged { .. } => {
                Some("put the file back, or remove the checkpoint by `forkyard rm`")
            }
            Self::Broken(_) => Some(forkyard_host::BROKEN),
            Self::IsHere { .. } | Self::Link(_) | Self::Capture(_) => None,
        }
    }

    /// Tells whether a part of the host did not answer in time, and may yet do as asked.
    pub(crate) fn is_timeout(&self) -> bool {
        self.kind() == ErrorKind::Timeout
    }
}
