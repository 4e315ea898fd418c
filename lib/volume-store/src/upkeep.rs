//! Checkpoints and compaction: what keeps recovery short and the log small.

use crate::{Store, StoreError};
use forkyard_volume::{
    BlockData, BlockNo, Change, CompactionPlan, CompactionPolicy, Version, Volume, plan,
};
use std::{os::unix::fs::FileExt, sync::PoisonError};

/// Bytes of log for which a checkpoint is not worth its writing.
const LEAST: u64 = 256 << 20;
/// Blocks moved at once: writes come in between.
const MOVED_AT_ONCE: usize = 32;

/// Result of upkeep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// Blocks copied to the end of the log.
    pub moved: u64,
    /// Segments removed.
    pub removed: usize,
    /// True if a checkpoint was stored.
    pub checkpoint: bool,
}

impl Store {
    /// Stores a checkpoint and empties segments where that is worth it. Reads and writes go on.
    pub fn upkeep(&self) -> Result<Upkeep, StoreError> {
        let appender = self.appender();
        let enough = LEAST.max(appender.checkpoint_bytes.saturating_mul(4));
        let due = appender.since_checkpoint >= enough;
        drop(appender);
        match due {
            true => self.tidy(CompactionPolicy::USUAL),
            false => Ok(Upkeep::default()),
        }
    }

    /// Stores a checkpoint, and empties segments by a policy.
    pub fn tidy(&self, policy: CompactionPolicy) -> Result<Upkeep, StoreError> {
        let _upkeep = self.upkeep.lock().unwrap_or_else(PoisonError::into_inner);
        let planned = plan(&self.copy(), policy);
        let mut done = Upkeep {
            checkpoint: true,
            ..Upkeep::default()
        };
        self.empty(&planned, &mut done)?;
        let appended = self.appender().since_checkpoint;
        let copy = self.copy();
        // Looked at again: what is removed is gone for good.
        let unused = plan(&copy, CompactionPolicy::UNUSED).victims;
        let places: Vec<_> = unused.iter().map(|it| it.place).collect();
        done.removed = places.len();
        let checkpoint = copy.checkpoint(&places);
        // Whatever it refers to must be there before it is.
        self.flush()?;
        self.folder.store_checkpoint(&checkpoint)?;
        let mut appender = self.appender();
        appender.since_checkpoint -= appended;
        appender.checkpoint_bytes = checkpoint.len() as u64;
        drop(appender);
        let mut state = self.state_mut();
        state.volume.retire(&places);
        for victim in &unused {
            // Reads under way keep the file.
            state.files.remove(&victim.sequence);
        }
        drop(state);
        for victim in &unused {
            self.folder.remove(victim.sequence)?;
        }
        Ok(done)
    }

    /// Copy of the volume, which shares its maps: what takes a while is done with it, and writes
    /// go on meanwhile.
    fn copy(&self) -> Volume {
        self.state().volume.clone()
    }

    fn empty(&self, planned: &CompactionPlan, done: &mut Upkeep) -> Result<(), StoreError> {
        let slots = self.state().volume.slots().clone();
        let mut slot = vec![0; slots.geometry().slot_bytes()];
        for victim in &planned.victims {
            let file = self.state().files.get(&victim.sequence).cloned();
            let missing = forkyard_volume::Damage::MissingSegment(victim.sequence);
            let file = file.ok_or(missing)?;
            for indices in victim.live.chunks(MOVED_AT_ONCE) {
                let mut found: Vec<(BlockNo, Version, Box<BlockData>)> = Vec::new();
                for index in indices {
                    let offset = slots.geometry().offset(*index);
                    file.read_exact_at(&mut slot, offset)
                        .map_err(|e| StoreError::io("read", &self.folder.0, e))?;
                    let at = (victim.place, *index);
                    let (block, version, data) = slots.block(&mut slot, victim.sequence, at)?;
                    found.push((block, version, Box::new(*data)));
                }
                let changes = found.iter().map(|(block, version, data)| Change::Move {
                    block: *block,
                    version: *version,
                    data,
                });
                let changes: Vec<_> = changes.collect();
                self.append(&mut self.appender(), &changes)?;
                done.moved += changes.len() as u64;
            }
        }
        Ok(())
    }
}
