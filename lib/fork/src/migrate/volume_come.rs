//! The volumes of a VM that comes: snapshots of them, taken from streams.
//!
//! | fails | then |
//! |---|---|
//! | a stream | the sender is told, and begins it anew or gives the migration up |
//! | the migration | what was new here goes; a copy is as it was, by the next stream |
//! | the daemon | the next one undoes what arrived, unless its VM is recorded |

use crate::{
    Host, HostError, blocking,
    volumes::{SENT, SENT_ALL},
};
use bytes::Bytes;
use forkyard_types::{
    DataDisk, DataRole, ForkId, PeerDisk, PeerMigrated, SentVolume, VmName, VolumeAt, VolumeUse,
};
use forkyard_vm::lock;
use std::{
    collections::BTreeMap,
    io::Write as _,
    sync::{Mutex, Weak},
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinHandle,
    time::{sleep, timeout},
};

/// Pieces of a stream on their way through this daemon.
const UNDER_WAY: usize = 4;
/// A volume of which nothing was heard for so long is given up, if no machine waits for it.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Between two looks for those.
const LOOK: Duration = Duration::from_secs(30);

/// Volumes that are on their way here.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    arrivals: Mutex<BTreeMap<(ForkId, VmName), Arrival>>,
    /// Told when a snapshot has come, or cannot.
    came: Notify,
}

#[derive(Debug)]
struct Arrival {
    /// The snapshot that is here.
    here: Option<String>,
    /// The one that was coming did not.
    failed: bool,
    /// No VM comes with it, and snapshots of its user come along.
    is_alone: bool,
    heard: Instant,
}

/// A stream that comes in. Dropped before its end, nothing was taken of it.
#[derive(Debug)]
pub struct IncomingVolume {
    host: Weak<Host>,
    migration: ForkId,
    at: VolumeAt,
    pieces: mpsc::Sender<Bytes>,
    taken: JoinHandle<Result<(), HostError>>,
}

impl Volumes {
    pub fn expect(&self, migration: ForkId, volume: &VmName, here: Option<String>) {
        self.insert(migration, volume, (here, false));
    }

    /// Expects a volume without a VM.
    pub fn expect_alone(&self, migration: ForkId, volume: &VmName, here: Option<String>) {
        self.insert(migration, volume, (here, true));
    }

    fn insert(&self, migration: ForkId, volume: &VmName, (here, is_alone): (Option<String>, bool)) {
        let arrival = Arrival {
            here,
            failed: false,
            is_alone,
            heard: Instant::now(),
        };
        lock(&self.arrivals).insert((migration, volume.clone()), arrival);
    }

    fn is_alone(&self, migration: ForkId, volume: &VmName) -> bool {
        let arrivals = lock(&self.arrivals);
        let arrival = arrivals.get(&(migration, volume.clone()));
        arrival.is_some_and(|it| it.is_alone)
    }

    pub fn forget(&self, migration: ForkId) {
        lock(&self.arrivals).retain(|(other, _), _| *other != migration);
        self.came.notify_waiters();
    }

    fn change(&self, migration: ForkId, volume: &VmName, change: impl FnOnce(&mut Arrival)) {
        if let Some(arrival) = lock(&self.arrivals).get_mut(&(migration, volume.clone())) {
            arrival.heard = Instant::now();
            change(arrival);
        }
    }

    /// This volume is on its way by a migration that is not over.
    pub fn comes(&self, migration: ForkId, volume: &VmName) -> bool {
        lock(&self.arrivals).contains_key(&(migration, volume.clone()))
    }

    /// Time since anything was heard of volumes of a migration; none if none comes by it.
    pub fn quiet(&self, migration: ForkId) -> Option<Duration> {
        let arrivals = lock(&self.arrivals);
        let of_it = arrivals.iter().filter(|((it, _), _)| *it == migration);
        of_it.map(|(_, arrival)| arrival.heard.elapsed()).min()
    }
}

impl Host {
    /// Begins the writer of a machine that will go on with a volume that comes.
    pub(super) async fn open_arriving(
        &self,
        migration: ForkId,
        volume: &VmName,
    ) -> Result<VolumeUse, HostError> {
        self.arriving(migration, volume)?;
        let (blockd, name) = (self.volumes.disks.blockd.clone(), volume.clone());
        let epoch = blocking(move || blockd.open(&name)).await?;
        Ok(VolumeUse::Written {
            volume: volume.clone(),
            epoch: Some(epoch),
        })
    }

    /// Returns the data disks of a machine that will go on with volumes that come. Those that it
    /// writes are not open yet.
    pub(super) fn arriving_data(
        &self,
        migration: ForkId,
        disks: &[PeerDisk],
    ) -> Result<Vec<DataDisk>, HostError> {
        if disks.len() > DataDisk::MOST {
            let text = format!("{} data disks: {} at most", disks.len(), DataDisk::MOST);
            return Err(HostError::Invalid(text));
        }
        let arriving = disks.iter().map(|disk| {
            let volume = self.arriving(migration, &disk.volume)?.volume;
            let role = match disk.shared.clone() {
                Some(snapshot) => DataRole::Shared {
                    at: VolumeAt { volume, snapshot },
                },
                None => DataRole::Written {
                    volume,
                    epoch: None,
                    over: Vec::new(),
                },
            };
            Ok(DataDisk {
                name: disk.name.clone(),
                role,
            })
        });
        arriving.collect()
    }

