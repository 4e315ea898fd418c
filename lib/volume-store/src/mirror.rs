//! Copies of a volume at other hosts that every flush waits for.
//!
//! ```text
//! flush --local--> durable here --held by all?--yes--> answered
//!                                     |no
//!                                     v
//!   line of each host: snapshot mirror-HOST-N --what differs from the one before--> host
//!                                     ^------------- "held": durable there ----------'
//! ```
//!
//! Flushes that come while one is under way share the next. A version is the number of a write, so that
//! what a host holds is told by one number.
//!
//! | | then |
//! |---|---|
//! | a host is away, [`WhenAway::Wait`] | flushes wait, and fail with [`StoreError::MirrorAway`] after [`PATIENCE`]; they may be tried again |
//! | a host is away, [`WhenAway::GoOn`] | flushes are answered without it, and it is said how far behind it is; so until the first round of the next line is held |
//! | a host has promoted its copy | the writer here is fenced: the volume is at home there |
//! | this process dies | the host says which snapshot it has; what differs from that is sent |

use crate::{MirrorFacts, MirrorPlan, PATIENCE, Store, StoreError, WhenAway};
use forkyard_volume::{ChangeRefusal, Opening};
use std::{
    collections::BTreeMap,
    fmt,
    io::Write,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    time::{Duration, Instant},
};

/// File of the hosts that hold copies.
pub(crate) const FILE: &str = "mirrors";
/// Beginning of the names of snapshots that are sent to them.
pub const MIRRORED: &str = "mirror-";
/// Time after which a copy is brought up to date though no flush waits for it.
const LAZY: Duration = Duration::from_secs(2);

type Then = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Hosts that hold copies, and flushes that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Mirrors {
    volume: String,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Held, of a copy, while a stream of the host where it is at home is taken, or it is promoted.
    pub receiving: Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    plan: MirrorPlan,
    sites: BTreeMap<String, Site>,
    waiting: Vec<Waiting>,
    lines: u64,
    closed: bool,
}

#[derive(Debug)]
struct Site {
    /// Last version that it holds.
    held: u64,
    /// Line to it, if there is one.
    line: Option<u64>,
    /// True once it has held a round of that line.
    keeps_up: bool,
    /// Time of the last word of it.
    heard: Instant,
    is_promoted: bool,
}

struct Waiting {
    target: u64,
    then: Then,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting")
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

/// Flush that other hosts do not hold yet.
#[derive(Clone)]
pub struct Unheld {
    mirrors: Arc<Mirrors>,
    target: u64,
}

impl fmt::Debug for Unheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unheld")
            .field("volume", &self.mirrors.volume)
            .field("target", &self.target)
            .finish()
    }
}

impl Unheld {
    /// Calls a function once all hosts hold it, or cannot be waited for any longer. It is called on any
    /// thread.
    pub fn when_held(self, then: impl FnOnce(Result<(), StoreError>) + Send + 'static) {
        let mut inner = self.mirrors.inner();
        inner.waiting.push(Waiting {
            target: self.target,
            then: Box::new(then),
        });
        drop(inner);
        // It may be held by now; and lines have something to send.
        self.mirrors.settle(None);
    }

    /// Waits until all hosts hold it.
    pub(crate) fn wait(self) -> Result<(), StoreError> {
        let (sender, held) = mpsc::channel();
        self.when_held(move |outcome| {
            let _ = sender.send(outcome);
        });
        held.recv().unwrap_or(Err(StoreError::Failed))
    }
}

impl Inner {
    /// Hosts that do not hold a version and have to.
    fn lacking(&self, target: u64) -> impl Iterator<Item = &String> {
        self.plan.hosts.iter().filter(move |host| {
            let site = self.sites.get(*host);
            // What it lacks since it was away may take long.
            let keeps_up = site.is_some_and(|it| it.line.is_some() && it.keeps_up);
            let is_held = site.is_some_and(|it| it.held >= target);
            let may_go_on = self.plan.away == WhenAway::GoOn && !keeps_up;
            !is_held && !may_go_on
        })
    }
}

