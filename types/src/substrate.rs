//! Substrates: VMs that are kept small, to be woken as independent ones.

use crate::{
    BackupView, ByteCount, CloneResult, Idle, ImageId, Labels, Lifetime, NetworkPolicy, RequestId,
    VmName,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf};

/// Kind of a substrate.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubstrateKind {
    /// A bare system, generalised.
    Public,
    /// A system with an application, generalised.
    Restricted,
    /// A user's own system, kept as it is. Opens for its owner alone.
    Private,
}

/// `POST /v1/substrates`: make a substrate of a running VM.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DockRequest {
    /// Name or id of the VM.
    pub vm: String,
    /// Name of the substrate.
    pub name: VmName,
    /// Kind of the substrate.
    pub kind: SubstrateKind,
    /// Dock a clone; the VM runs on. Otherwise the VM ends as the substrate.
    #[serde(default)]
    pub live: bool,
    /// Services that run on, of those that would be stopped.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub keep_services: Vec<String>,
    /// Free memory that is left to the guest, in KiB; a usual size if absent.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(maximum = 1_048_576))]
    pub margin_kib: Option<u32>,
}

/// A substrate.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubstrateView {
    /// Name of the substrate.
    pub name: VmName,
    /// Kind of the substrate.
    pub kind: SubstrateKind,
    /// Name of the user that docked it; none: the host's operator.
    pub owner: Option<String>,
    /// Kept by the host itself: the first boot of an image, which `run` is woken from.
    #[serde(default)]
    pub boot: bool,
    /// False while it is being docked.
    pub ready: bool,
    /// Name that the VM had.
    pub from: VmName,
    /// Image that the VM, or its ancestor, booted from.
    pub image: String,
    /// Number of vCPUs of the VMs made of it.
    pub vcpus: u8,
    /// Memory of the VMs made of it.
    pub memory: ByteCount,
    /// Bytes that it takes on disk, guest image below it apart.
    pub size: ByteCount,
    /// Seconds since 1970.
    pub created: u64,
    /// VMs that lie over it.
    pub vms: Vec<VmName>,
    /// VMs of it that are kept ready as they were docked, if any are.
    #[serde(default)]
    pub standby: Option<StandbyView>,
    /// Those that are kept ready in other sizes, by size.
    #[serde(default)]
    pub standby_larger: Vec<StandbyView>,
}

/// `POST /v1/substrates/{name}/standby`: keep VMs of a substrate ready, for activations to take.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandbyRequest {
    /// So many, none any more if 0; as many as recent demand asks for if absent.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(maximum = 256))]
    pub count: Option<u16>,
    /// MiB of the host's memory that they may take together.
    #[serde(default = "standby_memory_mib")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 1_048_576))]
    pub memory_mib: u64,
    /// Memory of each VM in bytes, as `activate` takes it; as it was docked if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schema(value_type = u64, minimum = 67_108_864, maximum = 1_099_511_627_776_u64, multiple_of = 1_048_576)
    )]
    pub vm_memory: Option<ByteCount>,
    /// vCPUs of each VM; as many as were docked if absent. VMs of each size are kept beside those of
    /// others. With a count of 0, and no size, none is kept of any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 64))]
    pub vm_vcpus: Option<u8>,
    /// Root disk of each VM in bytes, as `activate` takes it; as it was docked if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schema(value_type = u64, minimum = 1_048_576, maximum = 1_099_511_627_776_u64, multiple_of = 1_048_576)
    )]
    pub vm_disk: Option<ByteCount>,
}

fn standby_memory_mib() -> u64 {
    1024
}

/// VMs of a substrate that are kept ready.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandbyView {
    /// Memory of each of them.
    #[serde(default)]
    pub memory: ByteCount,
    /// vCPUs of each of them.
    #[serde(default)]
    pub vcpus: u8,
    /// Root disk of each of them; 0: as it was docked.
    #[serde(default)]
    pub disk: ByteCount,
    /// Number that its user wants; as many as recent demand asks for if absent.
    pub count: Option<u16>,
    /// Memory that they may take together.
    pub limit: ByteCount,
    /// Number that is to be ready now, within the limit and what the host has left.
    pub wanted: u16,
    /// Number that is ready.
    pub ready: u16,
    /// Memory that one of them takes, as it was measured last; 0 before the first.
    pub each: ByteCount,
    /// VMs that were taken ready since the daemon began.
    pub hits: u64,
    /// VMs that were wanted while none was ready.
    pub misses: u64,
    /// Reason why the last one could not be made.
    pub problem: Option<String>,
}

/// Sizes that VMs of a substrate can be given.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubstrateSizes {
    /// Memory that its guest found when it booted.
    pub booted: ByteCount,
    /// Most memory of a VM of it.
    pub most_memory: ByteCount,
    /// Unit by which memory grows.
    pub block: ByteCount,
    /// Most vCPUs of a VM of it.
    pub most_vcpus: u8,
    /// Root disk that it was docked with.
    #[serde(default)]
    pub disk: ByteCount,
    /// Largest root disk of a VM of it.
    #[serde(default)]
    pub most_disk: ByteCount,
}

/// `GET /v1/substrates/{name}`: where a substrate's bytes are.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubstrateInspect {
    /// The substrate.
    pub substrate: SubstrateView,
    /// Sizes that VMs of it can be given.
    #[serde(default)]
    pub sizes: SubstrateSizes,
    /// Parts of the substrate.
    pub parts: Option<SubstrateParts>,
    /// Account of the guest's preparation before it was docked.
    pub guest: Option<SubstrateGuest>,
    /// Copy in the store that the host backs its pool up to, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupView>,
}

