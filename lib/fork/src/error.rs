//! Reasons why a host could not do what it was asked, and how the asker is told.

mod hint;
mod path;

pub(crate) use path::{Purpose, check_export, check_import, check_store};

use crate::{
    bounds::BoundReached, friendly::FriendlyError, quota::QuotaReached, substrate::SubstrateError,
    ticket::Denied, volumes::VolumeError,
};
use forkyard_agent_link::LinkError;
use forkyard_capture::CaptureError;
use forkyard_disk::DiskError;
use forkyard_host::PartsError;
use forkyard_image::ImageError;
use forkyard_network::NetworkError;
use forkyard_pager::PagerError;
use forkyard_records::RecordsError;
use forkyard_snapshot::SnapshotError;
use forkyard_types::{ApiError, ErrorKind, PageCount, ShareId, Unpublish, VmId, VmName, VmState};
use forkyard_vm::{VmError, engine_kind, link_kind, records_kind};
use forkyard_vmm::VmmError;
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::task::JoinError;

/// Reason why a host could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The host's own records or state are not as they should be.
    #[error("{0}")]
    Broken(String),
    /// A state that passes, or that the asker can change, does not allow it.
    #[error("{0}")]
    Conflict(String),
    /// Data of a VM that comes here stopped coming.
    #[error(
        "{what} did not come: the host that sends it broke off, or was silent for {} s",
        silent.as_secs()
    )]
    NotCome {
        /// Data.
        what: String,
        /// Longest silence.
        silent: Duration,
    },
    /// No guest of the family took such a checkpoint, or it was dropped.
    #[error("this family's guests have no checkpoint {id}")]
    NoSuchCheckpoint {
        /// Requested id.
        id: VmId,
    },
    /// A part of the host failed, in another way than those that have an error here.
    #[error(transparent)]
    Parts(PartsError),
    /// A VM could not do what it was asked.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// A disk that is written to cannot be exported.
    #[error("{vm} runs: its disk changes while it is read")]
    Running {
        /// The VM.
        vm: VmName,
    },
    /// A guest has not written its files to its disk.
    #[error("{vm} did not write its files to its disk")]
    NotSynced {
        /// The VM.
        vm: VmName,
    },
    /// A VM has gone, and cannot be taken out of the records.
    #[error(
        "{vm} has ended and its files are removed, but it cannot be taken out of the records yet: their disk is full or fails"
    )]
    StillRecorded {
        /// The VM.
        vm: VmName,
    },
    /// Only a VM that has stopped can be started.
    #[error("{vm} is {state:?}, not stopped")]
    NotStopped {
        /// The VM.
        vm: VmName,
        /// State of the VM.
        state: VmState,
    },
    /// A clone was to boot.
    #[error(
        "{vm} is a clone: its memory began with its parent's instant, and it has no boot of its own"
    )]
    NoBoot {
        /// The VM.
        vm: VmName,
    },
    /// No such port of the host leads to the VM, or it has no such address.
    #[error("{what} does not lead to {vm}")]
    NotPublished {
        /// The VM.
        vm: VmName,
        /// The port or the address.
        what: Unpublish,
    },
    /// A token that was given out for no port of the VM, or has expired.
    #[error("{vm} has no token {id} for its ports")]
    NoSuchShare {
        /// The VM.
        vm: VmName,
        /// The token's id.
        id: ShareId,
    },
    /// A guest did not take the way out.
    #[error("{vm} could not be told of the way out: {said}")]
    NoWayOut {
        /// The VM.
        vm: VmName,
        /// Answer of its agent.
        said: String,
    },
    /// An image is in use.
    #[error("image {name:?} is in use by {vm}")]
    ImageInUse {
        /// The image.
        name: String,
        /// A VM that uses it.
        vm: VmName,
    },
    /// The daemon is ending, and begins nothing more.
    #[error("the daemon is ending: ask again in a moment")]
    Closing,
    /// The guest's agent was never heard of.
    #[error("the guest did not boot; the last it said: {console:?}")]
    Boot {
        /// The end of its console.
        console: String,
        /// Error of waiting for it.
        source: LinkError,
    },
    /// The guest could not become what it was told to.
    #[error("the guest did not take its identity: {}", problems.join("; "))]
    Identity {
        /// Problems that were found there.
        problems: Vec<String>,
    },
    /// The family may have no more clones.
    #[error(transparent)]
    Quota(#[from] QuotaReached),
    /// A guest asks for more than guests may have.
    #[error(transparent)]
    Bound(#[from] BoundReached),
    /// The ticket does not allow it.
    #[error(transparent)]
    Ticket(#[from] Denied),
    /// The guest did not answer as it should.
    #[error("the guest's agent failed")]
    Link(#[from] LinkError),
    /// QEMU failed.
    #[error("the VM's QEMU failed")]
    Vmm(#[from] VmmError),
    /// Something cannot be done with a volume.
    #[error(transparent)]
    Volume(VolumeError),
    /// Something cannot be done with a substrate.
    #[error(transparent)]
    Substrate(#[from] SubstrateError),
    /// A snapshot could not be taken or opened, in another way than those that have an error here.
    #[error(transparent)]
    Snapshot(SnapshotError),
    /// A guest was not made friendly.
    #[error(transparent)]
    Friendly(#[from] FriendlyError),
    /// The records cannot be used.
    #[error(transparent)]
    Store(#[from] RecordsError),
    /// The pager failed.
    #[error("the pager failed")]
    Pager(#[from] PagerError),
    /// Memory could not be captured.
    #[error("the VM's memory could not be captured")]
    Capture(#[from] CaptureError),
    /// A page image could not be made.
    #[error("a page image could not be made")]
    Image(#[from] ImageError),
    /// A disk could not be made.
    #[error("a disk could not be made")]
    Disk(#[from] DiskError),
    /// The network failed.
    #[error("the family's network failed")]
    Network(#[from] NetworkError),
    /// Pages of it were on a host that is gone.
    #[error("{vm} has lost pages that another host had, and cannot run: {why}")]
    Lost {
        /// The VM.
        vm: VmName,
        /// Data that is lost.
        why: String,
    },
    /// The VM cannot be moved to another host.
    #[error("{vm} cannot move: {why}")]
    CannotMove {
        /// The VM.
        vm: VmName,
        /// Reason why it has to stay.
        why: String,
    },
    /// The VM writes memory as fast as that is sent, or time has run out.
    #[error(
        "{vm} stays here: {}, {} pages were left to send, and its pause would have been {gap_ms} ms",
        if *late { "the deadline has passed" } else { "it writes pages as fast as they are sent" },
        left.0
    )]
    NotConverging {
        /// The VM.
        vm: VmName,
        /// Pages that were left.
        left: PageCount,
        /// Time that it would have stood still for, in ms.
        gap_ms: u64,
        /// True if time had run out.
        late: bool,
    },
    /// Another VM that was to move with this one cannot.
    #[error("{vm} stays: another VM that was to move with it cannot")]
    NotTogether {
        /// VM.
        vm: VmName,
    },
    /// The VM was to move, and it is not known whether it did.
    #[error("{vm} is paused until host {host} has reported whether it runs there")]
    Unsettled {
        /// The VM.
        vm: VmName,
        /// The other host.
        host: String,
        /// Reason why it has not.
        source: ApiError,
    },
    /// The VM belongs to another host, and this one can do nothing with it.
    #[error("{vm} runs on host {host}")]
    Elsewhere {
        /// The VM.
        vm: VmName,
        /// Host that it is on.
        host: String,
    },
    /// Another host refused, or could not be asked.
    #[error("host {peer}")]
    Peer {
        /// The host.
        peer: String,
        /// Answer of that host, or the reason why it was not asked.
        source: ApiError,
    },
    /// Other hosts could not be asked for a number that none of their families has.
    #[error("no number is free for the family's network")]
    Number(#[source] ApiError),
    /// The cluster gives no room for clones.
    #[error("no room for clones")]
    Room(#[source] ApiError),
    /// No other host is known.
    #[error("no other hosts are configured on this host")]
    NoPeers,
    /// Others cannot get pages of this one.
    #[error("this host serves no pages to other hosts")]
    NoPages,
    /// A family of another host has the same network as one of this host.
    #[error("{network} is the network of another family here")]
    NetworkTaken {
        /// The network.
        network: std::net::Ipv4Addr,
    },
    /// An image that another host hands out has the name of an image of others
    /// that is here.
    #[error("page image {image} is here, and is not one that this host lends to this family")]
    ForeignImage {
        /// The image.
        image: forkyard_types::ImageId,
    },
    /// A path that the request names cannot be used.
    #[error(transparent)]
    Path(#[from] path::PathError),
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

impl From<PartsError> for HostError {
    fn from(error: PartsError) -> Self {
        match error {
            PartsError::Invalid(text) => Self::Invalid(text),
            PartsError::Broken(text) => Self::Broken(text),
            PartsError::Vm(error) => Self::Vm(error),
            PartsError::Vmm(error) => Self::Vmm(error),
            PartsError::Store(error) => Self::Store(error),
            PartsError::Pager(error) => Self::Pager(error),
            PartsError::Image(error) => Self::Image(error),
            PartsError::Disk(error) => Self::Disk(error),
            PartsError::Network(error) => Self::Network(error),
            PartsError::Io { what, path, source } => Self::Io { what, path, source },
            other @ (PartsError::NoSuchImage { .. }
            | PartsError::RecipeOfThatName { .. }
            | PartsError::NotBuilt { .. }
            | PartsError::Import(_)
            | PartsError::Locked { .. }
            | PartsError::StateLocked { .. }
            | PartsError::ForeignFolder { .. }
            | PartsError::NotPassable { .. }
            | PartsError::PagerDidNotStart { .. }
            | PartsError::Recipe(_)
            | PartsError::Build(_)
            | PartsError::Kernel(_)) => Self::Parts(other),
        }
    }
}

impl From<VolumeError> for HostError {
    fn from(error: VolumeError) -> Self {
        if let VolumeError::Broken(text) = error {
            Self::Broken(text)
        } else if let VolumeError::Parts(error) = error {
            error.into()
        } else {
            Self::Volume(error)
        }
    }
}

impl From<SnapshotError> for HostError {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Broken(text) => Self::Broken(text),
            SnapshotError::Parts(error) => error.into(),
            SnapshotError::Volume(error) => error.into(),
            SnapshotError::Link(error) => Self::Link(error),
            SnapshotError::Capture(error) => Self::Capture(error),
            other @ (SnapshotError::NotNoted
            | SnapshotError::OtherAgent { .. }
            | SnapshotError::IsHere { .. }
            | SnapshotError::Damaged { .. }) => Self::Snapshot(other),
        }
    }
}

impl HostError {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }

    /// The task that was to do something ended without a result: the daemon ends, or it panicked.
    pub(crate) fn given_up(what: &str, error: &JoinError) -> Self {
        match error.is_cancelled() {
            true => Self::Closing,
            false => Self::Broken(format!("{what}: its task failed")),
        }
    }

    /// As the API tells it: the whole chain of causes in one line, and what
    /// the user can do.
    pub fn to_api(&self) -> ApiError {
        ApiError::of(self, self.kind(), self.hint())
    }

    /// Classifies the error for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid(_) | Self::Path(_) => ErrorKind::Invalid,
            Self::NoSuchCheckpoint { .. }
            | Self::NotPublished { .. }
            | Self::NoSuchShare { .. } => ErrorKind::NotFound,
            Self::Parts(error) => error.kind(),
            Self::Vm(error) => error.kind(),
            Self::Substrate(error) => error.kind(),
            Self::Volume(error) => error.kind(),
            Self::Snapshot(error) => error.kind(),
            Self::Friendly(error) => error.kind(),
            Self::Peer { source, .. }
            | Self::Unsettled { source, .. }
            | Self::Number(source)
            | Self::Room(source) => source.kind,
            Self::Conflict(_)
            | Self::Lost { .. }
            | Self::Elsewhere { .. }
            | Self::CannotMove { .. }
            | Self::NotConverging { .. }
            | Self::NotTogether { .. }
            | Self::NoPeers
            | Self::NoPages
            | Self::NetworkTaken { .. }
            | Self::ForeignImage { .. }
            | Self::NotStopped { .. }
            | Self::NoBoot { .. }
            | Self::Running { .. }
            | Self::ImageInUse { .. }
            | Self::Closing => ErrorKind::Conflict,
            Self::Ticket(Denied::Unknown(_)) => ErrorKind::NotFound,
            Self::Ticket(Denied::AlreadyCloned(_) | Denied::NotCloned(_) | Denied::Foreign(_)) => {
                ErrorKind::Conflict
            }
            Self::Store(error) => records_kind(error),
            Self::Quota(_) | Self::Bound(_) => ErrorKind::Exhausted,
            Self::Identity { .. } | Self::Boot { .. } | Self::NoWayOut { .. } => ErrorKind::Guest,
            Self::NotSynced { .. } | Self::NotCome { .. } => ErrorKind::Timeout,
            Self::Link(error) => link_kind(error),
            Self::Vmm(error) => engine_kind(error),
            Self::Pager(error) if error.is_timeout() => ErrorKind::Timeout,
            Self::Network(error) if error.is_conflict() => ErrorKind::Conflict,
            Self::Network(error) if error.is_invalid() => ErrorKind::Invalid,
            Self::Broken(_)
            | Self::Pager(_)
            | Self::Capture(_)
            | Self::Image(_)
            | Self::Disk(_)
            | Self::Network(_)
            | Self::StillRecorded { .. }
            | Self::Io { .. } => ErrorKind::Host,
        }
    }
}

#[cfg(test)]
mod tests;
