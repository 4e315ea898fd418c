//! Diagnosis of faults of volumes, and of leftovers of them.

use super::{FORK, over, uses, writer_of};
use crate::{Host, HostError, blocking};
use forkyard_blockd::{Request, Status, Writer};
use forkyard_records::VmRecord;
use forkyard_types::{VmName, VolumeAt};
use std::time::Duration;

/// Between two looks: a fork that is under way has taken its snapshot before it is on record.
const BETWEEN: Duration = Duration::from_millis(500);

/// Something left behind of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeftVolume {
    /// A snapshot that a fork made, and nothing lies over.
    Snapshot(VolumeAt),
    /// A branch that no VM writes or lies over.
    Branch(VmName),
    /// A writer that no VM has.
    Writer(VmName, u32),
    /// A record of a copy that is not here any more.
    Copy(VmName),
}

impl LeftVolume {
    /// Kind and name, as they are told.
    pub(crate) fn tell(&self) -> (&'static str, String) {
        match self {
            Self::Snapshot(at) => ("volume snapshot", at.to_string()),
            Self::Branch(name) => ("clone's volume", name.to_string()),
            Self::Writer(name, epoch) => ("volume writer", format!("{name}:{epoch}")),
            Self::Copy(name) => ("record of a copy", name.to_string()),
        }
    }
}

impl Host {
    /// Volumes that cannot be opened, one line each.
    pub(crate) async fn volume_problems(&self) -> Result<Vec<String>, HostError> {
        let failed = self.volumes().await?.into_iter().filter_map(|it| {
            let why = it.failure?;
            let name = it.name;
            if it.encrypted {
                return Some(format!("volume {name} cannot be opened: {why}"));
            }
            Some(format!(
                "volume {name} cannot be opened: {why}; import a backup under another name, or \
                 `forkyard volume rm {name}`"
            ))
        });
        Ok(failed.collect())
    }

    /// Copies of volumes that are elsewhere, one line each.
    pub(crate) async fn volume_notes(&self) -> Result<Vec<String>, HostError> {
        let copies = self.volumes().await?.into_iter().filter_map(|it| {
            let (name, at, stored) = (it.name, it.at?, it.stored);
            Some(format!(
                "volume {name} is at {at}: the copy here takes {stored} and shortens its way \
                 back; `forkyard volume rm {name}` removes it"
            ))
        });
        Ok(copies.collect())
    }

    /// Leftovers of volumes. Takes half a second if there are any.
    pub(crate) async fn left_of_volumes(&self) -> Result<Vec<LeftVolume>, HostError> {
        let first = self.look_at_volumes().await?;
        if first.is_empty() {
            return Ok(first);
        }
        tokio::time::sleep(BETWEEN).await;
        let mut again = self.look_at_volumes().await?;
        again.retain(|it| first.contains(it));
        Ok(again)
    }

    async fn look_at_volumes(&self) -> Result<Vec<LeftVolume>, HostError> {
        let blockd = self.volumes.disks.blockd.clone();
        let seen = blocking(move || {
            let names = blockd.names()?.into_iter();
            let seen = names.filter_map(|name| Some((name.clone(), blockd.inspect(&name).ok()?)));
            Ok::<_, HostError>(seen.collect::<Vec<_>>())
        });
        let seen = seen.await?;
        // Read after what they are to speak of.
        let records = self.parts.store.vms()?;
        let mut left = Vec::new();
        let copies = self.parts.store.copies()?;
        let comes = |name: &VmName| {
            let mut copies = copies.iter();
            copies.any(|copy| copy.volume == *name && copy.arriving.is_some())
        };
        for (name, status) in seen.iter().filter(|(name, _)| !comes(name)) {
            look(&mut left, (name, status), &records);
        }
        // Before what they lie over.
        left.sort_by_key(|it| !matches!(it, LeftVolume::Branch(_)));
        for copy in copies {
            let is_here = self
                .parts
                .folders
                .volumes()
                .join(copy.volume.as_str())
                .is_dir();
            if copy.arriving.is_none() && !is_here {
                left.push(LeftVolume::Copy(copy.volume));
            }
        }
        Ok(left)
    }

    /// Removes it, or ends it.
    pub(crate) async fn remove_left_volume(&self, left: &LeftVolume) -> Result<(), HostError> {
        match left {
            LeftVolume::Snapshot(at) => Ok(self.volumes.disks.drop_snapshot(at).await?),
            LeftVolume::Branch(name) => {
                let (blockd, name) = (self.volumes.disks.blockd.clone(), name.clone());
                Ok(blocking(move || forkyard_volume_disks::remove_branch(&blockd, &name)).await?)
            }
            LeftVolume::Writer(name, epoch) => Ok(self
                .volumes
                .disks
                .ask(Request::Close {
                    name: name.to_string(),
                    epoch: Some(*epoch),
                })
                .await?),
            LeftVolume::Copy(name) => Ok(self.parts.store.remove_copy(name)?),
        }
    }
}

fn look(left: &mut Vec<LeftVolume>, (name, status): (&VmName, &Status), records: &[VmRecord]) {
    if status.base.is_some() {
        if !records.iter().any(|it| uses(it, name)) {
            left.push(LeftVolume::Branch(name.clone()));
            return;
        }
    } else if status.writer == Writer::Open && writer_of(records, name).is_none() {
        left.push(LeftVolume::Writer(name.clone(), status.epoch));
    }
    for snapshot in &status.snapshots {
        let at = VolumeAt {
            volume: name.clone(),
            snapshot: snapshot.name.clone(),
        };
        if at.snapshot.starts_with(FORK) && over(records, &at).is_empty() {
            left.push(LeftVolume::Snapshot(at));
        }
    }
}
