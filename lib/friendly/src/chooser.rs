//! Choice of the threads to stop: at random, but with a memory.

use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// Chooses the threads that may run. One that begins to run has `turn` periods for it, one at
/// least: what it works on may have to be read back first, and that is to pay. Then comes one
/// that was stopped for `patience` periods, one at least, the longest before others, so that
/// none starves: with at most n that want to run and at least k that may, none is stopped for
/// more than `patience + turn · ⌈n / k⌉` periods on end. Where more than four run on each CPU,
/// turns are longer in proportion: each has as much of a CPU in its turn, and as much is read
/// back in a minute, however many run. Between all others chance decides, and one that runs
/// already is left running if there is room; one that has just come is last, for else the
/// stopped ones would wait for all that come meanwhile. Of those that begin together the turns
/// end one after the other, the first of them shortened for it: were all that run to change
/// places at one time, all they work on would have to be read back at once, and a host whose
/// guests began together would do nothing else meanwhile.
#[derive(Clone, Debug)]
pub struct Chooser<Id> {
    dice: Rng,
    /// Number of CPUs that the running threads share.
    cpus: u32,
    patience: u32,
    turn: u32,
    known: BTreeMap<Id, Since>,
}

/// So many on each CPU have turns of the length that was asked for.
const FEW: u32 = 4;

/// State of a thread, with the number of periods it has lasted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Runs(u32),
    /// Counted from 1 in the period it was stopped in.
    Still(u32),
}

/// Claim of a thread to be let run: the last comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    New,
    Still,
    Runs,
    /// The thread was stopped for so many periods, which is too long.
    Overdue(u32),
    Turn,
}

impl<Id: Copy + Ord> Chooser<Id> {
    /// A chooser that knows none, of members that may run on so many CPUs. Chance is the same
    /// for the same seed.
    pub fn new(cpus: u32, patience: u32, turn: u32, seed: u64) -> Self {
        Self {
            dice: Rng::with_seed(seed),
            cpus,
            patience,
            turn,
            known: BTreeMap::new(),
        }
    }

    /// Another patience and other turns from now on.
    pub fn reconfigure(&mut self, patience: u32, turn: u32) {
        (self.patience, self.turn) = (patience, turn);
    }

    /// Ends a period.
    pub fn period(&mut self) {
        for since in self.known.values_mut() {
            *since = match *since {
                Since::Runs(periods) => Since::Runs(periods.saturating_add(1)),
                Since::Still(periods) => Since::Still(periods.saturating_add(1)),
            };
        }
    }

    /// One stands still that was not chosen to: it began over the limit.
    pub fn stopped(&mut self, id: Id) {
        self.known.insert(id, Since::Still(1));
    }

    /// Of those that stand still so many at most are to run from now on: those that have
    /// for the longest, and chance decides between equals. As [`Self::choose`] would let
    /// them, were there so much more room.
    pub fn admit(&mut self, room: usize) -> Vec<Id> {
        if room == 0 {
            return Vec::new();
        }
        let mut rank: Vec<(u32, u64, Id)> = Vec::new();
        for (id, since) in &self.known {
            if let Since::Still(periods) = since {
                rank.push((*periods, self.dice.u64(..), *id));
            }
        }
        rank.sort_unstable_by(|a, b| b.cmp(a));
        let go: Vec<Id> = rank.into_iter().take(room).map(|(.., id)| id).collect();
        self.known.extend(go.iter().map(|id| (*id, Since::Runs(0))));
        go
    }

