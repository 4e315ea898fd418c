//! Signals of congestion, and the parser of the kernel's texts.

use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// A sign of congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Signal {
    /// The slowdown of the virtual clock: section 2.1 of the paper.
    Vct,
    /// Part of the time in which some task waited for a CPU.
    CpuPressure,
    /// Part of the time in which some task waited for memory.
    MemoryPressure,
    /// Part of the time in which some task waited for input or output.
    IoPressure,
    /// Part of the CPUs' time that the host gave to others.
    Steal,
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Vct,
        Self::CpuPressure,
        Self::MemoryPressure,
        Self::IoPressure,
        Self::Steal,
    ];

    /// Returns the name, as configurations have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vct => "vct",
            Self::CpuPressure => "cpu-pressure",
            Self::MemoryPressure => "memory-pressure",
            Self::IoPressure => "io-pressure",
            Self::Steal => "steal",
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Counters of the kernel since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Time in which some task waited for a CPU.
    pub cpu: Option<Duration>,
    /// Time in which some task waited for memory.
    pub memory: Option<Duration>,
    /// Time in which some task waited for input or output.
    pub io: Option<Duration>,
    /// Time of all CPUs.
    pub cpus: Option<CpuTimes>,
}

/// Time of all CPUs, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// All of it.
    pub all: u64,
    /// In which no process had anything to run.
    pub idle: u64,
    /// That the host gave to others.
    pub stolen: u64,
}

impl Counters {
    /// The waiting time that a file of `/proc/pressure`, or of a group's, tells:
    /// its `some` line.
    pub fn pressure(text: &str) -> Option<Duration> {
        let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
        let total = line.split(' ').find_map(|word| word.strip_prefix("total="));
        total?.parse().ok().map(Duration::from_micros)
    }

    /// The times that the first line of `/proc/stat` has.
    pub fn cpus(text: &str) -> Option<CpuTimes> {
        const IDLE: usize = 3;
        const WAITS: usize = 4;
        const STEAL: usize = 7;
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let fields: Vec<u64> = line
            .split_whitespace()
            .map_while(|field| field.parse().ok())
            .collect();
        Some(CpuTimes {
            // What runs guests is counted as user time already.
            all: fields.iter().take(STEAL + 1).sum(),
            idle: fields.get(IDLE)? + fields.get(WAITS)?,
            stolen: *fields.get(STEAL)?,
        })
    }

    /// Returns the difference since `earlier`, `elapsed` ago. A counter that
    /// went back tells nothing.
    pub fn since(&self, earlier: &Self, elapsed: Duration) -> Readings {
        let part = |now: Option<Duration>, then: Option<Duration>| {
            let waited = now?.checked_sub(then?)?.as_secs_f64();
            (!elapsed.is_zero()).then(|| (waited / elapsed.as_secs_f64()).min(1.0))
        };
        let of_cpus = |which: fn(CpuTimes) -> u64| {
            let (now, then) = (self.cpus?, earlier.cpus?);
            let all = now.all.checked_sub(then.all).filter(|all| *all > 0)?;
            let part = which(now).checked_sub(which(then))?;
            Some((part as f64 / all as f64).min(1.0))
        };
        Readings {
            cpu: part(self.cpu, earlier.cpu),
            memory: part(self.memory, earlier.memory),
            io: part(self.io, earlier.io),
            steal: of_cpus(|times| times.stolen),
            idle: of_cpus(|times| times.idle),
        }
    }
}

/// Parts of one period, from 0 to 1; absent where the kernel tells nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Readings {
    /// Of [`Signal::CpuPressure`].
    pub cpu: Option<f64>,
    /// Of [`Signal::MemoryPressure`].
    pub memory: Option<f64>,
    /// Of [`Signal::IoPressure`].
    pub io: Option<f64>,
    /// Of [`Signal::Steal`].
    pub steal: Option<f64>,
    /// Of the CPUs' time, what was not used: no signal, but more threads than keep CPUs
    /// busy get no more done.
    pub idle: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_understood() {
        let text = "some avg10=37.28 avg60=36.74 avg300=36.25 total=8788643043\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let total = Duration::from_micros(8_788_643_043);
        assert_eq!(Counters::pressure(text), Some(total));
        let text = "cpu  100 2 30 400 5 0 3 60 9 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let times = CpuTimes {
            all: 600,
            idle: 405,
            stolen: 60,
        };
        assert_eq!(Counters::cpus(text), Some(times));
        for nonsense in ["", "some total=x", "cpu 1 2", "full total=3"] {
            assert_eq!(Counters::pressure(nonsense), None, "{nonsense}");
            assert_eq!(Counters::cpus(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn parts_are_of_the_time_that_passed() {
        let at = |ms, (all, stolen)| Counters {
            cpu: Some(Duration::from_millis(ms)),
            memory: None,
            io: Some(Duration::from_millis(9)),
            cpus: Some(CpuTimes {
                all,
                idle: all / 2,
                stolen,
            }),
        };
        let readings = at(700, (1_200, 150)).since(&at(200, (1_000, 100)), Duration::from_secs(1));
        let wanted = Readings {
            cpu: Some(0.5),
            memory: None,
            io: Some(0.0),
            steal: Some(0.25),
            idle: Some(0.5),
        };
        assert_eq!(readings, wanted);
        let back = at(100, (900, 100)).since(&at(200, (1_000, 100)), Duration::from_secs(1));
        assert_eq!((back.cpu, back.steal, back.idle), (None, None, None));
    }
}
