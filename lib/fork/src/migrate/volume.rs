//! The volume of a VM that moves: its snapshots, as streams.
//!
//! Each carries what differs from the one before, which both hosts keep until the next has come.
//! The last is taken while the guest stands still; it and `Land` are under way at the same time,
//! and the guest goes on once both are there.

use super::leave::Leaving;
use crate::{Host, HostError, blocking::blocking, snapshot::Snapshot, vm::lock, volumes::SENT};
use bytes::Bytes;
use forkyard_blockd::Request;
use forkyard_types::{
    ForkId, MigrationReport, PageCount, PeerMigrated, PeerMigration, PeerVolume, VmName, VolumeAt,
    VolumeUse,
};
use std::{
    collections::BTreeMap,
    io::Write as _,
    sync::{Mutex, Weak},
    time::{Duration, Instant},
};
use tokio::{
    net::UnixStream,
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::{sleep, timeout},
};

/// Snapshots kept that were sent to other hosts: each makes the way there shorter.
const KEPT: usize = 4;
/// Pieces of a stream on their way through this daemon.
const UNDER_WAY: usize = 4;
/// A volume of which nothing was heard for so long is given up, if no machine waits for it.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Between two looks for those.
const LOOK: Duration = Duration::from_secs(30);

/// The volume of a VM on its way.
#[derive(Debug)]
pub(super) struct LeavingVolume {
    pub name: VmName,
    /// The snapshot that the other host has, or is about to have.
    pub sent: Option<String>,
    /// That host had nothing of it before: it keeps nothing of it if the VM does not go there.
    is_new: bool,
}

/// A snapshot that is to be sent while the guest stands still.
#[derive(Debug)]
pub(super) struct Frozen {
    at: VolumeAt,
    since: Option<String>,
}

/// Volumes that are on their way here.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    arrivals: Mutex<BTreeMap<ForkId, Arrival>>,
    /// Told when a snapshot has come, or cannot.
    came: Notify,
}

#[derive(Debug)]
struct Arrival {
    /// The snapshot that is here.
    here: Option<String>,
    /// The one that was coming did not.
    failed: bool,
    heard: Instant,
}

/// A stream that comes in. Dropped before its end, nothing was taken of it.
#[derive(Debug)]
pub struct IncomingVolume {
    host: Weak<Host>,
    migration: ForkId,
    volume: VmName,
    snapshot: String,
    pieces: mpsc::Sender<Bytes>,
    taken: JoinHandle<Result<(), HostError>>,
}

impl Volumes {
    pub fn expect(&self, migration: ForkId, here: Option<String>) {
        let arrival = Arrival {
            here,
            failed: false,
            heard: Instant::now(),
        };
        lock(&self.arrivals).insert(migration, arrival);
    }

    pub fn forget(&self, migration: ForkId) {
        lock(&self.arrivals).remove(&migration);
        self.came.notify_waiters();
    }

    fn change(&self, migration: ForkId, change: impl FnOnce(&mut Arrival)) {
        if let Some(arrival) = lock(&self.arrivals).get_mut(&migration) {
            arrival.heard = Instant::now();
            change(arrival);
        }
    }
}

impl Host {
    /// Sends all of its volume, if its disk is one, or what the other host lacks of it.
    pub(super) async fn send_volume_first(
        &self,
        leaving: &mut Leaving<'_>,
        report: &mut MigrationReport,
    ) -> Result<(), HostError> {
        let Some(VolumeUse::Written { volume, .. }) = leaving.vm.record().volume else {
            return Ok(());
        };
        let (blockd, name) = (self.blockd.clone(), volume.clone());
        let status = blocking(move || blockd.inspect(&name)).await?;
        let names = status.snapshots.into_iter().map(|it| it.name);
        let sent: Vec<_> = names.filter(|name| name.starts_with(SENT)).collect();
        let asked = PeerVolume {
            migration: leaving.id,
            name: volume.clone(),
            volume: status.id,
            sent: sent.clone(),
            accel: leaving.vm.record().accel,
            cpu: Some(
                self.engine
                    .cpu(crate::accel_of(&leaving.vm.record().accel))?,
            ),
        };
        let answer = self.step(leaving, PeerMigration::Volume(asked)).await?;
        let since = match answer {
            PeerMigrated::Since(since) => Some(since),
            PeerMigrated::Here | PeerMigrated::Landed(_) | PeerMigrated::Ended => None,
        };
        let since = since.filter(|since| since.iter().all(|it| sent.contains(it)));
        let since = since.ok_or_else(|| {
            let why = "that host did not say what it has of the volume";
            HostError::Invalid(why.into())
        })?;
        // One for each host that has a copy, and those of migrations that a daemon did not survive.
        let older = &sent[..sent.len().saturating_sub(KEPT)];
        for snapshot in older.iter().filter(|it| since.as_ref() != Some(*it)) {
            self.drop_sent(VolumeAt {
                volume: volume.clone(),
                snapshot: snapshot.clone(),
            });
        }
        let is_whole = since.is_none();
        leaving.volume = Some(LeavingVolume {
            name: volume,
            sent: since,
            is_new: is_whole,
        });
        let blocks = self.send_volume(leaving).await?;
        report.blocks_ahead += match is_whole {
            true => forkyard_types::ByteCount(status.written).pages().0,
            false => blocks.0,
        };
        Ok(())
    }

