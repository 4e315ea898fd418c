//! Tests of members: one is well once its test passes, and never will be after too many failures.

use crate::file::HealthFile;
use std::time::Duration;

/// A test, and how long its failures are borne.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Command in the guest; well if it exits with 0.
    pub test: Vec<String>,
    /// Time between two tests.
    pub interval: Duration,
    /// Time for one test.
    pub timeout: Duration,
    /// Failures in a row that are borne.
    pub retries: u32,
    /// Time from the first test in which failures do not count.
    pub start: Duration,
}

/// The tests of one member so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemberHealth {
    failures: u32,
}

/// Meaning of a test for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestVerdict {
    /// The member is well.
    Well,
    /// The next test is due after this time.
    Again(Duration),
    /// The member has failed more often than is borne.
    Sick,
}

impl HealthCheck {
    pub(crate) fn of(file: HealthFile) -> Self {
        Self {
            test: file.test,
            interval: file.interval.unwrap_or(Duration::from_secs(2)),
            timeout: file.timeout.unwrap_or(Duration::from_secs(10)),
            retries: file.retries.unwrap_or(30),
            start: file.start.unwrap_or_default(),
        }
    }
}

impl MemberHealth {
    /// Takes in a test that ended this long after the first had begun.
    pub fn take(&mut self, health: &HealthCheck, passed: bool, since: Duration) -> TestVerdict {
        if passed {
            return TestVerdict::Well;
        }
        if since > health.start {
            self.failures += 1;
        }
        match self.failures > health.retries {
            true => TestVerdict::Sick,
            false => TestVerdict::Again(health.interval),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_count_after_the_start_and_one_more_than_is_borne_is_too_many() {
        let second = Duration::from_secs(1);
        let health = HealthCheck {
            test: Vec::new(),
            interval: second,
            timeout: second,
            retries: 2,
            start: 5 * second,
        };
        let mut pulse = MemberHealth::default();
        for at in 0..=5 {
            let verdict = pulse.take(&health, false, at * second);
            assert_eq!(verdict, TestVerdict::Again(second));
        }
        assert_eq!(
            pulse.take(&health, false, 6 * second),
            TestVerdict::Again(second)
        );
        assert_eq!(
            pulse.take(&health, false, 7 * second),
            TestVerdict::Again(second)
        );
        assert_eq!(pulse.take(&health, false, 8 * second), TestVerdict::Sick);
        assert_eq!(pulse.take(&health, true, 9 * second), TestVerdict::Well);
    }
}
