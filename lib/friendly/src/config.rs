//! Every constant, in a file. Where nothing is said, the paper's table 1 holds, but
//! for the virtual clock's average, what it is compared with, from where on that is
//! congestion, and for smaller steps near it.

mod laws;

pub use laws::LawConfig;

use crate::{Pace, Signal};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Reason why a configuration is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is no configuration.
    #[error("cannot read the configuration")]
    Syntax(#[from] toml::de::Error),
    /// A number is out of range.
    #[error("{field} is {value}: it must be {wanted}")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: f64,
        /// Values that it may have.
        wanted: &'static str,
    },
    /// Nothing would ever tell of congestion.
    #[error("monitor.signals is empty: name at least one, such as \"vct\"")]
    NoSignal,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Settings of the monitor of congestion.
    pub monitor: MonitorConfig,
    /// Limits on running threads.
    pub threads: ThreadsConfig,
    /// Limits on the rate of the last one.
    pub rate: RateConfig,
}

/// Over what the average of the virtual clock time is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Average {
    /// Each tick is a value: the paper's. Follows at once, and knows but the last
    /// few ticks: of a guest that stands still, the second in which it did is one.
    Ticks,
    /// The mean of each period is a value. Steadier, and later by some periods.
    #[default]
    Periods,
}

/// Value that is taken for the virtual clock time of a guest that has all it
/// wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Least {
    /// The least average of the window: the paper's. An overload that outlasts the
    /// window is taken for idleness, and so is one that a guest began in.
    Window,
    /// The tick that was asked for: the same for all guests, whenever they began.
    #[default]
    Asked,
}

/// Settings of the monitor of congestion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MonitorConfig {
    /// Time between ticks of the virtual clock, in milliseconds.
    pub tick_ms: f64,
    /// Ticks that are slept through at once, at most, while none is late; 1 has every
    /// tick looked at: the paper's.
    pub rest: u32,
    /// Control period T_c, in seconds.
    pub period_s: f64,
    /// Window T_w of the least virtual clock time, in seconds.
    pub window_s: f64,
    /// Weight γ of the newest value. The mean of a period is steady already: what
    /// follows it late, yields too much.
    pub ewma: f64,
    /// Over what γ is applied.
    pub average: Average,
    /// Value that the average is compared with.
    pub least: Least,
    /// The signals that count: one of them is enough. Left out, the monitor chooses by
    /// where it is; the slowdown of the virtual clock, where it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signals: Option<Vec<Signal>>,
    /// Lateness of a tick, in milliseconds, that still counts as on time. Left out, what a
    /// thread may have to wait for a CPU that others use, some slices of the host's
    /// scheduler: 20. That is no reason to yield for a guest of one CPU: a host shares its CPUs
    /// fairly, and gets as much done however many wait for them. A guest that waits for memory is
    /// later than that. A guest of several CPUs gets more than others as long as more than
    /// one of its threads may run: until then all lateness counts there. 0 has it count
    /// everywhere: the paper's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slack_ms: Option<f64>,
    /// Slowdown H from which on there is congestion. The paper's 2.5 is against what
    /// a guest has seen lately; against the tick that was asked for, guests at 2 have
    /// long been thrashing.
    pub threshold: f64,
    /// Part of the time from which on pressure is congestion.
    pub pressure_threshold: f64,
    /// Part of the CPUs' time from which on steal is congestion.
    pub steal_threshold: f64,
}

/// See [`MonitorConfig::slack_ms`].
const SLACK_MS: f64 = 20.0;

impl Default for MonitorConfig {
    fn default() -> Self {
        Self {
            tick_ms: 10.0,
            rest: 32,
            period_s: 5.0,
            window_s: 60.0,
            ewma: 0.8,
            average: Average::default(),
            least: Least::default(),
            signals: None,
            slack_ms: None,
            threshold: 1.25,
            pressure_threshold: 0.25,
            steal_threshold: 0.1,
        }
    }
}

impl MonitorConfig {
    /// Time between ticks.
    pub fn tick(&self) -> Duration {
        Duration::from_secs_f64(self.tick_ms / 1e3)
    }

