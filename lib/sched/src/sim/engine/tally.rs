//! Counts of an engine when it comes to an end.

use super::{Counters, Simulation};
use crate::{
    sim::measure::{AnswerTimes, DomainOutcome, Outcome},
    units::{DomainId, Nanos, VcpuId},
};

impl Simulation {
    /// Starts to measure: earlier events do not count.
    pub(super) fn measure(&mut self) {
        for guest in &mut self.guests {
            guest.latencies();
        }
        self.samples.clear();
        self.counters = Counters::default();
        self.begun = self.totals();
    }

    fn totals(&mut self) -> Vec<(u64, Nanos, Nanos, Nanos)> {
        for cpu in self.world.cpus() {
            self.book(cpu);
        }
        let domains = self.world.domains();
        let of = |(id, domain): (DomainId, &crate::DomainView)| {
            let sum = |of: &dyn Fn(VcpuId) -> Nanos| {
                let all = domain.vcpus.iter().copied().map(of);
                all.fold(Nanos::ZERO, |sum, one| sum + one)
            };
            (
                self.guests[id.at()].done(),
                sum(&|vcpu| self.world.ran(vcpu)),
                sum(&|vcpu| self.world.waited(vcpu)),
                sum(&|vcpu| self.vcpus[vcpu.at()].spun),
            )
        };
        domains.map(of).collect()
    }

    /// Returns the measurements so far.
    pub fn outcome(&mut self) -> Outcome {
        let totals = self.totals();
        let length = self.world.now.minus(self.setup.warm_up).as_secs_f64();
        let per_second = |count: u64| Nanos(count).as_f64() / length;
        let all = length * Nanos(self.cpus.len() as u64).as_f64();
        let mut used = 0.0;
        let mut domains = Vec::new();
        for (n, setup) in self.setup.domains.iter().enumerate() {
            let (done, ran, waited, spun) = totals[n];
            let begun = self.begun.get(n).copied().unwrap_or_default();
            let (ran, waited) = (ran.minus(begun.1), waited.minus(begun.2));
            used += ran.as_secs_f64();
            let part = |of: Nanos, all: Nanos| of.as_f64() / all.as_f64().max(1.0);
            domains.push(DomainOutcome {
                name: setup.name.clone(),
                rate: per_second(done - begun.0),
                share: ran.as_secs_f64() / all,
                spinning: part(spun.minus(begun.3), ran),
                speed: part(ran, ran + waited),
                latency: AnswerTimes::of(self.guests[n].latencies()),
            });
        }
        Outcome {
            domains,
            stacked: self.samples.stacked,
            distant: self.samples.distant,
            distant_running: self.samples.distant_running,
            lag: self.samples.lags(),
            switches: per_second(self.counters.switches),
            migrations: per_second(self.counters.migrations),
            idle: 1.0 - used / all,
        }
    }
}
