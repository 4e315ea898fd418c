//! Volumes: disks that outlive the VMs that write them.

use crate::{ByteCount, Term, VmName, VolumeMirror, VolumeMoving};
use serde::{Deserialize, Serialize};
use std::{fmt, path::PathBuf};

/// A volume.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeView {
    /// Name of the volume.
    pub name: VmName,
    /// Size of the disk.
    pub size: ByteCount,
    /// Bytes stored for its blocks, those of snapshots included.
    pub stored: ByteCount,
    /// Host that it is at, if this is a copy of what it was when it left, or is on its way here. A
    /// copy shortens the way back, and can be removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Node that has it, in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Identity, the same on every host that has some of it: 32 hexadecimal digits. None if it cannot be opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Term in which it is at home here; one more each time it comes to be at home at another host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<Term>,
    /// Way to another host, if it is on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<VolumeMoving>,
    /// VM that writes it, or will when it is started.
    pub vm: Option<VmName>,
    /// True if its blocks are encrypted on the host's disk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
    /// File of the host with its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
    /// Number of its last writer: each one that began counts one more.
    pub epoch: u32,
    /// Other hosts that every flush waits for, and what they hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<VolumeMirror>,
    /// Law by which its blocks are sent ahead; none if it cannot be opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub law: Option<VolumeTuning>,
    /// Amounts of it that are at other hosts still, and are fetched from there: because they are read,
    /// or by and by. Empty once all of it is here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacking: Vec<VolumeLacking>,
    /// Hosts that fetch blocks of it from here. It cannot be removed until they have all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needed_by: Vec<VolumeNeed>,
    /// Snapshots of the volume, the oldest first.
    pub snapshots: Vec<VolumeSnapshot>,
    /// Reason why it cannot be opened; then nothing else is known of it. It can be removed.
    pub failure: Option<String>,
}

/// Amount of a volume that is at another host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeLacking {
    /// Host, as it calls itself.
    pub at: String,
    /// Bytes.
    pub size: ByteCount,
}

/// Parameters of the law by which blocks of a volume are sent ahead: p = K·fr/fw + fr if fr/fw ≥ S, for a block that
/// was read fr times and written fw times.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeTuning {
    /// Weight of the ratio of reads to writes.
    pub k: f64,
    /// Least ratio of reads to writes at which a block is worth sending.
    pub s: f64,
}

/// `POST /v1/volumes/{name}/tune`: change the law by which its blocks are sent ahead, also while a VM writes it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuneVolume {
    /// Weight of the ratio of reads to writes; as it is if absent.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub k: Option<f64>,
    /// Least ratio of reads to writes at which a block is worth sending; as it is if absent.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(minimum = 0))]
    pub s: Option<f64>,
}

/// `GET /v1/volumes/{name}/why`: reasons for which a block went to other hosts, came from there, or did not.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeWhy {
    /// Block, of 4096 bytes.
    pub block: u64,
    /// Offset of the block.
    pub offset: ByteCount,
    /// Place of its content.
    pub holding: VolumeHolding,
    /// Number of its last write here; none if it was never written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Hosts that it may be fetched from, or by.
    pub hosts: Vec<String>,
    /// Law, applied to the counts of now.
    pub law: VolumeLaw,
    /// Transfers of it, the newest first. Those before the volume's server began are not known.
    pub transfers: Vec<VolumeTransfer>,
    /// True if older transfers, or parts of them, are not kept.
    pub is_cut: bool,
}

/// Place of a block's content.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeHolding {
    /// Nowhere: never written.
    Unwritten,
    /// Nowhere: zeroed or discarded.
    Zero,
    /// Here.
    Here,
    /// At another host.
    Elsewhere,
}

