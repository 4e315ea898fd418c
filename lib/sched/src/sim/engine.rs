//! The engine of discrete events.

mod tally;

use super::{
    Setup, SetupError, SimGuest, VcpuAct,
    measure::{Outcome, Samples},
};
use crate::{
    dice::Dice,
    scheduler::{Orders, Ran, Scheduler, TICK, Then},
    units::{CpuId, DomainId, Nanos, VcpuId},
    world::{State, World},
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

/// Event of an instant, beside the ends of slices and of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wake(VcpuId),
    Arrive(DomainId),
    Tick,
    Sample,
    Lag,
    Measure,
}

/// Task of this very instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Todo {
    /// A vCPU's wait is over.
    Release(VcpuId),
    /// The vCPU that runs there has come to the end of its act.
    Next(CpuId),
    Kick(CpuId),
}

/// Phase of a vCPU's act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing: asks its guest when it runs.
    Next,
    Work(Nanos),
    Spin(Option<Nanos>),
    Blocked,
    Sleeping,
}

#[derive(Clone, Debug)]
struct Vcpu {
    who: usize,
    phase: Phase,
    /// Costs it has yet to pay.
    owes: Nanos,
    spun: Nanos,
    /// Time its CPU had run in all when it last left it.
    left: Nanos,
}

#[derive(Clone, Debug, Default)]
struct Cpu {
    speed: u64,
    slice_end: Nanos,
    next: Nanos,
    /// Until when the work of the one that runs is booked.
    booked: Nanos,
    last: Option<VcpuId>,
    busy: Nanos,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    switches: u64,
    migrations: u64,
}

/// A simulation under way.
#[derive(Debug)]
pub struct Simulation {
    setup: Setup,
    world: World,
    policy: Box<dyn Scheduler>,
    guests: Vec<Box<dyn SimGuest>>,
    vcpus: Vec<Vcpu>,
    cpus: Vec<Cpu>,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    todo: VecDeque<Todo>,
    seq: u64,
    dice: Dice,
    samples: Samples,
    counters: Counters,
    /// Work, time run, waited and spun when measuring began, by domain.
    begun: Vec<(u64, Nanos, Nanos, Nanos)>,
}

/// Runs a setup to its end.
pub fn simulate(setup: &Setup) -> Result<Outcome, SetupError> {
    let mut engine = Simulation::new(setup)?;
    engine.run_until(setup.warm_up + setup.length);
    Ok(engine.outcome())
}

impl Simulation {
    /// At time zero, all vCPUs about to wake up.
    pub fn new(setup: &Setup) -> Result<Self, SetupError> {
        setup.check()?;
        let mut dice = Dice::new(setup.seed);
        let mut knobs = setup.knobs;
        knobs.seed = dice.roll();
        let speeds = setup.cpus.iter().map(|&speed| f64::from(speed) / 1e3);
        let mut engine = Self {
            world: World::new(speeds),
            policy: crate::build(setup.policy, setup.cpus.len(), &knobs)?,
            guests: Vec::new(),
            vcpus: Vec::new(),
            cpus: { setup.cpus.iter() }
                .map(|&speed| Cpu {
                    speed: speed.into(),
                    next: Nanos::FOREVER,
                    ..Cpu::default()
                })
                .collect(),
            events: BinaryHeap::new(),
            todo: VecDeque::new(),
            seq: 0,
            dice,
            samples: Samples::default(),
            counters: Counters::default(),
            begun: Vec::new(),
            setup: setup.clone(),
        };
        for domain in &setup.domains {
            engine.add(domain)?;
        }
        let (sample, lag) = (setup.sample, setup.lag);
        engine.at(setup.warm_up, Event::Measure);
        engine.at(TICK, Event::Tick);
        engine.at(setup.warm_up + sample, Event::Sample);
        engine.at(setup.warm_up, Event::Lag);
        debug_assert!(lag > Nanos::ZERO);
        Ok(engine)
    }

