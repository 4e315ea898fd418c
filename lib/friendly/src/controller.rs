//! Demand of the guest: section 2.2 of the paper.
//!
//! ```text
//! Threads(n) --congestion at one thread--> Rate(f)
//!     ^                                      |
//!     +------- no congestion, f at the top --+
//!     +------- to ask for so little does not help
//! ```

use crate::{
    Below, Config, Congestion, DemandLaw, Sense, Senses,
    config::whole,
    trial::{Trial, Verdict},
};
use std::time::Duration;

/// Limit of demand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DemandState {
    /// So many threads, in fractions of one.
    Threads(f64),
    /// One thread, which sleeps for the inverse of so many hertz in each period.
    Rate(f64),
}

/// Permission of the guest for the next period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeriodOrder {
    /// Number of threads that may run; one or more.
    pub threads: u32,
    /// Time all sleep for every period that they run.
    pub sleep: Option<Duration>,
    /// The part of the time for which they run: 1 if they do not sleep.
    pub duty: f64,
}

/// Decides on it, a period at a time.
#[derive(Debug)]
pub struct Controller {
    config: Config,
    threads: Box<dyn DemandLaw>,
    rate: Box<dyn DemandLaw>,
    state: DemandState,
    /// So many threads get as much done as more do. A guest of one CPU does not know how
    /// many: of its threads some wait for memory.
    enough: f64,
    trial: Trial,
    /// Threads that wanted to run in the period before.
    active: f64,
}

/// As many threads for each of several CPUs are enough to keep them busy.
const ENOUGH: f64 = 1.5;
/// The least that is asked for but by way of trial.
const FLOOR: f64 = 1.0;

impl Controller {
    /// One that starts with the threads that the configuration says, in a guest of so many
    /// CPUs: no more than those where they are several, for else a thread that waits for a CPU
    /// of the host would wait for several steps down until this guest yields any.
    pub fn new(config: &Config, cpus: u32) -> Self {
        let start = match cpus {
            0 | 1 => config.threads.start,
            cpus => config.threads.start.min(cpus),
        };
        Self {
            enough: match cpus {
                0 | 1 => f64::INFINITY,
                cpus => ENOUGH * f64::from(cpus),
            },
            trial: Trial::new(),
            active: 0.0,
            threads: config.threads.law.build(),
            rate: config.rate.law.build(),
            state: DemandState::Threads(f64::from(start)),
            config: config.clone(),
        }
    }

    /// Goes on from where it is, by other constants.
    pub fn reconfigure(&mut self, config: &Config) {
        if config.threads.law != self.config.threads.law {
            self.threads = config.threads.law.build();
        }
        if config.rate.law != self.config.rate.law {
            self.rate = config.rate.law.build();
        }
        self.config = config.clone();
        self.state = match self.state {
            DemandState::Threads(n) => DemandState::Threads(n.min(f64::from(config.threads.most))),
            DemandState::Rate(f) => {
                DemandState::Rate(f.clamp(config.rate.floor_hz, config.rate.ceiling_hz))
            }
        };
    }

    /// Ends a period, in which up to `active` threads wanted to run at one time.
    ///
    /// A limit that is not reached does not grow, and it is from what was used lately
    /// that it falls: else a guest that was idle for an hour would be allowed
    /// thousands of threads, and no decrease would be felt. Congestion while none
    /// wanted to run is no doing of this guest: nothing changes.
    pub fn step(&mut self, senses: impl Into<Senses>, active: u32) -> PeriodOrder {
        let Senses { sense, at_one } = senses.into();
        let now = f64::from(active);
        let used = now.max(std::mem::replace(&mut self.active, now));
        if active == 0 && sense.congestion == Congestion::Yes {
            return self.order();
        }
        let sense = match self.state {
            DemandState::Threads(n) if n > FLOOR || sense.congestion == Congestion::No => sense,
            // It is not its doing.
            DemandState::Threads(_) if at_one.congestion == Congestion::No => return self.order(),
            DemandState::Threads(_) | DemandState::Rate(_) => at_one,
        };
        let verdict = match self.state {
            DemandState::Threads(n) if n > FLOOR => Verdict::Less,
            DemandState::Threads(_) | DemandState::Rate(_) => self.trial.step(sense),
        };
        self.state = match self.state {
            DemandState::Threads(n) if n > FLOOR || sense.congestion == Congestion::No => {
                DemandState::Threads(self.by_threads(n, sense, used))
            }
            _ if verdict == Verdict::Enough && self.config.threads.below == Below::IfItHelps => {
                DemandState::Threads(FLOOR)
            }
            DemandState::Threads(n) => self.below(n, sense, used),
            DemandState::Rate(f) => self.by_rate(f, sense),
        };
        self.order()
    }

