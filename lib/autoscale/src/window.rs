//! Loads of the last while.

use std::{collections::VecDeque, time::Duration};

/// Loads measured since the set of servers changed last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    measured: VecDeque<Measured>,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    at: Duration,
    load: f64,
    /// Mean load of the span before.
    mean: f64,
}

impl Window {
    /// Adds a load, with the mean of the last `span`; forgets what is older than `kept`.
    pub(crate) fn push(&mut self, now: Duration, load: f64, span: Duration, kept: Duration) {
        let (mut sum, mut count) = (load, 1.0);
        for it in self.measured.iter().rev() {
            if it.at + span <= now {
                break;
            }
            sum += it.load;
            count += 1.0;
        }
        let mean = sum / count;
        self.measured.push_back(Measured {
            at: now,
            load,
            mean,
        });
        // The oldest of those that are left is as old as is asked for, or older.
        while self.measured.get(1).is_some_and(|it| it.at + kept <= now) {
            self.measured.pop_front();
        }
    }

    /// Mean at the last measurement; none if `span` has not been measured.
    pub(crate) fn mean(&self, span: Duration) -> Option<f64> {
        let (first, last) = (self.measured.front()?, self.measured.back()?);
        (first.at + span <= last.at).then_some(last.mean)
    }

    /// Highest mean in the last `long`; none if less than that has been measured.
    pub(crate) fn peak(&self, long: Duration) -> Option<f64> {
        let last = self.mean(long).and(self.measured.back())?.at;
        let recent = self.measured.iter().rev();
        let recent = recent.take_while(|it| it.at + long > last);
        recent.map(|it| it.mean).reduce(f64::max)
    }

    pub(crate) fn clear(&mut self) {
        self.measured.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_peaks_are_of_their_span_and_need_all_of_it() {
        let seconds = Duration::from_secs;
        let mut window = Window::default();
        let mut push = |at, load| {
            window.push(seconds(at), load, seconds(2), seconds(10));
            (window.mean(seconds(2)), window.peak(seconds(4)))
        };
        assert_eq!(push(0, 9.0), (None, None));
        assert_eq!(push(1, 2.0), (None, None));
        assert_eq!(push(2, 4.0), (Some(3.0), None));
        assert_eq!(push(3, 0.0), (Some(2.0), None));
        assert_eq!(push(4, 0.0), (Some(0.0), Some(5.5)));
        assert_eq!(push(5, 0.0), (Some(0.0), Some(3.0)));
        window.clear();
        assert_eq!(window.mean(seconds(0)), None);
    }
}