impl Mirrors {
    pub fn new(volume: &str, plan: MirrorPlan) -> Self {
        let mirrors = Self {
            volume: volume.to_owned(),
            ..Self::default()
        };
        mirrors.inner().begin(plan);
        mirrors
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers flushes that are held; with the time, also those that have waited for too long.
    fn settle(&self, now: Option<Instant>) {
        let mut inner = self.inner();
        let waiting = std::mem::take(&mut inner.waiting);
        let mut done = Vec::new();
        for one in waiting {
            let lacking = inner.lacking(one.target).next().cloned();
            let outcome = match lacking {
                _ if inner.closed => Some(Err(StoreError::Unknown(self.volume.clone()))),
                None => Some(Ok(())),
                Some(host) => {
                    let site = inner.sites.get(&host);
                    let is_late = |now: Instant| {
                        site.is_none_or(|it| now.saturating_duration_since(it.heard) >= PATIENCE)
                    };
                    let volume = self.volume.clone();
                    match site {
                        Some(site) if site.is_promoted => {
                            Some(Err(StoreError::Promoted { volume, host }))
                        }
                        Some(_) | None => now
                            .is_some_and(is_late)
                            .then_some(Err(StoreError::MirrorAway { volume, host })),
                    }
                }
            };
            match outcome {
                Some(outcome) => done.push((one.then, outcome)),
                None => inner.waiting.push(one),
            }
        }
        drop(inner);
        self.changed.notify_all();
        done.into_iter().for_each(|(then, outcome)| then(outcome));
    }
}

impl Inner {
    fn begin(&mut self, plan: MirrorPlan) {
        self.sites.retain(|host, _| plan.hosts.contains(host));
        for host in &plan.hosts {
            self.sites.entry(host.clone()).or_insert_with(|| Site {
                held: 0,
                line: None,
                keeps_up: false,
                heard: Instant::now(),
                is_promoted: false,
            });
        }
        self.plan = plan;
    }
}

/// Line to a host that holds a copy. Dropped, that host is away.
#[derive(Debug)]
pub struct MirrorLine {
    store: Arc<Store>,
    host: String,
    number: u64,
    /// Snapshot that the host has.
    since: Option<String>,
    rounds: u64,
}

/// Snapshot that a host is to hold next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Snapshot.
    pub snapshot: String,
    version: u64,
}

/// Number of a snapshot that was sent to a host, in digits. None if it is another snapshot.
fn number_of<'a>(snapshot: &'a str, host: &str) -> Option<&'a str> {
    let number = snapshot.strip_prefix(MIRRORED)?.strip_prefix(host)?;
    let number = number.strip_prefix('-')?;
    number
        .bytes()
        .all(|it| it.is_ascii_digit())
        .then_some(number)
}

impl Store {
    /// Says which hosts every flush waits for, durably.
    pub fn set_mirrors(&self, plan: MirrorPlan) -> Result<(), StoreError> {
        self.refuse_branch("mirrored")?;
        self.folder.store(FILE, &plan)?;
        let mut inner = self.mirrors.inner();
        let former = inner.plan.hosts.clone();
        inner.begin(plan.clone());
        drop(inner);
        self.mirrors.settle(None);
        for host in former.iter().filter(|it| !plan.hosts.contains(it)) {
            self.drop_mirrored(host, None)?;
        }
        Ok(())
    }

    /// Hosts that every flush waits for.
    pub fn mirror_plan(&self) -> MirrorPlan {
        self.mirrors.inner().plan.clone()
    }

    /// State of the copies at other hosts.
    pub fn mirrors(&self) -> Vec<MirrorFacts> {
        let last = self.written_version();
        let inner = self.mirrors.inner();
        let facts = inner.plan.hosts.iter().map(|host| {
            let site = inner.sites.get(host);
            MirrorFacts {
                host: host.clone(),
                is_there: site.is_some_and(|it| it.line.is_some()),
                behind: last - site.map_or(0, |it| it.held).min(last),
                is_promoted: site.is_some_and(|it| it.is_promoted),
            }
        });
        facts.collect()
    }

