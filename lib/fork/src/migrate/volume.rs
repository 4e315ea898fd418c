//! The volumes of a VM that moves: their snapshots, as streams.
//!
//! Each carries what differs from the one before, which both hosts keep until the next has come.
//! The last is taken while the guest stands still; it and `Land` are under way at the same time,
//! and the guest goes on once both are there.
//!
//! A clone's branch is sent as all that it reads as, and what a VM only reads as the snapshot that it
//! is; either is a volume of the VM's own there, under the name that a branch of it would have, and
//! ends with it ([`is_private`](forkyard_types::DataDisk::is_private)).

use super::leave::Leaving;
use crate::{
    Host, HostError, blocking,
    migrate::Sending,
    volumes::{SENT, SENT_ALL, VolumeError},
};
use forkyard_blockd::{Hot, Request};
use forkyard_records::VmRecord;
use forkyard_snapshot::Snapshot;
use forkyard_types::{
    ByteCount, DataRole, DiskTransfer, ForkId, MigrationReport, PageCount, PeerDisk, PeerMigrated,
    PeerMigration, PeerVolume, VmName, VolumeAt, VolumeUse,
};
use forkyard_volume_disks::private_name;
use futures::future::join_all;
use std::sync::Arc;

/// Snapshots kept that were sent to other hosts: each makes the way there shorter.
const KEPT: usize = 4;

/// Blocks that are sent ahead in any case, where the rest may be fetched: 64 MiB.
pub(crate) const SMALL: PageCount = PageCount(16 << 10);
/// Most blocks that are sent ahead because they were used of late: 16 MiB.
pub(crate) const HOT: PageCount = PageCount(4 << 10);

/// A volume of a VM on its way.
#[derive(Clone, Debug)]
pub(super) struct LeavingVolume {
    name: VmName,
    /// Name there.
    there: VmName,
    disk: LeavingDisk,
    /// The snapshot of which blocks were left here: the other host fetches them.
    left: Option<String>,
    /// The snapshot that the other host has, or is about to have.
    sent: Option<String>,
    /// That host had nothing of it before: it keeps nothing of it if the VM does not go there.
    is_new: bool,
}

/// Use that a VM makes of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LeavingDisk {
    /// Root disk.
    Root,
    /// A data disk with this serial number, which it writes.
    Written(VmName),
    /// A snapshot, which it reads as the data disk with this serial number.
    Shared(VmName, String),
}

/// A snapshot that is to be sent while the guest stands still.
#[derive(Debug)]
pub(super) struct Frozen {
    at: VolumeAt,
    there: VmName,
    since: Option<String>,
    /// Blocks that are sent, if not all are.
    hot: Option<Hot>,
}

impl LeavingVolume {
    fn of(name: &VmName, there: &VmName, disk: LeavingDisk) -> Self {
        Self {
            name: name.clone(),
            there: there.clone(),
            disk,
            left: None,
            sent: None,
            is_new: true,
        }
    }

    /// Volumes of a VM: its root disk first.
    pub fn all(record: &VmRecord) -> Result<Vec<Self>, HostError> {
        let root = match &record.volume {
            Some(VolumeUse::Written { volume, .. }) => {
                Some(Self::of(volume, volume, LeavingDisk::Root))
            }
            Some(VolumeUse::Below(_)) | None => None,
        };
        let data = record.data.iter().map(|disk| {
            Ok(match &disk.role {
                DataRole::Written { volume, .. } => {
                    let serial = LeavingDisk::Written(disk.name.clone());
                    Self::of(volume, volume, serial)
                }
                DataRole::Shared { at } => {
                    let there = private_name(record.id, &disk.name)?;
                    let serial = LeavingDisk::Shared(disk.name.clone(), at.snapshot.clone());
                    Self::of(&at.volume, &there, serial)
                }
                DataRole::Frozen { .. } => {
                    let text = format!("its data disk {} is not open", disk.name);
                    return Err(HostError::Broken(text));
                }
            })
        });
        root.map(Ok).into_iter().chain(data).collect()
    }

    /// The snapshot is kept: the other host fetches blocks of it.
    fn is_kept(&self, snapshot: &str) -> bool {
        self.left.as_deref() == Some(snapshot)
    }

