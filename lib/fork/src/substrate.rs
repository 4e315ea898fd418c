//! Substrates: VMs that are kept small on disk and woken as founders of families of their own.
//!
//! ```text
//! VM --dock--> recorded -> guest prepared -> checkpoint -> packed -> kept -> VM ended
//!                                                                     `--activate--> VMs
//! ```
//!
//! A substrate is two page images, of memory and of disk, and the state of devices. Nothing of it
//! belongs to the VM it was: its files are its own. Its disk lies over the guest image, or over that of
//! the substrate that the VM was woken from.
//!
//! Failure paths: a dock that fails before `kept` is recorded leaves the VM as it was, but for what
//! its guest was rid of; the next daemon removes what one left that died there ([`settle`]). From
//! `kept` on the VM is what is removed, by this daemon or the next.
//!
//! [`settle`]: Host::settle_substrates

mod across;
mod activate;
mod backup;
mod boots;
mod bundle;
mod carry;
mod dock;
mod error;
mod leads;
mod names;
mod open;
mod pack;
mod porter;
mod room;
mod settle;
mod sizes;
mod standby;
mod stored;
mod trusted;

use backup::Backups;
pub(crate) use boots::to_keep;
pub use error::SubstrateError;
use porter::Chosen;
pub use porter::Stores;
use standby::Standbys;

use crate::{Host, HostError, blocking, independence::Independence};
use forkyard_host::allocated;
use forkyard_records::SubstrateRecord;
use forkyard_substrate::access::{Act, may};
use forkyard_types::{
    ByteCount, ForkId, GuestCpu, ImageId, SubstrateGuest, SubstrateInspect, SubstrateKind,
    SubstrateParts, SubstrateView, VmId, VmName,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
    sync::{Arc, Mutex},
};

/// Memory, as a layer.
const MEMORY: &str = "memory.pages";
/// Disk, as a layer over the guest image.
const DISK: &str = "disk.pages";
/// State of CPUs and devices.
const DEVICES: &str = "devices";

/// Substrates of this host, and what is being made of them.
#[derive(Debug, Default)]
pub(crate) struct Substrates {
    /// Held while a substrate is made or removed. Names of boots that could not be kept: this
    /// daemon tries none of them again.
    pub docks: tokio::sync::Mutex<BTreeSet<VmName>>,
    /// Object stores of substrates.
    pub stores: Chosen,
    pub backups: Backups,
    /// Disks that come to depend on nothing.
    pub independence: Independence,
    /// VMs that are ready to be taken.
    pub standbys: Standbys,
    /// Memory of substrates as that of larger VMs, and the images that it is a view of.
    pub larger: Mutex<BTreeMap<ImageId, ImageId>>,
    /// Names that activations under way will give.
    pub promised: Arc<Mutex<BTreeSet<String>>>,
}

/// Record of a substrate.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    kind: SubstrateKind,
    owner: Option<String>,
    /// An image's first boot, kept by the host itself.
    #[serde(default)]
    boot: bool,
    from: VmName,
    image: String,
    vcpus: u8,
    memory: ByteCount,
    /// Memory that its guest found when it booted; as much as it has if that was not noted.
    #[serde(default)]
    booted: Option<ByteCount>,
    accel: String,
    /// CPU that its guest was given; unknown if that was not noted.
    #[serde(default)]
    cpu: Option<GuestCpu>,
    /// The program that saved its state.
    #[serde(default)]
    engine: String,
    /// Version of their messages that its agent speaks; none if it was made before that was noted.
    #[serde(default)]
    agent: Option<u16>,
    created: u64,
    /// Seconds since 1970 at its last use.
    #[serde(default)]
    used: u64,
    parts: Option<SubstrateParts>,
    /// BLAKE3 digest of the state of CPUs and devices; none if it was docked before that was noted. Pages have
    /// checksums of their own.
    #[serde(default)]
    devices_sum: Option<String>,
    guest: Option<SubstrateGuest>,
    /// Copy in the store that the pool is backed up to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    backup: Option<backup::Copied>,
    /// Files to be removed: of a dock under way all that it made, of a substrate that is kept
    /// also the VM.
    leaving: Option<Leaving>,
}

/// Leftovers of a dock.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Leaving {
    /// The checkpoint that it is packed of.
    checkpoint: VmName,
    /// The fork that made the clone that is docked.
    fork: Option<ForkId>,
    /// The VM that ends as the substrate.
    vm: Option<VmId>,
}

