//! Reads and writes of each block of late, two bytes a block.
//!
//! A table for 512 blocks is made when one of them is first touched. Before a count would overflow,
//! all of its table are halved: what was long ago counts for less.

use crate::Store;
use forkyard_replicate::{BlockRun, Knobs};
use forkyard_volume::{BLOCK_BYTES, BlockNo, Blocks};
use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU8, Ordering},
    },
};

const CHUNK: usize = 512;

/// Reads, then writes.
type Counts = [AtomicU8; 2];

/// Access counts of a volume's blocks. Those beyond the size that it was opened with are not counted.
pub(crate) struct Heat(Vec<OnceLock<Box<[Counts; CHUNK]>>>);

/// Block that was touched, and its worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ranked {
    pub block: BlockNo,
    pub reads: u8,
    pub writes: u8,
    pub priority: f64,
}

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl fmt::Debug for Heat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = self.0.iter().filter(|it| it.get().is_some()).count();
        f.debug_struct("Heat").field("tables", &made).finish()
    }
}

impl Heat {
    pub fn new(blocks: Blocks) -> Self {
        let tables = blocks.0.div_ceil(CHUNK as u64);
        Self((0..tables).map(|_| OnceLock::new()).collect())
    }

    /// Counts an access to bytes.
    pub fn touch(&self, access: Access, offset: u64, length: u64) {
        let end = offset.saturating_add(length).div_ceil(BLOCK_BYTES as u64);
        let kind = match access {
            Access::Read => 0,
            Access::Write => 1,
        };
        for block in offset / BLOCK_BYTES as u64..end {
            let Some((table, index)) = self.place(block) else {
                return;
            };
            let make = || Box::new([const { [const { AtomicU8::new(0) }; 2] }; CHUNK]);
            let table = table.get_or_init(make);
            // Neither exact nor in order: it decides about the order of a transfer.
            let count = &table[index][kind];
            if count.load(Ordering::Relaxed) == u8::MAX {
                for count in table.iter().flatten() {
                    count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
                }
            }
            let more = count.load(Ordering::Relaxed).saturating_add(1);
            count.store(more, Ordering::Relaxed);
        }
    }

    fn place(&self, block: u64) -> Option<(&OnceLock<Box<[Counts; CHUNK]>>, usize)> {
        let (table, index) = (block / CHUNK as u64, block % CHUNK as u64);
        let table = self.0.get(usize::try_from(table).ok()?)?;
        Some((table, usize::try_from(index).ok()?))
    }

    /// Reads and writes of a block.
    pub fn of(&self, block: BlockNo) -> (u8, u8) {
        let counts = self.place(block.0).and_then(|(table, index)| {
            let [reads, writes] = &table.get()?[index];
            Some((
                reads.load(Ordering::Relaxed),
                writes.load(Ordering::Relaxed),
            ))
        });
        counts.unwrap_or_default()
    }

    /// Blocks that were touched, with their priorities, the greatest first.
    pub fn ranked(&self, knobs: Knobs) -> Vec<Ranked> {
        let tables = self.0.iter().zip(0u64..);
        let tables = tables.filter_map(|(table, number)| Some((table.get()?, number)));
        let mut ranked: Vec<_> = tables
            .flat_map(|(table, number)| {
                table
                    .iter()
                    .zip(number * CHUNK as u64..)
                    .filter_map(move |(counts, block)| {
                        let [reads, writes] =
                            counts.each_ref().map(|it| it.load(Ordering::Relaxed));
                        Some(Ranked {
                            block: BlockNo(block),
                            reads,
                            writes,
                            priority: knobs.fill(reads.into(), writes.into())?,
                        })
                    })
            })
            .collect();
        ranked.sort_by(|one, other| {
            let by_block = one.block.cmp(&other.block);
            other.priority.total_cmp(&one.priority).then(by_block)
        });
        ranked
    }
}

impl Store {
    /// Blocks that were read or written of late, by the law of propagation: as many as `most`, in
    /// runs, those first that are worth most.
    pub fn hottest(&self, most: usize) -> Vec<BlockRun> {
        let ranked = self.heat.ranked(self.knobs());
        let blocks = ranked.into_iter().take(most).map(|it| it.block);
        BlockRun::of(blocks)
    }
}