    /// Sends what its VM writes of it.
    fn is_written(&self) -> bool {
        match self.disk {
            LeavingDisk::Root | LeavingDisk::Written(_) => true,
            LeavingDisk::Shared(..) => false,
        }
    }

    /// Name there, if it is the root disk.
    pub fn root(&self) -> Option<VmName> {
        (self.disk == LeavingDisk::Root).then(|| self.there.clone())
    }

    /// Data disk that it is.
    pub fn data(&self) -> Option<PeerDisk> {
        let (name, shared) = match &self.disk {
            LeavingDisk::Root => return None,
            LeavingDisk::Written(name) => (name, None),
            LeavingDisk::Shared(name, snapshot) => (name, Some(snapshot.clone())),
        };
        Some(PeerDisk {
            name: name.clone(),
            volume: self.there.clone(),
            shared,
        })
    }

    /// The snapshot that it is, if the VM only reads it.
    fn shared(&self) -> Option<Frozen> {
        let LeavingDisk::Shared(_, snapshot) = &self.disk else {
            return None;
        };
        Some(Frozen {
            at: VolumeAt {
                volume: self.name.clone(),
                snapshot: snapshot.clone(),
            },
            there: self.there.clone(),
            since: None,
            hot: None,
        })
    }

    /// The snapshot that it goes on from there.
    pub fn last(&self) -> Option<VolumeAt> {
        let snapshot = self.sent.clone().filter(|_| self.is_written())?;
        Some(VolumeAt {
            volume: self.there.clone(),
            snapshot,
        })
    }
}

impl Host {
    /// Sends all of the volumes that are its disks, or what the other host lacks of them.
    pub(super) async fn send_volumes_first(
        &self,
        leaving: &mut Leaving<'_>,
        disk: DiskTransfer,
        report: &mut MigrationReport,
    ) -> Result<(), HostError> {
        for volume in LeavingVolume::all(&leaving.vm.record())? {
            self.send_volume_first(leaving, (volume, disk), report)
                .await?;
        }
        Ok(())
    }

    async fn send_volume_first(
        &self,
        leaving: &mut Leaving<'_>,
        (mut volume, disk): (LeavingVolume, DiskTransfer),
        report: &mut MigrationReport,
    ) -> Result<(), HostError> {
        let (blockd, name) = (self.volumes.disks.blockd.clone(), volume.name.clone());
        let status = blocking(move || blockd.inspect(&name)).await?;
        if let Some(mirror) = status.mirrors.first() {
            return Err(VolumeError::Mirrored {
                volume: volume.name,
                host: mirror.host.clone(),
            }
            .into());
        }
        let names = status.snapshots.iter().map(|it| it.name.clone());
        let was_sent = |name: &String| name.starts_with(SENT) && volume.is_written();
        let sent: Vec<_> = names.filter(was_sent).collect();
        let record = leaving.vm.record();
        let asked = PeerVolume {
            migration: leaving.id,
            name: volume.there.clone(),
            volume: status.id.clone(),
            sent: sent.clone(),
            term: Some(self.known_term(&volume.name, &status.id)?),
            cpu: Some(self.cpu_of(&record.accel, record.cpu.as_ref())?),
            accel: record.accel,
            publish: record.publish,
        };
        let answer = self.step(leaving, PeerMigration::Volume(asked)).await?;
        let since = match answer {
            PeerMigrated::Since(since) => Some(since),
            PeerMigrated::Here
            | PeerMigrated::LandedTogether(_)
            | PeerMigrated::Cpu(_)
            | PeerMigrated::Kept(_)
            | PeerMigrated::Landed(_)
            | PeerMigrated::Ended => None,
        };
        let since = since.filter(|since| since.iter().all(|it| sent.contains(it)));
        let since = since.ok_or_else(|| {
            crate::remote::untold(leaving.peer().name(), "what it has of the volume")
        })?;
        // One for each host that has a copy, and those of migrations that a daemon did not survive.
        let older = &sent[..sent.len().saturating_sub(KEPT)];
        let needed = |name: &String| status.needs.iter().any(|it| it.snapshot == *name);
        let unneeded = older.iter().filter(|it| !needed(it));
        for snapshot in unneeded.filter(|it| since.as_ref() != Some(*it)) {
            self.drop_sent(VolumeAt {
                volume: volume.name.clone(),
                snapshot: snapshot.clone(),
            });
        }
        let whole = since.is_none().then_some(ByteCount(status.written));
        // A branch is sent as all that it reads as.
        let may_leave = volume.is_written() && volume.there == volume.name && status.base.is_none();
        volume.is_new = since.is_none();
        volume.sent = since;
        let shared = volume.shared();
        leaving.volumes.push(volume);
        let blocks = match shared {
            Some(frozen) => {
                self.stream(leaving, frozen).await?;
                PageCount(0)
            }
            None => {
                let last = leaving.volumes.len() - 1;
                let lacking = match whole {
                    Some(stored) => stored.pages(),
                    None => self.unsent_of(&leaving.volumes[last]).await?,
                };
                let leave = match disk {
                    DiskTransfer::Ahead => false,
                    DiskTransfer::OnDemand => true,
                    DiskTransfer::Auto => lacking > SMALL,
                };
                if leave && may_leave {
                    let left = self.send_hot(leaving, last).await?;
                    report.blocks_left += left.0;
                    report.blocks_ahead += lacking.0.saturating_sub(left.0);
                    return Ok(());
                }
                self.send_volume(leaving, last).await?
            }
        };
        report.blocks_ahead += whole.map_or(blocks.0, |stored| stored.pages().0);
        Ok(())
    }

