//! Budgets of the links to other hosts, for blocks of volumes that nothing waits for.
//!
//! ```text
//! server of volumes --blocks--> line --Meter--> other host
//!                                 |- fill: as fast as the rate allows, and as much as the day's budget
//!                                 `- demand: at once, and counted
//! ```
//!
//! Kept in a file of the state folder, with what was sent today: a daemon that starts anew goes on with
//! it. After a crash a few MiB of the day may be missing. The file is written without the lock of the
//! links: lines go on meanwhile.

use crate::{Host, HostError};
use forkyard_replicate::{Allowance, Meter, Money};
use forkyard_types::{BitRate, ByteCount, LinkBudget, LinkView};
use forkyard_vm::lock;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind, Write as _},
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::sleep,
};

/// Bytes after which it is written down what was sent.
const NOTED: u64 = 8 << 20;
/// Bytes that are carried at once.
const PIECE: usize = 64 << 10;
/// Longest pause between looks at a budget: it may have been changed.
const LOOK: Duration = Duration::from_secs(1);

/// Links of this host, by the names of the other hosts.
#[derive(Debug)]
pub(crate) struct Links {
    file: Arc<StateFile>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    links: BTreeMap<String, Link>,
    /// States that were taken to be stored.
    states: u64,
}

/// File with the state of the links.
#[derive(Debug)]
struct StateFile {
    path: PathBuf,
    /// Number of the last state in it. Held while one is written.
    last: Mutex<u64>,
}

/// State of the links, to be stored.
#[derive(Debug)]
struct State {
    number: u64,
    /// None: there is nothing to go on with.
    links: Option<BTreeMap<String, Stored>>,
}

#[derive(Clone, Debug, Default)]
struct Link {
    budget: LinkBudget,
    meter: Meter,
    /// Bytes that are not written down.
    unnoted: u64,
}

/// Link as it is stored.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    budget: LinkBudget,
    day: u64,
    spent: u64,
}

fn now() -> Duration {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH);
    passed.unwrap_or_default()
}

fn allowance(budget: LinkBudget) -> Allowance {
    let money = budget.price.zip(budget.money);
    Allowance {
        rate: budget.rate.map(BitRate::bytes),
        daily: budget.daily.map(|it| it.0),
        money: money.map(|(price, daily)| Money { price, daily }),
    }
}

impl Inner {
    fn link(&mut self, host: &str) -> &mut Link {
        self.links.entry(host.to_owned()).or_default()
    }

    /// Counts bytes that were sent. Returns a state once there is enough to write it down.
    fn note(&mut self, host: &str, bytes: u64) -> Option<State> {
        let link = self.link(host);
        link.unnoted += bytes;
        let is_due = link.unnoted >= NOTED;
        is_due.then(|| self.state())
    }

    /// Takes budgets and what was sent today, to be stored.
    fn state(&mut self) -> State {
        self.states += 1;
        let links = self.links.iter_mut().map(|(host, link)| {
            let (day, spent) = link.meter.spent(now());
            link.unnoted = 0;
            let budget = link.budget;
            (host.clone(), Stored { budget, day, spent })
        });
        let links: BTreeMap<_, _> = links.collect();
        // Without a budget there is nothing to go on with.
        let has_budget = links.values().any(|it| it.budget != LinkBudget::default());
        State {
            number: self.states,
            links: has_budget.then_some(links),
        }
    }
}

impl StateFile {
    /// Writes a state down, durably, unless a later one is there. Blocks.
    fn put(&self, state: State) -> io::Result<()> {
        let mut last = lock(&self.last);
        if *last > state.number {
            return Ok(());
        }
        match state.links {
            None => match fs::remove_file(&self.path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => {
                    removed?;
                    self.sync_folder()?;
                }
            },
            Some(links) => {
                let fresh = self.path.with_extension("new");
                let mut file = forkyard_sys_host::private::create(&fresh)?;
                file.write_all(&serde_json::to_vec(&links)?)?;
                file.sync_all()?;
                fs::rename(&fresh, &self.path)?;
                self.sync_folder()?;
            }
        }
        *last = state.number;
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        match self.path.parent() {
            Some(folder) => fs::File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }
}

impl Links {
    /// Reads what is stored. A file that is no such is an error: a budget is not forgotten.
    pub fn open(file: PathBuf) -> Result<Self, HostError> {
        let read = || -> io::Result<BTreeMap<String, Stored>> {
            match fs::read(&file) {
                Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeMap::new()),
                Err(error) => Err(error),
            }
        };
        let stored = read().map_err(|error| {
            let nonsense = [ErrorKind::InvalidData, ErrorKind::UnexpectedEof];
            if !nonsense.contains(&error.kind()) {
                return HostError::io("read", &file)(error);
            }
            HostError::Broken(format!(
                "{} cannot be understood ({error}): it has the budgets of links and what was spent of \
                 them; mend it, or move it away to start without budgets",
                file.display()
            ))
        })?;
        let links = stored.into_iter().map(|(host, it)| {
            let link = Link {
                meter: Meter::new(allowance(it.budget), (it.day, it.spent)),
                budget: it.budget,
                unnoted: 0,
            };
            (host, link)
        });
        let inner = Inner {
            links: links.collect(),
            states: 0,
        };
        Ok(Self {
            inner: Mutex::new(inner),
            file: Arc::new(StateFile {
                path: file,
                last: Mutex::new(0),
            }),
        })
    }

