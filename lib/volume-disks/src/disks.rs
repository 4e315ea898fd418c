//! Volumes as disks of VMs: begun, frozen, ended, and dropped once nothing needs them.
//!
//! | dies | then |
//! |---|---|
//! | the daemon before a shell's record is written | there is no branch of it yet |
//! | the daemon after that | the next one erases the record, and the branch with it |
//! | the daemon while it erases a record | the next one removes branches that no record names |

use crate::{Blockd, FORK, VolumeError, frozen_at, over, settle::remove_branch, uses, writer_of};
use forkyard_blockd::Request;
use forkyard_host::{Parts, blocking};
use forkyard_records::VmRecord;
use forkyard_types::{
    ByteCount, DataDisk, DataRole, ImageId, NbdDisk, VmName, VolumeAt, VolumeUse,
};
use forkyard_vm::Vm;
use forkyard_vmm::{DataDrive, RootDisk};
use std::sync::{Arc, Weak};

/// Volumes that VMs of this host have as disks.
#[derive(Clone, Debug)]
pub struct VolumeDisks {
    parts: Arc<Parts>,
    /// Serves them.
    pub blockd: Blockd,
}

/// Disks that are there for as long as their host is.
struct Later {
    parts: Weak<Parts>,
    blockd: Blockd,
}

impl Later {
    fn upgrade(self) -> Option<VolumeDisks> {
        let Self { parts, blockd } = self;
        let parts = parts.upgrade()?;
        Some(VolumeDisks { parts, blockd })
    }
}

impl VolumeDisks {
    /// Returns the disks of a host.
    pub fn new(parts: Arc<Parts>) -> Self {
        Self {
            blockd: Blockd::new(&parts.folders, parts.options.patience),
            parts,
        }
    }

    fn later(&self) -> Later {
        Later {
            parts: Arc::downgrade(&self.parts),
            blockd: self.blockd.clone(),
        }
    }

    /// Returns the disk that reads a snapshot, which need not be there yet, and its size. Cancel-safe.
    pub async fn reader(&self, at: &VolumeAt) -> Result<(NbdDisk, ByteCount), VolumeError> {
        let (blockd, at) = (self.blockd.clone(), at.clone());
        blocking(move || {
            let status = blockd.inspect(&at.volume)?;
            // One that was taken keeps its size, whatever becomes of the volume.
            let taken = status.snapshots.iter().find(|it| it.name == at.snapshot);
            let size = ByteCount(taken.map_or(status.size, |it| it.size));
            Ok((blockd.reader(&at)?, size))
        })
        .await
    }

    /// Asks the server for something. If cancelled, the server carries it out all the same.
    pub async fn ask(&self, request: Request) -> Result<(), VolumeError> {
        let blockd = self.blockd.clone();
        blocking(move || blockd.ask(&request).map(drop)).await
    }