    /// Counts the blocks of its volumes that the other host has not.
    pub(super) async fn unsent(&self, leaving: &Leaving<'_>) -> Result<PageCount, HostError> {
        let mut blocks = PageCount(0);
        for volume in &leaving.volumes {
            blocks.0 += self.unsent_of(volume).await?.0;
        }
        Ok(blocks)
    }

    async fn unsent_of(&self, volume: &LeavingVolume) -> Result<PageCount, HostError> {
        let Some(since) = volume.sent.as_ref().filter(|_| volume.is_written()) else {
            return Ok(PageCount(0));
        };
        let asked = Request::Changed {
            name: volume.name.to_string(),
            since: since.clone(),
        };
        let blockd = self.volumes.disks.blockd.clone();
        let answer = blocking(move || blockd.ask(&asked)).await?;
        Ok(PageCount(answer.blocks().unwrap_or_default()))
    }

    /// Sends what has been written to its volumes since they were sent. Returns how many blocks.
    pub(super) async fn send_volumes(
        &self,
        leaving: &mut Leaving<'_>,
    ) -> Result<PageCount, HostError> {
        let mut blocks = PageCount(0);
        for number in 0..leaving.volumes.len() {
            if leaving.volumes[number].is_written() {
                blocks.0 += self.send_volume(leaving, number).await?.0;
            }
        }
        Ok(blocks)
    }

