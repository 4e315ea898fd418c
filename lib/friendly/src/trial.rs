//! Trial whether it helps to ask for less than one thread.
//!
//! ```text
//! Rests(n) --n periods--> Ready --congestion--> Tries(from, n)
//!    ^                      ^                    |   |   ^ |
//!    |                      +--no congestion-----+   |   +-+ a fifth less slow
//!    +-----n periods, and no less slow---------------+
//! ```
//!
//! Threads cost memory, and CPUs that others wait for, and nothing is lost by stopping
//! some. With less than one the guest stands still at times: it is worth it if the host
//! gets faster by it, as it does when memory is what is short. If something else slows it
//! down, such as CPUs that many share, or a neighbour that does not yield, it is work lost.

use crate::{Congestion, Sense};

/// Part of the slowdown that has to be left after a trial, or less, for it to have
/// helped.
const HELPED: f64 = 0.8;
/// Periods of a trial: time for what was paged out to be read back.
const TRIAL: u32 = 8;
/// Periods until the next after one that did not help; twice as many after each more,
/// up to the last.
const REST: (u32, u32) = (12, 192);

/// Tries.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    stage: Stage,
    next_rest: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Ready,
    Tries { from: f64, left: u32 },
    Rests(u32),
}

/// Demand that is permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Less than one thread.
    Less,
    /// No less than that.
    Enough,
}

impl Trial {
    pub(crate) fn new() -> Self {
        Self {
            stage: Stage::Ready,
            next_rest: REST.0,
        }
    }

    /// Ends a period, in which no more was asked for than one thread.
    pub(crate) fn step(&mut self, sense: Sense) -> Verdict {
        let (stage, verdict) = match (self.stage, sense.congestion) {
            (Stage::Tries { .. }, Congestion::No) => {
                self.next_rest = REST.0;
                (Stage::Ready, Verdict::Less)
            }
            (Stage::Ready, Congestion::No) => (Stage::Ready, Verdict::Less),
            (Stage::Tries { from, .. }, Congestion::Yes) if sense.slowdown <= HELPED * from => {
                self.next_rest = REST.0;
                (began(sense), Verdict::Less)
            }
            (Stage::Tries { from, left }, Congestion::Yes) if left > 1 => {
                let left = left - 1;
                (Stage::Tries { from, left }, Verdict::Less)
            }
            (Stage::Tries { .. }, Congestion::Yes) => {
                let rest = self.next_rest;
                self.next_rest = (2 * rest).min(REST.1);
                (Stage::Rests(rest), Verdict::Enough)
            }
            (Stage::Ready, Congestion::Yes) => (began(sense), Verdict::Less),
            (Stage::Rests(left), _) if left > 1 => (Stage::Rests(left - 1), Verdict::Enough),
            (Stage::Rests(_), _) => (Stage::Ready, Verdict::Enough),
        };
        self.stage = stage;
        verdict
    }
}

fn began(sense: Sense) -> Stage {
    Stage::Tries {
        from: sense.slowdown,
        left: TRIAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn congested(slowdown: f64) -> Sense {
        Sense {
            congestion: Congestion::Yes,
            slowdown,
            room: 1.0 - slowdown,
            busy: false,
        }
    }

    const CALM: Sense = Sense {
        congestion: Congestion::No,
        slowdown: 0.8,
        room: 1.0,
        busy: false,
    };

    /// Periods of a thousand in which less may be asked for.
    fn less(slowdown: impl Fn(u32) -> f64) -> usize {
        let mut trial = Trial::new();
        let verdicts = (0..1_000).map(|period| trial.step(congested(slowdown(period))));
        verdicts.filter(|one| *one == Verdict::Less).count()
    }

    #[test]
    fn what_does_not_help_is_tried_ever_less_often() {
        let tried = less(|_| 2.0);
        assert!((30..80).contains(&tried), "{tried}");
    }

    #[test]
    fn what_helps_is_gone_on_with() {
        // A tenth less in each period.
        assert_eq!(
            less(|period| 1e50 * 0.9f64.powi(period.cast_signed())),
            1_000
        );
    }

    #[test]
    fn after_congestion_a_trial_begins_at_once() {
        let mut trial = Trial::new();
        for _ in 0..100 {
            assert_eq!(trial.step(congested(3.0)), Verdict::Less);
            assert_eq!(trial.step(CALM), Verdict::Less);
        }
    }
}
