//! Data disks: volumes beside the root disk.
//!
//! ```text
//! VM writes --> volume d --snapshot--> d@fork-A <-- branch that a clone writes
//!                                                     --snapshot--> ...@fork-B <-- its clone's branch
//! VMs that share it read d@fork-C, or d@monday
//! ```
//!
//! Each is an export of the server of volumes, of the same kind for a VM and its clones, and nothing
//! but a snapshot freezes it. A branch is named after the VM that writes it. It stays as long as a
//! record lies over a snapshot of it, and snapshots that forks made as long as a record names them.
//!
//! A VM that moves takes a branch along as all that it reads as, and what it shares as a copy: over there
//! either is a volume of its own, under the name of a branch, and ends as one.
//!
//! | dies | then |
//! |---|---|
//! | the daemon before a shell's record is written | there is no branch of it yet |
//! | the daemon after that | the next one erases the record, and the branch with it |
//! | the daemon while it erases a record | the next one removes branches that no record names |

use super::{Blockd, FORK, NewVolume, VolumeError, uses};
use crate::{Host, HostError, blocking, snapshot::Layout};
use forkyard_blockd::{Encrypt, Request};
use forkyard_records::VmRecord;
use forkyard_types::{DataDisk, DataRole, DataVolume, ImageId, RunRequest, VmId, VmName, VolumeAt};
use forkyard_vm::Vm;
use forkyard_vmm::DataDrive;
use std::collections::BTreeSet;

/// Beginning of the names of branches.
const BRANCH: &str = "clone-";

