//! Progress of forks, for observers while they are made.
//!
//! Each host keeps count of the clones that it makes. The one whose VM is forked knows
//! which others make how many, and asks these only when a client looks.

use crate::{Host, HostError, clone::Asked, events};
use forkyard_events::Broadcast;
use forkyard_types::{EventVm, ForkId, ForkPhase, ForkProgress, Handout, HostProgress, VmId};
use forkyard_vm::{UnderWay, Vm, lock};
use futures::future::join_all;
use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::timeout;

/// Forks that are over and can still be looked at.
const KEPT: usize = 32;
/// Time another host may take to report its progress.
const ANSWERS: Duration = Duration::from_secs(1);

/// Forks of this host: under way, and watched.
#[derive(Debug)]
pub(crate) struct Forks {
    /// Forks and checkpoints under way; none begins once the daemon ends.
    pub under_way: UnderWay,
    pub progress: Progress,
}

impl Forks {
    pub fn new(events: Broadcast) -> Self {
        Self {
            under_way: UnderWay::default(),
            progress: Progress::new(events),
        }
    }
}

/// Forks under way, and those that were lately, in the order in which they began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    all: Arc<Mutex<All>>,
    events: Broadcast,
}

#[derive(Debug, Default)]
struct All {
    next: u64,
    entries: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Of one fork a host may make clones more than once.
    number: u64,
    parent: EventVm,
    fork: ForkProgress,
}

/// A fork under way: over when dropped.
#[derive(Debug)]
pub(crate) struct Going {
    all: Progress,
    number: u64,
}

impl Progress {
    pub fn new(events: Broadcast) -> Self {
        Self {
            events,
            ..Self::default()
        }
    }

    /// So many clones of a VM are to be made here, and others where it was asked for.
    pub fn begin(&self, parent: &Vm, here: usize, asked: &Asked) -> Going {
        self.begin_of(forkyard_vm::events::subject(&parent.record()), here, asked)
    }

    /// Begins the same for what is no VM: a substrate.
    pub fn begin_of(&self, parent: EventVm, here: usize, asked: &Asked) -> Going {
        let here = u16::try_from(here).unwrap_or(u16::MAX);
        let own = (here > 0).then(|| HostProgress::granted(None, here));
        let far = asked.far.shares.iter();
        let far =
            far.map(|share| HostProgress::granted(Some(share.peer.name().to_owned()), share.count));
        self.note(
            parent,
            ForkProgress {
                fork: asked.fork,
                watch: asked.watch,
                over: false,
                hosts: own.into_iter().chain(far).collect(),
            },
        )
    }

    /// So many clones are to be made here of another host's VM.
    pub fn begin_taken(&self, handout: &Handout, count: u16) -> Going {
        let mut here = HostProgress::granted(None, count);
        here.phase = ForkPhase::Received;
        self.note(
            EventVm {
                id: handout.parent.id,
                name: handout.parent.name.clone(),
                family: Some(handout.family.id),
            },
            ForkProgress {
                fork: handout.fork,
                watch: None,
                over: false,
                hosts: vec![here],
            },
        )
    }

    fn note(&self, parent: EventVm, fork: ForkProgress) -> Going {
        events::fork_begun(&self.events, &parent, &fork);
        let mut all = lock(&self.all);
        let number = all.next;
        all.next += 1;
        all.entries.push_back(Entry {
            number,
            parent,
            fork,
        });
        Going {
            all: self.clone(),
            number,
        }
    }

    /// Those of a VM, by its name or id, and its id.
    fn of(&self, vm: &str) -> Vec<(VmId, ForkProgress)> {
        let all = lock(&self.all);
        let same = |it: &EventVm| it.name.as_str() == vm || it.id.as_str() == vm;
        let own = all.entries.iter().filter(|entry| same(&entry.parent));
        own.map(|entry| (entry.parent.id, entry.fork.clone()))
            .collect()
    }
}

