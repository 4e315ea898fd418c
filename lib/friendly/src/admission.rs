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
/// While anybody waits nobody overtakes: room is for those who wait, and it is a look
/// that lets them go.
#[derive(Clone, Debug)]
pub struct Admission<Id> {
    /// How many more may run; None before the first look, and whoever begins goes.
    room: Option<usize>,
    /// Those who do not wait, and whether each is one of those that room is for.
    known: BTreeMap<Id, bool>,
    /// Whether anybody waits.
    waits: bool,
}

impl<Id> Default for Admission<Id> {
    fn default() -> Self {
        Self {
            room: None,
            known: BTreeMap::new(),
            waits: false,
        }
    }
}

impl<Id: Copy + Ord> Admission<Id> {
    /// A look: how many more may run, who is there and does not stand still, and whether
    /// each of them runs, or would; and whether anybody stands still.
    pub fn look(
        &mut self,
        room: usize,
        there: impl IntoIterator<Item = (Id, bool)>,
        stand_still: bool,
    ) {
        self.room = Some(room);
        self.waits = stand_still;
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
        self.waits
    }

    /// Whether one that begins goes, whoever it is.
    pub fn is_open(&self) -> bool {
        self.room.is_none_or(|room| room > 0) && !self.waits
    }

    /// One begins. Who is known has begun before: it is another program of the same
    /// process.
    pub fn begins(&mut self, id: Id) -> Entry {
        if self.known.contains_key(&id) {
            return Entry::Goes;
        }
        if !self.is_open() {
            self.waits = true;
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
        ran && self.waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn looked(room: usize, run: &[u32], sleep: &[u32], stand_still: bool) -> Admission<u32> {
        let mut admission = Admission::default();
        let run = run.iter().map(|&id| (id, true));
        let there = run.chain(sleep.iter().map(|&id| (id, false)));
        admission.look(room, there, stand_still);
        admission
    }

    #[test]
    fn before_the_first_look_and_once_opened_all_go() {
        let mut admission = Admission::default();
        assert!((0..100).all(|id| admission.begins(id) == Entry::Goes));
        let mut admission = looked(0, &[], &[], true);
        assert_eq!(admission.begins(1), Entry::Waits);
        admission.open();
        assert_eq!(admission.begins(2), Entry::Goes);
    }

    #[test]
    fn as_many_go_as_there_is_room_for() {
        let mut admission = looked(3, &[1, 2], &[3], false);
        let entries = [10, 11, 12, 13].map(|id| admission.begins(id));
        assert_eq!(
            entries,
            [Entry::Goes, Entry::Goes, Entry::Goes, Entry::Waits]
        );
    }

    #[test]
    fn another_program_of_one_that_runs_or_sleeps_goes() {
        let mut admission = looked(0, &[1], &[2], true);
        assert_eq!(
            [1, 2, 3].map(|id| admission.begins(id)),
            [Entry::Goes, Entry::Goes, Entry::Waits]
        );
    }

    #[test]
    fn who_ends_makes_room_once_and_nobody_overtakes_who_waits() {
        let mut admission = looked(0, &[1, 2], &[3], false);
        assert!(!admission.ends(1), "nobody waits");
        assert_eq!(admission.begins(10), Entry::Goes);
        assert_eq!(admission.begins(11), Entry::Waits);
        assert!(!admission.ends(3), "it slept");
        assert!(!admission.ends(99), "it is nobody");
        assert!(admission.ends(10));
        assert!(!admission.ends(10));
        assert_eq!(admission.begins(12), Entry::Waits);
    }

    proptest! {
        #[test]
        fn never_more_run_than_may(
            room in 0usize..6,
            run in prop::collection::btree_set(0u32..6, 0..6),
            steps in prop::collection::vec((any::<bool>(), 0u32..20), 0..100),
        ) {
            let mut running = run.clone();
            let most = room + run.len();
            let mut admission = Admission::default();
            admission.look(room, run.into_iter().map(|id| (id, true)), false);
            for (begins, id) in steps {
                if !begins {
                    admission.ends(id);
                    running.remove(&id);
                } else if admission.begins(id) == Entry::Goes {
                    running.insert(id);
                }
                prop_assert!(running.len() <= most);
            }
        }
    }
}
