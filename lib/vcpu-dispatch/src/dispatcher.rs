//! The engine over real threads.
//!
//! Its clock is the caller's; a [`step`](Dispatcher::step) looks at the threads
//! that may run, ends slices that are over, asks the policy, and carries out what
//! it says: first it freezes, then it lets go. vCPUs that sleep are never frozen:
//! one that wakes runs until it is noticed, a few milliseconds at most.

mod carry;
mod nest;
mod review;
mod shown;
mod vm;

use crate::{
    DispatchError,
    freezer::Frozen,
    guard::{DispatchGuard, Program},
    mechanism::{Hands, Mechanism},
    place,
    protocol::{Level, Wanted},
    step,
    threads::Doing,
};
use forkyard_sched::{
    CpuId, CpuReservation, Nanos, Orders, Params, Policy, PolicySettings, Ran, Scheduler, State,
    TICK, Then, World, rules,
};
use std::collections::VecDeque;
use vm::Vm;

/// Time between looks while one waits, and one that runs is likely to sleep.
const LOOK: Nanos = Nanos::micros(2_500);
/// While one waits, and guests hardly sleep: a few of their slots.
const GLANCE: Nanos = Nanos::millis(30);
/// While none waits.
const REST: Nanos = Nanos::millis(20);

/// The dispatcher. Dropping it lets every VM go.
#[derive(Debug)]
pub struct Dispatcher {
    policy: Policy,
    scheduler: Box<dyn Scheduler>,
    world: World,
    /// Names given to vCPUs in this world.
    named: usize,
    /// The host's numbers of the CPUs.
    cpus: Vec<u32>,
    ends: Vec<Nanos>,
    vms: Vec<Vm>,
    hands: Hands,
    kicks: VecDeque<CpuId>,
    next_tick: Nanos,
    /// Time of the next look at which are awake, and how long that can wait.
    next_look: Nanos,
    look_by: Nanos,
    reviews: review::Reviews,
    switches: u64,
    /// CPU time taken until the last review, and its part of the period before.
    own: (Nanos, f64),
}

/// Shorter turns than the host's, for one that is frozen may hold QEMU's big lock:
/// 5 ms, by weight.
fn knobs() -> PolicySettings {
    let cfs = rules::CfsKnobs {
        latency: Nanos::millis(10),
        min_granularity: Nanos::millis(5),
        wakeup_granularity: Nanos::millis(4),
    };
    PolicySettings {
        cfs,
        ..PolicySettings::default()
    }
}

impl Dispatcher {
    /// On the CPUs that the calling thread may run on, with a guard of its own.
    pub fn new(
        policy: Policy,
        guard: Program,
        mechanism: Mechanism,
    ) -> Result<Self, DispatchError> {
        let cpus =
            place::allowed(0).map_err(DispatchError::host("see the CPUs of", "/proc/self"))?;
        let guard_path = guard.path.clone();
        Ok(Self {
            policy,
            scheduler: forkyard_sched::build(policy, cpus.len(), &knobs())?,
            world: World::new(cpus.iter().map(|_| 1.0)),
            named: 0,
            ends: vec![Nanos::FOREVER; cpus.len()],
            cpus,
            vms: Vec::new(),
            hands: Hands {
                guard: DispatchGuard::start(guard)
                    .map_err(DispatchError::host("start", guard_path))?,
                mechanism,
            },
            kicks: VecDeque::new(),
            next_tick: Nanos::ZERO,
            next_look: Nanos::ZERO,
            look_by: Nanos::ZERO,
            reviews: review::Reviews::default(),
            switches: 0,
            own: (Nanos::ZERO, 0.0),
        })
    }

    /// Tells whether it schedules no VM.
    pub fn is_idle(&self) -> bool {
        self.vms.is_empty()
    }

