//! Estimate of the time an answer takes, and of when to stop waiting for it
//! (RFC 6298).

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
    /// The least there was.
    least: Option<Duration>,
    /// Estimate as long as nothing is known.
    guess: Option<Duration>,
}

impl RoundTrip {
    /// Something else was answered so soon: as yet that is all there is to go by.
    pub fn guess(&mut self, took: Duration) {
        self.guess = Some(took);
    }

    /// An answer took so long. Only for what was asked once (Karn).
    pub fn took(&mut self, sample: Duration) {
        self.least = Some(self.least.map_or(sample, |least| least.min(sample)));
        self.known = Some(match self.known {
            None => (sample, sample / 2),
            Some((mean, deviation)) => {
                let off = mean.abs_diff(sample);
                (mean * 7 / 8 + sample / 8, deviation * 3 / 4 + off / 4)
            }
        });
    }

    /// An answer came so long after the first ask, and so long after the last. If that
    /// is sooner than can be, then it is the first that was answered (Eifel): so
    /// it shows that answers take longer than they did. But if others took longer
    /// than this could, it may be the last all the same: so it counts as twice the
    /// mean at most, and many it takes to change that much.
    pub fn took_again(&mut self, first: Duration, last: Duration) {
        match self.known {
            Some((mean, _)) if last < mean / 2 => self.took(first.min(mean * 2)),
            Some(_) => {}
            None => self.took(first),
        }
    }

    /// The least that any answer took; zero before the first.
    pub fn least(&self) -> Duration {
        self.least.unwrap_or_default()
    }

    /// The mean, if there is one.
    pub fn mean(&self) -> Option<Duration> {
        self.known.map(|(mean, _)| mean)
    }

    /// Returns the length of a silence that means something: while answers come, they
    /// do so one after the other.
    pub fn silence(&self) -> Duration {
        let first = || self.guess.map_or(INITIAL, |took| (took * 2).min(INITIAL));
        let silence = self.mean().map_or_else(first, |mean| mean / 4);
        silence.clamp(LEAST, MOST)
    }

    /// Returns the time to wait for the answer to an ask that was repeated so
    /// often.
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

    #[test]
    fn first_answer_is_expected_when_another_would_have_come() {
        let ms = Duration::from_millis;
        let mut trip = RoundTrip::default();
        assert_eq!(trip.silence(), INITIAL);
        for (took, silence) in [(0, LEAST), (8, ms(16)), (99, INITIAL)] {
            trip.guess(ms(took));
            assert_eq!(trip.silence(), silence);
        }
        trip.took(ms(400));
        assert_eq!(trip.silence(), ms(100));
    }

    #[test]
    fn answers_to_what_was_asked_twice_raise_it_if_they_are_many() {
        let ms = Duration::from_millis;
        let mut trip = RoundTrip::default();
        (0..100).for_each(|_| trip.took(ms(20)));
        // Late enough to be the answer to the last.
        trip.took_again(ms(300), ms(10));
        assert_eq!((trip.mean(), trip.least()), (Some(ms(20)), ms(20)));
        trip.took_again(ms(300), ms(1));
        assert!(trip.mean() < Some(ms(23)), "{:?}", trip.mean());
        (0..100).for_each(|_| trip.took_again(ms(300), ms(1)));
        assert!(trip.mean() > Some(ms(250)), "{:?}", trip.mean());
    }
}
