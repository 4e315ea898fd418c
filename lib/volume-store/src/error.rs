//! Errors of a volume's files.

use forkyard_volume::{ChangeRefusal, Damage};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, ErrorKind},
    path::PathBuf,
};

/// Failure of an operation on a volume.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The volume's state does not allow it.
    #[error(transparent)]
    Refused(#[from] ChangeRefusal),
    /// The files cannot be what was written.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// The host has no room.
    #[error("no room left for {} (free some, or remove snapshots)", path.display())]
    NoRoom {
        /// File that was to grow.
        path: PathBuf,
    },
    /// Input or output failed.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// Operation that was tried.
        doing: &'static str,
        /// File.
        path: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// The content is not in memory, and was not to be waited for.
    #[error("content is not in memory")]
    NotCached,
    /// Blocks are at another site, and were not to be waited for.
    #[error("blocks of it are at another host")]
    Absent(crate::Absent),
    /// The host that has blocks does not answer.
    #[error(
        "volume {volume} lacks blocks that are at {host}, which does not answer (they are fetched once it does)"
    )]
    SourceAway {
        /// Volume.
        volume: String,
        /// Host, as it calls itself.
        host: String,
    },
    /// Blocks are not here, and it is not known where they are.
    #[error(
        "volume {0} lacks blocks, and what told which host has them is gone (put its file `origins` back, or go back to a snapshot that is whole)"
    )]
    Orphan(String),
    /// All that a snapshot at another host has is here.
    #[error("volume {volume} lacks nothing of {snapshot}")]
    NothingLacking {
        /// Volume.
        volume: String,
        /// Snapshot at the other host.
        snapshot: String,
    },
    /// A stream of it comes in.
    #[error("volume {0} is coming (try again when it is here)")]
    Coming(String),
    /// Another host fetches blocks of it.
    #[error(
        "host {by} still fetches blocks of volume {volume} from here (wait until it has all of them: `forkyard volume inspect` there says how much it lacks)"
    )]
    Needed {
        /// Volume.
        volume: String,
        /// Host.
        by: String,
    },
    /// An earlier flush failed.
    #[error(
        "an earlier flush failed, so that it is not known what is on disk (open the volume anew)"
    )]
    Failed,
    /// Name in use.
    #[error("there is a volume called {0} already (choose another name)")]
    Exists(String),
    /// No such volume.
    #[error("there is no volume called {0} (`forkyard-blockd ls` lists them)")]
    Unknown(String),
    /// No such snapshot.
    #[error("volume {volume} has no snapshot called {snapshot}")]
    UnknownSnapshot {
        /// Volume.
        volume: String,
        /// Snapshot.
        snapshot: String,
    },
    /// A branch lies over it.
    #[error("{branch} lies over volume {volume} (remove that first)")]
    Below {
        /// Volume.
        volume: String,
        /// Branch.
        branch: String,
    },
    /// A branch cannot do that.
    #[error("{volume} lies over another volume, and cannot be {what} (export it, and import that)")]
    Branch {
        /// Branch.
        volume: String,
        /// Value that was refused.
        what: &'static str,
    },
    /// File that does not say what a branch lies over.
    #[error("{} does not say over which snapshot the volume lies", .0.display())]
    Base(PathBuf),
    /// Encrypted volume whose key is not there.
    #[error(
        "volume {volume} is encrypted, and its key file {} {why} (put back the file that it was made with, of mode 0600; nothing in the volume was changed)", path.display()
    )]
    Key {
        /// Volume.
        volume: String,
        /// Key file.
        path: PathBuf,
        /// Fault of the file.
        why: &'static str,
    },
    /// Volume whose checkpoint and whose file `encryption` contradict each other.
    #[error(
        "it is unclear if volume {0} is encrypted: its checkpoint and its file `encryption` do not agree (restore both)"
    )]
    Encryption(String),
    /// Key file that is of no use to a new volume.
    #[error("{} {why} (`openssl rand -hex 32` makes a key; its file is to be of mode 0600)", path.display())]
    KeyFile {
        /// Key file.
        path: PathBuf,
        /// Fault of the file.
        why: &'static str,
    },
    /// Stream of an encrypted volume for one that is not.
    #[error(
        "volume {0} is encrypted where the stream comes from, and is not here (remove it here, so that it is made anew)"
    )]
    NotEncrypted(String),
    /// Other hosts do not hold yet what they are to, and were not to be waited for.
    #[error("other hosts do not hold all of it yet")]
    Unheld(crate::Unheld),
    /// A host that is to hold what is written does not answer.
    #[error(
        "host {host} is to hold every flush of volume {volume}, and does not answer (it goes on once it does; or have it do without: `forkyard volume mirror {volume}`)"
    )]
    MirrorAway {
        /// Volume.
        volume: String,
        /// Host, as it is called here.
        host: String,
    },
    /// Another host has promoted its copy.
    #[error("volume {volume} is at home at {host}, which has promoted its copy (use it there)")]
    Promoted {
        /// Volume.
        volume: String,
        /// Host.
        host: String,
    },
    /// A copy that is at home here.
    #[error("volume {0} was promoted, and takes nothing of another host any more")]
    IsPromoted(String),
    /// Host that holds no copy of the volume.
    #[error("host {host} is not to hold volume {volume}")]
    NotMirrored {
        /// Volume.
        volume: String,
        /// Host.
        host: String,
    },
    /// Volume that is not held for another host.
    #[error("volume {0} is not held for another host: there is nothing to promote")]
    NoCopy(String),
    /// Copy that is not to be written.
    #[error(
        "volume {volume} is held for {host}, where it is at home (if that host is lost: `forkyard volume promote {volume}`)"
    )]
    HeldFor {
        /// Volume.
        volume: String,
        /// Host.
        host: String,
    },
    /// Parameters of the law that are no numbers, or negative.
    #[error("K and S are numbers that are not negative")]
    Knobs,
    /// Another process has it open.
    #[error("volume {0} is open in another process (end that first)")]
    InUse(String),
    /// Name that cannot be.
    #[error("{0:?} is no name for a volume: it takes 1 to 64 of a-z, A-Z, 0-9, '_' and '-'")]
    Name(String),
    /// Size that cannot be.
    #[error("{0} bytes are no size for a volume: it takes a multiple of 4096, up to 8 TiB")]
    Size(u64),
    /// Bytes that are no stream of a volume, or were changed or cut on the way.
    #[error("the stream cannot be taken: {0}")]
    Stream(&'static str),
    /// Stream of another volume of the same name.
    #[error("{0} is another volume than the one in the stream (rename or remove one of them)")]
    OtherVolume(String),
    /// File to import that is none.
    #[error("{} is no regular file", .0.display())]
    NoDisk(PathBuf),
    /// File to import that does not fit.
    #[error("{have} bytes do not fit into a volume of {room} (make it larger)")]
    TooLarge {
        /// Bytes of the file.
        have: u64,
        /// Bytes of the volume.
        room: u64,
    },
}