    /// Schedules a VM as wanted. On failure nothing has changed but that a VM it
    /// did not know is observed.
    pub fn set(&mut self, wanted: &Wanted, now: Nanos) -> Result<(), DispatchError> {
        self.world.now = now;
        let place = self.known(wanted)?;
        let vm = &self.vms[place];
        let policy = wanted.policy.unwrap_or(self.policy);
        let params = wanted_params(wanted, vm.params);
        params.check()?;
        let asked = wanted.level.or(vm.asked);
        let named = wanted.policy.is_some() || vm.named;
        let level = vm::level(asked, named, policy, &params);
        let capped = |level, params: &Params| level == Level::Enforce && params.cap.is_some();
        let others = self.vms.iter().filter(|other| other.pid != wanted.pid);
        let any = capped(level, &params) || { others }.any(|vm| capped(vm.level, &vm.params));
        if any && policy != Policy::Credit {
            return Err(DispatchError::NoCap(policy));
        }
        if policy != self.policy {
            self.change(policy)?;
        }
        // A VM that was alone may not be any more.
        self.contended();
        self.leave(place);
        let vm = &mut self.vms[place];
        vm.params = params;
        (vm.asked, vm.named, vm.level) = (asked, named, level);
        vm.steps = crate::Steps::default();
        let entered = self.enter(place);
        if entered.is_err() {
            self.leave(place);
            self.vms[place].level = Level::Observe;
        }
        entered
    }

    /// Lets a VM go.
    pub fn release(&mut self, pid: u32, now: Nanos) -> Result<(), DispatchError> {
        self.world.now = now;
        let found = self.vms.iter().position(|vm| vm.pid == pid);
        let place = found.ok_or(DispatchError::Unknown(pid))?;
        self.leave(place);
        self.vms.remove(place);
        Ok(())
    }

    /// Does what is due; says when to be called again at the latest.
    pub fn step(&mut self, now: Nanos) -> Nanos {
        self.world.now = now;
        let looks = self.next_look <= now;
        if looks {
            self.look();
        }
        for cpu in self.world.cpus() {
            if self.ends[cpu.at()] <= now {
                self.reschedule(cpu, Then::Wait);
            }
        }
        if self.next_tick <= now {
            self.next_tick = now + TICK;
            for cpu in self.world.cpus() {
                let mut orders = Orders::default();
                self.scheduler.tick(&self.world, cpu, &mut orders);
                self.kicks.extend(orders.kicks);
            }
        }
        self.settle();
        let waits = self
            .world
            .vcpus()
            .any(|(_, view)| view.state() == State::Waiting);
        let next_review = self.review(waits);
        self.settle();
        if looks {
            let awake = |vm: &Vm| vm.domain.is_none() || vm.habits.asleep < step::HARDLY;
            let look = match waits {
                true if self.vms.iter().all(awake) => GLANCE,
                true => LOOK,
                false => REST,
            };
            self.next_look = now + look;
            self.look_by = self.next_look + look.scale(1, 6);
            self.replace_guard();
        }
        self.carry_out();
        let end = match waits {
            true => self.ends.iter().copied().min().unwrap_or(Nanos::FOREVER),
            false => Nanos::FOREVER,
        };
        // To be woken costs more than all else: what can wait for a slot's end does.
        let look = match end <= self.look_by {
            true => end,
            false => self.next_look,
        };
        look.min(next_review).max(now)
    }

    /// The VM's place; one it did not know is observed from now on.
    fn known(&mut self, wanted: &Wanted) -> Result<usize, DispatchError> {
        let found = self.vms.iter().position(|vm| vm.pid == wanted.pid);
        let tids = wanted.threads.as_deref();
        if let Some(place) = found {
            if tids.is_some_and(|tids| !self.vms[place].has(tids)) {
                return Err(DispatchError::OtherThreads(wanted.pid));
            }
            if let Some(name) = &wanted.name {
                self.vms[place].name.clone_from(name);
            }
            return Ok(place);
        }
        let vm = Vm::attach(wanted.pid, wanted.name.clone(), tids, self.world.now)?;
        self.vms.push(vm);
        Ok(self.vms.len() - 1)
    }

