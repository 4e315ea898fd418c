//! Conditions under which a VM's vCPUs are frozen at all.
//!
//! ```text
//! Enforcing --blocks often, twice on end--> Down(until) --blocks less, time over--> Enforcing
//!   | ^                                        |   ^--still blocks often, twice as long--+
//!   | +--hardly sleeps, after a fifth of it----'
//!   | +--more awake than CPUs-- Alone
//!   +--none has waited for a while----^
//! ```
//!
//! A guest that blocks when it waits gives its CPU away by itself, and loses half its
//! speed or more if it is also frozen: it is let go. One that sleeps often and never
//! waits for turns loses nothing. Where none waits for a CPU there is nothing to
//! decide: all are let go until one does. Reads no clock.

use forkyard_sched::Nanos;

/// Sleeps of a vCPU a second above which it is let go.
const OFTEN: f64 = 200.0;
/// The part of its time that it must have slept: one that computes sleeps often, too,
/// a few µs at a time, for a lock of its QEMU.
const LONG: f64 = 0.1;
/// The part of its time that it must have waited for turns.
const MUCH: f64 = 0.03;
/// The part of its time asleep below which it was let go by mistake: a job that begins
/// while others compute looks like one that blocks.
pub(crate) const HARDLY: f64 = 0.03;
/// Time it is let go at first, and at most.
const FIRST: Nanos = Nanos::secs(5);
const LONGEST: Nanos = Nanos::secs(320);
/// Time in which no vCPU must have waited before all are let go.
const CALM: Nanos = Nanos::secs(3);

/// Recent habits of a VM's vCPUs, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Habits {
    /// Times a second that one slept.
    pub sleeps: f64,
    /// The part of the time that one slept.
    pub asleep: f64,
    /// The part of the time that one waited for its turn.
    pub waits: f64,
}

/// Present treatment of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The VM's vCPUs are frozen when it is not their turn.
    Enforcing,
    /// They are not, until this instant at least: they block often.
    Down {
        /// Time of the next look.
        until: Nanos,
    },
    /// They are not: none waits for a CPU.
    Alone,
}

/// Decides it.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    step: Step,
    next: Nanos,
    /// True if it blocked when it was last looked at, while enforced: once is no
    /// habit, for every job has a beginning.
    blocked: bool,
    /// Time from which one that is down may be found not to block after all.
    early: Nanos,
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            step: Step::Enforcing,
            next: FIRST,
            blocked: false,
            early: Nanos::ZERO,
        }
    }
}

impl Steps {
    /// Returns the present treatment.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Looks at what it did lately.
    pub fn review(&mut self, habits: Habits, now: Nanos) -> Step {
        let blocks = habits.sleeps > OFTEN && habits.asleep > LONG;
        match self.step {
            Step::Enforcing => {
                let blocks = blocks && habits.waits > MUCH;
                if std::mem::replace(&mut self.blocked, blocks) && blocks {
                    self.down(now);
                }
            }
            Step::Down { until } if until <= now && blocks => self.down(now),
            // The next time, it will be for longer: it may do both in turns.
            Step::Down { until } if now < until => {
                if self.early <= now && habits.asleep < HARDLY {
                    self.step = Step::Enforcing;
                }
            }
            Step::Down { until } if until <= now => {
                self.step = Step::Enforcing;
                self.next = FIRST;
            }
            Step::Down { .. } | Step::Alone => {}
        }
        self.step
    }

    /// Notes that none waits for a CPU, and none has for this long. One that is down
    /// stays so, and is looked at again in its time.
    pub fn quiet(&mut self, since: Nanos, now: Nanos) -> Step {
        if self.step == Step::Enforcing && now.minus(since) >= CALM {
            self.step = Step::Alone;
        }
        self.step
    }

    /// There are more awake than CPUs.
    pub fn contended(&mut self) -> Step {
        if self.step == Step::Alone {
            self.step = Step::Enforcing;
        }
        self.step
    }