    /// Sends the blocks that were used of late. The rest stays here, and is kept until the other
    /// host has all of it. Returns how many blocks that is.
    async fn send_hot(
        &self,
        leaving: &mut Leaving<'_>,
        number: usize,
    ) -> Result<PageCount, HostError> {
        let mut frozen = self.freeze(&mut leaving.volumes[number]).await?;
        let at = frozen.at.clone();
        leaving.volumes[number].left = Some(at.snapshot.clone());
        // Durable: a flush of the guest's there vouches for what it wrote here. And before that host
        // may lack any: it says itself when it does not any more.
        let kept = match self.volumes.disks.flush_volume(&at).await {
            Ok(()) => self.keep_for(&at, leaving.peer().name()).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = kept {
            let volume = &mut leaving.volumes[number];
            (volume.left, volume.sent) = (None, frozen.since);
            self.drop_sent(at);
            return Err(error);
        }
        frozen.hot = Some(Hot {
            most: usize::try_from(HOT.0).unwrap_or(usize::MAX),
            from: self.own_name(),
        });
        let former = frozen.since.clone();
        let left = self.stream(leaving, frozen).await?;
        self.drop_former(leaving.volumes[number].clone(), at, former);
        Ok(PageCount(left))
    }

    async fn send_volume(
        &self,
        leaving: &mut Leaving<'_>,
        number: usize,
    ) -> Result<PageCount, HostError> {
        let blocks = self.unsent_of(&leaving.volumes[number]).await?;
        let frozen = self.freeze(&mut leaving.volumes[number]).await?;
        let (at, former) = (frozen.at.clone(), frozen.since.clone());
        match self.stream(leaving, frozen).await {
            Ok(_) => {
                self.drop_former(leaving.volumes[number].clone(), at, former);
                Ok(blocks)
            }
            Err(error) => {
                leaving.volumes[number].sent = former;
                self.drop_sent(at);
                Err(error)
            }
        }
    }

    /// The VM stays here: nothing needs what was sent of its volumes, unless that host had a copy.
    pub(super) fn keep_volumes(&self, leaving: &mut Leaving<'_>) {
        for volume in leaving.volumes.drain(..).filter(LeavingVolume::is_written) {
            let sent = volume.sent.clone();
            let unused = sent.filter(|it| volume.is_new && !volume.is_kept(it));
            if let Some(snapshot) = unused {
                self.drop_sent(VolumeAt {
                    volume: volume.name,
                    snapshot,
                });
            }
        }
    }

    /// Takes the snapshots that its volumes go on from there. The guest stands still.
    pub(super) async fn freeze_last(
        &self,
        leaving: &mut Leaving<'_>,
        snapshot: &Snapshot,
        report: &mut MigrationReport,
    ) -> Result<Vec<Frozen>, HostError> {
        // What its own snapshot took of the volumes serves forks, and a copy that stays.
        if let Some(copy) = &mut leaving.copy {
            copy.take(snapshot.clone());
        } else if let Some(at) = snapshot.layout.disk.volume() {
            self.volumes.disks.drop_later(at.clone());
        }
        if leaving.copy.is_none() {
            self.volumes
                .disks
                .drop_data_later(snapshot.layout.data.clone());
        }
        report.blocks_last = self.unsent(leaving).await?.0;
        let mut frozen = Vec::new();
        for volume in leaving.volumes.iter_mut().filter(|it| it.is_written()) {
            frozen.push(self.freeze(volume).await?);
        }
        Ok(frozen)
    }

    /// Sends those. Whether they came the other host says by its answer to `Land`.
    pub(super) async fn send_last(&self, leaving: &Leaving<'_>, frozen: Vec<Frozen>) {
        let sent = frozen.into_iter().map(|frozen| async {
            let (at, former) = (frozen.at.clone(), frozen.since.clone());
            let of = leaving.volumes.iter().find(|it| it.name == at.volume);
            match self.stream(leaving, frozen).await {
                Ok(_) => {
                    if let Some(volume) = of {
                        self.drop_former(volume.clone(), at, former);
                    }
                }
                Err(error) => {
                    tracing::warn!(%at, error = &error as &dyn std::error::Error, "the last of a volume was not sent");
                }
            }
        });
        join_all(sent).await;
    }

    /// Drops the snapshot that the other host had before the one that has just come.
    fn drop_former(&self, volume: LeavingVolume, at: VolumeAt, former: Option<String>) {
        // What a move ended with says of the user's snapshots which are the same at both.
        let is_kept = |it: &String| volume.is_kept(it) || it.starts_with(SENT_ALL);
        if let Some(snapshot) = former.filter(|it| !is_kept(it)) {
            self.drop_sent(VolumeAt { snapshot, ..at });
        }
    }

    async fn freeze(&self, volume: &mut LeavingVolume) -> Result<Frozen, HostError> {
        let at = VolumeAt {
            volume: volume.name.clone(),
            snapshot: format!("{SENT}{}", ForkId::random()),
        };
        self.volumes.disks.freeze_volume(&at).await?;
        let since = volume.sent.replace(at.snapshot.clone());
        let there = volume.there.clone();
        let hot = None;
        Ok(Frozen {
            at,
            there,
            since,
            hot,
        })
    }

    /// Sends a snapshot, by what differs from one that is there. Returns how many blocks were left.
    async fn stream(&self, leaving: &Leaving<'_>, frozen: Frozen) -> Result<u64, HostError> {
        let Frozen {
            at,
            there,
            since,
            hot,
        } = frozen;
        let sending = Sending {
            at,
            there,
            since,
            hot,
            sent: Arc::default(),
        };
        self.stream_snapshot((leaving.peer(), leaving.id), sending)
            .await
    }
}
