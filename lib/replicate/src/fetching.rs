//! Order in which the blocks that one site lacks are fetched from another.
//!
//! ```text
//! lacking --wanted by a reader--> demand --next(Demand)--.
//!    |                                                    +--> asked --came--> here
//!    '------- hottest first ---> fill ----next(Fill)-----'       |
//!                 ^------------------- line lost ----------------'
//! ```
//!
//! Demand and fill have lines of their own, so that a reader waits behind no fill. A block that the
//! fill has asked for is asked for once more if a reader wants it: it may be far behind.
//!
//! Opens no line and reads no clock. The caller says which blocks are lacking still.

use forkyard_volume::BlockNo;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Blocks in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockRun {
    /// First block.
    pub first: BlockNo,
    /// Number of blocks.
    pub count: u64,
}

/// Reason to fetch a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// A reader waits for it.
    Demand,
    /// All of the volume is to be here.
    Fill,
}

/// Connection to the site that has the blocks. Numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SiteConnection(pub u64);

/// Blocks that are fetched together with one that is wanted: those beside it are likely next.
const AROUND: u64 = 32;

/// Blocks of one site that another lacks.
#[derive(Clone, Debug, Default)]
pub struct BlockFetching {
    demand: VecDeque<BlockNo>,
    fill: VecDeque<BlockRun>,
    asked: BTreeMap<BlockNo, BTreeSet<(Purpose, SiteConnection)>>,
}

impl BlockRun {
    fn end(self) -> u64 {
        self.first.0.saturating_add(self.count)
    }

    /// Blocks of it.
    pub fn blocks(self) -> impl Iterator<Item = BlockNo> {
        (self.first.0..self.end()).map(BlockNo)
    }

    /// Tells whether a block is one of it.
    pub fn contains(self, block: BlockNo) -> bool {
        (self.first.0..self.end()).contains(&block.0)
    }

    /// Joins blocks in ascending order to runs.
    pub fn of(blocks: impl IntoIterator<Item = BlockNo>) -> Vec<Self> {
        let mut runs: Vec<Self> = Vec::new();
        for block in blocks {
            match runs.last_mut() {
                Some(run) if run.end() == block.0 => run.count += 1,
                Some(_) | None => runs.push(Self {
                    first: block,
                    count: 1,
                }),
            }
        }
        runs
    }
}

impl BlockFetching {
    /// Begins with the blocks that are lacking, in any order of runs.
    pub fn new(lacking: Vec<BlockRun>) -> Self {
        Self {
            fill: lacking.into(),
            ..Self::default()
        }
    }

    /// Puts blocks first in the fill, in this order. Those that are not lacking are passed over
    /// when their turn comes.
    pub fn hottest(&mut self, runs: &[BlockRun]) {
        for run in runs.iter().rev() {
            self.fill.push_front(*run);
        }
    }

    /// Notes that a reader waits for a block. Those around it come along.
    pub fn want(&mut self, block: BlockNo) {
        if !self.is_asked(block, Purpose::Demand) && !self.demand.contains(&block) {
            self.demand.push_back(block);
        }
    }

    fn is_asked(&self, block: BlockNo, purpose: Purpose) -> bool {
        let asked = self.asked.get(&block);
        asked.is_some_and(|lines| lines.iter().any(|(it, _)| *it <= purpose))
    }

    /// Takes the blocks to ask for next on a line, in ascending order; empty if there are none.
    pub fn next(
        &mut self,
        purpose: Purpose,
        line: SiteConnection,
        most: usize,
        is_lacking: impl Fn(BlockNo) -> bool,
    ) -> Vec<BlockNo> {
        let mut taken = BTreeSet::new();
        match purpose {
            Purpose::Demand => {
                while taken.len() < most
                    && let Some(block) = self.demand.pop_front()
                {
                    // All that readers want comes before what is around it.
                    let around = block.0 / AROUND * AROUND;
                    let wanted = std::iter::once(block);
                    for block in wanted.chain((around..around + AROUND).map(BlockNo)) {
                        if taken.len() < most && is_lacking(block) && !self.is_asked(block, purpose)
                        {
                            taken.insert(block);
                        }
                    }
                }
            }
            Purpose::Fill => {
                while taken.len() < most
                    && let Some(run) = self.fill.front_mut()
                {
                    let block = run.first;
                    (run.first.0, run.count) = (run.first.0 + 1, run.count.saturating_sub(1));
                    if run.count == 0 {
                        self.fill.pop_front();
                    }
                    if is_lacking(block) && !self.is_asked(block, purpose) {
                        taken.insert(block);
                    }
                }
            }
        }
        for block in &taken {
            self.asked
                .entry(*block)
                .or_default()
                .insert((purpose, line));
        }
        taken.into_iter().collect()
    }

    /// Notes that a block is here, or is not to be fetched any more.
    pub fn came(&mut self, block: BlockNo) {
        self.asked.remove(&block);
    }

