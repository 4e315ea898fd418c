//! Senses congestion: section 2.1 of the paper.
//!
//! A tick of the virtual clock asks to be woken after a fixed time and is woken
//! some time later; the real time between the two is the virtual clock time, VCT.
//! It grows with whatever resource the guest has too little of.

use crate::{Average, Congestion, Leads, Least, MonitorConfig, Readings, Sense, Senses, Signal};
use serde::Serialize;
use std::{collections::VecDeque, time::Duration};

/// CPUs that are idle for less of a period count as busy: a thread that waits for a
/// moment is not missed, and agents look at things now and then.
const IDLE: f64 = 0.1;

/// Senses congestion, a period at a time.
#[derive(Clone, Debug)]
pub struct Monitor {
    config: MonitorConfig,
    /// CPUs of the guest.
    cpus: u32,
    average: Option<Times>,
    /// Ticks of this period, and the sums of what they took.
    ticks: u32,
    sum: Times,
    /// Averages of what counts over the last periods, the newest last.
    past: VecDeque<f64>,
    leads: Leads,
}

/// Virtual clock times, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// As they were.
    all: f64,
    /// Without what may be waiting for a CPU that is no reason to yield: of each, the
    /// slack.
    counted: f64,
    /// Lateness counted with the slack of a guest of one CPU.
    at_one: f64,
}

/// A signal, in one period.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Signal.
    pub signal: Signal,
    /// Value: a slowdown, or a part of time.
    pub value: f64,
    /// From where on it is congestion.
    pub threshold: f64,
}

impl Measured {
    /// Tells whether it signals congestion.
    pub fn raised(&self) -> bool {
        self.value > self.threshold
    }

    /// Returns the distance left from an idle host to the threshold: see
    /// [`Sense`].
    fn room(&self) -> f64 {
        let idle = match self.signal {
            Signal::Vct => 1.0,
            Signal::CpuPressure | Signal::MemoryPressure | Signal::IoPressure | Signal::Steal => {
                0.0
            }
        };
        match self.threshold > idle {
            true => (self.threshold - self.value) / (self.threshold - idle),
            false if self.raised() => 0.0,
            false => 1.0,
        }
    }
}

/// One period.
#[derive(Clone, Debug, PartialEq)]
pub struct PeriodReport {
    /// The average VCT, as it was; none before the first tick. What counts of it as
    /// slowdown is among the signals.
    pub average: Option<Duration>,
    /// Value that the average is compared with: the least of the window before
    /// this period, or the tick that was asked for.
    pub least: Option<Duration>,
    /// Ticks in this period.
    pub ticks: u32,
    /// Every signal there is, whether it counts or not.
    pub signals: Vec<Measured>,
    /// Conclusions for the controller.
    pub senses: Senses,
}

impl Monitor {
    /// One that has seen nothing, in a guest of so many CPUs.
    pub fn new(config: MonitorConfig, cpus: u32) -> Self {
        Self {
            config,
            cpus,
            average: None,
            ticks: 0,
            sum: Times::default(),
            past: VecDeque::new(),
            leads: Leads::default(),
        }
    }

    /// Goes on by other constants. What was seen is kept, unless ticks are now
    /// of another length: then it cannot be compared.
    pub fn reconfigure(&mut self, config: MonitorConfig) {
        if config.tick() != self.config.tick() {
            self.average = None;
            self.past.clear();
            (self.ticks, self.sum) = (0, Times::default());
        }
        self.config = config;
        self.forget();
    }

    /// Ticks that were slept through at once, and the real time that took: all were on
    /// time but for the last.
    pub fn ticks(&mut self, count: u32, took: Duration) {
        let tick = self.config.tick();
        let on_time = count.saturating_sub(1);
        (0..on_time).for_each(|_| self.tick(tick));
        self.tick(took.saturating_sub(tick * on_time));
    }

    /// A tick, and the real time since it was asked for.
    fn tick(&mut self, vct: Duration) {
        let asked = self.config.tick();
        let without = |slack| (asked + vct.saturating_sub(asked + slack)).min(vct);
        let times = Times {
            all: vct.as_secs_f64(),
            counted: without(self.config.slack(self.cpus)).as_secs_f64(),
            at_one: without(self.config.slack(1)).as_secs_f64(),
        };
        self.ticks += 1;
        self.sum.all += times.all;
        self.sum.counted += times.counted;
        self.sum.at_one += times.at_one;
        if self.config.average == Average::Ticks {
            self.smooth(times);
        }
    }

