//! Speed balancing (Gutierrez, chapter 3; Hofmeyr, Iancu and Blagojević 2010).
//!
//! Problem: where queues cannot be equally long, or CPUs not equally fast, the
//! vCPUs of a parallel domain that are on the slow ones hold up all the others
//! at every barrier. Rather than leave them there, let each take its turn on the
//! fast ones. Terms (§3.4): a vCPU's *speed* is time running / (time running
//! and waiting) over an interval, times the clock of its CPU; a CPU's is the
//! mean of its vCPUs'; the *global* speed is the mean of the CPUs' that have
//! any. Rule, for each CPU j every interval: if j is faster than the global
//! speed, it pulls from a CPU slower than that, which like itself took no part
//! in a migration for two intervals, the vCPU that has migrated least, of those
//! of domains marked parallel. Constants: 100 ms, two intervals.
//!
//! It pays if one round of the domain, (V+1)·T, is longer than 2·⌈SC/FC⌉
//! intervals, V being the vCPUs of a fast CPU, T the work between barriers, FC
//! and SC the numbers of fast and slow CPUs (equation 3.2).
//!
//! Wraps any policy of queues and leaves their order alone. The CPUs' timers
//! are ticks here, so that all measure the same intervals.

use crate::{
    params::{InvalidParams, Params},
    scheduler::{Dump, Orders, Pick, Ran, Scheduler},
    units::{CpuId, DomainId, Nanos, VcpuId},
    world::{State, World},
};
use forkyard_types::Parallel;
use serde::{Deserialize, Serialize};

/// Constants of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpeedKnobs {
    /// Time between two attempts.
    pub interval: Nanos,
    /// Intervals a CPU is left alone after a migration.
    pub rest: u64,
}

impl Default for SpeedKnobs {
    fn default() -> Self {
        Self {
            interval: Nanos::millis(100),
            rest: 2,
        }
    }
}

/// Pulls and pushes of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulls {
    /// vCPUs it pulled from others.
    pub pulled: u64,
    /// vCPUs others pulled from it.
    pub pushed: u64,
}

/// The wrapper.
#[derive(Debug)]
pub struct Speed {
    inner: Box<dyn Scheduler>,
    knobs: SpeedKnobs,
    /// Interval that the speeds are of.
    interval: u64,
    before: Vec<(Nanos, Nanos)>,
    speeds: Vec<Option<f64>>,
    moved: Vec<Option<u64>>,
    pulls: Vec<Pulls>,
}

impl Speed {
    /// Around a policy whose CPUs have queues of their own.
    pub fn new(inner: Box<dyn Scheduler>, knobs: SpeedKnobs, cpus: usize) -> Self {
        Self {
            inner,
            knobs,
            interval: 0,
            before: Vec::new(),
            speeds: vec![None; cpus],
            moved: vec![None; cpus],
            pulls: vec![Pulls::default(); cpus],
        }
    }

    /// Pulls and pushes so far, by CPU.
    pub fn pulls(&self) -> &[Pulls] {
        &self.pulls
    }

    /// Steps 1 and 2: the speed of each vCPU over the interval, and of each CPU.
    fn measure(&mut self, world: &World) {
        let mut sums = vec![(0.0, 0u32); world.width()];
        for (vcpu, view) in world.vcpus() {
            if self.before.len() <= vcpu.at() {
                self.before.resize(vcpu.at() + 1, Default::default());
            }
            let now = (world.ran(vcpu), world.waited(vcpu));
            let before = std::mem::replace(&mut self.before[vcpu.at()], now);
            let ran = now.0.minus(before.0);
            let runnable = ran + now.1.minus(before.1);
            let asleep = view.state() == State::Asleep;
            if let (Some(home), false) = (self.inner.home(vcpu), asleep)
                && runnable > Nanos::ZERO
            {
                let (sum, count) = &mut sums[home.at()];
                *sum += world[home].speed * ran.as_f64() / runnable.as_f64();
                *count += 1;
            }
        }
        let mean = |(sum, count): (f64, u32)| (count > 0).then(|| sum / f64::from(count));
        self.speeds = sums.into_iter().map(mean).collect();
    }

    /// Step 3.
    fn global(&self) -> Option<f64> {
        let known: Vec<f64> = self.speeds.iter().copied().flatten().collect();
        let count = u32::try_from(known.len()).ok().filter(|&count| count > 0)?;
        Some(known.iter().sum::<f64>() / f64::from(count))
    }