    /// Returns the permission that holds now.
    pub fn order(&self) -> PeriodOrder {
        match self.state {
            DemandState::Threads(n) => PeriodOrder {
                threads: whole(n).max(1),
                sleep: None,
                duty: 1.0,
            },
            DemandState::Rate(f) => {
                let sleep = 1.0 / f;
                let period = self.config.monitor.period_s;
                PeriodOrder {
                    threads: 1,
                    sleep: Some(Duration::from_secs_f64(sleep)),
                    duty: period / (period + sleep),
                }
            }
        }
    }

    /// Returns the limit of demand.
    pub fn state(&self) -> DemandState {
        self.state
    }

    /// With more than one, and one at the least.
    fn by_threads(&mut self, n: f64, sense: Sense, used: f64) -> f64 {
        let most = f64::from(self.config.threads.most);
        match sense.congestion {
            Congestion::Yes => {
                let base = n.min(used.max(FLOOR)).min(self.enough);
                let next = self.threads.next(base, sense);
                // A law that waits leaves the limit as it is, whatever is used.
                let next = if next < base { next } else { n };
                next.clamp(FLOOR, most)
            }
            Congestion::No => {
                let next = self.threads.next(n, sense);
                // At most one step ahead of what is used.
                let ahead = n.max(used + (next - n).max(0.0));
                next.min(ahead).clamp(1.0, most)
            }
        }
    }

    /// With one, and congestion.
    fn below(&mut self, n: f64, sense: Sense, used: f64) -> DemandState {
        let base = n.min(used.max(FLOOR));
        match self.threads.next(base, sense) {
            next if next >= base => DemandState::Threads(n),
            _ => self.by_rate(self.config.rate.ceiling_hz, sense),
        }
    }

