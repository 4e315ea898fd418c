//! Present state, for people and programs.

use super::{
    Dispatcher,
    vm::{Vcpu, Vm},
};
use crate::{
    Step,
    protocol::{Because, CpuShown, Level, Shown, VcpuShown, VmShown},
};
use forkyard_sched::{State, VcpuId};

impl Dispatcher {
    /// Returns the present state.
    pub fn shown(&self) -> Shown {
        let tid_of = |id: VcpuId| {
            let all = self.vms.iter().flat_map(|vm| &vm.vcpus);
            { all }.find(|v| v.id == Some(id)).map(|v| v.tid)
        };
        let cpus = self.world.cpus().map(|cpu| CpuShown {
            cpu: self.cpus[cpu.at()],
            waiting: { self.scheduler.waiting(cpu).into_iter() }
                .filter_map(tid_of)
                .collect(),
            running: self.world[cpu].running.and_then(tid_of),
        });
        Shown {
            policy: self.policy,
            means: self.hands.mechanism.means(),
            own: self.own.1,
            own_ns: super::review::own().0,
            guard: self.hands.guard.pid(),
            switches: self.switches,
            cpus: cpus.collect(),
            vms: self.vms.iter().map(|vm| self.shown_vm(vm)).collect(),
        }
    }

    fn shown_vm(&self, vm: &Vm) -> VmShown {
        let ordinate = |id: VcpuId| {
            let home = self.scheduler.home(id)?;
            let at = self.scheduler.waiting(home).iter().position(|&w| w == id)?;
            u32::try_from(at).ok()
        };
        let vcpu = |vcpu: &Vcpu| {
            let home = vcpu.id.and_then(|id| self.scheduler.home(id));
            let shares = |other: &Vcpu| {
                let awake = |id: VcpuId| self.world[id].state() != State::Asleep;
                let there = other.id.filter(|&id| awake(id));
                other.tid != vcpu.tid
                    && home.is_some()
                    && there.and_then(|id| self.scheduler.home(id)) == home
            };
            VcpuShown {
                index: vcpu.index,
                tid: vcpu.tid,
                cpu: home.map(|cpu| self.cpus[cpu.at()]).or(vcpu.pinned),
                share: vcpu.account.share,
                speed: vcpu.account.speed,
                given_ns: vcpu.given(&self.world).0,
                waited_ns: vcpu.waited(&self.world).0,
                stacked: vm.vcpus.iter().any(shares),
                ordinate: vcpu.id.and_then(ordinate),
            }
        };
        let vcpus: Vec<_> = vm.vcpus.iter().map(vcpu).collect();
        let places = || vcpus.iter().filter_map(|vcpu| vcpu.ordinate);
        let because = match (vm.level, vm.steps.step()) {
            (Level::Enforce, Step::Down { .. }) => Some(Because::Blocks),
            (Level::Enforce, Step::Alone) => Some(Because::Alone),
            (Level::Enforce, Step::Enforcing) | (Level::Observe | Level::Place, _) => None,
        };
        let distance = places().max().unwrap_or(0) - places().min().unwrap_or(0);
        VmShown {
            name: vm.name.clone(),
            pid: vm.pid,
            level: vm.level,
            now: vm.now(),
            because,
            weight: vm.params.weight,
            cap: vm.params.cap,
            parallel: vm.params.parallel,
            sleeps: vm.habits.sleeps,
            asleep: vm.habits.asleep,
            distance,
            vcpus,
        }
    }
}