impl Going {
    /// This host is so far with its clones.
    pub fn reach(&self, phase: ForkPhase) {
        let mut reached = false;
        self.change(None, |host| {
            if !host.is_over() {
                reached = host.phase != phase;
                host.phase = phase;
            }
        });
        if reached {
            self.entry(|entry| {
                events::fork_reached(&self.all.events, &entry.parent, entry.fork.fork, phase);
            });
        }
    }

    /// Notes the outcome of one clone on a host.
    pub fn made<T>(&self, host: Option<&str>, made: &Result<T, HostError>) {
        let why = made.as_ref().err().map(|error| error.to_api().message);
        self.change(host, |host| match why {
            None => host.one_ready(),
            Some(why) => host.some_failed(1, why),
        });
    }

    /// Notes the outcome of the fork as a whole: if it failed, so have all its
    /// clones.
    pub fn over<T>(self, outcome: &Result<T, HostError>) {
        let why = match outcome {
            Ok(_) => "nothing was said of it".to_owned(),
            Err(error) => error.to_api().message,
        };
        self.entry(|entry| {
            for host in &mut entry.fork.hosts {
                match host.left() {
                    0 => {}
                    left => host.some_failed(left, why.clone()),
                }
            }
        });
    }

    fn change(&self, name: Option<&str>, change: impl FnOnce(&mut HostProgress)) {
        self.entry(|entry| {
            let mut hosts = entry.fork.hosts.iter_mut();
            if let Some(host) = hosts.find(|host| host.host.as_deref() == name) {
                change(host);
            }
        });
    }

    fn entry(&self, change: impl FnOnce(&mut Entry)) {
        let mut all = lock(&self.all.all);
        if let Some(entry) = all.entries.iter_mut().find(|it| it.number == self.number) {
            change(entry);
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.entry(|entry| {
            entry.fork.over = true;
            events::fork_over(&self.all.events, &entry.parent, &entry.fork);
        });
        let mut all = lock(&self.all.all);
        let over = all.entries.iter().filter(|entry| entry.fork.over).count();
        let mut surplus = over.saturating_sub(KEPT);
        all.entries.retain(|entry| {
            let goes = entry.fork.over && surplus > 0;
            surplus -= usize::from(goes);
            !goes
        });
    }
}

impl Host {
    /// The forks of a VM under way, and those that were lately, as far as each host that
    /// makes clones is now. Cancel-safe.
    pub async fn forks_of(&self, vm: &str) -> Result<Vec<ForkProgress>, HostError> {
        // A name may have been another VM's before; one that is gone is still asked for by it.
        let found = self.find(vm);
        let of = found.as_ref().map_or(vm, |found| found.id.as_str());
        let forks = self.forks.progress.of(of);
        if forks.is_empty() {
            found?;
        }
        let looks = forks.into_iter().map(|(parent, mut fork)| async move {
            let hosts = mem::take(&mut fork.hosts).into_iter();
            let id = fork.fork;
            let hosts = hosts.map(|host| self.as_it_says(parent, id, host));
            fork.hosts = join_all(hosts).await;
            fork
        });
        Ok(join_all(looks).await)
    }

    /// Activations of a substrate under way that are watched, and those that were lately: what each host has
    /// answered so far.
    pub fn activations_of(
        &self,
        name: &str,
        asker: Option<&str>,
    ) -> Result<Vec<ForkProgress>, HostError> {
        let name = self.substrate_named(name, asker)?;
        let watched = self.forks.progress.of(name.as_str()).into_iter();
        let watched = watched.map(|(_, progress)| progress);
        Ok(watched.filter(|it| it.watch.is_some()).collect())
    }

