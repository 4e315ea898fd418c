//! Delay of the next fork, after some have failed.

use std::time::Duration;

/// Backoff of forks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    failures: u32,
    closed_until: Duration,
}

impl Gate {
    /// Closes it for `first`, doubled for each failure before this one, for `most` at most.
    pub(crate) fn fail(&mut self, now: Duration, first: Duration, most: Duration) {
        if now >= self.closed_until + most {
            self.failures = 0;
        }
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.closed_until = now + first.saturating_mul(factor).min(most);
        self.failures = self.failures.saturating_add(1);
    }

    pub(crate) fn is_open(&self, now: Duration) -> bool {
        now >= self.closed_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_begin_anew_after_that_without_a_failure() {
        let seconds = Duration::from_secs;
        let mut gate = Gate::default();
        let mut now = seconds(100);
        assert!(gate.is_open(now));
        for wait in [1, 2, 4, 8, 16, 30, 30] {
            gate.fail(now, seconds(1), seconds(30));
            assert!(!gate.is_open(now + seconds(wait) - Duration::from_millis(1)));
            assert!(gate.is_open(now + seconds(wait)));
            now += Duration::from_millis(10);
        }
        now += seconds(60);
        gate.fail(now, seconds(1), seconds(30));
        assert!(gate.is_open(now + seconds(1)));
    }
}
