//! Reasons for which blocks went to other hosts, came from there, or did not.
//!
//! Kept in memory for the last transfers, so that a bounded part of each is known: the latest runs of
//! blocks, and the counts of those that were worth most when it was decided what goes ahead.

use crate::{Store, StoreError};
use forkyard_replicate::{BlockRun, Judgement, Knobs, TransferVerdict};
use forkyard_volume::{BLOCK_BYTES, BlockNo, ChangeRefusal, Content, View};
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

/// Transfers that are kept.
const TRANSFERS: usize = 16;
/// Runs of blocks that are kept of each.
const PARTS: usize = 4096;
/// Blocks whose counts are kept of each.
const COUNTED: usize = 16 << 10;

/// Latest transfers of a volume, the newest last.
#[derive(Debug, Default)]
pub(crate) struct Transfers(Mutex<VecDeque<Transfer>>);

/// Blocks that went to another host, or came from there, for one snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Transfer {
    host: Option<String>,
    snapshot: String,
    knobs: Knobs,
    parts: VecDeque<Part>,
    /// True if parts of it are not kept.
    is_cut: bool,
    /// Counts when it was decided, sorted by block.
    counts: Vec<(BlockNo, u8, u8)>,
    /// True if these are all that there were.
    has_all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    run: BlockRun,
    /// Seconds since 1970.
    at: u64,
    verdict: TransferVerdict,
}

/// Place of a block's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockLocation {
    /// Nowhere: never written.
    Unwritten,
    /// Nowhere: zeroed or discarded.
    Zero,
    /// Here.
    Here,
    /// At another host.
    Elsewhere,
}

/// Transfers of a block, as far as they are known, and the law applied to it as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Why {
    /// Block.
    pub block: u64,
    /// Place of its content.
    pub holding: BlockLocation,
    /// Version: the number of its last write here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Law, with the counts of now.
    pub law: Law,
    /// Transfers of it, the newest first.
    pub transfers: Vec<WhyTransfer>,
    /// True if parts of transfers, or whole ones, are not kept.
    pub is_cut: bool,
}

/// Law of propagation, applied to a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Law {
    /// Weight of the ratio of reads to writes.
    pub k: f64,
    /// Least ratio at which a block is worth sending.
    pub s: f64,
    /// Reads of the block.
    pub reads: u32,
    /// Writes of the block.
    pub writes: u32,
    /// Priority; none if it was not touched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<f64>,
    /// All that in words.
    pub words: String,
}

/// Transfer of a block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WhyTransfer {
    /// Time, in seconds since 1970.
    pub at: u64,
    /// Other host, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Snapshot that it was part of.
    pub snapshot: String,
    /// True if the block went, or came.
    pub is_sent: bool,
    /// Reason.
    pub why: String,
    /// Law as it was applied, if the counts of then are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub law: Option<Law>,
}

impl From<Judgement> for Law {
    fn from(it: Judgement) -> Self {
        Self {
            k: it.knobs.k,
            s: it.knobs.s,
            reads: it.reads,
            writes: it.writes,
            priority: it.priority(),
            words: it.to_string(),
        }
    }
}

fn now() -> u64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH);
    passed.map_or(0, |it| it.as_secs())
}

impl Transfer {
    pub fn new(host: Option<&str>, snapshot: &str, knobs: Knobs) -> Self {
        Self {
            host: host.map(str::to_owned),
            snapshot: snapshot.to_owned(),
            knobs,
            parts: VecDeque::new(),
            is_cut: false,
            counts: Vec::new(),
            has_all: true,
        }
    }

    /// Notes the counts by which it is decided what goes, those that are worth most first.
    pub fn decide(&mut self, ranked: impl Iterator<Item = (BlockNo, u8, u8)>) {
        self.counts = ranked.take(COUNTED + 1).collect();
        self.has_all = self.counts.len() <= COUNTED;
        self.counts.truncate(COUNTED);
        self.counts.sort_unstable_by_key(|it| it.0);
    }

    /// Notes blocks of it.
    pub fn note(&mut self, run: BlockRun, verdict: TransferVerdict) {
        let at = now();
        if let Some(last) = self.parts.back_mut()
            && last.verdict == verdict
            && last.at == at
            && last.run.first.0 + last.run.count == run.first.0
        {
            last.run.count += run.count;
            return;
        }
        if self.parts.len() == PARTS {
            self.parts.pop_front();
            self.is_cut = true;
        }
        self.parts.push_back(Part { run, at, verdict });
    }