    fn add(&mut self, setup: &super::DomainSetup) -> Result<(), SetupError> {
        // VMs are not started all at once, nor their vCPUs in one order.
        const SPREAD: u64 = 20_000_000;
        let id = self.world.add_domain(setup.params);
        self.policy.init_domain(&self.world, id);
        for who in 0..setup.vcpus {
            let vcpu = self.world.add_vcpu(id, setup.affinity(who));
            self.policy.init_vcpu(&self.world, vcpu);
            self.vcpus.push(Vcpu {
                who,
                phase: Phase::Sleeping,
                owes: Nanos::ZERO,
                spun: Nanos::ZERO,
                left: Nanos::ZERO,
            });
            let at = Nanos(self.dice.roll() % SPREAD);
            self.at(at, Event::Wake(vcpu));
        }
        let adjusted = self.policy.adjust(&self.world, id, &setup.params);
        adjusted.map_err(|source| SetupError::Refused {
            policy: self.setup.policy,
            domain: setup.name.clone(),
            source,
        })?;
        let mut guest = setup.load.start(setup.vcpus);
        let first = guest.arrive(Nanos::ZERO, &mut self.dice, &mut Vec::new());
        if let Some(first) = first {
            self.at(first, Event::Arrive(id));
        }
        self.guests.push(guest);
        Ok(())
    }

    /// Returns the world as the policy saw it last.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The policy.
    pub fn policy(&self) -> &dyn Scheduler {
        self.policy.as_ref()
    }

    /// Units of work a domain has done.
    pub fn done(&self, domain: DomainId) -> u64 {
        self.guests[domain.at()].done()
    }

    fn at(&mut self, at: Nanos, event: Event) {
        self.seq += 1;
        self.events.push(Reverse((at, self.seq, event)));
    }

    /// Goes on until an instant: everything before it has happened.
    pub fn run_until(&mut self, end: Nanos) {
        loop {
            let (mut next, mut cpu) = (Nanos::FOREVER, None);
            for (n, candidate) in self.cpus.iter().enumerate() {
                if candidate.next < next {
                    (next, cpu) = (candidate.next, Some(CpuId::from_place(n)));
                }
            }
            let event = self.events.peek().map(|Reverse((at, _, _))| *at);
            let at = event.map_or(next, |event| event.min(next));
            if at >= end {
                self.world.now = end;
                return;
            }
            self.world.now = at;
            if event == Some(at) {
                if let Some(Reverse((_, _, event))) = self.events.pop() {
                    self.happen(event);
                }
            } else if let Some(cpu) = cpu {
                self.due(cpu);
            }
            self.settle();
        }
    }

    fn happen(&mut self, event: Event) {
        let now = self.world.now;
        match event {
            Event::Wake(vcpu) => self.wake(vcpu),
            Event::Arrive(domain) => {
                let mut released = Vec::new();
                let guest = &mut self.guests[domain.at()];
                let next = guest.arrive(now, &mut self.dice, &mut released);
                self.release(domain, &released);
                if let Some(next) = next {
                    self.at(next, Event::Arrive(domain));
                }
            }
            Event::Tick => {
                for cpu in self.world.cpus() {
                    let mut orders = Orders::default();
                    self.policy.tick(&self.world, cpu, &mut orders);
                    self.obey(&orders);
                }
                self.at(now + TICK, Event::Tick);
            }
            Event::Sample => {
                self.samples.look(&self.world, self.policy.as_ref());
                self.at(now + self.setup.sample, Event::Sample);
            }
            Event::Lag => {
                self.samples.lag(&self.world);
                self.at(now + self.setup.lag, Event::Lag);
            }
            Event::Measure => self.measure(),
        }
    }

