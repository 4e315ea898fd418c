//! Reasons why a part of a host could not do what it was asked.

use forkyard_disk::DiskError;
use forkyard_guest_image::{BuildError, ImportError, RecipeError};
use forkyard_image::ImageError;
use forkyard_network::NetworkError;
use forkyard_pager::PagerError;
use forkyard_records::RecordsError;
use forkyard_types::ErrorKind;
use forkyard_vm::{VmError, engine_hint, engine_kind, records_hint, records_kind};
use forkyard_vmm::VmmError;
use std::{
    io,
    path::{Path, PathBuf},
};

/// Advice to the user where the host's own records or state are not as they should be.
pub const BROKEN: &str =
    "the fault is the host's: the daemon's log says more, and `forkyard doctor` what can be mended";

/// Reason why a part of a host could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum PartsError {
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The host's own records or state are not as they should be.
    #[error("{0}")]
    Broken(String),
    /// No recipe of that name.
    #[error("there is no image {name:?}")]
    NoSuchImage {
        /// Requested name.
        name: String,
    },
    /// An image cannot be imported under this name.
    #[error("there is a recipe {name:?}: an image of that name would hide it")]
    RecipeOfThatName {
        /// The name.
        name: String,
    },
    /// There is nothing yet to export.
    #[error("image {name:?} is not built")]
    NotBuilt {
        /// The image.
        name: String,
    },
    /// An image could not be imported.
    #[error("the image could not be imported")]
    Import(#[from] ImportError),
    /// Another daemon has this folder.
    #[error("another daemon runs in {}", run.display())]
    Locked {
        /// The folder.
        run: PathBuf,
    },
    /// A daemon with another run folder has the folder of records.
    #[error(
        "another daemon, which runs in {}, keeps its records in {}",
        run.display(), state.display()
    )]
    StateLocked {
        /// Folder of records.
        state: PathBuf,
        /// The run folder of that daemon.
        run: PathBuf,
    },
    /// A folder for sockets or records holds other things.
    #[error("{} holds other things than Forkyard's", folder.display())]
    ForeignFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// QEMUs, which run as a user without rights, cannot get to their files.
    #[error("QEMU cannot pass through {}", folder.display())]
    NotPassable {
        /// The folder in the way.
        folder: PathBuf,
    },
    /// The pager could not be started.
    #[error("the pager did not start: {said}")]
    PagerDidNotStart {
        /// Message of the program.
        said: String,
    },
    /// A recipe is wrong.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// A guest image could not be built.
    #[error("the guest image could not be built")]
    Build(#[source] BuildError),
    /// A kernel that was asked for cannot be booted.
    #[error(transparent)]
    Kernel(BuildError),
    /// A VM could not do what it was asked.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// The engine failed.
    #[error("the VM's QEMU failed")]
    Vmm(#[from] VmmError),
    /// The records cannot be used.
    #[error(transparent)]
    Store(#[from] RecordsError),
    /// The pager failed.
    #[error("the pager failed")]
    Pager(#[from] PagerError),
    /// A page image could not be made.
    #[error("a page image could not be made")]
    Image(#[from] ImageError),
    /// A disk could not be made.
    #[error("a disk could not be made")]
    Disk(#[from] DiskError),
    /// The network failed.
    #[error("the family's network failed")]
    Network(#[from] NetworkError),
    /// The host's file system failed.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// Operation that was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
}

impl From<BuildError> for PartsError {
    fn from(error: BuildError) -> Self {
        let is_asked_for = matches!(
            error,
            BuildError::NoFile { .. } | BuildError::UnfitKernel { .. }
        );
        match is_asked_for {
            true => Self::Kernel(error),
            false => Self::Build(error),
        }
    }
}

impl PartsError {
    /// Returns a function that makes an error of the host's file system one of these.
    pub fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }

    /// Tells whether the host's kernel refused something in this way.
    pub fn is_io(&self, kind: io::ErrorKind) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == kind)
    }

    /// Classifies the error for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_) | Self::Recipe(_) | Self::Kernel(_) => ErrorKind::Invalid,
            Self::NoSuchImage { .. } => ErrorKind::NotFound,
            Self::RecipeOfThatName { .. }
            | Self::NotBuilt { .. }
            | Self::Import(ImportError::Taken { .. })
            | Self::Locked { .. }
            | Self::StateLocked { .. }
            | Self::ForeignFolder { .. }
            | Self::NotPassable { .. } => ErrorKind::Conflict,
            Self::Import(
                ImportError::Disk(_)
                | ImportError::Archive(_)
                | ImportError::Registry { .. }
                | ImportError::Dockerfile { .. }
                | ImportError::Incoming { .. }
                | ImportError::Cancelled,
            ) => ErrorKind::Invalid,
            Self::Vm(error) => error.kind(),
            Self::Vmm(error) => engine_kind(error),
            Self::Store(error) => records_kind(error),
            Self::Pager(error) if error.is_timeout() => ErrorKind::Timeout,
            Self::Network(error) if error.is_conflict() => ErrorKind::Conflict,
            Self::Network(error) if error.is_invalid() => ErrorKind::Invalid,
            Self::Broken(_)
            | Self::Import(_)
            | Self::PagerDidNotStart { .. }
            | Self::Build(_)
            | Self::Pager(_)
            | Self::Image(_)
            | Self::Disk(_)
            | Self::Network(_)
            | Self::Io { .. } => ErrorKind::Host,
        }
    }

    /// Returns advice to the user.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::Broken(_) => BROKEN,
            Self::NoSuchImage { .. } => "`forkyard image ls` lists the images",
            Self::RecipeOfThatName { .. } => "choose another name",
            Self::Import(ImportError::Taken { .. }) => {
                "choose another name, or `forkyard image rm` it first"
            }
            Self::NotBuilt { .. } => "`forkyard image build` builds it",
            Self::NotPassable { .. } => "`chmod o+x` it, or use other folders",
            Self::ForeignFolder { .. } => {
                "choose a folder that is empty, or one of its own (FORKYARD_RUN_DIR, FORKYARD_STATE_DIR)"
            }
            Self::StateLocked { .. } => {
                "use that daemon (FORKYARD_RUN_DIR), or another folder for records (FORKYARD_STATE_DIR)"
            }
            Self::Pager(_) => {
                "`forkyard doctor` says what is wrong; the pager's log is pager.log in the run folder"
            }
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                "the daemon needs root"
            }
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => crate::FULL,
            Self::Network(error) => return error.remedy(),
            Self::Vm(error) => return error.hint(),
            Self::Vmm(error) => return engine_hint(error),
            Self::Store(error) => return records_hint(error),
            Self::Invalid(_)
            | Self::Import(_)
            | Self::Locked { .. }
            | Self::PagerDidNotStart { .. }
            | Self::Recipe(_)
            | Self::Build(_)
            | Self::Kernel(_)
            | Self::Image(_)
            | Self::Disk(_)
            | Self::Io { .. } => return None,
        })
    }
}
