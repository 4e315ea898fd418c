//! End of a daemon that was started for a command: no VM, and no
//! request for a while.

use forkyard_events::Selection;
use forkyard_fork::Host;
use forkyard_types::EventKind;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

/// Long enough for the next command of a script to find the daemon running.
const QUIET: Duration = Duration::from_secs(2);
/// Idle time once the last VM has gone: long enough for a command that has found
/// the daemon running to make its request.
const BRIEF: Duration = Duration::from_millis(500);
/// Shortest time between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// Longest time between two looks: no event tells of clones on other hosts.
const ABROAD: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Seen {
    under_way: u32,
    last: Instant,
}

/// Counts the requests under way.
#[derive(Clone, Debug)]
pub struct Idle {
    seen: Arc<watch::Sender<Seen>>,
    /// Time it stays without a request once its last VM has gone.
    brief: Duration,
}

/// A request under way, until dropped.
#[derive(Debug)]
pub struct Busy(Idle);

impl Idle {
    /// Nothing under way, in a daemon that other hosts reach or do not reach.
    pub fn new(others_reach_it: bool) -> Self {
        let seen = Seen {
            under_way: 0,
            last: Instant::now(),
        };
        Self {
            seen: Arc::new(watch::Sender::new(seen)),
            // Other hosts ask each second what became of VMs that were here.
            brief: if others_reach_it { QUIET } else { BRIEF },
        }
    }

    /// One more request.
    pub fn busy(&self) -> Busy {
        self.seen.send_modify(|seen| seen.under_way += 1);
        Busy(self.clone())
    }

    /// Returns once the host has had neither VM nor request for a while, or,
    /// after its last VM was removed, for a moment. Cancel-safe.
    pub async fn wait(&self, host: &Host) {
        let vms = Selection {
            kinds: [EventKind::Vm, EventKind::Checkpoint].into(),
            ..Selection::default()
        };
        let mut events = host.events().subscribe(vms, None);
        let mut requests = self.seen.subscribe();
        let mut had_vms = false;
        loop {
            sleep(LOOK).await;
            had_vms |= !host.list().is_empty();
            while events.try_next().is_some() {
                had_vms = true;
            }
            let quiet = requests.borrow_and_update().last.elapsed();
            let enough = if had_vms { self.brief } else { QUIET };
            let left = match (self.is_now(host), enough.checked_sub(quiet)) {
                (true, None) => return,
                (true, Some(left)) => left,
                (false, _) => ABROAD,
            };
            let changed = async {
                tokio::select! {
                    event = events.next() => had_vms |= event.is_some(),
                    _ = requests.changed() => {}
                }
            };
            // Whatever woke it, it looks again.
            let _ = timeout(left, changed).await;
        }
    }

    /// Checks that there is neither VM nor request, none is to be kept ready, and nothing is to be copied.
    fn is_now(&self, host: &Host) -> bool {
        let unused = host.list().is_empty() && !host.keeps_standby();
        unused && self.seen.borrow().under_way == 0 && !host.backs_up()
    }
}

/// Returns once the daemon may end and no client can reach it any more. A client that
/// reached it in the last moment is served, and may keep it alive.
pub async fn close_when_idle(idle: &Idle, host: &Host, socket: &Path) {
    let aside = socket.with_extension("closing");
    loop {
        idle.wait(host).await;
        if let Err(error) = std::fs::rename(socket, &aside) {
            tracing::warn!(%error, "the API's socket is not where it was");
            return;
        }
        // By now every earlier connection is accepted, and heard.
        sleep(LOOK).await;
        if idle.is_now(host) {
            let _ = std::fs::remove_file(&aside);
            return;
        }
        if let Err(error) = std::fs::rename(&aside, socket) {
            tracing::error!(%error, "no client can reach this daemon");
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.seen.send_modify(|seen| {
            seen.under_way = seen.under_way.saturating_sub(1);
            seen.last = Instant::now();
        });
    }
}