    fn written_version(&self) -> u64 {
        let last = self.state().volume.last_version();
        last.map_or(0, |it| it.number())
    }

    /// Makes durable every write that has returned: here, and at all hosts that are to hold them. If they
    /// do not yet, [`StoreError::Unheld`] says how to wait; `target` is to be given again then.
    pub fn flush_held(&self, target: &mut Option<u64>) -> Result<(), StoreError> {
        let wanted = *target.get_or_insert_with(|| self.written_version());
        self.flush()?;
        let inner = self.mirrors.inner();
        match inner.lacking(wanted).next() {
            None => Ok(()),
            Some(_) => Err(StoreError::Unheld(Unheld {
                mirrors: Arc::clone(&self.mirrors),
                target: wanted,
            })),
        }
    }

    /// Makes durable every write that has returned, and waits for all hosts that are to hold them.
    pub fn flush_everywhere(&self) -> Result<(), StoreError> {
        match self.flush_held(&mut None) {
            Err(StoreError::Unheld(unheld)) => unheld.wait(),
            flushed => flushed,
        }
    }

    /// Answers flushes that have waited for a host for too long.
    pub fn expire_mirrors(&self, now: Instant) {
        self.mirrors.settle(Some(now));
    }

    /// Ends all lines, and the patience of all flushes.
    pub(crate) fn end_mirrors(&self) {
        self.mirrors.inner().closed = true;
        self.mirrors.settle(None);
    }

    /// Begins a line to a host that has these snapshots. A former one ends.
    pub fn mirror(
        self: &Arc<Self>,
        host: &str,
        theirs: &[String],
    ) -> Result<MirrorLine, StoreError> {
        let ours = self.mirrored(host);
        let since = ours.iter().rev().find(|it| theirs.contains(it)).cloned();
        let mut inner = self.mirrors.inner();
        inner.lines += 1;
        let number = inner.lines;
        let site = inner.sites.get_mut(host);
        let site = site.ok_or_else(|| StoreError::NotMirrored {
            volume: self.name.clone(),
            host: host.to_owned(),
        })?;
        // It may have lost what it held: it is told anew.
        (site.line, site.heard, site.held) = (Some(number), Instant::now(), 0);
        (site.keeps_up, site.is_promoted) = (false, false);
        drop(inner);
        // Flushes that waited for the line before may go on without it.
        self.mirrors.settle(None);
        self.drop_mirrored(host, since.as_deref())?;
        let all = ours.iter().chain(theirs);
        let last = all.filter_map(|it| number_of(it, host)?.parse().ok());
        Ok(MirrorLine {
            store: Arc::clone(self),
            host: host.to_owned(),
            number,
            since,
            rounds: last.max().unwrap_or(0),
        })
    }

    /// Snapshots that were sent to a host, oldest first.
    fn mirrored(&self, host: &str) -> Vec<String> {
        let names = self.snapshot_names().into_iter();
        names.filter(|it| number_of(it, host).is_some()).collect()
    }

    /// Removes snapshots that were sent to a host, but for one.
    fn drop_mirrored(&self, host: &str, kept: Option<&str>) -> Result<(), StoreError> {
        for name in self.mirrored(host) {
            if Some(&*name) != kept {
                self.drop_snapshot(self.snapshot_called(&name)?)?;
            }
        }
        Ok(())
    }

    /// Fences the writer: the volume is at home at a host that has promoted its copy.
    pub fn promoted_at(&self, host: &str) -> Result<(), StoreError> {
        if let Some(site) = self.mirrors.inner().sites.get_mut(host) {
            site.is_promoted = true;
        }
        let closed = match self.writer() {
            (epoch, Opening::Open) => self.close_writer(epoch),
            (_, Opening::Closed) => Ok(()),
        };
        self.mirrors.settle(None);
        closed
    }
}

