//! Branches: volumes over a snapshot of another volume.
//!
//! ```text
//! read of a block --written in the branch?--> slot of the branch
//!                  `--no--> the snapshot, which may be a branch's, too; zero beyond its end
//! ```
//!
//! A branch is written as any volume; its log has what differs. The snapshot may be taken after the
//! branch was made, and must be there when it is first read. A volume that a branch lies over, and
//! the snapshot of it, are not removed. What the branch lies over is in its file `base`.

use crate::{
    Found, Library, Patience, Scratch, Store, StoreError,
    append::{Appender, MOST},
    library::check_name,
};
use forkyard_volume::{BLOCK_BYTES, BlockNo, Change, Range, SnapshotId, View, WriterEpoch};
use std::{
    fs, io,
    path::Path,
    sync::{Arc, OnceLock},
};

const BLOCK: u64 = BLOCK_BYTES as u64;
const FILE: &str = "base";
const ZEROES: &[u8; BLOCK_BYTES] = &[0; BLOCK_BYTES];

/// Snapshot that a branch lies over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseFacts {
    /// Volume.
    pub volume: String,
    /// Snapshot of it.
    pub snapshot: String,
}

/// Snapshot that an open branch reads what it has not.
#[derive(Debug)]
pub(crate) struct Base {
    snapshot: String,
    store: Arc<Store>,
    found: OnceLock<SnapshotId>,
}

impl BaseFacts {
    /// Reads what a volume lies over; `None` of one that is no branch.
    pub(crate) fn of(folder: &Path) -> Result<Option<Self>, StoreError> {
        let path = folder.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io("read", path, error)),
        };
        let base = text.trim_end().split_once('@');
        let (volume, snapshot) = base.ok_or(StoreError::Base(path))?;
        Ok(Some(Self {
            volume: volume.to_owned(),
            snapshot: snapshot.to_owned(),
        }))
    }

    /// Writes it beside a volume that has no name yet.
    fn write(&self, folder: &Path) -> Result<(), StoreError> {
        let path = folder.join(FILE);
        let text = format!("{}@{}\n", self.volume, self.snapshot);
        let written = fs::write(&path, text).and_then(|()| fs::File::open(&path)?.sync_all());
        written.map_err(|e| StoreError::io("write", path, e))
    }
}

impl Base {
    pub(crate) fn new(facts: BaseFacts, store: Arc<Store>) -> Self {
        Self {
            snapshot: facts.snapshot,
            store,
            found: OnceLock::new(),
        }
    }

    pub(crate) fn facts(&self) -> BaseFacts {
        BaseFacts {
            volume: self.store.name().to_owned(),
            snapshot: self.snapshot.clone(),
        }
    }

    /// Tells whether blocks of it may be at another site.
    pub(crate) fn is_lacking(&self) -> bool {
        self.store.is_lacking()
    }

    /// Reads bytes of it. Beyond its end there are zeroes.
    pub(crate) fn read(
        &self,
        offset: u64,
        out: &mut [u8],
        scratch: &mut Scratch,
        patience: Patience,
    ) -> Result<Found, StoreError> {
        let id = match self.found.get() {
            Some(id) => *id,
            None => {
                let id = self.store.snapshot_called(&self.snapshot)?;
                *self.found.get_or_init(|| id)
            }
        };
        let view = View::Snapshot(id);
        let size = self.store.size(view).unwrap_or(0);
        let within = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (there, beyond) = out.split_at_mut(within.min(out.len()));
        beyond.fill(0);
        match there.is_empty() {
            true => Ok(Found::Zeroes),
            false => self.store.read(view, offset, there, scratch, patience),
        }
    }
}

impl Library {
    /// Makes a branch over a snapshot, which may be taken later: the branch is as large as the
    /// volume is until then. That of an encrypted volume is encrypted, with a key of its own.
    pub fn branch(&self, name: &str, over: BaseFacts) -> Result<Arc<Store>, StoreError> {
        check_name(name)?;
        check_name(&over.volume)?;
        // Its name goes into a file of one line.
        if over.snapshot.contains(['\n', '@']) || over.snapshot.is_empty() {
            return Err(StoreError::UnknownSnapshot {
                volume: over.volume,
                snapshot: over.snapshot,
            });
        }
        let below = self.open(&over.volume)?;
        let view = match below.snapshot_called(&over.snapshot) {
            Ok(id) => View::Snapshot(id),
            Err(_) => View::Current,
        };
        let size = below.size(view).unwrap_or(0);
        let what = (crate::library::random_id()?, size);
        let fresh = self.fresh(name, what, &below.alike())?;
        if let Err(error) = over.write(&fresh) {
            let _ = self.keys.discard(&fresh);
            return Err(error);
        }
        self.keep(&fresh, name)
    }

