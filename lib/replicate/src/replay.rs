//! Replays of what a VM does with its disk, to compare ways of sending ahead.
//!
//! A trace is generated from a seed: accesses in steps of 100 ms, and moves among three sites at times that
//! nothing announces. The replay keeps which site has the latest version of each block, sends by the law
//! under a budget, and counts after each move what was read locally.

use crate::{Destinations, Knobs, Learner, Propagation, SendBudget, SiteId, Stamp, Transitions};
use forkyard_volume::{BLOCK_BYTES, BlockNo, Version, WriterEpoch};
use std::{collections::BTreeSet, time::Duration};

/// Time of a step.
const STEP: Duration = Duration::from_millis(100);
/// Steps of a window of learning: ten seconds.
const WINDOW: u64 = 100;
/// Steps after a move in which reads are counted: ten seconds.
const AFTER: u64 = 100;
/// Sites.
const SITES: u8 = 3;

/// Work of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayWork {
    /// Serves files that were put there once, and writes a log.
    Files,
    /// Changes a few pages all the time, reads many, and has a log that is written over.
    Database,
    /// Writes each message twice and reads it once, hours later or soon.
    Mail,
    /// A database by day, mail by night.
    Shifts,
}

impl ReplayWork {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Files, Self::Database, Self::Mail, Self::Shifts];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Database => "database",
            Self::Mail => "mail",
            Self::Shifts => "database and mail in turns",
        }
    }
}

/// Way to choose what is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SendStrategy {
    /// Nothing is sent.
    OnDemand,
    /// These parameters, and every other site as likely.
    Fixed(Knobs),
    /// These parameters, and a learned table.
    Table(Knobs),
    /// Learned parameters at this price, and a learned table.
    Learned {
        /// Reads that the sending of a block must be worth.
        price: f64,
    },
}

/// Result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplayOutcome {
    /// Moves.
    pub moves: u64,
    /// Reads in the ten seconds after a move.
    pub reads: u64,
    /// Those of them that the site could answer itself.
    pub local: u64,
    /// Blocks sent ahead.
    pub sent: u64,
    /// Blocks fetched when they were read.
    pub fetched: u64,
    /// Parameters at the end.
    pub knobs: Knobs,
}

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// From 0 up to 1.
    fn part(&mut self) -> f64 {
        f64::from(u32::try_from(self.next() >> 32).unwrap_or(0)) / 4_294_967_296.0
    }

    /// Of so many, the first ones far more often: each octave is as likely.
    fn favourite(&mut self, n: u64) -> u64 {
        let octaves = u64::from(64 - n.leading_zeros());
        let top = 1 << self.below(octaves).min(62);
        self.below(top.min(n))
    }
}

/// Sites, and the blocks that each lacks.
#[derive(Debug)]
struct Places {
    here: SiteId,
    /// Blocks of which each site lacks the latest version.
    lacks: Vec<BTreeSet<BlockNo>>,
    outcome: ReplayOutcome,
    /// Steps left in which reads are counted.
    counted: u64,
}

impl Places {
    fn lacks(&mut self, site: SiteId) -> &mut BTreeSet<BlockNo> {
        &mut self.lacks[site.index()]
    }

    fn read(&mut self, block: BlockNo) {
        let here = self.here;
        let fetched = self.lacks(here).remove(&block);
        self.outcome.fetched += u64::from(fetched);
        if self.counted > 0 {
            self.outcome.reads += 1;
            self.outcome.local += u64::from(!fetched);
        }
    }

    fn written(&mut self, block: BlockNo) {
        let here = self.here.index();
        for (site, lacks) in self.lacks.iter_mut().enumerate() {
            match site == here {
                true => lacks.remove(&block),
                false => lacks.insert(block),
            };
        }
    }
}

