//! Admission of processes that begin.

use crate::ThreadState;
use std::collections::BTreeMap;

/// Decision on a process that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionDecision {
    /// The process runs.
    Goes,
    /// The process is stopped until its turn comes.
    Waits,
}

/// Admits those that begin between two looks, as many as there is room for. A process
/// that is stopped once it has worked for a while has memory by then, which is paged out
/// meanwhile and read back for its turn: of a hundred requests to a web server that may
/// answer three at a time, each would pay for it. One that waits before its first
/// instruction has next to none.
///
/// While any waits none overtakes: room is for those that wait.
#[derive(Clone, Debug)]
pub struct Admission<Id> {
    /// Number of processes that may still run, less than none where more run than
    /// may; None before the first look, when all that begin go.
    room: Option<i64>,
    /// Processes that have begun.
    known: BTreeMap<Id, Known>,
    /// Number of threads of all of them that are stopped.
    wait: usize,
}

/// A process that has begun.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// True if it is one of those that room is for: of several threads one that runs is
    /// enough.
    runs: bool,
    /// Number of its threads that are stopped.
    wait: usize,
}

impl<Id> Default for Admission<Id> {
    fn default() -> Self {
        Self {
            room: None,
            known: BTreeMap::new(),
            wait: 0,
        }
    }
}

impl<Id: Copy + Ord> Admission<Id> {
    /// A look: how many may run and how many do, and what each thread that is there
    /// does, by its process.
    pub fn look(
        &mut self,
        (may, run): (u32, u32),
        there: impl IntoIterator<Item = (Id, ThreadState)>,
    ) {
        self.open();
        self.room = Some(i64::from(may) - i64::from(run));
        for (id, doing) in there {
            let known = self.known.entry(id).or_default();
            match doing {
                ThreadState::Runs => known.runs = true,
                ThreadState::Sleeps => {}
                ThreadState::StandsStill => {
                    known.wait += 1;
                    self.wait += 1;
                }
            }
        }
    }

    /// Lets processes that begin go, until the next look.
    pub fn open(&mut self) {
        *self = Self::default();
    }

    /// Tells whether any process waits.
    pub fn anybody_waits(&self) -> bool {
        self.wait > 0
    }

    /// Returns the number of waiting processes that may go.
    pub fn room(&self) -> usize {
        let room = self.room.map(|room| usize::try_from(room).unwrap_or(0));
        room.unwrap_or(usize::MAX).min(self.wait)
    }

    /// One thread of each of these has waited, and goes.
    pub fn go(&mut self, ids: impl IntoIterator<Item = Id>) {
        let Some(room) = &mut self.room else { return };
        for id in ids {
            let known = self.known.entry(id).or_default();
            known.runs = true;
            *room -= 1;
            if known.wait > 0 {
                known.wait -= 1;
                self.wait -= 1;
            }
        }
    }

    /// Tells whether one that begins goes, whatever else is to be known of it: there is
    /// room, or it has begun before, and this is another program of the same process.
    pub fn lets_in(&self, id: Id) -> bool {
        let room = self.room.is_none_or(|room| room > 0);
        (room && self.wait == 0) || self.known.contains_key(&id)
    }

    /// One begins.
    pub fn begins(&mut self, id: Id) -> AdmissionDecision {
        let goes = self.lets_in(id);
        if let (false, Some(room)) = (self.known.contains_key(&id), &mut self.room) {
            let (runs, wait) = if goes { (true, 0) } else { (false, 1) };
            self.known.insert(id, Known { runs, wait });
            *room -= i64::from(runs);
            self.wait += wait;
        }
        if goes {
            AdmissionDecision::Goes
        } else {
            AdmissionDecision::Waits
        }
    }