/// Returns the data disk of a VM that is to boot.
pub(crate) fn data_disk(wanted: &DataVolume) -> DataDisk {
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
pub(crate) fn frozen(record: &VmRecord, memory: ImageId) -> Vec<DataDisk> {
    let frozen = record.data.iter().map(|disk| DataDisk {
        name: disk.name.clone(),
        role: match &disk.role {
            DataRole::Written { volume, over, .. } => {
                let at = super::frozen_at(volume, memory);
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
pub(crate) fn branched(frozen: &[DataDisk], clone: VmId) -> Result<Vec<DataDisk>, HostError> {
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
pub(crate) fn private_name(vm: VmId, disk: &VmName) -> Result<VmName, HostError> {
    let name = format!("{BRANCH}{vm}-{disk}");
    let wrong = |_| HostError::Invalid(format!("{name} is no name of a volume"));
    name.parse().map_err(wrong)
}

/// Tells whether a name is one of a volume that is a VM's alone.
pub(super) fn is_private_name(name: &VmName) -> bool {
    let rest = name.as_str().strip_prefix(BRANCH);
    let vm = rest.and_then(|rest| rest.split_once('-'));
    vm.is_some_and(|(vm, _)| vm.parse::<VmId>().is_ok())
}

impl Host {
    /// Refuses data disks that cannot be.
    pub(super) fn refuse_data(&self, wanted: &DataVolume) -> Result<(), HostError> {
        let name = &wanted.name;
        if name.as_str().len() > DataDisk::NAME_MAX {
            let most = DataDisk::NAME_MAX;
            let text =
                format!("{name} has more than {most} characters: a guest knows no more of a disk");
            return Err(HostError::Invalid(text));
        }
        if wanted.size.is_some() && (wanted.read_only || wanted.snapshot.is_some()) {
            let text = format!("{name} is to be read alone: a size is for one that is made");
            return Err(HostError::Invalid(text));
        }
        self.refuse_copy(name)?;
        match wanted.read_only || wanted.snapshot.is_some() {
            true => Ok(()),
            false => self.refuse_in_use(name),
        }
    }

    /// Refuses a request whose data disks cannot be.
    pub(crate) fn check_data(&self, request: &RunRequest) -> Result<(), HostError> {
        if request.data.len() > DataDisk::MOST {
            let most = DataDisk::MOST;
            let text = format!("{} data disks: {most} at most", request.data.len());
            return Err(HostError::Invalid(text));
        }
        let mut names: BTreeSet<_> = request.volume.iter().map(|it| &it.name).collect();
        for wanted in &request.data {
            if !names.insert(&wanted.name) {
                let text = format!("volume {} is to be two disks of the VM", wanted.name);
                return Err(HostError::Invalid(text));
            }
            self.refuse_data(wanted)?;
        }
        Ok(())
    }

    /// Makes the volumes that a VM is to boot with as far as there are none, and the snapshots that
    /// it is to read.
    pub(crate) async fn furnish_data(
        &self,
        wanted: &[DataVolume],
        record: &VmRecord,
    ) -> Result<(), HostError> {
        for (wanted, disk) in wanted.iter().zip(&record.data) {
            let seen = match self.volume(wanted.name.as_str()).await {
                Ok(seen) => seen,
                Err(HostError::Volume(error)) if error.is_missing() && wanted.size.is_some() => {
                    let made = NewVolume {
                        size: wanted.size,
                        source: None,
                        encrypt: wanted.encrypted.then(Encrypt::default),
                    };
                    self.make_volume(&wanted.name, made).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            Self::refuse_plain(&seen, wanted.encrypted)?;
            let DataRole::Shared { at } = &disk.role else {
                continue;
            };
            match &wanted.snapshot {
                Some(named) if !seen.snapshots.iter().any(|it| it.name == *named) => {
                    let text = format!("volume {} has no snapshot called {named}", wanted.name);
                    return Err(HostError::Invalid(text));
                }
                Some(_) => {}
                None => {
                    self.freeze_volume(at).await?;
                    self.flush_volume(at).await?;
                }
            }
        }
        Ok(())
    }

    /// Begins the writers of a VM's data disks. They are recorded; if the VM does not come up, they
    /// are the caller's to end, by [`Host::end_running`].
    pub(super) async fn begin_data(&self, vm: &Vm) -> Result<(), HostError> {
        let mut record = vm.record();
        if record.data.iter().all(|disk| disk.written().is_none()) {
            return Ok(());
        }
        let begun = self.open_data(&mut record).await;
        let data = record.data.clone();
        let recorded = begun.and_then(|()| {
            vm.change(&self.parts.store, |record| record.data = data)
                .map_err(HostError::from)
        });
        if recorded.is_err() {
            self.end_data(&record).await;
        }
        recorded
    }

    /// Makes the branches of a clone-to-be, and begins their writers.
    pub(crate) async fn begin_branches(&self, record: &mut VmRecord) -> Result<(), HostError> {
        for disk in &record.data {
            if let (Some(name), Some(over)) = (disk.branch(), disk.below().first()) {
                self.ask_blockd(Request::Branch {
                    name: name.to_string(),
                    volume: over.volume.to_string(),
                    snapshot: over.snapshot.clone(),
                })
                .await?;
            }
        }
        self.open_data(record).await
    }

    /// Begins writers, and notes their epochs.
    async fn open_data(&self, record: &mut VmRecord) -> Result<(), HostError> {
        for disk in &mut record.data {
            if let DataRole::Written { volume, epoch, .. } = &mut disk.role {
                let (blockd, name) = (self.volumes.blockd.clone(), volume.clone());
                *epoch = None;
                *epoch = Some(blocking(move || blockd.open(&name)).await?);
            }
        }
        Ok(())
    }

    /// Ends the writers of a VM whose QEMU has gone.
    pub(crate) async fn end_data(&self, record: &VmRecord) {
        for (volume, epoch) in record.data.iter().filter_map(DataDisk::written) {
            let Some(epoch) = epoch else { continue };
            let close = Request::Close {
                name: volume.to_string(),
                epoch: Some(epoch),
            };
            if let Err(error) = self.ask_blockd(close).await {
                tracing::warn!(vm = %record.name, %volume, error = &error as &dyn std::error::Error, "volume not closed");
            }
        }
    }

    /// Returns the data disks that a VM's QEMU opens.
    pub(crate) async fn data_drives(&self, record: &VmRecord) -> Result<Vec<DataDrive>, HostError> {
        let (blockd, disks) = (self.volumes.blockd.clone(), record.data.clone());
        blocking(move || {
            let drive = |disk: DataDisk| {
                let (opened, is_read_only) = match &disk.role {
                    DataRole::Written {
                        volume,
                        epoch: Some(epoch),
                        ..
                    } => (blockd.writer(volume, *epoch)?, false),
                    DataRole::Shared { at } => (blockd.reader(at)?, true),
                    DataRole::Written { epoch: None, .. } | DataRole::Frozen { .. } => {
                        let text = format!("its data disk {} is not open", disk.name);
                        return Err(HostError::Invalid(text));
                    }
                };
                Ok(DataDrive {
                    serial: disk.name.to_string(),
                    disk: opened,
                    is_read_only,
                })
            };
            disks.into_iter().map(drive).collect()
        })
        .await
    }

    /// Freezes the data disks of a VM that stands still: takes the snapshots that shells are over
    /// already.
    pub(crate) async fn freeze_data(&self, layout: &Layout) -> Result<(), HostError> {
        let image = layout.memory;
        for disk in &layout.data {
            let at = disk.below().first();
            // Those that it shares were taken long ago.
            if let Some(at) = at.filter(|at| **at == super::frozen_at(&at.volume, image)) {
                self.freeze_volume(at).await?;
            }
        }
        Ok(())
    }

    /// Removes what nothing needs any more of disks: branches, and snapshots that forks made. The
    /// record that they were of has gone.
    pub(crate) async fn drop_data(&self, data: &[DataDisk]) {
        for disk in data {
            if let Some(own) = disk.own() {
                self.drop_branch(own).await;
            }
            for at in disk.below() {
                self.drop_unused(at).await;
                if disk.is_private(&at.volume) {
                    self.drop_branch(&at.volume).await;
                }
            }
        }
    }

    /// Drops it in the background.
    pub(crate) fn drop_data_later(&self, data: Vec<DataDisk>) {
        let host = self.handle();
        tokio::spawn(async move {
            if let Some(host) = host.upgrade() {
                host.drop_data(&data).await;
            }
        });
    }

    /// Removes a branch that no record names, or the volume that a clone brought here.
    async fn drop_branch(&self, branch: &VmName) {
        let dropped = async {
            if self.parts.store.vms()?.iter().any(|it| uses(it, branch)) {
                return Ok(());
            }
            let (blockd, removed) = (self.volumes.blockd.clone(), branch.clone());
            blocking(move || remove_branch(&blockd, &removed).map_err(HostError::from)).await?;
            Ok::<_, HostError>(self.parts.store.remove_copy(branch)?)
        };
        if let Err(error) = dropped.await {
            tracing::warn!(%branch, error = &error as &dyn std::error::Error, "branch kept");
        }
    }
}

/// Removes a branch, also one with a writer. None is no error.
pub(super) fn remove_branch(blockd: &Blockd, branch: &VmName) -> Result<(), VolumeError> {
    let name = branch.to_string();
    let removed = blockd.inspect(branch).and_then(|status| {
        blockd.ask(&Request::Close {
            name: name.clone(),
            epoch: Some(status.epoch),
        })?;
        blockd.ask(&Request::Remove { name })
    });
    match removed {
        Err(error) if error.is_missing() => Ok(()),
        removed => removed.map(drop),
    }
}

/// Removes branches that no record names, the upper ones first.
pub(super) fn remove_orphans(blockd: &Blockd, records: &[VmRecord]) -> Result<(), VolumeError> {
    let mut orphans: Vec<VmName> = Vec::new();
    for volume in blockd.names()? {
        let is_branch = blockd.inspect(&volume).is_ok_and(|it| it.base.is_some());
        if is_branch && !records.iter().any(|it| uses(it, &volume)) {
            orphans.push(volume);
        }
    }
    // Each time round those go that no other lies over.
    while !orphans.is_empty() {
        let before = orphans.len();
        orphans.retain(|orphan| match remove_branch(blockd, orphan) {
            Ok(()) => false,
            Err(error) => {
                tracing::debug!(%orphan, error = &error as &dyn std::error::Error, "not yet");
                true
            }
        });
        if orphans.len() == before {
            tracing::warn!(?orphans, "branches that nothing needs stay");
            break;
        }
    }
    Ok(())
}
