//! Data of a snapshot, and of what is known before it is taken.

use crate::SnapshotError;
use forkyard_agent_link::Growth;
use forkyard_disk::{Backing, Format};
use forkyard_host::Folders;
use forkyard_network::Subnet;
use forkyard_pager::Run;
use forkyard_records::{Birth, VmRecord};
use forkyard_types::{
    ByteCount, DataDisk, Epoch, FamilyId, GuestCpu, ImageId, Member, VmId, VmName, VmState,
    VolumeAt, VolumeUse,
};
use forkyard_vm::{UnderWay, Vm, VmError};
use forkyard_volume_disks::{branched, frozen, frozen_at};
use std::path::PathBuf;

/// A VM at one instant.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Facts that were known before the instant.
    pub layout: Layout,
    /// State of CPUs and devices, as the engine saved it.
    pub devices: Vec<u8>,
    /// Pages of which each clone reads its own.
    pub disjoint: Vec<Run>,
}

/// A snapshot as far as it is known before the instant: what shells are made over.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The VM.
    pub of: Original,
    /// Memory, in the pager; promised, until it is taken.
    pub memory: ImageId,
    /// Root disk.
    pub disk: Disk,
    /// Other disks, as clones find them: none that is written.
    pub data: Vec<DataDisk>,
}

/// The disk of a snapshot. Nothing writes to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disk {
    /// Frozen qcow2 slices over a base.
    Slices {
        /// The upper ones first. Without any, the base is all there is.
        slices: Vec<PathBuf>,
        /// The page image below them, if it came from another host; none: a guest image
        /// of this one.
        base: Option<ImageId>,
    },
    /// Frozen qcow2 slices over a volume at one instant.
    Volume {
        /// The upper ones first. Without any, the volume is all there is.
        slices: Vec<PathBuf>,
        /// State of the volume below them. Taken at the instant, and not there
        /// before.
        at: VolumeAt,
    },
}

/// The VM a snapshot is of, as far as its clones take after it.
#[derive(Clone, Debug)]
pub struct Original {
    /// Id of the VM.
    pub id: VmId,
    /// Name of the VM; of what founds a family, that of the founder.
    pub name: VmName,
    /// Family of its clones.
    pub family: FamilyId,
    /// Network of that family.
    pub network: Subnet,
    /// Place in the family.
    pub member: Member,
    /// True if the VM is itself a clone.
    pub is_clone: bool,
    /// True for a substrate: VMs made of it found families, under their own
    /// names.
    pub founds: bool,
    /// Forks between it and the VM its family began with.
    pub generation: u16,
    /// vCPUs that it was granted, if these may not be all it has.
    pub granted: Option<u8>,
    /// Recipe of the image it, or its ancestor, booted from.
    pub image: String,
    /// vCPUs that its clones have.
    pub vcpus: u8,
    /// vCPUs in its state, which machines that load it begin with.
    pub saved_vcpus: u8,
    /// Memory that its clones have.
    pub memory: ByteCount,
    /// Memory that its guest, or the first of its ancestors, booted with.
    pub booted: ByteCount,
    /// Memory and vCPUs that its clones have beyond those of its state; none of most.
    pub growth: Option<Growth>,
    /// Accelerator that executes it.
    pub accel: String,
    /// CPU that they have at most; none: what their host gives.
    pub cpu: Option<GuestCpu>,
    /// Paths in the guest that its clones do not inherit.
    pub secrets: Vec<String>,
    /// Forks of it under way; closed once it is being removed.
    pub forks: UnderWay,
}

impl Disk {
    /// Returns a VM's disk as it will be once frozen, with the memory that will be this image.
    pub fn of(record: &VmRecord, memory: ImageId) -> Self {
        let slices = record.chain.clone();
        let at = match &record.volume {
            None => {
                return Self::Slices {
                    slices,
                    base: record.disk_image,
                };
            }
            Some(VolumeUse::Written { volume, .. }) => frozen_at(volume, memory),
            Some(VolumeUse::Below(at)) => at.clone(),
        };
        Self::Volume { slices, at }
    }

    /// Returns a disk that is no longer written: a checkpoint's, or a stopped VM's.
    pub fn at_rest(record: &VmRecord) -> Self {
        Self::of(record, record.memory_image.unwrap_or_else(ImageId::random))
    }