    /// Counts bytes that were sent because something waits for them.
    fn spend(&self, host: &str, bytes: u64) {
        let mut inner = lock(&self.inner);
        inner.link(host).meter.spend(now(), bytes);
        let due = inner.note(host, bytes);
        drop(inner);
        self.write_down(due);
    }

    fn take(&self, host: &str, wanted: u64) -> Result<u64, Duration> {
        let mut inner = lock(&self.inner);
        let taken = inner.link(host).meter.take(now(), wanted)?;
        let due = inner.note(host, taken);
        drop(inner);
        self.write_down(due);
        Ok(taken)
    }

    /// Has a state written on a thread that may wait for the disk. To be called on the runtime.
    fn write_down(&self, due: Option<State>) {
        let Some(state) = due else { return };
        let file = Arc::clone(&self.file);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = file.put(state) {
                tracing::warn!(%error, "what was sent is not written down");
            }
        });
    }

    /// Time until the day's budget of a link is there again, if it is used up.
    pub fn used_up(&self, host: &str) -> Option<Duration> {
        let mut inner = lock(&self.inner);
        inner.links.get_mut(host)?.meter.used_up(now())
    }

    fn view(host: &str, link: &mut Link) -> LinkView {
        let now = now();
        let (_, spent) = link.meter.spent(now);
        LinkView {
            host: host.to_owned(),
            budget: link.budget,
            daily_bytes: link.meter.allowance().bytes_a_day().map(ByteCount),
            sent_today: ByteCount(spent),
            waits_s: link.meter.used_up(now).map(|it| it.as_secs()),
        }
    }

    /// Carries what the server of volumes sends: what fills a volume within the budget, what is waited
    /// for at once. Not cancel-safe: what was read and not yet written is lost, and the line with it.
    pub async fn carry(
        &self,
        (host, fill): (&str, bool),
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            let count = from.read(&mut piece).await?;
            if count == 0 {
                return to.shutdown().await;
            }
            let mut left = &piece[..count];
            while !left.is_empty() {
                let may = match fill {
                    false => {
                        self.spend(host, left.len() as u64);
                        left.len()
                    }
                    true => match self.take(host, left.len() as u64) {
                        Ok(may) => usize::try_from(may).unwrap_or(left.len()),
                        Err(wait) => {
                            sleep(wait.min(LOOK)).await;
                            0
                        }
                    },
                };
                let (goes, rest) = left.split_at(may);
                to.write_all(goes).await?;
                left = rest;
            }
        }
    }
}

impl Host {
    /// Links to other hosts that have a budget, or by which blocks of volumes were sent today.
    pub fn link_budgets(&self) -> Vec<LinkView> {
        let mut inner = lock(&self.volumes.links.inner);
        let links = inner.links.iter_mut();
        links.map(|(host, link)| Links::view(host, link)).collect()
    }

    /// Changes the budget of the link to another host, from now on.
    pub fn set_link_budget(&self, host: &str, budget: LinkBudget) -> Result<LinkView, HostError> {
        if budget.price.is_some() != budget.money.is_some() {
            let text = "money is for what a gigabyte costs: give both, or neither";
            return Err(HostError::Invalid(text.into()));
        }
        let allowance = allowance(budget);
        if allowance.money.is_some_and(|money| !money.is_sound()) {
            let text = "a price is more than nothing, and money is not negative";
            return Err(HostError::Invalid(text.into()));
        }
        // Of a host that is not known it would be of no use.
        self.peer(host)?;
        let mut inner = lock(&self.volumes.links.inner);
        let link = inner.link(host);
        link.budget = budget;
        link.meter.tune(allowance);
        let seen = Links::view(host, link);
        let state = inner.state();
        drop(inner);
        let file = &self.volumes.links.file;
        let stored = file.put(state);
        stored.map_err(HostError::io("write", &file.path))?;
        Ok(seen)
    }
}