/// A substrate as it is recorded.
#[derive(Clone, Debug)]
struct Substrate {
    name: VmName,
    entry: Entry,
}

impl Substrate {
    fn read(record: SubstrateRecord) -> Result<Self, HostError> {
        let entry = serde_json::from_str(&record.entry).map_err(|error| {
            let name = &record.name;
            HostError::Broken(format!(
                "the record of substrate {name} cannot be parsed: {error}"
            ))
        })?;
        Ok(Self {
            name: record.name,
            entry,
        })
    }

    fn record(&self) -> Result<SubstrateRecord, HostError> {
        let parts = self.entry.parts.as_ref();
        Ok(SubstrateRecord {
            name: self.name.clone(),
            memory_image: parts.map(|parts| parts.memory.image),
            disk_image: parts.map(|parts| parts.disk.image),
            entry: crate::to_text(&self.entry)?,
        })
    }

    /// Returns the parts, once the substrate is kept.
    fn parts(&self) -> Result<&SubstrateParts, HostError> {
        self.entry.parts.as_ref().ok_or_else(|| {
            SubstrateError::NotReady {
                name: self.name.clone(),
            }
            .into()
        })
    }
}

impl Host {
    /// The substrates that an asker may see, the oldest first. No user: the host's operator.
    pub fn substrates(&self, asker: Option<&str>) -> Result<Vec<SubstrateView>, HostError> {
        let all = self.all_substrates()?.into_iter();
        let seen = all.filter(|it| open(Act::Open, it, asker).is_ok());
        seen.map(|it| self.view_of_substrate(&it)).collect()
    }

    /// A substrate in full. Cancel-safe.
    pub async fn inspect_substrate(
        &self,
        name: &str,
        asker: Option<&str>,
    ) -> Result<SubstrateInspect, HostError> {
        let found = self.substrate(name, Act::Open, asker)?;
        // One that is damaged or not whole yet is shown as well.
        let disk = self.docked_disk(&found).await.unwrap_or_default();
        Ok(SubstrateInspect {
            substrate: self.view_of_substrate(&found)?,
            sizes: found.sizes(disk),
            backup: self.backup_of(&found),
            parts: found.entry.parts,
            guest: found.entry.guest,
        })
    }

    /// Removes a substrate that no VM and no other substrate lies over. Not cancel-safe: run it on
    /// a task of its own.
    pub async fn remove_substrate(
        &self,
        name: &str,
        asker: Option<&str>,
    ) -> Result<SubstrateView, HostError> {
        let _turn = self.substrates.docks.lock().await;
        let found = self.substrate(name, Act::Remove, asker)?;
        if found.entry.boot {
            self.forget_cached(&found.name);
        }
        self.remove_known(&found).await
    }

    /// Removes a substrate that nothing lies over, with what is kept ready of it. The caller holds the turn.
    async fn remove_known(&self, found: &Substrate) -> Result<SubstrateView, HostError> {
        let parts = found.parts()?.clone();
        let view = self.view_of_substrate(found)?;
        if let Some(by) = self.first_over(found)? {
            let name = found.name.clone();
            return Err(SubstrateError::InUse { name, by }.into());
        }
        self.end_standby(&found.name).await?;
        self.parts.store.remove_substrate(&found.name)?;
        self.release_larger(parts.memory.image).await;
        self.discard_parts(&parts).await;
        Ok(view)
    }

    /// A VM or a substrate that lies over another substrate.
    fn first_over(&self, found: &Substrate) -> Result<Option<VmName>, HostError> {
        let Some(parts) = &found.entry.parts else {
            return Ok(None);
        };
        if let Some(vm) = self.view_of_substrate(found)?.vms.into_iter().next() {
            return Ok(Some(vm));
        }
        let above = |other: &Substrate| {
            let lower = other.entry.parts.iter();
            let mut lower = lower.flat_map(|it| [it.memory.over, it.disk.over]);
            lower.any(|it| [Some(parts.memory.image), Some(parts.disk.image)].contains(&it))
        };
        let other = self.all_substrates()?.into_iter().find(above);
        Ok(other.map(|it| it.name))
    }

    /// Tells whether a page image belongs to a substrate. If that cannot be
    /// read, it may be.
    pub(crate) fn is_of_substrate(&self, image: ImageId) -> bool {
        self.smaller(image).is_some() || self.parts.store.is_of_substrate(image).unwrap_or(true)
    }

