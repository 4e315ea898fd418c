//! Requests to the control socket, and their answers: one JSON object a line.

use crate::Status;
use forkyard_volume_store::{AtRest, Blame, Counts, MirrorPlan, Need, Why};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Longest line, in bytes.
pub(crate) const MAX_LINE: u64 = 64 << 10;

/// Request of a manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Make a volume of zeroes.
    Create {
        /// Name.
        name: String,
        /// Size in bytes.
        size: u64,
        /// Encryption of its blocks, if they are to be.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        encrypt: Option<Encrypt>,
    },
    /// Make a volume over a snapshot, which may be taken later.
    Branch {
        /// Name of the volume, which must not exist.
        name: String,
        /// Volume that it lies over.
        volume: String,
        /// Snapshot of that.
        snapshot: String,
    },
    /// List volumes.
    List {},
    /// Describe a volume.
    Inspect {
        /// Name.
        name: String,
    },
    /// Begin a writer.
    Open {
        /// Volume.
        name: String,
        /// True to fence a writer that there is.
        takeover: bool,
    },
    /// End the writer.
    Close {
        /// Volume.
        name: String,
        /// Epoch of the writer that is meant; that of any writer if absent. No error if that
        /// one has ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epoch: Option<u32>,
    },
    /// Give a pass: the name by which a client of another user may open an export.
    Pass {
        /// Export.
        export: String,
    },
    /// Keep a volume as it is.
    Snapshot {
        /// Volume.
        name: String,
        /// Name of the snapshot.
        snapshot: String,
        /// Answer before it is durable, which it is with the next flush.
        #[serde(default)]
        at_once: bool,
    },
    /// Make all that was written to a volume durable.
    Flush {
        /// Volume.
        name: String,
    },
    /// Remove a snapshot.
    DropSnapshot {
        /// Volume.
        name: String,
        /// Name of the snapshot.
        snapshot: String,
    },
    /// Change the size of a volume.
    Resize {
        /// Volume.
        name: String,
        /// New size in bytes.
        size: u64,
    },
    /// Remove a volume.
    Remove {
        /// Volume.
        name: String,
    },
    /// Send a snapshot. Answered by [`Answer::Stream`], behind which the stream follows; the
    /// connection is closed if that breaks off.
    Send {
        /// Volume.
        name: String,
        /// Snapshot.
        snapshot: String,
        /// Earlier snapshot from which only the differences are told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<String>,
        /// Blocks that are sent, if not all are: those of late, up to this number. The rest is
        /// fetched from this host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hot: Option<Hot>,
        /// Host that it is sent to, as it is called here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// Take a snapshot from the stream that follows. Answered at its end; the connection is
    /// closed if it cannot be taken.
    Receive {
        /// Name of the volume, which is made if the stream has all of it.
        name: String,
        /// Epoch of the writer that there is, if there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epoch: Option<u32>,
    },
    /// Keep a snapshot for another host, which will fetch blocks of it.
    Need {
        /// Volume.
        name: String,
        /// Snapshot.
        snapshot: String,
        /// Host, as it is called here.
        by: String,
    },
    /// End a need.
    Unneed {
        /// Volume.
        name: String,
        /// Snapshot.
        snapshot: String,
        /// Host, as it is called here.
        by: String,
    },
    /// List needs.
    Needs {},
    /// Fetch blocks that are lacking over this connection, from a server that answers
    /// [`Request::Serve`]. After [`Answer::Stream`] questions follow. An answer that the volume or
    /// snapshot is missing says that nothing of it is lacking.
    Supply {
        /// Volume.
        name: String,
        /// Identity of the volume.
        id: String,
        /// Snapshot at the other host.
        snapshot: String,
        /// Fetch all that is lacking; otherwise what is read.
        fill: bool,
    },
    /// Answer questions for blocks of a snapshot. They follow after [`Answer::Stream`].
    Serve {
        /// Volume.
        name: String,
        /// Snapshot.
        snapshot: String,
        /// Host that asks, as it is called here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
        /// True if it asks for all that it lacks; otherwise for what is read.
        #[serde(default)]
        fill: bool,
    },
    /// Say which hosts are to hold every flush of a volume.
    SetMirrors {
        /// Volume.
        name: String,
        /// Hosts, and what is done while one is away.
        plan: MirrorPlan,
    },
    /// Have a host hold a volume over this connection, from a server that answers [`Request::Hold`].
    Mirror {
        /// Volume.
        name: String,
        /// Host, as it is called here.
        to: String,
    },
    /// Hold a copy of a volume for the host that speaks on this connection.
    Hold {
        /// Name of the copy, which is made if there is none.
        name: String,
        /// Host.
        from: String,
    },
    /// Make a copy that is held for another host a volume that is at home here.
    Promote {
        /// Volume.
        name: String,
    },
    /// Tell why a block went to other hosts, came from there, or did not.
    Why {
        /// Volume.
        name: String,
        /// Block.
        block: u64,
    },
    /// Change the law by which blocks are sent ahead.
    Tune {
        /// Volume.
        name: String,
        /// Weight of the ratio of reads to writes; as it is if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        k: Option<f64>,
        /// Least ratio at which a block is worth sending; as it is if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        s: Option<f64>,
    },
    /// Count the blocks that were written since a snapshot.
    Changed {
        /// Volume.
        name: String,
        /// Snapshot.
        since: String,
    },
    /// Tell what is counted of the volumes that are open.
    Counts {},
    /// Make a volume of a raw disk.
    Import {
        /// Name of the volume, which must not exist.
        name: String,
        /// File.
        file: PathBuf,
        /// Size in bytes; that of the file if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
        /// Encryption of its blocks, if they are to be.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        encrypt: Option<Encrypt>,
    },
    /// Copy a volume or a snapshot into a new raw disk.
    Export {
        /// Volume.
        name: String,
        /// Name of a snapshot, if it is one.
        snapshot: Option<String>,
        /// File, which must not exist.
        file: PathBuf,
    },
    /// Store a checkpoint, and give back room that nothing needs.
    Compact {
        /// Volume.
        name: String,
    },
    /// Flush all volumes and end.
    End {},
}