    /// Another policy for all.
    fn change(&mut self, policy: Policy) -> Result<(), DispatchError> {
        let scheduler = forkyard_sched::build(policy, self.cpus.len(), &knobs())?;
        for place in 0..self.vms.len() {
            self.leave(place);
        }
        self.renew(scheduler);
        self.policy = policy;
        for place in 0..self.vms.len() {
            let vm = &mut self.vms[place];
            vm.level = vm::level(vm.asked, vm.named, policy, &vm.params);
            self.enter_again(place);
        }
        Ok(())
    }

    /// A world without the vCPUs that have left it: names are never given twice.
    /// No VM may be enforced.
    fn renew(&mut self, scheduler: Box<dyn Scheduler>) {
        let now = self.world.now;
        self.world = World::new(self.cpus.iter().map(|_| 1.0));
        self.world.now = now;
        self.scheduler = scheduler;
        self.ends.fill(Nanos::FOREVER);
        self.kicks.clear();
        self.named = 0;
    }

    /// Begins to do what the VM's level asks for.
    fn enter(&mut self, place: usize) -> Result<(), DispatchError> {
        match self.vms[place].now() {
            Level::Observe => Ok(()),
            Level::Place => self.put(place),
            Level::Enforce => self.enforce(place),
        }
    }

    fn put(&mut self, place: usize) -> Result<(), DispatchError> {
        let class = place::class(self.policy, &self.vms[place].params);
        let apart = place::keeps_apart(self.policy);
        let mut load: Vec<usize> = self
            .cpus
            .iter()
            .map(|cpu| {
                let pinned = self.vms.iter().flat_map(|vm| &vm.vcpus);
                pinned.filter(|vcpu| vcpu.pinned == Some(*cpu)).count()
            })
            .collect();
        let vm = &mut self.vms[place];
        let apart = apart && vm.vcpus.len() <= self.cpus.len();
        let mut taken = Vec::new();
        for vcpu in &mut vm.vcpus {
            let path = format!("/proc/{}/task/{}", vm.pid, vcpu.tid);
            vcpu.tell(class, &mut self.hands)
                .map_err(DispatchError::host("schedule", &path))?;
            if apart {
                let free = (0..load.len()).filter(|cpu| !taken.contains(cpu));
                if let Some(cpu) = { free }.min_by_key(|&cpu| load[cpu]) {
                    load[cpu] += 1;
                    taken.push(cpu);
                    vcpu.pin(self.cpus[cpu], &mut self.hands)
                        .map_err(DispatchError::host("pin", &path))?;
                }
            }
        }
        Ok(())
    }

    fn enforce(&mut self, place: usize) -> Result<(), DispatchError> {
        let vm = &mut self.vms[place];
        vm.take(&self.cpus, &mut self.hands)?;
        vm.watch_anew(&self.world);
        let domain = self.world.add_domain(vm.params);
        vm.domain = Some(domain);
        self.scheduler.init_domain(&self.world, domain);
        for vcpu in &mut vm.vcpus {
            let id = self.world.add_vcpu(domain, forkyard_sched::CpuSet::ALL);
            self.named += 1;
            vcpu.id = Some(id);
            self.scheduler.init_vcpu(&self.world, id);
        }
        let adjusted = self.scheduler.adjust(&self.world, domain, &vm.params);
        // A vCPU that is awake is noticed at the next look.
        (self.next_look, self.look_by) = (self.world.now, self.world.now);
        Ok(adjusted?)
    }

    /// Undoes all that was done to a VM.
    fn leave(&mut self, place: usize) {
        self.withdraw(place);
        self.vms[place].let_go(&mut self.hands, self.world.now);
    }