    /// Notes that a line has broken: what was asked for on it and has not come is asked for again.
    pub fn lost(&mut self, line: SiteConnection) {
        let mut again = Vec::new();
        self.asked.retain(|block, lines| {
            let demanded = lines.remove(&(Purpose::Demand, line));
            if demanded {
                again.push((Purpose::Demand, *block));
            }
            if lines.remove(&(Purpose::Fill, line)) || demanded {
                again.push((Purpose::Fill, *block));
            }
            !lines.is_empty()
        });
        let of = |purpose| {
            let again = again.iter().filter(move |it| it.0 == purpose);
            again.map(|it| it.1)
        };
        for block in of(Purpose::Demand) {
            self.demand.push_back(block);
        }
        self.hottest(&BlockRun::of(of(Purpose::Fill)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEMAND: SiteConnection = SiteConnection(1);
    const FILL: SiteConnection = SiteConnection(2);

    fn run(first: u64, count: u64) -> BlockRun {
        BlockRun {
            first: BlockNo(first),
            count,
        }
    }

    fn numbers(blocks: &[BlockNo]) -> Vec<u64> {
        blocks.iter().map(|it| it.0).collect()
    }

    #[test]
    fn the_hottest_are_filled_first_and_a_reader_waits_behind_no_fill() {
        let mut it = BlockFetching::new(vec![run(0, 100)]);
        it.hottest(&[run(70, 2), run(40, 1), run(500, 3)]);
        let lacking = |block: BlockNo| block.0 < 100;
        let first = it.next(Purpose::Fill, FILL, 3, lacking);
        assert_eq!(numbers(&first), [40, 70, 71]);
        it.want(BlockNo(70));
        let demanded = it.next(Purpose::Demand, DEMAND, 256, lacking);
        assert_eq!(numbers(&demanded), (64..96).collect::<Vec<_>>());
        it.want(BlockNo(70));
        assert!(it.next(Purpose::Demand, DEMAND, 256, lacking).is_empty());
        let rest = it.next(Purpose::Fill, FILL, 256, lacking);
        assert!(!rest.contains(&BlockNo(80)), "a reader has asked for it");
        assert_eq!(rest.len(), 100 - 1 - 32, "all but those under way");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Want(u64),
        Ask(Purpose, usize),
        /// Of the oldest question of a line, all is answered.
        Answer(Purpose),
        Lose(Purpose),
        /// Written here: never to be fetched.
        Write(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let purpose = || prop_oneof![Just(Purpose::Demand), Just(Purpose::Fill)];
        let step = prop_oneof![
            3 => (0..200u64).prop_map(Step::Want),
            4 => (purpose(), 1..40usize).prop_map(|(it, most)| Step::Ask(it, most)),
            4 => purpose().prop_map(Step::Answer),
            1 => purpose().prop_map(Step::Lose),
            1 => (0..200u64).prop_map(Step::Write),
        ];
        proptest::collection::vec(step, 0..120)
    }

    proptest! {
        #[test]
        fn all_that_is_lacking_comes_whatever_is_lost_and_nothing_is_asked_for_twice_on_a_line(
            steps in steps(), lacking in proptest::collection::btree_set(0..200u64, 0..150)
        ) {
            let mut lacking: BTreeSet<BlockNo> = lacking.into_iter().map(BlockNo).collect();
            let mut it = BlockFetching::new(BlockRun::of(lacking.iter().copied()));
            let mut under_way = BTreeMap::from([(Purpose::Demand, VecDeque::new()), (Purpose::Fill, VecDeque::new())]);
            let mut lines = BTreeMap::from([(Purpose::Demand, SiteConnection(1)), (Purpose::Fill, SiteConnection(2))]);
            let mut wanted = BTreeSet::new();
            // In the end both lines hold for long enough.
            let last = (0..400).flat_map(|_| [
                Step::Ask(Purpose::Demand, 16), Step::Ask(Purpose::Fill, 16),
                Step::Answer(Purpose::Demand), Step::Answer(Purpose::Fill),
            ]);
            for step in steps.into_iter().chain(last) {
                match step {
                    Step::Want(block) if lacking.contains(&BlockNo(block)) => {
                        it.want(BlockNo(block));
                        wanted.insert(BlockNo(block));
                    }
                    Step::Want(_) => {}
                    Step::Ask(purpose, most) => {
                        let asked = it.next(purpose, lines[&purpose], most, |it| lacking.contains(&it));
                        prop_assert!(asked.len() <= most);
                        for block in &asked {
                            prop_assert!(lacking.contains(block));
                            let twice = under_way[&purpose].iter().flatten().any(|it| it == block);
                            prop_assert!(!twice, "{block} twice");
                        }
                        under_way.get_mut(&purpose).expect("both").push_back(asked);
                    }
                    Step::Answer(purpose) => {
                        let answered: Vec<BlockNo> = under_way.get_mut(&purpose).expect("both").pop_front().unwrap_or_default();
                        for block in answered {
                            lacking.remove(&block);
                            wanted.remove(&block);
                            it.came(block);
                        }
                    }
                    Step::Lose(purpose) => {
                        under_way.get_mut(&purpose).expect("both").clear();
                        let line = lines.get_mut(&purpose).expect("both");
                        it.lost(*line);
                        line.0 += 2;
                    }
                    Step::Write(block) => {
                        lacking.remove(&BlockNo(block));
                        wanted.remove(&BlockNo(block));
                    }
                }
            }
            prop_assert!(lacking.is_empty(), "{lacking:?} never came");
            prop_assert!(wanted.is_empty());
        }
    }
}