    /// Returns the backing that an empty slice over it names.
    pub fn backing(&self, folders: &Folders) -> Result<Backing, SnapshotError> {
        match (self.slices().first(), self.base()) {
            (Some(slice), _) => Ok(Backing {
                path: slice.clone(),
                format: Format::Qcow2,
            }),
            (None, Some(image)) => Ok(Backing {
                path: folders.page_image(image),
                format: Format::Raw,
            }),
            (None, None) => Err(SnapshotError::Broken("its record has no disk".into())),
        }
    }

    /// Returns the slices, the upper ones first.
    pub fn slices(&self) -> &[PathBuf] {
        let (Self::Slices { slices, .. } | Self::Volume { slices, .. }) = self;
        slices
    }

    /// The page image below its slices, if that came from another host.
    pub fn base(&self) -> Option<ImageId> {
        match self {
            Self::Slices { base, .. } => *base,
            Self::Volume { .. } => None,
        }
    }

    /// The volume below its slices, if that is what they lie over.
    pub fn volume(&self) -> Option<&VolumeAt> {
        match self {
            Self::Slices { .. } => None,
            Self::Volume { at, .. } => Some(at),
        }
    }

    /// Returns that volume if there are no slices: the next one lies right over it.
    pub fn volume_below(&self) -> Option<&VolumeAt> {
        self.volume().filter(|_| self.slices().is_empty())
    }
}

impl Original {
    /// Returns a VM as it is now.
    pub fn of(vm: &Vm) -> Self {
        let record = vm.record();
        Self {
            id: record.id,
            name: record.name,
            family: record.family,
            network: vm.network,
            member: record.member,
            is_clone: record.birth.is_some(),
            founds: false,
            generation: record.generation,
            granted: record.birth.and_then(|birth| birth.granted),
            image: record.image,
            vcpus: record.vcpus,
            saved_vcpus: record.vcpus,
            memory: record.memory,
            booted: record.booted,
            growth: None,
            accel: record.accel,
            cpu: record.cpu,
            secrets: record.secrets,
            forks: vm.forks.clone(),
        }
    }

    /// Refuses to go on with a clone of a VM that is being removed.
    pub fn still_there(&self) -> Result<(), SnapshotError> {
        match self.forks.is_closed() {
            true => Err(VmError::Unknown {
                name: self.name.to_string(),
            }
            .into()),
            false => Ok(()),
        }
    }
}

impl Layout {
    /// Returns the layout of a VM's next snapshot, whose memory will be this image.
    pub fn of(vm: &Vm, memory: ImageId) -> Self {
        Self {
            of: Original::of(vm),
            memory,
            disk: Disk::of(&vm.record(), memory),
            data: frozen(&vm.record(), memory),
        }
    }

    /// The record of a clone-to-be over it, which writes to `slice`.
    pub(crate) fn shell(
        &self,
        id: VmId,
        uid: u32,
        slice: PathBuf,
    ) -> Result<VmRecord, SnapshotError> {
        let of = &self.of;
        let lower = self.disk.slices().iter().cloned();
        Ok(VmRecord {
            id,
            name: placeholder(id)?,
            family: of.family,
            member: Member(0),
            birth: (!of.founds).then_some(Birth {
                parent: of.id,
                fork: None,
                granted: of.granted,
            }),
            generation: of.generation.saturating_add(u16::from(!of.founds)),
            epoch: Epoch::random(),
            image: of.image.clone(),
            vcpus: of.vcpus,
            memory: of.memory,
            booted: of.booted,
            uid,
            accel: of.accel.clone(),
            state: VmState::Warm,
            created: forkyard_host::now(),
            warm: 0,
            memory_image: Some(self.memory),
            chain: [slice].into_iter().chain(lower).collect(),
            machine: None,
            secrets: of.secrets.clone(),
            request: None,
            disk_image: self.disk.base(),
            failure: None,
            kernel: None,
            notes: Vec::new(),
            volume: self.disk.volume().cloned().map(VolumeUse::Below),
            publish: Vec::new(),
            data: branched(&self.data, id)?,
            cpu: of.cpu.clone(),
        })
    }
}

/// A shell has no name a user could know; its id serves as one.
fn placeholder(id: VmId) -> Result<VmName, SnapshotError> {
    id.as_str()
        .parse()
        .map_err(|_| SnapshotError::Broken(format!("{id} is no name")))
}