    /// Ends a period. One without ticks tells nothing of the virtual clock.
    pub fn close(&mut self, readings: Readings) -> PeriodReport {
        let ticks = std::mem::take(&mut self.ticks);
        let sum = std::mem::take(&mut self.sum);
        if self.config.average == Average::Periods && ticks > 0 {
            let ticks = f64::from(ticks);
            self.smooth(Times {
                all: sum.all / ticks,
                counted: sum.counted / ticks,
                at_one: sum.at_one / ticks,
            });
        }
        let least = match self.config.least {
            Least::Window => self.past.iter().copied().reduce(f64::min),
            Least::Asked => Some(self.config.tick().as_secs_f64()),
        };
        let mut signals = Vec::new();
        let mut at_one = None;
        if let Some(average) = self.average.filter(|_| ticks > 0) {
            // In the first period there is nothing to compare with.
            let least = least.unwrap_or(average.counted).max(f64::MIN_POSITIVE);
            let clock = |average| Measured {
                signal: Signal::Vct,
                value: average / least,
                threshold: self.config.threshold,
            };
            signals.push(clock(average.counted));
            at_one = Some(clock(average.at_one));
            self.past.push_back(average.counted);
            self.forget();
        }
        let MonitorConfig {
            pressure_threshold,
            steal_threshold,
            ..
        } = self.config;
        for (signal, value, threshold) in [
            (Signal::CpuPressure, readings.cpu, pressure_threshold),
            (Signal::MemoryPressure, readings.memory, pressure_threshold),
            (Signal::IoPressure, readings.io, pressure_threshold),
            (Signal::Steal, readings.steal, steal_threshold),
        ] {
            signals.extend(value.map(|value| Measured {
                signal,
                value,
                threshold,
            }));
        }
        self.leads.period(&signals);
        PeriodReport {
            average: self.average.map(|one| Duration::from_secs_f64(one.all)),
            least: least.map(Duration::from_secs_f64),
            ticks,
            senses: Senses {
                sense: self.sense(signals.iter(), readings.idle),
                at_one: {
                    let others = signals.iter().filter(|one| one.signal != Signal::Vct);
                    self.sense(others.chain(&at_one), readings.idle)
                },
            },
            signals,
        }
    }

    /// Returns the counts of signals that came first.
    pub fn leads(&self) -> &Leads {
        &self.leads
    }

    /// Equation 1.
    fn smooth(&mut self, times: Times) {
        let gamma = self.config.ewma;
        let to = |old: f64, new: f64| (1.0 - gamma) * old + gamma * new;
        self.average = Some(match self.average {
            Some(average) => Times {
                all: to(average.all, times.all),
                counted: to(average.counted, times.counted),
                at_one: to(average.at_one, times.at_one),
            },
            None => times,
        });
    }

    fn forget(&mut self) {
        while self.past.len() > self.config.window() {
            self.past.pop_front();
        }
    }

    fn sense<'a>(
        &self,
        signals: impl Iterator<Item = &'a Measured> + Clone,
        idle: Option<f64>,
    ) -> Sense {
        let counts = |one: &&Measured| self.config.counting().contains(&one.signal);
        let counting = || signals.clone().filter(counts);
        let strongest = counting().map(|one| one.value / one.threshold);
        let nearest = counting().map(Measured::room);
        Sense {
            congestion: match counting().any(Measured::raised) {
                true => Congestion::Yes,
                false => Congestion::No,
            },
            slowdown: strongest.fold(0.0, f64::max),
            room: nearest.fold(1.0, f64::min),
            busy: idle.is_some_and(|idle| idle < IDLE),
        }
    }
}

