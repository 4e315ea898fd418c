//! Room for the clones that guests ask for, where a cluster hands it out.
//!
//! Who asks from outside has reserved room before; a guest's call comes to its host
//! alone, and this asks for it.

use crate::{Host, HostError, vm::Vm};
use forkyard_types::VmView;
use std::fmt;

/// So many clones on one host: by its name here, or on this one.
pub type Granted = (Option<String>, u16);

/// Room for clones: given back when dropped.
pub trait Room: fmt::Debug + Send + Sync {
    /// For how many on which hosts; this one first, if it is among them.
    fn places(&self) -> Vec<Granted>;

    /// These were made of it.
    fn settle(self: Box<Self>, vms: &[VmView]);
}

impl Host {
    /// Room for as many clones of a VM as there is, on whichever hosts; none where nobody
    /// hands it out.
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

    /// The same for what was promised already: all of it, where it was promised, or an
    /// error.
    pub(crate) async fn room_at(
        &self,
        vm: &Vm,
        places: Vec<Granted>,
    ) -> Result<Option<Box<dyn Room>>, HostError> {
        let Some(neighbours) = self.neighbours() else {
            return Ok(None);
        };
        let count = |places: &[Granted]| places.iter().map(|(_, clones)| clones).sum::<u16>();
        let promised = count(&places);
        let room = neighbours.room_at(vm.view(), places).await;
        let room = room.map_err(HostError::Room)?;
        match room.as_ref().map(|room| count(&room.places())) {
            Some(granted) if granted < promised => Err(HostError::Invalid(format!(
                "there is room for {granted} of the {promised} clones that were promised before \
                 this host's daemon started anew"
            ))),
            Some(_) | None => Ok(room),
        }
    }
}