    fn judgement(&self, block: BlockNo) -> Option<Judgement> {
        let found = self.counts.binary_search_by_key(&block, |it| it.0);
        let (reads, writes) = match found {
            Ok(index) => (self.counts[index].1, self.counts[index].2),
            // Of no others is it known.
            Err(_) if self.has_all && !self.counts.is_empty() => (0, 0),
            Err(_) => return None,
        };
        Some(Judgement {
            knobs: self.knobs,
            reads: reads.into(),
            writes: writes.into(),
        })
    }

    fn of(&self, block: BlockNo) -> impl Iterator<Item = WhyTransfer> {
        let parts = self.parts.iter().rev();
        let parts = parts.filter(move |it| it.run.contains(block));
        parts.map(move |part| {
            let judgement = self.judgement(block);
            WhyTransfer {
                at: part.at,
                host: self.host.clone(),
                snapshot: self.snapshot.clone(),
                is_sent: part.verdict.is_sent(),
                why: part.verdict.tell(judgement),
                law: judgement.map(Law::from),
            }
        })
    }
}

impl Transfers {
    fn inner(&self) -> MutexGuard<'_, VecDeque<Transfer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a transfer that is over.
    pub fn keep(&self, transfer: Transfer) {
        let mut all = self.inner();
        if all.len() == TRANSFERS {
            all.pop_front();
        }
        all.push_back(transfer);
    }

    /// Notes blocks of a transfer that goes on for as long as another host lacks something.
    pub fn note(
        &self,
        (host, snapshot): (Option<&str>, &str),
        run: BlockRun,
        verdict: TransferVerdict,
    ) {
        let mut all = self.inner();
        let is_one = |it: &&mut Transfer| {
            let is_going_on = it.counts.is_empty();
            is_going_on && it.host.as_deref() == host && it.snapshot == snapshot
        };
        if let Some(transfer) = all.iter_mut().rev().find(is_one) {
            return transfer.note(run, verdict);
        }
        drop(all);
        let mut transfer = Transfer::new(host, snapshot, Knobs::default());
        transfer.note(run, verdict);
        self.keep(transfer);
    }
}

impl Store {
    /// Tells why a block of the volume went to other hosts, came from there, or did not.
    pub fn why(&self, block: BlockNo) -> Result<Why, StoreError> {
        let state = self.state();
        let map = state.volume.map(View::Current).ok_or(StoreError::Failed)?;
        if block.0 >= map.blocks().0 {
            let blocks = map.blocks();
            return Err(ChangeRefusal::BeyondEnd { block, blocks }.into());
        }
        let entry = map.get(block);
        let holding = match entry.map(|it| it.content) {
            None => BlockLocation::Unwritten,
            Some(Content::Zero) => BlockLocation::Zero,
            Some(Content::Slot(_)) => BlockLocation::Here,
            Some(Content::Away) => BlockLocation::Elsewhere,
        };
        drop(state);
        let (reads, writes) = self.heat.of(block);
        let judgement = Judgement {
            knobs: self.knobs(),
            reads: reads.into(),
            writes: writes.into(),
        };
        let all = self.transfers.inner();
        let mut transfers: Vec<_> = all.iter().rev().flat_map(|it| it.of(block)).collect();
        transfers.sort_by_key(|it| std::cmp::Reverse(it.at));
        Ok(Why {
            block: block.0,
            holding,
            version: entry.map(|it| it.version.number()),
            law: judgement.into(),
            transfers,
            is_cut: all.len() == TRANSFERS || all.iter().any(|it| it.is_cut),
        })
    }

    /// Parameters of the law for this volume.
    pub fn knobs(&self) -> Knobs {
        *self.knobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the parameters of the law, durably. What is decided from now on is by these.
    pub fn tune(&self, knobs: Knobs) -> Result<(), StoreError> {
        let fine = |it: f64| it.is_finite() && it >= 0.0;
        if !fine(knobs.k) || !fine(knobs.s) {
            return Err(StoreError::Knobs);
        }
        let mut kept = self.knobs.lock().unwrap_or_else(PoisonError::into_inner);
        let parameters = Parameters {
            k: knobs.k,
            s: knobs.s,
        };
        self.folder.store(FILE, &parameters)?;
        *kept = knobs;
        Ok(())
    }
}

/// File of the parameters, of a volume whose law was changed.
pub(crate) const FILE: &str = "law";

/// Parameters as they are stored.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    k: f64,
    s: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        let Knobs { k, s } = Knobs::default();
        Self { k, s }
    }
}

impl From<Parameters> for Knobs {
    fn from(Parameters { k, s }: Parameters) -> Self {
        Self { k, s }
    }
}

/// Offset of a block, in bytes.
pub fn offset_of(block: u64) -> u64 {
    block.saturating_mul(BLOCK_BYTES as u64)
}
