//! When a VM's vCPUs are frozen at all.
//!
//! ```text
//! Enforcing --blocks often--> Down(until) --blocks less, time over--> Enforcing
//!                              ^--still blocks often, twice as long--+
//! ```
//!
//! A guest that blocks when it waits gives its CPU away by itself, and loses two
//! thirds of its speed if it is also frozen: it is let go. Reads no clock.

use forkyard_sched::Nanos;

/// Sleeps of a vCPU a second above which it is let go.
const OFTEN: f64 = 200.0;
/// How long it is let go at first, and at most.
const FIRST: Nanos = Nanos::secs(5);
const LONGEST: Nanos = Nanos::secs(320);

/// What is done with a VM now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Its vCPUs are frozen when it is not their turn.
    Enforcing,
    /// They are not, until this instant at least.
    Down {
        /// When it is looked at again.
        until: Nanos,
    },
}

/// Decides it.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    step: Step,
    next: Nanos,
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            step: Step::Enforcing,
            next: FIRST,
        }
    }
}

impl Steps {
    /// What is done now.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Looks at how often each vCPU slept, on average, in the second before.
    pub fn review(&mut self, sleeps: f64, now: Nanos) -> Step {
        let often = sleeps > OFTEN;
        match self.step {
            Step::Enforcing if often => self.down(now),
            Step::Down { until } if until <= now && often => self.down(now),
            Step::Down { until } if until <= now => {
                self.step = Step::Enforcing;
                self.next = FIRST;
            }
            Step::Enforcing | Step::Down { .. } => {}
        }
        self.step
    }

    fn down(&mut self, now: Nanos) {
        self.step = Step::Down {
            until: now + self.next,
        };
        self.next = self.next.scale(2, 1).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_blocks_often_is_let_go_for_longer_each_time() {
        let mut steps = Steps::default();
        assert_eq!(steps.review(OFTEN, Nanos::ZERO), Step::Enforcing);
        let down = |until| Step::Down { until };
        assert_eq!(steps.review(OFTEN + 1.0, Nanos::ZERO), down(Nanos::secs(5)));
        assert_eq!(steps.review(1e4, Nanos::secs(4)), down(Nanos::secs(5)));
        assert_eq!(steps.review(1e4, Nanos::secs(5)), down(Nanos::secs(15)));
        assert_eq!(steps.review(0.0, Nanos::secs(14)), down(Nanos::secs(15)));
        assert_eq!(steps.review(0.0, Nanos::secs(15)), Step::Enforcing);
        assert_eq!(steps.review(1e4, Nanos::secs(16)), down(Nanos::secs(21)));
    }
}
