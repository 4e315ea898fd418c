//! When a daemon that was started for a command may end: no VM, and no
//! request for a while.

use forkyard_fork::Host;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Long enough for the next command of a script to find the daemon running.
const QUIET: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug)]
struct Seen {
    under_way: u32,
    last: Instant,
}

/// Counts the requests under way.
#[derive(Clone, Debug)]
pub struct Idle(Arc<Mutex<Seen>>);

/// A request under way, until dropped.
#[derive(Debug)]
pub struct Busy(Idle);

impl Idle {
    /// Nothing under way.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Seen {
            under_way: 0,
            last: Instant::now(),
        })))
    }

    /// One more request.
    pub fn busy(&self) -> Busy {
        self.change(|seen| seen.under_way += 1);
        Busy(self.clone())
    }

    /// Returns once the host has had neither VM nor request for a while, or,
    /// after its last VM was removed, at once. Cancel-safe.
    pub async fn wait(&self, host: &Host) {
        let mut had_vms = false;
        loop {
            tokio::time::sleep(LOOK).await;
            let vms = !host.list().is_empty();
            had_vms |= vms;
            let (under_way, quiet) = self.change(|seen| (seen.under_way, seen.last.elapsed()));
            if !vms && under_way == 0 && (had_vms || quiet > QUIET) {
                return;
            }
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Seen) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.change(|seen| {
            seen.under_way = seen.under_way.saturating_sub(1);
            seen.last = Instant::now();
        });
    }
}
