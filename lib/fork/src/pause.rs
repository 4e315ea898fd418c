//! VMs that stand still because their users want them to.

use crate::{Host, HostError};
use forkyard_types::VmView;
use forkyard_vm::Vm;

impl Host {
    /// Has a VM stand still until [`Host::resume`]; the daemon's end changes
    /// nothing. No error if it does. Not cancel-safe: run it on a task of its own.
    pub async fn pause(&self, vm: &str) -> Result<VmView, HostError> {
        let vm = self.vm(vm)?;
        let _one = vm.sleep.lock().await;
        self.pause_vm(&vm).await?;
        self.is_where_wanted(&vm);
        Ok(vm.view())
    }

    pub(crate) async fn pause_vm(&self, vm: &Vm) -> Result<(), HostError> {
        Ok(vm
            .pause(&self.parts.store, self.parts.options.to_hold_still())
            .await?)
    }

    /// Lets a paused VM go on. No error if it runs. Not cancel-safe: run it on
    /// a task of its own.
    pub async fn resume(&self, vm: &str) -> Result<VmView, HostError> {
        let vm = self.vm(vm)?;
        let _one = vm.sleep.lock().await;
        vm.unpause(&self.parts.store).await?;
        drop(vm.uses.begin());
        self.is_where_wanted(&vm);
        Ok(vm.view())
    }
}
