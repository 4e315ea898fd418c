//! Gang scheduling: siblings run at the same time.
//!
//! Problem: a vCPU that waits for a sibling spins in vain while that one is
//! not running. Terms: a *gang* is the vCPUs of a domain that wait; a *slot* is
//! the time from one's being chosen to the end of its slice. Rule (Wang §4.5):
//! when a vCPU is chosen, the CPUs in whose queues its siblings are get an
//! interrupt and run those in place of their own front, until the end of the
//! slot. Two policies differ in the vCPU that starts a gang:
//!
//! - **procco**: any vCPU starts its siblings;
//! - **cpuco**: CPU 0 leads: what it chooses starts, and the others follow.
//!
//! A CPU whose front had to stand back for another's gang chooses by itself the
//! next time, unless both want the same: else a vCPU in no gang would wait for
//! ever wherever gangs end and begin at the same moments.
//!
//! A slot that has begun is not broken by another gang nor by one that wakes;
//! else two gangs would interrupt each other for ever. Where a sibling sleeps,
//! its CPU goes on with what it has. Gangs cost what they interrupt: fragments of
//! slots, cold caches, and the wait of neighbours; an engine has to count that.

use crate::{
    parts::{Hook, Rule},
    queues::Queues,
    scheduler::Orders,
    units::{CpuId, Nanos, VcpuId},
    world::{State, World},
};

/// Choice of the vCPU that starts a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leader {
    /// Any vCPU that is chosen.
    Anyone,
    /// The vCPU that CPU 0 chooses.
    FirstCpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    vcpu: VcpuId,
    until: Nanos,
}

/// The hook.
#[derive(Clone, Debug)]
pub struct Gang {
    leader: Leader,
    slots: Vec<Option<Slot>>,
    /// CPUs whose front stood back since they last chose by themselves.
    overruled: Vec<bool>,
}

impl Gang {
    /// For so many CPUs.
    pub fn new(leader: Leader, cpus: usize) -> Self {
        Self {
            leader,
            slots: vec![None; cpus],
            overruled: vec![false; cpus],
        }
    }

    fn slot(&self, cpu: CpuId, now: Nanos) -> Option<Slot> {
        let slot = (*self.slots.get(cpu.at())?)?;
        (slot.until > now).then_some(slot)
    }
}

impl Hook for Gang {
    fn choose(
        &mut self,
        world: &World,
        queues: &mut Queues,
        _: &mut dyn Rule,
        cpu: CpuId,
        front: VcpuId,
    ) -> VcpuId {
        match self.slot(cpu, world.now) {
            Some(slot)
                if queues.key(slot.vcpu).is_some() && queues.home(slot.vcpu) == Some(cpu) =>
            {
                slot.vcpu
            }
            Some(_) | None => {
                self.slots[cpu.at()] = None;
                front
            }
        }
    }

    fn chosen(
        &mut self,
        world: &World,
        queues: &Queues,
        cpu: CpuId,
        vcpu: VcpuId,
        slice: Nanos,
        orders: &mut Orders,
    ) -> Nanos {
        if let Some(slot) = self.slot(cpu, world.now)
            && slot.vcpu == vcpu
        {
            return slot.until.minus(world.now);
        }
        let until = world.now + slice;
        // What it has been kept from, it now does to the end.
        let mut slot = std::mem::take(&mut self.overruled[cpu.at()]);
        let leads = self.leader == Leader::Anyone || cpu == CpuId(0);
        for sibling in world.siblings(vcpu).filter(|_| leads) {
            let Some(home) = queues.home(sibling) else {
                continue;
            };
            let free = home != cpu && self.slot(home, world.now).is_none();
            // One that runs already is told to run as long as the others.
            let wants =
                queues.key(sibling).is_some() || world[sibling].state() == State::Running(home);
            let waits = queues.tree(home).first().map(|(_, front)| front);
            let others = [world[home].running, waits].into_iter().flatten();
            let overrules = { others }.any(|other| other != sibling);
            if free && wants && !(overrules && self.overruled[home.at()]) {
                self.overruled[home.at()] |= overrules;
                let vcpu = sibling;
                self.slots[home.at()] = Some(Slot { vcpu, until });
                orders.kick(home);
                slot = true;
            }
        }
        if slot {
            self.slots[cpu.at()] = Some(Slot { vcpu, until });
        }
        slice
    }

    fn shields(&self, world: &World, cpu: CpuId) -> bool {
        let running = world[cpu].running;
        self.slot(cpu, world.now)
            .is_some_and(|slot| running == Some(slot.vcpu))
    }

    fn forget(&mut self, vcpu: VcpuId) {
        for slot in &mut self.slots {
            *slot = slot.filter(|slot| slot.vcpu != vcpu);
        }
    }
}
