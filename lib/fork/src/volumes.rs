//! Volumes: disks that outlive the VMs that write them.
//!
//! ```text
//! VM that booted on a volume --writes--> volume --snapshot--> d@fork-IMAGE
//!                                                                  ^ reads
//! clone --writes--> slice --over--> frozen slices --over-----------'
//! ```
//!
//! A data disk is a volume, too. Its clones write branches: volumes over a snapshot of it, which
//! end with them ([`data`]).
//!
//! A VM's root volume is all of its disk: it has no slices, and what freezes it at a fork is a snapshot
//! of the volume. Clones write slices over that and never the volume. A snapshot that a fork made
//! goes with the last record that names it.
//!
//! | dies | then |
//! |---|---|
//! | the server of volumes | it is started again within a second; VMs wait for it |
//! | the daemon | the next one closes writers of VMs that are gone, and drops snapshots that nothing names |

mod attach;
mod copies;
mod data;
mod doctor;
mod guard;
mod homes;
mod law;
mod links;
mod mirrors;
mod moves;
mod report;
mod supply;
mod view;

pub(crate) use doctor::LeftVolume;
pub use forkyard_volume_disks::VolumeError;
pub(crate) use guard::{Guards, Used};
pub use homes::{Home, Homes};
pub(crate) use links::Links;
pub(crate) use mirrors::MirrorLines;
pub(crate) use moves::Moves;
pub(crate) use supply::Supplies;
pub use supply::SupplyLine;

use crate::{
    Host, HostError, blocking,
    error::{check_export, check_import},
};
use forkyard_blockd::{Counts, Encrypt, Request};
use forkyard_host::Parts;
use forkyard_types::{
    ByteCount, CreateVolume, ExportVolume, ResizeVolume, SnapshotVolume, VmName, VolumeView,
};
use forkyard_volume_disks::{FORK, VolumeDisks, is_private, over, uses, writer_of};
use std::{path::PathBuf, sync::Arc};

/// Beginning of the names of snapshots that are sent to other hosts. No user's snapshot has it.
pub(crate) const SENT: &str = "sent-";
/// Beginning of the names of those that moves of volumes end with: with them go all that its user took.
pub(crate) const SENT_ALL: &str = "sent-all-";
/// Beginning of the names of snapshots that are held at other hosts. No user's snapshot has it.
const MIRRORED: &str = "mirror-";

/// Volumes of this host: their server, their uses, and their ways to other hosts and from there.
#[derive(Debug)]
pub(crate) struct HostVolumes {
    /// Those that VMs have as disks, and the server.
    pub disks: VolumeDisks,
    pub supplies: Supplies,
    /// Budgets of links to other hosts.
    pub links: Links,
    pub mirrors: MirrorLines,
    pub guards: Guards,
    pub moves: Moves,
}

impl HostVolumes {
    pub fn new(parts: &Arc<Parts>, links: Links) -> Self {
        Self {
            disks: VolumeDisks::new(parts.clone()),
            supplies: Supplies::default(),
            links,
            mirrors: MirrorLines::default(),
            guards: Guards::default(),
            moves: Moves::default(),
        }
    }
}

impl Host {
    /// Every volume, sorted by name. Cancel-safe.
    pub async fn volumes(&self) -> Result<Vec<VolumeView>, HostError> {
        let blockd = self.volumes.disks.blockd.clone();
        let all = blocking(move || {
            let seen = |name: VmName| match blockd.inspect(&name) {
                // One may go as it is looked at.
                Err(error) if error.is_missing() => None,
                // Clones' disks are no volumes of a user's.
                Ok(status) if status.base.is_some() => None,
                seen => Some((name, seen)),
            };
            let all: Vec<_> = blockd.names()?.into_iter().filter_map(seen).collect();
            Ok::<_, VolumeError>(all)
        });
        let (records, known) = (self.parts.store.vms()?, self.known()?);
        // Nor are those of clones that have moved here.
        let all = all.await?.into_iter();
        let all = all.filter(|(name, _)| !is_private(&records, name));
        all.map(|(name, seen)| self.view_of_volume(name, seen, (&records, &known)))
            .collect()
    }

    /// Counts of the volumes that are open. Cancel-safe.
    pub async fn volume_counts(&self) -> Result<Vec<Counts>, HostError> {
        let blockd = self.volumes.disks.blockd.clone();
        Ok(blocking(move || blockd.counts()).await?)
    }

