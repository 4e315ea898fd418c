//! Ticks of the virtual clock.

use crate::{standstill::Standstill, wake::Wake};
use forkyard_friendly::{MonitorConfig, Pace};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Ticks that were slept through at once.
#[derive(Clone, Copy, Debug)]
pub struct Slept {
    /// Number of ticks.
    pub ticks: u32,
    /// The real time it took.
    pub took: Duration,
}

/// Work that is wanted of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    /// Ticks of this length,
    tick: Duration,
    /// slept through so.
    pace: Pace,
    /// Lateness above which it is reported at once.
    late: Duration,
}

impl Wanted {
    fn by(config: &MonitorConfig, cpus: u32) -> Self {
        Self {
            tick: config.tick(),
            pace: config.pace(cpus),
            late: LATE * config.slack(1).max(config.tick()),
        }
    }
}

/// No CPU has that number.
const ANY: u32 = u32::MAX;

/// As late as no wait for a CPU makes a tick: so many times what counts as on time.
const LATE: u32 = 2;

/// A thread that asks to be woken, over and over, and measures when it was. It
/// ends after the ticker is dropped.
#[derive(Debug)]
pub struct Ticker {
    /// CPUs of the guest.
    cpus: u32,
    wanted: Arc<Mutex<Wanted>>,
    /// CPU on which it is to tick; at first, any.
    cpu: Arc<AtomicU32>,
    ticks: Receiver<Slept>,
}

