//! Opening: recovery from the files, and making new ones.

use crate::{
    Store, StoreError,
    append::Appender,
    away::Away,
    counts::Counters,
    encryption::{Encryption, Keys},
    files::Folder,
    heat::Heat,
    hold,
    mirror::{self, Mirrors},
    needs,
    store::State,
    why::{self, Transfers},
};
use forkyard_volume::{
    Recovered, Recovery, SEGMENT_HEADER, SegmentNeed, Sequence, SlotIndex, Tail, Volume,
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufReader, Read, Seek, SeekFrom},
    path::Path,
    sync::{Arc, Mutex, RwLock, atomic::AtomicBool},
};

impl Store {
    /// Makes the files of a new volume in an empty folder.
    pub(crate) fn make(folder: &Path, volume: &Volume) -> Result<(), StoreError> {
        Folder(folder.to_owned()).store_checkpoint(&volume.checkpoint(&[]))
    }

    /// Opens a volume, and cuts off what a crash has left behind its log.
    pub(crate) fn recover(folder: &Path, name: &str, keys: &Keys) -> Result<Self, StoreError> {
        let folder = Folder(folder.to_owned());
        let lock = folder.lock()?;
        let lock = lock.ok_or_else(|| StoreError::InUse(name.to_owned()))?;
        let path = folder.checkpoint();
        let checkpoint = fs::read(&path).map_err(|e| StoreError::io("read", path, e))?;
        let mut recovery = Recovery::begin(&checkpoint)?;
        // Before anything is changed.
        let encryption = Encryption::of(&folder)?;
        let cipher = match (&encryption, recovery.volume().geometry().is_sealed()) {
            (Some(encryption), true) => Some(encryption.unlock(keys, name)?),
            (None, false) => None,
            (Some(_), false) | (None, true) => return Err(StoreError::Encryption(name.to_owned())),
        };
        let present = folder.segments()?;
        let (mut files, mut strays) = (BTreeMap::new(), Vec::new());
        let mut replayed = 0;
        for sequence in present.keys().copied() {
            let wanted = recovery.wants(sequence);
            if wanted == SegmentNeed::Stray {
                strays.push(sequence);
                continue;
            }
            let file = folder.open(sequence)?;
            if let SegmentNeed::From(index) = wanted {
                let read = replay(&mut recovery, sequence, &file, index);
                replayed +=
                    read.map_err(|e| StoreError::io("read", folder.segment(sequence), e))??;
                // What was only in the kernel's memory counts as flushed from here on.
                let synced = file.sync_all();
                synced.map_err(|e| StoreError::io("flush", folder.segment(sequence), e))?;
            }
            files.insert(sequence, file);
        }
        let Recovered { mut volume, tail } = recovery.finish(|it| files.contains_key(&it))?;
        let geometry = volume.geometry();
        let last = match tail {
            Tail::Segments(last) => last,
            Tail::At(at) => {
                let path = folder.segment(at.sequence);
                let file = files.get(&at.sequence);
                let file = file.ok_or(forkyard_volume::Damage::MissingSegment(at.sequence))?;
                let length = file.metadata().map(|it| it.len());
                let cut = length.and_then(|length| match length > at.offset(geometry) {
                    true => file
                        .set_len(at.offset(geometry))
                        .and_then(|()| file.sync_all()),
                    false => Ok(()),
                });
                cut.map_err(|e| StoreError::io("cut", path, e))?;
                at.sequence
            }
        };
        for sequence in files
            .split_off(&Sequence(last.0 + 1))
            .into_keys()
            .chain(strays)
        {
            folder.remove(sequence)?;
        }
        folder.sync()?;
        volume.mark_flushed(volume.next_lsn());
        if let Some(cipher) = cipher {
            volume.unlock(cipher);
        }
        let mut appender = Appender::default();
        appender.active = files.get(&last).map(|file| (last, Arc::clone(file)));
        appender.since_checkpoint = replayed;
        appender.checkpoint_bytes = checkpoint.len() as u64;
        let blocks = volume.blocks();
        Ok(Self {
            away: Arc::new(Away::of(&folder, name)?),
            needs: Mutex::new(folder.load(needs::FILE)?),
            heat: Heat::new(blocks),
            mirrors: Arc::new(Mirrors::new(name, folder.load(mirror::FILE)?)),
            held: Mutex::new(folder.load(hold::FILE)?),
            knobs: Mutex::new(folder.load::<why::Parameters>(why::FILE)?.into()),
            transfers: Transfers::default(),
            folder,
            name: name.to_owned(),
            key: encryption.map(|it| it.path(keys)),
            base: None,
            counters: Counters::default(),
            state: RwLock::new(State { volume, files }),
            appender: Mutex::new(appender),
            flushing: Mutex::new(()),
            upkeep: Mutex::new(()),
            failed: AtomicBool::new(false),
            _lock: lock,
        })
    }
}

/// Feeds a segment's slots to recovery. Returns the bytes of them.
fn replay(
    recovery: &mut Recovery,
    sequence: Sequence,
    file: &File,
    start: SlotIndex,
) -> std::io::Result<Result<u64, StoreError>> {
    let mut reader = BufReader::with_capacity(1 << 20, file);
    reader.rewind()?;
    let mut header = Vec::new();
    reader
        .by_ref()
        .take(SEGMENT_HEADER as u64)
        .read_to_end(&mut header)?;
    if let Err(damage) = recovery.segment(sequence, &header) {
        return Ok(Err(damage.into()));
    }
    let geometry = recovery.volume().geometry();
    let slot_bytes = geometry.slot_bytes() as u64;
    reader.seek(SeekFrom::Start(geometry.offset(start)))?;
    let (mut slot, mut bytes) = (Vec::with_capacity(geometry.slot_bytes()), 0);
    loop {
        slot.clear();
        reader.by_ref().take(slot_bytes).read_to_end(&mut slot)?;
        if slot.is_empty() {
            return Ok(Ok(bytes));
        }
        bytes += slot.len() as u64;
        if let Err(damage) = recovery.slot(&slot) {
            return Ok(Err(damage.into()));
        }
    }
}
