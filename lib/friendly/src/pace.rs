//! Choice of the number of ticks to sleep through at once.
//!
//! A guest that is woken for every tick of an idle host pays for it, an emulated
//! one by several hundredths of its time, and learns each time that nothing is
//! late. So ticks on time are slept through, twice as many as before each
//! time; a late one has the next looked at by itself.

use std::time::Duration;

/// Number of ticks to sleep through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    ticks: u32,
    most: u32,
    late: Duration,
}

impl Pace {
    /// Begins with single ticks, and never sleeps through more than `most`. A sleep that
    /// took longer than it was to by more than `late` was late.
    pub fn new(most: u32, late: Duration) -> Self {
        Self {
            ticks: 1,
            most: most.max(1),
            late,
        }
    }

    /// Ticks to sleep through now.
    pub fn ticks(self) -> u32 {
        self.ticks
    }

    /// So long that sleep took, with ticks of this length.
    pub fn took(&mut self, tick: Duration, took: Duration) {
        let late = took.saturating_sub(tick * self.ticks);
        self.ticks = match late > self.late {
            true => 1,
            false => self.ticks.saturating_mul(2).min(self.most),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TICK: Duration = Duration::from_millis(10);

    #[test]
    fn it_rests_while_nothing_is_late() {
        let mut pace = Pace::new(6, TICK / 2);
        let slept: Vec<_> = (0..5)
            .map(|_| {
                let ticks = pace.ticks();
                pace.took(TICK, TICK * ticks + TICK / 4);
                ticks
            })
            .collect();
        assert_eq!(slept, [1, 2, 4, 6, 6]);
        pace.took(TICK, TICK * 6 + TICK * 3 / 4);
        assert_eq!(pace.ticks(), 1);
    }

    proptest! {
        /// Of a host that holds every wake-up up by a tick or more, each is seen.
        #[test]
        fn under_congestion_every_tick_is_looked_at(
            most in 0u32..100,
            late in prop::collection::vec(1.0..50.0f64, 1..40),
        ) {
            let mut pace = Pace::new(most, TICK / 2);
            for late in late {
                prop_assert_eq!(pace.ticks(), 1);
                pace.took(TICK, TICK.mul_f64(1.0 + late));
            }
        }
    }
}