    /// Asks another host for its progress; falls back to the known figures if
    /// it does not answer.
    async fn as_it_says(&self, parent: VmId, fork: ForkId, known: HostProgress) -> HostProgress {
        let Some(name) = known.host.as_deref().filter(|_| !known.is_over()) else {
            return known;
        };
        let Ok(peer) = self.peer(name) else {
            return known;
        };
        match timeout(ANSWERS, peer.forks(parent)).await {
            Ok(Ok(told)) => taken_in(known, fork, told),
            Ok(Err(_)) | Err(_) => known,
        }
    }
}

/// Merges the figures known of another host with its own report.
fn taken_in(known: HostProgress, fork: ForkId, told: Vec<ForkProgress>) -> HostProgress {
    let mut same = told.into_iter().rev().filter(|told| told.fork == fork);
    // A node of a cluster calls itself by its name.
    let is_own = |it: &HostProgress| it.host.is_none() || it.host == known.host;
    let own = same.find_map(|told| told.hosts.into_iter().find(is_own));
    match own {
        Some(own) => HostProgress {
            host: known.host,
            granted: known.granted,
            ..own
        },
        None => known,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(progress: &Progress, name: &str, hosts: Vec<HostProgress>) -> Going {
        let parent = EventVm {
            id: VmId::random(),
            name: name.parse().expect("a name"),
            family: None,
        };
        let fork = ForkProgress {
            fork: ForkId::random(),
            watch: None,
            over: false,
            hosts,
        };
        progress.note(parent, fork)
    }

    fn broken() -> HostError {
        HostError::Invalid("broken".into())
    }

    #[test]
    fn each_host_is_counted_by_itself_and_what_is_over_stays_so() {
        let progress = Progress::default();
        let hosts = [None, Some("b".to_owned())].map(|host| HostProgress::granted(host, 2));
        let going = begin(&progress, "p", hosts.into());
        going.reach(ForkPhase::Starting);
        going.made::<()>(Some("b"), &Err(broken()));
        going.made::<()>(Some("b"), &Err(broken()));
        going.made::<()>(None, &Err(broken()));
        let [(_, seen)] = &progress.of("p")[..] else {
            panic!("one fork");
        };
        assert!(!seen.over && progress.of("q").is_empty());
        let phases = seen.hosts.iter().map(|host| (host.phase, host.failed));
        let wanted = [(ForkPhase::Starting, 1), (ForkPhase::Failed, 2)];
        assert_eq!(phases.collect::<Vec<_>>(), wanted);
        going.over::<()>(&Err(broken()));
        let [(_, seen)] = &progress.of("p")[..] else {
            panic!("still one");
        };
        assert!(seen.over && seen.hosts.iter().all(HostProgress::is_over));
        assert_eq!(seen.hosts[0].why.len(), 1);
    }

    #[test]
    fn those_under_way_are_kept_and_of_the_others_the_last() {
        let progress = Progress::default();
        let going = begin(&progress, "p", Vec::new());
        for _ in 0..2 * KEPT {
            drop(begin(&progress, "q", Vec::new()));
        }
        assert_eq!(progress.of("q").len(), KEPT);
        assert_eq!(progress.of("p").len(), 1);
        drop(going);
        assert_eq!(progress.of("p").len() + progress.of("q").len(), KEPT);
    }

    #[test]
    fn another_host_is_believed_of_its_own_clones_of_that_fork() {
        let known = || HostProgress::granted(Some("b".into()), 3);
        let fork = ForkId::random();
        let told = |fork, host: Option<&str>| {
            let mut host = HostProgress::granted(host.map(str::to_owned), 9);
            host.phase = ForkPhase::Starting;
            ForkProgress {
                fork,
                watch: None,
                over: false,
                hosts: vec![host],
            }
        };
        let others = vec![told(ForkId::random(), None), told(fork, Some("c"))];
        assert_eq!(taken_in(known(), fork, others), known());
        for own in [None, Some("b")] {
            let merged = taken_in(known(), fork, vec![told(fork, own)]);
            assert_eq!(merged.phase, ForkPhase::Starting);
            assert_eq!((merged.host.as_deref(), merged.granted), (Some("b"), 3));
        }
    }
}