    /// Chooses the threads to stop from now on, of those that want to run, so
    /// many at most being allowed to run. May be asked at any time in a period:
    /// the answer changes only as far as it must. Others are forgotten.
    pub fn choose(&mut self, wanting: &[Id], allowed: usize) -> BTreeSet<Id> {
        let turn = self.turn_of(allowed.min(wanting.len()));
        let mut rank: Vec<(Claim, u64, Id)> = wanting
            .iter()
            .map(|&id| {
                let claim = match self.known.get(&id) {
                    Some(Since::Runs(periods)) if *periods < turn => Claim::Turn,
                    Some(Since::Runs(_)) => Claim::Runs,
                    Some(Since::Still(periods)) if *periods > self.patience.max(1) => {
                        Claim::Overdue(*periods)
                    }
                    Some(Since::Still(_)) => Claim::Still,
                    None => Claim::New,
                };
                (claim, self.dice.u64(..), id)
            })
            .collect();
        rank.sort_unstable_by(|a, b| b.cmp(a));
        let (run, still) = rank.split_at(allowed.min(rank.len()));
        let before = std::mem::take(&mut self.known);
        let (go_on, begin): (Vec<_>, Vec<_>) = run
            .iter()
            .map(|&(.., id)| (id, before.get(&id).copied()))
            .partition(|(_, since)| matches!(since, Some(Since::Runs(_))));
        self.known.extend(
            go_on
                .into_iter()
                .filter_map(|(id, since)| Some((id, since?))),
        );
        let together = begin.len();
        for (place, (id, _)) in begin.into_iter().enumerate() {
            self.known
                .insert(id, Since::Runs(part(turn, place, together)));
        }
        for &(.., id) in still {
            let since = match before.get(&id) {
                Some(Since::Still(periods)) => Since::Still(*periods),
                Some(Since::Runs(_)) | None => Since::Still(1),
            };
            self.known.insert(id, since);
        }
        still.iter().map(|(.., id)| *id).collect()
    }

    /// The periods that each of so many that run has for its turn: one or more.
    fn turn_of(&self, run: usize) -> u32 {
        let few = u64::from(FEW) * u64::from(self.cpus.max(1));
        let turn = u64::from(self.turn.max(1)) * (run as u64).max(few) / few;
        u32::try_from(turn).unwrap_or(u32::MAX)
    }
}

