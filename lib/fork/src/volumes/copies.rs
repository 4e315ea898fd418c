//! Volumes that are at home on another host, and what of them is here.
//!
//! ```text
//! not here --asked for--> arriving --its VM goes on here--> at home
//!    ^                       |                                 |
//!    '-- it did not (new) ---+                                 v its VM went on elsewhere
//!                            '--- it did not (was a copy) --> copy --asked for--> arriving
//! ```
//!
//! A copy is written by nothing here. It keeps the snapshot that was sent last, which the other
//! host has as well: the way back is what differs from that. What is recorded decides: a volume
//! that no such record speaks of is at home.

use super::{SENT, VolumeError, is_private, uses, writer_of};
use crate::{Host, HostError, blocking};
use forkyard_blockd::{Request, Writer};
use forkyard_records::{VmRecord, VolumeCopy};
use forkyard_types::{ForkId, PeerMigrated, PeerVolume, VmName, VolumeAt, VolumeUse};
use forkyard_volume_disks::is_private_name;

/// Name that a volume's host has in messages before its own is known.
const SOMEWHERE: &str = "the host that it comes from";

impl Host {
    /// Returns what is recorded of a volume that is at home elsewhere.
    pub(crate) fn copy_of(&self, volume: &VmName) -> Result<Option<VolumeCopy>, HostError> {
        let copies = self.parts.store.copies()?.into_iter();
        Ok(copies.into_iter().find(|copy| copy.volume == *volume))
    }

    /// Refuses a volume that is at home elsewhere.
    pub(crate) fn refuse_copy(&self, volume: &VmName) -> Result<(), HostError> {
        match self.copy_of(volume)? {
            Some(copy) => Err(VolumeError::Elsewhere {
                volume: copy.volume,
                at: copy.at,
            }
            .into()),
            None => Ok(()),
        }
    }

    /// Keeps a name for a volume that is about to come. Answers which of its snapshots is here.
    /// Ports of this host that the VM needs are looked at as well: before anything of it is sent.
    pub(crate) async fn expect_volume(&self, asked: PeerVolume) -> Result<PeerMigrated, HostError> {
        let PeerVolume {
            migration,
            name,
            volume,
            sent,
            term,
            cpu,
            accel,
            publish,
        } = asked;
        self.check_cpu(crate::accel_of(&accel), cpu.as_ref())?;
        // Nothing begins to use the name meanwhile.
        let _name = self.volumes.guards.begin_soon(&name, "this host").await?;
        let mut known = self.copy_of(&name)?;
        if let Some(copy) = &known
            && let Some(former) = copy.arriving
            && former != migration
            && copy.id.as_ref() == Some(&volume)
            && (self.incoming.volumes.comes(former, &name)
                || !is_private(&self.parts.store.vms()?, &name))
        {
            // Its host moves one VM once at a time.
            self.end_former(former).await;
            known = self.copy_of(&name)?;
        }
        // An earlier migration of it may have held them.
        drop(self.parts.network.take_ports(&publish)?);
        let (blockd, looked) = (self.volumes.disks.blockd.clone(), name.clone());
        let found = match blocking(move || blockd.inspect(&looked)).await {
            Ok(status) => Some(status),
            Err(error) if error.is_missing() => None,
            Err(error) => return Err(error.into()),
        };
        let records = self.parts.store.vms()?;
        if writer_of(&records, &name).is_some() || is_private(&records, &name) {
            return Err(VolumeError::Taken { volume: name }.into());
        }
        let has_other = found.as_ref().is_some_and(|status| status.id != volume);
        let is_busy = { known.as_ref() }
            .and_then(|copy| copy.arriving)
            .is_some_and(|other| other != migration);
        // Of a VM that left, and whose daemon died before it was removed: the VM brings it back.
        let is_left = is_private_name(&name) && !records.iter().any(|it| uses(it, &name));
        if has_other || is_busy || found.is_some() && known.is_none() && !is_left {
            return Err(VolumeError::Taken { volume: name }.into());
        }
        // Nothing here writes a copy: a stream did, when its server died.
        let is_open = found.as_ref().is_some_and(|it| it.writer == Writer::Open);
        if is_open {
            let (name, epoch) = (name.to_string(), None);
            self.volumes
                .disks
                .ask(Request::Close { name, epoch })
                .await?;
        }
        // The next one here is later, also if the VM is all that says so.
        if let Some(term) = term.filter(|_| !is_private_name(&name)) {
            let later = self.known_term(&name, &volume)?.max(term);
            self.note_term(&name, &volume, later)?;
        }
        let is_new = found.is_none();
        let here = found.map(|status| status.snapshots).unwrap_or_default();
        let is_here = |name: &&String| here.iter().any(|it| it.name == **name);
        let since = sent.iter().rev().find(is_here).cloned();
        self.parts.store.put_copy(&VolumeCopy {
            volume: name.clone(),
            id: Some(volume),
            at: known.map_or_else(|| SOMEWHERE.to_owned(), |copy| copy.at),
            arriving: Some(migration),
            is_new,
        })?;
        self.incoming
            .volumes
            .expect(migration, &name, since.clone());
        self.forget_volume_later(migration);
        Ok(PeerMigrated::Since(since))
    }

    /// The copy of a volume that a migration brings.
    pub(crate) fn arriving(
        &self,
        migration: ForkId,
        volume: &VmName,
    ) -> Result<VolumeCopy, HostError> {
        let arriving = self.copy_of(volume)?;
        let arriving = arriving.filter(|copy| copy.arriving == Some(migration));
        arriving.ok_or_else(|| {
            HostError::Conflict(format!(
                "volume {volume} does not come by this migration, which may have been given up"
            ))
        })
    }