    /// Counts the blocks of its volume that the other host has not.
    pub(super) async fn unsent(&self, leaving: &Leaving<'_>) -> Result<PageCount, HostError> {
        let Some(LeavingVolume {
            name,
            sent: Some(since),
            ..
        }) = &leaving.volume
        else {
            return Ok(PageCount(0));
        };
        let asked = Request::Changed {
            name: name.to_string(),
            since: since.clone(),
        };
        let blockd = self.blockd.clone();
        let answer = blocking(move || blockd.ask(&asked)).await?;
        Ok(PageCount(answer.blocks().unwrap_or_default()))
    }

    /// Sends what has been written to its volume since it was sent. Returns how many blocks.
    pub(super) async fn send_volume(
        &self,
        leaving: &mut Leaving<'_>,
    ) -> Result<PageCount, HostError> {
        let blocks = self.unsent(leaving).await?;
        let Some(frozen) = self.freeze(leaving).await? else {
            return Ok(blocks);
        };
        let (at, former) = (frozen.at.clone(), frozen.since.clone());
        match self.stream(leaving, frozen).await {
            Ok(()) => {
                self.drop_former(at, former);
                Ok(blocks)
            }
            Err(error) => {
                if let Some(volume) = &mut leaving.volume {
                    volume.sent = former;
                }
                self.drop_sent(at);
                Err(error)
            }
        }
    }

    /// The VM stays here: nothing needs what was sent of its volume, unless that host had a copy.
    pub(super) fn keep_volume(&self, leaving: &mut Leaving<'_>) {
        if let Some(LeavingVolume {
            name,
            sent: Some(snapshot),
            is_new: true,
        }) = leaving.volume.take()
        {
            self.drop_sent(VolumeAt {
                volume: name,
                snapshot,
            });
        }
    }

    /// Takes the snapshot that its volume goes on from there. The guest stands still.
    pub(super) async fn freeze_last(
        &self,
        leaving: &mut Leaving<'_>,
        snapshot: &Snapshot,
        report: &mut MigrationReport,
    ) -> Result<Option<Frozen>, HostError> {
        // What its own snapshot took of the volume serves forks.
        if let Some(at) = snapshot.layout.disk.volume() {
            self.drop_later(at.clone());
        }
        report.blocks_last = self.unsent(leaving).await?.0;
        self.freeze(leaving).await
    }

    /// Sends that. Whether it came the other host says by its answer to `Land`.
    pub(super) async fn send_last(&self, leaving: &Leaving<'_>, frozen: Option<Frozen>) {
        let Some(frozen) = frozen else { return };
        let (at, former) = (frozen.at.clone(), frozen.since.clone());
        match self.stream(leaving, frozen).await {
            Ok(()) => self.drop_former(at, former),
            Err(error) => {
                tracing::warn!(%at, error = &error as &dyn std::error::Error, "the last of a volume was not sent");
            }
        }
    }

    /// Drops the snapshot that the other host had before the one that has just come.
    fn drop_former(&self, at: VolumeAt, former: Option<String>) {
        if let Some(snapshot) = former {
            self.drop_sent(VolumeAt { snapshot, ..at });
        }
    }

    async fn freeze(&self, leaving: &mut Leaving<'_>) -> Result<Option<Frozen>, HostError> {
        let Some(volume) = &mut leaving.volume else {
            return Ok(None);
        };
        let at = VolumeAt {
            volume: volume.name.clone(),
            snapshot: format!("{SENT}{}", ForkId::random()),
        };
        self.freeze_volume(&at).await?;
        let since = volume.sent.replace(at.snapshot.clone());
        Ok(Some(Frozen { at, since }))
    }

