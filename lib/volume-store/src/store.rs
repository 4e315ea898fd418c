//! One open volume.

use crate::{
    AtRest, BaseFacts, Held, Lacking, MirrorFacts, Need, StoreError, WhenAway, append::Appender,
    away::Away, base::Base, counts::Counters, files::Folder, heat::Heat, mirror::Mirrors,
    why::Transfers,
};
use forkyard_replicate::Knobs;
use forkyard_volume::{
    BLOCK_BYTES, Blocks, Change, Opening, Sequence, SnapshotId, Takeover, View, Volume, VolumeId,
    WriterEpoch,
};
use std::{
    collections::BTreeMap,
    fs::File,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
};

/// Open volume. Dropped, it is closed, and nothing is flushed.
///
/// Locks, in the order in which they are taken: `mirrors.receiving`, `upkeep`, `flushing`, `appender`,
/// `state`. `held` is taken to read it or to set it, and never kept while a stream comes in.
#[derive(Debug)]
pub struct Store {
    pub(crate) folder: Folder,
    pub(crate) name: String,
    /// Key file, if its blocks are encrypted.
    pub(crate) key: Option<PathBuf>,
    /// Snapshots below it, if it is a branch.
    pub(crate) base: Option<Base>,
    /// Blocks that are at other hosts.
    pub(crate) away: Arc<Away>,
    /// Needs of other hosts.
    pub(crate) needs: Mutex<Vec<Need>>,
    pub(crate) heat: Heat,
    /// Hosts that every flush waits for.
    pub(crate) mirrors: Arc<Mirrors>,
    /// Part that it has for another host.
    pub(crate) held: Mutex<Held>,
    /// Parameters of the law by which blocks are sent ahead.
    pub(crate) knobs: Mutex<Knobs>,
    /// Reasons for which blocks went.
    pub(crate) transfers: Transfers,
    pub(crate) counters: Counters,
    pub(crate) state: RwLock<State>,
    pub(crate) appender: Mutex<Appender>,
    /// Held while a flush is under way, so that none ends before what it found begun.
    pub(crate) flushing: Mutex<()>,
    /// Held while a checkpoint is stored or segments are emptied.
    pub(crate) upkeep: Mutex<()>,
    /// True once a flush has failed.
    pub(crate) failed: AtomicBool,
    /// Keeps other processes out.
    pub(crate) _lock: File,
}

/// State that reads need.
#[derive(Debug)]
pub(crate) struct State {
    pub volume: Volume,
    pub files: BTreeMap<Sequence, Arc<File>>,
}

/// Properties of a volume, for its users.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Name.
    pub name: String,
    /// Identity, the same on every host that has some of it.
    pub id: VolumeId,
    /// Size in bytes.
    pub size: u64,
    /// Epoch of the writer, or of the last one.
    pub epoch: WriterEpoch,
    /// State of the writer.
    pub opening: Opening,
    /// Number of the last write.
    pub last_version: u64,
    /// Bytes of blocks that were written and not discarded.
    pub written: u64,
    /// Segments of the log.
    pub segments: usize,
    /// Snapshots, oldest first.
    pub snapshots: Vec<SnapshotFacts>,
    /// Key file, if its blocks are encrypted.
    pub key: Option<PathBuf>,
    /// Snapshots below it, if it is a branch.
    pub base: Option<BaseFacts>,
    /// Parameters of the law by which blocks are sent ahead.
    pub knobs: Knobs,
    /// Amounts of it that are at other hosts.
    pub lacking: Vec<Lacking>,
    /// Hosts that fetch blocks of it from here.
    pub needs: Vec<Need>,
    /// Hosts that every flush waits for, and what they hold.
    pub mirrors: Vec<MirrorFacts>,
    /// Action of flushes while one of them is away.
    pub when_away: WhenAway,
    /// Part that it has for another host.
    pub held: Held,
}

impl Facts {
    /// Returns the identity, as 32 hexadecimal digits.
    pub fn id_text(&self) -> String {
        crate::stream::hex(self.id)
    }
}

/// Properties of a snapshot, for its users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFacts {
    /// Name.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
}

/// Bytes of so many blocks.
pub(crate) fn bytes(blocks: Blocks) -> u64 {
    blocks.0.saturating_mul(BLOCK_BYTES as u64)
}

/// Blocks of so many bytes, if that is a size that a volume can have.
pub(crate) fn blocks(size: u64) -> Result<Blocks, StoreError> {
    /// Half of what the log can hold.
    const MOST: u64 = 8 << 40;
    match size.is_multiple_of(BLOCK_BYTES as u64) && size > 0 && size <= MOST {
        true => Ok(Blocks(size / BLOCK_BYTES as u64)),
        false => Err(StoreError::Size(size)),
    }
}

