//! Replay of a policy on a trace: hits, memory spent, and waits.
//!
//! VMs are made by [`Times::at_once`] makers, those that are waited for first. A maker that has begun
//! one for the stock ends that first.

use crate::{Demand, Millis};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

/// Between two looks at how many are wanted.
const LOOK: Millis = Millis::secs(5);

/// Kind of the stock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stock {
    /// None.
    None,
    /// Always so many.
    Fixed(u16),
    /// As many as are forecast.
    Forecast,
}

/// Times that things take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Taking a ready one.
    pub take: Millis,
    /// Making one, to be ready or for the user that waits.
    pub make: Millis,
    /// Number made at a time.
    pub at_once: usize,
}

/// Outcome of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForecastOutcome {
    /// VMs that were wanted.
    pub asked: u64,
    /// Those that were ready.
    pub hits: u64,
    /// VMs that were ready, over all the time: times the memory of one it is the memory spent.
    pub mean_ready: f64,
    /// Waits: of half of the users at most this.
    pub median: Millis,
    /// Of 99 in 100 at most this.
    pub p99: Millis,
}

impl ForecastOutcome {
    /// Part of the VMs wanted that were ready.
    pub fn hit_rate(&self) -> f64 {
        match self.asked {
            0 => 0.0,
            asked => self.hits as f64 / asked as f64,
        }
    }
}

/// A maker is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Done {
    /// With one for the stock.
    Stock,
    /// With one for the user that asked then.
    User(Millis),
}

#[derive(Debug)]
struct Run {
    stock: Stock,
    times: Times,
    most: u16,
    demand: Demand,
    now: Millis,
    /// Wanted, when that was looked at last.
    wanted: u16,
    ready: u16,
    /// For the stock.
    under_way: u16,
    done: BinaryHeap<Reverse<(Millis, Done)>>,
    waiting: VecDeque<Millis>,
    waits: Vec<Millis>,
    hits: u64,
    spent: f64,
}

/// Replays arrivals, in their order, until the last of them has its VM. At most `most` are held.
pub fn replay(arrivals: &[Millis], stock: Stock, times: Times, most: u16) -> ForecastOutcome {
    let mut run = Run {
        stock,
        times,
        most,
        demand: Demand::default(),
        now: Millis(0),
        wanted: 0,
        ready: 0,
        under_way: 0,
        done: BinaryHeap::new(),
        waiting: VecDeque::new(),
        waits: Vec::new(),
        hits: 0,
        spent: 0.0,
    };
    for at in arrivals {
        run.until(*at);
        run.arrive();
    }
    let end = run.now;
    while !run.waiting.is_empty() || run.done.iter().any(|it| matches!(it.0.1, Done::User(_))) {
        let next = run.now.after(LOOK);
        run.until(next);
    }
    run.waits.sort_unstable();
    let asked = run.waits.len();
    let wait = |part: usize| {
        let at = asked * part / 100;
        let wait = run.waits.get(at.min(asked.saturating_sub(1)));
        wait.copied().unwrap_or_default()
    };
    ForecastOutcome {
        asked: arrivals.len() as u64,
        hits: run.hits,
        mean_ready: run.spent / (end.0.max(1) as f64),
        median: wait(50),
        p99: wait(99),
    }
}

impl Run {
    /// Has time pass, and all happen that does.
    fn until(&mut self, end: Millis) {
        loop {
            self.make();
            let look = Millis((self.now.0 / LOOK.0 + 1) * LOOK.0);
            let done = self.done.peek().map(|it| it.0.0);
            let next = done.map_or(look, |done| done.min(look)).min(end);
            self.spent += f64::from(self.ready) * next.since(self.now).0 as f64;
            self.now = next;
            while let Some(Reverse((at, done))) = self.done.peek().copied() {
                if at > self.now {
                    break;
                }
                self.done.pop();
                match done {
                    Done::Stock => {
                        self.under_way -= 1;
                        self.ready += 1;
                    }
                    Done::User(asked) => self.waits.push(at.since(asked)),
                }
            }
            if self.now == look {
                self.look();
            }
            if self.now >= end {
                return;
            }
        }
    }

    /// Looks how many are wanted; those that are too many go.
    fn look(&mut self) {
        let wanted = match self.stock {
            Stock::None => 0,
            Stock::Fixed(count) => count,
            Stock::Forecast => self.demand.wanted(self.now),
        };
        self.wanted = wanted.min(self.most);
        self.ready = self.ready.min(self.wanted);
    }

    fn arrive(&mut self) {
        self.demand.arrived(self.now);
        match self.ready.checked_sub(1) {
            Some(left) => {
                self.ready = left;
                self.hits += 1;
                self.waits.push(self.times.take);
            }
            None => self.waiting.push_back(self.now),
        }
    }

    /// Has makers begin what there is to do.
    fn make(&mut self) {
        while self.done.len() < self.times.at_once {
            let done = match self.waiting.pop_front() {
                Some(asked) => Done::User(asked),
                None if self.ready + self.under_way < self.wanted => {
                    self.under_way += 1;
                    Done::Stock
                }
                None => return,
            };
            let at = self.now.after(self.times.make);
            self.done.push(Reverse((at, done)));
        }
    }
}

#[cfg(test)]
mod tests;
