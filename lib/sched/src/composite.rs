//! A policy made of a rule, a filter and a hook. Keeps the queues for them;
//! each opinion is one of theirs.

use crate::{
    params::{InvalidParams, Params},
    parts::{EnqueueReason, Hook, QueueFilter, Rekey, Rule, Spread},
    queues::{QueueLayout, Queues},
    scheduler::{Dump, Move, Orders, Pick, QueueDump, Ran, Scheduler, Then},
    units::{CpuId, DomainId, Nanos, VcpuId},
    world::{State, World},
};

/// The policy.
#[derive(Debug)]
pub struct Composite {
    name: &'static str,
    rule: Box<dyn Rule>,
    filter: Box<dyn QueueFilter>,
    hook: Box<dyn Hook>,
    spread: Spread,
    queues: Queues,
}

impl Composite {
    /// Of these parts. The seed breaks ties between CPUs.
    pub fn new(
        name: &'static str,
        parts: (Box<dyn Rule>, Box<dyn QueueFilter>, Box<dyn Hook>),
        spread: Spread,
        cpus: usize,
        seed: u64,
    ) -> Self {
        let (rule, filter, hook) = parts;
        let queues = Queues::new(rule.layout(), cpus, seed);
        Self {
            name,
            rule,
            filter,
            hook,
            spread,
            queues,
        }
    }

    fn may(&self, world: &World, vcpu: VcpuId, cpu: CpuId) -> bool {
        world[vcpu].affinity.contains(cpu) && self.filter.allows(world, &self.queues, vcpu, cpu)
    }

    /// The CPUs it may wait at; where its affinity names none that exists, all.
    fn choices(&self, world: &World, vcpu: VcpuId) -> Vec<CpuId> {
        let affine = |cpu: &CpuId| world[vcpu].affinity.contains(*cpu);
        let filtered: Vec<_> = world.cpus().filter(|&c| self.may(world, vcpu, c)).collect();
        if !filtered.is_empty() {
            return filtered;
        }
        let allowed: Vec<_> = world.cpus().filter(affine).collect();
        match allowed.is_empty() {
            true => world.cpus().collect(),
            false => allowed,
        }
    }

    fn enter(&mut self, world: &World, vcpu: VcpuId, cpu: CpuId, why: EnqueueReason) {
        let from = self.queues.home(vcpu);
        if let Some(from) = from
            && from != cpu
        {
            self.rule.moved(vcpu, from, cpu);
        }
        let place = self
            .rule
            .enter(world, self.queues.tree(cpu), cpu, vcpu, why);
        self.queues.put(vcpu, cpu, place);
    }

    /// Moves one that waits from one queue to another's.
    fn shift(&mut self, world: &World, vcpu: VcpuId, to: CpuId, orders: &mut Orders) {
        let from = self.queues.home(vcpu);
        self.queues.take(vcpu);
        self.enter(world, vcpu, to, EnqueueReason::Moved);
        orders.moves.push(Move { vcpu, from, to });
    }

    fn rekey(&mut self, world: &World, what: Rekey) {
        match what {
            Rekey::None => {}
            Rekey::All => {
                let waiting: Vec<_> = world
                    .vcpus()
                    .map(|(vcpu, _)| vcpu)
                    .filter(|&vcpu| self.queues.key(vcpu).is_some())
                    .collect();
                for vcpu in waiting {
                    if let Some(home) = self.queues.home(vcpu) {
                        let tree = self.queues.tree(home);
                        let place =
                            self.rule
                                .enter(world, tree, home, vcpu, EnqueueReason::Rekeyed);
                        self.queues.replace(vcpu, place);
                    }
                }
            }
        }
    }

    /// The front of a CPU's queue, of those that may run there.
    fn front(&self, world: &World, cpu: CpuId) -> Option<VcpuId> {
        let tree = self.queues.tree(cpu);
        match self.queues.layout() {
            QueueLayout::PerCpu => tree.first().map(|(_, vcpu)| vcpu),
            QueueLayout::Shared => tree
                .iter()
                .map(|(_, vcpu)| vcpu)
                .find(|&vcpu| world[vcpu].affinity.contains(cpu)),
        }
    }