/// Returns the part of the turn that counts as over for the one at `place` of
/// so many that begin together.
fn part(turn: u32, place: usize, together: usize) -> u32 {
    let part = u64::from(turn) * place as u64 / (together as u64).max(1);
    u32::try_from(part).unwrap_or(turn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn asked_twice_in_a_period_nothing_changes() {
        let mut chooser = Chooser::new(1, 2, 1, 1);
        let all: Vec<u32> = (0..20).collect();
        let first = chooser.choose(&all, 5);
        assert_eq!(first.len(), 15);
        assert_eq!(chooser.choose(&all, 5), first);
        let more = chooser.choose(&all, 7);
        assert!(
            more.is_subset(&first),
            "nobody is stopped for others to run"
        );
        let fewer = chooser.choose(&all, 4);
        assert!(
            more.is_subset(&fewer),
            "nobody is let go while others are stopped"
        );
    }

    #[test]
    fn who_stands_still_comes_before_who_has_just_come() {
        let mut chooser = Chooser::new(1, 2, 1, 1);
        let first = chooser.choose(&[1, 2], 1);
        let still = *first.first().expect("one of them");
        // The other has ended, and many have come.
        let wanting: Vec<u32> = [still].into_iter().chain(10..60).collect();
        let stopped = chooser.choose(&wanting, 1);
        assert!(!stopped.contains(&still), "{stopped:?}");
    }

    #[test]
    fn chance_differs_with_the_seed_alone() {
        let all: Vec<u32> = (0..20).collect();
        let of = |seed| Chooser::new(1, 2, 1, seed).choose(&all, 5);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn all_have_their_turn_about_equally_often() {
        let mut chooser = Chooser::new(1, 2, 1, 3);
        let all: Vec<u32> = (0..10).collect();
        let mut ran = [0u32; 10];
        for _ in 0..1_000 {
            let still = chooser.choose(&all, 3);
            let running = all.iter().filter(|id| !still.contains(id));
            running.for_each(|&id| ran[id as usize] += 1);
            chooser.period();
        }
        assert_eq!(ran.iter().sum::<u32>(), 3_000);
        assert!(ran.iter().all(|n| (240..=360).contains(n)), "{ran:?}");
    }

    /// Turns are whole, and end one after the other.
    #[test]
    fn who_began_together_does_not_end_together() {
        const TURN: u32 = 6;
        let mut chooser = Chooser::new(1, 1, TURN, 5);
        let all: Vec<u32> = (0..9).collect();
        let mut last = chooser.choose(&all, 3);
        let mut began: BTreeMap<u32, u32> = BTreeMap::new();
        for period in 1..=60 {
            chooser.period();
            let still = chooser.choose(&all, 3);
            let stopped: Vec<u32> = still.difference(&last).copied().collect();
            assert_eq!(
                stopped.len(),
                usize::from(period % 2 == 0),
                "in period {period}"
            );
            for id in stopped {
                let had = began.remove(&id).map(|began| period - began);
                assert!(had.is_none_or(|had| had == TURN), "{had:?}");
            }
            began.extend(last.difference(&still).map(|&id| (id, period)));
            last = still;
        }
    }

    #[test]
    fn who_has_stood_longest_is_let_in_first_and_no_more_than_there_is_room_for() {
        let mut chooser = Chooser::new(1, 2, 1, 1);
        let all: Vec<u32> = (0..6).collect();
        let still = chooser.choose(&all, 2);
        chooser.period();
        chooser.stopped(10);
        assert_eq!(chooser.admit(0), []);
        let first = chooser.admit(3);
        assert!(first.len() == 3 && first.iter().all(|id| still.contains(id)));
        let rest = chooser.admit(usize::MAX);
        assert_eq!((rest.len(), rest[1]), (2, 10));
        assert_eq!(chooser.admit(usize::MAX), []);
        assert!(chooser.choose(&all, 7).is_empty(), "they run now");
    }

    #[test]
    fn turns_are_longer_where_many_run_on_a_cpu() {
        let of = |cpus, run| Chooser::<u32>::new(cpus, 2, 12, 1).turn_of(run);
        assert_eq!([0, 1, 4, 6, 20].map(|run| of(1, run)), [12, 12, 12, 18, 60]);
        assert_eq!([4, 8, 16].map(|run| of(2, run)), [12, 12, 24]);
        // And so, of ten that run, one makes room in three periods.
        let mut chooser = Chooser::new(1, 2, 12, 1);
        let all: Vec<u32> = (0..40).collect();
        let mut last = chooser.choose(&all, 10);
        let mut stopped = 0;
        for _ in 0..300 {
            chooser.period();
            let still = chooser.choose(&all, 10);
            stopped += still.difference(&last).count();
            last = still;
        }
        assert!((95..=105).contains(&stopped), "{stopped}");
    }

    proptest! {
        #[test]
        fn exactly_as_many_run_as_may(
            wanting in prop::collection::btree_set(0u32..100, 0..60),
            allowed in 0usize..70,
            seed: u64,
        ) {
            let wanting: Vec<u32> = wanting.into_iter().collect();
            let still = Chooser::new(1, 2, 1, seed).choose(&wanting, allowed);
            prop_assert_eq!(still.len(), wanting.len().saturating_sub(allowed));
            prop_assert!(still.iter().all(|id| wanting.contains(id)));
        }

        /// Members come and go, the limit moves, and it is asked at odd times.
        #[test]
        fn nobody_starves(
            patience in 0u32..5,
            turn in 0u32..4,
            seed: u64,
            periods in prop::collection::vec((3usize..8, 0usize..12, 1usize..4), 1..200),
        ) {
            const STAY: u32 = 20;
            const LEAST: usize = 3;
            let mut chooser = Chooser::new(1, patience, turn, seed);
            let mut on_end = [0u32; STAY as usize];
            let mut guest = 1_000;
            for (allowed, guests, asked) in periods {
                // Guests are new ones each time, and never more than a dozen.
                let mut wanting: Vec<u32> = (0..STAY).collect();
                wanting.extend((0..u32::try_from(guests).expect("few")).map(|n| guest + n));
                guest += 12;
                let mut still = BTreeSet::new();
                for _ in 0..asked {
                    still = chooser.choose(&wanting, allowed);
                }
                chooser.period();
                for id in 0..STAY {
                    let on_end = &mut on_end[id as usize];
                    *on_end = if still.contains(&id) { *on_end + 1 } else { 0 };
                    let rounds = (STAY as usize + 12).div_ceil(LEAST);
                    // Up to seven run at a time, on one CPU.
                    let turn = 2 * turn.max(1) as usize;
                    let bound = patience.max(1) as usize + turn * rounds;
                    prop_assert!(*on_end as usize <= bound, "{id} stood still for {on_end}");
                }
            }
        }
    }
}
