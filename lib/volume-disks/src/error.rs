//! Reasons why something could not be done with a volume.

use forkyard_blockd::{Blame, BlockdError, StreamError};
use forkyard_host::PartsError;
use forkyard_records::RecordsError;
use forkyard_types::{ApiError, ErrorKind, Term, VmName};
use forkyard_vm::VmError;
use std::{io, path::PathBuf};

/// Reason why something could not be done with a volume.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// The host's own records or state are not as they should be.
    #[error("{0}")]
    Broken(String),
    /// A part of the host failed.
    #[error(transparent)]
    Parts(#[from] PartsError),
    /// None of that name.
    #[error("there is no volume {name:?}")]
    Unknown {
        /// Requested name.
        name: String,
    },
    /// The server of volumes refused, or failed.
    #[error("the volume cannot be used")]
    Server(#[from] BlockdError),
    /// The server of volumes answered something else than was asked for.
    #[error("the volume server's answer is not one to the request")]
    Answer,
    /// The server of volumes could not be run.
    #[error("cannot run {}", program.display())]
    Start {
        /// Program.
        program: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// The connection of the volume server cannot be used.
    #[error("cannot talk to the server of volumes")]
    Socket(#[source] io::Error),
    /// A snapshot was not sent.
    #[error("the volume's snapshot was not sent to its end")]
    Stream(#[source] StreamError),
    /// The server of volumes gave up.
    #[error("the server of volumes did not start: {said}")]
    DidNotStart {
        /// Message of the server.
        said: String,
    },
    /// A VM has the volume.
    #[error("{vm} has volume {volume}")]
    InUse {
        /// Volume.
        volume: VmName,
        /// VM.
        vm: VmName,
    },
    /// A volume that a VM has moves with it alone.
    #[error("{vm} has volume {volume}, which moves with it")]
    HasVm {
        /// Volume.
        volume: VmName,
        /// VM.
        vm: VmName,
    },
    /// A volume that other hosts hold flush by flush cannot move.
    #[error("volume {volume} is held at {host} flush by flush, and would not be where it moves to")]
    Mirrored {
        /// Volume.
        volume: VmName,
        /// Host.
        host: String,
    },
    /// A VM is to have an encrypted volume, and this one is not.
    #[error("volume {volume} is there, and is not encrypted")]
    NotEncrypted {
        /// Volume.
        volume: VmName,
    },
    /// A VM's slices lie over the snapshot.
    #[error("{vm} lies over {snapshot} of volume {volume}")]
    SnapshotInUse {
        /// Volume.
        volume: VmName,
        /// Snapshot.
        snapshot: String,
        /// VM.
        vm: VmName,
    },
    /// The volume is at home on another host.
    #[error("volume {volume} is at {at}: what is here is a copy of what it was")]
    Elsewhere {
        /// Volume.
        volume: VmName,
        /// That host, as it is called here.
        at: String,
    },
    /// Another volume has the name of one that is to come.
    #[error("there is a volume called {volume}, which is not a copy of the one that is to come")]
    Taken {
        /// Volume.
        volume: VmName,
    },
    /// A volume is on its way here.
    #[error("volume {volume} is on its way here")]
    Coming {
        /// Volume.
        volume: VmName,
    },
    /// A volume is used, or about to be.
    #[error("volume {volume} is in use at this moment")]
    Busy {
        /// Volume.
        volume: VmName,
    },
    /// A volume is on its way to another host, or may be there.
    #[error("volume {volume} {} {to}", if *is_unsettled { "may be at home at" } else { "is on its way to" })]
    Moves {
        /// Volume.
        volume: VmName,
        /// That host, as it is called here.
        to: String,
        /// True if it is not known which of both has it.
        is_unsettled: bool,
    },
    /// Another host may have a volume: that is not known yet.
    #[error(
        "{to} did not say whether volume {volume} is at home there now: it is asked until it does"
    )]
    Unsettled {
        /// Volume.
        volume: VmName,
        /// That host, as it is called here.
        to: String,
        /// Error that left this open.
        source: ApiError,
    },
    /// The authority cannot be asked where a volume is at home.
    #[error("the cluster does not say that volume {volume} is at home here")]
    NotShown {
        /// Volume.
        volume: VmName,
        /// Reason.
        source: ApiError,
    },
    /// Another node changed the place of a volume at the same time.
    #[error("another node changed the place of volume {volume} at the same time")]
    Crowded {
        /// Volume.
        volume: VmName,
    },
    /// Several nodes have volumes of one name.
    #[error("there is a volume called {volume} at {}: it is not known which is meant", nodes.join(" and at "))]
    Ambiguous {
        /// Name.
        volume: VmName,
        /// Nodes.
        nodes: Vec<String>,
    },
    /// A volume cannot be brought to where it is.
    #[error("volume {volume} is at home here")]
    AtHome {
        /// Volume.
        volume: VmName,
    },
    /// No host is known that has a volume.
    #[error("it is not known where volume {volume} is")]
    Nowhere {
        /// Volume.
        volume: VmName,
    },
    /// This host knows of a later home of a volume than the host that sends it.
    #[error(
        "volume {volume} comes in term {term}, and is known here in term {known}: the host that sends it has an old state"
    )]
    OldTerm {
        /// Volume.
        volume: VmName,
        /// Term of the host that sends it.
        term: Term,
        /// Latest term that is known here.
        known: Term,
    },
    /// Snapshots of one name are not the same at both hosts.
    #[error("the copy of volume {volume} at the other host has another snapshot called {snapshot}")]
    SnapshotClash {
        /// Volume.
        volume: VmName,
        /// Snapshot.
        snapshot: String,
    },
    /// A VM on a volume cannot do that yet.
    #[error("{vm} is on volume {volume}: {what}")]
    NotYet {
        /// VM.
        vm: VmName,
        /// Volume.
        volume: VmName,
        /// Operation that cannot be done with it.
        what: &'static str,
    },
}

