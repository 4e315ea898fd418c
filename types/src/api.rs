//! Messages of the HTTP API: requests, answers and errors, as JSON.

use crate::{
    Address, ApiError, Awaited, ByteCount, DataVolume, Ends, Epoch, FamilyId, ForkId, ForkReport,
    Idle, ImageId, IndependenceView, Labels, Lifetime, Member, NetworkPolicy, PageCount, Publish,
    RequestId, Restart, RootVolume, TicketId, VmId, VmName,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

/// Life of a VM as its owner sees it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmState {
    /// Being booted or cloned: its agent has not answered yet.
    Starting,
    /// A shell: a QEMU process complete with memory and disk, waiting for a fork.
    Warm,
    /// The VM runs, and its agent answers.
    Running,
    /// The VM was paused by its user.
    Paused,
    /// The VM's QEMU ended, or the host restarted: only its record is left.
    Stopped,
    /// The VM never ran: an instant of another VM's memory and disk, kept to be
    /// forked from.
    Checkpoint,
    /// Being removed. Its record stays until its QEMU is proven gone.
    Ending,
}

impl fmt::Display for VmState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Starting => "starting",
            Self::Warm => "warm",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Checkpoint => "a checkpoint",
            Self::Ending => "being removed",
        })
    }
}

/// `POST /v1/vms/{id}/checkpoint`: keep the present instant of a running VM.
/// It is a VM by itself, in the state `checkpoint`, that can be forked.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointRequest {
    /// Name; made up from the VM's if absent.
    #[serde(default)]
    pub name: Option<VmName>,
    /// Priority: to be done soon, or to spare the VM.
    #[serde(default)]
    pub mode: ForkMode,
}

/// `POST /v1/vms`: boot a VM.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// Image to boot: the name of a recipe.
    pub image: String,
    /// Name; one is made up from the image's if absent.
    #[serde(default)]
    pub name: Option<VmName>,
    /// Number of vCPUs.
    #[serde(default = "one")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 64))]
    pub vcpus: u8,
    /// Memory in bytes, whole MiB; 256 MiB if absent.
    #[serde(default)]
    #[cfg_attr(
        feature = "schema",
        schema(value_type = u64, minimum = 83_886_080, maximum = 1_099_511_627_776_u64, multiple_of = 1_048_576)
    )]
    pub memory: Option<ByteCount>,
    /// Memory in MiB, as it was said before. Not with `memory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schema(deprecated, minimum = 80, maximum = 1_048_576)
    )]
    pub memory_mib: Option<u64>,
    /// Clones to keep warm, so that a fork of that many need not start QEMU.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(maximum = 65_535))]
    pub warm: u16,
    /// A kernel of the user's own: path of a bzImage or vmlinux on the host
    /// with virtio built in or in the image's initramfs.
    #[serde(default)]
    pub kernel: Option<String>,
    /// Most clones of its family that may be alive at once, promised ones
    /// included; no limit if absent.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(maximum = 65_535))]
    pub max_clones: Option<u16>,
    /// Paths in the guest that no clone inherits, unless a fork says so.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub secrets: Vec<String>,
    /// Rights of the VM and its clones on the network.
    #[serde(default)]
    pub network: NetworkPolicy,
    /// Volume that is its root disk; a disk of its own if absent.
    #[serde(default)]
    pub volume: Option<RootVolume>,
    /// Volumes that are disks of it beside that one.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_items = 8))]
    pub data: Vec<DataVolume>,
    /// Boot it even if a first boot of the image is kept that it could be woken from, and keep none.
    #[serde(default)]
    pub cold: bool,
    /// Labels for selecting the VM; its clones have them, too.
    #[serde(default)]
    pub labels: Labels,
    /// Environment of every command that is run in it from outside.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Time it is wanted; until it is removed if absent.
    #[serde(default)]
    pub lifetime: Option<Lifetime>,
    /// Action if it is not used; it runs on if absent.
    #[serde(default)]
    pub idle: Option<Idle>,
    /// Tells whether it is started again if it ends by itself: `no`, `always`, `on-failure`, `on-failure:N`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub restart: Restart,
    /// Hosts that it is to be able to move to: nodes of the cluster or peers by name, or `peers` for
    /// all of them. Its CPU has no feature that one of theirs lacks.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_items = 1000))]
    pub cpu_baseline: Vec<String>,
    /// VM, by name or id, whose family's network it joins, by that family's rights; a network of its own if absent.
    #[serde(default)]
    pub join: Option<String>,
}

fn one() -> u8 {
    1
}

impl RunRequest {
    /// Memory of a VM that is not told of it.
    const MEMORY: ByteCount = ByteCount(256 << 20);

    /// Memory that is wanted, by whichever name; none if that makes no sense.
    pub fn wanted_memory(&self) -> Option<ByteCount> {
        match (self.memory, self.memory_mib) {
            (None, None) => Some(Self::MEMORY),
            (Some(memory), None) => Some(memory),
            (None, Some(mib)) => ByteCount::from_mib(mib),
            (Some(_), Some(_)) => None,
        }
    }
}

