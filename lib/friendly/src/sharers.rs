//! Guests that share a host, simulated: each senses for itself and decides for
//! itself, with the monitor and the controller that run in real guests.

use crate::{Config, Congestion, Controller, DemandState, Monitor, Readings};
use fastrand::Rng;
use std::time::Duration;

/// Model of the host that they share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostModel {
    /// Threads, of all guests, with which the virtual clocks run at a third of
    /// their speed or less, by what counts as lateness.
    pub capacity: f64,
    /// Steepness of the onset: 1 as when a CPU is shared, 8 and more as when
    /// memory thrashes.
    pub steepness: f64,
    /// By how much single ticks differ, as a part.
    pub noise: f64,
    /// True if a few threads keep a guest's CPUs busy, so that they never are
    /// idle.
    pub busy: bool,
}

/// The guests and their host.
#[derive(Debug)]
pub struct Sharers {
    host: HostModel,
    tick: Duration,
    /// Lateness of a tick above which it counts.
    slack: Duration,
    guests: Vec<(Monitor, Controller)>,
    dice: Rng,
}

/// Record of one period.
#[derive(Clone, Debug, PartialEq)]
pub struct PeriodRecord {
    /// Demand of each: threads, a part of one for those that sleep.
    pub demand: Vec<f64>,
    /// Factor by which the virtual clocks ran slower than on an empty host.
    pub slowdown: f64,
    /// Number of guests that sensed congestion.
    pub congested: u32,
}

/// Ticks simulated of each period: enough for the average to forget the last.
const TICKS: u32 = 24;

impl Sharers {
    /// One guest for each of `starts`, which is the threads it has at first. All
    /// have work for any number of threads. Chance is the same for the same seed.
    pub fn new(config: &Config, starts: &[u32], host: HostModel, seed: u64) -> Self {
        let guest = |&start: &u32| {
            let mut config = config.clone();
            config.threads.start = start.clamp(1, config.threads.most);
            (
                Monitor::new(config.monitor.clone(), 1),
                Controller::new(&config, 1),
            )
        };
        Self {
            host,
            tick: config.monitor.tick(),
            slack: config.monitor.slack(1),
            guests: starts.iter().map(guest).collect(),
            dice: Rng::with_seed(seed),
        }
    }

    /// Returns the present demand of each.
    pub fn demand(&self) -> Vec<f64> {
        let of = |(_, controller): &(Monitor, Controller)| match controller.state() {
            DemandState::Threads(n) => n,
            DemandState::Rate(_) => controller.order().duty,
        };
        self.guests.iter().map(of).collect()
    }

