//! Moving a running VM to another host: what a user asks, and what the hosts tell each other.

mod packed_runs;

pub use packed_runs::{BadRuns, PackedRuns};

use crate::{
    Epoch, ForkId, GuestCpu, Handout, ImageId, PageCount, Publish, Term, Terms, VmId, VmName,
    VmView, VolumeAt,
};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;

/// `POST /v1/vms/{vm}/migrate`: move a running VM to another host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigrateRequest {
    /// Host it moves to: a node of the cluster, or a peer by name.
    pub to: String,
    /// Longest time that the guest may stand still, in ms; one and a half round trips and 100 ms
    /// if absent. Pages are sent ahead until what is left takes no longer, as far as can be
    /// told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 4_294_967_295_u32))]
    pub max_gap_ms: Option<u32>,
    /// Longest time that pages are sent ahead, in ms; no limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Action if the guest writes pages as fast as they are sent, or the
    /// deadline passes.
    #[serde(default)]
    pub if_stuck: IfStuck,
    /// Part of the volumes that are its disks that is sent before it moves.
    #[serde(default)]
    pub disk: DiskTransfer,
    /// Name of a checkpoint of the instant at which it left, which stays on the host that it leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_copy: Option<VmName>,
    /// Other VMs of the host that move with it, as one: all of them go on there, or all here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 63))]
    pub together: Vec<String>,
}

/// Part of a volume that is sent before its VM moves.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskTransfer {
    /// All that the other host lacks, if that is 64 MiB at most; otherwise as on demand.
    #[default]
    Auto,
    /// All that the other host lacks.
    Ahead,
    /// Blocks that were read or written of late. The rest is fetched from this host once the VM is at the
    /// other: when it is read, and by and by.
    OnDemand,
}

/// Action on a VM whose pages do not become fewer while they are sent ahead.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IfStuck {
    /// Leave it where it is, and say why.
    #[default]
    GiveUp,
    /// Stop it all the same, for as long as the rest takes.
    Stop,
    /// Have its vCPUs run for a part of the time alone, an eighth of it at least, until what is
    /// left can be sent within the gap. If it cannot even then, or the deadline passes, leave it where it is.
    Slow,
}

/// Result of a migration.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MigrateResponse {
    /// The VM, where it is now.
    pub vm: VmView,
    /// Account of the time.
    pub report: MigrationReport,
    /// Reason why the checkpoint that was asked for was not kept, though the VM has moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_copy: Option<String>,
    /// The VMs that moved with it, in the order in which they were named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(no_recursion))]
    pub together: Vec<MigrateResponse>,
}

/// Account of the time of a migration. Times are in microseconds, by the clock of the host that
/// the VM left.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationReport {
    /// From the request to the end.
    pub total_us: u64,
    /// Until all of a first copy was there, and a machine that waits for the rest.
    pub prepare_us: u64,
    /// Copies of what had been written meanwhile, until little was left.
    pub rounds: u32,
    /// Time they took.
    pub rounds_us: u64,
    /// From the guest's stop here until this host was told that it goes on there: half a round
    /// trip longer than it stood still.
    pub gap_us: u64,
    /// Part of the gap until all that was left had been copied here.
    pub stop_us: u64,
    /// Part of the gap from there until the answer.
    pub hand_over_us: u64,
    /// Time as the other host measured it: pages that came last, devices loaded, user code let go.
    pub land_us: u64,
    /// Pages of memory and disk sent ahead.
    pub pages_ahead: PageCount,
    /// Pages sent while the guest stood still.
    pub pages_last: PageCount,
    /// Pages of memory and disk that the other host had already: from when the VM was there, or from
    /// another that moves with it.
    #[serde(default)]
    pub pages_there: PageCount,
    /// Blocks of its volumes sent ahead, of 4096 bytes each; 0 if it has none.
    #[serde(default)]
    pub blocks_ahead: u64,
    /// Blocks left here, which the other host fetches once it has the VM.
    #[serde(default)]
    pub blocks_left: u64,
    /// Blocks sent while the guest stood still.
    #[serde(default)]
    pub blocks_last: u64,
    /// Part of the time for which its vCPUs ran in the end, in percent, if they were slowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowed_to_percent: Option<u8>,
    /// Time from the stop of the first to that of the last of VMs that moved together.
    #[serde(default)]
    pub spread_us: u64,
    /// Time from the first to the last of them that went on at the other host, by its clock.
    #[serde(default)]
    pub resume_spread_us: u64,
}

/// `POST /v1/peer/migrations`: one step of a VM's way to the host that is asked, by the host
/// that it leaves.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerMigration {
    /// Say what is there of a volume that is about to come, and keep its name for it. Its
    /// snapshots come by `PUT /v1/peer/migrations/{migration}/volume`.
    Volume(PeerVolume),
    /// Say which CPU guests are given there.
    Cpu(PeerCpu),
    /// Say which images are still there of a VM that has been there.
    Kept(PeerKept),
    /// Fetch a first copy, and make a machine that waits for the rest. Answered when all of it is
    /// there.
    Prepare(Box<PeerPrepare>),
    /// Fetch what has been written since. Answered when it is there.
    Round(PeerRound),
    /// The guest is about to stand still there: frames for it wait at its port here, and what that
    /// host passes on is taken.
    Expect(PeerExpect),
    /// The guest stands still there: fetch what is left, and let it go on here.
    Land(Box<PeerLand>),
    /// Several guests stand still there: fetch what is left, and let all of them go on here, or none.
    LandTogether(Vec<PeerLand>),
    /// Give it up, unless it goes on here: it never will, once this is answered so.
    End(PeerEndMigration),
}

