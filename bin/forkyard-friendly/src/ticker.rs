//! Ticks of the virtual clock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// A thread that asks to be woken, over and over, and measures when it was. It
/// ends after the ticker is dropped.
#[derive(Debug)]
pub struct Ticker {
    tick_ns: Arc<AtomicU64>,
    ticks: Receiver<Duration>,
}

impl Ticker {
    /// Starts it.
    pub fn start(tick: Duration) -> std::io::Result<Self> {
        let (tell, ticks) = channel();
        let tick_ns = Arc::new(AtomicU64::new(nanos(tick)));
        let wanted = tick_ns.clone();
        thread::Builder::new().name("ticks".into()).spawn(move || {
            // Else its own guest's threads hold it up, however idle the host is.
            // Without the right to, they do.
            let _ = forkyard_sys_guest::first::go_first();
            loop {
                let tick = wanted.load(Ordering::Relaxed);
                let asked = Instant::now();
                thread::sleep(Duration::from_nanos(tick));
                let took = asked.elapsed();
                // One that was asked for before it changed tells nothing.
                if wanted.load(Ordering::Relaxed) == tick && tell.send(took).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { tick_ns, ticks })
    }

    /// Another time between ticks from now on. Those not taken yet are lost.
    pub fn set(&self, tick: Duration) {
        if self.tick_ns.swap(nanos(tick), Ordering::Relaxed) != nanos(tick) {
            self.ticks.try_iter().for_each(drop);
        }
    }

    /// Ticks since the last call.
    pub fn take(&self) -> impl Iterator<Item = Duration> {
        self.ticks.try_iter()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tick_comes_early_and_some_come() {
        let tick = Duration::from_millis(2);
        let ticker = Ticker::start(tick).expect("started");
        let mut seen = 0;
        while seen < 5 {
            for took in ticker.take() {
                assert!(took >= tick, "{took:?}");
                seen += 1;
            }
            thread::sleep(tick);
        }
    }
}