    /// Takes over one that waits elsewhere, from the longest queue that has one.
    fn steal(&mut self, world: &World, cpu: CpuId, orders: &mut Orders) {
        let steals = matches!(self.spread, Spread::Steal | Spread::Even);
        if !steals || self.queues.layout() == QueueLayout::Shared {
            return;
        }
        let mine = self.queues.tree(cpu).first().map(|(key, _)| key);
        let mut victims: Vec<_> = world
            .cpus()
            .filter(|&other| other != cpu && !self.queues.tree(other).is_empty())
            .collect();
        victims.sort_by_key(|&other| std::cmp::Reverse(self.queues.load(world, other)));
        let found = victims.into_iter().find_map(|victim| {
            self.queues
                .tree(victim)
                .iter()
                .find(|&(key, vcpu)| self.rule.covets(mine, key) && self.may(world, vcpu, cpu))
        });
        if let Some((_, vcpu)) = found {
            self.shift(world, vcpu, cpu, orders);
        }
    }

    /// Takes one from a queue longer by two or more.
    fn even(&mut self, world: &World, cpu: CpuId, orders: &mut Orders) {
        let mine = self.queues.load(world, cpu);
        let longest = world
            .cpus()
            .max_by_key(|&other| (self.queues.load(world, other), std::cmp::Reverse(other)));
        let Some(longest) = longest.filter(|&c| self.queues.load(world, c) >= mine + 2) else {
            return;
        };
        // Those at the back have waited least, and would wait longest.
        let waiting: Vec<_> = self.queues.tree(longest).iter().map(|(_, v)| v).collect();
        let found = waiting.into_iter().rev();
        let found = { found }.find(|&vcpu| self.may(world, vcpu, cpu));
        if let Some(vcpu) = found {
            self.shift(world, vcpu, cpu, orders);
            if world[cpu].running.is_none() {
                orders.kick(cpu);
            }
        }
    }

    /// Has a CPU that idles come for what waits at one that does not.
    fn share_out(&self, world: &World, cpu: CpuId, orders: &mut Orders) {
        let steals = matches!(self.spread, Spread::Steal | Spread::Even);
        if !steals || self.queues.tree(cpu).is_empty() {
            return;
        }
        let idle = world.cpus().find(|&other| {
            other != cpu
                && world[other].running.is_none()
                && !orders.kicks.contains(&other)
                && self
                    .queues
                    .tree(cpu)
                    .iter()
                    .any(|(_, vcpu)| self.may(world, vcpu, other))
        });
        if let Some(idle) = idle {
            orders.kick(idle);
        }
    }

    /// The CPU with the least reserved, by its bound vCPUs.
    fn bind(&mut self, world: &World, vcpu: VcpuId) -> CpuId {
        let reserved = |cpu: CpuId| -> (u64, usize) {
            let bound: Vec<_> = world
                .vcpus()
                .filter(|(other, _)| *other != vcpu && self.queues.home(*other) == Some(cpu))
                .map(|(other, _)| other)
                .collect();
            let of = |v: &VcpuId| {
                let reservation = world.params(*v).reservation;
                reservation.map_or(0, |r| r.millionths())
            };
            (bound.iter().map(of).sum(), bound.len())
        };
        let choices = self.choices(world, vcpu);
        let least = choices.iter().min_by_key(|&&cpu| (reserved(cpu), cpu));
        least.copied().unwrap_or(CpuId(0))
    }

    /// The CPU that runs the one that should first give way to it, if any should.
    fn weakest(&self, world: &World, vcpu: VcpuId) -> Option<CpuId> {
        let allowed = |cpu: &CpuId| world[vcpu].affinity.contains(*cpu);
        let running = world.cpus().filter(allowed).filter_map(|cpu| {
            let standing = self.rule.standing(world, world[cpu].running?);
            Some((standing, std::cmp::Reverse(cpu)))
        });
        running.max().map(|(_, cpu)| cpu.0)
    }

