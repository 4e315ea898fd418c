//! Budgets of the links to other hosts, for blocks of volumes that nothing waits for.
//!
//! ```text
//! server of volumes --blocks--> line --Meter--> other host
//!                                 |- fill: as fast as the rate allows, and as much as the day's budget
//!                                 `- demand: at once, and counted
//! ```
//!
//! Kept in a file of the state folder, with what was sent today: a daemon that starts anew goes on with
//! it. After a crash a few MiB of the day may be missing.

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
    sync::Mutex,
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
    file: PathBuf,
    inner: Mutex<BTreeMap<String, Link>>,
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
        let stored = read().map_err(HostError::io("read", &file))?;
        let links = stored.into_iter().map(|(host, it)| {
            let link = Link {
                meter: Meter::new(allowance(it.budget), (it.day, it.spent)),
                budget: it.budget,
                unnoted: 0,
            };
            (host, link)
        });
        Ok(Self {
            inner: Mutex::new(links.collect()),
            file,
        })
    }

    /// Writes down budgets and what was sent today.
    fn store(&self, links: &mut BTreeMap<String, Link>) -> io::Result<()> {
        // Without a budget there is nothing to go on with.
        if links.values().all(|it| it.budget == LinkBudget::default()) {
            return match fs::remove_file(&self.file) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                removed => removed,
            };
        }
        let stored: BTreeMap<_, _> = links
            .iter_mut()
            .map(|(host, link)| {
                let (day, spent) = link.meter.spent(now());
                link.unnoted = 0;
                let budget = link.budget;
                (host.clone(), Stored { budget, day, spent })
            })
            .collect();
        let fresh = self.file.with_extension("new");
        let mut file = forkyard_sys_host::private::create(&fresh)?;
        file.write_all(&serde_json::to_vec(&stored)?)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.file)
    }

    /// Counts bytes that were sent because something waits for them.
    fn spend(&self, host: &str, bytes: u64) {
        let mut links = lock(&self.inner);
        let link = links.entry(host.to_owned()).or_default();
        link.meter.spend(now(), bytes);
        self.noted(host, bytes, &mut links);
    }

    fn noted(&self, host: &str, bytes: u64, links: &mut BTreeMap<String, Link>) {
        let Some(link) = links.get_mut(host) else {
            return;
        };
        link.unnoted += bytes;
        if link.unnoted >= NOTED
            && let Err(error) = self.store(links)
        {
            tracing::warn!(%error, "what was sent is not written down");
        }
    }

    fn take(&self, host: &str, wanted: u64) -> Result<u64, Duration> {
        let mut links = lock(&self.inner);
        let taken = links.entry(host.to_owned()).or_default();
        let taken = taken.meter.take(now(), wanted)?;
        self.noted(host, taken, &mut links);
        Ok(taken)
    }

    /// Time until the day's budget of a link is there again, if it is used up.
    pub fn used_up(&self, host: &str) -> Option<Duration> {
        let mut links = lock(&self.inner);
        links.get_mut(host)?.meter.used_up(now())
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
    /// for at once.
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
        let mut links = lock(&self.links.inner);
        let links = links.iter_mut();
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
        let mut links = lock(&self.links.inner);
        let link = links.entry(host.to_owned()).or_default();
        link.budget = budget;
        link.meter.tune(allowance);
        let seen = Links::view(host, link);
        let stored = self.links.store(&mut links);
        stored.map_err(HostError::io("write", &self.links.file))?;
        Ok(seen)
    }
}
