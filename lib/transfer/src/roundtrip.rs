//! How long an answer takes, and when to stop waiting for it (RFC 6298).

use std::time::Duration;

/// Before anything is known.
const INITIAL: Duration = Duration::from_millis(50);
/// Sooner is nothing asked again: hosts are descheduled for milliseconds.
const LEAST: Duration = Duration::from_millis(5);
/// Nor later.
const MOST: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoundTrip {
    /// Mean and mean deviation.
    known: Option<(Duration, Duration)>,
}

impl RoundTrip {
    /// An answer took so long. Only for what was asked once (Karn).
    pub fn took(&mut self, sample: Duration) {
        self.known = Some(match self.known {
            None => (sample, sample / 2),
            Some((mean, deviation)) => {
                let off = mean.abs_diff(sample);
                (mean * 7 / 8 + sample / 8, deviation * 3 / 4 + off / 4)
            }
        });
    }

    /// The mean, if there is one.
    pub fn mean(&self) -> Option<Duration> {
        self.known.map(|(mean, _)| mean)
    }

    /// How long to wait for the answer to what was asked so often before.
    pub fn patience(&self, before: u8) -> Duration {
        let once = self
            .known
            .map_or(INITIAL, |(mean, deviation)| mean + deviation * 4);
        let factor = 1u32 << before.min(10);
        once.max(LEAST).saturating_mul(factor).min(MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_follows_what_answers_take_and_doubles_each_time() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.patience(0), INITIAL);
        (0..100).for_each(|_| trip.took(Duration::from_millis(20)));
        assert_eq!(trip.mean(), Some(Duration::from_millis(20)));
        assert!(trip.patience(0) < Duration::from_millis(25));
        assert_eq!(trip.patience(2), trip.patience(0) * 4);
        assert_eq!(trip.patience(255), MOST);
        (0..100).for_each(|_| trip.took(Duration::ZERO));
        assert_eq!(trip.patience(0), LEAST);
    }
}