/// Replays a kind of work for so many minutes, sending at most so many bytes a second.
pub fn replay(
    work: ReplayWork,
    way: SendStrategy,
    minutes: u64,
    rate: u64,
    seed: u64,
) -> ReplayOutcome {
    let budget = SendBudget { rate, burst: rate };
    let sites: Vec<_> = (0..SITES).filter_map(SiteId::new).collect();
    let [home, near, far] = [sites[0], sites[1], sites[2]];
    let mut seen = Transitions::new(sites.clone());
    let even = Transitions::new(sites.clone());
    let table = |seen: &Transitions, here| match way {
        SendStrategy::OnDemand => Destinations::default(),
        SendStrategy::Fixed(_) => even.from(here),
        SendStrategy::Table(_) | SendStrategy::Learned { .. } => seen.from(here),
    };
    let (mut knobs, price) = match way {
        SendStrategy::OnDemand => (Knobs::default(), 0.0),
        SendStrategy::Fixed(knobs) | SendStrategy::Table(knobs) => (knobs, 0.0),
        SendStrategy::Learned { price } => (Knobs::default(), price),
    };
    let mut learner = Learner::new(budget, price);
    let mut ahead = Propagation::new(knobs, table(&seen, home), budget);
    let mut places = Places {
        here: home,
        lacks: vec![BTreeSet::new(); sites.len()],
        outcome: ReplayOutcome::default(),
        counted: 0,
    };
    // Dice of their own: every way is shown the same accesses, moves and draws.
    let (mut dice, mut travels, mut draws) = (Dice(seed), Dice(seed + 1), Dice(seed + 2));
    let mut trace = Trace::default();
    for step in 0..minutes * 600 {
        for access in trace.step(work, step, &mut dice) {
            match access {
                Access::Read(block) => {
                    places.read(block);
                    ahead.read(block);
                    learner.read(block);
                }
                Access::Write(block) => {
                    places.written(block);
                    ahead.written(block);
                    learner.written(block);
                }
            }
        }
        learner.earn(STEP);
        ahead.earn(STEP);
        send(&mut ahead, &mut places, &mut draws, way);
        places.counted = places.counted.saturating_sub(1);
        if step % WINDOW == WINDOW - 1 {
            let best = learner.window_over();
            if matches!(way, SendStrategy::Learned { .. }) && best != knobs {
                knobs = best;
                ahead.tune(knobs);
            }
        }
        // Once in four minutes; mostly to and fro between two of the three.
        if travels.below(2400) == 0 {
            let to = match (places.here, travels.below(10)) {
                (here, 0) if here != far => far,
                (here, _) if here == home => near,
                (_, _) => home,
            };
            seen.moved(places.here, to);
            places.here = to;
            places.counted = AFTER;
            places.outcome.moves += 1;
            learner.moved();
            ahead.moved(table(&seen, to));
        }
    }
    ReplayOutcome {
        knobs,
        ..places.outcome
    }
}

fn send(ahead: &mut Propagation, places: &mut Places, draws: &mut Dice, way: SendStrategy) {
    if way == SendStrategy::OnDemand {
        return;
    }
    let stamp = |_| {
        Some(Stamp {
            epoch: WriterEpoch(1),
            version: Version::FIRST,
        })
    };
    while let Some(send) = ahead.next(draws.part(), stamp) {
        places.lacks(send.to).remove(&send.block);
        places.outcome.sent += 1;
    }
}

impl ReplayOutcome {
    /// Returns the part of the reads after moves that were local.
    pub fn local_part(&self) -> f64 {
        part(self.local, self.reads)
    }

    /// Returns the bytes between sites.
    pub fn bytes(&self) -> u64 {
        (self.sent + self.fetched) * BLOCK_BYTES as u64
    }
}

fn part(of: u64, all: u64) -> f64 {
    let thousandths = u128::from(of) * 100_000 / u128::from(all.max(1));
    f64::from(u32::try_from(thousandths).unwrap_or(u32::MAX)) / 100_000.0
}

