//! Volumes that VMs boot on: made and begun for them, and put right after a crash.

use super::{NewVolume, VolumeError};
use crate::{Host, HostError, blocking};
use forkyard_blockd::{Encrypt, Request};
use forkyard_records::VmRecord;
use forkyard_types::{RootVolume, VmName, VolumeUse};
use forkyard_vm::Vm;
use forkyard_volume_disks::has_volume;
use std::time::Duration;

/// Between looks at whether the server of volumes is alive.
const LOOK: Duration = Duration::from_secs(1);

impl Host {
    /// Refuses a volume that is another VM's.
    pub(crate) fn check_volume(&self, wanted: &RootVolume) -> Result<(), HostError> {
        self.volumes.disks.refuse_in_use(&wanted.name)?;
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
        self.volumes.disks.begin_data(vm).await?;
        let Some(VolumeUse::Written { volume, .. }) = record.volume else {
            return Ok(());
        };
        let (blockd, name) = (self.volumes.disks.blockd.clone(), volume.clone());
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
            self.volumes.disks.end_writer(&unrecorded).await;
        }
        Ok(recorded?)
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
        if !self.volumes.disks.blockd.has_any() {
            return self.settle_copies(&self.parts.store.vms()?).await;
        }
        let (blockd, records) = (self.volumes.disks.blockd.clone(), self.parts.store.vms()?);
        let settled =
            blocking(move || forkyard_volume_disks::settle(&blockd, &records).map(|()| records));
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
                let blockd = host.volumes.disks.blockd.clone();
                if let Err(error) = blocking(move || blockd.ask(&Request::List {})).await {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "no server of volumes"
                    );
                }
            }
        });
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