    fn down(&mut self, now: Nanos) {
        self.blocked = false;
        self.step = Step::Down {
            until: now + self.next,
        };
        self.early = now + self.next.scale(1, 5);
        self.next = self.next.scale(2, 1).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looked at twice.
    fn twice(steps: &mut Steps, habits: Habits, now: Nanos) -> Step {
        assert_eq!(
            steps.review(habits, now),
            Step::Enforcing,
            "once is no habit"
        );
        steps.review(habits, now)
    }

    /// Sleeps a quarter of the time, and waits half of it for its turn.
    fn sleeping(sleeps: f64) -> Habits {
        Habits {
            sleeps,
            asleep: 0.25,
            waits: 0.5,
        }
    }

    #[test]
    fn a_guest_that_blocks_often_is_let_go_for_longer_each_time() {
        let mut steps = Steps::default();
        let (often, seldom) = (sleeping(OFTEN + 1.0), sleeping(OFTEN));
        assert_eq!(steps.review(seldom, Nanos::ZERO), Step::Enforcing);
        let down = |until| Step::Down { until };
        assert_eq!(twice(&mut steps, often, Nanos::ZERO), down(Nanos::secs(5)));
        assert_eq!(steps.review(often, Nanos::secs(4)), down(Nanos::secs(5)));
        let unfrozen = Habits {
            waits: 0.0,
            ..often
        };
        assert_eq!(
            steps.review(unfrozen, Nanos::secs(5)),
            down(Nanos::secs(15))
        );
        assert_eq!(steps.review(seldom, Nanos::secs(14)), down(Nanos::secs(15)));
        assert_eq!(steps.review(seldom, Nanos::secs(15)), Step::Enforcing);
        let again = twice(&mut steps, often, Nanos::secs(16));
        assert_eq!(again, down(Nanos::secs(21)));
    }

    #[test]
    fn one_that_was_let_go_by_mistake_is_soon_enforced_again_but_not_over_and_over() {
        let mut steps = Steps::default();
        let asleep = |asleep| Habits {
            asleep,
            ..sleeping(OFTEN + 1.0)
        };
        let (often, never) = (asleep(0.25), asleep(0.0));
        let mut now = Nanos::ZERO;
        for stay in [1, 2, 4] {
            assert!(matches!(twice(&mut steps, often, now), Step::Down { .. }));
            let back = now + Nanos::secs(stay);
            let before = back.minus(Nanos(1));
            assert!(matches!(steps.review(never, before), Step::Down { .. }));
            // What sleeps now and then may only do so because it is let go.
            assert!(matches!(
                steps.review(asleep(HARDLY), back),
                Step::Down { .. }
            ));
            assert_eq!(steps.review(never, back), Step::Enforcing);
            now = back;
        }
    }

    #[test]
    fn what_is_done_now_and_then_is_no_habit() {
        let mut steps = Steps::default();
        for _ in 0..10 {
            for habits in [sleeping(1e4), sleeping(0.0)] {
                assert_eq!(steps.review(habits, Nanos::ZERO), Step::Enforcing);
            }
        }
    }

    #[test]
    fn one_that_sleeps_often_and_never_for_long_computes() {
        let mut steps = Steps::default();
        let habits = Habits {
            asleep: LONG,
            ..sleeping(1e4)
        };
        assert_eq!(twice(&mut steps, habits, Nanos::ZERO), Step::Enforcing);
        let down = twice(&mut steps, sleeping(1e4), Nanos::ZERO);
        assert!(matches!(down, Step::Down { .. }));
    }

    #[test]
    fn one_that_does_not_wait_for_turns_may_sleep_as_often_as_it_likes() {
        let mut steps = Steps::default();
        let habits = Habits {
            waits: MUCH,
            ..sleeping(1e6)
        };
        assert_eq!(twice(&mut steps, habits, Nanos::ZERO), Step::Enforcing);
    }

    #[test]
    fn where_nobody_waits_everybody_is_let_go_until_somebody_does() {
        let mut steps = Steps::default();
        let since = Nanos::secs(1);
        let calm = since + CALM;
        assert_eq!(steps.quiet(since, calm.minus(Nanos(1))), Step::Enforcing);
        assert_eq!(steps.quiet(since, calm), Step::Alone);
        assert_eq!(
            steps.review(sleeping(1e4), calm),
            Step::Alone,
            "nobody is frozen"
        );
        assert_eq!(steps.contended(), Step::Enforcing);
        let down = twice(&mut steps, sleeping(1e4), calm);
        assert_eq!(steps.quiet(Nanos::ZERO, calm), down);
        assert_eq!(steps.contended(), down, "it has time of its own");
    }
}