    /// Kicks the CPU that should run one that has just entered its queue.
    fn announce(&self, world: &World, vcpu: VcpuId, cpu: CpuId, orders: &mut Orders) {
        let parked = self.queues.key(vcpu).is_none();
        match world[cpu].running {
            // Also for one that is parked: an idle CPU must learn until when.
            None => orders.kick(cpu),
            Some(_) if parked => {}
            Some(running)
                if !self.hook.shields(world, cpu) && self.rule.preempts(world, vcpu, running) =>
            {
                orders.kick(cpu);
            }
            Some(_) => {}
        }
    }

    /// Settles what the last one did.
    fn settle(&mut self, world: &World, cpu: CpuId, ran: Ran, orders: &mut Orders) {
        let Ran { vcpu, time, then } = ran;
        let home = self.queues.home(vcpu).unwrap_or(cpu);
        // Charged where it ran, whose virtual time it still has.
        if home != cpu {
            self.rule.moved(vcpu, home, cpu);
            self.queues.set_home(vcpu, cpu);
        }
        self.rule
            .charge(world, self.queues.tree(cpu), cpu, vcpu, time);
        match then {
            Then::Wait => {
                let why = match home == cpu {
                    true => EnqueueReason::Ran,
                    false => EnqueueReason::Moved,
                };
                self.enter(world, vcpu, home, why);
                if home != cpu {
                    self.announce(world, vcpu, home, orders);
                }
            }
            Then::Sleep if home != cpu => {
                self.rule.moved(vcpu, cpu, home);
                self.queues.set_home(vcpu, home);
            }
            Then::Sleep => {}
        }
    }
}