    /// Lives through a period.
    pub fn period(&mut self) -> PeriodRecord {
        let demand = self.demand();
        let load = demand.iter().sum::<f64>() / self.host.capacity;
        let slowdown = 1.0 + 2.0 * load.powf(self.host.steepness);
        let mut congested = 0;
        for (monitor, controller) in &mut self.guests {
            for _ in 0..TICKS {
                let noise = 1.0 + self.host.noise * (2.0 * self.dice.f64() - 1.0);
                let took = self.tick.mul_f64(slowdown * noise);
                let late = took > self.tick;
                monitor.ticks(1, took + if late { self.slack } else { Duration::ZERO });
            }
            let readings = Readings {
                idle: self.host.busy.then_some(0.0),
                ..Readings::default()
            };
            let sense = monitor.close(readings).senses.sense;
            congested += u32::from(sense.congestion == Congestion::Yes);
            controller.step(sense, u32::MAX);
        }
        PeriodRecord {
            demand,
            slowdown,
            congested,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LawConfig, jain_index};
    use proptest::prelude::*;

    const PERIODS: usize = 1_500;
    const LAST: usize = 200;

    /// Result of a law.
    struct Outcome {
        /// Periods until shares were equal and stayed so, within a part.
        converged: Option<usize>,
        /// Fairness of the division over the last periods.
        fairness: f64,
        /// Part of the host that was used in those.
        load: f64,
    }

    /// A host on which slowdown comes as suddenly as when memory runs out.
    const SUDDEN: HostModel = HostModel {
        capacity: 100.0,
        steepness: 8.0,
        noise: 0.0,
        busy: false,
    };
    const NOISY: HostModel = HostModel {
        noise: 0.05,
        ..SUDDEN
    };
    /// Of that host, nine tenths of what it bears.
    const THRESHOLD: f64 = 2.0;

    /// Those that are to end with equal shares.
    fn fair_laws() -> impl Iterator<Item = LawConfig> {
        let all = LawConfig::ALL.into_iter();
        all.filter(|law| !matches!(law, LawConfig::Pi { .. }))
    }

    fn run(law: LawConfig, starts: &[u32], host: HostModel, threshold: f64, seed: u64) -> Outcome {
        let mut config = Config::default();
        config.threads.law = law;
        config.monitor.threshold = threshold;
        let mut sharers = Sharers::new(&config, starts, host, seed);
        let rounds: Vec<PeriodRecord> = (0..PERIODS).map(|_| sharers.period()).collect();
        let fair = |demand: &[f64]| jain_index(demand).unwrap_or(0.0);
        let unfair = rounds.iter().rposition(|round| fair(&round.demand) < 0.99);
        let last = &rounds[PERIODS - LAST..];
        let of = |guest: usize| last.iter().map(|round| round.demand[guest]).sum::<f64>();
        let had: Vec<f64> = (0..starts.len()).map(of).collect();
        Outcome {
            converged: match unfair {
                Some(n) if n + LAST >= PERIODS => None,
                Some(n) => Some(n + 1),
                None => Some(0),
            },
            fairness: fair(&had),
            load: had.iter().sum::<f64>() / LAST as f64 / host.capacity,
        }
    }

    const STARTS: [&[u32]; 4] = [
        &[4, 7, 10, 13, 16],
        &[1, 60],
        &[1, 1, 1, 80],
        &[30, 5, 2, 2, 2, 2],
    ];

    #[test]
    fn laws_of_increase_and_decrease_end_fair_from_any_start() {
        let usual = Config::default().monitor.threshold;
        for (law, starts) in fair_laws().flat_map(|law| STARTS.map(|starts| (law, starts))) {
            for threshold in [usual, THRESHOLD] {
                let outcome = run(law, starts, SUDDEN, threshold, 1);
                assert!(outcome.converged.is_some(), "{law:?} from {starts:?}");
                // Also where guests do not sense the same at the same time.
                for seed in 0..5 {
                    let noisy = run(law, starts, NOISY, threshold, seed);
                    assert!(noisy.fairness > 0.95, "{law:?}: {}", noisy.fairness);
                    assert!(noisy.load > 0.6, "{law:?}: {}", noisy.load);
                }
            }
        }
    }

    /// Tests a host whose slowdown comes bit by bit, or all at once.
    #[test]
    fn the_usual_law_is_fair_on_any_host() {
        let config = Config::default();
        let (law, threshold) = (config.threads.law, config.monitor.threshold);
        for (steepness, starts) in [2.0, 8.0, 32.0]
            .into_iter()
            .flat_map(|one| STARTS.map(|starts| (one, starts)))
        {
            for (seed, busy) in (0..5).flat_map(|seed| [(seed, false), (seed, true)]) {
                let host = HostModel {
                    steepness,
                    busy,
                    ..NOISY
                };
                let outcome = run(law, starts, host, threshold, seed);
                // Cycles take longer with busy CPUs, and there are few in a quarter of an hour.
                let least = if busy { 0.93 } else { 0.98 };
                assert!(outcome.fairness > least, "{starts:?}: {}", outcome.fairness);
            }
        }
    }

    /// Tests the purpose of `quick`: fair in less time, and neither less fair
    /// nor less efficient afterwards.
    #[test]
    fn quick_converges_in_half_the_time_and_is_as_fair() {
        let (mut aimd_periods, mut quick_periods) = (0, 0);
        for starts in STARTS {
            let aimd = run(LawConfig::AIMD, starts, SUDDEN, THRESHOLD, 1);
            let quick = run(LawConfig::QUICK, starts, SUDDEN, THRESHOLD, 1);
            aimd_periods += aimd.converged.expect("converges");
            quick_periods += quick.converged.expect("converges");
            println!("{starts:?}: load {:.3}, quick {:.3}", aimd.load, quick.load);
            assert!(quick.load > aimd.load - 0.05, "{starts:?}");
            for seed in 0..5 {
                let aimd = run(LawConfig::AIMD, starts, NOISY, THRESHOLD, seed);
                let quick = run(LawConfig::QUICK, starts, NOISY, THRESHOLD, seed);
                assert!(quick.fairness > aimd.fairness - 0.02, "{starts:?}");
            }
        }
        println!("aimd {aimd_periods}, quick {quick_periods} periods");
        assert!(
            quick_periods * 2 <= aimd_periods,
            "{quick_periods}, {aimd_periods}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn any_two_guests_become_equal(a in 1u32..90, b in 1u32..90) {
            for law in fair_laws() {
                let outcome = run(law, &[a, b], SUDDEN, THRESHOLD, 1);
                prop_assert!(outcome.converged.is_some(), "{law:?}, {a} and {b}");
            }
        }
    }
}
