//! A VM whose machine runs on while the connection to it has broken: it is connected to
//! again, as a new daemon would.
//!
//! ```text
//! connection breaks --> adopted: goes on if a fork had stopped it
//!                   `-> its process has ended: its end is seen by its own watcher
//! ```
//!
//! What was prepared for its next fork is given up: the machine closes overlays that
//! are not in use as it is adopted.

use crate::{Host, HostError};
use forkyard_snapshot::Generation;
use forkyard_vm::{RunningVm, Vm};
use forkyard_vmm::{MachineRecord, RunState, VmmErrorKind};
use std::{sync::Arc, time::Duration};

/// Time in which a process that closes its connection as it ends has ended.
const ENDS: Duration = Duration::from_secs(1);
/// Between attempts.
const AGAIN: Duration = Duration::from_secs(2);

impl Host {
    /// Connects to a running VM's machine again whenever the connection breaks.
    pub(crate) fn watch_link(&self, vm: &Arc<Vm>, body: &Arc<RunningVm>) {
        let (lost, exited) = (body.machine.lost(), body.machine.exited());
        let (host, vm, body) = (self.handle(), Arc::downgrade(vm), Arc::downgrade(body));
        tokio::spawn(async move {
            lost.await;
            // As a rule because the process ends, which the exit watcher handles.
            if tokio::time::timeout(ENDS, exited).await.is_ok() {
                return;
            }
            loop {
                let (Some(host), Some(vm), Some(body)) =
                    (host.upgrade(), vm.upgrade(), body.upgrade())
                else {
                    return;
                };
                match host.relink(&vm, &body).await {
                    Ok(()) => return,
                    Err(error) => {
                        tracing::warn!(vm = %vm.name(), error = &error as &dyn std::error::Error, "not connected to its machine");
                        vm.set_unresponsive(&body, Some(error.to_api().message));
                    }
                }
                drop((host, vm, body));
                tokio::time::sleep(AGAIN).await;
            }
        });
    }

    /// Takes the machine over once more. No error if it has ended, or another body has
    /// taken this one's place.
    async fn relink(&self, vm: &Arc<Vm>, lost: &Arc<RunningVm>) -> Result<(), HostError> {
        let mut turn = vm.turn().await;
        if !vm.running().is_ok_and(|body| Arc::ptr_eq(&body, lost)) {
            return Ok(());
        }
        let record: MachineRecord = lost.machine.record().clone();
        let machine = match self.parts.engine.adopt(record).await {
            Err(error) if error.kind() == VmmErrorKind::Gone => return Ok(()),
            adopted => adopted?,
        };
        let body = Arc::new(RunningVm::new(machine, lost.guest.clone()));
        vm.set_running(body.clone());
        if let Some(generation) = turn.take::<Generation>() {
            self.snapshots.discard(vm, generation).await;
        }
        self.parts.settle_chain(vm, &*body.machine).await?;
        let stopped = body.machine.run_state().await? == RunState::Paused;
        if stopped && !vm.is_paused() {
            body.machine.cont().await?;
            body.guest.resume().await?;
        }
        tracing::info!(vm = %vm.name(), "connected to its machine again");
        drop(turn);
        self.watch_body(vm, &body);
        self.keep_warm(vm, Vec::new());
        Ok(())
    }
}