impl Ticker {
    /// Starts it in a guest of so many CPUs. The agent is woken by a tick that is very late.
    pub fn start(config: &MonitorConfig, cpus: u32, wake: Sender<Wake>) -> std::io::Result<Self> {
        let (tell, ticks) = channel();
        let first = Wanted::by(config, cpus);
        let wanted = Arc::new(Mutex::new(first));
        let shared = wanted.clone();
        let cpu = Arc::new(AtomicU32::new(ANY));
        let place = cpu.clone();
        thread::Builder::new().name("ticks".into()).spawn(move || {
            // Else its own guest's threads hold it up, however idle the host is.
            // Without the right to, they do.
            let _ = forkyard_sys_guest::first::go_first();
            let (mut now, mut pace) = (first, first.pace);
            let mut at = ANY;
            let mut standstill = Standstill::watch();
            loop {
                let next = place.load(Ordering::Relaxed);
                if next != at {
                    at = next;
                    stay_on(at);
                }
                let ticks = pace.ticks();
                let asked = Instant::now();
                thread::sleep(now.tick * ticks);
                let took = asked.elapsed();
                pace.took(now.tick, took);
                let next = read(&shared);
                // One that was asked for before it changed tells nothing.
                if next != now {
                    (now, pace) = (next, next.pace);
                    continue;
                }
                let late = took > now.tick * ticks + now.late;
                // It tells nothing of the host.
                if late && standstill.was() {
                    continue;
                }
                // First, so that the thread that has taken a tick has been told of it.
                if late {
                    // There is no receiver if the agent is on its way out.
                    let _ = wake.send(Wake::Late);
                }
                if tell.send(Slept { ticks, took }).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self {
            cpus,
            wanted,
            cpu,
            ticks,
        })
    }

    /// Ticks where threads run that may be stopped, on one of these CPUs: the host runs one
    /// of several at once that has slept, however long those wait that do not.
    pub fn follow(&self, mut run_on: impl Iterator<Item = u32> + Clone) {
        let now = self.cpu.load(Ordering::Relaxed);
        if run_on.clone().all(|cpu| cpu != now)
            && let Some(next) = run_on.next()
        {
            self.cpu.store(next, Ordering::Relaxed);
        }
    }

    /// Other ticks from now on. Those not taken yet are lost, if there is any change.
    pub fn set(&self, config: &MonitorConfig) {
        let next = Wanted::by(config, self.cpus);
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *wanted, next) != next {
            self.ticks.try_iter().for_each(drop);
        }
    }

    /// Ticks since the last call.
    pub fn take(&self) -> impl Iterator<Item = Slept> {
        self.ticks.try_iter()
    }
}

/// The calling thread runs on that CPU from now on. Where it may not, or the CPU has gone,
/// it runs where it did.
fn stay_on(cpu: u32) {
    let mut set = CpuSet::new();
    if set.set(cpu as usize).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

fn read(wanted: &Mutex<Wanted>) -> Wanted {
    *wanted.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticking(tick_ms: f64, rest: u32, slack_ms: f64) -> MonitorConfig {
        MonitorConfig {
            tick_ms,
            rest,
            slack_ms: Some(slack_ms),
            ..MonitorConfig::default()
        }
    }

    #[test]
    fn no_tick_comes_early_and_some_come() {
        let config = ticking(2.0, 4, 20.0);
        let (tell, _told) = channel();
        let ticker = Ticker::start(&config, 1, tell).expect("started");
        let mut seen = 0;
        while seen < 20 {
            for slept in ticker.take() {
                assert!(slept.took >= config.tick() * slept.ticks, "{slept:?}");
                seen += slept.ticks;
            }
            thread::sleep(config.tick());
        }
    }

    #[test]
    fn ticks_are_where_threads_run_and_stay_there_while_they_do() {
        let (tell, told) = channel();
        // A tick that is always late has this thread woken, and says where it was.
        let ticker = Ticker::start(&ticking(0.001, 1, 0.0), 1, tell).expect("started");
        let allowed = nix::sched::sched_getaffinity(Pid::from_raw(0)).expect("known");
        let may = |cpu: &u32| allowed.is_set(*cpu as usize).unwrap_or(false);
        let cpus: Vec<u32> = (0..1024).filter(may).collect();
        let on = || {
            let threads = std::fs::read_dir("/proc/self/task").expect("threads");
            let threads = threads.map(|thread| thread.expect("one").path());
            let lists = threads.filter_map(|thread| {
                let name = std::fs::read_to_string(thread.join("comm")).ok()?;
                let status = std::fs::read_to_string(thread.join("status")).ok()?;
                let list = status
                    .lines()
                    .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
                (name.trim_end() == "ticks").then(|| list.map(|list| list.trim().to_owned()))?
            });
            lists.collect::<Vec<_>>()
        };
        for cpu in cpus.iter().rev().copied() {
            ticker.follow([cpu].into_iter());
            // Tests of other tickers may be under way.
            let began = Instant::now();
            while !on().contains(&cpu.to_string()) {
                assert!(began.elapsed() < Duration::from_mins(1), "not on {cpu}");
                told.recv().expect("it ticks");
            }
        }
        let last = cpus[0];
        ticker.follow(cpus.iter().rev().copied());
        assert_eq!(ticker.cpu.load(Ordering::Relaxed), last, "some run there");
        ticker.follow(std::iter::empty());
        assert_eq!(ticker.cpu.load(Ordering::Relaxed), last, "none runs");
    }

    #[test]
    fn a_tick_that_is_too_late_is_told_and_others_are_not() {
        let (tell, told) = channel();
        // No kernel wakes a thread as soon as that, and none as late as an hour.
        let ticker = Ticker::start(&ticking(0.001, 1, 0.0), 1, tell).expect("started");
        assert_eq!(told.recv(), Ok(Wake::Late));
        ticker.set(&ticking(0.001, 1, 3.6e6));
        ticker.take().for_each(drop);
        while ticker.take().map(|slept| slept.ticks).sum::<u32>() == 0 {}
        told.try_iter().for_each(drop);
        let mut seen = 0;
        while seen < 20 {
            seen += ticker.take().map(|slept| slept.ticks).sum::<u32>();
        }
        assert_eq!(told.try_iter().count(), 0);
    }
}
