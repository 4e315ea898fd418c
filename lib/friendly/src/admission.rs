//! Who begins, and may run at once.

use std::collections::BTreeMap;

/// What becomes of one that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It runs.
    Goes,
    /// It stands still until its turn comes.
    Waits,
}

/// Admits those that begin between two looks, as many as there is room for. A process
/// that is stopped once it has worked for a while has memory by then, which is paged out
/// meanwhile and read back for its turn: of a hundred requests to a web server that may
/// answer three at a time, each would pay for it. One that waits before its first
/// instruction has next to none.
///
/// While anybody waits nobody overtakes: room is for those who wait.
#[derive(Clone, Debug)]
pub struct Admission<Id> {
    /// How many more may run, less than none where more run than may; None before the
    /// first look, and whoever begins goes.
    room: Option<i64>,
    /// Those who do not wait, and whether each is one of those that room is for.
    known: BTreeMap<Id, bool>,
    /// How many wait.
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
    /// A look: how many may run and how many do, who is there and does not stand still,
    /// and whether each of them runs, or would; and how many stand still.
    pub fn look(
        &mut self,
        (may, run): (u32, u32),
        there: impl IntoIterator<Item = (Id, bool)>,
        stand_still: usize,
    ) {
        self.room = Some(i64::from(may) - i64::from(run));
        self.wait = stand_still;
        self.known.clear();
        for (id, runs) in there {
            // Of a process with several threads one that runs is enough.
            *self.known.entry(id).or_default() |= runs;
        }
    }

    /// Whoever begins goes, until the next look.
    pub fn open(&mut self) {
        *self = Self::default();
    }

    /// Whether anybody waits.
    pub fn anybody_waits(&self) -> bool {
        self.wait > 0
    }

    /// How many of those who wait may go.
    pub fn room(&self) -> usize {
        let room = self.room.map(|room| usize::try_from(room).unwrap_or(0));
        room.unwrap_or(usize::MAX).min(self.wait)
    }

    /// These have waited, and go.
    pub fn go(&mut self, ids: impl IntoIterator<Item = Id>) {
        for id in ids {
            self.wait = self.wait.saturating_sub(1);
            if let Some(room) = &mut self.room {
                *room -= 1;
                self.known.insert(id, true);
            }
        }
    }

    /// Whether one that begins goes, whoever it is.
    pub fn is_open(&self) -> bool {
        self.room.is_none_or(|room| room > 0) && self.wait == 0
    }

    /// One begins. Who is known has begun before: it is another program of the same
    /// process.
    pub fn begins(&mut self, id: Id) -> Entry {
        if self.known.contains_key(&id) {
            return Entry::Goes;
        }
        if !self.is_open() {
            self.wait += 1;
            return Entry::Waits;
        }
        if let Some(room) = &mut self.room {
            *room -= 1;
            self.known.insert(id, true);
        }
        Entry::Goes
    }

    /// One has ended. Whether somebody who waits may now be let go.
    pub fn ends(&mut self, id: Id) -> bool {
        let ran = self.known.remove(&id) == Some(true);
        if let (true, Some(room)) = (ran, &mut self.room) {
            *room += 1;
        }
        ran && self.wait > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn looked(room: u32, run: &[u32], sleep: &[u32], stand_still: usize) -> Admission<u32> {
        let mut admission = Admission::default();
        let run = run.iter().map(|&id| (id, true));
        let there = run.chain(sleep.iter().map(|&id| (id, false)));
        admission.look((room, 0), there, stand_still);
        admission
    }

    #[test]
    fn before_the_first_look_and_once_opened_all_go() {
        let mut admission = Admission::default();
        assert!((0..100).all(|id| admission.begins(id) == Entry::Goes));
        let mut admission = looked(0, &[], &[], 1);
        assert_eq!(admission.begins(1), Entry::Waits);
        admission.open();
        assert_eq!(admission.begins(2), Entry::Goes);
    }

    #[test]
    fn as_many_go_as_there_is_room_for() {
        let mut admission = looked(3, &[1, 2], &[3], 0);
        let entries = [10, 11, 12, 13].map(|id| admission.begins(id));
        assert_eq!(
            entries,
            [Entry::Goes, Entry::Goes, Entry::Goes, Entry::Waits]
        );
    }

    #[test]
    fn another_program_of_one_that_runs_or_sleeps_goes() {
        let mut admission = looked(0, &[1], &[2], 1);
        assert_eq!(
            [1, 2, 3].map(|id| admission.begins(id)),
            [Entry::Goes, Entry::Goes, Entry::Waits]
        );
    }

    #[test]
    fn who_ends_makes_room_once_and_nobody_overtakes_who_waits() {
        let mut admission = looked(0, &[1, 2], &[3], 0);
        assert!(!admission.ends(1), "nobody waits");
        assert_eq!(admission.begins(10), Entry::Goes);
        assert_eq!(admission.begins(11), Entry::Waits);
        assert!(!admission.ends(3), "it slept");
        assert!(!admission.ends(99), "it is nobody");
        assert!(admission.ends(10));
        assert!(!admission.ends(10));
        assert_eq!(admission.begins(12), Entry::Waits);
    }

    #[test]
    fn room_is_for_those_who_wait_and_who_begins_once_they_go_does_not() {
        let mut admission = looked(0, &[1, 2], &[], 0);
        assert_eq!([10, 11].map(|id| admission.begins(id)), [Entry::Waits; 2]);
        assert_eq!(admission.room(), 0);
        assert!(admission.ends(1));
        assert_eq!(admission.room(), 1);
        admission.go([10]);
        assert_eq!((admission.room(), admission.begins(12)), (0, Entry::Waits));
        assert!(admission.ends(2) && admission.ends(10));
        admission.go([11, 12]);
        assert!(!admission.anybody_waits() && !admission.is_open());
        assert!(!admission.ends(11));
        assert_eq!(admission.begins(13), Entry::Goes);
    }

    #[test]
    fn of_more_than_may_run_some_have_to_end_before_anybody_goes() {
        let mut admission = Admission::default();
        admission.look((2, 4), [1, 2, 3, 4].map(|id| (id, true)), 1);
        let room = [1, 2, 3].map(|id| {
            admission.ends(id);
            admission.room()
        });
        assert_eq!(room, [0, 0, 1]);
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
            admission.look((room, 0), run.into_iter().map(|id| (id, true)), 0);
            for (what, id) in steps {
                match what {
                    0 if waiting.contains(&id) => {}
                    0 if admission.begins(id) == Entry::Goes => {
                        running.insert(id);
                    }
                    0 => waiting.push_back(id),
                    1 => {
                        let wakes = admission.ends(id);
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
