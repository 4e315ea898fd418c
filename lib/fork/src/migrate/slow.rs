//! A guest whose vCPUs run for a part of the time alone, for it writes faster than its pages are sent.
//!
//! ```text
//! | run | stand still | run | stand still | ...
//! ```
//!
//! They are stopped as for a fork, by the task that has the VM's turn. A daemon that dies meanwhile leaves
//! a VM that the next one lets go on, as one that died while it forked. The guest's clock falls
//! behind, and is set right once this ends.

use super::converge::Pace;
use forkyard_vm::RunningVm;

use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinHandle, time::timeout};

/// One turn of running and standing still: short enough for programs that wait for each other over
/// the network.
const PERIOD: Duration = Duration::from_millis(100);

/// Slows a guest until it is ended, or dropped.
#[derive(Debug)]
pub(super) struct Slow {
    share: watch::Sender<Pace>,
    task: JoinHandle<()>,
}

impl Slow {
    /// Slows a guest, whose VM's turn is the caller's.
    pub fn start(body: &Arc<RunningVm>, share: Pace) -> Self {
        let (sender, shares) = watch::channel(share);
        let task = tokio::spawn(slow(body.clone(), shares));
        Self {
            share: sender,
            task,
        }
    }

    /// Slows it more, or less.
    pub fn set(&self, share: Pace) {
        self.share.send_replace(share);
    }

    /// Lets it run all the time again. Not cancel-safe.
    pub async fn end(self) {
        let Self { share, task } = self;
        drop(share);
        // It ends by itself, and cannot panic but with the runtime.
        let _ = task.await;
    }
}

async fn slow(body: Arc<RunningVm>, mut shares: watch::Receiver<Pace>) {
    loop {
        let runs = shares.borrow_and_update().of(PERIOD);
        if is_over(&mut shares, runs).await {
            break;
        }
        if let Err(error) = body.machine.stop().await {
            tracing::debug!(error = &error as &dyn std::error::Error, "not slowed");
        }
        let over = is_over(&mut shares, PERIOD - runs).await;
        // Whatever became of the stop.
        if let Err(error) = body.machine.cont().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "a guest that was slowed does not go on"
            );
            break;
        }
        if over {
            break;
        }
    }
    if let Err(error) = body.guest.stood_still().await {
        tracing::debug!(
            error = &error as &dyn std::error::Error,
            "its clock is behind"
        );
    }
}

/// Waits so long; true if it is to end.
async fn is_over(shares: &mut watch::Receiver<Pace>, time: Duration) -> bool {
    let ended = async { while shares.changed().await.is_ok() {} };
    timeout(time, ended).await.is_ok()
}
