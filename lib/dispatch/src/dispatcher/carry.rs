//! Carrying out what the policy has decided.

use super::Dispatcher;
use crate::{
    freezer::Frozen,
    guard::Alive,
    mechanism::{Mechanism, Turn},
    protocol::Level,
};
use forkyard_sched::State;

impl Dispatcher {
    /// Makes it so.
    pub(super) fn carry_out(&mut self) {
        if let Ok(Alive::Replaced) | Err(_) = self.hands.guard.check() {
            // The new one knows the old groups; until that is sure, nobody is frozen.
            tracing::warn!("the guard died: everything is let go, and begun anew");
            for place in 0..self.vms.len() {
                self.leave(place);
                self.enter_again(place);
            }
            return;
        }
        match self.hands.mechanism {
            Mechanism::Freezer => self.freeze(),
            Mechanism::SchedExt(_) => self.decide(),
        }
    }

    /// Whoever waits is stopped before anybody else goes.
    fn freeze(&mut self) {
        for frozen in [Frozen::Yes, Frozen::No] {
            for vcpu in self.vms.iter_mut().flat_map(|vm| &mut vm.vcpus) {
                let Some(id) = vcpu.id else { continue };
                let state = self.world[id].state();
                let wanted = match state {
                    State::Waiting => Frozen::Yes,
                    State::Running(_) | State::Asleep => Frozen::No,
                };
                if wanted != frozen {
                    continue;
                }
                if let State::Running(cpu) = state {
                    // It may have ended since it was looked at.
                    let _ = vcpu.pin(self.cpus[cpu.at()], &mut self.hands);
                }
                if let Err(error) = vcpu.set(frozen, self.world.now) {
                    tracing::debug!(tid = vcpu.tid, %error, "not frozen nor thawed");
                }
            }
        }
    }

    /// Tells the kernel whose turn it is, of everybody: what it made of it meanwhile is
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