/// Law of propagation, applied to a block.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeLaw {
    /// Weight of the ratio of reads to writes.
    pub k: f64,
    /// Least ratio at which a block is worth sending.
    pub s: f64,
    /// Reads of the block since counting began; what is long ago counts for less.
    pub reads: u32,
    /// Writes of the block, counted likewise.
    pub writes: u32,
    /// Priority; none if it was not touched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<f64>,
    /// All that in words.
    pub words: String,
}

/// Transfer of a block.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeTransfer {
    /// Time, in seconds since 1970.
    pub at: u64,
    /// Other host, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Snapshot that it was part of.
    pub snapshot: String,
    /// True if the block went, or came; false if it was left.
    pub is_sent: bool,
    /// Reason.
    pub why: String,
    /// Law as it was applied, if the counts of then are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub law: Option<VolumeLaw>,
}

/// Host that fetches blocks of a volume.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeNeed {
    /// Host, as it is called here.
    pub host: String,
    /// Snapshot that has them.
    pub snapshot: String,
}

/// A volume as it was at one instant.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSnapshot {
    /// Name of the snapshot.
    pub name: String,
    /// Size of the disk.
    pub size: ByteCount,
    /// Clones and checkpoints that lie over it: it goes with the last of them if a fork made it.
    pub vms: Vec<VmName>,
}

/// `POST /v1/volumes`: make a volume.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Name of the volume.
    pub name: VmName,
    /// Size of the disk, a multiple of 4096 bytes; that of what it is made of if absent.
    #[serde(default)]
    pub size: Option<ByteCount>,
    /// Image whose disk it is a copy of; zeroes if absent.
    #[serde(default)]
    pub image: Option<String>,
    /// Raw disk that it is a copy of: a file of the host.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub file: Option<PathBuf>,
    /// Encrypt its blocks on the host's disk.
    #[serde(default)]
    pub encrypted: bool,
    /// File of the host with its key, 64 hexadecimal digits, of mode 0600. A key is made if absent,
    /// and goes with the volume.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub key_file: Option<PathBuf>,
}

/// `POST /v1/volumes/{name}/snapshots`: keep a volume as it is.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotVolume {
    /// Name of the snapshot.
    pub name: VmName,
}

/// `POST /v1/volumes/{name}/resize`: change the size of a volume that no VM has.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeVolume {
    /// New size, a multiple of 4096 bytes. What lies beyond a smaller one is lost.
    pub size: ByteCount,
}

/// `POST /v1/volumes/{name}/export`: copy a volume into a raw disk, a new file of the host.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportVolume {
    /// File, which must not exist.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub file: PathBuf,
    /// Snapshot to copy; the volume as it is if absent.
    #[serde(default)]
    pub snapshot: Option<String>,
}

/// Volume that is to be the root disk of a VM.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RootVolume {
    /// Name of the volume. One that does not exist is made as a copy of the
    /// image's disk.
    pub name: VmName,
    /// Size of one that is made; that of the image's disk if absent.
    #[serde(default)]
    pub size: Option<ByteCount>,
    /// Encrypt the blocks of one that is made. One that is there and not encrypted is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
}

/// Part that a volume plays in a VM's disk. Kept in records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeUse {
    /// The VM writes it: it is all of its disk.
    Written {
        /// Volume.
        volume: VmName,
        /// Epoch of the VM's writer; none while it has none.
        epoch: Option<u32>,
    },
    /// The VM's slices lie over a snapshot of it.
    Below(VolumeAt),
}

/// Volume that is to be a data disk of a VM.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataVolume {
    /// Name of the volume, and the serial number of the disk in the guest: 20
    /// characters at most.
    pub name: VmName,
    /// Size of one that does not exist yet, and is made of zeroes.
    #[serde(default)]
    pub size: Option<ByteCount>,
    /// The VM and its clones read the volume as it is now, and write nothing; any number of VMs may.
    #[serde(default)]
    pub read_only: bool,
    /// Snapshot that they read instead; then the disk is read-only.
    #[serde(default)]
    pub snapshot: Option<String>,
    /// Encrypt the blocks of one that is made. One that is there and not encrypted is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
}