    /// Removes the boots of a guest image that are kept, for it is to be removed; refuses that if
    /// another substrate lies over it.
    pub(crate) async fn release_guest_image(&self, image: &str) -> Result<(), HostError> {
        let _turn = self.substrates.docks.lock().await;
        let of_image = |it: &Substrate| it.entry.image == image;
        for boot in self.all_substrates()?.into_iter().filter(of_image) {
            if boot.entry.boot {
                self.forget_boot(&boot).await;
            }
        }
        match self.all_substrates()?.into_iter().find(of_image) {
            Some(found) => Err(HostError::ImageInUse {
                name: image.to_owned(),
                vm: found.name,
            }),
            None => Ok(()),
        }
    }

    fn all_substrates(&self) -> Result<Vec<Substrate>, HostError> {
        let records = self.parts.store.substrates()?.into_iter();
        records.map(Substrate::read).collect()
    }

    /// A substrate that an asker may do something with.
    fn substrate(&self, name: &str, act: Act, asker: Option<&str>) -> Result<Substrate, HostError> {
        let mut all = self.all_substrates()?.into_iter();
        let found = all.find(|it| it.name.as_str() == name);
        // One that is closed to its asker is not told of.
        let found = found.filter(|it| open(Act::Open, it, asker).is_ok());
        let found = found.ok_or_else(|| SubstrateError::Unknown {
            name: name.to_owned(),
        })?;
        open(act, &found, asker)?;
        Ok(found)
    }

    /// Name of a substrate that an asker may see.
    pub(crate) fn substrate_named(
        &self,
        name: &str,
        asker: Option<&str>,
    ) -> Result<VmName, HostError> {
        Ok(self.substrate(name, Act::Open, asker)?.name)
    }

    fn view_of_substrate(&self, substrate: &Substrate) -> Result<SubstrateView, HostError> {
        let Substrate { name, entry } = substrate;
        let parts = entry.parts.as_ref();
        let size = parts.map_or(0, room::size);
        // By their disks: one that is independent has its own memory image in the pager, as clones of
        // a VM that is gone have.
        let disk = parts.map(|parts| parts.disk.image);
        let over = |record: &forkyard_records::VmRecord| {
            record.disk_image.is_some() && record.disk_image == disk
        };
        let (standbys, ready) = self.standby_of(name);
        let docked = substrate.docked();
        let (own, larger): (Vec<_>, Vec<_>) =
            standbys.into_iter().partition(|(size, _)| *size == docked);
        // From the records: a VM that is being made is not listed yet.
        let vms = self.parts.store.vms()?.into_iter().filter(over);
        let vms = vms.filter(|record| !ready.contains(&record.id));
        Ok(SubstrateView {
            name: name.clone(),
            kind: entry.kind,
            owner: entry.owner.clone(),
            boot: entry.boot,
            ready: parts.is_some(),
            from: entry.from.clone(),
            image: entry.image.clone(),
            vcpus: entry.vcpus,
            memory: entry.memory,
            size: ByteCount(size),
            created: entry.created,
            vms: vms.map(|record| record.name).collect(),
            standby: own.into_iter().next().map(|(_, view)| view),
            standby_larger: larger.into_iter().map(|(_, view)| view).collect(),
        })
    }

    /// Removes a substrate's images and files, as far as that can be done: the rest is found
    /// by the next daemon.
    async fn discard_parts(&self, parts: &SubstrateParts) {
        for image in [parts.memory.image, parts.disk.image] {
            self.snapshots.retire(image).await;
        }
        let folder = self.parts.folders.substrate(parts.memory.image);
        let removed = blocking(move || {
            let removed = gone(fs::remove_dir_all(&folder), &folder);
            // With the last of them.
            let _ = folder.parent().map(fs::remove_dir);
            removed
        });
        if let Err(error) = removed.await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "substrate's files not removed"
            );
        }
    }
}

fn open(act: Act, substrate: &Substrate, asker: Option<&str>) -> Result<(), SubstrateError> {
    let Entry { kind, owner, .. } = &substrate.entry;
    Ok(may(act, *kind, owner.as_deref(), asker)?)
}

/// Digest of a state of CPUs and devices.
fn sum_of(devices: &[u8]) -> String {
    blake3::hash(devices).to_hex().to_string()
}

fn gone(removed: io::Result<()>, path: &Path) -> Result<(), HostError> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(HostError::io("remove", path)),
    }
}

fn size(path: &Path) -> Result<ByteCount, HostError> {
    Ok(allocated(path)?)
}
