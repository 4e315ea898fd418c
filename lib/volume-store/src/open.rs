//! Opening: recovery from the files, and making new ones.

use crate::{
    Store, StoreError, append::Appender, away::Away, counts::Counters, files::Folder, heat::Heat,
    needs, store::State,
};
use forkyard_volume::{
    Recovered, Recovery, SEGMENT_HEADER, SLOT_BYTES, Sequence, Tail, Volume, Wanted,
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
    pub(crate) fn recover(folder: &Path, name: &str) -> Result<Self, StoreError> {
        let folder = Folder(folder.to_owned());
        let lock = folder.lock()?;
        let lock = lock.ok_or_else(|| StoreError::InUse(name.to_owned()))?;
        let path = folder.checkpoint();
        let checkpoint = fs::read(&path).map_err(|e| StoreError::io("read", path, e))?;
        let mut recovery = Recovery::begin(&checkpoint)?;
        let present = folder.segments()?;
        let (mut files, mut strays) = (BTreeMap::new(), Vec::new());
        let mut replayed = 0;
        for sequence in present.keys().copied() {
            let wanted = recovery.wants(sequence);
            if wanted == Wanted::Stray {
                strays.push(sequence);
                continue;
            }
            let file = folder.open(sequence)?;
            if let Wanted::From(index) = wanted {
                let start = u64::from(index.0);
                let read = replay(&mut recovery, sequence, &file, start);
                replayed +=
                    read.map_err(|e| StoreError::io("read", folder.segment(sequence), e))??;
                // What was only in the kernel's memory counts as flushed from here on.
                let synced = file.sync_all();
                synced.map_err(|e| StoreError::io("flush", folder.segment(sequence), e))?;
            }
            files.insert(sequence, file);
        }
        let Recovered { mut volume, tail } = recovery.finish(|it| files.contains_key(&it))?;
        let last = match tail {
            Tail::Segments(last) => last,
            Tail::At(at) => {
                let path = folder.segment(at.sequence);
                let file = files.get(&at.sequence);
                let file = file.ok_or(forkyard_volume::Damage::MissingSegment(at.sequence))?;
                let length = file.metadata().map(|it| it.len());
                let cut = length.and_then(|length| match length > at.offset() {
                    true => file.set_len(at.offset()).and_then(|()| file.sync_all()),
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
        let mut appender = Appender::default();
        appender.active = files.get(&last).map(|file| (last, Arc::clone(file)));
        appender.since_checkpoint = replayed;
        appender.checkpoint_bytes = checkpoint.len() as u64;
        let blocks = volume.blocks();
        Ok(Self {
            away: Arc::new(Away::of(&folder, name)?),
            needs: Mutex::new(folder.load(needs::FILE)?),
            heat: Heat::new(blocks),
            folder,
            name: name.to_owned(),
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
    start: u64,
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
    let slot_bytes = SLOT_BYTES as u64;
    reader.seek(SeekFrom::Start(SEGMENT_HEADER as u64 + start * slot_bytes))?;
    let (mut slot, mut bytes) = (Vec::with_capacity(SLOT_BYTES), 0);
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
