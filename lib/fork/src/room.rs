//! Room for the clones that guests ask for, where a cluster hands it out.
//!
//! A client outside has reserved room before; a guest's call comes to its host
//! alone, and this asks for it.

use crate::{Host, HostError};
use forkyard_types::{ApiError, ErrorKind, VmView};
use forkyard_vm::Vm;
use futures::future::BoxFuture;
use std::fmt;

/// So many clones that take the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lot {
    /// vCPUs of each.
    pub vcpus: u8,
    /// Number of clones.
    pub clones: u16,
}

/// Clones on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Name of the host; none: this one.
    pub host: Option<String>,
    /// Number and size of the clones.
    pub lot: Lot,
}

/// Room for clones: given back when dropped.
pub trait CloneRoom: fmt::Debug + Send + Sync {
    /// For how many on which hosts; this one first, if it is among them.
    fn places(&self) -> Vec<Granted>;

    /// Checks that all of it is there still: an error tells what has ended. What
    /// cannot be asked is taken for granted. Cancel-safe.
    fn check(&self) -> BoxFuture<'_, Result<(), ApiError>>;

    /// These were made of it.
    fn settle(self: Box<Self>, vms: &[VmView]);
}

impl Host {
    /// Room for as many clones of a VM as there is, on whichever hosts; none where no scheduler
    /// hands it out.
    pub(crate) async fn room(
        &self,
        vm: &Vm,
        lots: Vec<Lot>,
    ) -> Result<Option<Box<dyn CloneRoom>>, HostError> {
        let Some(neighbours) = self.neighbours() else {
            return Ok(None);
        };
        let room = neighbours.room(vm.view(), lots).await;
        room.map_err(HostError::Room)
    }

    /// Finds room for clones that were promised already: all of it, where it was
    /// promised, or an error.
    pub(crate) async fn room_at(
        &self,
        vm: &Vm,
        places: Vec<Granted>,
    ) -> Result<Option<Box<dyn CloneRoom>>, HostError> {
        let Some(neighbours) = self.neighbours() else {
            return Ok(None);
        };
        let count = |places: &[Granted]| places.iter().map(|it| it.lot.clones).sum::<u16>();
        let promised = count(&places);
        let room = neighbours.room_at(vm.view(), places).await;
        let room = room.map_err(HostError::Room)?;
        match room.as_ref().map(|room| count(&room.places())) {
            Some(granted) if granted < promised => Err(HostError::Room(ApiError {
                kind: ErrorKind::Exhausted,
                message: format!(
                    "there is some for {granted} of the {promised} that were promised before this \
                     host's daemon started anew"
                ),
                hint: None,
            })),
            Some(_) | None => Ok(room),
        }
    }
}
