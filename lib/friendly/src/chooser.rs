//! Who stands still: at random, but with a memory.

use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// Chooses who may run. Whoever has stood still for `patience` periods, one at
/// least, comes first, the longest before others, so that nobody starves: with at
/// most n who want to run and at least k who may, nobody stands still for more
/// than `patience + ⌈n / k⌉` periods on end. Between those who are not overdue
/// chance decides, and who runs already is left running if there is room.
#[derive(Clone, Debug)]
pub struct Chooser<Id> {
    dice: Rng,
    patience: u32,
    /// Periods on end that each has stood still; 0: it runs.
    still: BTreeMap<Id, u32>,
    /// Those whose turn came in this period: they have all of it.
    turn: BTreeSet<Id>,
}

impl<Id: Copy + Ord> Chooser<Id> {
    /// One that knows nobody. Chance is the same for the same seed.
    pub fn new(patience: u32, seed: u64) -> Self {
        Self {
            dice: Rng::with_seed(seed),
            patience,
            still: BTreeMap::new(),
            turn: BTreeSet::new(),
        }
    }

    /// Another patience from now on.
    pub fn set_patience(&mut self, patience: u32) {
        self.patience = patience;
    }

    /// Ends a period: who stands still has done so for one more.
    pub fn period(&mut self) {
        self.turn.clear();
        for periods in self.still.values_mut().filter(|periods| **periods > 0) {
            *periods += 1;
        }
    }

    /// Who of those that want to run stands still from now on, so many at most
    /// being allowed to run. May be asked at any time in a period: the answer
    /// changes only as far as it must. Others are forgotten.
    pub fn choose(&mut self, wanting: &[Id], allowed: usize) -> BTreeSet<Id> {
        let mut rank: Vec<(bool, u32, bool, u64, Id)> = wanting
            .iter()
            .map(|&id| {
                let still = self.still.get(&id).copied().unwrap_or(0);
                // Counted from 1 in the period it was stopped in.
                let overdue = match still > self.patience.max(1) {
                    true => still,
                    false => 0,
                };
                let turn = self.turn.contains(&id);
                (turn, overdue, still == 0, self.dice.u64(..), id)
            })
            .collect();
        rank.sort_unstable_by(|a, b| b.cmp(a));
        let (run, still) = rank.split_at(allowed.min(rank.len()));
        let came = run.iter().filter(|(_, overdue, ..)| *overdue > 0);
        self.turn.extend(came.map(|(.., id)| *id));
        let still: BTreeSet<Id> = still.iter().map(|(.., id)| *id).collect();
        let before = std::mem::take(&mut self.still);
        for &id in wanting {
            let periods = match still.contains(&id) {
                true => before.get(&id).copied().unwrap_or(0).max(1),
                false => 0,
            };
            self.still.insert(id, periods);
        }
        still
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn asked_twice_in_a_period_nothing_changes() {
        let mut chooser = Chooser::new(2, 1);
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
    fn chance_differs_with_the_seed_alone() {
        let all: Vec<u32> = (0..20).collect();
        let of = |seed| Chooser::new(2, seed).choose(&all, 5);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn all_have_their_turn_about_equally_often() {
        let mut chooser = Chooser::new(2, 3);
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

    proptest! {
        #[test]
        fn exactly_as_many_run_as_may(
            wanting in prop::collection::btree_set(0u32..100, 0..60),
            allowed in 0usize..70,
            seed: u64,
        ) {
            let wanting: Vec<u32> = wanting.into_iter().collect();
            let still = Chooser::new(2, seed).choose(&wanting, allowed);
            prop_assert_eq!(still.len(), wanting.len().saturating_sub(allowed));
            prop_assert!(still.iter().all(|id| wanting.contains(id)));
        }

        /// Members come and go, the limit moves, and it is asked at odd times.
        #[test]
        fn nobody_starves(
            patience in 0u32..5,
            seed: u64,
            periods in prop::collection::vec((3usize..8, 0usize..12, 1usize..4), 1..200),
        ) {
            const STAY: u32 = 20;
            const LEAST: usize = 3;
            let mut chooser = Chooser::new(patience, seed);
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
                    let bound = patience.max(1) as usize + (STAY as usize + 12).div_ceil(LEAST);
                    prop_assert!(*on_end as usize <= bound, "{id} stood still for {on_end}");
                }
            }
        }
    }
}
