//! The end of a VM: everything it had goes, also what a crash left of it.

use crate::{
    Host, HostError,
    again::{self, Ended},
    restart,
};
use forkyard_agent_link::{CallId, Command, Request};
use forkyard_snapshot::Generation;
use forkyard_types::{FamilyId, TicketId, VmId, VmState, VmView};
use forkyard_vm::{Life, RunningVm, Vm, VmError};
use forkyard_vmm::Cause;
use futures::{FutureExt as _, future::BoxFuture};
use std::{sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// Time a guest may take to power off when asked.
const POWER_OFF: Duration = Duration::from_secs(15);

impl Host {
    /// Registers a running VM, answers its calls and watches for its end. It is
    /// registered first: a call or an end that finds no such VM would be lost.
    pub(crate) fn register_running(&self, vm: Arc<Vm>, calls: mpsc::Receiver<(CallId, Request)>) {
        self.parts.registry().insert(vm.clone());
        self.serve_calls(&vm, calls);
        if let Ok(body) = vm.running() {
            self.watch_body(&vm, &body);
            let (host, vm) = (self.handle(), vm.clone());
            let (exited, cause) = (body.machine.exited(), body.machine.cause());
            body.note_former_words(again::former_words(&self.console_of(&vm)));
            tokio::spawn(async move {
                let exit = exited.await;
                let cause = cause.await;
                if let Some(host) = host.upgrade() {
                    tracing::info!(vm = %vm.name(), ?exit, ?cause, "QEMU ended");
                    host.has_ended(&vm, cause).await;
                }
            });
        }
    }

    /// Watches over a machine, for as long as it is connected to.
    pub(crate) fn watch_body(&self, vm: &Arc<Vm>, body: &Arc<RunningVm>) {
        vm.watch_for_stops(body);
        vm.watch_agent(body, self.parts.options.patience);
        self.watch_link(vm, body);
    }

    /// Powers a VM off. Its record and disk stay until it is removed. One that
    /// is paused goes on first, to end in good order. Not cancel-safe: run it on a task of its own.
    pub async fn stop(&self, vm: &str) -> Result<VmView, HostError> {
        let vm = self.vm(vm)?;
        let _one = vm.sleep.lock().await;
        let was_due = self.forget_restart(&vm);
        if !was_due || vm.is_running() {
            self.power_off(&vm).await?;
        }
        self.is_where_wanted(&vm);
        Ok(vm.view())
    }

    pub(crate) async fn power_off(&self, vm: &Arc<Vm>) -> Result<(), HostError> {
        vm.unpause(&self.parts.store).await?;
        let body = vm.running()?;
        let exited = body.machine.exited();
        body.note_stopping();
        // Asked politely, so that its disk is whole; then made to.
        let asked = body
            .guest
            .exec(Command::of_root(vec!["poweroff".into()]))
            .await;
        let polite = asked.is_ok() && tokio::time::timeout(POWER_OFF, exited).await.is_ok();
        if !polite && let Err(error) = body.machine.quit().await {
            tracing::warn!(vm = %vm.name(), error = &error as &dyn std::error::Error, "QEMU does not quit: it is killed");
            body.machine.kill().await?;
        }
        self.has_ended(vm, Cause::Told).await;
        Ok(())
    }

    /// Ends a VM and removes all that is its own, forks of it that are under way
    /// included. One that is being made and not listed yet is waited for. Not cancel-safe: run it
    /// on a task of its own.
    pub async fn remove(&self, vm: &str) -> Result<VmView, HostError> {
        let found = match self.vm(vm) {
            Err(HostError::Vm(VmError::Unknown { .. })) => {
                self.made().await;
                self.vm(vm)
            }
            found => found,
        };
        let vm = match found {
            Err(HostError::Elsewhere { .. }) => return self.remove_elsewhere(vm).await,
            found => found?,
        };
        let view = vm.view();
        // Clones that are being made of it end with it, before anything is taken
        // away from under them.
        vm.forks.close();
        vm.forks.over().await;
        if self.parts.registry().get(vm.id).is_none()
            && self.peers.remote_clones.find(vm.id.as_str()).is_some()
        {
            // It moved meanwhile.
            return self.remove_elsewhere(vm.id.as_str()).await;
        }
        self.end(&vm, None).await;
        match self.parts.store.state_of(vm.id)? {
            // A daemon that takes over goes on with it.
            None | Some(VmState::Ending) => Ok(view),
            Some(_) => Err(HostError::StillRecorded { vm: view.name }),
        }
    }

    /// Handles the end of a VM's QEMU: notes that it stopped, and why, or starts it
    /// again if its guest wanted that. A ticket's clone is no more once it has
    /// stopped.
    pub(crate) async fn has_ended(&self, vm: &Arc<Vm>, cause: Cause) {
        if vm.ephemeral {
            return self.end(vm, None).await;
        }
        let mut turn = vm.turn().await;
        if self.parts.registry().get(vm.id).is_none() || !vm.is_running() {
            return;
        }
        self.note_loss(vm).await;
        if let Some(generation) = turn.take::<Generation>() {
            self.snapshots.discard(vm, generation).await;
        }
        let ended = self.how_it_ended(vm, cause).await;
        if let Ended::Failed(why) = &ended {
            self.note_failure(vm, why.clone());
        }
        self.end_running(vm).await;
        if let Err(error) = vm.enter(&self.parts.store, Life::Stopped, |record| {
            record.machine = None
        }) {
            tracing::error!(vm = %vm.name(), error = &error as &dyn std::error::Error, "end not recorded");
        }
        let killed = self.tickets(|tickets| tickets.forget(vm.id));
        self.lives.ended.notify_waiters();
        self.end_killed(killed).await;
        // Why it did not come up again is noted.
        let fails = ended == Ended::Restarts && self.boot_again(vm).await.is_err();
        let cause = if fails {
            Some(restart::Cause::Failed)
        } else {
            restart::Cause::of(&ended)
        };
        if let Some(cause) = cause {
            self.plan_restart(vm, cause);
        }
        drop(turn);
        self.keep_warm(vm, Vec::new());
    }

    /// Ends a VM and forgets it, and with a family's last VM what its guests
    /// kept. Of two that try, the second finds nothing to do.
    pub(crate) async fn end(&self, vm: &Arc<Vm>, status: Option<u8>) {
        self.end_alone(vm, status).await;
        self.end_orphans(vm.record().family).await;
    }

    /// Ends the checkpoints that guests of a family took, once no other VM
    /// is in it: none could use or drop them.
    pub(crate) async fn end_orphans(&self, family: FamilyId) {
        let mut members = self.parts.registry().all();
        members.retain(|vm| vm.record().family == family);
        if members.iter().all(|vm| vm.is_guests_checkpoint()) {
            for checkpoint in members {
                self.end_alone(&checkpoint, None).await;
            }
        }
    }

    pub(crate) async fn end_alone(&self, vm: &Arc<Vm>, status: Option<u8>) {
        let mut turn = vm.turn().await;
        if self.parts.registry().get(vm.id).is_none() {
            return;
        }
        let record = vm.record();
        // A daemon that takes over in the middle of this removes the rest.
        self.snapshots.note_ending(&record);
        if let Some(generation) = turn.take::<Generation>() {
            self.snapshots.discard(vm, generation).await;
        }
        self.end_running(vm).await;
        self.snapshots.erase(&record).await;
        let parent = record
            .birth
            .and_then(|birth| self.parts.registry().get(birth.parent));
        if let Some(parent) = parent {
            self.snapshots.tidy(&parent);
        }
        drop(turn);
        let killed = self.tickets(|tickets| {
            tickets.ended(vm.id, status);
            tickets.forget(vm.id)
        });
        self.lives.ended.notify_waiters();
        self.end_killed(killed).await;
    }

    /// Ends the clones of tickets that have ended with their VM, and theirs with them.
    fn end_killed(&self, killed: Vec<(TicketId, Vec<VmId>)>) -> BoxFuture<'_, ()> {
        async move {
            for (ticket, alive) in killed {
                self.end_all(alive).await;
                self.tickets(|tickets| tickets.spend(ticket));
            }
        }
        .boxed()
    }

    /// Ends what runs of a VM, if anything does.
    pub(crate) async fn end_running(&self, vm: &Vm) {
        if let Some(body) = vm.take_running()
            && let Err(error) = body.machine.kill().await
        {
            tracing::warn!(vm = %vm.name(), error = &error as &dyn std::error::Error, "QEMU not ended");
        }
        self.volumes.disks.end_writer(&vm.record()).await;
        let kept = forkyard_snapshot::forget_image(vm);
        if let Some(image) = kept {
            self.snapshots.retire(image).await;
        }
        // They lead nowhere after it.
        if let Err(error) = self.close_ports(vm).await {
            tracing::warn!(vm = %vm.id, error = &error as &dyn std::error::Error, "published ports not closed");
        }
    }

    /// Removes a family that has no VM left, here or elsewhere, and its network.
    pub(crate) async fn end_family_if_empty(&self, family: FamilyId) {
        let mut pending_joins = self.peers.pending_joins.lock().await;
        let ended = match self.parts.store.remove_family_if_empty(family) {
            Ok(true) => {
                pending_joins.remove(&family);
                self.peers.sites.forget(family);
                let removed = self.parts.network.remove_family(family).await;
                removed.map_err(HostError::from)
            }
            Ok(false) => Ok(()),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = ended {
            tracing::warn!(%family, error = &error as &dyn std::error::Error, "not removed");
        }
    }
}