    /// The signals that count.
    pub fn counting(&self) -> &[Signal] {
        self.signals.as_deref().unwrap_or(&[Signal::Vct])
    }

    /// Returns the lateness of a tick that counts as on time, where threads run
    /// on so many CPUs.
    pub fn slack(&self, cpus: u32) -> Duration {
        let usual = if cpus > 1 { 0.0 } else { SLACK_MS };
        Duration::from_secs_f64(self.slack_ms.unwrap_or(usual) / 1e3)
    }

    /// Returns the pace at which ticks are slept through, where threads run on so many CPUs.
    /// Of every period several sleeps are seen, and none is late that only took what a kernel
    /// does to wake a thread; but a guest that yields to those that wait for a CPU is to see each
    /// tick of its own that does.
    pub fn pace(&self, cpus: u32) -> Pace {
        let quarter = whole(self.period_s * 1e3 / self.tick_ms / 4.0);
        let part = if self.slack(cpus).is_zero() { 0.2 } else { 0.5 };
        Pace::new(self.rest.min(quarter), self.tick().mul_f64(part))
    }

    /// The control period.
    pub fn period(&self) -> Duration {
        Duration::from_secs_f64(self.period_s)
    }

    /// Periods in the window, at least one.
    pub fn window(&self) -> usize {
        whole((self.window_s / self.period_s).max(1.0)) as usize
    }
}

/// Unit that is stopped as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A thread. One that holds a lock keeps others waiting meanwhile.
    #[default]
    Thread,
    /// A process with all its threads, which counts as one.
    Process,
}

/// Threads that count, and may be stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Count {
    /// Threads that run, would run, or wait for a disk; sleeping ones are left
    /// alone.
    #[default]
    Runnable,
    /// All threads.
    All,
}

/// Condition under which the last thread may run slower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Below {
    /// For a trial, and on from there if that has helped: a CPU that stands still while
    /// others use theirs no better is wasted.
    #[default]
    IfItHelps,
    /// Whenever there is congestion: the paper's.
    Always,
}

/// Treatment of new threads and processes over the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum New {
    /// They are refused, by the group's limit of tasks.
    #[default]
    Refuse,
    /// A new process waits for its turn before the first instruction of its program.
    Wait,
    /// They begin, and are stopped as others are.
    Begin,
}

/// Limits on running threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ThreadsConfig {
    /// Number at first; where there are several CPUs, no more than those.
    pub start: u32,
    /// Never more.
    pub most: u32,
    /// Unit that is stopped as one.
    pub unit: Unit,
    /// Threads that count.
    pub count: Count,
    /// Condition under which the last of them may run slower.
    pub below: Below,
    /// Treatment of new ones over the limit.
    pub new: New,
    /// Periods after which a stopped thread comes first.
    pub patience: u32,
    /// Periods that a thread that begins to run has for it: what it works on may have been
    /// paged out, and to read it back is to pay. Where more than four run on each CPU,
    /// more in proportion.
    pub turn: u32,
    /// Time between looks at the threads, in milliseconds.
    pub look_ms: f64,
    /// Names of processes that are never stopped, as `ps -o comm` has them.
    pub exempt: Vec<String>,
    /// The law, in threads.
    pub law: LawConfig,
}

impl Default for ThreadsConfig {
    fn default() -> Self {
        Self {
            start: 10,
            most: 4096,
            unit: Unit::Thread,
            count: Count::Runnable,
            below: Below::IfItHelps,
            new: New::default(),
            patience: 2,
            turn: 12,
            look_ms: 500.0,
            exempt: Vec::new(),
            law: LawConfig::STEADY,
        }
    }
}

impl ThreadsConfig {
    /// Time between looks at the threads.
    pub fn look(&self) -> Duration {
        Duration::from_secs_f64(self.look_ms / 1e3)
    }
}

/// By what the rate is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RateMeans {
    /// By a quota if the group has one, else by sleeping.
    #[default]
    Auto,
    /// By the group's quota of CPU time.
    Quota,
    /// By standing still: the paper's.
    Sleep,
}

