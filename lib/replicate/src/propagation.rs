//! Choice of blocks to be sent ahead, and of their destinations.
//!
//! The Supercloud's law: a block that was read `fr` times and written `fw` times has the priority
//! `K · fr/fw + fr` if `fr/fw ≥ S`, and is not sent otherwise, nor if it was never written.
//! Where to is drawn from a table of the probability that the VM moves to each site. A budget in
//! bytes a second bounds it all.
//!
//! Draws and time are the caller's.

use crate::{SiteId, Stamp};
use forkyard_volume::{BLOCK_BYTES, BlockNo};
use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Parameters of the law, which may change while the VM runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knobs {
    /// Weight of the ratio of reads to writes.
    pub k: f64,
    /// Least ratio of reads to writes at which a block is sent.
    pub s: f64,
}

impl Default for Knobs {
    fn default() -> Self {
        Self { k: 1000.0, s: 1.0 }
    }
}

/// Accesses to a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Heat {
    reads: u32,
    writes: u32,
}

impl Knobs {
    /// Priority of a block by its reads and writes; −1 if it is not to be sent.
    pub fn priority(self, reads: u32, writes: u32) -> f64 {
        if writes == 0 {
            return -1.0;
        }
        let (reads, writes) = (f64::from(reads), f64::from(writes));
        let ratio = reads / writes;
        match ratio >= self.s {
            true => self.k * ratio + reads,
            false => -1.0,
        }
    }
}

impl Knobs {
    /// Priority of a block that a site lacks: greater ones are fetched first, and those that were
    /// not touched have none. A block that was not written since counting began was before, so that
    /// the law holds for it as for one that was written once.
    pub fn fill(self, reads: u32, writes: u32) -> Option<f64> {
        match (reads, writes) {
            (0, 0) => None,
            (reads, writes) => Some(self.priority(reads, writes.max(1)).max(0.0)),
        }
    }
}

/// Probability that the VM moves to each site.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Destinations(Vec<(SiteId, f64)>);

impl Destinations {
    /// Table of sites with their probabilities. `None` if one is negative or no number, or if
    /// their sum is more than 1.
    pub fn new(table: Vec<(SiteId, f64)>) -> Option<Self> {
        let sum: f64 = table.iter().map(|it| it.1).sum();
        let fine = table.iter().all(|it| it.1 >= 0.0) && sum <= 1.0 + 1e-9;
        fine.then_some(Self(table))
    }

    /// Site for a draw from 0 to 1; `None` beyond the sum of the table.
    pub fn draw(&self, draw: f64) -> Option<SiteId> {
        let mut sum = 0.0;
        self.0.iter().find_map(|(site, probability)| {
            sum += probability;
            (draw < sum).then_some(*site)
        })
    }
}

/// Bytes that may be sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SendBudget {
    /// Bytes a second.
    pub rate: u64,
    /// Bytes that may gather while there is nothing to send.
    pub burst: u64,
}

/// Block to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    /// Block.
    pub block: BlockNo,
    /// Destination.
    pub to: SiteId,
}

/// Reason why a block was sent, or was not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decision {
    /// Sent in this version, for that priority.
    Sent {
        /// Destination.
        to: SiteId,
        /// Content.
        stamp: Stamp,
        /// Priority at that time.
        priority: f64,
    },
    /// Never written here: it stays at the sites that have it.
    NeverWritten,
    /// Too few reads for its writes.
    BelowThreshold {
        /// Reads by writes.
        ratio: f64,
        /// Least ratio.
        s: f64,
    },
    /// Waits for its turn, or for the budget.
    Waiting {
        /// Priority.
        priority: f64,
        /// Blocks before it.
        before: usize,
    },
    /// The draw gave it to no site.
    NoDestination,
}

/// Priority in a queue: the greatest first, then the lowest block.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rank(f64, BlockNo);

impl Eq for Rank {}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.total_cmp(&self.0).then(self.1.cmp(&other.1))
    }
}

/// Blocks of one volume that are to be sent ahead.
#[derive(Clone, Debug)]
pub struct Propagation {
    knobs: Knobs,
    destinations: Destinations,
    budget: SendBudget,
    /// Bytes that may be sent now, in billionths: what a nanosecond earns is a whole number.
    credit: u128,
    heat: BTreeMap<BlockNo, Heat>,
    /// Blocks written since they were last sent.
    stale: BTreeSet<BlockNo>,
    queue: BTreeSet<Rank>,
    last: BTreeMap<BlockNo, Decision>,
}