    fn settle(&mut self) {
        while let Some(todo) = self.todo.pop_front() {
            match todo {
                Todo::Release(vcpu) => self.released(vcpu),
                Todo::Next(cpu) => self.next_act(cpu),
                Todo::Kick(cpu) => {
                    let kicked = self.world[cpu].running.is_some();
                    self.reschedule(cpu, Then::Wait);
                    if kicked && let Some(vcpu) = self.world[cpu].running {
                        self.vcpus[vcpu.at()].owes += self.setup.costs.kick;
                        self.plan(cpu);
                    }
                }
            }
        }
    }

    fn obey(&mut self, orders: &Orders) {
        let kicks = orders.kicks.iter().map(|&cpu| Todo::Kick(cpu));
        self.todo.extend(kicks);
    }

    fn release(&mut self, domain: DomainId, who: &[usize]) {
        let vcpus = &self.world[domain].vcpus;
        let all = who.iter().filter_map(|&who| vcpus.get(who));
        self.todo.extend(all.map(|&vcpu| Todo::Release(vcpu)));
    }

    fn released(&mut self, vcpu: VcpuId) {
        match self.vcpus[vcpu.at()].phase {
            Phase::Blocked => self.wake(vcpu),
            Phase::Spin(_) => {
                let state = self.world[vcpu].state();
                if let State::Running(cpu) = state {
                    self.book(cpu);
                    self.todo.push_back(Todo::Next(cpu));
                }
                self.vcpus[vcpu.at()].phase = Phase::Next;
            }
            Phase::Next | Phase::Work(_) | Phase::Sleeping => {}
        }
    }

    fn wake(&mut self, vcpu: VcpuId) {
        self.vcpus[vcpu.at()].phase = Phase::Next;
        self.world.set_state(vcpu, State::Waiting);
        let mut orders = Orders::default();
        self.policy.wake(&self.world, vcpu, &mut orders);
        self.obey(&orders);
    }

    /// A slice or an act has come to its end.
    fn due(&mut self, cpu: CpuId) {
        self.book(cpu);
        let ended = self.world[cpu].running.is_some_and(|vcpu| self.ended(vcpu));
        if ended {
            self.next_act(cpu);
        }
        if self.cpus[cpu.at()].slice_end <= self.world.now {
            self.reschedule(cpu, Then::Wait);
        } else {
            self.plan(cpu);
        }
    }

    fn ended(&self, vcpu: VcpuId) -> bool {
        let vcpu = &self.vcpus[vcpu.at()];
        vcpu.owes == Nanos::ZERO
            && matches!(
                vcpu.phase,
                Phase::Next | Phase::Work(Nanos::ZERO) | Phase::Spin(Some(Nanos::ZERO))
            )
    }

    /// Books the time since the last booking on what the one that runs does.
    fn book(&mut self, cpu: CpuId) {
        let now = self.world.now;
        let state = &mut self.cpus[cpu.at()];
        let mut time = now.minus(state.booked);
        state.booked = now;
        let Some(vcpu) = self.world[cpu].running else {
            return;
        };
        state.busy += time;
        let vcpu = &mut self.vcpus[vcpu.at()];
        let paid = time.min(vcpu.owes);
        vcpu.owes = vcpu.owes.minus(paid);
        time = time.minus(paid);
        match &mut vcpu.phase {
            Phase::Work(left) => *left = left.minus(time.scale(state.speed, 1_000)),
            Phase::Spin(left) => {
                vcpu.spun += time;
                if let Some(left) = left {
                    *left = left.minus(time);
                }
            }
            Phase::Next | Phase::Blocked | Phase::Sleeping => {}
        }
    }

    /// Plans the next look at a CPU.
    fn plan(&mut self, cpu: CpuId) {
        let now = self.world.now;
        let end = self.world[cpu].running.map_or(Nanos::FOREVER, |vcpu| {
            let speed = self.cpus[cpu.at()].speed;
            let vcpu = &self.vcpus[vcpu.at()];
            let left = match vcpu.phase {
                // Rounded up: what is left when it is looked at must be nothing.
                Phase::Work(left) => left.scale(1_000, speed) + Nanos(u64::from(speed != 1_000)),
                Phase::Spin(Some(left)) => left,
                Phase::Spin(None) => Nanos::FOREVER,
                Phase::Next | Phase::Blocked | Phase::Sleeping => Nanos::ZERO,
            };
            now + vcpu.owes + left
        });
        let state = &mut self.cpus[cpu.at()];
        state.next = end.min(state.slice_end);
    }