/// Data disk of a VM. Kept in records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataDisk {
    /// Serial number of the disk: the name of the volume that the family began with.
    pub name: VmName,
    /// Use by the VM.
    pub role: DataRole,
}

/// Use of a data disk by a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataRole {
    /// Writes a volume.
    Written {
        /// Volume: one of a user's, or a clone's branch.
        volume: VmName,
        /// Epoch of the VM's writer; none while it has none.
        epoch: Option<u32>,
        /// Snapshots below it if it is a branch, the upper ones first; the last is of a user's volume.
        over: Vec<VolumeAt>,
    },
    /// Nothing: it is a checkpoint's, whose clones write branches.
    Frozen {
        /// The snapshot it lies over, and those below, the upper ones first.
        over: Vec<VolumeAt>,
    },
    /// Reads a snapshot, as its clones do.
    Shared {
        /// Snapshot.
        at: VolumeAt,
    },
}

impl DataDisk {
    /// Most characters of a name: what a virtio disk has for its serial number.
    pub const NAME_MAX: usize = 20;
    /// Most data disks of a VM.
    pub const MOST: usize = 8;

    /// Volume that the VM writes, and the epoch of its writer.
    pub fn written(&self) -> Option<(&VmName, Option<u32>)> {
        match &self.role {
            DataRole::Written { volume, epoch, .. } => Some((volume, *epoch)),
            DataRole::Frozen { .. } | DataRole::Shared { .. } => None,
        }
    }

    /// Snapshots that it is, or lies over, the upper ones first.
    pub fn below(&self) -> &[VolumeAt] {
        match &self.role {
            DataRole::Written { over, .. } | DataRole::Frozen { over } => over,
            DataRole::Shared { at } => std::slice::from_ref(at),
        }
    }

    /// Tells whether a volume of this disk is the family's alone, and ends with the last record that
    /// lies over it.
    pub fn is_private(&self, volume: &VmName) -> bool {
        *volume != self.name
    }

    /// Volume that the VM writes and that ends with it, if it writes one.
    pub fn own(&self) -> Option<&VmName> {
        let (volume, _) = self.written()?;
        self.is_private(volume).then_some(volume)
    }

    /// Branch that the VM writes, if it writes one.
    pub fn branch(&self) -> Option<&VmName> {
        match &self.role {
            DataRole::Written { volume, over, .. } if !over.is_empty() => Some(volume),
            DataRole::Written { .. } | DataRole::Frozen { .. } | DataRole::Shared { .. } => None,
        }
    }
}

/// Volume at one instant.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VolumeAt {
    /// Volume.
    pub volume: VmName,
    /// Snapshot.
    pub snapshot: String,
}

impl VolumeUse {
    /// Volume that it is.
    pub fn volume(&self) -> &VmName {
        match self {
            Self::Written { volume, .. } | Self::Below(VolumeAt { volume, .. }) => volume,
        }
    }
}

impl fmt::Display for VolumeAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.volume, self.snapshot)
    }
}

/// Disk that is served by NBD over a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdDisk {
    /// Socket of the server.
    pub socket: PathBuf,
    /// Export.
    pub export: String,
}

impl NbdDisk {
    /// Seconds for which requests wait for a server that has gone.
    const PATIENCE: u32 = 120;

    /// QEMU's block driver for it. A socket whose path is no text names none.
    pub fn driver(&self) -> NbdDriver<'_> {
        NbdDriver {
            driver: "nbd",
            server: NbdServer {
                kind: "unix",
                path: self.socket.to_str().unwrap_or_default(),
            },
            export: &self.export,
            reconnect_delay: Self::PATIENCE,
        }
    }
}

/// QEMU's options for a disk served by NBD.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NbdDriver<'a> {
    driver: &'static str,
    server: NbdServer<'a>,
    export: &'a str,
    reconnect_delay: u32,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct NbdServer<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    path: &'a str,
}