impl MirrorLine {
    /// Waits for something that the host is to hold, and keeps it as a snapshot. None after a while; an
    /// error if this line is not wanted any more.
    pub fn next(&mut self, patience: Duration) -> Result<Option<Round>, StoreError> {
        let until = Instant::now() + patience;
        let begun = Instant::now();
        let mirrors = &self.store.mirrors;
        let mut inner = mirrors.inner();
        loop {
            let closed = inner.closed;
            let site = inner.sites.get_mut(&self.host);
            let site = site.filter(|it| it.line == Some(self.number) && !closed);
            let Some(site) = site else {
                return Err(StoreError::NotMirrored {
                    volume: self.store.name.clone(),
                    host: self.host.clone(),
                });
            };
            let (held, keeps_up) = (site.held, site.keeps_up);
            let is_wanted = inner.waiting.iter().any(|it| it.target > held);
            let last = self.store.written_version();
            let is_due = begun.elapsed() >= LAZY.min(patience);
            let is_lazy = is_due && (last > held || !keeps_up);
            if is_wanted || is_lazy || self.since.is_none() {
                break;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let waited = mirrors.changed.wait_timeout(inner, left);
            inner = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(inner);
        // The other host may have told any number.
        let next = self.rounds.checked_add(1);
        self.rounds = next.ok_or(ChangeRefusal::Exhausted("numbers of rounds"))?;
        let snapshot = format!("{MIRRORED}{}-{}", self.host, self.rounds);
        // No write between both: what is told to be held is in it.
        let mut appender = self.store.appender();
        let change = forkyard_volume::Change::Snapshot { name: &snapshot };
        self.store.append(&mut appender, &[change])?;
        let version = self.store.written_version();
        drop(appender);
        Ok(Some(Round { snapshot, version }))
    }

    /// Writes what the host lacks of it to a stream.
    pub fn send(&self, round: &Round, out: &mut dyn Write) -> Result<(), StoreError> {
        let what = (&*round.snapshot, self.since.as_deref());
        let sent = self
            .store
            .send_to(Some(&self.host), what, &crate::Ahead::All, out);
        sent.map(drop)
    }

    /// Notes that the host holds it, durably: flushes that waited for that are answered.
    pub fn held(&mut self, round: Round) -> Result<(), StoreError> {
        let mut inner = self.store.mirrors.inner();
        if let Some(site) = inner.sites.get_mut(&self.host)
            && site.line == Some(self.number)
        {
            (site.held, site.heard) = (site.held.max(round.version), Instant::now());
            site.keeps_up = true;
        }
        drop(inner);
        self.store.mirrors.settle(None);
        let former = self.since.replace(round.snapshot);
        match former {
            Some(former) => self.store.drop_mirrored_one(&former),
            None => Ok(()),
        }
    }

    /// Notes a word of the host.
    pub fn heard(&self) {
        if let Some(site) = self.store.mirrors.inner().sites.get_mut(&self.host) {
            site.heard = Instant::now();
        }
    }

    /// Volume that it is of.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Host at its other end.
    pub fn host(&self) -> &str {
        &self.host
    }
}

impl Store {
    /// Removes a snapshot that was sent or taken for a copy. Durable with the next flush: it is found again after a
    /// crash, and removed by the next line.
    pub(crate) fn drop_mirrored_one(&self, name: &str) -> Result<(), StoreError> {
        let id = self.snapshot_called(name)?;
        let mut appender = self.appender();
        self.append(&mut appender, &[forkyard_volume::Change::Drop { id }])
    }
}

impl Drop for MirrorLine {
    fn drop(&mut self) {
        let mut inner = self.store.mirrors.inner();
        if let Some(site) = inner.sites.get_mut(&self.host)
            && site.line == Some(self.number)
        {
            site.line = None;
        }
        drop(inner);
        self.store.mirrors.settle(None);
    }
}
