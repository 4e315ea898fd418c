//! The guest's wall clock, by what the host says when it is asked.
//!
//! ```text
//! agent --asked (its own steady clock)--> host --asked, its wall clock--> agent
//! ```
//!
//! An answer is right to within half of the time it took, so it does not matter how long a guest
//! stood still before it asked, nor which clocksource it has: some stand still with their
//! vCPUs, others do not. A new VM takes the host's time. One that stood still is put forward by what its
//! steady clock has fallen behind the host's time since it last ran. That clock is not set: one
//! that its user set otherwise stays as far from the host's as it was.
//!
//! Every answer is compared so, whatever it was asked for. When a guest goes on, the daemon's
//! question whether it is there may be before its word that it stood still.

use crate::init::{Outcome, doing};
use forkyard_agent_link::ToHost;
use nix::{
    sys::time::TimeSpec,
    time::{ClockId, clock_gettime, clock_settime},
};
use std::fmt;

/// An answer that took no longer, in nanoseconds, is as good as any.
const GOOD: u64 = 40_000_000;
/// Questions, until an answer is good.
const TRIES: u8 = 4;
/// Differences up to this, in nanoseconds, are not corrected.
const FINE: u64 = 1_000_000;

/// The clocks of a machine, in nanoseconds.
pub trait Clocks: fmt::Debug + Send {
    /// Time since 1970.
    fn wall(&self) -> i128;
    /// Time that is never set, and stands still with the guest.
    fn steady(&self) -> u64;
    /// Sets the time since 1970.
    fn set_wall(&mut self, ns: i128) -> Outcome;
}

/// Those of this kernel.
#[derive(Debug)]
pub struct Kernel;

impl Clocks for Kernel {
    fn wall(&self) -> i128 {
        read(ClockId::CLOCK_REALTIME)
    }

    fn steady(&self) -> u64 {
        u64::try_from(read(ClockId::CLOCK_MONOTONIC)).unwrap_or(0)
    }

    fn set_wall(&mut self, ns: i128) -> Outcome {
        let seconds = i64::try_from(ns / 1_000_000_000).map_err(doing("set the clock"))?;
        let rest = i64::try_from(ns % 1_000_000_000).map_err(doing("set the clock"))?;
        clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::new(seconds, rest))
            .map_err(doing("set the clock"))
    }
}

fn read(clock: ClockId) -> i128 {
    // These two clocks can always be read.
    clock_gettime(clock).map_or(0, |time| {
        i128::from(time.tv_sec()) * 1_000_000_000 + i128::from(time.tv_nsec())
    })
}

/// Distance from this guest's time to the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Host's time less the guest's, in nanoseconds.
    offset: i128,
    /// Lead of the guest's steady clock.
    lead: i128,
    /// Round trip of the answer, in nanoseconds.
    took: u64,
}

/// Result of an answer.
#[derive(Debug, PartialEq)]
pub enum Heard {
    /// Answer to no open question: a clone receives what its parent asked.
    Stale,
    /// Slow answer: the question is to be sent again.
    Again(ToHost),
    Known(Reading),
}

/// See the module.
#[derive(Debug)]
pub struct Clock {
    clocks: Box<dyn Clocks>,
    open: Option<Open>,
    /// The last answer: the distances to the host's time when this guest ran.
    before: Option<Reading>,
}

/// A question that has no good answer yet.
#[derive(Clone, Copy, Debug)]
struct Open {
    asked: u64,
    tries: u8,
    best: Option<Reading>,
}

impl Clock {
    pub fn new(clocks: Box<dyn Clocks>) -> Self {
        Self {
            clocks,
            open: None,
            before: None,
        }
    }

    /// A question to the host, in place of any that is open.
    pub fn ask(&mut self) -> ToHost {
        self.again(0, None)
    }

    fn again(&mut self, tries: u8, best: Option<Reading>) -> ToHost {
        let asked = self.clocks.steady();
        self.open = Some(Open { asked, tries, best });
        ToHost::AskTime { asked }
    }

    /// The host's answer to the question with this number.
    pub fn hear(&mut self, asked: u64, host: u64) -> Heard {
        let Some(open) = self.open.filter(|open| open.asked == asked) else {
            return Heard::Stale;
        };
        let took = self.clocks.steady().saturating_sub(asked);
        let now = i128::from(host) + i128::from(took / 2);
        let reading = Reading {
            offset: now - self.clocks.wall(),
            lead: now - i128::from(self.clocks.steady()),
            took,
        };
        let best = match open.best {
            Some(best) if best.took <= took => best,
            Some(_) | None => reading,
        };
        let tries = open.tries + 1;
        if best.took > GOOD && tries < TRIES {
            return Heard::Again(self.again(tries, Some(best)));
        }
        self.open = None;
        Heard::Known(best)
    }

    /// Takes the host's time.
    pub fn adopt(&mut self, reading: Reading) -> Outcome {
        self.before = Some(reading);
        self.shift(reading.offset)
    }

    /// Makes up for the time this guest stood still since the last answer, if it did. A guest of
    /// which nothing is known from before keeps its time.
    pub fn follow(&mut self, reading: Reading) -> Outcome {
        let Some(before) = self.before.replace(reading) else {
            return Ok(());
        };
        let behind = reading.lead - before.lead;
        // What the round trips of both may account for.
        let slack = before.took.max(reading.took).max(FINE);
        if behind.unsigned_abs() <= u128::from(slack) {
            return Ok(());
        }
        self.shift(behind)
    }

