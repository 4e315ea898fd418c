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

use crate::{Store, StoreError, files::Folder};
use forkyard_replicate::{BlockFetching, BlockRun};
use forkyard_volume::{BlockNo, Version};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
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
    pub(crate) from: u64,
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

/// Blocks of a volume that are away, and readers that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Away {
    pub(crate) volume: String,
    inner: Mutex<Inner>,
    pub(crate) changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub origins: Vec<Origin>,
    pub sources: BTreeMap<String, Source>,
    pub waiting: Vec<Waiting>,
    pub lines: u64,
    /// Origins that were begun.
    begun: u64,
    /// A stream comes in: what it lacks is not known yet.
    coming: bool,
    /// The volume is being removed.
    pub closed: bool,
}

#[derive(Debug)]
pub(crate) struct Source {
    pub fetching: BlockFetching,
    /// Time at which a line for readers was last opened, or one brought something.
    pub heard: Instant,
}

pub(crate) struct Waiting {
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

    pub fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whether it is known where all of these are. If not, they may have come meanwhile.
    pub fn knows(&self, blocks: &[Key]) -> Result<bool, StoreError> {
        let inner = self.inner();
        match inner.closed {
            true => Err(StoreError::Unknown(self.volume.clone())),
            false => Ok({ blocks.iter() }.all(|(_, version)| inner.origin(*version).is_some())),
        }
    }

    /// Readers' error for blocks that are away.
    pub fn absent(self: &Arc<Self>, blocks: Vec<Key>) -> Absent {
        Absent {
            away: Arc::clone(self),
            blocks,
        }
    }

    pub fn came(&self, snapshot: &str, asked: &[BlockNo]) {
        let mut inner = self.inner();
        if let Some(source) = inner.sources.get_mut(snapshot) {
            source.heard = Instant::now();
            asked.iter().for_each(|it| source.fetching.came(*it));
        }
    }

    /// Has readers go on whose blocks were fetched, or written over.
    pub fn let_go_on(&self, store: &Store) {
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

    /// Gives readers an error that wait for a host that does not answer.
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

impl Store {
    /// Tells whether blocks of it, or of what it lies over, may be at another site.
    pub(crate) fn is_lacking(&self) -> bool {
        let own = !self.away.inner().origins.is_empty();
        own || self.base.as_ref().is_some_and(|base| base.is_lacking())
    }

    pub(crate) fn lacks_nothing(&self, snapshot: &str) -> StoreError {
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
        let inner = self.away.inner();
        let begun = inner.begun;
        if inner.coming {
            return Err(StoreError::Coming(self.name.clone()));
        }
        drop(inner);
        let lacking = self.runs_lacking();
        let mut inner = self.away.inner();
        if inner.coming || inner.begun != begun {
            return Err(StoreError::Coming(self.name.clone()));
        }
        for (snapshot, runs) in &lacking {
            // One that is known goes on in its order; blocks that came are passed over.
            inner
                .sources
                .entry(snapshot.clone())
                .or_insert_with(|| Source {
                    fetching: BlockFetching::new(runs.clone()),
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
    fn runs_lacking(&self) -> BTreeMap<String, Vec<BlockRun>> {
        let origins = self.away.inner().origins.clone();
        if origins.is_empty() {
            return BTreeMap::new();
        }
        // Shares the maps: what takes a while is done with a copy.
        let volume = self.state().volume.clone();
        let mut found: BTreeMap<&str, Vec<BlockNo>> = BTreeMap::new();
        for (block, version) in volume.maps().flat_map(|map| map.absent()) {
            let mut earlier = origins.iter().rev();
            if let Some(origin) = earlier.find(|it| it.from <= version.number()) {
                found.entry(&origin.snapshot).or_default().push(block);
            }
        }
        let runs = found.into_iter().map(|(snapshot, mut blocks)| {
            blocks.sort_unstable();
            blocks.dedup();
            (snapshot.to_owned(), BlockRun::of(blocks))
        });
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

    /// Ends all lines, and the patience of all readers: it is removed.
    pub(crate) fn end_lines(&self) {
        self.away.close();
    }

    /// Gives readers an error that have waited for another host for too long.
    pub fn expire(&self, now: Instant) {
        self.away.let_go_on(self);
        self.away.expire(now);
    }
}