    /// Returns a branch over a volume, or over this snapshot of it, if there is one.
    pub fn branch_over(
        &self,
        volume: &str,
        snapshot: Option<&str>,
    ) -> Result<Option<String>, StoreError> {
        for name in self.names()? {
            let base = BaseFacts::of(&self.folder.join(&name))?;
            if base.is_some_and(|it| {
                it.volume == volume && snapshot.is_none_or(|wanted| it.snapshot == wanted)
            }) {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Removes a snapshot that no branch lies over, durably.
    pub fn drop_snapshot(&self, name: &str, snapshot: &str) -> Result<(), StoreError> {
        let store = self.open(name)?;
        let id = store.snapshot_called(snapshot)?;
        store.refuse_needed(Some(snapshot))?;
        if let Some(branch) = self.branch_over(name, Some(snapshot))? {
            return Err(StoreError::Below {
                volume: name.to_owned(),
                branch,
            });
        }
        store.drop_snapshot(id)
    }
}

impl Store {
    /// Discards bytes, for the writer of an epoch: they read as zero, or, in a branch, may read as
    /// before.
    pub fn discard(
        &self,
        epoch: WriterEpoch,
        offset: u64,
        length: u64,
        patience: Patience,
    ) -> Result<(), StoreError> {
        if self.base.is_none() {
            return self.zero_if(epoch, offset, length, patience);
        }
        self.counters.write(length);
        let (first, end) = whole(offset, length);
        let mut appender = self.appender();
        self.zero_blocks(&mut appender, epoch, first, end)
    }

    /// Has whole blocks of a branch read as zero that it has not: it has them afterwards, unless
    /// they are zero below.
    pub(crate) fn cover(
        &self,
        appender: &mut Appender,
        epoch: WriterEpoch,
        first: u64,
        end: u64,
    ) -> Result<(), StoreError> {
        let Some(base) = &self.base else {
            return Ok(());
        };
        let (mut data, mut scratch) = (vec![0; BLOCK_BYTES], Scratch::default());
        let mut batch = Vec::new();
        for block in first..end {
            let map_has = |state: &crate::store::State| {
                let map = state.volume.map(View::Current);
                map.is_some_and(|map| map.get(BlockNo(block)).is_some())
            };
            if map_has(&self.state()) {
                continue;
            }
            let found = base.read(block * BLOCK, &mut data, &mut scratch, Patience::Wait)?;
            if found == Found::Data && data.iter().any(|byte| *byte != 0) {
                let (block, data) = (BlockNo(block), ZEROES);
                batch.push(Change::Write { epoch, block, data });
            }
            if batch.len() == MOST {
                self.append(appender, &batch)?;
                batch.clear();
            }
        }
        self.append(appender, &batch)
    }

    pub(crate) fn zero_blocks(
        &self,
        appender: &mut Appender,
        epoch: WriterEpoch,
        first: u64,
        end: u64,
    ) -> Result<(), StoreError> {
        if end <= first {
            return Ok(());
        }
        let range = Range {
            first: BlockNo(first),
            count: end - first,
        };
        let ranges = &[range];
        self.append(appender, &[Change::Zero { epoch, ranges }])
    }

    /// Refuses what a branch cannot do.
    pub(crate) fn refuse_branch(&self, what: &'static str) -> Result<(), StoreError> {
        match &self.base {
            Some(_) => Err(StoreError::Branch {
                volume: self.name.clone(),
                what,
            }),
            None => Ok(()),
        }
    }
}

/// Whole blocks within a range: the first, and the one after the last.
fn whole(offset: u64, length: u64) -> (u64, u64) {
    let end = offset.saturating_add(length);
    (offset.div_ceil(BLOCK), end / BLOCK)
}