/// Encryption of a new volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encrypt {
    /// Key file of the operator's, an absolute path; a key is made if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

impl Encrypt {
    /// Protection of a new volume.
    pub(crate) fn at_rest(encrypt: Option<Self>) -> AtRest {
        match encrypt {
            Some(Self { key }) => AtRest::Encrypted { key },
            None => AtRest::Plain,
        }
    }
}

/// Blocks that are sent where not all are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hot {
    /// Most blocks.
    pub most: usize,
    /// Host that has the rest, as it calls itself.
    pub from: String,
}

/// Answer of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Done.
    Done {},
    /// Names of volumes.
    Volumes(Vec<String>),
    /// Counts of volumes.
    Counts(Vec<Counts>),
    /// Description of a volume.
    Volume(Box<Status>),
    /// Name of the export that the writer is to open.
    Opened {
        /// Export.
        export: String,
    },
    /// A stream follows.
    Stream {},
    /// Number of blocks, of 4096 bytes.
    Blocks(u64),
    /// Needs of other hosts.
    Needs(Vec<Need>),
    /// Reasons of a block's transfers.
    Why(Box<Why>),
    /// Not done.
    Failed {
        /// Class of the failure.
        blame: Blame,
        /// Reason.
        why: String,
    },
}

impl Answer {
    /// The description of a volume, if that is what it is.
    pub fn volume(self) -> Option<Status> {
        match self {
            Self::Volume(status) => Some(*status),
            Self::Done {}
            | Self::Volumes(_)
            | Self::Opened { .. }
            | Self::Stream {}
            | Self::Counts(_)
            | Self::Blocks(_)
            | Self::Needs(_)
            | Self::Why(_)
            | Self::Failed { .. } => None,
        }
    }

    /// The names of volumes, if that is what it is.
    pub fn volumes(self) -> Option<Vec<String>> {
        match self {
            Self::Volumes(names) => Some(names),
            Self::Done {}
            | Self::Volume(_)
            | Self::Opened { .. }
            | Self::Stream {}
            | Self::Counts(_)
            | Self::Blocks(_)
            | Self::Needs(_)
            | Self::Why(_)
            | Self::Failed { .. } => None,
        }
    }

    /// The name of an export, if that is what it is.
    pub fn export(self) -> Option<String> {
        match self {
            Self::Opened { export } => Some(export),
            Self::Done {}
            | Self::Volumes(_)
            | Self::Volume(_)
            | Self::Stream {}
            | Self::Counts(_)
            | Self::Blocks(_)
            | Self::Needs(_)
            | Self::Why(_)
            | Self::Failed { .. } => None,
        }
    }

    /// Counts of volumes, if that is what was answered.
    pub fn counts(self) -> Option<Vec<Counts>> {
        match self {
            Self::Counts(counts) => Some(counts),
            Self::Done {}
            | Self::Volumes(_)
            | Self::Volume(_)
            | Self::Opened { .. }
            | Self::Stream {}
            | Self::Blocks(_)
            | Self::Needs(_)
            | Self::Why(_)
            | Self::Failed { .. } => None,
        }
    }

    /// Needs of other hosts, if that is what was answered.
    pub fn needs(self) -> Option<Vec<Need>> {
        match self {
            Self::Needs(needs) => Some(needs),
            Self::Done {}
            | Self::Volumes(_)
            | Self::Volume(_)
            | Self::Opened { .. }
            | Self::Stream {}
            | Self::Counts(_)
            | Self::Blocks(_)
            | Self::Why(_)
            | Self::Failed { .. } => None,
        }
    }

    /// Reasons of a block's transfers, if that is what it is.
    pub fn why(self) -> Option<Why> {
        match self {
            Self::Why(why) => Some(*why),
            Self::Done {}
            | Self::Volumes(_)
            | Self::Volume(_)
            | Self::Opened { .. }
            | Self::Stream {}
            | Self::Counts(_)
            | Self::Blocks(_)
            | Self::Needs(_)
            | Self::Failed { .. } => None,
        }
    }

    /// The number of blocks, if that is what it is.
    pub fn blocks(&self) -> Option<u64> {
        match self {
            Self::Blocks(blocks) => Some(*blocks),
            Self::Done {}
            | Self::Volumes(_)
            | Self::Volume(_)
            | Self::Opened { .. }
            | Self::Stream {}
            | Self::Counts(_)
            | Self::Needs(_)
            | Self::Why(_)
            | Self::Failed { .. } => None,
        }
    }
}
