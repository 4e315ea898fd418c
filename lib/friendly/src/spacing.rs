//! Times of the looks at threads.

use std::time::Duration;

/// Each look is followed by so many times the CPU time that it took before the next: the
/// guest pays for it, and where hundreds of threads sleep on an emulated CPU, looks twice
/// a second take a twentieth of all its time.
const DEAR: u32 = 200;
/// Factor once a tick has come late: others may run than at the last look.
const LATE: u32 = 20;
/// Factor while more run than may. Those that are still to be stopped cost more, and
/// while the host reads back what they use a look is dear too, for its time is counted.
const PRESSING: u32 = 4;
/// Once one waits the next look comes after this part of the usual time, but no
/// sooner than that.
const SOON: u32 = 8;

/// Distance between looks, by the time the last of them took and by what they
/// found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spacing {
    cost: Duration,
    over: bool,
}

impl Spacing {
    /// After a look that took so much CPU time, and found more running than may, or not.
    pub fn after(cost: Duration, over: bool) -> Self {
        Self { cost, over }
    }

    /// Returns the time from the last look to the next, if this is usual.
    pub fn next(self, usual: Duration) -> Duration {
        usual.max(self.least(DEAR))
    }

    /// Returns that time once a tick has come late. Of threads that wait for a lock
    /// many wake at once when it is let go, and what they use is read back from then
    /// on.
    pub fn late(self, usual: Duration) -> Duration {
        usual.max(self.least(LATE))
    }

    /// Returns that time once a process waits.
    pub fn soon(self, usual: Duration) -> Duration {
        self.least(DEAR).max(usual / SOON)
    }

    fn least(self, times: u32) -> Duration {
        self.cost
            .saturating_mul(if self.over { PRESSING } else { times })
    }
}

/// For how many usual looks one stands that comes so long after the one before: one or
/// more.
pub fn turns(passed: Duration, usual: Duration) -> u32 {
    let times = (passed + usual / 2).as_nanos() / usual.as_nanos().max(1);
    u32::try_from(times).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const USUAL: Duration = Duration::from_millis(500);

    #[test]
    fn cheap_looks_come_as_usual_and_soon_if_somebody_waits() {
        for over in [false, true] {
            let spacing = Spacing::after(Duration::from_millis(2), over);
            assert_eq!(spacing.next(USUAL), USUAL);
        }
        let cheap = Spacing::after(Duration::from_micros(100), false);
        assert_eq!(cheap.soon(USUAL), USUAL / SOON);
        assert_eq!(Spacing::default().next(USUAL), USUAL);
    }

    #[test]
    fn while_too_many_run_a_look_is_not_put_off_for_being_dear() {
        let cost = Duration::from_millis(50);
        assert_eq!(Spacing::after(cost, true).next(USUAL), USUAL);
        assert_eq!(Spacing::after(cost, false).next(USUAL), 20 * USUAL);
        // A tenth of that if a tick is late.
        assert_eq!(Spacing::after(cost, false).late(USUAL), 2 * USUAL);
    }

    #[test]
    fn a_late_look_stands_for_those_that_did_not_come() {
        let stands = |ms| turns(Duration::from_millis(ms), USUAL);
        assert_eq!(
            [0, 60, 500, 700, 800, 5_000].map(stands),
            [1, 1, 1, 1, 2, 10]
        );
        assert_eq!(turns(Duration::MAX / 2, Duration::ZERO), u32::MAX);
    }

    proptest! {
        #[test]
        fn looks_take_a_small_part_of_the_time_even_if_somebody_waits(
            cost in 0u64..1_000_000_000,
            usual in 0u64..10_000_000_000,
            over: bool,
        ) {
            let (cost, usual) = (Duration::from_nanos(cost), Duration::from_nanos(usual));
            let spacing = Spacing::after(cost, over);
            let times = if over { 4 } else { 200 };
            prop_assert!(spacing.soon(usual) >= cost * times);
            prop_assert!(spacing.soon(usual) <= spacing.next(usual));
            prop_assert!(spacing.late(usual) >= usual.max(cost * times.min(20)));
            prop_assert!(spacing.late(usual) <= spacing.next(usual));
        }
    }
}
