//! When a daemon that was started for a command may end: no VM, and no
//! request for a while.

use forkyard_fork::Host;
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Long enough for the next command of a script to find the daemon running.
const QUIET: Duration = Duration::from_secs(2);
/// The same once the last VM has gone: long enough for a command that has found the
/// daemon running to say what it wants.
const BRIEF: Duration = Duration::from_millis(200);
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
    /// after its last VM was removed, for a moment. Cancel-safe.
    pub async fn wait(&self, host: &Host) {
        let mut had_vms = false;
        loop {
            tokio::time::sleep(LOOK).await;
            had_vms |= !host.list().is_empty();
            let quiet = self.change(|seen| seen.last.elapsed());
            let enough = if had_vms { BRIEF } else { QUIET };
            if self.is_now(host) && quiet > enough {
                return;
            }
        }
    }

    /// Whether there is neither VM nor request.
    fn is_now(&self, host: &Host) -> bool {
        host.list().is_empty() && self.change(|seen| seen.under_way) == 0
    }

    fn change<T>(&self, change: impl FnOnce(&mut Seen) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns once the daemon may end and nobody can reach it any more. Whoever
/// reached it in the last moment is served, and may keep it alive.
pub async fn close_when_idle(idle: &Idle, host: &Host, socket: &Path) {
    let aside = socket.with_extension("closing");
    loop {
        idle.wait(host).await;
        if let Err(error) = std::fs::rename(socket, &aside) {
            tracing::warn!(%error, "the API's socket is not where it was");
            return;
        }
        // By now whoever connected before is accepted, and heard.
        tokio::time::sleep(LOOK).await;
        if idle.is_now(host) {
            let _ = std::fs::remove_file(&aside);
            return;
        }
        if let Err(error) = std::fs::rename(&aside, socket) {
            tracing::error!(%error, "nobody can reach this daemon");
        }
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
