//! SnowFlock's law.

use super::{Feedback, FlowControl, Rate, RateBounds};
use std::time::{Duration, Instant};

/// Added every [`STEP`] (SnowFlock, 3.5).
const GROWTH: u64 = 10_000;
/// See [`GROWTH`].
const STEP: Duration = Duration::from_millis(10);

/// Grows by 10 KB/s every 10 ms; on loss falls to 3/4 of the mean of its
/// clients' rates.
#[derive(Debug)]
pub struct PaperLaw {
    bounds: RateBounds,
    rate: u64,
    grown: Instant,
}

impl PaperLaw {
    /// Starts at the bounds' start; the paper does not say where.
    pub fn new(bounds: RateBounds, now: Instant) -> Self {
        Self {
            bounds,
            rate: bounds.clamp(bounds.start.0),
            grown: now,
        }
    }
}

impl FlowControl for PaperLaw {
    fn rate(&mut self, now: Instant) -> Rate {
        let steps = now.saturating_duration_since(self.grown).as_micros() / STEP.as_micros();
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.grown += STEP * steps;
        let grown = self.rate.saturating_add(GROWTH * u64::from(steps));
        self.rate = self.bounds.clamp(grown);
        Rate(self.rate)
    }

    fn report(&mut self, _: Feedback, _: Instant) {}

    fn lost(&mut self, mean: Rate, now: Instant) {
        let Rate(rate) = self.rate(now);
        // A client may have heard more than one server; never a reason to grow.
        self.rate = self.bounds.clamp((mean.0 / 4 * 3).min(rate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_the_papers() {
        let start = Instant::now();
        let mut law = PaperLaw::new(RateBounds::default(), start);
        let Rate(first) = law.rate(start);
        assert_eq!(law.rate(start + Duration::from_millis(9)), Rate(first));
        let second = start + Duration::from_secs(1);
        assert_eq!(law.rate(second), Rate(first + 1_000_000));
        law.lost(Rate(8_000_000), second);
        assert_eq!(law.rate(second), Rate(6_000_000));
        law.lost(Rate(0), second);
        assert_eq!(law.rate(second), RateBounds::default().least);
        law.lost(Rate(1 << 40), second);
        assert_eq!(
            law.rate(second),
            RateBounds::default().least,
            "loss never speeds up"
        );
    }
}
