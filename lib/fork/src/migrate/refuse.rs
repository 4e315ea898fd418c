//! VMs that cannot move.

use crate::{Host, HostError};
use forkyard_types::VolumeUse;
use forkyard_vm::Vm;

impl Host {
    /// Refuses what cannot move, and why.
    pub(super) fn may_move(&self, vm: &Vm) -> Result<(), HostError> {
        let refuse = |why: &str| {
            Err(HostError::CannotMove {
                vm: vm.name(),
                why: why.to_owned(),
            })
        };
        vm.running()?;
        if let Some(VolumeUse::Below(_)) = vm.record().volume {
            return refuse("its disk lies over a snapshot of a volume of this host");
        }
        if vm.ephemeral || self.tickets(|tickets| tickets.concern(vm.id)) {
            return refuse(
                "a program in it has a ticket, or was made by one, and is told how that ends by this host",
            );
        }
        Ok(())
    }
}
