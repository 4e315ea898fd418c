//! Volumes as disks of VMs: begun, frozen, ended, and put right after a crash.

use super::{Blockd, FORK, NewVolume, VolumeError, over, writer_of};
use crate::{Host, HostError, blocking, snapshot::Disk};
use forkyard_blockd::{Encrypt, Request, Writer};
use forkyard_records::VmRecord;
use forkyard_types::{ByteCount, ImageId, RootVolume, VmName, VmState, VolumeAt, VolumeUse};
use forkyard_vm::Vm;
use forkyard_vmm::RootDisk;
use std::{path::Path, time::Duration};

/// Between looks at whether the server of volumes is alive.
const LOOK: Duration = Duration::from_secs(1);

impl Host {
    /// Refuses a volume that is another VM's.
    pub(crate) fn check_volume(&self, wanted: &RootVolume) -> Result<(), HostError> {
        self.refuse_in_use(&wanted.name)?;
        self.refuse_copy(&wanted.name)
    }

    /// Makes the volume that a VM is to boot on, if there is none.
    pub(crate) async fn furnish_volume(
        &self,
        wanted: &RootVolume,
        image: &str,
    ) -> Result<(), HostError> {
        match self.volume(wanted.name.as_str()).await {
            Ok(seen) => return Self::refuse_plain(&seen, wanted.encrypted),
            Err(HostError::Volume(error)) if error.is_missing() => {}
            Err(error) => return Err(error),
        }
        let disk = self.disk_of_image(image.to_owned()).await?;
        let made = NewVolume {
            size: wanted.size,
            source: Some(disk),
            encrypt: wanted.encrypted.then(Encrypt::default),
        };
        self.make_volume(&wanted.name, made).await
    }

    /// Begins the writer of a VM that is about to start. It is recorded; if the VM does not come
    /// up, it is the caller's to end, by [`Host::end_running`].
    pub(crate) async fn begin_writer(&self, vm: &Vm) -> Result<(), HostError> {
        let record = vm.record();
        // No hand-over begins until they are open.
        let _used = self
            .volumes
            .guards
            .take(super::copies::travelling(&record))?;
        for volume in super::copies::travelling(&record) {
            self.may_open(volume).await?;
        }
        self.begin_data(vm).await?;
        let Some(VolumeUse::Written { volume, .. }) = record.volume else {
            return Ok(());
        };
        let (blockd, name) = (self.volumes.blockd.clone(), volume.clone());
        let epoch = blocking(move || blockd.open(&name)).await?;
        let begun = VolumeUse::Written {
            volume,
            epoch: Some(epoch),
        };
        let recorded = vm.change(&self.parts.store, |record| {
            record.volume = Some(begun.clone())
        });
        if recorded.is_err() {
            let unrecorded = VmRecord {
                volume: Some(begun),
                ..vm.record()
            };
            self.end_writer(&unrecorded).await;
        }
        Ok(recorded?)
    }

    /// Ends the writer of a VM whose QEMU has gone, if it has one.
    pub(crate) async fn end_writer(&self, record: &VmRecord) {
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
        if let Err(error) = self.ask_blockd(close).await {
            tracing::warn!(vm = %record.name, %volume, error = &error as &dyn std::error::Error, "volume not closed");
        }
    }

    /// Returns the disk that a VM's QEMU opens.
    pub(crate) async fn root_disk(&self, record: &VmRecord) -> Result<RootDisk, HostError> {
        match &record.volume {
            Some(VolumeUse::Written {
                volume,
                epoch: Some(epoch),
            }) => {
                let (blockd, volume, epoch) = (self.volumes.blockd.clone(), volume.clone(), *epoch);
                let disk = blocking(move || blockd.writer(&volume, epoch)).await?;
                Ok(RootDisk::Volume(disk))
            }
            Some(VolumeUse::Written { epoch: None, .. }) => {
                Err(HostError::Invalid("its volume is not open".into()))
            }
            Some(VolumeUse::Below(_)) | None => Ok(RootDisk::Slice(record.chain[0].clone())),
        }
    }

    /// Makes an empty slice over the disk of a snapshot.
    pub(crate) async fn slice_over(&self, disk: &Disk, path: &Path) -> Result<(), HostError> {
        let Some(at) = disk.volume_below() else {
            let backing = disk.backing(&self.parts.folders)?;
            return Ok(self.parts.images.create_slice(path, &backing, None).await?);
        };
        let (blockd, at) = (self.volumes.blockd.clone(), at.clone());
        let below = blocking(move || {
            let status = blockd.inspect(&at.volume)?;
            // One that was taken keeps its size, whatever becomes of the volume.
            let taken = status.snapshots.iter().find(|it| it.name == at.snapshot);
            let size = ByteCount(taken.map_or(status.size, |it| it.size));
            Ok::<_, VolumeError>((blockd.reader(&at)?, size))
        });
        let (below, size) = below.await?;
        Ok(self
            .parts
            .images
            .create_slice_over(path, (&below, size))
            .await?)
    }

    /// Freezes a volume: takes the snapshot that shells are over already. Durable later.
    pub(crate) async fn freeze_volume(&self, at: &VolumeAt) -> Result<(), HostError> {
        self.ask_blockd(Request::Snapshot {
            name: at.volume.to_string(),
            snapshot: at.snapshot.clone(),
            at_once: true,
        })
        .await
    }

    /// Makes what a snapshot was taken of durable.
    pub(crate) async fn flush_volume(&self, at: &VolumeAt) -> Result<(), HostError> {
        let name = at.volume.to_string();
        self.ask_blockd(Request::Flush { name }).await
    }

