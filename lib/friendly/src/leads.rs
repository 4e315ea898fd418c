//! Which signal tells of congestion first.

use crate::{Measured, Signal};
use serde::Serialize;
use std::collections::BTreeMap;

/// What came of the episodes of congestion so far. An episode lasts from the
/// first signal that is raised until none is.
#[derive(Clone, Debug, Default)]
pub struct Leads {
    /// Periods since the episode began, and those raised in it.
    episode: Option<(u32, Vec<Signal>)>,
    tallies: BTreeMap<Signal, Tally>,
}

/// How one signal did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
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
        let raised = || signals.iter().filter(|one| one.raised());
        if raised().next().is_none() {
            self.episode = None;
            return;
        }
        let (age, seen) = match self.episode.take() {
            Some((age, seen)) => (age + 1, seen),
            None => (0, Vec::new()),
        };
        let mut seen = seen;
        for one in raised() {
            if seen.contains(&one.signal) {
                continue;
            }
            seen.push(one.signal);
            let tally = self.tallies.entry(one.signal).or_default();
            match age {
                0 => tally.first += 1,
                _ => {
                    tally.followed += 1;
                    tally.behind += age;
                }
            }
        }
        self.episode = Some((age, seen));
    }

    /// How each signal did that was ever raised.
    pub fn tallies(&self) -> &BTreeMap<Signal, Tally> {
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
        let wanted = Tally {
            first: 1,
            followed: 1,
            behind: 2,
        };
        assert_eq!(vct, wanted);
        assert_eq!(leads.tallies().get(&Signal::Steal), None);
    }
}
