//! Names guests that do not adapt: section 4, "policing".
//!
//! The host samples what each guest uses and wants, and whether there is
//! congestion. A guest that follows the rules wants less some periods after
//! congestion began, or does not use more than its share when it begins: either
//! clears it. That it uses less afterwards does not: others may have kept it from
//! it. The host acts on what it measures and believes no guest's word.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// How strict it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PoliceConfig {
    /// Samples under congestion that a guest has to answer within: a control
    /// period of guests, and some for their averages to follow.
    pub patience: u32,
    /// Part of what it wanted when congestion began that it may want afterwards:
    /// an answer is a fall below. AIMD's divisor of 1.5 comes to 0.67.
    pub answer: f64,
    /// Times its fair share that a guest may use without answering.
    pub margin: f64,
    /// Answers missed on end until it is named.
    pub strikes: u32,
}

impl Default for PoliceConfig {
    fn default() -> Self {
        Self {
            patience: 4,
            answer: 0.85,
            margin: 1.25,
            strikes: 3,
        }
    }
}

/// What the host saw at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<Guest> {
    /// Whether the host is congested.
    pub congested: bool,
    /// What each guest uses.
    pub usage: BTreeMap<Guest, Use>,
}

/// What a guest uses, in any unit that is the same for all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// What it has had.
    pub used: f64,
    /// The same and what it waited for besides.
    pub wanted: f64,
}

/// A guest that does not adapt, and what shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding<Guest> {
    /// Which.
    pub guest: Guest,
    /// What it wanted when the last congestion began that it did not answer, and
    /// the least that this fell to before its time was up.
    pub before: f64,
    /// See `before`.
    pub fell_to: f64,
    /// What would have been its fair share then.
    pub share: f64,
    /// Answers missed on end.
    pub missed: u32,
}

/// One guest's trial.
#[derive(Clone, Debug, PartialEq)]
struct Trial {
    before: Use,
    /// What was its fair share then: of the same samples, for what others use
    /// changes from one to the next no less.
    share: f64,
    least: f64,
    samples: u32,
}

/// What is known of one guest.
#[derive(Clone, Debug, Default)]
struct Known {
    trial: Option<Trial>,
    missed: u32,
    /// What it used last: a single sample may catch it between two turns.
    recent: VecDeque<Use>,
}

impl Known {
    fn saw(&mut self, usage: Use) {
        const RECENT: usize = 3;
        self.recent.push_back(usage);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    fn usual(&self) -> Use {
        let mean = |part: fn(&Use) -> f64| {
            let sum: f64 = self.recent.iter().map(part).sum();
            sum / self.recent.len().max(1) as f64
        };
        Use {
            used: mean(|one| one.used),
            wanted: mean(|one| one.wanted),
        }
    }
}

/// Judges guests by samples.
#[derive(Clone, Debug)]
pub struct Police<Guest> {
    config: PoliceConfig,
    guests: BTreeMap<Guest, Known>,
}

impl<Guest: Clone + Ord> Police<Guest> {
    /// One that knows nobody.
    pub fn new(config: PoliceConfig) -> Self {
        Self {
            config,
            guests: BTreeMap::new(),
        }
    }