    /// One volume. Cancel-safe.
    pub async fn volume(&self, name: &str) -> Result<VolumeView, HostError> {
        let volume = known_name(name)?;
        let (blockd, name) = (self.volumes.disks.blockd.clone(), volume.clone());
        let seen = blocking(move || Ok::<_, VolumeError>(blockd.inspect(&name))).await?;
        self.view_of_volume(volume, seen, (&self.parts.store.vms()?, &self.known()?))
    }

    /// Makes a volume: of zeroes, of an image's disk, or of a raw disk. None is left if that fails.
    /// Not cancel-safe: run it on a task of its own.
    pub async fn create_volume(&self, request: CreateVolume) -> Result<VolumeView, HostError> {
        let CreateVolume {
            name,
            size,
            image,
            file,
            encrypted,
            key_file,
        } = request;
        let encrypt = match (encrypted, key_file) {
            (false, Some(_)) => {
                let text = "a key file is for an encrypted volume: say that it is to be one";
                return Err(HostError::Invalid(text.into()));
            }
            (encrypted, key) => encrypted.then_some(Encrypt { key }),
        };
        let _used = self.volumes.guards.take([&name])?;
        let source = match (image, file) {
            (Some(_), Some(_)) => {
                let text = "a volume is a copy of an image or of a file, not of both";
                return Err(HostError::Invalid(text.into()));
            }
            (Some(image), None) => Some(self.disk_of_image(image).await?),
            (None, Some(file)) if file.is_absolute() => {
                let disk = file.clone();
                blocking(move || check_import(&disk)).await?;
                Some(file)
            }
            (None, Some(file)) => {
                let text = format!("{} is no absolute path", file.display());
                return Err(HostError::Invalid(text));
            }
            (None, None) if size.is_none() => {
                let text = "an empty volume has a size: say which";
                return Err(HostError::Invalid(text.into()));
            }
            (None, None) => None,
        };
        let made = NewVolume {
            size,
            source,
            encrypt,
        };
        self.make_volume(&name, made).await?;
        self.volume(name.as_str()).await
    }

    /// Keeps a volume as it is, durably. Not cancel-safe: the server goes on with it while nothing keeps
    /// others from the volume. Run it on a task of its own.
    pub async fn snapshot_volume(
        &self,
        name: &str,
        request: SnapshotVolume,
    ) -> Result<VolumeView, HostError> {
        for (beginning, whose) in [(FORK, "forks"), (SENT, "migrations"), (MIRRORED, "copies")] {
            if request.name.as_str().starts_with(beginning) {
                let text = format!(
                    "names that begin with {beginning} are those of {whose}: choose another"
                );
                return Err(HostError::Invalid(text));
            }
        }
        let volume = known_name(name)?;
        let _used = self.volumes.guards.take([&volume])?;
        self.refuse_copy(&volume)?;
        let taken = Request::Snapshot {
            name: volume.to_string(),
            snapshot: request.name.to_string(),
            at_once: false,
        };
        self.volumes.disks.ask(taken).await?;
        self.volume(name).await
    }

    /// Removes a snapshot that nothing lies over. Not cancel-safe, as
    /// [`snapshot_volume`](Self::snapshot_volume) is not.
    pub async fn drop_volume_snapshot(
        &self,
        name: &str,
        snapshot: &str,
    ) -> Result<VolumeView, HostError> {
        let volume = known_name(name)?;
        let _used = self.volumes.guards.take([&volume])?;
        let seen = self.volume(name).await?;
        let mut snapshots = seen.snapshots.iter();
        let vms = snapshots.find(|it| it.name == snapshot).map(|it| &it.vms);
        if let Some(vm) = vms.and_then(|vms| vms.first()) {
            return Err(VolumeError::SnapshotInUse {
                volume,
                snapshot: snapshot.to_owned(),
                vm: vm.clone(),
            }
            .into());
        }
        self.volumes
            .disks
            .ask(Request::DropSnapshot {
                name: volume.to_string(),
                snapshot: snapshot.to_owned(),
            })
            .await?;
        self.volume(name).await
    }

    /// Changes the size of a volume that no VM has. Not cancel-safe, as
    /// [`snapshot_volume`](Self::snapshot_volume) is not.
    pub async fn resize_volume(
        &self,
        name: &str,
        request: ResizeVolume,
    ) -> Result<VolumeView, HostError> {
        let volume = known_name(name)?;
        let _used = self.volumes.guards.take([&volume])?;
        self.volumes.disks.refuse_in_use(&volume)?;
        self.refuse_copy(&volume)?;
        self.volumes
            .disks
            .ask(Request::Resize {
                name: volume.to_string(),
                size: request.size.0,
            })
            .await?;
        self.volume(name).await
    }

