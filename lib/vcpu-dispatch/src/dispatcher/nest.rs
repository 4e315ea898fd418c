//! A VM's groups: one for each vCPU, in one for all.
//!
//! A gang's turn is two writes so, one for the VM that stops and one for the VM that
//! goes on, however many vCPUs they have. Where only some of a VM's are to run, the
//! others are stopped by groups of their own.

use super::vm::{Vcpu, Vm};
use crate::{
    DispatchError,
    freezer::{Frozen, ThreadGroup},
    mechanism::{Hands, Mechanism},
};
use forkyard_sched::Nanos;

impl Vm {
    /// Gives all its vCPUs what their turns are enforced with, on these CPUs.
    pub(super) fn take(&mut self, cpus: &[u32], hands: &mut Hands) -> Result<(), DispatchError> {
        self.nest(hands);
        match self.take_each(cpus, hands) {
            Err(error) if self.nest.is_some() => {
                tracing::debug!(pid = self.pid, ?error, "each vCPU has a group by itself");
                self.drop_groups(hands);
                self.take_each(cpus, hands)
            }
            taken => taken,
        }
    }

    fn take_each(&mut self, cpus: &[u32], hands: &mut Hands) -> Result<(), DispatchError> {
        let mut vcpus = self.vcpus.iter_mut();
        vcpus.try_for_each(|vcpu| vcpu.take(cpus, self.nest.as_ref(), hands))
    }

    /// Makes the VM's group, if it can have one and its vCPUs have none yet: all of
    /// theirs are in it, or none.
    fn nest(&mut self, hands: &mut Hands) {
        let grouped = self.nest.is_some() || self.vcpus.iter().any(Vcpu::is_held);
        if grouped || !matches!(hands.mechanism, Mechanism::Freezer) {
            return;
        }
        let tids = self.vcpus.iter().map(|vcpu| vcpu.tid);
        match ThreadGroup::of_all(self.pid, tids, |path| hands.guard.add(path)) {
            Ok(nest) => self.nest = nest,
            Err(error) => tracing::debug!(pid = self.pid, ?error, "no group for a VM"),
        }
    }

    /// Stops those of which `wanted` says so, in the vCPUs' order, and lets none go.
    pub(super) fn stop(&mut self, wanted: &[Frozen], now: Nanos) {
        let all = wanted.iter().all(|&frozen| frozen == Frozen::Yes);
        if let (Some(nest), true) = (&mut self.nest, all) {
            logged(self.pid, nest.set(Frozen::Yes));
        }
        let one_by_one = self.nest.is_none() || !all;
        for (vcpu, _) in { self.vcpus.iter_mut() }
            .zip(wanted)
            .filter(|(_, wanted)| **wanted == Frozen::Yes)
        {
            vcpu.note(Frozen::Yes, now);
            if one_by_one {
                logged(vcpu.tid, vcpu.set(Frozen::Yes));
            }
        }
    }

    /// Lets those go of which `wanted` says so. Others are [stopped](Self::stop) by now.
    pub(super) fn go(&mut self, wanted: &[Frozen], now: Nanos) {
        for (vcpu, _) in { self.vcpus.iter_mut() }
            .zip(wanted)
            .filter(|(_, wanted)| **wanted == Frozen::No)
        {
            vcpu.note(Frozen::No, now);
            logged(vcpu.tid, vcpu.set(Frozen::No));
        }
        if let (Some(nest), true) = (&mut self.nest, wanted.contains(&Frozen::No)) {
            logged(self.pid, nest.set(Frozen::No));
        }
    }

    /// Lets it run anywhere it might before. Its groups stay, for the next time.
    pub(super) fn rest(&mut self, hands: &mut Hands, now: Nanos) {
        if let Some(nest) = &mut self.nest
            && let Err(error) = nest.set(Frozen::No)
        {
            // Its VM may have ended; else a group that does not thaw is no use.
            tracing::debug!(pid = self.pid, %error, "not thawed");
            self.drop_groups(hands);
        }
        for vcpu in &mut self.vcpus {
            vcpu.rest(hands, now);
        }
    }

    /// Undoes all that was done to it.
    pub(super) fn let_go(&mut self, hands: &mut Hands, now: Nanos) {
        self.rest(hands, now);
        self.drop_groups(hands);
    }

    fn drop_groups(&mut self, hands: &mut Hands) {
        self.vcpus
            .iter_mut()
            .for_each(|vcpu| vcpu.drop_group(hands));
        if let Some(nest) = self.nest.take() {
            let path = nest.path().to_owned();
            drop(nest);
            let _ = hands.guard.remove(&path);
        }
    }
}

/// A thread that has ended is neither stopped nor let go.
fn logged(id: u32, done: std::io::Result<()>) {
    if let Err(error) = done {
        tracing::debug!(id, %error, "not frozen nor thawed");
    }
}
