//! Blocks whose content is at another site.
//!
//! ```text
//! stream that tells of blocks and does not bring them --> map: away, and `origins`: snapshot, host
//!    reader --wants--> Fetching --line--> host that has the snapshot
//!                                  `----> block into the log, under the version it is away in
//! ```
//!
//! A version that is away is the content of a block in one snapshot at one host, which keeps it until
//! all has come. So nothing that is fetched late, or twice, takes the place of what was written
//! since.
//!
//! | fails | then |
//! |---|---|
//! | a line | what was asked for on it is asked for on the next |
//! | that host, for [`PATIENCE`] | readers have an error that says which host; later ones may have more luck |
//! | this process | what was fetched and not flushed is fetched again |

use crate::{
    Store, StoreError,
    files::Folder,
    store::State,
    stream::{self, Frame},
};
use forkyard_replicate::{Fetching, Line, Purpose, Run};
use forkyard_volume::{BlockNo, Version};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    time::{Duration, Instant},
};

const FILE: &str = "origins";
/// Time for which readers wait for a host that does not answer.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Time for which they wait for one that has not answered for long.
const SHORT: Duration = Duration::from_secs(1);

/// Snapshot at another host that has what is away here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Host, as it calls itself.
    pub host: String,
    /// Snapshot of the volume there.
    pub snapshot: String,
    /// First version that blocks may be away in because of it.
    from: u64,
}

/// Amount of a volume that is at another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// Host.
    pub host: String,
    /// Snapshot of the volume there.
    pub snapshot: String,
    /// Blocks.
    pub blocks: u64,
}

type Key = (BlockNo, Version);
type Then = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Blocks of a volume that are away, and those who wait for them.
#[derive(Debug, Default)]
pub(crate) struct Away {
    volume: String,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    origins: Vec<Origin>,
    sources: BTreeMap<String, Source>,
    waiting: Vec<Waiting>,
    lines: u64,
    /// Origins that were begun.
    begun: u64,
    /// A stream comes in: what it lacks is not known yet.
    coming: bool,
    /// The volume is being removed.
    closed: bool,
}

#[derive(Debug)]
struct Source {
    fetching: Fetching,
    /// Lines for readers' blocks.
    connected: usize,
    /// Time at which a line was last there, or brought something.
    heard: Instant,
}

struct Waiting {
    left: BTreeSet<Key>,
    host: String,
    snapshot: String,
    since: Instant,
    then: Then,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

/// Blocks that a read found to be away.
#[derive(Clone)]
pub struct Absent {
    away: Arc<Away>,
    blocks: Vec<Key>,
}

impl fmt::Debug for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Absent")
            .field("volume", &self.away.volume)
            .field("blocks", &self.blocks)
            .finish()
    }
}

impl Absent {
    /// Has the blocks fetched, and calls a function once they are here or cannot be had. It is
    /// called on any thread, at once if nothing is lacking any more.
    pub fn when_here(self, then: impl FnOnce(Result<(), StoreError>) + Send + 'static) {
        let Self { away, blocks } = self;
        let mut inner = away.inner();
        let first = blocks.first();
        let origin = first.and_then(|(_, version)| inner.origin(*version).cloned());
        let (false, Some(origin)) = (inner.closed, origin) else {
            drop(inner);
            // It came meanwhile, or is known to no host.
            return then(Ok(()));
        };
        for (block, version) in &blocks {
            let snapshot = inner.origin(*version).map(|it| it.snapshot.clone());
            if let Some(source) = snapshot.and_then(|it| inner.sources.get_mut(&it)) {
                source.fetching.want(*block);
            }
        }
        inner.waiting.push(Waiting {
            left: blocks.into_iter().collect(),
            host: origin.host,
            snapshot: origin.snapshot,
            since: Instant::now(),
            then: Box::new(then),
        });
        drop(inner);
        away.changed.notify_all();
    }

    /// Waits for the blocks.
    pub(crate) fn wait(self) -> Result<(), StoreError> {
        let (sender, came) = mpsc::channel();
        self.when_here(move |outcome| {
            let _ = sender.send(outcome);
        });
        came.recv().unwrap_or(Err(StoreError::Failed))
    }
}

impl Inner {
    fn origin(&self, version: Version) -> Option<&Origin> {
        let mut earlier = self.origins.iter().rev();
        earlier.find(|it| it.from <= version.number())
    }
}