    fn by_rate(&mut self, f: f64, sense: Sense) -> DemandState {
        let rate = &self.config.rate;
        let next = self.rate.next(f, sense);
        if sense.congestion == Congestion::No && next > rate.ceiling_hz {
            return DemandState::Threads(1.0);
        }
        DemandState::Rate(next.clamp(rate.floor_hz, rate.ceiling_hz))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LawConfig;
    use proptest::prelude::*;

    const CALM: Sense = Sense {
        congestion: Congestion::No,
        slowdown: 0.4,
        room: 1.0,
        busy: false,
    };
    const BUSY: Sense = Sense {
        congestion: Congestion::Yes,
        slowdown: 1.5,
        room: -0.5,
        busy: false,
    };
    const MANY: u32 = 1_000;

    /// With the paper's law, and as far down as in the paper.
    fn controller() -> Controller {
        let mut config = Config::default();
        config.threads.law = LawConfig::AIMD;
        config.threads.below = Below::Always;
        Controller::new(&config, 1)
    }

    #[test]
    fn threads_go_as_in_the_paper() {
        let mut controller = controller();
        let went: Vec<u32> = [CALM, CALM, BUSY, BUSY, CALM]
            .map(|sense| controller.step(sense, MANY).threads)
            .to_vec();
        assert_eq!(went, [11, 12, 8, 5, 6]);
    }

    #[test]
    fn at_one_thread_the_rate_falls_and_comes_back() {
        let mut controller = controller();
        let mut orders = Vec::new();
        while controller.order().sleep.is_none() {
            controller.step(BUSY, MANY);
        }
        assert_eq!(controller.order().threads, 1);
        for _ in 0..50 {
            let order = controller.step(BUSY, MANY);
            assert!(order.duty > 0.0);
            orders.push(order.duty);
        }
        assert!(orders.is_sorted_by(|a, b| a >= b), "{orders:?}");
        let longest = controller.order().sleep.expect("sleeps");
        assert_eq!(longest, Duration::from_secs(50));
        let mut periods = 0;
        while controller.order().sleep.is_some() {
            controller.step(CALM, MANY);
            periods += 1;
        }
        // From 0.02 Hz to 1 Hz by 0.1 Hz.
        assert_eq!(periods, 10);
        assert_eq!(controller.state(), DemandState::Threads(1.0));
        assert_eq!(controller.step(CALM, MANY).threads, 2);
    }

    #[test]
    fn a_limit_that_nobody_reaches_does_not_grow() {
        let mut controller = Controller::new(&Config::default(), 1);
        for _ in 0..100 {
            controller.step(CALM, 12);
        }
        assert_eq!(controller.order().threads, 13);
        // And what was used, in this period or the one before, is what falls.
        controller.step(CALM, 6);
        assert_eq!(controller.step(BUSY, 3).threads, 4);
    }

    #[test]
    fn while_a_step_down_is_waited_for_the_limit_is_left_alone() {
        let mut controller = Controller::new(&Config::default(), 1);
        assert_eq!(controller.step(BUSY, MANY).threads, 6);
        assert_eq!(controller.step(BUSY, 1).threads, 6);
        assert_eq!(controller.step(BUSY, 1).threads, 6);
        assert_eq!(controller.step(BUSY, 1).threads, 1);
    }

    #[test]
    fn one_thread_is_slowed_down_whatever_the_limit() {
        let mut controller = controller();
        assert_eq!(controller.step(BUSY, 1).threads, 1);
        assert!(controller.step(BUSY, 1).sleep.is_some());
    }

    #[test]
    fn who_does_nothing_pays_for_nobodys_congestion() {
        let mut controller = controller();
        for _ in 0..10 {
            assert_eq!(controller.step(BUSY, 0).threads, 10);
        }
        controller.step(BUSY, 1);
        assert!(controller.step(BUSY, 1).sleep.is_some());
        let slow = controller.order();
        assert_eq!(controller.step(BUSY, 0), slow);
    }

    /// Such as that of CPUs which many guests share: the host gets no faster by it that
    /// they ask for less than one each.
    #[test]
    fn congestion_that_yielding_does_not_end_leaves_one_thread() {
        for cpus in [1, 4] {
            let mut controller = Controller::new(&Config::default(), cpus);
            let full = |order: PeriodOrder| order.sleep.is_none();
            let orders = (0..1_000).map(|_| controller.step(BUSY, MANY));
            let had = orders.filter(|order| full(*order)).count();
            assert!(had > 930, "{cpus}: {had}");
            // But for trials.
            assert!(had < 1_000, "{cpus}: {had}");
            assert_eq!(controller.order().threads, 1);
        }
    }

    /// Tests a guest that has no more than its share then: see
    /// [`Senses::at_one`].
    #[test]
    fn who_waits_for_cpus_alone_comes_down_to_one_thread_and_no_further() {
        let mut controller = Controller::new(&Config::default(), 4);
        let senses = Senses {
            sense: BUSY,
            at_one: CALM,
        };
        let mut order = controller.order();
        for _ in 0..200 {
            order = controller.step(senses, MANY);
            assert!(order.sleep.is_none(), "{order:?}");
        }
        assert_eq!(order.threads, 1);
        assert_eq!(controller.state(), DemandState::Threads(1.0));
        for _ in 0..40 {
            order = controller.step(CALM, MANY);
        }
        assert!(order.threads > 1);
    }

    #[test]
    fn of_several_cpus_some_are_yielded_by_the_second_step() {
        let mut controller = Controller::new(&Config::default(), 4);
        assert_eq!(controller.order().threads, 4);
        for _ in 0..2_000 {
            controller.step(CALM, MANY);
        }
        assert!(controller.order().threads > 12);
        let went = [(); 4].map(|()| controller.step(BUSY, MANY).threads);
        assert_eq!(went[..1], [4]);
        assert!(went[3] < 4, "{went:?}");
    }

    #[test]
    fn congestion_that_yielding_ends_has_cpus_stand_still() {
        let mut controller = Controller::new(&Config::default(), 4);
        let mut least: f64 = 1.0;
        for _ in 0..200 {
            let order = controller.order();
            let load = order.duty * f64::from(order.threads);
            // More than half a thread of this guest is too much.
            let slowdown = 2.0 * load.max(0.1);
            let sense = Sense {
                congestion: if slowdown > 1.0 {
                    Congestion::Yes
                } else {
                    Congestion::No
                },
                slowdown,
                room: 1.0 - slowdown,
                busy: false,
            };
            controller.step(sense, MANY);
            least = least.min(load);
        }
        assert!(least < 0.6, "{least}");
    }

    #[test]
    fn other_constants_hold_at_once() {
        let mut controller = Controller::new(&Config::default(), 1);
        let mut config = Config::default();
        config.threads.most = 4;
        config.threads.start = 4;
        controller.reconfigure(&config);
        assert_eq!(controller.order().threads, 4);
        assert_eq!(controller.step(CALM, MANY).threads, 4);
    }

    proptest! {
        #[test]
        fn orders_are_always_in_range(
            steps in prop::collection::vec((any::<bool>(), 0u32..200, 0.0..100.0f64), 0..300),
            law in 0usize..LawConfig::ALL.len(),
            cpus in 1u32..9,
        ) {
            let mut config = Config::default();
            config.threads.most = 64;
            config.threads.law = LawConfig::ALL[law];
            let mut controller = Controller::new(&config, cpus);
            for (congested, active, slowdown) in steps {
                let congestion = if congested { Congestion::Yes } else { Congestion::No };
                let order = controller.step(Sense { congestion, slowdown, room: 1.0 - slowdown, busy: false }, active);
                prop_assert!((1..=64).contains(&order.threads));
                prop_assert!(order.duty > 0.0 && order.duty <= 1.0);
                prop_assert!(order.sleep.is_none_or(|s| s <= Duration::from_secs(50)));
                prop_assert!(order.sleep.is_none() || order.threads == 1);
            }
        }
    }
}
