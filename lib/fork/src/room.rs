//! Room for the clones that guests ask for, where a cluster hands it out.
//!
//! Who asks from outside has reserved room before; a guest's call comes to its host
//! alone, and this asks for it.

use crate::{Host, HostError, vm::Vm};
use forkyard_types::VmId;
use std::{collections::BTreeSet, fmt};

/// Room for clones on this host: given back when dropped.
pub trait Room: fmt::Debug + Send + Sync {
    /// For how many.
    fn clones(&self) -> u16;

    /// These were made of it.
    fn settle(self: Box<Self>, vms: BTreeSet<VmId>);
}

impl Host {
    /// Room for as many clones of a VM as there is; none where nobody hands it out.
    pub(crate) async fn room(
        &self,
        vm: &Vm,
        clones: u16,
    ) -> Result<Option<Box<dyn Room>>, HostError> {
        let Some(neighbours) = self.neighbours() else {
            return Ok(None);
        };
        let room = neighbours.room(vm.view(), clones).await;
        room.map_err(HostError::Room)
    }

    /// The same for what was promised already: all of it, or an error.
    pub(crate) async fn whole_room(
        &self,
        vm: &Vm,
        clones: usize,
    ) -> Result<Option<Box<dyn Room>>, HostError> {
        let clones = u16::try_from(clones).unwrap_or(u16::MAX);
        let room = self.room(vm, clones).await?;
        match room.as_ref().map(|room| room.clones()) {
            Some(granted) if granted < clones => Err(HostError::Invalid(format!(
                "there is room for {granted} of the {clones} clones that were promised before \
                 this host's daemon started anew"
            ))),
            Some(_) | None => Ok(room),
        }
    }
}