impl Away {
    /// Reads what is known of a volume's origins.
    pub fn of(folder: &Folder, volume: &str) -> Result<Self, StoreError> {
        let origins = folder.load(FILE)?;
        Ok(Self {
            volume: volume.to_owned(),
            inner: Mutex::new(Inner {
                origins,
                ..Inner::default()
            }),
            changed: Condvar::new(),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readers' error for blocks that are away.
    pub fn absent(self: &Arc<Self>, blocks: Vec<Key>) -> Absent {
        Absent {
            away: Arc::clone(self),
            blocks,
        }
    }

    fn came(&self, snapshot: &str, asked: &[BlockNo]) {
        let mut inner = self.inner();
        if let Some(source) = inner.sources.get_mut(snapshot) {
            source.heard = Instant::now();
            asked.iter().for_each(|it| source.fetching.came(*it));
        }
    }

    /// Has readers go on whose blocks were fetched, or written over.
    fn let_go_on(&self, store: &Store) {
        let mut inner = self.inner();
        if inner.waiting.is_empty() {
            return;
        }
        let state = store.state();
        for waiting in &mut inner.waiting {
            let is_away = |(block, version): &Key| {
                let mut versions = state.volume.absent(*block);
                versions.any(|it| it == *version)
            };
            waiting.left.retain(is_away);
        }
        drop(state);
        let done = inner.waiting.extract_if(.., |it| it.left.is_empty());
        let done: Vec<_> = done.collect();
        drop(inner);
        done.into_iter().for_each(|it| (it.then)(Ok(())));
    }

    /// Gives readers an error who wait for a host that does not answer.
    fn expire(&self, now: Instant) {
        let mut inner = self.inner();
        let Inner {
            sources, waiting, ..
        } = &mut *inner;
        let late = |it: &mut Waiting| {
            let heard = sources.get(&it.snapshot).map_or(it.since, |it| it.heard);
            now.saturating_duration_since(heard) >= PATIENCE
                && now.saturating_duration_since(it.since) >= SHORT
        };
        let late: Vec<_> = waiting.extract_if(.., late).collect();
        drop(inner);
        for waiting in late {
            (waiting.then)(Err(StoreError::SourceAway {
                volume: self.volume.clone(),
                host: waiting.host,
            }));
        }
    }

    /// Ends all lines, and the patience of all readers.
    fn close(&self) {
        let mut inner = self.inner();
        inner.closed = true;
        let waiting = std::mem::take(&mut inner.waiting);
        drop(inner);
        self.changed.notify_all();
        for waiting in waiting {
            (waiting.then)(Err(StoreError::Unknown(self.volume.clone())));
        }
    }
}

/// Line to a host that has blocks that are away here. Dropped, what was asked for on it and has not
/// come is asked for on another.
#[derive(Debug)]
pub struct Asking {
    store: Arc<Store>,
    snapshot: String,
    purpose: Purpose,
    line: Line,
}

impl Asking {
    /// Takes the blocks to ask for next. Waits for some for a while; none if there were none, and
    /// an error if there will be none.
    pub fn next(&self, most: usize, patience: Duration) -> Result<Vec<Run>, StoreError> {
        let away = &self.store.away;
        let until = Instant::now() + patience;
        let mut inner = away.inner();
        loop {
            if inner.closed {
                return Err(StoreError::Unknown(away.volume.clone()));
            }
            let Inner {
                sources, origins, ..
            } = &mut *inner;
            let source = sources.get_mut(&self.snapshot);
            let source = source.ok_or_else(|| self.store.lacks_nothing(&self.snapshot))?;
            let state = self.store.state();
            let is_lacking =
                |block| !versions(&state, origins, &self.snapshot, block).is_empty();
            let next = source
                .fetching
                .next(self.purpose, self.line, most, is_lacking);
            drop(state);
            let left = until.saturating_duration_since(Instant::now());
            if !next.is_empty() || left.is_zero() {
                return Ok(Run::of(next));
            }
            let waited = away.changed.wait_timeout(inner, left);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has these blocks fetched before others that no reader waits for.
    pub fn hottest(&self, runs: &[Run]) {
        let mut inner = self.store.away.inner();
        if let Some(source) = inner.sources.get_mut(&self.snapshot) {
            source.fetching.hottest(runs);
        }
    }

    /// Takes the answer to a question from a stream. What comes is durable with the next flush.
    pub fn take(&self, asked: &[Run], input: &mut dyn io::Read) -> Result<(), StoreError> {
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

    fn came(&self, asked: &[Run], first: BlockNo, data: &[u8]) -> Result<(), StoreError> {
        self.store.take_fetched(&self.snapshot, first, data)?;
        let blocks = data.len() / forkyard_volume::BLOCK_BYTES;
        let came = Run {
            first,
            count: blocks as u64,
        };
        let asked = asked.iter().flat_map(|it| it.blocks());
        let asked: Vec<_> = asked.filter(|it| came.contains(*it)).collect();
        self.store.counters.fetched(self.purpose, data.len() as u64);
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
            if self.purpose == Purpose::Demand {
                source.connected = source.connected.saturating_sub(1);
            }
        }
        drop(inner);
        away.changed.notify_all();
    }
}

/// Versions in which a block is away because of a snapshot.
pub(crate) fn versions(
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
    /// Tells whether blocks of it, or of what it lies over, may be at another site.
    pub(crate) fn is_lacking(&self) -> bool {
        let own = !self.away.inner().origins.is_empty();
        own || self.base.as_ref().is_some_and(|base| base.is_lacking())
    }

    fn lacks_nothing(&self, snapshot: &str) -> StoreError {
        StoreError::NothingLacking {
            volume: self.name.clone(),
            snapshot: snapshot.to_owned(),
        }
    }

    /// Notes, durably, that a snapshot at another host has what the records behind this lack.
    pub(crate) fn begin_origin(&self, host: &str, snapshot: &str) -> Result<(), StoreError> {
        let from = 1 + self
            .state()
            .volume
            .last_version()
            .map_or(0, Version::number);
        let mut inner = self.away.inner();
        // What a crash took of later versions is not there: they are given anew.
        inner.origins.retain(|it| it.from < from);
        (inner.begun, inner.coming) = (inner.begun + 1, true);
        inner.origins.push(Origin {
            host: host.to_owned(),
            snapshot: snapshot.to_owned(),
            from,
        });
        self.folder.store(FILE, &inner.origins)
    }

    /// All of a stream has come, or no more of it will.
    pub(crate) fn end_origin(&self) {
        self.away.inner().coming = false;
    }

    /// Looks at which blocks are away, and begins or goes on to have them fetched. Origins of which
    /// nothing is lacking are forgotten, once all that came from them is durable.
    pub fn survey(&self) -> Result<(), StoreError> {
        let begun = self.away.inner().begun;
        let lacking = self.runs_lacking();
        let mut inner = self.away.inner();
        if inner.coming {
            return Err(StoreError::Coming(self.name.clone()));
        }
        for (snapshot, runs) in &lacking {
            // One that is known goes on in its order; blocks that came are passed over.
            inner
                .sources
                .entry(snapshot.clone())
                .or_insert_with(|| Source {
                    fetching: Fetching::new(runs.clone()),
                    connected: 0,
                    heard: Instant::now(),
                });
        }
        let known = |it: &Origin| lacking.contains_key(&it.snapshot);
        if inner.origins.iter().all(known) {
            return Ok(());
        }
        drop(inner);
        self.flush()?;
        let mut inner = self.away.inner();
        if inner.coming || inner.begun != begun {
            return Ok(());
        }
        inner.origins.retain(known);
        inner.sources.retain(|it, _| lacking.contains_key(it));
        let stored = self.folder.store(FILE, &inner.origins);
        drop(inner);
        self.away.changed.notify_all();
        stored
    }

    /// Runs of blocks that are away, by the snapshot at another host that has them.
    fn runs_lacking(&self) -> BTreeMap<String, Vec<Run>> {
        let origins = self.away.inner().origins.clone();
        if origins.is_empty() {
            return BTreeMap::new();
        }
        // Shares the maps: what takes a while is done with a copy.
        let volume = self.state().volume.clone();
        let mut found: BTreeMap<String, BTreeSet<BlockNo>> = BTreeMap::new();
        for (block, version) in volume.maps().flat_map(|map| map.absent()) {
            let mut earlier = origins.iter().rev();
            if let Some(origin) = earlier.find(|it| it.from <= version.number()) {
                match found.get_mut(&origin.snapshot) {
                    Some(blocks) => {
                        blocks.insert(block);
                    }
                    None => {
                        found.insert(origin.snapshot.clone(), BTreeSet::from([block]));
                    }
                }
            }
        }
        let runs = found.into_iter().map(|(it, blocks)| (it, Run::of(blocks)));
        runs.collect()
    }

    /// Tells how much of it is at other hosts.
    pub fn lacking(&self) -> Vec<Lacking> {
        let runs = self.runs_lacking();
        let origins = self.away.inner().origins.clone();
        let lacking = runs.into_iter().filter_map(|(snapshot, runs)| {
            let origin = origins.iter().find(|it| it.snapshot == snapshot)?;
            Some(Lacking {
                host: origin.host.clone(),
                blocks: runs.iter().map(|it| it.count).sum(),
                snapshot,
            })
        });
        lacking.collect()
    }

    /// Opens a line for what a snapshot at another host has. An error if nothing of it is lacking:
    /// all of it is durable here then.
    pub fn ask(self: &Arc<Self>, snapshot: &str, purpose: Purpose) -> Result<Asking, StoreError> {
        self.survey()?;
        let mut inner = self.away.inner();
        inner.lines += 1;
        let line = Line(inner.lines);
        let source = inner.sources.get_mut(snapshot);
        let source = source.ok_or_else(|| self.lacks_nothing(snapshot))?;
        if purpose == Purpose::Demand {
            source.connected += 1;
            source.heard = Instant::now();
        }
        Ok(Asking {
            store: Arc::clone(self),
            snapshot: snapshot.to_owned(),
            purpose,
            line,
        })
    }

    /// Takes what was fetched into the log, where it is lacking still.
    fn take_fetched(
        &self,
        snapshot: &str,
        first: BlockNo,
        data: &[u8],
    ) -> Result<(), StoreError> {
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
        let moves = keys.iter().map(|((block, version), data)| {
            forkyard_volume::Change::Move {
                block: *block,
                version: *version,
                data,
            }
        });
        self.append(&mut appender, &moves.collect::<Vec<_>>())
    }

    /// Ends all lines, and the patience of all readers: it is removed.
    pub(crate) fn end_lines(&self) {
        self.away.close();
    }

    /// Gives readers an error who have waited for another host for too long.
    pub fn expire(&self, now: Instant) {
        self.away.let_go_on(self);
        self.away.expire(now);
    }
}
