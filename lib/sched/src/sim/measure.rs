//! Measurements: of the queues at samples, of time over lag periods, and of the
//! guests at the end.

use crate::{
    scheduler::Scheduler,
    units::{CpuId, Nanos, VcpuId},
    world::{State, World},
};
use serde::Serialize;

/// A part of cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Away {
    /// Cases it is so in.
    pub hits: u64,
    /// All cases.
    pub cases: u64,
}

/// Differences between the domains' times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Lag {
    /// Mean over the periods of the greatest difference, in seconds.
    pub mean: f64,
    /// The greatest of all.
    pub most: f64,
    /// Standard deviation of the differences, relative to their mean.
    pub deviation: f64,
}

/// Time of answers, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct AnswerTimes {
    /// Half took no longer.
    pub median: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// The longest.
    pub most: f64,
}

/// Result of a VM.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DomainOutcome {
    /// Name of the VM.
    pub name: String,
    /// Units of work a second.
    pub rate: f64,
    /// Part of all CPUs' time.
    pub share: f64,
    /// The part of its time it spent spinning.
    pub spinning: f64,
    /// Time running of time running and waiting.
    pub speed: f64,
    /// Of its requests, if it had any.
    pub latency: Option<AnswerTimes>,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The VMs, as in the setup.
    pub domains: Vec<DomainOutcome>,
    /// vCPUs that want to run, and share a queue with a sibling that does.
    pub stacked: Away,
    /// Fronts of queues with a sibling 2/3 of the queue or more away, the queue
    /// being those that wait.
    pub distant: Away,
    /// Fronts of queues with such a sibling, the queue being those that wait and
    /// the one that runs.
    pub distant_running: Away,
    /// Lag between the domains.
    pub lag: Lag,
    /// Context switches a second.
    pub switches: f64,
    /// Times a second that a vCPU ran on another CPU than before.
    pub migrations: f64,
    /// The part of all CPUs' time that was not used.
    pub idle: f64,
}

impl Away {
    /// The part; 0 if there was no case.
    #[expect(clippy::cast_precision_loss, reason = "counts of samples")]
    pub fn part(self) -> f64 {
        match self.cases {
            0 => 0.0,
            cases => self.hits as f64 / cases as f64,
        }
    }

    fn count(&mut self, hit: bool) {
        self.cases += 1;
        self.hits += u64::from(hit);
    }
}

/// Samples gathered on the way.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    pub(super) stacked: Away,
    pub(super) distant: Away,
    pub(super) distant_running: Away,
    lags: Vec<f64>,
    ran: Vec<Nanos>,
}

impl Samples {
    /// A look at the queues.
    pub(super) fn look(&mut self, world: &World, policy: &dyn Scheduler) {
        let ranks: Vec<Vec<VcpuId>> = world.cpus().map(|cpu| policy.waiting(cpu)).collect();
        let awake = |vcpu: VcpuId| world[vcpu].state() != State::Asleep;
        for (vcpu, _) in world.vcpus().filter(|(vcpu, _)| awake(*vcpu)) {
            let mut siblings = world.siblings(vcpu).peekable();
            if siblings.peek().is_some() {
                let home = policy.home(vcpu);
                self.stacked
                    .count({ siblings }.any(|s| awake(s) && policy.home(s) == home));
            }
        }
        for cpu in world.cpus() {
            let Some(&front) = ranks[cpu.at()].first() else {
                continue;
            };
            let waiting = ranks[cpu.at()].len();
            let running = usize::from(world[cpu].running.is_some());
            let place = |vcpu: VcpuId| -> Option<(CpuId, usize)> {
                let home = policy.home(vcpu)?;
                let at = ranks.get(home.at())?.iter().position(|&w| w == vcpu)?;
                Some((home, at))
            };
            let away: Vec<usize> = world
                .siblings(front)
                .filter_map(|sibling| place(sibling).map(|(_, at)| at))
                .collect();
            if world.siblings(front).next().is_some() {
                let far = |length: usize| away.iter().any(|&at| at > 0 && 3 * at >= 2 * length);
                self.distant.count(far(waiting));
                self.distant_running.count(far(waiting + running));
            }
        }
    }

    /// The end of a lag period.
    pub(super) fn lag(&mut self, world: &World) {
        let ran: Vec<Nanos> = world
            .domains()
            .map(|(_, domain)| {
                let each = domain.vcpus.iter().map(|&vcpu| world.ran(vcpu));
                each.fold(Nanos::ZERO, |sum, ran| sum + ran)
            })
            .collect();
        if !self.ran.is_empty() {
            let periods = ran
                .iter()
                .zip(&self.ran)
                .map(|(now, then)| now.minus(*then));
            let periods: Vec<_> = periods.collect();
            let most = periods.iter().max().copied().unwrap_or_default();
            let least = periods.iter().min().copied().unwrap_or_default();
            self.lags.push(most.minus(least).as_secs_f64());
        }
        self.ran = ran;
    }

    /// Forgets what has been seen so far.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn lags(&self) -> Lag {
        let Some(count) = u32::try_from(self.lags.len()).ok().filter(|&n| n > 0) else {
            return Lag::default();
        };
        let count = f64::from(count);
        let mean = self.lags.iter().sum::<f64>() / count;
        let square = |lag: &f64| (lag - mean).powi(2);
        let variance = self.lags.iter().map(square).sum::<f64>() / count;
        Lag {
            mean,
            most: self.lags.iter().copied().fold(0.0, f64::max),
            deviation: match mean > 0.0 {
                true => variance.sqrt() / mean,
                false => 0.0,
            },
        }
    }
}

impl AnswerTimes {
    /// Of these; `None` if there are none.
    pub(super) fn of(mut all: Vec<Nanos>) -> Option<Self> {
        all.sort_unstable();
        let at = |per_cent: usize| all.get(all.len() * per_cent / 100).or(all.last());
        Some(Self {
            median: at(50)?.as_secs_f64(),
            p99: at(99)?.as_secs_f64(),
            most: all.last()?.as_secs_f64(),
        })
    }
}
