//! Checkpoints as guests take them: `checkpoint` and `create_clones` of the
//! paper, section 4.1.
//!
//! One belongs to the family: each of its VMs can have clones of it, with a
//! ticket of its own. It can be dropped by the VM that took it, or by any of the
//! family once that has gone; it goes with the last of them. What the host's
//! users have kept is nothing to guests.

use super::came_of;
use crate::{
    Host, HostError,
    bounds::{BoundReached, Rated},
};
use forkyard_agent_link::Answer;
use forkyard_types::{CheckpointRequest, FamilyId, ForkMode, RequestId, TicketId, VmId};
use forkyard_vm::Vm;
use std::sync::Arc;

impl Host {
    /// Keeps the present instant of a VM for its guest.
    pub(super) async fn keep_instant(
        &self,
        vm: &Arc<Vm>,
        request: RequestId,
    ) -> Result<Answer, HostError> {
        // It was made of the checkpoint that this request took.
        if let Some(answer) = came_of(vm, request) {
            return Ok(answer);
        }
        let family = vm.record().family;
        // Taken by a daemon that died before it could say so.
        let taken = self.kept_for(family).into_iter().find(|kept| {
            let record = kept.record();
            record.request == Some(request)
                && record.birth.is_some_and(|birth| birth.parent == vm.id)
        });
        if let Some(taken) = taken {
            return Ok(Answer::Checkpointed {
                checkpoint: taken.id,
            });
        }
        self.count(vm, Rated::Checkpoint)?;
        let limit = self.parts.options.guests.checkpoints;
        let kept = || u16::try_from(self.kept_for(family).len()).unwrap_or(u16::MAX);
        let place = self.families.kept.take(family, 1, Some(limit), kept);
        // Held until the checkpoint counts by itself.
        let place = place.map_err(|_| BoundReached::Checkpoints { limit })?;
        let wanted = CheckpointRequest {
            name: None,
            mode: ForkMode::Fast,
        };
        let taken = self.checkpoint_of(vm, wanted, Some(request)).await?;
        drop(place);
        // The last of the family may have gone while it was written to disk.
        self.end_orphans(family).await;
        Ok(Answer::Checkpointed {
            checkpoint: taken.id,
        })
    }

    /// Makes the clones of a ticket of this VM's from a checkpoint.
    pub(super) async fn create_clones(
        &self,
        vm: &Arc<Vm>,
        checkpoint: VmId,
        ticket: TicketId,
        request: RequestId,
    ) -> Result<Answer, HostError> {
        let asleep = self.kept_by(vm, checkpoint)?;
        let bounds = self.parts.options.guests;
        crate::bounds::check_depth(bounds, asleep.record().generation)?;
        self.clone_ticket(vm, Some(&asleep), ticket, request).await
    }

    /// Forgets a checkpoint; the clones it has live on.
    pub(super) async fn drop_checkpoint(
        &self,
        vm: &Vm,
        checkpoint: VmId,
    ) -> Result<Answer, HostError> {
        let asleep = self.kept_by(vm, checkpoint)?;
        let taker = asleep.record().birth.map(|birth| birth.parent);
        let others = taker.filter(|taker| *taker != vm.id);
        if let Some(taker) = others.and_then(|taker| self.parts.registry().get(taker)) {
            return Err(HostError::Invalid(format!(
                "checkpoint {checkpoint} is {}'s to drop, which took it",
                taker.name()
            )));
        }
        self.end(&asleep, None).await;
        Ok(Answer::Dropped)
    }

    /// A checkpoint that a guest of the same family took.
    fn kept_by(&self, vm: &Vm, id: VmId) -> Result<Arc<Vm>, HostError> {
        let mut kept = self.kept_for(vm.record().family).into_iter();
        kept.find(|kept| kept.id == id)
            .ok_or(HostError::NoSuchCheckpoint { id })
    }

    /// The checkpoints that a family's guests took.
    fn kept_for(&self, family: FamilyId) -> Vec<Arc<Vm>> {
        let mut kept = self.parts.registry().all();
        kept.retain(|vm| vm.is_guests_checkpoint() && vm.record().family == family);
        kept
    }
}
