//! Ticks of the virtual clock.

use forkyard_friendly::Pace;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, channel},
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

/// What is wanted of the thread: ticks of this length, slept through so.
type Wanted = (Duration, Pace);

/// A thread that asks to be woken, over and over, and measures when it was. It
/// ends after the ticker is dropped.
#[derive(Debug)]
pub struct Ticker {
    wanted: Arc<Mutex<Wanted>>,
    ticks: Receiver<Slept>,
}

impl Ticker {
    /// Starts it.
    pub fn start(tick: Duration, pace: Pace) -> std::io::Result<Self> {
        let (tell, ticks) = channel();
        let wanted = Arc::new(Mutex::new((tick, pace)));
        let shared = wanted.clone();
        thread::Builder::new().name("ticks".into()).spawn(move || {
            // Else its own guest's threads hold it up, however idle the host is.
            // Without the right to, they do.
            let _ = forkyard_sys_guest::first::go_first();
            let (mut now, mut pace) = ((tick, pace), pace);
            loop {
                let (tick, ticks) = (now.0, pace.ticks());
                let asked = Instant::now();
                thread::sleep(tick * ticks);
                let took = asked.elapsed();
                pace.took(tick, took);
                let next = read(&shared);
                // One that was asked for before it changed tells nothing.
                if next != now {
                    (now, pace) = (next, next.1);
                } else if tell.send(Slept { ticks, took }).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { wanted, ticks })
    }

    /// Other ticks from now on. Those not taken yet are lost, if there is any change.
    pub fn set(&self, tick: Duration, pace: Pace) {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *wanted, (tick, pace)) != (tick, pace) {
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

    #[test]
    fn no_tick_comes_early_and_some_come() {
        let tick = Duration::from_millis(2);
        let ticker = Ticker::start(tick, Pace::new(4)).expect("started");
        let mut seen = 0;
        while seen < 20 {
            for slept in ticker.take() {
                assert!(slept.took >= tick * slept.ticks, "{slept:?}");
                seen += slept.ticks;
            }
            thread::sleep(tick);
        }
    }
}