impl Store {
    pub(crate) fn state(&self) -> RwLockReadGuard<'_, State> {
        // A panic leaves it as it was before a change or after it.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn appender(&self) -> MutexGuard<'_, Appender> {
        self.appender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match self.failed.load(Ordering::Acquire) {
            true => Err(StoreError::Failed),
            false => Ok(()),
        }
    }

    /// Identity, as 32 hexadecimal digits.
    pub fn id_text(&self) -> String {
        crate::stream::hex(self.state().volume.id())
    }

    /// Name of the volume.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if its blocks are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.key.is_some()
    }

    /// Protection of what is made of its contents on this host: a key of its own.
    pub(crate) fn alike(&self) -> AtRest {
        match self.is_encrypted() {
            true => AtRest::Encrypted { key: None },
            false => AtRest::Plain,
        }
    }

    /// Size in bytes of the volume or a snapshot; `None` if that is gone.
    pub fn size(&self, view: View) -> Option<u64> {
        self.state().volume.map(view).map(|it| bytes(it.blocks()))
    }

    /// Epoch and state of the writer.
    pub fn writer(&self) -> (WriterEpoch, Opening) {
        let state = self.state();
        (state.volume.epoch(), state.volume.opening())
    }

    /// Finds a snapshot.
    pub fn snapshot_called(&self, name: &str) -> Result<SnapshotId, StoreError> {
        let state = self.state();
        let found = state.volume.snapshots().find(|(_, it)| it.name == name);
        found
            .map(|(id, _)| id)
            .ok_or_else(|| StoreError::UnknownSnapshot {
                volume: self.name.clone(),
                snapshot: name.to_owned(),
            })
    }

    /// Names of the snapshots, oldest first.
    pub fn snapshot_names(&self) -> Vec<String> {
        let state = self.state();
        let names = state.volume.snapshots().map(|(_, it)| it.name.clone());
        names.collect()
    }

    /// Tells what there is to tell.
    pub fn facts(&self) -> Facts {
        // A copy, which shares the map: counting takes a while, and writes go on meanwhile.
        let (volume, segments) = {
            let state = self.state();
            (state.volume.clone(), state.files.len())
        };
        let map = volume.map(View::Current);
        let written = map.map_or(0, |map| {
            let stored = |it: &forkyard_volume::MapEntry| match it.content {
                forkyard_volume::Content::Slot(_) => true,
                forkyard_volume::Content::Zero | forkyard_volume::Content::Away => false,
            };
            map.entries().filter(|(_, it)| stored(it)).count() as u64
        });
        let snapshots = volume.snapshots().map(|(_, it)| SnapshotFacts {
            name: it.name.clone(),
            size: bytes(it.map.blocks()),
        });
        Facts {
            name: self.name.clone(),
            id: volume.id(),
            size: bytes(volume.blocks()),
            epoch: volume.epoch(),
            opening: volume.opening(),
            last_version: volume.last_version().map_or(0, |it| it.number()),
            written: bytes(Blocks(written)),
            segments,
            snapshots: snapshots.collect(),
            key: self.key.clone(),
            base: self.base.as_ref().map(Base::facts),
            knobs: self.knobs(),
            lacking: self.lacking(),
            needs: self.needs(),
            mirrors: self.mirrors(),
            when_away: self.mirror_plan().away,
            held: self.held(),
        }
    }

    /// Begins a writer, durably, and returns its epoch. A former one is fenced, if that is allowed.
    pub fn open_writer(&self, takeover: Takeover) -> Result<WriterEpoch, StoreError> {
        let mut appender = self.appender();
        let next = self.state().volume.epoch().next();
        let epoch = next.ok_or(forkyard_volume::ChangeRefusal::Exhausted("epochs"))?;
        self.append(&mut appender, &[Change::Open { epoch, takeover }])?;
        drop(appender);
        self.flush()?;
        Ok(epoch)
    }

    /// Ends the writer, durably.
    pub fn close_writer(&self, epoch: WriterEpoch) -> Result<(), StoreError> {
        self.control(Change::Close { epoch })
    }

    /// Keeps everything as it is now, durably.
    pub fn snapshot(&self, name: &str) -> Result<(), StoreError> {
        self.control(Change::Snapshot { name })
    }

    /// Keeps everything as it is now. Can be read at once, and is durable with the next flush.
    pub fn snapshot_now(&self, name: &str) -> Result<(), StoreError> {
        let mut appender = self.appender();
        self.append(&mut appender, &[Change::Snapshot { name }])?;
        Ok(())
    }

    /// Removes a snapshot, durably.
    pub fn drop_snapshot(&self, id: SnapshotId) -> Result<(), StoreError> {
        self.control(Change::Drop { id })
    }

    /// Changes the size, durably. Refused if it shrinks what is being written.
    pub fn resize(&self, size: u64) -> Result<(), StoreError> {
        self.refuse_branch("resized")?;
        let blocks = blocks(size)?;
        self.control(Change::Resize { blocks })
    }

    fn control(&self, change: Change<'_>) -> Result<(), StoreError> {
        let mut appender = self.appender();
        self.append(&mut appender, &[change])?;
        drop(appender);
        self.flush()
    }
}
