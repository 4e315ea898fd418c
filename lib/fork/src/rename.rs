//! Another name for a VM or a checkpoint.
//!
//! The store refuses a name that is taken, so two that ask for one name at once get it once. Nothing
//! else on the host is named after a VM's name. The guest's host name stays until it boots again.

use crate::{Host, HostError};
use forkyard_records::RecordsError;
use forkyard_types::{VmName, VmView};
use forkyard_vm::{Vm, VmError};

impl Host {
    /// Gives a VM another name, which no other has. Not cancel-safe: run it on a task of its own.
    pub async fn rename(&self, vm: &str, name: VmName) -> Result<VmView, HostError> {
        let vm = self.vm(vm)?;
        let _turn = vm.turn().await;
        self.put_name(&vm, name)?;
        Ok(self.view_of(&vm))
    }

    /// Records another name of a VM; its turn is the caller's.
    pub(crate) fn put_name(&self, vm: &Vm, name: VmName) -> Result<(), HostError> {
        if vm.name() == name {
            return Ok(());
        }
        // Also clones on other hosts, and ids.
        if self.find(name.as_str()).is_ok() {
            let name = name.to_string();
            return Err(RecordsError::NameTaken { name }.into());
        }
        if self.parts.registry().get(vm.id).is_none() {
            let name = vm.name().to_string();
            return Err(HostError::Vm(VmError::Unknown { name }));
        }
        vm.change(&self.parts.store, |record| record.name = name)?;
        let state = vm.life().shown();
        forkyard_vm::events::changed(&self.parts.events, &vm.record(), state, state);
        Ok(())
    }
}