    /// Asks the guest of the one that runs what it does next.
    fn next_act(&mut self, cpu: CpuId) {
        let Some(vcpu) = self.world[cpu].running else {
            return;
        };
        if !self.ended(vcpu) {
            return self.plan(cpu);
        }
        if self.vcpus[vcpu.at()].phase == Phase::Spin(Some(Nanos::ZERO)) {
            self.vcpus[vcpu.at()].phase = Phase::Blocked;
            return self.reschedule(cpu, Then::Sleep);
        }
        let now = self.world.now;
        let domain = self.world[vcpu].domain;
        let mut released = Vec::new();
        let guest = &mut self.guests[domain.at()];
        let who = self.vcpus[vcpu.at()].who;
        let act = guest.act(who, now, &mut self.dice, &mut released);
        self.release(domain, &released);
        let phase = match act {
            VcpuAct::Work(time) => Phase::Work(time.max(Nanos(1))),
            VcpuAct::Wait(Some(Nanos::ZERO)) => Phase::Blocked,
            VcpuAct::Wait(spin) => Phase::Spin(spin),
            VcpuAct::Sleep(time) => {
                self.at(now + time.max(Nanos(1)), Event::Wake(vcpu));
                Phase::Sleeping
            }
        };
        self.vcpus[vcpu.at()].phase = phase;
        match phase {
            Phase::Blocked | Phase::Sleeping => self.reschedule(cpu, Then::Sleep),
            Phase::Next | Phase::Work(_) | Phase::Spin(_) => self.plan(cpu),
        }
    }

    fn reschedule(&mut self, cpu: CpuId, then: Then) {
        self.book(cpu);
        let now = self.world.now;
        let last = self.world[cpu].running.map(|vcpu| Ran {
            vcpu,
            time: self.world.runs_for(vcpu),
            then,
        });
        if let Some(ran) = last {
            self.vcpus[ran.vcpu.at()].left = self.cpus[cpu.at()].busy;
            let state = match then {
                Then::Wait => State::Waiting,
                Then::Sleep => State::Asleep,
            };
            self.world.set_state(ran.vcpu, state);
        }
        let mut orders = Orders::default();
        let pick = self.policy.do_schedule(&self.world, cpu, last, &mut orders);
        self.cpus[cpu.at()].slice_end = now + pick.slice;
        if let Some(vcpu) = pick.vcpu {
            self.start(cpu, vcpu);
        }
        self.plan(cpu);
        self.obey(&orders);
    }

    fn start(&mut self, cpu: CpuId, vcpu: VcpuId) {
        let costs = self.setup.costs;
        let before = self.cpus[cpu.at()].last.replace(vcpu);
        let moved = self.world[vcpu].last.is_some_and(|last| last != cpu);
        if before != Some(vcpu) {
            self.counters.switches += 1;
            let away = match moved {
                true => costs.footprint,
                false => self.cpus[cpu.at()].busy.minus(self.vcpus[vcpu.at()].left),
            };
            let cold = costs
                .cold
                .scale(away.min(costs.footprint).0, costs.footprint.0);
            self.vcpus[vcpu.at()].owes += costs.switch + cold;
        }
        if moved {
            self.counters.migrations += 1;
            self.vcpus[vcpu.at()].owes += costs.migration;
        }
        self.world.set_state(vcpu, State::Running(cpu));
        self.cpus[cpu.at()].booked = self.world.now;
        if self.ended(vcpu) {
            self.todo.push_back(Todo::Next(cpu));
        }
    }
}