    /// Sends a snapshot, by what differs from one that is there.
    async fn stream(&self, leaving: &Leaving<'_>, frozen: Frozen) -> Result<(), HostError> {
        let Frozen { at, since } = frozen;
        let failed = HostError::io("make", std::path::Path::new("a pair of sockets"));
        let pair = std::os::unix::net::UnixStream::pair().and_then(|(to, from)| {
            from.set_nonblocking(true)?;
            Ok((to, UnixStream::from_std(from)?))
        });
        let (to, from) = pair.map_err(failed)?;
        let (blockd, sent) = (self.blockd.clone(), at.clone());
        let read = tokio::spawn(blocking(move || blockd.send(&sent, since, to)));
        let answer = { leaving.peer() }
            .volume(leaving.id, at.snapshot, from)
            .await;
        // It is told of first: that host only sees that it was cut off.
        let read = read.await.map_err(|_| HostError::Closing)?;
        let answer = answer.map_err(|source| HostError::Peer {
            peer: leaving.peer().name().to_owned(),
            source,
        });
        match (read, answer) {
            (_, Ok(_)) => Ok(()),
            // It does not read on where it has found something wrong.
            (Err(error), Err(refused)) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "stream not sent to its end"
                );
                Err(refused)
            }
            (Ok(()), Err(error)) => Err(error),
        }
    }

    /// Begins the writer of a machine that will go on with a volume that comes.
    pub(super) async fn open_arriving(
        &self,
        migration: ForkId,
        volume: &VmName,
    ) -> Result<VolumeUse, HostError> {
        if self.arriving(migration)?.volume != *volume {
            let why = format!("volume {volume} does not come by this migration");
            return Err(HostError::Invalid(why));
        }
        let (blockd, name) = (self.blockd.clone(), volume.clone());
        let epoch = blocking(move || blockd.open(&name)).await?;
        Ok(VolumeUse::Written {
            volume: volume.clone(),
            epoch: Some(epoch),
        })
    }

    /// Begins to take a snapshot of a volume that comes. Cancel-safe.
    pub fn receive_volume(
        &self,
        migration: ForkId,
        snapshot: String,
    ) -> Result<IncomingVolume, HostError> {
        let volume = self.arriving(migration)?.volume;
        if !snapshot.starts_with(SENT) {
            let why = format!("{snapshot:?} is no snapshot that is sent");
            return Err(HostError::Invalid(why));
        }
        // Its writer, if a machine waits already.
        let written = self
            .store
            .vms()?
            .into_iter()
            .find_map(|vm| match vm.volume {
                Some(VolumeUse::Written { volume: it, epoch }) if it == volume => epoch,
                _ => None,
            });
        let arrivals = &self.incoming.volumes;
        arrivals.change(migration, |arrival| arrival.failed = false);
        let (pieces, mut arriving) = mpsc::channel::<Bytes>(UNDER_WAY);
        let (blockd, name) = (self.blockd.clone(), volume.clone());
        let taken = tokio::spawn(blocking(move || {
            blockd.receive(&name, written, |to| {
                while let Some(piece) = arriving.blocking_recv() {
                    to.write_all(&piece)?;
                }
                Ok(())
            })
        }));
        Ok(IncomingVolume {
            host: self.handle(),
            migration,
            volume,
            snapshot,
            pieces,
            taken,
        })
    }

    /// Waits until a snapshot of a volume has come.
    pub(super) async fn volume_came(
        &self,
        migration: ForkId,
        snapshot: &str,
    ) -> Result<(), HostError> {
        let volumes = &self.incoming.volumes;
        // Patience begins now: memory may have taken long since the last snapshot.
        volumes.change(migration, |_| ());
        loop {
            let mut came = std::pin::pin!(volumes.came.notified());
            came.as_mut().enable();
            let quiet = match lock(&volumes.arrivals).get(&migration) {
                Some(arrival) if arrival.here.as_deref() == Some(snapshot) => return Ok(()),
                Some(arrival) if !arrival.failed => arrival.heard.elapsed(),
                Some(_) | None => self.options.patience,
            };
            if quiet >= self.options.patience {
                let why = format!("snapshot {snapshot} of its volume did not come");
                return Err(HostError::Invalid(why));
            }
            // Each piece that comes is progress, without a notification.
            let _ = timeout(self.options.patience - quiet, came).await;
        }
    }

    /// Gives a volume up of which nothing more is heard before a machine waits for it.
    pub(crate) fn forget_volume_later(&self, migration: ForkId) {
        let host = self.handle();
        tokio::spawn(async move {
            loop {
                sleep(LOOK).await;
                let Some(host) = host.upgrade() else { return };
                let heard = match lock(&host.incoming.volumes.arrivals).get(&migration) {
                    Some(arrival) => arrival.heard.elapsed(),
                    None => return,
                };
                if heard > FORGOTTEN && !host.incoming.knows(migration) {
                    tracing::warn!(%migration, "volume given up: nothing was heard of it");
                    return host.give_up_volume(migration).await;
                }
            }
        });
    }
}

impl IncomingVolume {
    /// Takes the next piece; false if no more is wanted. Cancel-safe.
    pub async fn push(&self, piece: Bytes) -> bool {
        if let Some(host) = self.host.upgrade() {
            let volumes = &host.incoming.volumes;
            volumes.change(self.migration, |_| ());
        }
        self.pieces.send(piece).await.is_ok()
    }

    /// Waits until all of it is durable here. If cancelled, it is all the same.
    pub async fn finish(self) -> Result<PeerMigrated, HostError> {
        let Self {
            host,
            migration,
            volume,
            snapshot,
            pieces,
            taken,
        } = self;
        drop(pieces);
        let taken = taken.await.map_err(|_| HostError::Closing)?;
        let host = host.upgrade().ok_or(HostError::Closing)?;
        let volumes = &host.incoming.volumes;
        let mut former = None;
        volumes.change(migration, |arrival| match taken {
            Ok(()) => former = arrival.here.replace(snapshot),
            Err(_) => arrival.failed = true,
        });
        volumes.came.notify_waiters();
        if let Some(snapshot) = former {
            host.drop_sent(VolumeAt { volume, snapshot });
        }
        taken.map(|()| PeerMigrated::Here)
    }
}
