//! Threads that want to run.

use std::collections::{BTreeMap, BTreeSet};

/// State of a thread, as it is seen at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// The thread runs, or would.
    Runs,
    /// The thread was stopped.
    StandsStill,
    /// The thread waits for something else.
    Sleeps,
}

/// Result of a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen<Id> {
    /// Threads that want to run, and for longer than a moment.
    pub wants: BTreeSet<Id>,
    /// Number of threads that run, would run or are stopped at this moment: however
    /// short each of them is, together they are load.
    pub load: usize,
}

/// Periods for which a thread that wanted to run, and sleeps, is known for it: a minute, usually.
const KNOWN: u32 = 12;

/// Tells, a look at a time, which threads want to run: those seen to at two looks on
/// end. One that runs for less than that would wait for its turn among those that do not.
/// A stopped one wanted to then, and still does when it is let
/// go. One that wanted to and has slept since, for a minute at most, does as soon as it is
/// seen running: of those that wait for a lock dozens wake at one moment, and until a
/// second look they would have the host read back what all of them use.
#[derive(Clone, Debug)]
pub struct Wants<Id> {
    before: BTreeSet<Id>,
    /// Threads that have wanted to run, and the periods since.
    known: BTreeMap<Id, u32>,
}

impl<Id> Default for Wants<Id> {
    fn default() -> Self {
        Self {
            before: BTreeSet::new(),
            known: BTreeMap::new(),
        }
    }
}

impl<Id: Copy + Ord> Wants<Id> {
    /// Looks. One may be seen several times, as a process with several threads is.
    /// One that is not seen is forgotten.
    pub fn look(&mut self, seen: impl IntoIterator<Item = (Id, ThreadState)>) -> Seen<Id> {
        let before = std::mem::take(&mut self.before);
        let known = std::mem::take(&mut self.known);
        let mut wants = BTreeSet::new();
        for (id, doing) in seen {
            if let Some(periods) = known.get(&id) {
                self.known.entry(id).or_insert(*periods);
            }
            match doing {
                ThreadState::Sleeps => continue,
                ThreadState::Runs if !before.contains(&id) && !known.contains_key(&id) => {}
                ThreadState::Runs | ThreadState::StandsStill => {
                    wants.insert(id);
                    self.known.insert(id, 0);
                }
            }
            self.before.insert(id);
        }
        Seen {
            wants,
            load: self.before.len(),
        }
    }

    /// Ends a period.
    pub fn period(&mut self) {
        self.known.retain(|_, periods| {
            *periods += 1;
            *periods <= KNOWN
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ThreadState::{Runs, Sleeps, StandsStill};

    #[test]
    fn only_who_runs_at_two_looks_on_end_wants_to() {
        let mut wants = Wants::default();
        let mut look = |doing| !wants.look([(1, doing)]).wants.is_empty();
        assert_eq!(
            [Runs, Sleeps, Runs, Sleeps, Runs, Runs, Runs].map(&mut look),
            [false, false, false, false, false, true, true]
        );
    }

    #[test]
    fn who_wanted_to_lately_is_seen_to_at_once_and_a_minute_later_is_not() {
        let mut wants = Wants::default();
        let mut asleep = |periods| {
            assert!(wants.look([(1, StandsStill)]).wants.contains(&1));
            for _ in 0..periods {
                assert!(wants.look([(1, Sleeps)]).wants.is_empty());
                wants.period();
            }
            !wants.look([(1, Runs)]).wants.is_empty()
        };
        assert_eq!([1, KNOWN, KNOWN + 1].map(&mut asleep), [true, true, false]);
        assert!(wants.look([]).wants.is_empty());
        assert!(wants.look([(1, Runs)]).wants.is_empty(), "it is another");
    }

    #[test]
    fn whoever_stood_still_wants_to_run_when_it_is_let_go() {
        let mut wants = Wants::default();
        let mut look = |doing| !wants.look([(1, doing)]).wants.is_empty();
        assert_eq!([StandsStill, Runs, Runs].map(&mut look), [true; 3]);
        assert_eq!([StandsStill, Sleeps].map(&mut look), [true, false]);
    }

    #[test]
    fn one_of_its_threads_is_enough_and_numbers_that_went_are_forgotten() {
        let mut wants = Wants::default();
        let process = [(1, Sleeps), (1, Runs), (1, Sleeps)];
        assert!(wants.look(process).wants.is_empty());
        assert_eq!(wants.look(process).wants, BTreeSet::from([1]));
        assert!(wants.look([]).wants.is_empty());
        assert!(wants.look(process).wants.is_empty());
    }

    #[test]
    fn many_that_run_for_a_moment_are_load() {
        let mut wants = Wants::default();
        for look in 0..3 {
            let new = (0..9).map(|n| (10 * look + n, Runs));
            let seen = wants.look(new.chain([(1_000, Sleeps)]));
            assert_eq!((seen.wants.len(), seen.load), (0, 9));
        }
    }
}
