//! Parameters of the law and the table of destinations, learned while the VM runs.
//!
//! ```text
//! reads, writes --> one shadow for each pair of K and S: the blocks it would have sent
//! end of a window: had the VM moved as this window began, which of the blocks read in it would have
//!                  been there, and how much was sent for that? --> worth of each pair --> the best
//! moves seen ----> table of destinations
//! ```
//!
//! Moves are rare; a window is a pretended one. A shadow follows a sample of the blocks under the same
//! part of the budget, so that all of them together cost less than the propagation itself.

use crate::{Destinations, Knobs, Propagation, SendBudget, SiteId, Stamp};
use forkyard_volume::{BlockNo, Version, WriterEpoch};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Least ratios of reads to writes that are tried.
const S: [f64; 6] = [0.0, 0.1, 0.3, 1.0, 4.0, 16.0];
/// Weights of the ratio that are tried.
const K: [f64; 2] = [1.0, 1000.0];
/// One block in so many is followed.
const SAMPLE: u64 = 8;
/// Share of a pair's worth that each window renews.
const NEW: f64 = 0.2;
/// Another pair has to be better by so much.
const BETTER: f64 = 0.01;
/// Weight of a move after the next one from the same site.
const FADE: f64 = 0.9;

/// Moves between sites, the latest of which weigh most.
#[derive(Clone, Debug)]
pub struct Transitions {
    sites: Vec<SiteId>,
    seen: BTreeMap<SiteId, BTreeMap<SiteId, f64>>,
}

impl Transitions {
    /// Begins with no move seen among these sites.
    pub fn new(sites: Vec<SiteId>) -> Self {
        Self {
            sites,
            seen: BTreeMap::new(),
        }
    }

    /// Notes a move.
    pub fn moved(&mut self, from: SiteId, to: SiteId) {
        let row = self.seen.entry(from).or_default();
        row.values_mut().for_each(|weight| *weight *= FADE);
        *row.entry(to).or_default() += 1.0;
    }

    /// Returns the probability of each destination from a site. Those not seen yet share the weight of one move.
    pub fn from(&self, site: SiteId) -> Destinations {
        let others: Vec<_> = self.sites.iter().filter(|it| **it != site).collect();
        let none = BTreeMap::new();
        let row = self.seen.get(&site).unwrap_or(&none);
        let share = 1.0 / f64::from(u32::try_from(others.len().max(1)).unwrap_or(u32::MAX));
        let sum = row.values().sum::<f64>() + 1.0;
        let of = |to: &&SiteId| (**to, (row.get(*to).unwrap_or(&0.0) + share) / sum);
        Destinations::new(others.iter().map(of).collect()).unwrap_or_default()
    }
}

/// One pair of parameters, and what it would have done.
#[derive(Clone, Debug)]
struct Shadow {
    knobs: Knobs,
    ahead: Propagation,
    /// Blocks that it has sent and that were not written since, by the window in which they were sent.
    there: BTreeMap<BlockNo, u64>,
    sent: u64,
    hits: u64,
    worth: f64,
}

/// Chooses K and S by what each pair would have done.
#[derive(Clone, Debug)]
pub struct Learner {
    shadows: Vec<Shadow>,
    chosen: usize,
    /// Reads at the destination that one block sent must be worth.
    price: f64,
    window: u64,
    /// Blocks written since the VM came here, by the window of the last write.
    written: BTreeMap<BlockNo, u64>,
    /// Blocks that the present window has read first, of those written before it.
    needed: BTreeSet<BlockNo>,
}

impl Learner {
    /// Begins with the paper's parameters. `price` is the number of reads at a destination that the sending of a
    /// block must be worth: 0 if the link costs nothing.
    pub fn new(budget: SendBudget, price: f64) -> Self {
        let part = SendBudget {
            rate: budget.rate / SAMPLE,
            burst: (budget.burst / SAMPLE).max(4096),
        };
        let of = |knobs| Shadow {
            knobs,
            // One destination: all that is sent goes there.
            ahead: Propagation::new(knobs, everything_goes(), part),
            there: BTreeMap::new(),
            sent: 0,
            hits: 0,
            worth: 0.0,
        };
        let pairs = S
            .iter()
            .flat_map(|s| K.iter().map(|k| Knobs { k: *k, s: *s }));
        let shadows: Vec<_> = pairs.map(of).collect();
        let chosen = shadows.iter().position(|it| it.knobs == Knobs::default());
        Self {
            shadows,
            chosen: chosen.unwrap_or_default(),
            price,
            window: 1,
            written: BTreeMap::new(),
            needed: BTreeSet::new(),
        }
    }

    /// Returns the parameters that are best now.
    pub fn knobs(&self) -> Knobs {
        self.shadows[self.chosen].knobs
    }

    /// Notes a read.
    pub fn read(&mut self, block: BlockNo) {
        if !is_sampled(block) {
            return;
        }
        let window = self.window;
        let before = self.written.get(&block).is_some_and(|at| *at < window);
        let first = before && self.needed.insert(block);
        for shadow in &mut self.shadows {
            shadow.ahead.read(block);
            let there = shadow.there.get(&block).is_some_and(|at| *at < window);
            shadow.hits += u64::from(first && there);
        }
    }

