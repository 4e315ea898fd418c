//! Ticks of the virtual clock.

use crate::wake::Wake;
use forkyard_friendly::{MonitorConfig, Pace};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Ticks that were slept through at once.
#[derive(Clone, Copy, Debug)]
pub struct Slept {
    /// How many.
    pub ticks: u32,
    /// The real time it took.
    pub took: Duration,
}

/// What is wanted of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    /// Ticks of this length,
    tick: Duration,
    /// slept through so.
    pace: Pace,
    /// Who is later than that is told at once.
    late: Duration,
}

impl From<&MonitorConfig> for Wanted {
    fn from(config: &MonitorConfig) -> Self {
        Self {
            tick: config.tick(),
            pace: config.pace(),
            late: LATE * config.slack().max(config.tick()),
        }
    }
}

/// As late as no wait for a CPU makes a tick: so many times what counts as on time.
const LATE: u32 = 2;

/// A thread that asks to be woken, over and over, and measures when it was. It
/// ends after the ticker is dropped.
#[derive(Debug)]
pub struct Ticker {
    wanted: Arc<Mutex<Wanted>>,
    ticks: Receiver<Slept>,
}

impl Ticker {
    /// Starts it. The agent is woken by a tick that is very late.
    pub fn start(config: &MonitorConfig, wake: Sender<Wake>) -> std::io::Result<Self> {
        let (tell, ticks) = channel();
        let first = Wanted::from(config);
        let wanted = Arc::new(Mutex::new(first));
        let shared = wanted.clone();
        thread::Builder::new().name("ticks".into()).spawn(move || {
            // Else its own guest's threads hold it up, however idle the host is.
            // Without the right to, they do.
            let _ = forkyard_sys_guest::first::go_first();
            let (mut now, mut pace) = (first, first.pace);
            loop {
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
                // First, so that whoever has taken a tick has been told of it.
                if took > now.tick * ticks + now.late {
                    // Nobody hears if the agent is on its way out.
                    let _ = wake.send(Wake::Late);
                }
                if tell.send(Slept { ticks, took }).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { wanted, ticks })
    }

    /// Other ticks from now on. Those not taken yet are lost, if there is any change.
    pub fn set(&self, config: &MonitorConfig) {
        let next = Wanted::from(config);
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
            slack_ms,
            ..MonitorConfig::default()
        }
    }

    #[test]
    fn no_tick_comes_early_and_some_come() {
        let config = ticking(2.0, 4, 20.0);
        let (tell, _told) = channel();
        let ticker = Ticker::start(&config, tell).expect("started");
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
    fn a_tick_that_is_too_late_is_told_and_others_are_not() {
        let (tell, told) = channel();
        // No kernel wakes a thread as soon as that, and none as late as an hour.
        let ticker = Ticker::start(&ticking(0.001, 1, 0.0), tell).expect("started");
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