    /// Volumes come no more: what came of them goes, unless there was a copy before.
    pub(crate) async fn give_up_volumes(&self, migration: ForkId) {
        self.incoming.volumes.forget(migration);
        let copies = self.parts.store.copies().unwrap_or_default();
        let arriving = copies.into_iter();
        for copy in arriving.filter(|copy| copy.arriving == Some(migration)) {
            let volume = copy.volume.clone();
            if let Err(error) = self.undo_arrival(copy).await {
                tracing::warn!(%migration, %volume, error = &error as &dyn std::error::Error, "what came of a volume stays");
            }
        }
    }

    async fn undo_arrival(&self, copy: VolumeCopy) -> Result<(), HostError> {
        // The authority may say that it is at home here.
        let mut landing = self.parts.store.volumes_landing()?.into_iter();
        if landing.any(|it| it.volume == copy.volume) {
            return Ok(());
        }
        // It landed long ago.
        if is_private(&self.parts.store.vms()?, &copy.volume) {
            return Ok(());
        }
        if !copy.is_new {
            // A stream that broke off may have left its writer.
            self.close_copy(&copy.volume).await?;
            return Ok(self.parts.store.put_copy(&VolumeCopy {
                arriving: None,
                ..copy
            })?);
        }
        if !self.volumes.disks.blockd.has_any() {
            return Ok(self.parts.store.remove_copy(&copy.volume)?);
        }
        let (blockd, name) = (self.volumes.disks.blockd.clone(), copy.volume.clone());
        let found = match blocking(move || blockd.inspect(&name)).await {
            Ok(status) => Some(status.id),
            Err(error) if error.is_missing() => None,
            Err(error) => return Err(error.into()),
        };
        // Never one that was made here meanwhile. One that is still coming is given up.
        if found.is_none() || found == copy.id {
            let name = copy.volume.to_string();
            match self.volumes.disks.ask(Request::Remove { name }).await {
                Err(error) if error.is_missing() => {}
                other => other?,
            }
        }
        Ok(self.parts.store.remove_copy(&copy.volume)?)
    }

    /// Ends the writer of a copy: nothing here writes one, but a stream whose server died did.
    pub(super) async fn close_copy(&self, volume: &VmName) -> Result<(), HostError> {
        let (blockd, name) = (self.volumes.disks.blockd.clone(), volume.clone());
        Ok(blocking(move || match blockd.inspect(&name) {
            Ok(status) if status.writer == Writer::Open => {
                let (name, epoch) = (name.to_string(), Some(status.epoch));
                blockd.ask(&Request::Close { name, epoch }).map(drop)
            }
            Err(error) if !error.is_missing() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        })
        .await?)
    }

    /// Volumes are at home here, with the VM that writes them: that is recorded, and survives a power
    /// cut, before the other host is told and takes its own for copies. Those that are the VM's
    /// alone stay recorded as arriving: what is left of them without a VM is removed.
    pub(crate) fn volumes_landed(&self, record: &VmRecord) -> Result<(), HostError> {
        let mut landed = travelling(record).peekable();
        if landed.peek().is_none() {
            return Ok(());
        }
        landed.try_for_each(|volume| self.came_with_vm(volume))?;
        self.parts.store.flush()?;
        self.report_volumes_soon();
        Ok(())
    }

    /// A volume is at home here with its VM: in a later term than where it was.
    fn came_with_vm(&self, volume: &VmName) -> Result<(), HostError> {
        if let Some(id) = self.copy_of(volume)?.and_then(|copy| copy.id) {
            let term = self.known_term(volume, &id)?;
            self.note_term(volume, &id, term.there())?;
        }
        Ok(self.parts.store.remove_copy(volume)?)
    }

    /// Volumes are at home elsewhere from now on, with their VM.
    pub(crate) fn volumes_left(&self, record: &VmRecord, at: &str) -> Result<(), HostError> {
        travelling(record).try_for_each(|volume| {
            self.parts.store.put_copy(&VolumeCopy {
                volume: volume.clone(),
                id: None,
                at: at.to_owned(),
                arriving: None,
                is_new: false,
            })
        })?;
        Ok(())
    }

    /// Settles volumes that were on their way here when a daemon ended: nothing comes of a
    /// migration that it does not know, but of one whose VM goes on here.
    pub(super) async fn settle_copies(&self, records: &[VmRecord]) -> Result<(), HostError> {
        for copy in self.parts.store.copies()? {
            if copy.arriving.is_none() {
                continue;
            }
            if is_private(records, &copy.volume) {
                continue;
            }
            // A VM has it, though it may have stopped.
            match writer_of(records, &copy.volume).is_some() {
                true => self.came_with_vm(&copy.volume)?,
                false => self.undo_arrival(copy).await?,
            }
        }
        Ok(())
    }

    /// Drops a snapshot that was sent, now that a later one was, or that it was not.
    pub(crate) fn drop_sent(&self, at: VolumeAt) {
        debug_assert!(at.snapshot.starts_with(SENT), "{at}");
        let host = self.handle();
        // In the background: it takes a flush.
        tokio::spawn(async move {
            if let Some(host) = host.upgrade()
                && let Err(error) = host.volumes.disks.drop_snapshot(&at).await
            {
                tracing::warn!(%at, error = &error as &dyn std::error::Error, "snapshot kept");
            }
        });
    }
}

/// Volumes of a user's that are at home where this VM is.
pub(super) fn travelling(record: &VmRecord) -> impl Iterator<Item = &VmName> {
    let root = match &record.volume {
        Some(VolumeUse::Written { volume, .. }) => Some(volume),
        Some(VolumeUse::Below(_)) | None => None,
    };
    let data = record.data.iter().filter_map(|disk| {
        let (volume, _) = disk.written()?;
        (!disk.is_private(volume)).then_some(volume)
    });
    root.into_iter().chain(data)
}