impl Propagation {
    /// Begins with no accesses known, and no credit.
    pub fn new(knobs: Knobs, destinations: Destinations, budget: SendBudget) -> Self {
        Self {
            knobs,
            destinations,
            budget,
            credit: 0,
            heat: BTreeMap::new(),
            stale: BTreeSet::new(),
            queue: BTreeSet::new(),
            last: BTreeMap::new(),
        }
    }

    fn rank(&self, block: BlockNo) -> Option<Rank> {
        let heat = self.heat.get(&block)?;
        let priority = self.knobs.priority(heat.reads, heat.writes);
        (priority >= 0.0 && self.stale.contains(&block)).then_some(Rank(priority, block))
    }

    fn touch(&mut self, block: BlockNo, change: impl FnOnce(&mut Heat)) {
        if let Some(rank) = self.rank(block) {
            self.queue.remove(&rank);
        }
        change(self.heat.entry(block).or_default());
        self.queue.extend(self.rank(block));
    }

    /// Notes a read.
    pub fn read(&mut self, block: BlockNo) {
        self.touch(block, |heat| heat.reads = heat.reads.saturating_add(1));
    }

    /// Notes a write: the block is to be sent, or to be sent again.
    pub fn written(&mut self, block: BlockNo) {
        self.touch(block, |heat| heat.writes = heat.writes.saturating_add(1));
        self.stale.insert(block);
        self.queue.extend(self.rank(block));
    }

    /// Changes the parameters. All priorities are worked out again.
    pub fn tune(&mut self, knobs: Knobs) {
        self.knobs = knobs;
        self.queue = self.stale.iter().filter_map(|it| self.rank(*it)).collect();
    }

    /// Begins anew at another site, with its destinations: the site that the VM left has all that was written.
    /// Accesses stay known.
    pub fn moved(&mut self, destinations: Destinations) {
        self.destinations = destinations;
        self.stale.clear();
        self.queue.clear();
        self.last.clear();
    }

    /// Adds the credit of some time.
    pub fn earn(&mut self, time: Duration) {
        let most = u128::from(self.budget.burst) * 1_000_000_000;
        let earned = u128::from(self.budget.rate) * time.as_nanos();
        self.credit = self.credit.saturating_add(earned).min(most);
    }

    /// Takes the block with the greatest priority, if the budget allows one. `draw` is a random
    /// number from 0 to 1; `stamp` tells the content of a block that may be sent now.
    pub fn next(
        &mut self,
        draw: f64,
        mut stamp: impl FnMut(BlockNo) -> Option<Stamp>,
    ) -> Option<Send> {
        let cost = BLOCK_BYTES as u128 * 1_000_000_000;
        if self.credit < cost {
            return None;
        }
        let ready = self.queue.iter().find_map(|it| Some((*it, stamp(it.1)?)));
        let (rank, stamp) = ready?;
        let Rank(priority, block) = rank;
        self.queue.remove(&rank);
        self.stale.remove(&block);
        let Some(to) = self.destinations.draw(draw) else {
            self.last.insert(block, Decision::NoDestination);
            return None;
        };
        self.credit -= cost;
        let sent = Decision::Sent {
            to,
            stamp,
            priority,
        };
        self.last.insert(block, sent);
        Some(Send { block, to })
    }