impl Scheduler for Composite {
    fn name(&self) -> &'static str {
        self.name
    }

    fn init_vcpu(&mut self, world: &World, vcpu: VcpuId) {
        self.rule.init(world, vcpu);
        if self.spread == Spread::Bound {
            let cpu = self.bind(world, vcpu);
            self.queues.set_home(vcpu, cpu);
        }
    }

    fn destroy_vcpu(&mut self, _world: &World, vcpu: VcpuId) {
        self.queues.forget(vcpu);
        self.hook.forget(vcpu);
    }

    fn sleep(&mut self, _world: &World, vcpu: VcpuId) {
        self.queues.take(vcpu);
    }

    fn wake(&mut self, world: &World, vcpu: VcpuId, orders: &mut Orders) {
        let from = self.queues.home(vcpu);
        let to = self.pick_cpu(world, vcpu);
        self.enter(world, vcpu, to, EnqueueReason::Woke);
        if from != Some(to) {
            orders.moves.push(Move { vcpu, from, to });
        }
        self.announce(world, vcpu, to, orders);
    }

    fn pick_cpu(&mut self, world: &World, vcpu: VcpuId) -> CpuId {
        let home = self.queues.home(vcpu);
        if let (Spread::Bound, Some(home)) = (self.spread, home) {
            return home;
        }
        let choices = self.choices(world, vcpu);
        if self.queues.layout() == QueueLayout::Shared {
            let idle = |cpu: &CpuId| world[*cpu].running.is_none();
            let last = home.filter(|cpu| choices.contains(cpu) && idle(cpu));
            let idle = last.or_else(|| choices.iter().copied().find(idle));
            return idle
                .or_else(|| self.weakest(world, vcpu))
                .unwrap_or(choices[0]);
        }
        let load = |cpu: CpuId| self.queues.load(world, cpu);
        let least = choices.iter().map(|&cpu| load(cpu)).min().unwrap_or(0);
        let best: Vec<_> = choices.into_iter().filter(|&c| load(c) == least).collect();
        match home.filter(|home| best.contains(home)) {
            Some(home) => home,
            None => best[self.queues.dice.below(best.len())],
        }
    }

    fn do_schedule(
        &mut self,
        world: &World,
        cpu: CpuId,
        last: Option<Ran>,
        orders: &mut Orders,
    ) -> Pick {
        if let Some(ran) = last {
            self.settle(world, cpu, ran, orders);
        }
        while let Some(vcpu) = self.queues.due(cpu, world.now) {
            self.enter(world, vcpu, cpu, EnqueueReason::Due);
        }
        self.hook
            .before(world, &mut self.queues, self.rule.as_mut(), cpu);
        self.steal(world, cpu, orders);
        let alarm = self.queues.next_alarm(cpu).unwrap_or(Nanos::FOREVER);
        let until_alarm = alarm.minus(world.now);
        let Some(front) = self.front(world, cpu) else {
            return Pick {
                vcpu: None,
                slice: until_alarm,
            };
        };
        let rule = self.rule.as_mut();
        let vcpu = self.hook.choose(world, &mut self.queues, rule, cpu, front);
        self.queues.take(vcpu);
        self.queues.set_home(vcpu, cpu);
        let mut slice = self
            .rule
            .slice(world, self.queues.tree(cpu), cpu, vcpu)
            .max(Nanos(1));
        // It may itself have been one that waited for an instant.
        let alarm = self.queues.next_alarm(cpu).unwrap_or(Nanos::FOREVER);
        if self.rule.punctual() {
            slice = slice.min(alarm.minus(world.now)).max(Nanos(1));
        }
        slice = self
            .hook
            .chosen(world, &self.queues, cpu, vcpu, slice, orders);
        let rekey = self.rule.picked(world, vcpu);
        self.rekey(world, rekey);
        self.share_out(world, cpu, orders);
        Pick {
            vcpu: Some(vcpu),
            slice,
        }
    }

    fn tick(&mut self, world: &World, cpu: CpuId, orders: &mut Orders) {
        let rekey = self.rule.tick(world, cpu);
        self.rekey(world, rekey);
        if self.spread == Spread::Even {
            self.even(world, cpu, orders);
        }
    }

    fn migrate(&mut self, world: &World, vcpu: VcpuId, to: CpuId, orders: &mut Orders) {
        let from = self.queues.home(vcpu);
        if from == Some(to) || !world[vcpu].affinity.contains(to) {
            return;
        }
        match world[vcpu].state() {
            State::Waiting => {
                self.shift(world, vcpu, to, orders);
                self.announce(world, vcpu, to, orders);
                return;
            }
            State::Running(cpu) => orders.kick(cpu),
            State::Asleep => {}
        }
        if let Some(from) = from {
            self.rule.moved(vcpu, from, to);
        }
        self.queues.set_home(vcpu, to);
        orders.moves.push(Move { vcpu, from, to });
    }

    fn adjust(
        &mut self,
        world: &World,
        domain: DomainId,
        params: &Params,
    ) -> Result<(), InvalidParams> {
        params.check()?;
        let home = |vcpu| self.queues.home(vcpu);
        self.rule.admit(world, domain, params, &home)
    }

    fn dump(&self, world: &World) -> Dump {
        let cpus = match self.queues.layout() {
            QueueLayout::PerCpu => world.width(),
            QueueLayout::Shared => 1,
        };
        let queue = |cpu| QueueDump {
            cpu,
            waiting: { self.queues.tree(cpu).iter() }
                .map(|(key, vcpu)| (vcpu, key.major))
                .collect(),
            parked: self.queues.parked(cpu),
        };
        Dump {
            policy: self.name.to_owned(),
            queues: world.cpus().take(cpus).map(queue).collect(),
        }
    }

    fn home(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.queues.home(vcpu)
    }

    fn waiting(&self, cpu: CpuId) -> Vec<VcpuId> {
        self.queues.tree(cpu).iter().map(|(_, vcpu)| vcpu).collect()
    }
}