/// Classes of failures that callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// There is no such volume or snapshot.
    Missing,
    /// The writer has been replaced.
    Fenced,
    /// The request makes no sense now.
    Caller,
    /// There is no room.
    Room,
    /// Another host that has what is lacking does not answer.
    Elsewhere,
    /// The volume is encrypted, and its key is not there.
    Key,
    /// The host or its disk failed.
    Host,
}

impl StoreError {
    /// Class of the failure.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Unknown(_)
            | Self::UnknownSnapshot { .. }
            | Self::NothingLacking { .. }
            | Self::Name(_) => Blame::Missing,
            Self::SourceAway { .. } | Self::MirrorAway { .. } => Blame::Elsewhere,
            Self::Key { .. } => Blame::Key,
            Self::Refused(ChangeRefusal::Fenced { .. }) | Self::Promoted { .. } => Blame::Fenced,
            Self::NoRoom { .. } | Self::Refused(ChangeRefusal::LogFull) => Blame::Room,
            Self::Refused(_)
            | Self::Exists(_)
            | Self::Size(_)
            | Self::TooLarge { .. }
            | Self::NoDisk(_)
            | Self::Stream(_)
            | Self::OtherVolume(_)
            | Self::KeyFile { .. }
            | Self::Knobs
            | Self::Unheld(_)
            | Self::IsPromoted(_)
            | Self::NotMirrored { .. }
            | Self::NoCopy(_)
            | Self::HeldFor { .. }
            | Self::NotEncrypted(_)
            | Self::Below { .. }
            | Self::Branch { .. }
            | Self::Coming(_)
            | Self::Needed { .. }
            | Self::Absent(_)
            | Self::NotCached => Blame::Caller,
            Self::Damaged(_)
            | Self::Orphan(_)
            | Self::Encryption(_)
            | Self::Io { .. }
            | Self::Failed
            | Self::InUse(_)
            | Self::Base(_) => Blame::Host,
        }
    }

    /// Error of a file operation.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        let path = path.into();
        let kind = source.kind();
        if matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            return Self::NoRoom { path };
        }
        Self::Io {
            doing,
            path,
            source,
        }
    }
}
