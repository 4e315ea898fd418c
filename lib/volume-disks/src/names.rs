//! Names of volumes and snapshots that disks of VMs are, and the records that name them.

use crate::VolumeError;
use forkyard_records::VmRecord;
use forkyard_types::{DataDisk, DataRole, DataVolume, ImageId, VmId, VmName, VolumeAt, VolumeUse};

/// Beginning of the names of snapshots that forks make. No user's snapshot has it.
pub const FORK: &str = "fork-";
/// Beginning of the names of branches.
const BRANCH: &str = "clone-";

/// Returns the data disk of a VM that is to boot.
pub fn data_disk(wanted: &DataVolume) -> DataDisk {
    let role = match (&wanted.snapshot, wanted.read_only) {
        (None, false) => DataRole::Written {
            volume: wanted.name.clone(),
            epoch: None,
            over: Vec::new(),
        },
        (snapshot, _) => DataRole::Shared {
            at: VolumeAt {
                volume: wanted.name.clone(),
                snapshot: match snapshot {
                    Some(snapshot) => snapshot.clone(),
                    None => format!("{FORK}{}", ImageId::random()),
                },
            },
        },
    };
    DataDisk {
        name: wanted.name.clone(),
        role,
    }
}

/// Returns a VM's data disks as they will be once frozen, with the memory that will be this image.
pub fn frozen(record: &VmRecord, memory: ImageId) -> Vec<DataDisk> {
    let frozen = record.data.iter().map(|disk| DataDisk {
        name: disk.name.clone(),
        role: match &disk.role {
            DataRole::Written { volume, over, .. } => {
                let at = frozen_at(volume, memory);
                DataRole::Frozen {
                    over: [at].into_iter().chain(over.iter().cloned()).collect(),
                }
            }
            role @ (DataRole::Frozen { .. } | DataRole::Shared { .. }) => role.clone(),
        },
    });
    frozen.collect()
}

/// Returns the data disks of a clone over frozen ones.
pub fn branched(frozen: &[DataDisk], clone: VmId) -> Result<Vec<DataDisk>, VolumeError> {
    let branched = frozen.iter().map(|disk| {
        let role = match &disk.role {
            DataRole::Frozen { over } => DataRole::Written {
                volume: private_name(clone, &disk.name)?,
                epoch: None,
                over: over.clone(),
            },
            role @ (DataRole::Written { .. } | DataRole::Shared { .. }) => role.clone(),
        };
        Ok(DataDisk {
            name: disk.name.clone(),
            role,
        })
    });
    branched.collect()
}

/// Name of a volume that is a VM's alone.
pub fn private_name(vm: VmId, disk: &VmName) -> Result<VmName, VolumeError> {
    let name = format!("{BRANCH}{vm}-{disk}");
    let wrong = |_| VolumeError::Broken(format!("{name} is no name of a volume"));
    name.parse().map_err(wrong)
}

/// Tells whether a name is one of a volume that is a VM's alone.
pub fn is_private_name(name: &VmName) -> bool {
    let rest = name.as_str().strip_prefix(BRANCH);
    let vm = rest.and_then(|rest| rest.split_once('-'));
    vm.is_some_and(|(vm, _)| vm.parse::<VmId>().is_ok())
}

/// The VM needs the server of volumes.
pub fn has_volume(record: &VmRecord) -> bool {
    record.volume.is_some() || !record.data.is_empty()
}

/// The snapshot that a fork takes of a volume, named after the image of its memory.
pub fn frozen_at(volume: &VmName, memory: ImageId) -> VolumeAt {
    VolumeAt {
        volume: volume.clone(),
        snapshot: format!("{FORK}{memory}"),
    }
}

/// The record of the VM that has a volume as its disk.
pub fn writer_of<'a>(records: &'a [VmRecord], volume: &VmName) -> Option<&'a VmRecord> {
    records.iter().find(|record| {
        let root =
            matches!(&record.volume, Some(VolumeUse::Written { volume: it, .. }) if it == volume);
        let mut data = record.data.iter().filter_map(|disk| disk.written());
        root || data.any(|(it, _)| it == volume)
    })
}

/// Tells whether a VM's record names a volume.
pub fn uses(record: &VmRecord, volume: &VmName) -> bool {
    let root = record.volume.as_ref().map(|it| it.volume());
    let data = record.data.iter().flat_map(|disk| {
        let written = disk.written().map(|(volume, _)| volume);
        let below = disk.below().iter().map(|at| &at.volume);
        written.into_iter().chain(below)
    });
    root.into_iter().chain(data).any(|it| it == volume)
}

/// Tells whether a volume is no user's, but that of a VM that has moved here, and of its clones.
pub fn is_private(records: &[VmRecord], volume: &VmName) -> bool {
    let mut disks = records.iter().flat_map(|record| &record.data);
    disks.any(|disk| {
        let written = disk.written().map(|(it, _)| it);
        let mut all = written
            .into_iter()
            .chain(disk.below().iter().map(|at| &at.volume));
        disk.is_private(volume) && all.any(|it| it == volume)
    })
}

/// A VM's record lies over a snapshot, or is one.
fn lies_over(record: &VmRecord, at: &VolumeAt) -> bool {
    let root = matches!(&record.volume, Some(VolumeUse::Below(below)) if below == at);
    root || record.data.iter().any(|disk| disk.below().contains(at))
}

/// Names of the VMs, checkpoints and warm shells over a snapshot.
pub fn over(records: &[VmRecord], at: &VolumeAt) -> Vec<VmName> {
    let over = records.iter().filter(|it| lies_over(it, at));
    over.map(|record| record.name.clone()).collect()
}