    /// Notes a write.
    pub fn written(&mut self, block: BlockNo) {
        if !is_sampled(block) {
            return;
        }
        self.written.insert(block, self.window);
        for shadow in &mut self.shadows {
            shadow.ahead.written(block);
            shadow.there.remove(&block);
        }
    }

    /// Notes that time has passed: shadows send.
    pub fn earn(&mut self, time: Duration) {
        for shadow in &mut self.shadows {
            shadow.ahead.earn(time);
            while let Some(send) = shadow.ahead.next(0.0, |_| Some(ANY)) {
                shadow.there.insert(send.block, self.window);
                shadow.sent += 1;
            }
        }
    }

    /// Ends a window; returns the parameters that are best then. Of a window in which nothing was read
    /// that had been written, nothing is learned.
    pub fn window_over(&mut self) -> Knobs {
        let needed = count(self.needed.len());
        for shadow in &mut self.shadows {
            if needed > 0.0 {
                let cost = self.price * number(shadow.sent);
                let worth = (number(shadow.hits) - cost) / needed;
                shadow.worth += NEW * (worth - shadow.worth);
            }
            (shadow.sent, shadow.hits) = (0, 0);
        }
        self.needed.clear();
        self.window += 1;
        let best = (0..self.shadows.len())
            .max_by(|a, b| self.shadows[*a].worth.total_cmp(&self.shadows[*b].worth));
        if let Some(best) = best
            && self.shadows[best].worth > self.shadows[self.chosen].worth + BETTER
        {
            self.chosen = best;
        }
        self.knobs()
    }

    /// Notes that the VM has moved: the site that it left has all that was written.
    pub fn moved(&mut self) {
        self.written.clear();
        self.needed.clear();
        for shadow in &mut self.shadows {
            shadow.ahead.moved(everything_goes());
            shadow.there.clear();
        }
    }
}

/// Content that shadows send.
const ANY: Stamp = Stamp {
    epoch: WriterEpoch(1),
    version: Version::FIRST,
};

fn everything_goes() -> Destinations {
    let site = SiteId::new(0).map(|site| vec![(site, 1.0)]);
    site.and_then(Destinations::new).unwrap_or_default()
}

/// Chosen by the number's hash: neighbours are not followed together.
fn is_sampled(block: BlockNo) -> bool {
    (block.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32).is_multiple_of(SAMPLE)
}

fn number(n: u64) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

fn count(n: usize) -> f64 {
    number(u64::try_from(n).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const BUDGET: SendBudget = SendBudget {
        rate: 64 << 20,
        burst: 64 << 20,
    };

    fn site(number: u8) -> SiteId {
        SiteId::new(number).expect("small")
    }

    #[test]
    fn destinations_are_those_that_were_moved_to_and_new_habits_replace_old_ones() {
        let mut seen = Transitions::new(vec![site(0), site(1), site(2)]);
        let wanted = Destinations::new(vec![(site(1), 0.5), (site(2), 0.5)]);
        assert_eq!(Some(seen.from(site(0))), wanted);
        for _ in 0..30 {
            seen.moved(site(0), site(1));
        }
        let draw = |seen: &Transitions, at| seen.from(site(0)).draw(at);
        assert_eq!(draw(&seen, 0.9), Some(site(1)));
        for _ in 0..30 {
            seen.moved(site(0), site(2));
        }
        assert_eq!(draw(&seen, 0.1), Some(site(2)));
        // Of another site nothing is known by that.
        assert_eq!(seen.from(site(1)).draw(0.4), Some(site(0)));
    }

    /// Blocks that are written twice and read once are sent by no pair with S above a half.
    #[test]
    fn what_is_read_less_than_written_is_sent_once_it_pays() {
        let mut learner = Learner::new(BUDGET, 0.02);
        assert_eq!(learner.knobs(), Knobs::default());
        for round in 0..40_u64 {
            for block in 0..800 {
                learner.written(BlockNo(round * 800 + block));
                learner.written(BlockNo(round * 800 + block));
            }
            learner.earn(SECOND);
            learner.window_over();
            for block in 0..800 {
                learner.read(BlockNo(round * 800 + block));
            }
        }
        assert!(learner.knobs().s < 0.5, "{:?}", learner.knobs());
    }

    /// With S = 1 each of the hot blocks is sent in every window, and is stale before it is wanted.
    #[test]
    fn what_is_written_all_the_time_is_not_sent_if_the_link_costs() {
        let mut learner = Learner::new(BUDGET, 0.02);
        let (hot, kept) = (0..800, 800..900);
        kept.clone()
            .for_each(|block| learner.written(BlockNo(block)));
        for _ in 0..60 {
            for block in hot.clone() {
                learner.written(BlockNo(block));
                learner.read(BlockNo(block));
                learner.read(BlockNo(block));
            }
            kept.clone().for_each(|block| learner.read(BlockNo(block)));
            learner.earn(SECOND);
            learner.window_over();
        }
        assert!(learner.knobs().s > 2.0, "{:?}", learner.knobs());
    }
}
