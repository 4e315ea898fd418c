//! Rate at which a server may send, one way: to the group, or to one member.
//!
//! Two laws behind one interface. [`PaperLaw`] is SnowFlock's (3.5): the rate
//! grows by 10 KB/s every 10 ms, and falls to 3/4 of the mean of the rates
//! its clients report when a client asks again for what was sent. Two things are wrong
//! with it: it takes a loss for congestion, so that a link that loses one packet
//! in a hundred is never filled; and what clients report is what they were sent, so
//! that a server with little to send takes a loss as a reason to send hardly
//! anything. [`DeliveryLaw`] sends at the rate at which bytes were seen
//! to arrive while there was enough to send, looks for more from time to time,
//! and gives way when more is lost than a bad link explains.
//!
//! No clock is read here: the caller passes `now`.

mod delivery;
mod paper;

pub use delivery::DeliveryLaw;
pub use paper::PaperLaw;

use std::fmt;
use std::time::{Duration, Instant};

/// Bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(pub u64);

/// Between which rates a law has to stay, and where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateBounds {
    /// Not slower.
    pub least: Rate,
    /// At first.
    pub start: Rate,
    /// Not faster.
    pub most: Rate,
}

/// Content of a client's report on one way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Feedback {
    /// Mean of the rates that the clients reported last.
    pub mean: Rate,
    /// Packets sent to the client that reports, since its last report.
    pub sent: u64,
    /// Those of them that did not arrive.
    pub lost: u64,
    /// Backlog: whether there was enough to send.
    pub backlog: Backlog,
    /// From a question to its answer.
    pub round_trip: Duration,
}

/// Limit of a rate: the law, or having nothing to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backlog {
    /// There was always something to send.
    Enough,
    /// Not always.
    RanDry,
}

/// A law.
pub trait FlowControl: fmt::Debug + Send {
    /// The rate now. Called often; may be a good moment to let it grow.
    fn rate(&mut self, now: Instant) -> Rate;

    /// A client reports.
    fn report(&mut self, feedback: Feedback, now: Instant);

    /// A client asks again for what it should have: something was lost.
    /// `mean` is as in [`Feedback`].
    fn lost(&mut self, mean: Rate, now: Instant);
}

/// Law, and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowLaw {
    /// [`PaperLaw`].
    Paper(RateBounds),
    /// [`DeliveryLaw`].
    Delivery(RateBounds),
}

impl FlowLaw {
    /// A fresh one.
    pub fn start(self, now: Instant) -> Box<dyn FlowControl> {
        match self {
            Self::Paper(bounds) => Box::new(PaperLaw::new(bounds, now)),
            Self::Delivery(bounds) => Box::new(DeliveryLaw::new(bounds, now)),
        }
    }
}

impl Default for RateBounds {
    fn default() -> Self {
        Self {
            least: Rate(256 << 10),
            start: Rate(16 << 20),
            most: Rate(4 << 30),
        }
    }
}

impl RateBounds {
    fn clamp(self, rate: u64) -> u64 {
        rate.clamp(self.least.0, self.most.0.max(self.least.0))
    }
}

/// Turns a rate into moments: a bucket of bytes that may be sent now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    /// Negative: what was sent on credit.
    bytes: f64,
    at: Instant,
    /// True if an allowance was not used, since that was last asked.
    unused: bool,
}

/// Amount that may be sent at once after a pause.
const BURST: Duration = Duration::from_millis(2);
/// And at least.
const LEAST_BURST: f64 = 16.0 * 1024.0;

impl Bucket {
    pub fn new(now: Instant) -> Self {
        Self {
            bytes: LEAST_BURST,
            at: now,
            unused: true,
        }
    }

    /// Returns the time at which the next packet may go: now, or later.
    pub fn ready(&mut self, rate: Rate, now: Instant) -> Option<Instant> {
        let passed = now.saturating_duration_since(self.at);
        self.at = self.at.max(now);
        let rate = rate.0.max(1) as f64;
        let most = (rate * BURST.as_secs_f64()).max(LEAST_BURST);
        let filled = self.bytes + rate * passed.as_secs_f64();
        self.unused |= filled > most;
        self.bytes = filled.min(most);
        if self.bytes > 0.0 {
            return None;
        }
        let wait = Duration::from_secs_f64((-self.bytes / rate).min(1.0));
        Some(now + wait.max(Duration::from_micros(1)))
    }

    pub fn spend(&mut self, bytes: usize) {
        self.bytes -= bytes as f64;
    }

    /// Tells whether more might have been sent since the last call: then it was
    /// not the rate that held the sender back, but having nothing to send, or
    /// no processor to send it with.
    pub fn take_unused(&mut self) -> bool {
        std::mem::take(&mut self.unused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets of 1000 bytes that `bucket` lets go in a second.
    fn sent_in_a_second(rate: Rate) -> u64 {
        let start = Instant::now();
        let (mut bucket, mut now, mut sent) = (Bucket::new(start), start, 0);
        while now < start + Duration::from_secs(1) {
            match bucket.ready(rate, now) {
                Some(later) => now = later,
                None => {
                    bucket.spend(1000);
                    sent += 1000;
                }
            }
        }
        sent
    }

    #[test]
    fn bucket_keeps_its_rate_but_for_one_burst() {
        for rate in [100_000, 1_000_000, 100_000_000] {
            let sent = sent_in_a_second(Rate(rate));
            let burst = (rate / 500).max(17_000) + 1000;
            assert!(
                sent >= rate * 99 / 100 && sent <= rate + burst,
                "{sent} at {rate}"
            );
        }
    }
}