/// A VM.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmView {
    /// Id of the VM.
    pub id: VmId,
    /// Name, unique among the VMs that exist.
    pub name: VmName,
    /// State of the VM.
    pub state: VmState,
    /// Family of the VM.
    pub family: FamilyId,
    /// Place in the family.
    pub member: Member,
    /// The VM it was cloned from.
    pub parent: Option<VmId>,
    /// The fork it came from.
    pub fork: Option<ForkId>,
    /// This life of its memory.
    pub epoch: Epoch,
    /// Image it, or its ancestor, booted from.
    pub image: String,
    /// Number of vCPUs.
    pub vcpus: u8,
    /// vCPUs of these that it was granted, if a ticket granted fewer: what it counts for.
    #[serde(default)]
    pub granted: Option<u8>,
    /// Memory.
    pub memory: ByteCount,
    /// Place on the family's network.
    pub address: Address,
    /// Ports of the host that lead to it, and addresses of its own outside.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub published: Vec<Publish>,
    /// Process id of its QEMU.
    pub pid: Option<u32>,
    /// Accelerator: `kvm` or `tcg`.
    pub accel: String,
    /// Seconds since 1970 at which it was created.
    pub created: u64,
    /// Reason why the agent or the QEMU of a running VM does not answer; absent
    /// if both do.
    #[serde(default)]
    pub silence: Option<String>,
    /// Percent of the last ten seconds in which all programs of the guest waited for memory, where
    /// that is 20 or more: it hardly gets on.
    #[serde(default)]
    pub memory_wait_percent: Option<u8>,
    /// The other host it runs on; none if it is this one.
    #[serde(default)]
    pub host: Option<String>,
    /// Host that the VM is being handed over to: it is paused, and goes on there or here within
    /// moments. None if it is not.
    #[serde(default)]
    pub moving: Option<String>,
    /// Pages of it that are still on another host.
    #[serde(default)]
    pub awaits: Vec<Awaited>,
    /// Reason why it was ended, unless on request.
    #[serde(default)]
    pub failure: Option<String>,
    /// Labels for selecting the VM.
    #[serde(default)]
    pub labels: Labels,
    /// End of the time for which it is wanted; none: it is until it is removed.
    #[serde(default)]
    pub ends: Option<Ends>,
    /// Action if it is not used; none: it runs on.
    #[serde(default)]
    pub idle: Option<Idle>,
    /// True if it was paused or stopped for it was not used, and is woken by its next use.
    #[serde(default)]
    pub asleep: bool,
    /// Tells whether it is started again if it ends by itself: `no`, `always`, `on-failure`, `on-failure:N`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub restart: Restart,
    /// Seconds since 1970 at which it is started again; none: it is not.
    #[serde(default)]
    pub starts: Option<u64>,
}

impl VmView {
    /// vCPUs that it takes of its host's room.
    pub fn vcpus_taken(&self) -> u8 {
        self.granted.unwrap_or(self.vcpus)
    }
}

/// `POST /v1/vms/{id}/fork`: fork a running VM.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// Clones wanted.
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 256))]
    pub count: u16,
    /// Priority: the clones or the parent.
    #[serde(default)]
    pub mode: ForkMode,
    /// More paths that these clones do not inherit.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_items = 64))]
    pub scrub: Vec<String>,
    /// True if they inherit what the VM was told to keep secret.
    #[serde(default)]
    pub inherit_secrets: bool,
    /// Hosts to make them on, in turns: peers by name, and `here`. Here alone if
    /// there are none.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_items = 256))]
    pub to: Vec<String>,
    /// True if clones on other hosts fetch all pages in the background, and
    /// become independent of this host when they have.
    #[serde(default)]
    pub settle: bool,
    /// In a cluster: make each on the node with most vCPUs free. Not with `to`.
    #[serde(default)]
    pub spread: bool,
    /// Drawn by the client: under this it is found among the VM's forks while it is
    /// made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<RequestId>,
}

/// Resource that a fork spares.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForkMode {
    /// Clones run as soon as can be: the parent's memory is gone over once, by
    /// all cores, and the parent stands still for what it wrote meanwhile.
    #[default]
    Fast,
    /// The parent is hardly disturbed: one core goes over its memory until
    /// little is left to stand still for; clones wait for that.
    Live,
}

/// Answer to a fork: one entry a clone, each a VM or the reason there is none.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ForkResponse {
    /// The fork.
    pub fork: ForkId,
    /// One entry a clone wanted.
    pub clones: Vec<CloneResult>,
    /// Account of the time.
    pub report: ForkReport,
}

/// Answer to a fork that is not waited for.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkStarted {
    /// The fork: its clones, as they come, are the VMs that name it.
    pub fork: ForkId,
}