    /// Drops a snapshot that a fork made, once no record names it.
    pub(crate) async fn drop_unused(&self, at: &VolumeAt) {
        let dropped = async {
            if !at.snapshot.starts_with(FORK) || !over(&self.parts.store.vms()?, at).is_empty() {
                return Ok(());
            }
            self.drop_snapshot(at).await
        };
        let dropped: Result<(), HostError> = dropped.await;
        if let Err(error) = dropped {
            tracing::warn!(%at, error = &error as &dyn std::error::Error, "snapshot kept");
        }
    }

    /// Drops it in the background.
    pub(crate) fn drop_later(&self, at: VolumeAt) {
        let host = self.handle();
        tokio::spawn(async move {
            if let Some(host) = host.upgrade() {
                host.drop_unused(&at).await;
            }
        });
    }

    pub(super) async fn drop_snapshot(&self, at: &VolumeAt) -> Result<(), HostError> {
        let drop = Request::DropSnapshot {
            name: at.volume.to_string(),
            snapshot: at.snapshot.clone(),
        };
        match self.ask_blockd(drop).await {
            Err(HostError::Volume(error)) if error.is_missing() => Ok(()),
            other => other,
        }
    }

    /// Refuses what cannot be done yet with a VM whose disk is, or lies over, a volume.
    pub(crate) fn refuse_on_volume(record: &VmRecord, what: &'static str) -> Result<(), HostError> {
        let root = record.volume.as_ref().map(VolumeUse::volume);
        not_yet(record, root, what)
    }

    /// Refuses what cannot be done yet with a VM that has data disks.
    pub(crate) fn refuse_with_data(record: &VmRecord, what: &'static str) -> Result<(), HostError> {
        let data = record.data.first().map(|disk| &disk.name);
        not_yet(record, data, what)
    }

    /// After a daemon that may have died at any point: closes writers that no running VM has, and
    /// drops snapshots of forks that no record names.
    pub(crate) async fn settle_volumes(&self) -> Result<(), HostError> {
        if !self.volumes.blockd.has_any() {
            return self.settle_copies(&self.parts.store.vms()?).await;
        }
        let (blockd, records) = (self.volumes.blockd.clone(), self.parts.store.vms()?);
        let settled = blocking(move || settle(&blockd, &records).map(|()| records));
        let records = settled.await?;
        self.settle_copies(&records).await?;
        self.settle_mirrors().await?;
        self.settle_needs().await
    }

    /// Has a server of volumes that died started again, for as long as a VM has one.
    pub(crate) fn watch_blockd(&self) {
        let host = self.handle();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                let Some(host) = host.upgrade() else { return };
                let used = host.parts.registry().all();
                if !used.iter().any(|vm| has_volume(&vm.record())) {
                    continue;
                }
                let blockd = host.volumes.blockd.clone();
                if let Err(error) = blocking(move || blockd.ask(&Request::List {})).await {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "no server of volumes"
                    );
                }
            }
        });
    }

    /// Ends the server of volumes, if no VM has one.
    pub(crate) async fn close_volumes(&self) {
        let blockd = self.volumes.blockd.clone();
        let ended = blocking(move || blockd.end()).await;
        if let Err(error) = ended {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the server of volumes stays"
            );
        }
    }
}

fn not_yet(
    record: &VmRecord,
    volume: Option<&VmName>,
    what: &'static str,
) -> Result<(), HostError> {
    match volume {
        Some(volume) => Err(VolumeError::NotYet {
            vm: record.name.clone(),
            volume: volume.clone(),
            what,
        }
        .into()),
        None => Ok(()),
    }
}

/// The VM needs the server of volumes.
pub(crate) fn has_volume(record: &VmRecord) -> bool {
    record.volume.is_some() || !record.data.is_empty()
}

fn settle(blockd: &Blockd, records: &[VmRecord]) -> Result<(), VolumeError> {
    super::data::remove_orphans(blockd, records)?;
    for volume in blockd.names()? {
        let status = match blockd.inspect(&volume) {
            Ok(status) => status,
            // One that is damaged is no reason not to see to the others.
            Err(error) => {
                tracing::error!(%volume, error = &error as &dyn std::error::Error, "volume cannot be opened");
                continue;
            }
        };
        let writer = writer_of(records, &volume);
        let is_had = writer.is_some_and(|vm| {
            let now = VolumeUse::Written {
                volume: volume.clone(),
                epoch: Some(status.epoch),
            };
            let mut data = vm.data.iter().filter_map(|disk| disk.written());
            let writes =
                vm.volume == Some(now) || data.any(|it| it == (&volume, Some(status.epoch)));
            writes && matches!(vm.state, VmState::Running | VmState::Paused)
        });
        let name = volume.to_string();
        if status.writer == Writer::Open && !is_had {
            tracing::info!(%volume, epoch = status.epoch, "closing a writer that no VM has");
            blockd.ask(&Request::Close {
                name: name.clone(),
                epoch: Some(status.epoch),
            })?;
        }
        for snapshot in status.snapshots {
            let at = VolumeAt {
                volume: volume.clone(),
                snapshot: snapshot.name,
            };
            if at.snapshot.starts_with(FORK) && over(records, &at).is_empty() {
                let dropped = blockd.ask(&Request::DropSnapshot {
                    name: name.clone(),
                    snapshot: at.snapshot,
                });
                if let Err(error) = dropped {
                    tracing::warn!(%volume, error = &error as &dyn std::error::Error, "snapshot kept");
                }
            }
        }
    }
    Ok(())
}

/// The snapshot that a fork takes of a volume, named after the image of its memory.
pub(crate) fn frozen_at(volume: &VmName, memory: ImageId) -> VolumeAt {
    VolumeAt {
        volume: volume.clone(),
        snapshot: format!("{FORK}{memory}"),
    }
}
