//! Sends at the rate at which bytes arrive.

use super::{Backlog, Feedback, FlowControl, Rate, RateBounds};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Rounds that the best rate seen is remembered.
const MEMORY: usize = 10;
/// Gains of the steady phase, a round each: look for more, give back what
/// that left in the queues, then keep to it.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// At first the rate doubles each round.
const STARTUP: f64 = 2.0;
/// A link is full when doubling the rate brings less than this more.
const STILL_GROWING: f64 = 1.25;
/// Rounds without growth after which the start is over.
const PLATEAU: u8 = 3;
/// More loss than this is not a bad link but a full one.
const CONGESTED: f64 = 0.08;
/// Part of the rate that is left then.
const RETREAT: f64 = 0.7;
/// Factor by which the bound that a retreat sets grows, each round.
const RECOVERY: f64 = 1.1;
/// Packets whose fate says something about loss.
const ENOUGH: u64 = 16;
/// More loss than this ends the start before the round is over, which over a long link lasts
/// long: no bad link loses that much of so many.
const OVERRUN: (f64, u64) = (0.16, 128);
/// Bounds of a round: the meter of the clients averages over 20 ms.
const ROUND: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// The rate is the best that arrived lately, times a gain that goes through a
/// cycle. Loss alone changes nothing unless much is lost.
#[derive(Debug)]
pub struct DeliveryLaw {
    bounds: RateBounds,
    phase: Phase,
    /// Best rate of each of the last rounds.
    best: VecDeque<u64>,
    /// Set while the link was found to be full.
    ceiling: Option<f64>,
    round: Round,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Rounds without growth, and the best rate before them.
    Startup { flat: u8, before: u64 },
    /// Place in the cycle.
    Steady { at: usize },
}

/// Observations of a round.
#[derive(Debug)]
struct Round {
    ends: Instant,
    best: u64,
    backlog: Backlog,
    sent: u64,
    lost: u64,
}

impl Round {
    fn new(ends: Instant) -> Self {
        Self {
            ends,
            best: 0,
            backlog: Backlog::RanDry,
            sent: 0,
            lost: 0,
        }
    }
}

impl DeliveryLaw {
    /// Starts at the bounds' start, and doubles from there.
    pub fn new(bounds: RateBounds, now: Instant) -> Self {
        Self {
            bounds,
            phase: Phase::Startup { flat: 0, before: 0 },
            best: VecDeque::new(),
            ceiling: None,
            round: Round::new(now + ROUND.0),
        }
    }

    fn best(&self) -> u64 {
        let best = self.best.iter().copied().max().unwrap_or(0);
        best.max(self.round.best)
    }

    fn current(&self) -> Rate {
        let best = self.best() as f64;
        let wanted = match self.phase {
            Phase::Startup { .. } => (best * STARTUP).max(self.bounds.start.0 as f64),
            Phase::Steady { at } => best * CYCLE[at % CYCLE.len()],
        };
        let wanted = wanted.min(self.ceiling.unwrap_or(f64::MAX));
        // Saturates, and is never negative.
        #[expect(clippy::cast_possible_truncation)]
        let wanted = wanted as u64;
        Rate(self.bounds.clamp(wanted))
    }

    fn end_round(&mut self, ends: Instant) {
        let Rate(rate) = self.current();
        let round = std::mem::replace(&mut self.round, Round::new(ends));
        let loss = round.lost as f64 / round.sent.max(1) as f64;
        let congested = round.sent >= ENOUGH && loss > CONGESTED;
        if congested {
            // What still arrives is what the link carries.
            let left = (rate as f64 * RETREAT).max(round.best as f64 * RETREAT);
            self.ceiling = Some(left);
        } else if round.sent >= ENOUGH {
            let relaxed = self.ceiling.map(|ceiling| ceiling * RECOVERY);
            self.ceiling = relaxed.filter(|ceiling| *ceiling < self.best() as f64 * 1.5);
        }
        // A round that ran dry says nothing about the link, unless that it can
        // carry more than we knew; and nothing about whether it is full.
        let dry = round.backlog == Backlog::RanDry;
        if dry && round.best <= self.best() {
            return;
        }
        self.best.push_back(round.best);
        if self.best.len() > MEMORY {
            self.best.pop_front();
        }
        if dry {
            return;
        }
        self.phase = match self.phase {
            Phase::Startup { .. } if congested => Phase::Steady { at: 1 },
            Phase::Startup { before, .. } if round.best as f64 > before as f64 * STILL_GROWING => {
                Phase::Startup {
                    flat: 0,
                    before: round.best,
                }
            }
            Phase::Startup { flat, before } if flat + 1 < PLATEAU => Phase::Startup {
                flat: flat + 1,
                before,
            },
            Phase::Startup { .. } => Phase::Steady { at: 1 },
            Phase::Steady { at } => Phase::Steady {
                at: (at + 1) % CYCLE.len(),
            },
        };
    }
}

impl FlowControl for DeliveryLaw {
    fn rate(&mut self, _: Instant) -> Rate {
        self.current()
    }

    fn report(&mut self, feedback: Feedback, now: Instant) {
        let round = &mut self.round;
        round.best = round.best.max(feedback.mean.0);
        // Clients say so, and can say anything.
        round.sent = round.sent.saturating_add(feedback.sent);
        round.lost = round.lost.saturating_add(feedback.lost.min(feedback.sent));
        round.backlog = feedback.backlog;
        let (overrun, many) = OVERRUN;
        let overruns = matches!(self.phase, Phase::Startup { .. })
            && round.sent >= many
            && round.lost as f64 > round.sent as f64 * overrun;
        if now >= round.ends || overruns {
            let length = (feedback.round_trip * 2).clamp(ROUND.0, ROUND.1);
            self.end_round(now + length);
        }
    }