    /// Takes a sample; who is named by it, once for every `strikes` misses.
    pub fn sample(&mut self, sample: &Sample<Guest>) -> Vec<Finding<Guest>> {
        self.guests
            .retain(|guest, _| sample.usage.contains_key(guest));
        for (guest, &usage) in &sample.usage {
            self.guests.entry(guest.clone()).or_default().saw(usage);
        }
        let total: f64 = self.guests.values().map(|one| one.usual().used).sum();
        let share = total / self.guests.len().max(1) as f64;
        let mut found = Vec::new();
        for (guest, known) in &mut self.guests {
            if !sample.congested {
                known.trial = None;
                continue;
            }
            let wanted = sample.usage[guest].wanted;
            let Some(trial) = &mut known.trial else {
                let before = known.usual();
                if before.used <= self.config.margin * share {
                    known.missed = 0;
                } else {
                    known.trial = Some(Trial {
                        before,
                        share,
                        least: wanted,
                        samples: 0,
                    });
                }
                continue;
            };
            trial.least = trial.least.min(wanted);
            trial.samples += 1;
            if trial.least <= self.config.answer * trial.before.wanted {
                known.missed = 0;
                known.trial = None;
            } else if trial.samples >= self.config.patience {
                known.missed += 1;
                if known.missed.is_multiple_of(self.config.strikes.max(1)) {
                    found.push(Finding {
                        guest: guest.clone(),
                        before: trial.before.wanted,
                        fell_to: trial.least,
                        share: trial.share,
                        missed: known.missed,
                    });
                }
                known.trial = None;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Host, Sharers};

    /// One that waits for nothing.
    fn served(used: f64) -> Use {
        Use { used, wanted: used }
    }

    const HOST: Host = Host {
        capacity: 100.0,
        steepness: 8.0,
        noise: 0.05,
    };

    /// Friendly guests, beside which somebody uses `greedy` all the time; who is
    /// named after how many periods.
    fn soak(periods: u32, guests: usize, greedy: Option<f64>, seed: u64) -> Vec<(u32, usize)> {
        let starts = vec![5; guests];
        let left = HOST.capacity - greedy.unwrap_or(0.0);
        let host = Host {
            capacity: left.max(20.0),
            ..HOST
        };
        let mut sharers = Sharers::new(&Config::default(), &starts, host, seed);
        let mut police = Police::new(PoliceConfig::default());
        let mut named = Vec::new();
        for period in 0..periods {
            let round = sharers.period();
            let demand = round.demand.into_iter().chain(greedy);
            let usage: BTreeMap<usize, Use> = demand.map(served).enumerate().collect();
            // With somebody who never yields, there is congestion most times.
            let congested = round.slowdown > 2.5 || greedy.is_some() && period % 8 != 0;
            let found = police.sample(&Sample { congested, usage });
            named.extend(found.into_iter().map(|one| (period, one.guest)));
        }
        named
    }

    #[test]
    fn friendly_guests_are_never_named() {
        for seed in 0..5 {
            assert_eq!(soak(20_000, 5, None, seed), []);
        }
    }

    #[test]
    fn a_greedy_guest_is_named_soon_and_alone() {
        for seed in 0..5 {
            let named = soak(2_000, 4, Some(60.0), seed);
            let (first, _) = *named.first().expect("named");
            // Sampled every 2.5 s, that is within a minute.
            assert!(first < 24, "{first}");
            assert!(named.iter().all(|(_, guest)| *guest == 4), "{named:?}");
        }
    }

    #[test]
    fn evidence_is_what_was_seen() {
        let mut police = Police::new(PoliceConfig::default());
        let mut found = Vec::new();
        for _ in 0..40 {
            let usage = [("greedy", served(9.0)), ("modest", served(1.0))].into();
            found.extend(police.sample(&Sample {
                congested: true,
                usage,
            }));
        }
        let first = found.first().expect("named");
        let wanted = Finding {
            guest: "greedy",
            before: 9.0,
            fell_to: 9.0,
            share: 5.0,
            missed: 3,
        };
        assert_eq!(*first, wanted);
        assert!(found.iter().all(|one| one.guest == "greedy"));
    }

    #[test]
    fn who_is_kept_from_what_it_wants_has_not_answered() {
        let named = |wanted: fn(f64) -> f64| {
            let mut police = Police::new(PoliceConfig::default());
            let mut found = Vec::new();
            for period in 0..40 {
                // Something else takes the host from it every other time.
                let used = [2.0, 1.0][period % 2];
                let greedy = Use {
                    used,
                    wanted: wanted(used),
                };
                found.extend(police.sample(&Sample {
                    congested: true,
                    usage: [("greedy", greedy), ("modest", served(0.5))].into(),
                }));
            }
            found.len()
        };
        assert!(named(|_| 2.0) > 1);
        assert_eq!(named(|used| used), 0, "it wants less");
    }

    #[test]
    fn without_congestion_nobody_is_named() {
        let mut police = Police::new(PoliceConfig::default());
        for _ in 0..1_000 {
            let usage = [(1, served(9.0)), (2, served(1.0))].into();
            let found = police.sample(&Sample {
                congested: false,
                usage,
            });
            assert_eq!(found, []);
        }
    }
}
