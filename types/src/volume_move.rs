//! Volumes that move to another host without a VM, and the steps of their way.

use crate::{ByteCount, DiskTransfer, ForkId, VmName, VolumeView};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Term in which a volume is at home at a host: one that is later takes its place.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(pub u64);

impl Term {
    /// Term of a volume that was made, and never moved.
    pub const FIRST: Self = Self(1);

    /// Term of the host that a volume moves to from one that has it in this term.
    #[must_use]
    pub fn there(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Term in which a volume goes on at a host whose hand-over of it failed: later than that of the
    /// host that it did not go to.
    #[must_use]
    pub fn back(self) -> Self {
        self.there().there()
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `POST /v1/volumes/{name}/move`: move a volume that no VM has to another host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveVolume {
    /// Host, as it is called here, or its address.
    pub to: String,
    /// Part of it that is sent before it is at home there.
    #[serde(default)]
    pub disk: DiskTransfer,
}

/// `POST /v1/volumes/{name}/bring`: move a volume that no VM has here.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BringVolume {
    /// Host that it is at, as it is called here, or its address. If absent: the node where the cluster
    /// says that it is, or the host that a copy here is of.
    #[serde(default)]
    pub from: Option<String>,
    /// Part of it that is sent before it is at home here.
    #[serde(default)]
    pub disk: DiskTransfer,
}

/// Result of a volume's move.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeMoved {
    /// The volume, as the host that was asked has it now: it is at home there, or a copy.
    pub volume: VolumeView,
    /// Account of the move.
    pub report: VolumeMoveReport,
}

/// Account of a volume's move. Times are in microseconds, by the clock of the host that it left.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMoveReport {
    /// From the request to the end.
    pub total_us: u64,
    /// Part of it in which it was at home at neither host.
    pub hand_over_us: u64,
    /// Bytes that were sent.
    pub sent: ByteCount,
    /// Bytes of blocks that stayed, and are fetched from there.
    pub left: ByteCount,
    /// Snapshots of its user that were sent along.
    pub snapshots: u32,
    /// Term in which it is at home at the other host.
    pub term: Term,
}

/// Way of a volume to another host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMoving {
    /// The other host, as it is called here.
    pub to: String,
    /// Phase.
    pub phase: VolumeMovePhase,
    /// Bytes that were sent so far.
    pub sent: ByteCount,
}

/// Phase of a volume's move.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeMovePhase {
    /// The other host is asked what it has of it.
    Preparing,
    /// Blocks that the other host lacks are sent. Nothing is active there.
    Copying,
    /// The other host is to record that it is at home there.
    HandingOver,
    /// Nothing opens it until it is known whether the other host has it.
    Unsettled,
}

/// `POST /v1/peer/volumes`: take a step of a volume's way from host to host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PeerVolumeStep {
    /// Say what is there of a volume that is about to come, and keep its name for it. Its snapshots come
    /// by `PUT /v1/peer/migrations/{migration}/volume`. Nothing is active there.
    Prepare(PeerVolumePrepare),
    /// All of it is there: have it at home there from now on.
    Land(PeerVolumeLand),
    /// Give it up, unless it is at home there: it never will be by this move, once this is answered so.
    End(PeerVolumeEnd),
    /// Say whether a volume is awaited there by this move.
    Awaits(ForkId),
    /// Move a volume to the host that awaits it by this move. Answered at the end.
    Give(PeerVolumeGive),
}

/// A volume that is about to come.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerVolumePrepare {
    /// The move.
    pub migration: ForkId,
    /// Name of the volume.
    pub name: VmName,
    /// Identity of the volume, the same on every host: 32 hexadecimal digits.
    pub id: String,
    /// Term in which it is at home at the host that it leaves.
    pub term: Term,
    /// Name of that host, as it calls itself.
    pub from: String,
    /// Snapshots of the volume, the oldest first.
    pub snapshots: Vec<String>,
}

/// A volume that has come.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerVolumeLand {
    /// The move.
    pub migration: ForkId,
    /// Name of the volume.
    pub name: VmName,
    /// Snapshot that it goes on from.
    pub snapshot: String,
    /// Term in which it is at home at the host that it leaves.
    pub term: Term,
}

/// A volume that does not come, or has come.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerVolumeEnd {
    /// The move.
    pub migration: ForkId,
    /// Name of the volume.
    pub name: VmName,
}

/// A volume that is wanted at another host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerVolumeGive {
    /// The move.
    pub migration: ForkId,
    /// Name of the volume.
    pub name: VmName,
    /// Node that it goes to. Among hosts that are no nodes, the one that awaits it is looked for.
    #[serde(default)]
    pub to: Option<String>,
    /// Part of it that is sent before it is at home there.
    #[serde(default)]
    pub disk: DiskTransfer,
}

/// State of a volume at the host that it comes to.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerVolumePrepared {
    /// Snapshot that both hosts have, of which the difference is enough.
    pub since: Option<String>,
    /// Snapshots of the user that are there already.
    pub has: Vec<String>,
}

/// Answer to a [`PeerVolumeStep`].
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerVolumeAnswer {
    /// Name kept for the volume.
    Prepared(PeerVolumePrepared),
    /// At home there: term in which it came to be.
    Landed(Term),
    /// Given up: the volume never comes by this move.
    Ended,
    /// True if the volume is awaited there.
    Awaits(bool),
    /// Account of a move that was asked for.
    Given(Box<VolumeMoved>),
}
