//! Lines by which blocks that are away are fetched.
//!
//! A line asks for what readers wait for, or for all there is. Where its answers come from is the
//! caller's concern.

use crate::{
    Store, StoreError,
    away::{Inner, Origin},
    store::State,
    stream::{self, Frame},
};
use forkyard_replicate::{BlockRun, Purpose, SiteConnection, TransferVerdict};
use forkyard_volume::{BlockNo, Version};
use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

/// Line to a host that has blocks that are away here. Dropped, what was asked for on it and has not
/// come is asked for on another.
#[derive(Debug)]
pub struct Asking {
    store: Arc<Store>,
    snapshot: String,
    /// Host that has it.
    host: Option<String>,
    purpose: Purpose,
    line: SiteConnection,
}

impl Asking {
    /// Takes the blocks to ask for next. Waits for some for a while; none if there were none, and
    /// an error if there will be none.
    pub fn next(&self, most: usize, patience: Duration) -> Result<Vec<BlockRun>, StoreError> {
        let away = &self.store.away;
        let until = Instant::now() + patience;
        let mut inner = away.inner();
        loop {
            if inner.closed {
                return Err(StoreError::Unknown(away.volume.clone()));
            }
            let left = until.saturating_duration_since(Instant::now());
            let Inner {
                sources,
                origins,
                waiting,
                ..
            } = &mut *inner;
            let source = sources.get_mut(&self.snapshot);
            let source = source.ok_or_else(|| self.store.lacks_nothing(&self.snapshot))?;
            // Readers go first, but not for ever.
            if self.purpose == Purpose::Fill && !waiting.is_empty() && !left.is_zero() {
                let waited = away.changed.wait_timeout(inner, left);
                inner = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let state = self.store.state();
            let is_lacking = |block| !versions(&state, origins, &self.snapshot, block).is_empty();
            let next = source
                .fetching
                .next(self.purpose, self.line, most, is_lacking);
            drop(state);
            if !next.is_empty() || left.is_zero() {
                return Ok(BlockRun::of(next));
            }
            let waited = away.changed.wait_timeout(inner, left);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has these blocks fetched before others that no reader waits for.
    pub fn hottest(&self, runs: &[BlockRun]) {
        let mut inner = self.store.away.inner();
        if let Some(source) = inner.sources.get_mut(&self.snapshot) {
            source.fetching.hottest(runs);
        }
    }

    /// Takes the answer to a question from a stream. What comes is durable with the next flush.
    pub fn take(&self, asked: &[BlockRun], input: &mut dyn io::Read) -> Result<(), StoreError> {
        for read in 0.. {
            match stream::next(&mut *input, read)? {
                Frame::Data(first, data) => self.came(asked, first, &data)?,
                Frame::Zeroes(..) | Frame::Away(..) => {
                    return Err(StoreError::Stream("it does not hold what was asked for"));
                }
                Frame::End => break,
            }
        }
        Ok(())
    }

    fn came(&self, asked: &[BlockRun], first: BlockNo, data: &[u8]) -> Result<(), StoreError> {
        self.store.take_fetched(&self.snapshot, first, data)?;
        let blocks = data.len() / forkyard_volume::BLOCK_BYTES;
        let came = BlockRun {
            first,
            count: blocks as u64,
        };
        let asked = asked.iter().flat_map(|it| it.blocks());
        let asked: Vec<_> = asked.filter(|it| came.contains(*it)).collect();
        self.store.counters.fetched(self.purpose, data.len() as u64);
        let of = (self.host.as_deref(), &*self.snapshot);
        let verdict = TransferVerdict::Fetched(self.purpose);
        self.store.transfers.note(of, came, verdict);
        self.store.away.came(&self.snapshot, &asked);
        self.store.away.let_go_on(&self.store);
        self.store.away.changed.notify_all();
        Ok(())
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let away = &self.store.away;
        let mut inner = away.inner();
        if let Some(source) = inner.sources.get_mut(&self.snapshot) {
            source.fetching.lost(self.line);
        }
        drop(inner);
        away.changed.notify_all();
    }
}

/// Versions in which a block is away because of a snapshot.
fn versions(
    state: &State,
    origins: &[Origin],
    snapshot: &str,
    block: BlockNo,
) -> BTreeSet<Version> {
    let of = |version: &Version| {
        let mut earlier = origins.iter().rev();
        let origin = earlier.find(|it| it.from <= version.number());
        origin.is_some_and(|it| it.snapshot == snapshot)
    };
    state.volume.absent(block).filter(of).collect()
}

impl Store {
    /// Opens a line for what a snapshot at another host has. An error if nothing of it is lacking:
    /// all of it is durable here then.
    pub fn ask(self: &Arc<Self>, snapshot: &str, purpose: Purpose) -> Result<Asking, StoreError> {
        self.survey()?;
        let mut inner = self.away.inner();
        inner.lines += 1;
        let line = SiteConnection(inner.lines);
        let source = inner.sources.get_mut(snapshot);
        let source = source.ok_or_else(|| self.lacks_nothing(snapshot))?;
        if purpose == Purpose::Demand {
            source.heard = Instant::now();
        }
        let mut origins = inner.origins.iter();
        let origin = origins.find(|it| it.snapshot == snapshot);
        let host = origin.map(|it| it.host.clone());
        Ok(Asking {
            host,
            store: Arc::clone(self),
            snapshot: snapshot.to_owned(),
            purpose,
            line,
        })
    }

    /// Takes what was fetched into the log, where it is lacking still.
    fn take_fetched(&self, snapshot: &str, first: BlockNo, data: &[u8]) -> Result<(), StoreError> {
        let origins = self.away.inner().origins.clone();
        let mut appender = self.appender();
        let (blocks, _) = data.as_chunks::<{ forkyard_volume::BLOCK_BYTES }>();
        let mut keys = Vec::new();
        let state = self.state();
        for (data, number) in blocks.iter().zip(first.0..) {
            let block = BlockNo(number);
            let versions = versions(&state, &origins, snapshot, block);
            keys.extend(versions.into_iter().map(|version| ((block, version), data)));
        }
        drop(state);
        let moves = keys
            .iter()
            .map(|((block, version), data)| forkyard_volume::Change::Move {
                block: *block,
                version: *version,
                data,
            });
        self.append(&mut appender, &moves.collect::<Vec<_>>())
    }
}
