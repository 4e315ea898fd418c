//! Signals that tell of congestion first.

use crate::{Measured, Signal};
use serde::Serialize;
use std::collections::BTreeMap;

/// Statistics of the episodes of congestion so far. An episode lasts from a signal that
/// comes up until none is, or until no other has come up for twelve periods: one may be
/// up for ever, such as the pressure of CPUs where two threads share one, and tells
/// nothing of those that come and go.
#[derive(Clone, Debug, Default)]
pub struct Leads {
    episode: Option<Episode>,
    /// Those raised in the period before.
    up: Vec<Signal>,
    tallies: BTreeMap<Signal, SignalRecord>,
}

/// One that is under way.
#[derive(Clone, Debug, Default)]
struct Episode {
    /// Periods since it began.
    age: u32,
    /// Periods since a signal came up.
    calm: u32,
    /// Those that have come up in it.
    seen: Vec<Signal>,
}

/// A minute, by the usual periods.
const CALM: u32 = 12;

/// Record of one signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SignalRecord {
    /// Episodes it was the first in, or among the first.
    pub first: u32,
    /// Episodes it was raised in, but after others.
    pub followed: u32,
    /// Periods it came behind the first, in all of those.
    pub behind: u32,
}

impl Leads {
    /// A period's signals.
    pub fn period(&mut self, signals: &[Measured]) {
        let raised = signals.iter().filter(|one| one.raised());
        let raised: Vec<Signal> = raised.map(|one| one.signal).collect();
        let before = std::mem::replace(&mut self.up, raised);
        let risen: Vec<Signal> = self
            .up
            .iter()
            .filter(|one| !before.contains(one))
            .copied()
            .collect();
        let under_way = self.episode.take().filter(|_| !self.up.is_empty());
        let mut episode = match under_way {
            Some(one) if one.calm < CALM => Episode {
                age: one.age + 1,
                calm: one.calm + 1,
                ..one
            },
            _ if risen.is_empty() => return,
            _ => Episode::default(),
        };
        for signal in risen {
            episode.calm = 0;
            if episode.seen.contains(&signal) {
                continue;
            }
            episode.seen.push(signal);
            let tally = self.tallies.entry(signal).or_default();
            match episode.age {
                0 => tally.first += 1,
                age => {
                    tally.followed += 1;
                    tally.behind += age;
                }
            }
        }
        self.episode = Some(episode);
    }

    /// Returns the record of each signal that was ever raised.
    pub fn tallies(&self) -> &BTreeMap<Signal, SignalRecord> {
        &self.tallies
    }

    /// The one that was first most often; of equals, the one that followed
    /// least. None if there was no congestion yet.
    pub fn leader(&self) -> Option<Signal> {
        let best = self
            .tallies
            .iter()
            .max_by_key(|(_, tally)| (tally.first, u32::MAX - tally.behind));
        best.filter(|(_, tally)| tally.first > 0)
            .map(|(signal, _)| *signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn period(raised: &[Signal]) -> Vec<Measured> {
        let all = [Signal::Vct, Signal::MemoryPressure, Signal::Steal];
        all.map(|signal| Measured {
            signal,
            value: if raised.contains(&signal) { 2.0 } else { 0.0 },
            threshold: 1.0,
        })
        .to_vec()
    }

    #[test]
    fn the_first_of_each_episode_is_counted_once() {
        use Signal::{MemoryPressure, Vct};
        let mut leads = Leads::default();
        assert_eq!(leads.leader(), None);
        for raised in [
            &[MemoryPressure][..],
            &[MemoryPressure],
            &[MemoryPressure, Vct],
            // A dip of one, while the other stays, is the same episode.
            &[Vct],
            &[Vct, MemoryPressure],
            &[],
            &[MemoryPressure, Vct],
            &[],
        ] {
            leads.period(&period(raised));
        }
        assert_eq!(leads.leader(), Some(MemoryPressure));
        let vct = leads.tallies()[&Vct];
        let wanted = SignalRecord {
            first: 1,
            followed: 1,
            behind: 2,
        };
        assert_eq!(vct, wanted);
        assert_eq!(leads.tallies().get(&Signal::Steal), None);
    }

    #[test]
    fn one_that_is_always_up_hides_nothing() {
        use Signal::{MemoryPressure, Steal, Vct};
        let mut leads = Leads::default();
        let mut go_on = |raised: &[Signal], periods| {
            for _ in 0..periods {
                leads.period(&period(raised));
            }
        };
        for _ in 0..3 {
            go_on(&[Steal], CALM + 1);
            go_on(&[Steal, MemoryPressure], 2);
            go_on(&[Steal, MemoryPressure, Vct], 5);
        }
        let first = |signal| leads.tallies()[&signal].first;
        assert_eq!([Steal, MemoryPressure, Vct].map(first), [1, 3, 0]);
        assert_eq!(leads.tallies()[&Vct].behind, 3 * 2);
    }
}