    fn shift(&mut self, ns: i128) -> Outcome {
        self.clocks.set_wall(self.clocks.wall() + ns)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    const S: i128 = 1_000_000_000;
    const MS: u64 = 1_000_000;

    /// Clocks that go when they are told to.
    #[derive(Clone, Debug, Default)]
    pub struct Fake(Arc<Mutex<(i128, u64)>>);

    impl Fake {
        pub fn pass(&self, ns: u64) {
            let mut clocks = self.0.lock().expect("no panic");
            clocks.0 += i128::from(ns);
            clocks.1 += ns;
        }

        pub fn wall_now(&self) -> i128 {
            self.0.lock().expect("no panic").0
        }
    }

    impl Clocks for Fake {
        fn wall(&self) -> i128 {
            self.wall_now()
        }

        fn steady(&self) -> u64 {
            self.0.lock().expect("no panic").1
        }

        fn set_wall(&mut self, ns: i128) -> Outcome {
            self.0.lock().expect("no panic").0 = ns;
            Ok(())
        }
    }

    fn asked(question: &ToHost) -> u64 {
        let ToHost::AskTime { asked } = question else {
            panic!("{question:?} is no question");
        };
        *asked
    }

    fn known(heard: Heard) -> Reading {
        let Heard::Known(reading) = heard else {
            panic!("{heard:?} is no reading");
        };
        reading
    }

    /// A question that the host answers with `host`, half way of `took`.
    fn ask(clock: &mut Clock, fake: &Fake, host: i128, took: u64) -> Heard {
        let question = asked(&clock.ask());
        fake.pass(took);
        clock.hear(question, u64::try_from(host).expect("after 1970"))
    }

    #[test]
    fn new_vm_takes_the_time_of_the_answer_and_half_of_what_it_took() {
        let fake = Fake::default();
        let mut clock = Clock::new(Box::new(fake.clone()));
        let reading = known(ask(&mut clock, &fake, 500 * S, 20 * MS));
        fake.pass(3 * MS);
        clock.adopt(reading).expect("sets");
        assert_eq!(fake.wall_now(), 500 * S + i128::from(13 * MS));
    }

    #[test]
    fn guest_that_stood_still_catches_up_and_keeps_the_time_its_user_set() {
        let fake = Fake::default();
        let mut clock = Clock::new(Box::new(fake.clone()));
        // 400 s behind the host, on purpose.
        let reading = known(ask(&mut clock, &fake, 400 * S, 0));
        clock.follow(reading).expect("nothing is known before");
        // 20 s pass for the host alone, then 1 s for both.
        fake.pass(1000 * MS);
        let reading = known(ask(&mut clock, &fake, 421 * S, 2 * MS));
        clock.follow(reading).expect("sets");
        let want = 21 * S + i128::from(MS);
        assert_eq!(fake.wall_now(), want);
    }

    #[test]
    fn standstill_shows_in_the_first_answer_and_what_its_user_sets_is_none() {
        let fake = Fake::default();
        let mut clock = Clock::new(Box::new(fake.clone()));
        let mut hear = |host, took| {
            let reading = known(ask(&mut clock, &fake, host, took));
            clock.follow(reading).expect("sets");
            fake.wall_now()
        };
        assert_eq!(hear(400 * S, 0), 0);
        // Its user sets it, and nothing stands still.
        fake.clone().set_wall(50 * S).expect("sets");
        assert_eq!(hear(400 * S, 0), 50 * S);
        // 20 s pass for the host alone; the next clock to ask is not the one that knows of it.
        assert_eq!(hear(420 * S, 0), 70 * S);
        assert_eq!(hear(420 * S, 0), 70 * S, "once");
        // A slow answer is no standstill.
        let after = hear(420 * S, 30 * MS);
        assert_eq!(after, 70 * S + i128::from(30 * MS));
    }

    #[test]
    fn guest_whose_clock_went_on_is_not_put_forward() {
        let fake = Fake::default();
        let mut clock = Clock::new(Box::new(fake.clone()));
        let reading = known(ask(&mut clock, &fake, 400 * S, 0));
        clock.follow(reading).expect("nothing is known before");
        fake.pass(20_000 * MS);
        let reading = known(ask(&mut clock, &fake, 420 * S, 0));
        clock.follow(reading).expect("nothing to do");
        assert_eq!(fake.wall_now(), 20 * S);
    }

    #[test]
    fn slow_answers_are_asked_for_again_and_the_quickest_counts() {
        let fake = Fake::default();
        let mut clock = Clock::new(Box::new(fake.clone()));
        let mut question = asked(&clock.ask());
        let mut took = [900, 300, 700, 500].into_iter();
        let reading = loop {
            fake.pass(took.next().expect("four tries") * MS);
            match clock.hear(question, 0) {
                Heard::Again(again) => question = asked(&again),
                Heard::Known(reading) => break reading,
                Heard::Stale => panic!("it was asked"),
            }
        };
        assert_eq!(reading.took, 300 * MS);
        assert_eq!(took.next(), None);
    }

    #[test]
    fn answer_to_what_a_parent_asked_is_stale() {
        let fake = Fake::default();
        let mut clock = Clock::new(Box::new(fake.clone()));
        let parents = asked(&clock.ask());
        fake.pass(MS);
        let own = asked(&clock.ask());
        assert_eq!(clock.hear(parents, 7), Heard::Stale);
        assert!(matches!(clock.hear(own, 7), Heard::Known(_)));
        assert_eq!(clock.hear(own, 7), Heard::Stale);
    }
}
