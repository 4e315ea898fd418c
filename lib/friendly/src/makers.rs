//! Makers of more processes than may begin.

use std::collections::{BTreeMap, BTreeSet};

/// Has a maker of others wait once several that it made wait to begin, until some of them
/// have: a server that goes on would have a process for each of a hundred requests, each
/// with a stack, page tables and open files, which the host pages out and has to read back
/// for its turn. What is not made yet costs nothing, and its maker waits as long.
///
/// That a process that waits for its maker may wait for long is taken care of elsewhere: it sleeps,
/// so others may go meanwhile, and with the last but few of them so does the maker.
#[derive(Clone, Debug)]
pub struct Makers<Child, Maker> {
    /// Processes that wait to begin, and their makers.
    waiting: BTreeMap<Child, Maker>,
    still: BTreeSet<Maker>,
}

/// So many of one maker wait at a time, or few more, before it does.
const MANY: usize = 4;
/// Number of waiting children at which a maker goes on: some are there whenever
/// there is room.
const FEW: usize = MANY / 2;

impl<Child, Maker> Default for Makers<Child, Maker> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            still: BTreeSet::new(),
        }
    }
}

impl<Child: Copy + Ord, Maker: Copy + Ord> Makers<Child, Maker> {
    /// One waits to begin, and this one made it. Whether the maker is to stand still from
    /// now on; also if it should already.
    pub fn waits(&mut self, child: Child, maker: Maker) -> bool {
        self.waiting.insert(child, maker);
        let many = self.of(maker) >= MANY;
        if many {
            self.still.insert(maker);
        }
        many
    }

    /// One cannot be stopped, or is not to be.
    pub fn spare(&mut self, maker: Maker) {
        self.still.remove(&maker);
    }

    /// One does not wait any more, whether it runs or has ended. The maker that may go
    /// for it.
    pub fn goes(&mut self, child: Child) -> Option<Maker> {
        let maker = self.waiting.remove(&child)?;
        (self.of(maker) <= FEW && self.still.remove(&maker)).then_some(maker)
    }

    /// Of those that wait only these still do. The makers that may go for it.
    pub fn keep(&mut self, waits: impl Fn(Child) -> bool) -> BTreeSet<Maker> {
        let mut gone: Vec<Child> = self.waiting.keys().copied().collect();
        gone.retain(|child| !waits(*child));
        gone.into_iter()
            .filter_map(|child| self.goes(child))
            .collect()
    }

    /// Makers that stand still.
    pub fn still(&self) -> &BTreeSet<Maker> {
        &self.still
    }

    /// Counts the waiting children of one maker.
    fn of(&self, maker: Maker) -> usize {
        self.waiting.values().filter(|one| **one == maker).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_has_made_many_waits_until_few_of_them_do() {
        let mut makers: Makers<u32, char> = Makers::default();
        assert_eq!(
            [1, 2, 3, 4].map(|child| makers.waits(child, 'a')),
            [false, false, false, true]
        );
        assert!(!makers.waits(10, 'b'), "another's do not count");
        assert!(makers.still().contains(&'a'));
        assert_eq!([1, 2].map(|child| makers.goes(child)), [None, Some('a')]);
        assert_eq!(makers.goes(2), None, "it went before");
        assert!(makers.still().is_empty());
    }

    /// Tests a child that was on its way when its maker was told to stop.
    #[test]
    fn one_that_makes_another_all_the_same_is_stopped_again() {
        let mut makers: Makers<u32, char> = Makers::default();
        let stops: Vec<bool> = (0..6).map(|child| makers.waits(child, 'a')).collect();
        assert_eq!(stops[3..], [true; 3]);
        makers.spare('a');
        assert!(makers.still().is_empty());
        assert_eq!(makers.keep(|_| false), BTreeSet::new(), "it never stood");
    }

    proptest! {
        /// None is stopped for nothing: while it does, more than few that it made wait.
        #[test]
        fn nobody_waits_for_nothing(
            steps in prop::collection::vec((0u8..4, 0u32..30, 0u8..3), 0..200),
        ) {
            let mut makers: Makers<u32, u8> = Makers::default();
            let mut waiting: BTreeMap<u32, u8> = BTreeMap::new();
            let mut still = BTreeSet::new();
            for (what, child, maker) in steps {
                match what {
                    0 | 1 if waiting.contains_key(&child) => {}
                    0 | 1 => {
                        waiting.insert(child, maker);
                        if makers.waits(child, maker) {
                            still.insert(maker);
                        }
                    }
                    2 => {
                        waiting.remove(&child);
                        let goes = makers.goes(child);
                        prop_assert!(goes.is_none_or(|maker| still.remove(&maker)));
                    }
                    _ => {
                        waiting.retain(|one, _| *one < child);
                        for maker in makers.keep(|one| one < child) {
                            prop_assert!(still.remove(&maker));
                        }
                    }
                }
                prop_assert_eq!(makers.still(), &still);
                for maker in 0..3 {
                    let wait = waiting.values().filter(|one| **one == maker).count();
                    prop_assert!(wait > FEW || !still.contains(&maker));
                    prop_assert!(wait < MANY || still.contains(&maker));
                }
            }
        }
    }
}