    /// Begins to take a snapshot of a volume that comes. Cancel-safe.
    pub fn receive_volume(
        &self,
        migration: ForkId,
        sent: SentVolume,
    ) -> Result<IncomingVolume, HostError> {
        let SentVolume { volume, snapshot } = sent;
        let copy = self.arriving(migration, &volume)?;
        // What a VM reads is called as it is where it comes from.
        let is_alone = self.incoming.volumes.is_alone(migration, &volume);
        if !snapshot.starts_with(SENT) && !copy.is_new && !is_alone {
            let why = format!("{snapshot:?} is no snapshot that is sent");
            return Err(HostError::Invalid(why));
        }
        // Its writer, if a machine waits already.
        let mut records = self.parts.store.vms()?.into_iter();
        let written = records.find_map(|vm| match vm.volume {
            Some(VolumeUse::Written { volume: it, epoch }) if it == volume => epoch,
            _ => {
                let mut data = vm.data.iter().filter_map(DataDisk::written);
                data.find(|(it, _)| **it == volume)?.1
            }
        });
        let arrivals = &self.incoming.volumes;
        arrivals.change(migration, &volume, |arrival| arrival.failed = false);
        let (pieces, mut arriving) = mpsc::channel::<Bytes>(UNDER_WAY);
        let (blockd, name) = (self.volumes.disks.blockd.clone(), volume.clone());
        let taken = tokio::spawn(blocking(move || {
            let received = blockd.receive(&name, written, |to| {
                while let Some(piece) = arriving.blocking_recv() {
                    to.write_all(&piece)?;
                }
                Ok(())
            });
            Ok(received?)
        }));
        Ok(IncomingVolume {
            host: self.handle(),
            migration,
            at: VolumeAt { volume, snapshot },
            pieces,
            taken,
        })
    }

    /// Waits until a snapshot of a volume has come.
    pub(super) async fn volume_came(
        &self,
        migration: ForkId,
        at: &VolumeAt,
    ) -> Result<(), HostError> {
        let volumes = &self.incoming.volumes;
        let key = (migration, at.volume.clone());
        // Patience begins now: memory may have taken long since the last snapshot.
        volumes.change(migration, &at.volume, |_| ());
        loop {
            let mut came = std::pin::pin!(volumes.came.notified());
            came.as_mut().enable();
            let quiet = match lock(&volumes.arrivals).get(&key) {
                Some(arrival) if arrival.here.as_ref() == Some(&at.snapshot) => return Ok(()),
                Some(arrival) if !arrival.failed => arrival.heard.elapsed(),
                Some(_) | None => self.parts.options.patience,
            };
            if quiet >= self.parts.options.patience {
                let what = format!("snapshot {at} of its volume");
                let silent = self.parts.options.patience;
                return Err(HostError::NotCome { what, silent });
            }
            // Each piece that comes is progress, without a notification.
            let _ = timeout(self.parts.options.patience - quiet, came).await;
        }
    }

    /// Gives a volume up of which nothing more is heard before a machine waits for it.
    pub(crate) fn forget_volume_later(&self, migration: ForkId) {
        let host = self.handle();
        tokio::spawn(async move {
            loop {
                sleep(LOOK).await;
                let Some(host) = host.upgrade() else { return };
                let Some(quiet) = host.incoming.volumes.quiet(migration) else {
                    return;
                };
                if quiet > FORGOTTEN && !host.incoming.knows(migration) {
                    tracing::warn!(%migration, "volume given up: nothing was heard of it");
                    return host.give_up_volumes(migration).await;
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
            volumes.change(self.migration, &self.at.volume, |_| ());
        }
        self.pieces.send(piece).await.is_ok()
    }

    /// Waits until all of it is durable here. If cancelled, it is all the same.
    pub async fn finish(self) -> Result<PeerMigrated, HostError> {
        let Self {
            host,
            migration,
            at: VolumeAt { volume, snapshot },
            pieces,
            taken,
        } = self;
        drop(pieces);
        let taken = taken.await;
        let taken =
            taken.map_err(|error| HostError::given_up("the snapshot was not taken", &error))?;
        let host = host.upgrade().ok_or(HostError::Closing)?;
        let volumes = &host.incoming.volumes;
        let is_of_move = snapshot.starts_with(SENT_ALL);
        let mut former = None;
        volumes.change(migration, &volume, |arrival| match taken {
            // One of a user's stays.
            Ok(()) if arrival.is_alone && !snapshot.starts_with(SENT) => {}
            Ok(()) => former = arrival.here.replace(snapshot),
            Err(_) => arrival.failed = true,
        });
        volumes.came.notify_waiters();
        // What a move ended with stays until the next one has.
        let is_over = is_of_move || !former.as_ref().is_some_and(|it| it.starts_with(SENT_ALL));
        if let Some(snapshot) = former.filter(|_| is_over) {
            host.drop_sent(VolumeAt { volume, snapshot });
        }
        taken.map(|()| PeerMigrated::Here)
    }
}
