//! Names guests that do not adapt: section 4, "policing".
//!
//! The host samples what each guest uses, and what it wants besides and waits for. A
//! guest is on trial if it has more than a fair share while others wait for theirs:
//! the share that max-min fairness gives it, so that what one does not want is for the
//! others. One that follows the rules answers by wanting less, or has no more than its
//! share on average, and is cleared. That it uses less for a moment does not clear it:
//! others may have kept it from it. No guest is asked for less than a thread, nor tried for
//! the wish for more: a guest of one CPU wants that one, whether one thread runs there or
//! fifty. The host acts on what it measures and believes no guest's word.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Strictness of the police.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PoliceConfig {
    /// Part of what others want that they have to wait for, or more, for a guest to
    /// be on trial.
    pub waiting: f64,
    /// Samples that a guest has to answer within: three control periods of guests,
    /// for after a step down they wait for two before the next.
    pub patience: u32,
    /// Part of what it wanted when its trial began that it may want afterwards: an
    /// answer is a fall below. AIMD's divisor of 1.5 comes to 0.67.
    pub answer: f64,
    /// Times its fair share that a guest may use without answering.
    pub margin: f64,
    /// CPUs that it wants in excess of what would bring it its share, at the least, for it
    /// to be asked: guests yield whole threads, and one that has two where others have one
    /// cannot come nearer to them but by turns.
    pub least: f64,
    /// Answers missed on end until it is named.
    pub strikes: u32,
}

impl PoliceConfig {
    const DEFAULT: Self = Self {
        waiting: 0.5,
        patience: 8,
        answer: 0.85,
        margin: 1.25,
        least: 1.0,
        strikes: 3,
    };
}

impl Default for PoliceConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Use of each guest that the host saw at one time.
pub type UseSample<Guest> = BTreeMap<Guest, CpuUse>;

/// Use of a guest, in CPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuUse {
    /// Time it has had.
    pub used: f64,
    /// Time it has had, and time it waited for besides.
    pub wanted: f64,
    /// Weight of its share, among those of others.
    pub weight: f64,
}

impl CpuUse {
    fn waited(&self) -> f64 {
        (self.wanted - self.used).max(0.0)
    }
}

/// A guest that does not adapt, and what shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding<Guest> {
    /// Guest.
    pub guest: Guest,
    /// Demand when the last trial began that it did not answer, and the least that
    /// this fell to before its time was up.
    pub before: f64,
    /// See `before`.
    pub fell_to: f64,
    /// Use meanwhile, on average.
    pub used: f64,
    /// Fair share meanwhile, on average.
    pub share: f64,
    /// Answers missed on end.
    pub missed: u32,
}

/// One guest's trial.
#[derive(Clone, Debug, PartialEq)]
struct Trial {
    before: CpuUse,
    least: f64,
    samples: u32,
    /// Sums over the samples: what was used, and the fair shares.
    used: f64,
    share: f64,
}

/// The level up to which all may have what they want, times their weights, so that it
/// comes to what they have used together: max-min fairness.
fn level(guests: impl Iterator<Item = CpuUse> + Clone) -> f64 {
    let mut left: f64 = guests.clone().map(|one| one.used).sum();
    let weight = |one: &CpuUse| one.weight.max(f64::MIN_POSITIVE);
    let mut wishes: Vec<(f64, f64)> = guests
        .map(|one| (one.wanted / weight(&one), weight(&one)))
        .collect();
    wishes.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let mut weights: f64 = wishes.iter().map(|(_, weight)| weight).sum();
    for (wish, weight) in wishes {
        if wish * weights >= left {
            return left / weights;
        }
        left -= wish * weight;
        weights -= weight;
    }
    // All have what they want.
    f64::INFINITY
}

/// Knowledge of one guest.
#[derive(Clone, Debug, Default)]
struct Known {
    trial: Option<Trial>,
    missed: u32,
    /// Last uses: a single sample may catch it between two turns.
    recent: VecDeque<CpuUse>,
}

impl Known {
    fn saw(&mut self, usage: CpuUse) {
        const RECENT: usize = 3;
        self.recent.push_back(usage);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    fn usual(&self) -> CpuUse {
        let mean = |part: fn(&CpuUse) -> f64| {
            let sum: f64 = self.recent.iter().map(part).sum();
            sum / self.recent.len().max(1) as f64
        };
        CpuUse {
            used: mean(|one| one.used),
            wanted: mean(|one| one.wanted),
            weight: mean(|one| one.weight),
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
    /// Police that know no guest.
    pub fn new(config: PoliceConfig) -> Self {
        Self {
            config,
            guests: BTreeMap::new(),
        }
    }

    /// Takes a sample; returns the guests named by it, once for every `strikes` misses.
    pub fn sample(&mut self, sample: &UseSample<Guest>) -> Vec<Finding<Guest>> {
        self.guests.retain(|guest, _| sample.contains_key(guest));
        for (guest, &usage) in sample {
            self.guests.entry(guest.clone()).or_default().saw(usage);
        }
        let level = level(self.guests.values().map(Known::usual));
        let sum = |part: fn(&CpuUse) -> f64| sample.values().map(part).sum::<f64>();
        let (waited, wanted) = (sum(CpuUse::waited), sum(|one| one.wanted));
        let config = self.config;
        let mut found = Vec::new();
        for (guest, known) in &mut self.guests {
            let usage = sample[guest];
            let others = (waited - usage.waited(), wanted - usage.wanted);
            if others.1 <= 0.0 || others.0 < config.waiting * others.1 {
                known.trial = None;
                continue;
            }
            let usual = known.usual();
            let share = usual.wanted.min(level * usual.weight);
            let over = |used: f64, share: f64| {
                let excess = usual.wanted * (1.0 - share / used.max(f64::MIN_POSITIVE));
                used > config.margin * share && excess >= config.least
            };
            let Some(trial) = &mut known.trial else {
                if over(usual.used, share) {
                    known.trial = Some(Trial {
                        before: usual,
                        least: usage.wanted,
                        samples: 0,
                        used: 0.0,
                        share: 0.0,
                    });
                } else {
                    known.missed = 0;
                }
                continue;
            };
            trial.least = trial.least.min(usage.wanted);
            trial.samples += 1;
            trial.used += usual.used;
            trial.share += share;
            let answered = trial.least <= config.answer * trial.before.wanted;
            if !answered && trial.samples < config.patience {
                continue;
            }
            if answered || !over(trial.used, trial.share) {
                known.missed = 0;
            } else {
                known.missed += 1;
                if known.missed.is_multiple_of(config.strikes.max(1)) {
                    let samples = f64::from(trial.samples);
                    found.push(Finding {
                        guest: guest.clone(),
                        before: trial.before.wanted,
                        fell_to: trial.least,
                        used: trial.used / samples,
                        share: trial.share / samples,
                        missed: known.missed,
                    });
                }
            }
            known.trial = None;
        }
        found
    }
}

#[cfg(test)]
mod tests;