    /// Tells why a block was sent, or was not: what holds for its present content.
    pub fn why(&self, block: BlockNo) -> Decision {
        let heat = self.heat.get(&block).copied().unwrap_or_default();
        if heat.writes == 0 {
            return Decision::NeverWritten;
        }
        if let (false, Some(last)) = (self.stale.contains(&block), self.last.get(&block)) {
            return *last;
        }
        match self.rank(block) {
            Some(rank) => Decision::Waiting {
                priority: rank.0,
                before: self.queue.range(..rank).count(),
            },
            None => Decision::BelowThreshold {
                ratio: f64::from(heat.reads) / f64::from(heat.writes),
                s: self.knobs.s,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_volume::{Version, WriterEpoch};

    const SECOND: Duration = Duration::from_secs(1);

    fn stamp(_: BlockNo) -> Option<Stamp> {
        Some(Stamp {
            epoch: WriterEpoch(1),
            version: Version::FIRST,
        })
    }

    fn two() -> (SiteId, SiteId) {
        let site = |number| SiteId::new(number).expect("small");
        (site(1), site(2))
    }

    fn propagation(rate: u64) -> Propagation {
        let (a, b) = two();
        let table = Destinations::new(vec![(a, 0.75), (b, 0.2)]).expect("a table");
        let burst = 1 << 20;
        Propagation::new(Knobs::default(), table, SendBudget { rate, burst })
    }

    #[test]
    fn priorities_are_those_of_the_paper() {
        let knobs = Knobs::default();
        for (reads, writes, priority) in [
            (0, 0, -1.0),
            (9, 0, -1.0),
            (1, 2, -1.0),
            (2, 2, 1002.0),
            (6, 2, 3006.0),
            (7, 7, 1007.0),
        ] {
            assert_eq!(knobs.priority(reads, writes), priority, "{reads}/{writes}");
        }
        assert_eq!(knobs.fill(0, 0), None);
        assert_eq!(knobs.fill(3, 0), Some(3003.0));
        assert_eq!(knobs.fill(1, 2), Some(0.0));
        let eager = Knobs { k: 10.0, s: 0.5 };
        assert_eq!(eager.priority(1, 2), 6.0);
    }

    #[test]
    fn blocks_go_by_priority_within_the_budget_and_to_the_site_drawn() {
        let (a, b) = two();
        let mut it = propagation(8192);
        for block in 0..4 {
            it.written(BlockNo(block));
            for _ in 0..block {
                it.read(BlockNo(block));
            }
        }
        assert_eq!(it.next(0.0, stamp), None, "no credit yet");
        it.earn(SECOND);
        let sent = |block, to| {
            let block = BlockNo(block);
            Some(Send { block, to })
        };
        assert_eq!(it.next(0.0, stamp), sent(3, a));
        assert_eq!(it.next(0.8, stamp), sent(2, b));
        assert_eq!(it.next(0.0, stamp), None, "two blocks a second");
        it.earn(SECOND);
        assert_eq!(it.next(0.99, stamp), None, "no site has this draw");
        assert_eq!(it.next(0.0, stamp), None, "block 0 was never read");
        assert_eq!(it.why(BlockNo(1)), Decision::NoDestination);
        assert!(
            matches!(it.why(BlockNo(3)), Decision::Sent { to, priority, .. } if to == a && priority == 3003.0)
        );
        let below = Decision::BelowThreshold { ratio: 0.0, s: 1.0 };
        assert_eq!(it.why(BlockNo(0)), below);
        assert_eq!(it.why(BlockNo(9)), Decision::NeverWritten);
    }

    #[test]
    fn a_block_written_again_is_sent_again_and_one_that_cannot_be_is_passed_over() {
        let (a, _) = two();
        let mut it = propagation(1 << 20);
        it.earn(SECOND);
        for block in [1, 2] {
            it.written(BlockNo(block));
            it.read(BlockNo(block));
        }
        it.read(BlockNo(2));
        let but_two = |block| stamp(block).filter(|_| block != BlockNo(2));
        assert_eq!(it.next(0.0, but_two).map(|it| it.block), Some(BlockNo(1)));
        assert_eq!(it.next(0.0, but_two), None);
        assert!(matches!(
            it.why(BlockNo(2)),
            Decision::Waiting { before: 0, .. }
        ));
        assert_eq!(it.next(0.0, stamp).map(|it| it.to), Some(a));
        it.written(BlockNo(1));
        let half = Decision::BelowThreshold { ratio: 0.5, s: 1.0 };
        assert_eq!(it.why(BlockNo(1)), half);
        it.tune(Knobs { k: 1000.0, s: 0.5 });
        assert_eq!(it.next(0.0, stamp).map(|it| it.block), Some(BlockNo(1)));
    }

    #[test]
    fn tables_that_are_none_are_refused() {
        let (a, b) = two();
        for table in [
            vec![(a, 0.7), (b, 0.4)],
            vec![(a, -0.1)],
            vec![(a, f64::NAN)],
        ] {
            assert_eq!(Destinations::new(table), None);
        }
    }
}
