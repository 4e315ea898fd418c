//! A VM that QEMU stopped because the host's disk was full when it wrote, or what it read is at
//! another host that does not answer: it goes on where it was once there is room, or that host is back.

use crate::{RunningVm, Vm, VmError};
use forkyard_vmm::RunState;
use std::{sync::Arc, time::Duration};

/// Between attempts to have it go on.
const AGAIN: Duration = Duration::from_secs(2);
const FULL: &str = "it could not use its disk and stands still until the host's, if that is full, has room, or the host that has the rest of its volume, or is to hold what it writes, is back (`forkyard volume inspect`)";

impl Vm {
    /// The error of a guest that does not answer because QEMU stopped it; none if it did not. Cancel-safe.
    pub async fn stopped_by_itself(&self, body: &RunningVm) -> Option<VmError> {
        let state = body.machine.run_state().await.ok()?;
        (state == RunState::Failed).then(|| VmError::Silent {
            vm: self.name(),
            why: FULL.to_owned(),
        })
    }

    /// Has the VM go on whenever it stops by itself, as long as it runs at all.
    pub fn watch_for_stops(self: &Arc<Self>, body: &Arc<RunningVm>) {
        let (vm, body) = (Arc::downgrade(self), Arc::downgrade(body));
        tokio::spawn(async move {
            loop {
                {
                    // Kept for no longer: the link to the guest goes with it.
                    let Some(body) = body.upgrade() else { return };
                    tokio::select! {
                        () = body.machine.stopped() => {}
                        () = tokio::time::sleep(AGAIN) => continue,
                    }
                }
                tokio::time::sleep(AGAIN).await;
                let (Some(vm), Some(body)) = (vm.upgrade(), body.upgrade()) else {
                    return;
                };
                // A request that stops it on purpose has the turn meanwhile.
                let _turn = vm.turn().await;
                if !vm.is_paused()
                    && let Err(error) = go_on(&vm, &body).await
                {
                    tracing::debug!(vm = %vm.name(), error = &error as &dyn std::error::Error, "it cannot go on");
                }
            }
        });
    }
}

async fn go_on(vm: &Vm, body: &RunningVm) -> Result<(), VmError> {
    match body.machine.run_state().await? {
        RunState::Failed => vm.set_unresponsive(body, Some(FULL.to_owned())),
        // Stopped for a fork, which has given up the turn: QEMU refused to go on then.
        RunState::Paused => {
            body.machine.cont().await?;
            return Ok(body.guest.resume().await?);
        }
        RunState::Running | RunState::Waiting | RunState::Ended => return Ok(()),
    }
    body.machine.cont().await?;
    // If there is still no room it stops again at once.
    tokio::time::sleep(AGAIN).await;
    if body.machine.run_state().await? == RunState::Running {
        vm.set_unresponsive(body, None);
        if let Err(error) = body.guest.stood_still().await {
            tracing::debug!(vm = %vm.name(), error = &error as &dyn std::error::Error, "its clock is behind");
        }
    }
    Ok(())
}
