//! Uses of a sandbox over time.

use crate::rfc3339;
use forkyard_types::GuestUsage;
use serde::Serialize;
use std::collections::VecDeque;

/// Most samples of one sandbox.
const MOST: usize = 720;
/// Least seconds between two samples.
const APART_S: u64 = 1;

/// One sample, as clients read it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// Time of it, RFC 3339.
    pub timestamp: String,
    /// Likewise, in seconds since 1970.
    pub timestamp_unix: u64,
    /// Virtual processors.
    pub cpu_count: u32,
    /// Part of their time for which they worked since the sample before, or since the boot; 0 to 100.
    pub cpu_used_pct: f64,
    /// Bytes of memory that programs use.
    pub mem_used: u64,
    /// Bytes of memory.
    pub mem_total: u64,
    /// Bytes of files' content in memory.
    pub mem_cache: u64,
    /// Bytes of the root file system that are used.
    pub disk_used: u64,
    /// Size of that in bytes.
    pub disk_total: u64,
}

/// Samples of one sandbox, the oldest first. Bounded.
#[derive(Clone, Debug, Default)]
pub struct Series {
    samples: VecDeque<Metric>,
    /// Ticks that it had worked, and all, at the last sample.
    ticks: (u64, u64),
}

impl Series {
    /// Tells whether a sample would add something now, in seconds since 1970.
    pub fn is_due(&self, now: u64) -> bool {
        self.samples
            .back()
            .is_none_or(|last| now.abs_diff(last.timestamp_unix) >= APART_S)
    }

    /// Notes what a guest says at a time.
    pub fn note(&mut self, now: u64, usage: &GuestUsage) {
        let (busy, ticks) = match self.ticks {
            // It was booted anew since.
            (busy, ticks) if usage.ticks < ticks || usage.busy < busy => (usage.busy, usage.ticks),
            (busy, ticks) => (usage.busy - busy, usage.ticks - ticks),
        };
        self.ticks = (usage.busy, usage.ticks);
        let nanoseconds = i64::try_from(now.saturating_mul(1_000_000_000)).unwrap_or(i64::MAX);
        self.samples.push_back(Metric {
            timestamp: rfc3339(nanoseconds),
            timestamp_unix: now,
            cpu_count: usage.vcpus,
            cpu_used_pct: percent(busy, ticks),
            mem_used: usage.memory_used.0,
            mem_total: usage.memory.0,
            mem_cache: usage.memory_cache.0,
            disk_used: usage.disk_used.0,
            disk_total: usage.disk.0,
        });
        if self.samples.len() > MOST {
            self.samples.pop_front();
        }
    }

    /// Samples of a time.
    pub fn within(&self, range: TimeRange) -> Vec<Metric> {
        let in_time = |it: &&Metric| {
            range.start.is_none_or(|start| it.timestamp_unix >= start)
                && range.end.is_none_or(|end| it.timestamp_unix <= end)
        };
        self.samples.iter().filter(in_time).cloned().collect()
    }
}

/// Time that a client asks about, in seconds since 1970. Both ends are included; one that is not given
/// is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeRange {
    /// First second.
    pub start: Option<u64>,
    /// Last second.
    pub end: Option<u64>,
}

impl TimeRange {
    /// Reads a query string; the error is what is wrong with it.
    pub fn of(query: &str) -> Result<Self, String> {
        let mut range = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let number = || {
                let wrong = |_| format!("{name} {value:?} is no number of seconds since 1970");
                value.parse().map(Some).map_err(wrong)
            };
            match &*name {
                "start" => range.start = number()?,
                "end" => range.end = number()?,
                _ => {}
            }
        }
        Ok(range)
    }
}

/// Hundredths of a percent are exact enough.
fn percent(part: u64, all: u64) -> f64 {
    let hundredths = u128::from(part) * 10_000 / u128::from(all.max(1));
    f64::from(u32::try_from(hundredths.min(10_000)).unwrap_or(10_000)) / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::ByteCount;

    fn usage(busy: u64, ticks: u64) -> GuestUsage {
        GuestUsage {
            vcpus: 2,
            busy,
            ticks,
            memory: ByteCount(100),
            memory_used: ByteCount(40),
            memory_cache: ByteCount(30),
            disk: ByteCount(1000),
            disk_used: ByteCount(10),
        }
    }

    #[test]
    fn work_is_told_since_the_sample_before_and_since_a_boot() {
        let mut series = Series::default();
        for (now, busy, ticks) in [(10, 30, 120), (15, 130, 320), (20, 5, 10)] {
            series.note(now, &usage(busy, ticks));
        }
        let told = series.within(TimeRange::default());
        let told: Vec<_> = told.iter().map(|it| it.cpu_used_pct).collect();
        assert_eq!(told, [25.0, 50.0, 50.0]);
    }

    #[test]
    fn samples_are_those_of_the_time_that_is_asked_for_and_bounded() {
        let mut series = Series::default();
        for now in 0..1000 {
            assert!(series.is_due(now));
            series.note(now, &usage(now, now));
            assert!(!series.is_due(now));
        }
        assert_eq!(series.within(TimeRange::default()).len(), MOST);
        let of = |query| series.within(TimeRange::of(query).expect("a range"));
        let some = of("start=990&end=993");
        let some: Vec<_> = some.iter().map(|it| it.timestamp_unix).collect();
        assert_eq!(some, [990, 991, 992, 993]);
        assert!(of("start=1000").is_empty());
        assert!(TimeRange::of("end=soon").is_err());
    }
}