    fn rested(&self, cpu: CpuId) -> bool {
        self.moved[cpu.at()].is_none_or(|moved| self.interval > moved + self.knobs.rest)
    }

    /// Step 4.
    fn balance(&mut self, world: &World, cpu: CpuId, orders: &mut Orders) {
        // Means of the same numbers may differ in the last bits.
        const SAME: f64 = 1e-6;
        let (Some(global), Some(speed)) = (self.global(), self.speeds[cpu.at()]) else {
            return;
        };
        if speed <= global + SAME || !self.rested(cpu) {
            return;
        }
        let slow = |other: &CpuId| {
            *other != cpu
                && self.speeds[other.at()].is_some_and(|speed| speed < global - SAME)
                && self.rested(*other)
        };
        let mut slow: Vec<_> = world.cpus().filter(slow).collect();
        slow.sort_by(|a, b| {
            let speed = |cpu: &CpuId| self.speeds[cpu.at()].unwrap_or(f64::MAX);
            speed(a).total_cmp(&speed(b)).then(a.cmp(b))
        });
        let found = slow.into_iter().find_map(|from| {
            let pullable = world.vcpus().filter(|(vcpu, view)| {
                self.inner.home(*vcpu) == Some(from)
                    && view.state() != State::Asleep
                    && view.affinity.contains(cpu)
                    && world.params(*vcpu).parallel == Parallel::Yes
            });
            let least = pullable.min_by_key(|(vcpu, view)| (view.moves, *vcpu))?;
            Some((from, least.0))
        });
        if let Some((from, vcpu)) = found {
            self.inner.migrate(world, vcpu, cpu, orders);
            for touched in [from, cpu] {
                self.moved[touched.at()] = Some(self.interval);
            }
            self.pulls[cpu.at()].pulled += 1;
            self.pulls[from.at()].pushed += 1;
        }
    }
}

impl Scheduler for Speed {
    fn name(&self) -> &'static str {
        "speed"
    }

    fn init_domain(&mut self, world: &World, domain: DomainId) {
        self.inner.init_domain(world, domain);
    }

    fn destroy_domain(&mut self, world: &World, domain: DomainId) {
        self.inner.destroy_domain(world, domain);
    }

    fn init_vcpu(&mut self, world: &World, vcpu: VcpuId) {
        self.inner.init_vcpu(world, vcpu);
    }

    fn destroy_vcpu(&mut self, world: &World, vcpu: VcpuId) {
        self.inner.destroy_vcpu(world, vcpu);
    }

    fn sleep(&mut self, world: &World, vcpu: VcpuId) {
        self.inner.sleep(world, vcpu);
    }

    fn wake(&mut self, world: &World, vcpu: VcpuId, orders: &mut Orders) {
        self.inner.wake(world, vcpu, orders);
    }

    fn pick_cpu(&mut self, world: &World, vcpu: VcpuId) -> CpuId {
        self.inner.pick_cpu(world, vcpu)
    }

    fn do_schedule(
        &mut self,
        world: &World,
        cpu: CpuId,
        last: Option<Ran>,
        orders: &mut Orders,
    ) -> Pick {
        self.inner.do_schedule(world, cpu, last, orders)
    }

    fn tick(&mut self, world: &World, cpu: CpuId, orders: &mut Orders) {
        self.inner.tick(world, cpu, orders);
        let interval = world.now.0 / self.knobs.interval.0.max(1);
        // The first CPU's tick measures for all; each then acts on its own.
        if cpu == CpuId(0) && interval > self.interval {
            self.interval = interval;
            self.measure(world);
        } else if cpu == CpuId(0) {
            self.speeds.fill(None);
        }
        self.balance(world, cpu, orders);
    }

    fn migrate(&mut self, world: &World, vcpu: VcpuId, to: CpuId, orders: &mut Orders) {
        self.inner.migrate(world, vcpu, to, orders);
    }

    fn adjust(
        &mut self,
        world: &World,
        domain: DomainId,
        params: &Params,
    ) -> Result<(), InvalidParams> {
        self.inner.adjust(world, domain, params)
    }

    fn dump(&self, world: &World) -> Dump {
        let dump = self.inner.dump(world);
        Dump {
            policy: format!("speed over {}", dump.policy),
            ..dump
        }
    }

    fn home(&self, vcpu: VcpuId) -> Option<CpuId> {
        self.inner.home(vcpu)
    }

    fn waiting(&self, cpu: CpuId) -> Vec<VcpuId> {
        self.inner.waiting(cpu)
    }
}
