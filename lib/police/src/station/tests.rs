//! A host on which one VM never yields, and its police.

use super::*;
use crate::{
    Capped, Suspect,
    sample::tests::{at, vm},
};
use forkyard_types::{PoliceCap, SchedPolicy, Usage, VmUsage};
use std::{
    io,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};
use tempfile::TempDir;

const GREEDY: u32 = 100;
/// Microseconds between two looks, on the clock of the host.
const SPAN: u64 = 1_000_000;

#[derive(Debug, Default)]
struct Seen {
    vms: Vec<VmUsage>,
    looks: u64,
    capped: Vec<(u32, u32)>,
    released: Vec<u32>,
}

/// A host with two CPUs.
#[derive(Clone, Debug)]
struct Fake {
    seen: Arc<Mutex<Seen>>,
    scheduled: Option<SchedPolicy>,
    /// True if no VM can be capped.
    refuses: bool,
    /// True if no VM can be let go.
    holds: Arc<AtomicBool>,
}

impl Fake {
    fn new() -> Self {
        let vms = vec![vm("greedy", GREEDY), vm("meek", 101)];
        Self {
            seen: Arc::new(Mutex::new(Seen {
                vms,
                ..Seen::default()
            })),
            scheduled: None,
            refuses: false,
            holds: Arc::default(),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no panic")
    }

    async fn until(&self, what: impl Fn(&Seen) -> bool) {
        while !what(&self.seen()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Hands for Fake {
    type Error = io::Error;

    async fn usage(&self) -> Result<Usage, io::Error> {
        let mut seen = self.seen();
        seen.looks += 1;
        // One has four times a CPU to do, the other one.
        for (vm, (used, waited)) in seen.vms.iter_mut().zip([(15, 25), (3, 7)]) {
            vm.cpu_us += used * SPAN / 10;
            vm.waited_us += waited * SPAN / 10;
        }
        Ok(at(seen.looks * SPAN, &seen.vms))
    }

    async fn scheduled(&self) -> Result<Option<SchedPolicy>, io::Error> {
        Ok(self.scheduled)
    }

    async fn cap(&self, suspect: &Suspect, percent: u32) -> Result<Capped, io::Error> {
        self.seen().capped.push((suspect.pid, percent));
        match self.refuses {
            true => Err(io::Error::other("not today")),
            false => Ok(Capped::Yes),
        }
    }

    async fn release(&self, pid: u32) -> Result<(), io::Error> {
        if self.holds.load(Ordering::Relaxed) {
            return Err(io::Error::other("not today"));
        }
        self.seen().released.push(pid);
        Ok(())
    }
}

/// Settings that no request may have: samples come as fast as they are taken.
fn at_once() -> PoliceState {
    let settings = PoliceSettings {
        interval_s: 0.000_1,
        enforce: true,
        ..PoliceSettings::default()
    };
    PoliceState {
        settings,
        ..PoliceState::default()
    }
}

fn station(fake: &Fake, run: &TempDir) -> Station<Fake> {
    Station::new(fake.clone(), run.path())
}

async fn begun(fake: &Fake, run: &TempDir, until: Option<Instant>) -> Station<Fake> {
    let station = station(fake, run);
    let task = station.task(at_once(), until);
    task.keep().await.expect("written");
    *station.0.duty.lock().await = Some(start(task, Task::run));
    station
}

fn run() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

#[tokio::test]
async fn a_vm_that_does_not_yield_is_capped_until_the_police_ends() {
    let (fake, run) = (Fake::new(), run());
    let police = begun(&fake, &run, None).await;
    fake.until(|seen| !seen.capped.is_empty()).await;
    let looks = fake.seen().looks;
    fake.until(|seen| seen.looks > looks + 60).await;
    let state = police.end().await.expect("ended");
    // Named again and again, and each time capped to a fair share: a cap that holds has no VM named.
    assert!(state.named.len() > 1, "{state:?}");
    let numbers = state.named.iter().map(|found| found.number);
    assert!(numbers.eq(1..=state.named.len() as u64));
    assert!(state.named.iter().all(|found| found.guest == "greedy"));
    assert_eq!(state.named[0].capped_percent, Some(90));
    let capped = vec![(GREEDY, 90); state.named.len()];
    assert_eq!(fake.seen().capped, capped);
    assert_eq!(fake.seen().released, [GREEDY]);
    assert!(state.capped.is_empty());
    assert!(matches!(police.state().await, Err(PoliceError::None)));
    assert!(matches!(police.end().await, Err(PoliceError::None)));
    assert_eq!(run.path().read_dir().expect("listed").count(), 0);
}

#[tokio::test]
async fn the_next_daemon_knows_what_one_that_died_has_capped() {
    let (fake, run) = (Fake::new(), run());
    let dies = begun(&fake, &run, None).await;
    fake.until(|seen| !seen.capped.is_empty()).await;
    if let Some(duty) = dies.0.duty.lock().await.take() {
        duty.task.abort();
        duty.task.await.expect_err("aborted");
    }
    assert!(fake.seen().released.is_empty());
    let next = station(&fake, &run);
    next.resume().await;
    let state = next.state().await.expect("it goes on");
    assert_eq!(state.capped.len(), 1);
    next.end().await.expect("ended");
    assert_eq!(fake.seen().released, [GREEDY]);
}

#[tokio::test]
async fn what_was_capped_is_capped_again_by_the_next_daemon_and_no_other_process_is() {
    let (fake, run) = (Fake::new(), run());
    let vms = fake.seen().vms.clone();
    let cap = |vm: &VmUsage, pid| PoliceCap {
        vm: vm.vm.id,
        guest: vm.vm.name.to_string(),
        pid,
        percent: 90,
    };
    // It names, and caps none by itself; and of one VM there is another process by now.
    let mut state = at_once();
    state.settings.enforce = false;
    state.capped = vec![cap(&vms[0], GREEDY), cap(&vms[1], 999)];
    let dead = station(&fake, &run);
    dead.task(state, None).keep().await.expect("written");
    let next = station(&fake, &run);
    next.resume().await;
    fake.until(|seen| seen.looks > 2).await;
    assert_eq!(fake.seen().capped, [(GREEDY, 90)]);
    next.end().await.expect("ended");
    assert_eq!(fake.seen().released, [GREEDY]);
}

#[tokio::test]
async fn what_could_not_be_let_go_is_told_and_the_next_daemon_lets_it_go() {
    let (fake, run) = (Fake::new(), run());
    let police = begun(&fake, &run, None).await;
    fake.until(|seen| !seen.capped.is_empty()).await;
    fake.holds.store(true, Ordering::Relaxed);
    let failed = police.end().await.expect_err("it stays capped");
    assert_eq!(failed.to_string(), "capped still: greedy");
    let capped = fake.seen().capped.len();
    fake.holds.store(false, Ordering::Relaxed);
    station(&fake, &run).resume().await;
    fake.until(|seen| seen.released == [GREEDY]).await;
    assert_eq!(fake.seen().capped.len(), capped, "its time is over");
    while run.path().read_dir().expect("listed").count() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_daemon_that_ends_lets_all_go_and_the_next_goes_on() {
    let (fake, run) = (Fake::new(), run());
    let first = begun(&fake, &run, None).await;
    fake.until(|seen| !seen.capped.is_empty()).await;
    first.close().await;
    assert_eq!(fake.seen().released, [GREEDY]);
    let next = station(&fake, &run);
    next.resume().await;
    let state = next.state().await.expect("it goes on");
    assert_eq!(state.settings, at_once().settings);
    fake.until(|seen| seen.capped.len() > 1).await;
    next.end().await.expect("ended");
}

#[tokio::test]
async fn without_a_word_for_its_time_it_ends_by_itself() {
    let (fake, run) = (Fake::new(), run());
    let police = begun(&fake, &run, None).await;
    fake.until(|seen| !seen.capped.is_empty()).await;
    if let Some(on) = &*police.0.duty.lock().await {
        on.term.end(End::Over);
    }
    fake.until(|seen| !seen.released.is_empty()).await;
    assert!(matches!(police.state().await, Err(PoliceError::None)));
    // Then there is room for another.
    let settings = PoliceSettings::default();
    police.begin(settings).await.expect("begun");
    police.end().await.expect("ended");
}

#[tokio::test]
async fn one_police_is_enough_and_the_same_goes_on() {
    let (fake, run) = (Fake::new(), run());
    let police = station(&fake, &run);
    let settings = PoliceSettings {
        for_s: Some(3600),
        ..PoliceSettings::default()
    };
    police.begin(settings).await.expect("begun");
    let longer = PoliceSettings {
        for_s: None,
        ..settings
    };
    let state = police.begin(longer).await.expect("it goes on");
    assert_eq!(state.settings, longer);
    let other = PoliceSettings {
        enforce: true,
        ..settings
    };
    let refused = police.begin(other).await;
    assert!(matches!(refused, Err(PoliceError::Other)));
    police.end().await.expect("ended");
    assert!(fake.seen().capped.is_empty());
}

#[tokio::test]
async fn a_vm_that_cannot_be_capped_is_named_with_the_reason() {
    let fake = Fake {
        refuses: true,
        ..Fake::new()
    };
    let run = run();
    let police = begun(&fake, &run, None).await;
    fake.until(|seen| !seen.released.is_empty()).await;
    let mut state = police.state().await.expect("it goes on");
    while state.named.is_empty() {
        tokio::task::yield_now().await;
        state = police.state().await.expect("it goes on");
    }
    let problem = state.named[0].problem.as_deref();
    assert_eq!(problem, Some("cannot cap greedy: not today"));
    assert_eq!(state.named[0].capped_percent, None);
    assert!(police.end().await.expect("ended").capped.is_empty());
}

#[tokio::test]
async fn what_others_schedule_is_not_touched_and_what_makes_no_sense_is_refused() {
    let fake = Fake {
        scheduled: Some(SchedPolicy::Credit),
        ..Fake::new()
    };
    let run = run();
    let police = station(&fake, &run);
    let enforced = PoliceSettings {
        enforce: true,
        ..PoliceSettings::default()
    };
    let refused = police.begin(enforced).await;
    assert!(matches!(refused, Err(PoliceError::Scheduled { .. })));
    // To look is no harm.
    police
        .begin(PoliceSettings::default())
        .await
        .expect("begun");
    police.end().await.expect("ended");
    for settings in [
        PoliceSettings {
            interval_s: 0.0,
            ..enforced
        },
        PoliceSettings {
            interval_s: f64::NAN,
            ..enforced
        },
        PoliceSettings {
            waiting: 0.0,
            ..enforced
        },
        PoliceSettings {
            for_s: Some(0),
            ..enforced
        },
    ] {
        let refused = police.begin(settings).await;
        assert!(matches!(refused, Err(PoliceError::Settings(_))));
    }
}