impl PeriodReport {
    /// Returns the value of the signal, if it was measured.
    pub fn value(&self, signal: Signal) -> Option<f64> {
        let found = self.signals.iter().find(|one| one.signal == signal);
        found.map(|one| one.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOTHING: Readings = Readings {
        cpu: None,
        memory: None,
        io: None,
        steal: None,
        idle: None,
    };

    /// The paper's table 1.
    fn paper() -> MonitorConfig {
        MonitorConfig {
            average: Average::Ticks,
            least: Least::Window,
            ewma: 0.3,
            threshold: 2.5,
            slack_ms: Some(0.0),
            ..MonitorConfig::default()
        }
    }

    /// A tick is late by what others take of a CPU, and no more.
    #[test]
    fn waiting_for_cpus_counts_where_there_are_several_and_more_than_one_thread_may_run() {
        let senses = |cpus, slack_ms| {
            let config = MonitorConfig {
                slack_ms,
                ..MonitorConfig::default()
            };
            let mut monitor = Monitor::new(config, cpus);
            (0..100).for_each(|_| monitor.ticks(1, ms(15.0)));
            let Senses { sense, at_one } = monitor.close(NOTHING).senses;
            [sense, at_one].map(|sense| sense.congestion == Congestion::Yes)
        };
        assert_eq!(senses(4, None), [true, false]);
        assert_eq!(senses(1, None), [false, false]);
        assert_eq!(senses(1, Some(0.0)), [true, true], "what is said holds");
        assert_eq!(senses(4, Some(10.0)), [false, false]);
        // And each such tick is looked at by itself, however little it is late.
        let looked_at = |cpus| {
            let mut pace = MonitorConfig::default().pace(cpus);
            (0..4).for_each(|_| pace.took(ms(10.0), ms(10.0) * pace.ticks() + ms(3.0)));
            pace.ticks()
        };
        assert_eq!([4, 1].map(looked_at), [1, 16]);
    }

    fn ms(ms: f64) -> Duration {
        Duration::from_secs_f64(ms / 1e3)
    }

    #[test]
    fn cpus_are_busy_if_they_are_hardly_idle_and_that_is_known() {
        let mut monitor = Monitor::new(paper(), 1);
        for (idle, busy) in [(Some(0.0), true), (Some(0.2), false), (None, false)] {
            let report = monitor.close(Readings { idle, ..NOTHING });
            assert_eq!(report.senses.sense.busy, busy, "{idle:?}");
        }
    }

    #[test]
    fn average_is_equation_1() {
        let mut monitor = Monitor::new(paper(), 1);
        [10.0, 20.0, 20.0]
            .map(ms)
            .into_iter()
            .for_each(|vct| monitor.tick(vct));
        let average = monitor.close(NOTHING).average.expect("ticks");
        assert!(
            (average.as_secs_f64() * 1e3 - 15.1).abs() < 1e-6,
            "{average:?}"
        );
    }

    #[test]
    fn congestion_is_from_the_threshold_on_and_ends_with_the_window() {
        let mut monitor = Monitor::new(paper(), 1);
        let mut period = |vct: f64| {
            (0..200).for_each(|_| monitor.tick(ms(vct)));
            monitor.close(NOTHING)
        };
        assert_eq!(period(10.0).senses.sense.congestion, Congestion::No);
        assert_eq!(period(24.0).senses.sense.congestion, Congestion::No);
        let mut periods = 0;
        while period(26.0).senses.sense.congestion == Congestion::Yes {
            periods += 1;
        }
        // The period of 10 ms has left the window of 12: one of 24 ms was there.
        assert_eq!(periods, 11);
    }

    #[test]
    fn the_average_of_periods_is_not_moved_by_their_last_ticks() {
        let config = MonitorConfig {
            average: Average::Periods,
            ewma: 1.0,
            ..paper()
        };
        let mut monitor = Monitor::new(config, 1);
        (0..90).for_each(|_| monitor.tick(ms(10.0)));
        (0..10).for_each(|_| monitor.tick(ms(110.0)));
        let average = monitor.close(NOTHING).average.expect("ticks");
        assert!((average.as_secs_f64() - 0.02).abs() < 1e-9, "{average:?}");
    }

    #[test]
    fn who_began_under_overload_knows_it_by_the_tick_that_was_asked_for() {
        let overloaded = |least| {
            let config = MonitorConfig { least, ..paper() };
            let mut monitor = Monitor::new(config, 1);
            (0..200).for_each(|_| monitor.tick(ms(30.0)));
            monitor.close(NOTHING)
        };
        let window = overloaded(Least::Window);
        assert_eq!(window.value(Signal::Vct), Some(1.0));
        let asked = overloaded(Least::Asked);
        let slowdown = asked.value(Signal::Vct).expect("ticks");
        assert!((slowdown - 3.0).abs() < 1e-6, "{slowdown}");
        assert_eq!(asked.least, Some(ms(10.0)));
        assert_eq!(asked.senses.sense.congestion, Congestion::Yes);
    }

    #[test]
    fn what_is_slept_through_counts_as_ticks_on_time() {
        let (mut one, mut all) = (Monitor::new(paper(), 1), Monitor::new(paper(), 1));
        [10.0, 10.0, 10.0, 12.0]
            .map(ms)
            .into_iter()
            .for_each(|vct| one.tick(vct));
        all.ticks(4, ms(42.0));
        let (one, all) = (one.close(NOTHING), all.close(NOTHING));
        assert_eq!(all.ticks, 4);
        assert_eq!(all.average, one.average);
    }

    #[test]
    fn waiting_for_a_cpu_is_no_congestion_and_waiting_for_memory_is() {
        let slowdown = |late: f64| {
            let mut monitor = Monitor::new(MonitorConfig::default(), 1);
            (0..100).for_each(|_| monitor.tick(ms(10.0 + late)));
            let report = monitor.close(NOTHING);
            assert_eq!(
                report.average,
                Some(ms(10.0 + late)),
                "it is told as it was"
            );
            (
                report.value(Signal::Vct).expect("ticks"),
                report.senses.sense,
            )
        };
        // Three guests a CPU, four milliseconds each by turns.
        let (value, sense) = slowdown(8.0);
        assert!((value - 1.0).abs() < 1e-6, "{value}");
        assert_eq!(sense.congestion, Congestion::No);
        assert!((sense.room - 1.0).abs() < 1e-6, "{sense:?}");
        let (value, sense) = slowdown(60.0);
        assert!((value - 5.0).abs() < 1e-6, "{value}");
        assert_eq!(sense.congestion, Congestion::Yes);
    }

    #[test]
    fn a_period_without_ticks_says_nothing() {
        let mut monitor = Monitor::new(paper(), 1);
        monitor.tick(ms(10.0));
        monitor.close(NOTHING);
        let report = monitor.close(NOTHING);
        assert_eq!(report.value(Signal::Vct), None);
        assert_eq!(report.senses.sense.congestion, Congestion::No);
    }

    #[test]
    fn signals_that_do_not_count_are_measured_all_the_same() {
        let readings = Readings {
            memory: Some(0.9),
            ..NOTHING
        };
        let mut monitor = Monitor::new(paper(), 1);
        monitor.tick(ms(10.0));
        let report = monitor.close(readings);
        assert_eq!(report.value(Signal::MemoryPressure), Some(0.9));
        assert_eq!(report.senses.sense.congestion, Congestion::No);
        monitor.reconfigure(MonitorConfig {
            signals: Some(vec![Signal::Vct, Signal::MemoryPressure]),
            ..paper()
        });
        monitor.tick(ms(10.0));
        assert_eq!(
            monitor.close(readings).senses.sense.congestion,
            Congestion::Yes
        );
    }

    #[test]
    fn other_ticks_are_not_compared_with_earlier_ones() {
        let mut monitor = Monitor::new(paper(), 1);
        monitor.tick(ms(10.0));
        monitor.close(NOTHING);
        monitor.reconfigure(MonitorConfig {
            tick_ms: 100.0,
            ..paper()
        });
        monitor.tick(ms(100.0));
        assert_eq!(monitor.close(NOTHING).value(Signal::Vct), Some(1.0));
    }

    proptest! {
        /// Against the definition: all averages kept, the least of the last w.
        #[test]
        fn slowdown_is_as_defined(
            periods in prop::collection::vec(prop::collection::vec(1.0..100.0f64, 1..5), 1..40),
        ) {
            let config = paper();
            let mut monitor = Monitor::new(config.clone(), 1);
            let mut average: Option<f64> = None;
            let mut all: Vec<f64> = Vec::new();
            for ticks in periods {
                for vct in ticks {
                    let vct = ms(vct);
                    monitor.tick(vct);
                    let vct = vct.as_secs_f64();
                    average = Some(average.map_or(vct, |a| 0.7 * a + 0.3 * vct));
                }
                let now = average.expect("a tick at least");
                let least = all.iter().rev().take(12).copied().reduce(f64::min);
                let wanted = now / least.unwrap_or(now);
                all.push(now);
                let told = monitor.close(NOTHING).value(Signal::Vct).expect("ticks");
                prop_assert!((told - wanted).abs() < 1e-6 * wanted, "{told}, not {wanted}");
            }
        }
    }
}
