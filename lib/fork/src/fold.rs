//! Keeping disks shallow: a VM that forks again and again leaves a frozen slice
//! behind each time, which only its clones of that time need besides itself.
//! Once they have gone, such slices are folded into one.

use crate::{
    Host, HostError, bases,
    vm::{Body, Turn, Vm},
};
use forkyard_types::ByteCount;
use forkyard_vmm::Machine as _;
use std::sync::Arc;

/// Slices that are worth the trouble together.
const WORTH: usize = 4;
/// More is not copied: it would hardly be done before the next fork, which ends it.
const MOST: ByteCount = ByteCount(64 << 20);

impl Host {
    /// Sees to a VM's disk when there is time.
    pub(crate) fn tidy(&self, vm: &Arc<Vm>) {
        let (host, vm) = (self.handle(), vm.clone());
        tokio::spawn(async move {
            let Some(host) = host.upgrade() else { return };
            let turn = vm.turn.lock().await;
            if let Ok(body) = vm.body() {
                host.fold_slices(&vm, &body, &turn).await;
            }
        });
    }

    /// Folds what can be folded, in the turn of the caller.
    pub(crate) async fn fold_slices(&self, vm: &Vm, body: &Body, turn: &Turn) {
        // What the next fork will use has been made over the disk as it is.
        if turn.next.is_some() {
            return;
        }
        if let Err(error) = self.fold_now(vm, body).await {
            tracing::warn!(vm = %vm.name(), error = &error as &dyn std::error::Error, "disk stays deep");
        }
    }

    async fn fold_now(&self, vm: &Vm, body: &Body) -> Result<(), HostError> {
        let own = self.folders.disks(vm.id);
        // Its QEMU may not write to a relative's.
        let slices: Vec<_> = self
            .registry()
            .foldable(vm.id)
            .into_iter()
            .take_while(|slice| slice.starts_with(&own))
            .collect();
        let [top, .., base] = &slices[..] else {
            return Ok(());
        };
        let upper = &slices[..slices.len() - 1];
        let mut bytes = 0;
        for slice in upper {
            bytes += bases::allocated(slice)?.0;
        }
        if slices.len() < WORTH || bytes > MOST.0 {
            return Ok(());
        }
        let folded = body.machine.fold_disk(top, base, vm.wanted()).await;
        if folded.is_err() && vm.is_wanted() {
            tracing::debug!(vm = %vm.name(), "not folded now: it is to be forked");
            return Ok(());
        }
        folded?;
        vm.change(&self.store, |record| {
            record.chain.retain(|slice| !upper.contains(slice));
        })?;
        self.registry().fold(vm.id, base);
        self.remove_files(upper);
        tracing::debug!(vm = %vm.name(), slices = upper.len(), bytes, "folded");
        Ok(())
    }
}
