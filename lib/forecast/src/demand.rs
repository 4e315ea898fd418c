//! Demand as it was seen, and what it asks for now.
//!
//! VMs that are wanted within a few seconds have to be ready before, for making another one takes as long.
//! So arrivals are counted in windows of [`WINDOW`]. A stock of some size serves all windows up to
//! that size; it is held for as long as another such window is to be expected, judged by the gaps
//! between those that there were: where these are alike, as those of a timer are, it is there shortly before the
//! next one is due and not in between; otherwise for as long as nearly all of them lasted. And the
//! [rhythm of days](crate::profile) has it be there again before the first of a morning.

use crate::{Millis, profile::Profile};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};

/// Length of a window.
pub const WINDOW: Millis = Millis::secs(10);
/// Windows that are remembered.
const REMEMBERED: usize = 64;
/// Part of all arrivals that are to find one ready, as far as windows go.
const SERVED: f64 = 0.95;
/// Part of the gaps that a stock is to last through.
const GAPS: f64 = 0.9;
/// Bounds of the time for which a stock is held after the last window that it was for.
const SHORTEST: Millis = Millis::secs(60);
const LONGEST: Millis = Millis::secs(2 * 3600);
/// Time for which it is held where there was one such window, and no gap.
const UNKNOWN: Millis = Millis::secs(600);
/// Gaps that differ by one part in so many are those of a timer, if there are enough of them.
const REGULAR: u64 = 20;
const ENOUGH: usize = 3;
/// Time before which it is made ready for what is due at a time.
const AHEAD: Millis = Millis::secs(60);

/// Arrivals within a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Window {
    begun: Millis,
    size: u16,
}

/// Demand for VMs of one kind, as it was seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Demand {
    /// The latest last.
    windows: VecDeque<Window>,
    days: Profile,
}

impl Demand {
    /// Notes that one was wanted. Times do not go back; one that does counts as the latest.
    pub fn arrived(&mut self, at: Millis) {
        let size = match self.windows.back_mut() {
            Some(last) if at.since(last.begun) < WINDOW => {
                last.size = last.size.saturating_add(1);
                last.size
            }
            Some(_) | None => {
                self.windows.push_back(Window { begun: at, size: 1 });
                1
            }
        };
        if self.windows.len() > REMEMBERED {
            self.windows.pop_front();
        }
        self.days.note(at, size);
    }

    /// Number that is to be ready now.
    pub fn wanted(&self, now: Millis) -> u16 {
        self.by_windows(now).max(self.by_days(now))
    }

    fn by_days(&self, now: Millis) -> u16 {
        let expected = self.days.expected(now);
        rounded(expected.max(self.days.expected(now.after(AHEAD))))
    }

    fn by_windows(&self, now: Millis) -> u16 {
        let largest = self.worth_serving();
        let sizes: BTreeSet<u16> = self.windows.iter().map(|window| window.size).collect();
        let sizes = sizes.into_iter().rev().filter(|size| *size <= largest);
        let mut held = sizes.filter(|size| self.is_held(*size, now));
        held.next().unwrap_or(0)
    }

    /// The smallest stock that serves nearly all arrivals, of those remembered: larger windows are
    /// served in part.
    fn worth_serving(&self) -> u16 {
        let mut sizes: Vec<u16> = self.windows.iter().map(|window| window.size).collect();
        sizes.sort_unstable();
        let all: f64 = sizes.iter().map(|size| f64::from(*size)).sum();
        let mut so_far = 0.0;
        let enough = sizes.iter().find(|size| {
            so_far += f64::from(**size);
            so_far >= SERVED * all
        });
        enough.copied().unwrap_or(0)
    }

    /// Checks if another window of this size, or a larger one, is to be expected.
    fn is_held(&self, size: u16, now: Millis) -> bool {
        let such = self.windows.iter().filter(|window| window.size >= size);
        let begun: Vec<Millis> = such.map(|window| window.begun).collect();
        let Some(last) = begun.last() else {
            return false;
        };
        let pairs = begun.windows(2);
        let mut gaps: Vec<Millis> = pairs
            .filter_map(|pair| Some(pair.last()?.since(*pair.first()?)))
            .collect();
        gaps.sort_unstable();
        let since = now.since(*last);
        if let Some((least, most)) = regular(&gaps) {
            let due = least.since(AHEAD)..=most.after(SHORTEST);
            return since <= SHORTEST || due.contains(&since);
        }
        let lasts = match gaps.get(index(gaps.len(), GAPS)) {
            // And half as long again: the next one may be a little later.
            Some(gap) => Millis(gap.0.saturating_add(gap.0 / 2)).clamp(SHORTEST, LONGEST),
            None => UNKNOWN,
        };
        since <= lasts
    }
}