/// Result of one clone.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloneResult {
    /// The clone runs, with an identity of its own.
    Vm(Box<VmView>),
    /// The clone does not run, and nothing of it is left.
    Error(ApiError),
}

/// `GET /v1/vms/{id}/inspect`: where a VM's bytes are.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmInspect {
    /// The VM.
    pub vm: VmView,
    /// Memory that its guest, or the first of its ancestors, found when it booted: what it has more was
    /// added when it was woken.
    #[serde(default)]
    pub booted: ByteCount,
    /// Reason why it is emulated and not run by KVM; absent if KVM runs it, or if that is not known.
    #[serde(default)]
    pub emulated_because: Option<String>,
    /// Page image its memory is a private view of; none for a VM that booted.
    pub memory_image: Option<ImageUse>,
    /// Pages of memory that are its own.
    pub private_pages: PageCount,
    /// Disk slices, its own first, then what they lie over.
    pub disk: Vec<DiskSlice>,
    /// Dependence of its disk on others' files, and progress on the way from there.
    #[serde(default)]
    pub independence: IndependenceView,
    /// Clones kept warm for its next fork.
    pub warm: u16,
    /// Paths in the guest that its clones do not inherit.
    #[serde(default)]
    pub secrets: Vec<String>,
    /// Problems of the guest when it came up, one line each: files of its own that could
    /// not be written, hooks that failed. It runs all the same.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Rights of the family on the network.
    #[serde(default)]
    pub network: NetworkPolicy,
    /// Reports of its own forks, the newest last.
    pub forks: Vec<ForkReport>,
}

/// One layer of a disk.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiskSlice {
    /// Path on the host.
    pub path: String,
    /// Bytes it takes there.
    pub allocated: ByteCount,
}

/// A page image: where its bytes are, and what has been read of it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageUse {
    /// Pages of data it was published with: what it did not have from its
    /// parent.
    pub pages: PageCount,
    /// Layers it is made of. Reading costs the same however many there are.
    pub layers: u32,
    /// Pages served to the kernel so far, for all clones together.
    pub pages_served: PageCount,
    /// Pages of these that hold data: the others are zero and come from nowhere.
    pub data_served: PageCount,
    /// Requests these were served in.
    pub requests: u64,
    /// Open files on it.
    pub users: u32,
    /// Pages of data it has in all; the rest are zero and take no space.
    pub data: PageCount,
    /// Pages of these that it has from the layers below its own.
    pub shared: PageCount,
    /// Pages its own layer stores as they are.
    pub plain: PageCount,
    /// Pages its own layer stores compressed.
    pub packed: PageCount,
    /// Bytes these take.
    pub packed_bytes: ByteCount,
    /// Pages its own layer does not store because they are elsewhere.
    pub deduplicated: PageCount,
    /// Pages its clones asked for, each once.
    pub touched: PageCount,
    /// Pages the kernel got before it asked.
    pub prefetched: PageCount,
}

/// A page image in the pager.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageView {
    /// The image.
    pub id: ImageId,
    /// The image it lies over.
    pub parent: Option<ImageId>,
    /// Use of the image.
    pub usage: ImageUse,
}

/// Units that a ticket's numbers count.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TicketKind {
    /// Clones, each with as many vCPUs as the parent.
    #[default]
    Flat,
    /// Processes: each clone's caller forks into as many as the clone is
    /// granted vCPUs (SnowFlock's hierarchical cloning).
    Hierarchical,
}

/// One clone promised by a ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketClone {
    /// Number of the clone in this ticket: 1 and up, what `clone()` returns in
    /// it. In a hierarchical ticket that of its first process; the others
    /// follow.
    pub id: u16,
    /// vCPUs it will have online.
    pub vcpus: u8,
    /// Processes in it that have numbers.
    pub processes: u8,
    /// Address it will have on the family's network.
    pub ip: Ipv4Addr,
}

/// A reservation of clones (SnowFlock's ticket, paper section 2.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// Id of the ticket.
    pub id: TicketId,
    /// Units that the numbers count.
    pub kind: TicketKind,
    /// The clones granted; may be fewer than were asked for.
    pub clones: Vec<TicketClone>,
}

/// Something found on the host that no record accounts for.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// Kind of the resource: `process`, `tap`, `bridge`, `cgroup`, `mount`,
    /// `image`, `file`.
    pub kind: String,
    /// Name, path or process id.
    pub name: String,
    /// True if it was removed; `doctor` without `--repair` removes nothing.
    pub removed: bool,
}

/// `GET /v1/doctor`, `POST /v1/doctor`: what the host looks like.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Things this host lacks, one line each: what, why it matters, what to do.
    pub problems: Vec<String>,
    /// Things that were left behind.
    pub leftovers: Vec<Leftover>,
    /// Settings of this host that Forkyard has changed for as long as it needs
    /// them.
    #[serde(default)]
    pub notes: Vec<String>,
}
