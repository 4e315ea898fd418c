//! Rate and losses of packets that came in.

use crate::wire::{Reception, Seq};
use std::time::{Duration, Instant};

/// The rate is averaged over bins of this length (SnowFlock, 3.5).
const BIN: Duration = Duration::from_millis(1);
/// Weight of the newest bin: the mean of some tens of milliseconds.
const WEIGHT: f64 = 0.05;

/// Bytes a second, on weighted average of each millisecond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    bin: Instant,
    bytes: u64,
    mean: f64,
}

impl Meter {
    pub fn new(now: Instant) -> Self {
        Self {
            bin: now,
            bytes: 0,
            mean: 0.0,
        }
    }

    pub fn add(&mut self, bytes: usize, now: Instant) {
        self.advance(now);
        self.bytes += bytes as u64;
    }

    /// Bytes a second.
    pub fn rate(&mut self, now: Instant) -> u64 {
        self.advance(now);
        let rate = self.mean / BIN.as_secs_f64();
        // Saturates, and is never negative.
        #[expect(clippy::cast_possible_truncation)]
        let rate = rate as u64;
        rate
    }

    fn advance(&mut self, now: Instant) {
        let bins = now.saturating_duration_since(self.bin).as_micros() / BIN.as_micros();
        let Ok(bins) = i32::try_from(bins) else {
            *self = Self::new(now);
            return;
        };
        if bins > 0 {
            // No host counts so many bytes in a millisecond that this rounds.
            self.mean += WEIGHT * (self.bytes as f64 - self.mean);
            self.mean *= (1.0 - WEIGHT).powi(bins - 1);
            self.bytes = 0;
            self.bin += BIN * bins.unsigned_abs();
        }
    }
}

/// Packets that came one way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    meter: Meter,
    highest: Seq,
    packets: u64,
}

impl Way {
    pub fn new(now: Instant) -> Self {
        Self {
            meter: Meter::new(now),
            highest: Seq(0),
            packets: 0,
        }
    }

    /// Counts a packet; tells whether those before it are missing.
    pub fn add(&mut self, seq: Seq, bytes: usize, now: Instant) -> bool {
        self.meter.add(bytes, now);
        let missing = self.packets > 0 && seq.0.saturating_sub(self.highest.0) > 1;
        self.highest = self.highest.max(seq);
        // What was sent before we listened is not lost.
        self.packets = match self.packets {
            0 => seq.0,
            before => before.saturating_add(1),
        };
        missing
    }

    pub fn report(&mut self, now: Instant) -> Reception {
        Reception {
            highest: self.highest,
            packets: self.packets,
            rate: self.meter.rate(now),
        }
    }
}

/// Tells packets that are new from those that came before, or may have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Replays {
    highest: u64,
    /// Bit `n`: whether number `highest - n` came.
    seen: u64,
}

impl Replays {
    /// Tells whether this number is new; it is not from then on. Numbers start
    /// at 1.
    pub fn admit(&mut self, seq: Seq) -> bool {
        if seq.0 > self.highest {
            let by = u32::try_from(seq.0 - self.highest).unwrap_or(u32::MAX);
            self.seen = self.seen.checked_shl(by).unwrap_or(0) | 1;
            self.highest = seq.0;
            return true;
        }
        let bit = u32::try_from(self.highest - seq.0).unwrap_or(u32::MAX);
        let Some(bit) = 1u64.checked_shl(bit) else {
            return false;
        };
        let new = self.seen & bit == 0 && seq.0 > 0;
        self.seen |= bit;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn no_number_is_admitted_twice_and_recent_ones_once(numbers in prop::collection::vec(1..200u64, 0..400)) {
            let (mut replays, mut seen, mut highest) = (Replays::default(), HashSet::new(), 0);
            for number in numbers {
                let new = replays.admit(Seq(number));
                let recent = number + 64 > highest;
                prop_assert_eq!(new, recent && !seen.contains(&number));
                seen.insert(number);
                highest = highest.max(number);
            }
        }
    }

    #[test]
    fn highest_number_there_is_can_be_counted() {
        let now = Instant::now();
        let mut way = Way::new(now);
        assert!(!way.add(Seq(u64::MAX), 1, now));
        assert!(!way.add(Seq(u64::MAX - 1), 1, now));
        assert_eq!(way.report(now).packets, u64::MAX);
    }

    #[test]
    fn steady_stream_is_measured_and_forgotten_when_it_stops() {
        let mut now = Instant::now();
        let mut meter = Meter::new(now);
        for _ in 0..200 {
            meter.add(1000, now);
            now += BIN;
        }
        let rate = meter.rate(now);
        assert!((900_000..=1_000_000).contains(&rate), "{rate}");
        assert!(meter.rate(now + 200 * BIN) < 100);
        assert_eq!(meter.rate(now + Duration::from_secs(1 << 30)), 0);
    }
}