    fn lost(&mut self, _: Rate, _: Instant) {
        // Reports say how much is lost, which is what counts here.
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::PaperLaw;

    const MIB: u64 = 1 << 20;

    /// Mean rate that arrives in the last 2 of 4 s on a link that carries
    /// `capacity` and loses `loss` of what it carries.
    fn arrives(law: &mut dyn FlowControl, capacity: u64, loss: f64, mut now: Instant) -> u64 {
        let (step, mut arrived, mut fraction) = (Duration::from_millis(10), 0, 0.0);
        for tick in 0..400 {
            let Rate(rate) = law.rate(now);
            let carried = rate.min(capacity) as f64 * (1.0 - loss);
            let sent = rate / 100 / 1400 + 1;
            fraction += sent as f64 * (1.0 - carried / rate as f64);
            #[expect(clippy::cast_possible_truncation)]
            let (lost, carried) = (fraction as u64, carried as u64);
            fraction -= lost as f64;
            now += step;
            let mean = Rate(carried);
            let feedback = Feedback {
                mean,
                sent,
                lost,
                backlog: Backlog::Enough,
                round_trip: Duration::from_millis(2),
            };
            law.report(feedback, now);
            if lost > 0 {
                law.lost(mean, now);
            }
            if tick >= 200 {
                arrived += carried / 200;
            }
        }
        arrived
    }

    #[test]
    fn more_packets_than_can_be_counted_do_no_harm() {
        let now = Instant::now();
        let mut law = DeliveryLaw::new(RateBounds::default(), now);
        for n in 0..100 {
            let feedback = Feedback {
                mean: Rate(u64::MAX),
                sent: u64::MAX,
                lost: u64::MAX,
                backlog: Backlog::Enough,
                round_trip: Duration::MAX / 4,
            };
            law.report(feedback, now + Duration::from_millis(n));
        }
        let rate = law.rate(now);
        assert!((RateBounds::default().least..=RateBounds::default().most).contains(&rate));
    }

    #[test]
    fn link_that_loses_one_in_a_hundred_is_filled_where_the_papers_law_starves() {
        for capacity in [4 * MIB, 100 * MIB, 1000 * MIB] {
            let now = Instant::now();
            let bounds = RateBounds::default();
            let ours = arrives(&mut DeliveryLaw::new(bounds, now), capacity, 0.01, now);
            let paper = arrives(&mut PaperLaw::new(bounds, now), capacity, 0.01, now);
            assert!(ours > capacity * 8 / 10, "{ours} of {capacity}");
            assert!(paper < ours, "{paper}, ours {ours}, of {capacity}");
        }
    }

    #[test]
    fn much_loss_makes_it_give_way_and_none_lets_it_come_back() {
        let now = Instant::now();
        let mut law = DeliveryLaw::new(RateBounds::default(), now);
        arrives(&mut law, 100 * MIB, 0.0, now);
        let Rate(before) = law.rate(now);
        let report = |lost| Feedback {
            mean: Rate(50 * MIB),
            sent: 100,
            lost,
            backlog: Backlog::Enough,
            round_trip: Duration::ZERO,
        };
        // Long after the rounds of before.
        let mut then = now + Duration::from_secs(60);
        law.report(report(50), then);
        then += Duration::from_secs(1);
        law.report(report(50), then);
        let Rate(after) = law.rate(then);
        assert!(after < before * 8 / 10, "{after} of {before}");
        let again = arrives(&mut law, 100 * MIB, 0.0, then);
        assert!(again > 80 * MIB, "{again}");
    }

    #[test]
    fn a_start_that_overruns_the_link_is_over_as_soon_as_the_loss_is_reported() {
        let now = Instant::now();
        let mut law = DeliveryLaw::new(RateBounds::default(), now);
        let report = |mean, lost| Feedback {
            mean: Rate(mean),
            sent: 200,
            lost,
            backlog: Backlog::Enough,
            round_trip: Duration::from_millis(80),
        };
        law.report(report(20 * MIB, 0), now + Duration::from_millis(25));
        assert_eq!(law.rate(now), Rate(40 * MIB));
        // The round ends 160 ms later.
        law.report(report(24 * MIB, 80), now + Duration::from_millis(50));
        let Rate(rate) = law.rate(now);
        assert!(rate <= 24 * MIB, "{rate}");
    }

    #[test]
    fn one_page_at_a_time_is_never_held_back() {
        let now = Instant::now();
        let mut law = DeliveryLaw::new(RateBounds::default(), now);
        for i in 0..100 {
            let feedback = Feedback {
                mean: Rate(10_000 + i * 1000),
                sent: 3,
                lost: 0,
                backlog: Backlog::RanDry,
                round_trip: Duration::ZERO,
            };
            law.report(feedback, now + Duration::from_millis(i * 30));
        }
        assert!(law.rate(now) >= RateBounds::default().start);
    }

    #[test]
    fn having_little_to_send_does_not_slow_it_down() {
        let now = Instant::now();
        let mut law = DeliveryLaw::new(RateBounds::default(), now);
        arrives(&mut law, 100 * MIB, 0.0, now);
        let then = now + Duration::from_secs(60);
        for i in 0..100 {
            let feedback = Feedback {
                mean: Rate(10_000),
                sent: 1,
                lost: 0,
                backlog: Backlog::RanDry,
                round_trip: Duration::ZERO,
            };
            law.report(feedback, then + Duration::from_millis(i * 30));
        }
        assert!(law.rate(then).0 > 50 * MIB);
    }
}