impl From<RecordsError> for VolumeError {
    fn from(error: RecordsError) -> Self {
        Self::Parts(error.into())
    }
}

impl From<VmError> for VolumeError {
    fn from(error: VmError) -> Self {
        Self::Parts(error.into())
    }
}

impl VolumeError {
    /// Classifies the error for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Parts(error) => error.kind(),
            Self::Server(BlockdError::Failed { blame, .. }) => match blame {
                Blame::Missing => ErrorKind::NotFound,
                Blame::Fenced | Blame::Caller => ErrorKind::Conflict,
                Blame::Room => ErrorKind::Exhausted,
                Blame::Host | Blame::Elsewhere | Blame::Key => ErrorKind::Host,
            },
            Self::Broken(_)
            | Self::Server(_)
            | Self::Answer
            | Self::Socket(_)
            | Self::Stream(_)
            | Self::Start { .. }
            | Self::DidNotStart { .. } => ErrorKind::Host,
            Self::InUse { .. }
            | Self::HasVm { .. }
            | Self::SnapshotInUse { .. }
            | Self::NotEncrypted { .. }
            | Self::Mirrored { .. }
            | Self::Elsewhere { .. }
            | Self::Taken { .. }
            | Self::Coming { .. }
            | Self::Busy { .. }
            | Self::Moves { .. }
            | Self::Ambiguous { .. }
            | Self::AtHome { .. }
            | Self::OldTerm { .. }
            | Self::Crowded { .. }
            | Self::SnapshotClash { .. }
            | Self::NotYet { .. } => ErrorKind::Conflict,
            Self::Unsettled { source, .. } | Self::NotShown { source, .. } => source.kind,
            Self::Unknown { .. } | Self::Nowhere { .. } => ErrorKind::NotFound,
        }
    }

    /// Returns advice to the client.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Broken(_) => Some(forkyard_host::BROKEN),
            Self::Parts(error) => error.hint(),
            Self::Server(BlockdError::Failed { blame, .. }) => match blame {
                Blame::Missing => Some("`forkyard volume ls` lists the volumes"),
                Blame::Room => Some("remove volumes, snapshots or VMs"),
                Blame::Elsewhere => Some("`forkyard volume inspect` says where the rest of it is"),
                Blame::Fenced | Blame::Caller | Blame::Host | Blame::Key => None,
            },
            Self::Server(_)
            | Self::Answer
            | Self::Socket(_)
            | Self::Stream(_)
            | Self::Start { .. }
            | Self::DidNotStart { .. } => Some("its log is blockd.log in the run folder"),
            Self::Unknown { .. } => Some("`forkyard volume ls` lists the volumes"),
            Self::HasVm { .. } => {
                Some("`forkyard migrate` moves the VM with it; or remove the VM first")
            }
            Self::InUse { .. } => Some("remove that VM first; the volume stays as it is"),
            Self::Elsewhere { .. } => Some(
                "`forkyard volume bring` moves it here, or use it there; `forkyard volume rm` removes the copy",
            ),
            Self::Taken { .. } => Some("remove one of them, or give it another name"),
            Self::Mirrored { .. } => {
                Some("`forkyard volume mirror NAME` without hosts ends that; say it anew there")
            }
            Self::NotEncrypted { .. } => {
                Some("`forkyard volume create --encrypted` makes one that is, under another name")
            }
            Self::Coming { .. } => Some("it is there once its VM is"),
            Self::Busy { .. } | Self::Crowded { .. } => Some("try again"),
            Self::Moves { .. } | Self::Unsettled { .. } => Some(
                "`forkyard volume inspect` shows how far it is; nothing opens it until it is known where it is",
            ),
            Self::NotShown { .. } => Some(
                "nothing new opens it until the cluster can be asked; `forkyard node ls` says how this node stands",
            ),
            Self::Ambiguous { .. } => Some(
                "on one of these nodes, `forkyard volume export` it, `volume import` that under another name, and `volume rm` it",
            ),
            Self::AtHome { .. } => None,
            Self::Nowhere { .. } => Some("say --from HOST"),
            Self::OldTerm { .. } => Some(
                "what this host knows is newer: `forkyard volume rm` there or here, whichever is not wanted",
            ),
            Self::SnapshotClash { .. } => Some(
                "`forkyard volume snapshot NAME SNAPSHOT --rm`, here or there, removes one of them",
            ),
            Self::SnapshotInUse { .. } => Some("it goes with the last VM over it"),
            Self::NotYet { .. } => Some(
                "`forkyard volume export` gives its disk, and `forkyard image import` takes it",
            ),
        }
    }

    /// The volume is there, and cannot be opened.
    pub fn is_of_volume(&self) -> bool {
        matches!(
            self,
            Self::Server(BlockdError::Failed {
                blame: Blame::Host | Blame::Key,
                ..
            })
        )
    }

    /// The volume is encrypted, and its key is not there.
    pub fn is_of_key(&self) -> bool {
        matches!(
            self,
            Self::Server(BlockdError::Failed {
                blame: Blame::Key,
                ..
            })
        )
    }

    /// There is no such volume.
    pub fn is_missing(&self) -> bool {
        matches!(
            self,
            Self::Server(BlockdError::Failed {
                blame: Blame::Missing,
                ..
            })
        )
    }
}