/// Bytes of a substrate's parts.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubstrateParts {
    /// Memory of the VM.
    pub memory: SubstratePart,
    /// Disk of the VM, as far as it differs from the guest image.
    pub disk: SubstratePart,
    /// State of CPUs and devices.
    pub devices: ByteCount,
}

/// Bytes of one part.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubstratePart {
    /// Page image of the part.
    pub image: ImageId,
    /// Page image that it lies over: another substrate's, or a guest image.
    #[serde(default)]
    pub over: Option<ImageId>,
    /// Pages with data, of all that can be read in it.
    pub raw: ByteCount,
    /// Those of them that are not in what it lies over.
    pub own: ByteCount,
    /// The file that it is kept in.
    pub file: ByteCount,
}

/// Preparation of a guest before it was docked, by its own account.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubstrateGuest {
    /// Services that it stopped.
    pub stopped: Vec<String>,
    /// Files that it removed or emptied.
    pub cleared: u64,
    /// Free memory that it gave back.
    pub given_back: ByteCount,
    /// Memory that it uses, by what for, in the kernel's words.
    pub used: BTreeMap<String, ByteCount>,
    /// Problems of the guest, one line each.
    pub notes: Vec<String>,
}

/// `POST /v1/substrates/{name}/activate`: make VMs of a substrate.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivateRequest {
    /// VMs wanted.
    #[serde(default = "one")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 256))]
    pub count: u16,
    /// Name of the VM, or the beginning of the names of several; the substrate's if absent.
    #[serde(default)]
    pub name: Option<VmName>,
    /// Memory of each in bytes, what was docked and whole blocks of 128 MiB more; as it was docked if
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schema(value_type = u64, minimum = 67_108_864, maximum = 1_099_511_627_776_u64, multiple_of = 1_048_576)
    )]
    pub memory: Option<ByteCount>,
    /// vCPUs of each; as many as were docked if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 64))]
    pub vcpus: Option<u8>,
    /// Root disk of each in bytes, no smaller than it was docked; as it was docked if absent. Its file system is as large
    /// before the VM is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schema(value_type = u64, minimum = 1_048_576, maximum = 1_099_511_627_776_u64, multiple_of = 1_048_576)
    )]
    pub disk: Option<ByteCount>,
    /// Rights of each of them and its clones on the network.
    #[serde(default)]
    pub network: NetworkPolicy,
    /// Most clones of each one's family that may be alive at once; no limit if absent.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(maximum = 65_535))]
    pub max_clones: Option<u16>,
    /// Paths in the guest that no clone inherits, unless a fork says so.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub secrets: Vec<String>,
    /// Have the disk of each come to depend on nothing, in the background.
    #[serde(default)]
    pub independent: bool,
    /// Clones to keep warm of each.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(maximum = 65_535))]
    pub warm: u16,
    /// Labels that each is told apart by; its clones have them, too.
    #[serde(default)]
    pub labels: Labels,
    /// Environment of every command that is run in them from outside.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Time for which they are wanted; until they are removed if absent.
    #[serde(default)]
    pub lifetime: Option<Lifetime>,
    /// Action on each that is not used for a time; it runs on if absent.
    #[serde(default)]
    pub idle: Option<Idle>,
    /// A VM, by name or id, whose family's network they join, with that family's rights there; a
    /// network of its own for each if absent.
    #[serde(default)]
    pub join: Option<String>,
    /// Hosts that make them, in turns: nodes of the cluster or peers by name, `here` for the host that is
    /// asked; that one alone if absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 256))]
    pub to: Vec<String>,
    /// In a cluster: each on the node with most vCPUs free.
    #[serde(default)]
    pub spread: bool,
    /// Id by which its progress is looked at: `GET /v1/substrates/{name}/activations`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<RequestId>,
}

fn one() -> u16 {
    1
}

/// Progress of a VM's disk on the way to depend on nothing.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndependenceView {
    /// True if its disk is its own files, over nothing.
    pub independent: bool,
    /// True if it is to be: the files below are copied, or will be when it runs.
    pub wanted: bool,
    /// Bytes of its disk that are copied; 0 before that has begun.
    pub copied: ByteCount,
    /// Bytes of its disk.
    pub total: ByteCount,
    /// Reason why the last attempt failed; there will be another.
    pub problem: Option<String>,
}

/// `POST /v1/substrates/{name}/push`: put a substrate into a folder of the host or an object store, for
/// other hosts. One of both is named.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushRequest {
    /// Absolute path of the folder. In it the substrate is a folder of its own name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub folder: Option<PathBuf>,
    /// Address of the store: `file:///FOLDER` or `s3://BUCKET/PREFIX`. It is sent what it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Have what the store has already read, and sent again if it is damaged there.
    #[serde(default)]
    pub verify: bool,
}

/// `POST /v1/substrates/pull`: bring a substrate in from a folder of the host or an object store. One of
/// both is named.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PullRequest {
    /// Absolute path of the substrate's own folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub folder: Option<PathBuf>,
    /// Address of the substrate in a store: that of the store, `/`, its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// Name that it is to have here; the one that it had if absent.
    #[serde(default)]
    pub name: Option<VmName>,
    /// Public key of the host that must have signed it, beside this host itself.
    #[serde(default)]
    pub trust: Option<String>,
    /// Accept any signature, or none. For folders.
    #[serde(default)]
    pub unsigned: bool,
}

/// `GET /v1/substrate-key`: the key by which this host signs what it pushes.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SubstrateKey {
    /// Public half of the key, an Ed25519 key in 64 hexadecimal digits.
    pub public: String,
}

/// Result of an activation.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ActivateResponse {
    /// A VM or an error for each VM wanted.
    pub vms: Vec<CloneResult>,
    /// From the request until the last VM's vCPUs ran, in microseconds.
    pub running_us: u64,
    /// From the request until user code of the last VM went on, in microseconds.
    pub ready_us: u64,
}
