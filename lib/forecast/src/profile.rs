//! The rhythm of days: how much was wanted at a time of day on the days before.

use crate::Millis;
use serde::{Deserialize, Serialize};

/// Parts of a day.
const PARTS: usize = 96;
const DAY: u64 = 86_400_000;
const PART: u64 = DAY / PARTS as u64;
/// Weight of the latest day: the one before has half of it, and so on.
const LATEST: f64 = 0.5;

/// The largest window of each part of a day, smoothed over days.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Profile {
    /// As many as there are parts, or none before the first arrival.
    parts: Vec<Part>,
}

/// One part of a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Part {
    /// Over the days before `day`.
    before: f64,
    /// Number of the day that is counted.
    day: u64,
    /// The largest window of that day.
    largest: u16,
}

impl Part {
    /// Largest window that is expected of it on a day, by the days before that.
    fn expected(self, day: u64) -> f64 {
        match day.checked_sub(self.day) {
            None | Some(0) => self.before,
            Some(days) => {
                let known = self.before * (1.0 - LATEST) + f64::from(self.largest) * LATEST;
                // Days on which there was nothing.
                let missed = i32::try_from(days - 1).unwrap_or(i32::MAX);
                known * (1.0 - LATEST).powi(missed)
            }
        }
    }
}

impl Profile {
    /// Notes a window of this size.
    pub fn note(&mut self, at: Millis, size: u16) {
        self.parts.resize(PARTS, Part::default());
        let (index, day) = place(at);
        let Some(part) = self.parts.get_mut(index) else {
            return;
        };
        if part.day != day {
            *part = Part {
                before: part.expected(day),
                day,
                largest: 0,
            };
        }
        part.largest = part.largest.max(size);
    }

    /// The largest window that is expected in the part of the day at this time.
    pub fn expected(&self, at: Millis) -> f64 {
        let (index, day) = place(at);
        self.parts.get(index).map_or(0.0, |part| part.expected(day))
    }
}

/// A part of a day, and the number of the day.
fn place(at: Millis) -> (usize, u64) {
    let index = usize::try_from(at.0 % DAY / PART).unwrap_or(0);
    (index, at.0 / DAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_at_a_time_of_day_is_expected_there_and_forgotten_in_time() {
        let mut profile = Profile::default();
        let nine = |day: u64| Millis(day * DAY + 9 * 3_600_000);
        assert!(profile.expected(nine(0)) < 0.1);
        profile.note(nine(0), 8);
        // Not on the day itself: that is what the windows are for.
        assert!(profile.expected(nine(0)) < 0.1);
        for day in 1..5 {
            profile.note(nine(day), 8);
        }
        let at = |day: u64| profile.expected(nine(day));
        assert!(at(5) > 7.0, "{}", at(5));
        assert!(profile.expected(Millis(nine(5).0 + 2 * PART)) < 0.1);
        assert!(at(6) < at(5) && at(10) < 0.5, "{} {}", at(6), at(10));
    }
}
