//! Carrying out what the policy has decided.

use super::{Dispatcher, vm::Vcpu};
use crate::{
    freezer::Frozen,
    guard::Look,
    mechanism::{Mechanism, Turn},
    protocol::Level,
};
use forkyard_sched::State;

impl Dispatcher {
    /// Makes it so.
    pub(super) fn carry_out(&mut self) {
        match self.hands.mechanism {
            Mechanism::Freezer => self.freeze(),
            Mechanism::SchedExt(_) => self.decide(),
        }
    }

    /// Begins anew with another guard, should that have died.
    pub(super) fn replace_guard(&mut self) {
        if let Ok(Look::Lives) = self.hands.guard.check() {
            return;
        }
        // The new one knows the old groups; until that is sure, none is frozen.
        tracing::warn!("the guard died: everything is let go, and begun anew");
        for place in 0..self.vms.len() {
            self.leave(place);
            self.enter_again(place);
        }
    }

    /// Stops all that wait before any other goes.
    fn freeze(&mut self) {
        let now = self.world.now;
        let mut wanted = Vec::with_capacity(self.vms.len());
        for vm in &mut self.vms {
            let of = |vcpu: &Vcpu| match vcpu.id.map(|id| self.world[id].state()) {
                Some(State::Waiting) => Frozen::Yes,
                Some(State::Running(_) | State::Asleep) | None => Frozen::No,
            };
            let turns: Vec<Frozen> = vm.vcpus.iter().map(of).collect();
            vm.stop(&turns, now);
            wanted.push(turns);
        }
        for (vm, turns) in self.vms.iter_mut().zip(&wanted) {
            for vcpu in &mut vm.vcpus {
                if let Some(id) = vcpu.id
                    && let State::Running(cpu) = self.world[id].state()
                {
                    // It may have ended since it was looked at.
                    let _ = vcpu.pin(self.cpus[cpu.at()], &mut self.hands);
                }
            }
            vm.go(turns, now);
        }
    }

    /// Tells the kernel whose turn it is, of all vCPUs: what it made of it meanwhile is
    /// put right by that.
    fn decide(&mut self) {
        let all = self.vms.iter().flat_map(|vm| &vm.vcpus);
        let turns: Vec<(u32, Turn)> = all
            .filter_map(|vcpu| {
                let turn = match self.world[vcpu.id?].state() {
                    State::Running(cpu) => Turn::On(self.cpus[cpu.at()]),
                    State::Waiting => Turn::Waits,
                    State::Asleep => Turn::Free,
                };
                Some((vcpu.tid, turn))
            })
            .collect();
        let Mechanism::SchedExt(scheduler) = &mut self.hands.mechanism else {
            return;
        };
        if let Err(error) = scheduler.decide(&turns) {
            tracing::error!(%error, "everything is let go until it is set again");
            for place in 0..self.vms.len() {
                self.leave(place);
                self.vms[place].level = Level::Observe;
            }
        }
    }
}