    /// One has ended, whatever it did. Tells whether one that waits may now be let go.
    pub fn ends(&mut self, id: Id) -> bool {
        let Some(known) = self.known.remove(&id) else {
            return false;
        };
        self.wait -= known.wait;
        if let (true, Some(room)) = (known.runs, &mut self.room) {
            *room += 1;
        }
        known.runs && self.wait > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn looked(room: u32, run: &[u32], sleep: &[u32], still: &[u32]) -> Admission<u32> {
        let mut admission = Admission::default();
        let doing = |ids: &[u32], doing| ids.iter().map(|&id| (id, doing)).collect::<Vec<_>>();
        let there = [
            doing(run, ThreadState::Runs),
            doing(sleep, ThreadState::Sleeps),
            doing(still, ThreadState::StandsStill),
        ];
        admission.look((room, 0), there.concat());
        admission
    }

    #[test]
    fn before_the_first_look_and_once_opened_all_go() {
        let mut admission = Admission::default();
        assert!((0..100).all(|id| admission.begins(id) == AdmissionDecision::Goes));
        let mut admission = looked(0, &[], &[], &[50]);
        assert_eq!(admission.begins(1), AdmissionDecision::Waits);
        admission.open();
        assert_eq!(admission.begins(2), AdmissionDecision::Goes);
    }

    #[test]
    fn as_many_go_as_there_is_room_for() {
        let mut admission = looked(3, &[1, 2], &[3], &[]);
        let entries = [10, 11, 12, 13].map(|id| admission.begins(id));
        assert_eq!(
            entries,
            [
                AdmissionDecision::Goes,
                AdmissionDecision::Goes,
                AdmissionDecision::Goes,
                AdmissionDecision::Waits
            ]
        );
    }

    #[test]
    fn another_program_of_one_that_runs_or_sleeps_goes() {
        let mut admission = looked(0, &[1], &[2], &[50]);
        assert_eq!(
            [1, 2, 3].map(|id| admission.begins(id)),
            [
                AdmissionDecision::Goes,
                AdmissionDecision::Goes,
                AdmissionDecision::Waits
            ]
        );
    }

    #[test]
    fn who_ends_makes_room_once_and_nobody_overtakes_who_waits() {
        let mut admission = looked(0, &[1, 2], &[3], &[]);
        assert!(!admission.ends(1), "nobody waits");
        assert_eq!(admission.begins(10), AdmissionDecision::Goes);
        assert_eq!(admission.begins(11), AdmissionDecision::Waits);
        assert!(!admission.ends(3), "it slept");
        assert!(!admission.ends(99), "it is nobody");
        assert!(admission.ends(10));
        assert!(!admission.ends(10));
        assert_eq!(admission.begins(12), AdmissionDecision::Waits);
    }

    #[test]
    fn room_is_for_those_who_wait_and_who_begins_once_they_go_does_not() {
        let mut admission = looked(0, &[1, 2], &[], &[]);
        assert_eq!(
            [10, 11].map(|id| admission.begins(id)),
            [AdmissionDecision::Waits; 2]
        );
        assert_eq!(admission.room(), 0);
        assert!(admission.ends(1));
        assert_eq!(admission.room(), 1);
        admission.go([10]);
        assert_eq!(
            (admission.room(), admission.begins(12)),
            (0, AdmissionDecision::Waits)
        );
        assert!(admission.ends(2) && admission.ends(10));
        admission.go([11, 12]);
        assert!(!admission.anybody_waits() && !admission.lets_in(13));
        assert!(!admission.ends(11));
        assert_eq!(admission.begins(13), AdmissionDecision::Goes);
    }

    #[test]
    fn of_more_than_may_run_some_have_to_end_before_anybody_goes() {
        let mut admission = Admission::default();
        let run = [1, 2, 3, 4].map(|id| (id, ThreadState::Runs));
        admission.look(
            (2, 4),
            run.into_iter().chain([(5, ThreadState::StandsStill)]),
        );
        let room = [1, 2, 3].map(|id| {
            admission.ends(id);
            admission.room()
        });
        assert_eq!(room, [0, 0, 1]);
    }

    /// Each of several threads of a process waits by itself, and all have ended with it.
    #[test]
    fn who_ends_while_it_waits_uses_up_no_room() {
        let mut admission = looked(0, &[1], &[], &[20, 20, 21]);
        assert_eq!(admission.begins(10), AdmissionDecision::Waits);
        assert!(!admission.ends(20), "it did not run");
        assert!(admission.ends(1));
        assert!(!admission.ends(21) && !admission.ends(10));
        assert!(!admission.anybody_waits());
        assert_eq!(admission.begins(11), AdmissionDecision::Goes);
        let mut admission = looked(2, &[], &[], &[20, 20]);
        admission.go([20]);
        assert_eq!(admission.room(), 1);
    }

    proptest! {
        #[test]
        fn never_more_run_than_may_and_none_waits_for_nothing(
            room in 0u32..6,
            run in prop::collection::btree_set(0u32..6, 0..6),
            steps in prop::collection::vec((0u8..3, 0u32..20), 0..100),
        ) {
            let mut running = run.clone();
            let mut waiting = std::collections::VecDeque::new();
            let most = room as usize + run.len();
            let mut admission = Admission::default();
            admission.look((room, 0), run.into_iter().map(|id| (id, ThreadState::Runs)));
            for (what, id) in steps {
                match what {
                    0 if waiting.contains(&id) => {}
                    0 if admission.begins(id) == AdmissionDecision::Goes => {
                        running.insert(id);
                    }
                    0 => waiting.push_back(id),
                    1 => {
                        let wakes = admission.ends(id);
                        waiting.retain(|one| *one != id);
                        prop_assert_eq!(wakes, running.remove(&id) && !waiting.is_empty());
                    }
                    _ => {
                        let go: Vec<u32> = waiting.drain(..admission.room()).collect();
                        admission.go(go.iter().copied());
                        running.extend(go);
                        prop_assert!(waiting.is_empty() || running.len() == most);
                    }
                }
                prop_assert!(running.len() <= most);
            }
        }
    }
}