    /// Lets a VM run as it likes. The groups stay: to make them takes long.
    fn withdraw(&mut self, place: usize) {
        let vm = &mut self.vms[place];
        for vcpu in &mut vm.vcpus {
            if let Some(id) = vcpu.close(&self.world) {
                if let State::Running(cpu) = self.world[id].state() {
                    self.ends[cpu.at()] = self.world.now;
                }
                self.world.set_state(id, State::Asleep);
                self.scheduler.sleep(&self.world, id);
                self.scheduler.destroy_vcpu(&self.world, id);
                self.world.remove_vcpu(id);
            }
        }
        vm.rest(&mut self.hands, self.world.now);
        if let Some(domain) = vm.domain.take() {
            self.scheduler.destroy_domain(&self.world, domain);
            self.world.remove_domain(domain);
        }
    }

    /// Sees which vCPUs fell asleep and which woke, of those that are not frozen.
    fn look(&mut self) {
        let mut seen = Vec::new();
        for vcpu in self.vms.iter().flat_map(|vm| &vm.vcpus) {
            let thawed = vcpu.frozen() == Frozen::No;
            if let (Some(id), true) = (vcpu.id, thawed) {
                seen.push((id, vcpu.watch.doing()));
            }
        }
        for (id, doing) in seen {
            match (self.world[id].state(), doing) {
                (State::Running(cpu), Doing::Asleep | Doing::Gone) => {
                    self.reschedule(cpu, Then::Sleep);
                }
                (State::Asleep, Doing::Runnable) => {
                    self.world.set_state(id, State::Waiting);
                    let mut orders = Orders::default();
                    self.scheduler.wake(&self.world, id, &mut orders);
                    self.kicks.extend(orders.kicks);
                }
                (State::Waiting | State::Running(_) | State::Asleep, _) => {}
            }
        }
    }

    fn settle(&mut self) {
        // Kicks of kicks come to an end in every policy; the bound is for one
        // that has a fault: a dispatcher that spins is worse than a late one.
        let mut most = 8 * self.cpus.len();
        while let (Some(cpu), 1..) = (self.kicks.pop_front(), most) {
            most -= 1;
            self.reschedule(cpu, Then::Wait);
        }
        self.kicks.clear();
    }

    fn reschedule(&mut self, cpu: CpuId, then: Then) {
        let last = self.world[cpu].running.map(|vcpu| Ran {
            vcpu,
            time: self.world.runs_for(vcpu),
            then,
        });
        if let Some(ran) = last {
            let state = match then {
                Then::Wait => State::Waiting,
                Then::Sleep => State::Asleep,
            };
            self.world.set_state(ran.vcpu, state);
        }
        let mut orders = Orders::default();
        let pick = { &mut self.scheduler }.do_schedule(&self.world, cpu, last, &mut orders);
        self.ends[cpu.at()] = self.world.now + pick.slice;
        if let Some(vcpu) = pick.vcpu {
            self.switches += u64::from(last.is_none_or(|ran| ran.vcpu != vcpu));
            self.world.set_state(vcpu, State::Running(cpu));
        }
        self.kicks.extend(orders.kicks);
    }

    /// Enters as [`enter`](Self::enter) does, where no client can be told of a failure.
    fn enter_again(&mut self, place: usize) {
        if let Err(error) = self.enter(place) {
            tracing::error!(pid = self.vms[place].pid, ?error, "not scheduled");
            self.leave(place);
            self.vms[place].level = Level::Observe;
        }
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        for place in 0..self.vms.len() {
            self.leave(place);
        }
    }
}

fn wanted_params(wanted: &Wanted, before: Params) -> Params {
    let reservation = match (wanted.slice_us, wanted.period_us) {
        (Some(0), _) => None,
        (Some(slice), Some(period)) => Some(CpuReservation {
            slice: Nanos::micros(slice),
            period: Nanos::micros(period),
            extra: forkyard_sched::Extra::Yes,
        }),
        (_, _) => before.reservation,
    };
    Params {
        weight: wanted.weight.unwrap_or(before.weight),
        cap: match wanted.cap {
            Some(0) => None,
            Some(cap) => Some(cap),
            None => before.cap,
        },
        parallel: wanted.parallel.unwrap_or(before.parallel),
        reservation,
        warp: before.warp,
    }
}