    /// Removes a volume that no VM has, or lies over. Says what it was. Not cancel-safe: it may be gone while
    /// it is on record. Run it on a task of its own.
    pub async fn remove_volume(&self, name: &str) -> Result<VolumeView, HostError> {
        let volume = known_name(name)?;
        let _used = self.volumes.guards.take([&volume])?;
        let gone = self.volume(name).await?;
        self.volumes.disks.refuse_in_use(&volume)?;
        let records = self.parts.store.vms()?;
        if let Some(over) = records.iter().find(|it| uses(it, &volume)) {
            return Err(VolumeError::InUse {
                volume,
                vm: over.name.clone(),
            }
            .into());
        }
        let copy = self.copy_of(&volume)?;
        if copy.as_ref().is_some_and(|copy| copy.arriving.is_some()) {
            return self.refuse_copy(&volume).map(|()| gone);
        }
        let name = volume.to_string();
        self.volumes.disks.ask(Request::Remove { name }).await?;
        self.parts.store.forget_volume(&volume)?;
        if copy.is_none() {
            self.forget_home(&gone).await;
        }
        Ok(gone)
    }

    /// Copies a volume, or a snapshot of it, into a raw disk. The volume must have no writer: it
    /// would change meanwhile. Not cancel-safe, as [`snapshot_volume`](Self::snapshot_volume) is not.
    pub async fn export_volume(
        &self,
        name: &str,
        request: ExportVolume,
    ) -> Result<VolumeView, HostError> {
        let volume = known_name(name)?;
        // Snapshots do not change, whatever becomes of the volume.
        let _used = match request.snapshot {
            None => Some(self.volumes.guards.take([&volume])?),
            Some(_) => None,
        };
        if !request.file.is_absolute() {
            let text = format!("{} is no absolute path", request.file.display());
            return Err(HostError::Invalid(text));
        }
        if request.snapshot.is_none() {
            self.refuse_written(&volume)?;
            self.refuse_copy(&volume)?;
        }
        let file = request.file.clone();
        blocking(move || check_export(&file)).await?;
        self.volumes
            .disks
            .ask(Request::Export {
                name: volume.to_string(),
                snapshot: request.snapshot,
                file: request.file,
            })
            .await?;
        self.volume(name).await
    }

    /// Makes a volume.
    async fn make_volume(&self, volume: &VmName, made: NewVolume) -> Result<(), HostError> {
        self.refuse_copy(volume)?;
        self.refuse_named_elsewhere(volume).await?;
        let (blockd, name) = (self.volumes.disks.blockd.clone(), volume.to_string());
        let NewVolume {
            size,
            source,
            encrypt,
        } = made;
        let request = match source {
            None => Request::Create {
                name,
                size: size.unwrap_or_default().0,
                encrypt,
            },
            Some(file) => Request::Import {
                name,
                file,
                size: size.map(|size| size.0),
                encrypt,
            },
        };
        blocking(move || blockd.ask(&request).map(drop)).await?;
        // One that the cluster does not hear of is made nowhere.
        let entered = self.may_open(volume).await;
        if entered.is_err() {
            let name = volume.to_string();
            self.volumes.disks.ask(Request::Remove { name }).await?;
        }
        entered
    }

    /// Refuses a volume that is there and not encrypted, if it is to be.
    fn refuse_plain(seen: &VolumeView, encrypted: bool) -> Result<(), HostError> {
        match encrypted && !seen.encrypted {
            true => Err(VolumeError::NotEncrypted {
                volume: seen.name.clone(),
            }
            .into()),
            false => Ok(()),
        }
    }

    async fn disk_of_image(&self, image: String) -> Result<PathBuf, HostError> {
        self.parts.bases().base(image.clone(), None).await?;
        let bases = self.parts.bases().clone();
        Ok(blocking(move || bases.disk(&image)).await?)
    }

    /// Refuses a volume that a VM writes now.
    fn refuse_written(&self, volume: &VmName) -> Result<(), HostError> {
        match writer_of(&self.parts.store.vms()?, volume) {
            Some(vm) if vm.machine.is_some() => Err(HostError::Running {
                vm: vm.name.clone(),
            }),
            Some(_) | None => Ok(()),
        }
    }
}

/// Volume that is to be made.
#[derive(Debug)]
struct NewVolume {
    /// Size; that of what it is made of if absent.
    size: Option<ByteCount>,
    /// Raw disk that it is a copy of.
    source: Option<PathBuf>,
    encrypt: Option<Encrypt>,
}

fn known_name(name: &str) -> Result<VmName, HostError> {
    name.parse().map_err(|_| no_such(name))
}

fn no_such(name: &str) -> HostError {
    VolumeError::Unknown {
        name: name.to_owned(),
    }
    .into()
}