#[derive(Clone, Copy, Debug)]
enum Access {
    Read(BlockNo),
    Write(BlockNo),
}

/// Position in a trace.
#[derive(Debug, Default)]
struct Trace {
    log: u64,
    messages: u64,
}

/// Regions of the disk, by their first block.
const FILES: u64 = 0;
const PAGES: u64 = 1 << 20;
const LOG: u64 = 2 << 20;
const MESSAGES: u64 = 3 << 20;

impl Trace {
    fn step(&mut self, work: ReplayWork, step: u64, dice: &mut Dice) -> Vec<Access> {
        let mut done = Vec::new();
        match work {
            ReplayWork::Files => self.files(step, dice, &mut done),
            ReplayWork::Database => self.database(dice, &mut done),
            ReplayWork::Mail => self.mail(dice, &mut done),
            // Twenty minutes each.
            ReplayWork::Shifts if (step / 12_000).is_multiple_of(2) => {
                self.database(dice, &mut done)
            }
            ReplayWork::Shifts => self.mail(dice, &mut done),
        }
        done
    }

    fn files(&mut self, step: u64, dice: &mut Dice, done: &mut Vec<Access>) {
        // Some are put there anew each minute.
        if step.is_multiple_of(600) {
            let first = dice.below(20) * 200;
            done.extend((first..first + 200).map(|at| Access::Write(BlockNo(FILES + at))));
        }
        done.extend((0..20).map(|_| Access::Read(BlockNo(FILES + dice.favourite(4000)))));
        done.extend((0..4).map(|at| Access::Write(BlockNo(LOG + self.log + at))));
        self.log += 4;
    }

    fn database(&mut self, dice: &mut Dice, done: &mut Vec<Access>) {
        for _ in 0..10 {
            done.push(Access::Read(BlockNo(PAGES + dice.favourite(8000))));
        }
        for _ in 0..4 {
            let page = BlockNo(PAGES + dice.favourite(500));
            done.extend([Access::Read(page), Access::Write(page)]);
        }
        // Rows that are changed now and then, anywhere.
        done.push(Access::Write(BlockNo(PAGES + dice.below(8000))));
        done.push(Access::Write(BlockNo(LOG + self.log % 4096)));
        self.log += 1;
    }

    fn mail(&mut self, dice: &mut Dice, done: &mut Vec<Access>) {
        for _ in 0..4 {
            let message = BlockNo(MESSAGES + self.messages);
            done.extend([Access::Write(message), Access::Write(message)]);
            self.messages += 1;
        }
        for _ in 0..4 {
            // Most are new, some old.
            let back = 1 + dice.favourite(self.messages.clamp(1, 4000));
            let message = self.messages.saturating_sub(back);
            done.push(Access::Read(BlockNo(MESSAGES + message)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 256 << 10;

    #[test]
    fn what_is_learned_is_no_worse_than_what_is_fixed_and_better_where_that_is_wrong() {
        // At the same table, so that only the parameters differ.
        let of = |work, way| replay(work, way, 30, RATE, 7);
        for work in ReplayWork::ALL {
            let fixed = of(work, SendStrategy::Table(Knobs::default()));
            let learned = of(work, SendStrategy::Learned { price: 0.02 });
            assert_eq!(fixed.moves, learned.moves);
            let (fixed, learned) = (fixed.local_part(), learned.local_part());
            assert!(learned + 0.01 > fixed, "{work:?}: {learned} beside {fixed}");
            assert!(
                work != ReplayWork::Mail || learned > fixed + 0.1,
                "{learned} beside {fixed}"
            );
        }
    }

    #[test]
    fn without_sending_all_is_fetched_and_the_same_seed_gives_the_same() {
        let of = || replay(ReplayWork::Files, SendStrategy::OnDemand, 30, RATE, 7);
        let on_demand = of();
        assert_eq!(on_demand.sent, 0);
        assert!(on_demand.fetched > 0);
        assert_eq!(on_demand, of());
    }
}