/// The least and the largest of gaps that are sorted, if they are alike, as those of a timer are.
fn regular(gaps: &[Millis]) -> Option<(Millis, Millis)> {
    let (least, most) = (*gaps.first()?, *gaps.last()?);
    let alike = most.since(least).0 <= (least.0 / REGULAR).max(WINDOW.0);
    (gaps.len() >= ENOUGH && alike && least > Millis(2 * SHORTEST.0)).then_some((least, most))
}

/// Place of a part in so many that are sorted.
fn index(len: usize, part: f64) -> usize {
    let last = u32::try_from(len.saturating_sub(1)).unwrap_or(u32::MAX);
    let place = usize::from(rounded(f64::from(last) * part));
    place.min(len.saturating_sub(1))
}

/// The nearest whole number.
fn rounded(value: f64) -> u16 {
    let bounded = value.round().clamp(0.0, f64::from(u16::MAX));
    // Within the bounds of the type.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = bounded as u16;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn after(arrivals: &[u64]) -> Demand {
        let mut demand = Demand::default();
        arrivals
            .iter()
            .for_each(|at| demand.arrived(Millis::secs(*at)));
        demand
    }

    #[test]
    fn nothing_is_wanted_before_the_first_and_one_after_it_for_a_while() {
        assert_eq!(Demand::default().wanted(Millis(0)), 0);
        let demand = after(&[1000]);
        assert_eq!(demand.wanted(Millis::secs(1001)), 1);
        assert_eq!(demand.wanted(Millis::secs(1000 + 601)), 0);
    }

    #[test]
    fn what_comes_in_bursts_is_held_in_their_size_while_the_next_is_to_be_expected() {
        let burst = |at: u64| std::iter::repeat_n(at, 20);
        let every = |gap: u64| (1..6).flat_map(move |nth| burst(nth * gap));
        let demand = after(&every(300).collect::<Vec<_>>());
        // As of a timer: not in between.
        assert_eq!(demand.wanted(Millis::secs(1500 + 100)), 0);
        assert_eq!(demand.wanted(Millis::secs(1500 + 299)), 20);
        assert_eq!(demand.wanted(Millis::secs(1500 + 451)), 0);
        let late = after(
            &[0, 300, 600, 900, 1500]
                .map(burst)
                .into_iter()
                .flatten()
                .collect::<Vec<_>>(),
        );
        assert_eq!(late.wanted(Millis::secs(1500 + 100)), 20);
        assert_eq!(late.wanted(Millis::secs(1500 + 901)), 0);
        // Between single ones, which go on.
        let mixed: BTreeSet<(u64, u64)> = every(300)
            .zip(1..)
            .chain((1..200).map(|nth| (nth * 30, 0)))
            .collect();
        let times: Vec<u64> = mixed.into_iter().map(|(at, _)| at).collect();
        let demand = after(&times);
        assert_eq!(demand.wanted(Millis::secs(199 * 30 + 1)), 1);
    }

    #[test]
    fn a_steady_rate_is_held_for_the_length_of_a_window() {
        let demand = after(&(0..400).map(|nth| nth / 2).collect::<Vec<_>>());
        let wanted = demand.wanted(Millis::secs(200));
        assert!((18..=22).contains(&wanted), "{wanted}");
    }

    proptest! {
        #[test]
        fn no_more_is_wanted_than_ever_came_at_once_and_in_the_end_nothing(
            gaps in prop::collection::vec(0u64..4000, 1..80),
            later in 0u64..100_000,
        ) {
            let mut at = 0;
            let times: Vec<u64> = gaps.iter().map(|gap| { at += gap; at }).collect();
            let demand = after(&times);
            let now = Millis::secs(at + later);
            let ever = (0..times.len()).map(|n| {
                times.iter().filter(|it| (times[n]..times[n] + 10).contains(*it)).count()
            }).max().unwrap_or(0);
            prop_assert!(usize::from(demand.wanted(now)) <= ever);
            prop_assert_eq!(demand.wanted(Millis::secs(at + 30 * 86_400)), 0);
        }
    }
}