    /// Refuses a volume that a VM writes, or will when it is started.
    pub fn refuse_in_use(&self, volume: &VmName) -> Result<(), VolumeError> {
        match writer_of(&self.parts.store.vms()?, volume) {
            Some(vm) => Err(VolumeError::InUse {
                volume: volume.clone(),
                vm: vm.name.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Begins the writers of a VM's data disks. They are recorded; if the VM does not come up, they
    /// are the caller's to end, by [`VolumeDisks::end_writer`]. Not cancel-safe: writers may be open that no
    /// record names.
    pub async fn begin_data(&self, vm: &Vm) -> Result<(), VolumeError> {
        let mut record = vm.record();
        if record.data.iter().all(|disk| disk.written().is_none()) {
            return Ok(());
        }
        let begun = self.open_data(&mut record).await;
        let data = record.data.clone();
        let recorded = begun.and_then(|()| {
            vm.change(&self.parts.store, |record| record.data = data)
                .map_err(VolumeError::from)
        });
        if recorded.is_err() {
            self.end_data(&record).await;
        }
        recorded
    }

    /// Makes the branches of a clone-to-be, and begins their writers. Not cancel-safe: writers may be open
    /// whose epochs are not noted. The branches are known by their names.
    pub async fn begin_branches(&self, record: &mut VmRecord) -> Result<(), VolumeError> {
        for disk in &record.data {
            if let (Some(name), Some(over)) = (disk.branch(), disk.below().first()) {
                self.ask(Request::Branch {
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
    async fn open_data(&self, record: &mut VmRecord) -> Result<(), VolumeError> {
        for disk in &mut record.data {
            if let DataRole::Written { volume, epoch, .. } = &mut disk.role {
                let (blockd, name) = (self.blockd.clone(), volume.clone());
                *epoch = None;
                *epoch = Some(blocking(move || blockd.open(&name)).await?);
            }
        }
        Ok(())
    }

    /// Ends the writers of a VM whose QEMU has gone. Not cancel-safe: some may stay open. A second call ends
    /// them.
    pub async fn end_data(&self, record: &VmRecord) {
        for (volume, epoch) in record.data.iter().filter_map(DataDisk::written) {
            let Some(epoch) = epoch else { continue };
            let close = Request::Close {
                name: volume.to_string(),
                epoch: Some(epoch),
            };
            if let Err(error) = self.ask(close).await {
                tracing::warn!(vm = %record.name, %volume, error = &error as &dyn std::error::Error, "volume not closed");
            }
        }
    }

    /// Returns the data disks that a VM's QEMU opens. Cancel-safe.
    pub async fn data_drives(&self, record: &VmRecord) -> Result<Vec<DataDrive>, VolumeError> {
        let (blockd, disks) = (self.blockd.clone(), record.data.clone());
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
                        return Err(VolumeError::Broken(text));
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
    /// already. Not cancel-safe: some of them may be frozen.
    pub async fn freeze_data(&self, data: &[DataDisk], image: ImageId) -> Result<(), VolumeError> {
        for disk in data {
            let at = disk.below().first();
            // Those that it shares were taken long ago.
            if let Some(at) = at.filter(|at| **at == frozen_at(&at.volume, image)) {
                self.freeze_volume(at).await?;
            }
        }
        Ok(())
    }

    /// Removes what nothing needs any more of disks: branches, and snapshots that forks made. The
    /// record that they were of has gone. Not cancel-safe: some of it may stay.
    /// [`drop_data_later`](Self::drop_data_later) goes on to its end.
    pub async fn drop_data(&self, data: &[DataDisk]) {
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

    /// Drops that in the background.
    pub fn drop_data_later(&self, data: Vec<DataDisk>) {
        let later = self.later();
        tokio::spawn(async move {
            if let Some(disks) = later.upgrade() {
                disks.drop_data(&data).await;
            }
        });
    }

    /// Removes a branch that no record names, or the volume that a clone brought here.
    async fn drop_branch(&self, branch: &VmName) {
        let dropped = async {
            if self.parts.store.vms()?.iter().any(|it| uses(it, branch)) {
                return Ok(());
            }
            let (blockd, removed) = (self.blockd.clone(), branch.clone());
            blocking(move || remove_branch(&blockd, &removed)).await?;
            Ok::<_, VolumeError>(self.parts.store.remove_copy(branch)?)
        };
        if let Err(error) = dropped.await {
            tracing::warn!(%branch, error = &error as &dyn std::error::Error, "branch kept");
        }
    }

    /// Ends the writer of a VM whose QEMU has gone, if it has one. Not cancel-safe: some may stay open. A
    /// second call ends them.
    pub async fn end_writer(&self, record: &VmRecord) {
        self.end_data(record).await;
        let Some(VolumeUse::Written {
            volume,
            epoch: Some(epoch),
        }) = &record.volume
        else {
            return;
        };
        let close = Request::Close {
            name: volume.to_string(),
            epoch: Some(*epoch),
        };
        if let Err(error) = self.ask(close).await {
            tracing::warn!(vm = %record.name, %volume, error = &error as &dyn std::error::Error, "volume not closed");
        }
    }

    /// Returns the disk that a VM's QEMU opens. Cancel-safe.
    pub async fn root_disk(&self, record: &VmRecord) -> Result<RootDisk, VolumeError> {
        match &record.volume {
            Some(VolumeUse::Written {
                volume,
                epoch: Some(epoch),
            }) => {
                let (blockd, volume, epoch) = (self.blockd.clone(), volume.clone(), *epoch);
                let disk = blocking(move || blockd.writer(&volume, epoch)).await?;
                Ok(RootDisk::Volume(disk))
            }
            Some(VolumeUse::Written { epoch: None, .. }) => {
                Err(VolumeError::Broken("its volume is not open".into()))
            }
            Some(VolumeUse::Below(_)) | None => Ok(RootDisk::Slice(record.chain[0].clone())),
        }
    }

    /// Freezes a volume: takes the snapshot that shells are over already. Durable later. If cancelled, it is
    /// frozen all the same.
    pub async fn freeze_volume(&self, at: &VolumeAt) -> Result<(), VolumeError> {
        self.ask(Request::Snapshot {
            name: at.volume.to_string(),
            snapshot: at.snapshot.clone(),
            at_once: true,
        })
        .await
    }

    /// Makes what a snapshot was taken of durable. If cancelled, it goes on to its end.
    pub async fn flush_volume(&self, at: &VolumeAt) -> Result<(), VolumeError> {
        let name = at.volume.to_string();
        self.ask(Request::Flush { name }).await
    }

    /// Drops a snapshot that a fork made, once no record names it. If cancelled, it goes on to its end.
    pub async fn drop_unused(&self, at: &VolumeAt) {
        let dropped = async {
            if !at.snapshot.starts_with(FORK) || !over(&self.parts.store.vms()?, at).is_empty() {
                return Ok(());
            }
            self.drop_snapshot(at).await
        };
        let dropped: Result<(), VolumeError> = dropped.await;
        if let Err(error) = dropped {
            tracing::warn!(%at, error = &error as &dyn std::error::Error, "snapshot kept");
        }
    }

    /// Drops it in the background.
    pub fn drop_later(&self, at: VolumeAt) {
        let later = self.later();
        tokio::spawn(async move {
            if let Some(disks) = later.upgrade() {
                disks.drop_unused(&at).await;
            }
        });
    }

    /// Drops a snapshot; one that is not there is no error. If cancelled, it is dropped all the same.
    pub async fn drop_snapshot(&self, at: &VolumeAt) -> Result<(), VolumeError> {
        let drop = Request::DropSnapshot {
            name: at.volume.to_string(),
            snapshot: at.snapshot.clone(),
        };
        match self.ask(drop).await {
            Err(error) if error.is_missing() => Ok(()),
            other => other,
        }
    }

    /// Ends the server of volumes, if no VM has one. If cancelled, it ends all the same.
    pub async fn close_volumes(&self) {
        let blockd = self.blockd.clone();
        let ended = blocking(move || blockd.end()).await;
        if let Err(error) = ended {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the server of volumes stays"
            );
        }
    }
}