/// Limits on the rate of the last thread: it sleeps for 1 / rate in every
/// period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RateConfig {
    /// The slowest, in hertz: its inverse is the longest sleep.
    pub floor_hz: f64,
    /// The fastest; beyond it none sleeps, and threads may grow again.
    pub ceiling_hz: f64,
    /// By what.
    pub means: RateMeans,
    /// The law, in hertz.
    pub law: LawConfig,
}

impl Default for RateConfig {
    fn default() -> Self {
        Self {
            floor_hz: 0.02,
            ceiling_hz: 1.0,
            means: RateMeans::Auto,
            law: LawConfig::Aimd {
                add: 0.1,
                divide: 1.5,
            },
        }
    }
}

impl Config {
    /// Reads and checks one.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    /// Checks that the configuration is usable.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Self {
            monitor,
            threads,
            rate,
        } = self;
        within("monitor.tick-ms", monitor.tick_ms, 0.1, 1e3, "0.1 to 1000")?;
        let rest = f64::from(monitor.rest);
        within("monitor.rest", rest, 1.0, 1e6, "1 to a million")?;
        within(
            "monitor.period-s",
            monitor.period_s,
            0.05,
            3600.0,
            "0.05 to 3600",
        )?;
        within(
            "monitor.window-s",
            monitor.window_s,
            monitor.period_s,
            86_400.0,
            "a period to a day",
        )?;
        let slack = monitor.slack_ms.unwrap_or(SLACK_MS);
        within("monitor.slack-ms", slack, 0.0, 1e4, "0 to 10000")?;
        within("monitor.ewma", monitor.ewma, 1e-6, 1.0, "over 0, at most 1")?;
        within(
            "monitor.threshold",
            monitor.threshold,
            1.0,
            1e6,
            "1 or more",
        )?;
        for (field, value) in [
            ("monitor.pressure-threshold", monitor.pressure_threshold),
            ("monitor.steal-threshold", monitor.steal_threshold),
        ] {
            within(field, value, 1e-6, 1.0, "over 0, at most 1")?;
        }
        if monitor.tick_ms > 1e3 * monitor.period_s {
            return Err(ConfigError::Range {
                field: "monitor.tick-ms",
                value: monitor.tick_ms,
                wanted: "at most a period",
            });
        }
        if monitor.signals.as_ref().is_some_and(Vec::is_empty) {
            return Err(ConfigError::NoSignal);
        }
        let most = f64::from(threads.most);
        within("threads.most", most, 1.0, 4_194_304.0, "1 to 4194304")?;
        let start = f64::from(threads.start);
        within("threads.start", start, 1.0, most, "1 to threads.most")?;
        let patience = f64::from(threads.patience);
        within("threads.patience", patience, 1.0, 1e6, "1 to a million")?;
        let turn = f64::from(threads.turn);
        within("threads.turn", turn, 1.0, 1e6, "1 to a million")?;
        within(
            "threads.look-ms",
            threads.look_ms,
            10.0,
            60_000.0,
            "10 to 60000",
        )?;
        within("rate.floor-hz", rate.floor_hz, 1e-3, 1e3, "0.001 to 1000")?;
        within(
            "rate.ceiling-hz",
            rate.ceiling_hz,
            rate.floor_hz,
            1e3,
            "rate.floor-hz to 1000",
        )?;
        threads.law.check()?;
        rate.law.check()
    }
}

fn within(
    field: &'static str,
    value: f64,
    least: f64,
    most: f64,
    wanted: &'static str,
) -> Result<(), ConfigError> {
    // Says no to what is no number, too.
    if value >= least && value <= most {
        return Ok(());
    }
    Err(ConfigError::Range {
        field,
        value,
        wanted,
    })
}

/// The whole part of a number; 0 of those below, and of none.
#[expect(
    clippy::cast_possible_truncation,
    reason = "to be cut off is what is wanted, and casts of floats saturate"
)]
pub(crate) fn whole(value: f64) -> u32 {
    value as u32
}

#[cfg(test)]
mod tests;