/// A question which CPU guests are given.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerCpu {
    /// Accelerator: `kvm` or `tcg`.
    pub accel: String,
}

/// Images that a VM lies over which is about to move.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerKept {
    /// The VM.
    pub vm: VmId,
    /// Images of the VM.
    pub images: Vec<ImageId>,
}

/// A volume that is a disk of a VM that is about to move.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerVolume {
    /// The migration.
    pub migration: ForkId,
    /// Name there.
    pub name: VmName,
    /// Identity of the volume, the same on every host: 32 hexadecimal digits.
    pub volume: String,
    /// Snapshots that were sent to other hosts, the oldest first.
    pub sent: Vec<String>,
    /// Term in which it is at home at the host that it leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<Term>,
    /// CPU that the VM was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<GuestCpu>,
    /// Accelerator: `kvm` or `tcg`.
    #[serde(default)]
    pub accel: String,
    /// Ports of the host that lead to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub publish: Vec<Publish>,
}

/// `GET /v1/peer/volumes/{volume}/supply`: blocks that a volume may lack.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerSupply {
    /// Identity of the volume.
    pub id: String,
    /// Snapshot of it, at the host that supplies.
    pub snapshot: String,
    /// All that is lacking is to come; otherwise what is read.
    pub fill: bool,
}

/// `PUT /v1/peer/migrations/{migration}/volume`: the snapshot that comes.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SentVolume {
    /// Volume, by its name there.
    pub volume: VmName,
    /// Snapshot.
    pub snapshot: String,
}

/// A VM that is about to move.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerPrepare {
    /// An instant of it.
    pub first: Handout,
    /// Images of that which come by what they differ in from one that is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub over: Vec<Delta>,
    /// Properties of the VM, apart from that.
    pub vm: HandoutVm,
    /// Final id of its memory.
    pub memory: ImageId,
    /// Final id of its disk, unless that is a volume.
    pub disk: Option<ImageId>,
    /// The volume that is its disk, a snapshot of which has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VmName>,
    /// Other disks of the VM, of which a snapshot has come each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<PeerDisk>,
}

/// A data disk of a VM that is about to move.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerDisk {
    /// Serial number of the disk.
    pub name: VmName,
    /// Volume that it is, by its name there.
    pub volume: VmName,
    /// Snapshot of that, if the VM only reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<String>,
}

/// Properties that a VM keeps when it moves, and that its clones do not have.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoutVm {
    /// This life of its memory.
    pub epoch: Epoch,
    /// The VM it is a clone of, if it is one.
    pub parent: Option<VmId>,
    /// The fork it came from.
    pub fork: Option<ForkId>,
    /// Seconds since 1970.
    pub created: u64,
    /// Clones to keep warm.
    pub warm: u16,
    /// Problems of the guest when it came up.
    pub notes: Vec<String>,
    /// Terms of the VM: what it was given beside its machine.
    #[serde(default)]
    pub terms: Terms,
    /// Ports of the host that lead to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub publish: Vec<Publish>,
    /// True if its user wants it to stand still.
    #[serde(default)]
    pub is_paused: bool,
}

/// An image by what it differs in from one that was sent before.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delta {
    /// The image.
    pub image: ImageId,
    /// The one sent before.
    pub over: ImageId,
    /// Pages that differ.
    pub changed: PackedRuns,
}

/// Memory that was written since it was sent.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerRound {
    /// The migration.
    pub migration: ForkId,
    /// Memory as it is now.
    pub memory: Delta,
}

/// The last of a VM that stands still.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerLand {
    /// The migration.
    pub migration: ForkId,
    /// State of its devices and CPUs, packed by zstd with that of the first copy as the dictionary,
    /// base64.
    pub devices: String,
    /// Memory as it is now.
    pub memory: Delta,
    /// Disk as it is now, unless that is a volume.
    pub disk: Option<Delta>,
    /// The snapshots of volumes that are its disks: it goes on once those have come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<VolumeAt>,
    /// Numbers of the commands in it that this host's clients follow, and will follow by
    /// `GET /v1/peer/migrations/{migration}/commands`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<u32>,
}

/// Announcement that a VM is about to stand still.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerExpect {
    /// The migration.
    pub migration: ForkId,
    /// End of tunnels of the host that it leaves.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub from: Ipv4Addr,
    /// Rank of the news that it moves, among all news of its place.
    pub generation: u32,
}

/// A migration that the host the VM leaves knows no more of, or gives up.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerEndMigration {
    /// The migration.
    pub migration: ForkId,
    /// The VM.
    pub vm: VmId,
}

/// Answer of a host to a step.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerMigrated {
    /// All that was sent is there.
    Here,
    /// That volume can come, by what differs from this snapshot, which is here, or all of it.
    Since(Option<String>),
    /// Guests are given this CPU here.
    Cpu(GuestCpu),
    /// Those images of the VM are here, and stay for a while.
    Kept(Vec<ImageId>),
    /// Goes on here.
    Landed(Box<Landed>),
    /// Go on here, in the order in which they were named.
    LandedTogether(Vec<Landed>),
    /// The VM does not go on here, and never will.
    Ended,
}

/// A VM that goes on after it has moved.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Landed {
    /// The VM.
    pub vm: VmView,
    /// From the request until its user code was let go, in microseconds; 0 if that is long ago.
    pub took_us: u64,
}
