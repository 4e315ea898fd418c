//! Decision whether a member keeps up with its group.
//!
//! ```text
//!            loses, others do not           a small part of what others get, three times
//! Keeps ---------------------------> Tried -------------------------------------------> Alone
//!   ^ <-- loses nothing any more --'   |                                                  |
//!   | <------------ after a while -- Slows <-- tried for long enough                      |
//!   '-------------------------------------------- has caught up, and after a while -------'
//! ```
//!
//! What is sent to all goes at the pace of the slowest, so that what one cannot take does
//! not have to be sent to all again and again. But one that is far slower than the rest would
//! hold all of them up. How far behind it is does not show while they go at its pace: so
//! when it alone loses packets it does not count for a while. If the rest then get
//! many times what it gets, it is left out of the group, and served alone; else
//! the group waits for it. A member left out twice is left out for longer.
//!
//! No clock: the caller passes `now`.

use crate::wire::Seq;
use std::time::{Duration, Instant};

/// A window lasts so long, at least.
const WINDOW: Duration = Duration::from_millis(20);
/// And until so many packets went to the group.
const ENOUGH: u64 = 32;
/// Loss above which a member cannot take more.
const LOSES: f64 = 0.08;
/// Part of others' share below which a member is far behind.
const FAR: f64 = 0.25;
/// In so many windows, one after the other.
const PERSISTENT: u8 = 3;
/// So many windows it is waited for the others to show what they can take.
const TRIAL: u8 = 12;
/// Time until a slow member is tried again, or one left out is let in again.
const AGAIN: Duration = Duration::from_secs(2);
/// Longest pause, up to which it doubles.
const SELDOM: Duration = Duration::from_secs(64);
/// Between two times that it is told to leave the group.
const TOLD: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    state: State,
    window: Option<Window>,
    last: Option<Share>,
    /// Time it is left out the next time.
    pause: Duration,
    /// Time at which it was let in again after it had been left out.
    returned: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Keeps,
    /// Does not count, for so many windows yet; in so many it was far behind.
    Tried {
        left: u8,
        far: u8,
    },
    /// Counts, however slow it is.
    Slows {
        until: Instant,
    },
    Alone {
        until: Instant,
        told: Instant,
    },
}

/// Packets to the group during the time in which their arrival is counted.
#[derive(Clone, Copy, Debug)]
struct Window {
    since: Instant,
    /// Last packet before.
    before: Seq,
    came: u64,
    sent: u64,
    lost: u64,
}

/// Part of the packets to the group that arrived in a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// Of all that the server sent meanwhile.
    came: f64,
    /// Of all that it knows of, it lost this.
    lost: f64,
}

/// Conclusion from a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Of so many packets it lost so many, and that counts.
    Counts { sent: u64, lost: u64 },
    /// The losses do not count.
    Excused,
    /// The member is left out from now on.
    LeftOut,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            state: State::Keeps,
            window: None,
            last: None,
            pause: AGAIN,
            returned: None,
        }
    }
}

impl Pace {
    /// Tells whether the group goes on without it.
    pub fn is_alone(&self) -> bool {
        matches!(self.state, State::Alone { .. })
    }

    /// Tells whether the group goes at its pace, if that is the slowest.
    pub fn counts(&self) -> bool {
        matches!(self.state, State::Keeps | State::Slows { .. })
    }

    /// Tells whether it may not know that it is let in again.
    pub fn has_returned(&self) -> bool {
        self.returned.is_some() && !self.is_alone()
    }

    /// Returns the share that arrived in the last window.
    pub fn share(&self) -> Option<Share> {
        self.last.filter(|_| !self.is_alone())
    }

    /// Notes that it hears the group, of which it has got so many packets by
    /// now.
    pub fn starts(&mut self, came: u64, newest: Seq, now: Instant) {
        self.last = None;
        self.window = Some(Window {
            since: now,
            before: newest,
            came,
            sent: 0,
            lost: 0,
        });
    }

    /// Notes its report on how many packets it got, and that of so many more it lost so
    /// many. Answers whether that is the end of a window, which then
    /// [judges](Self::judge) it.
    pub fn hears(&mut self, (sent, lost): (u64, u64), newest: Seq, now: Instant) -> bool {
        let Some(window) = &mut self.window else {
            return false;
        };
        window.sent = window.sent.saturating_add(sent);
        window.lost = window.lost.saturating_add(lost);
        let passed = now.saturating_duration_since(window.since);
        passed >= WINDOW && newest.0.saturating_sub(window.before.0) >= ENOUGH
    }

    /// Judges it by what came to it, and by what came to the others.
    pub fn judge(&mut self, came: u64, newest: Seq, others: Vec<Share>, now: Instant) -> Verdict {
        let Some(window) = self.window else {
            return Verdict::Excused;
        };
        self.starts(came, newest, now);
        let all = newest.0.saturating_sub(window.before.0).max(1);
        let share = Share {
            came: came.saturating_sub(window.came) as f64 / all as f64,
            lost: window.lost as f64 / window.sent.max(1) as f64,
        };
        self.last = Some(share);
        self.step(share, others, now);
        match self.state {
            State::Alone { .. } => Verdict::LeftOut,
            State::Tried { .. } => Verdict::Excused,
            State::Keeps | State::Slows { .. } => Verdict::Counts {
                sent: window.sent,
                lost: window.lost,
            },
        }
    }

    fn step(&mut self, share: Share, others: Vec<Share>, now: Instant) {
        let far = middle(&others, |share| share.came).is_some_and(|came| share.came < came * FAR);
        let kept = middle(&others, |share| 1.0 - share.lost);
        let others_lose = kept.is_none_or(|kept| kept < 1.0 - LOSES);
        let behind = far || share.lost > LOSES;
        self.state = match self.state {
            State::Slows { until } if now < until => State::Slows { until },
            State::Keeps | State::Slows { .. } if behind && !others_lose => State::Tried {
                left: TRIAL,
                far: u8::from(far),
            },
            State::Keeps | State::Slows { .. } => State::Keeps,
            State::Tried { .. } if !behind => State::Keeps,
            State::Tried { left: 0, .. } => State::Slows { until: now + AGAIN },
            State::Tried { far: before, .. } if far && before + 1 >= PERSISTENT => self.leave(now),
            State::Tried { left, far: before } => State::Tried {
                left: left - 1,
                far: if far { before + 1 } else { 0 },
            },
            State::Alone { until, told } => State::Alone { until, told },
        };
    }

    fn leave(&mut self, now: Instant) -> State {
        // It was in for longer than it had been out: that was another time.
        let long = |at: Instant| now.saturating_duration_since(at) > self.pause;
        if self.returned.is_some_and(long) {
            self.pause = AGAIN;
        }
        let until = now + self.pause;
        self.pause = (self.pause * 2).min(SELDOM);
        (self.window, self.last) = (None, None);
        State::Alone { until, told: now }
    }

    /// Lets it in again if it was out for long enough, and can take, alone, what the others
    /// get, or wants nothing: whether it does.
    pub fn returns(&mut self, has_caught_up: bool, now: Instant) -> bool {
        match self.state {
            State::Alone { until, .. } if has_caught_up && now >= until => {
                self.state = State::Keeps;
                self.returned = Some(now);
                true
            }
            State::Alone { .. } | State::Keeps | State::Tried { .. } | State::Slows { .. } => false,
        }
    }

    /// Notes that it hears the group though it is left out; tells whether to
    /// tell it again.
    pub fn is_to_be_told(&mut self, now: Instant) -> bool {
        match &mut self.state {
            State::Alone { told, .. } if now >= *told + TOLD => {
                *told = now;
                true
            }
            State::Alone { .. } | State::Keeps | State::Tried { .. } | State::Slows { .. } => false,
        }
    }
}

/// The one in the middle; of two in the middle, the larger.
fn middle(shares: &[Share], of: impl Fn(&Share) -> f64) -> Option<f64> {
    let mut all: Vec<_> = shares.iter().map(of).collect();
    let middle = all.len() / 2;
    if all.is_empty() {
        return None;
    }
    let (_, middle, _) = all.select_nth_unstable_by(middle, f64::total_cmp);
    Some(*middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets that go to the group in a window.
    const SENT: u64 = 1000;

    struct Watched {
        pace: Pace,
        newest: u64,
        came: f64,
        now: Instant,
    }

    impl Watched {
        fn new() -> Self {
            let now = Instant::now();
            let mut pace = Pace::default();
            pace.starts(0, Seq(0), now);
            Self {
                pace,
                newest: 0,
                came: 0.0,
                now,
            }
        }

        /// A window in which this part of what was sent came, to it and to three others.
        fn window(&mut self, came: f64, others: f64) -> Verdict {
            self.now += WINDOW;
            self.newest += SENT;
            self.came += came * SENT as f64;
            #[expect(clippy::cast_possible_truncation)]
            let (all, lost) = (self.came as u64, ((1.0 - came) * SENT as f64) as u64);
            assert!(self.pace.hears((SENT, lost), Seq(self.newest), self.now));
            let share = |came: f64| Share {
                came,
                lost: 1.0 - came,
            };
            let others = [others, others, 0.0].map(share).to_vec();
            self.pace.judge(all, Seq(self.newest), others, self.now)
        }

        fn is_let_in(&mut self) -> bool {
            let is_let_in = self.pace.returns(true, self.now);
            if is_let_in {
                #[expect(clippy::cast_possible_truncation)]
                self.pace
                    .starts(self.came as u64, Seq(self.newest), self.now);
            }
            is_let_in
        }
    }

    fn counts(verdict: Verdict) -> bool {
        matches!(verdict, Verdict::Counts { .. })
    }

    #[test]
    fn who_gets_a_small_part_of_what_others_get_is_left_out_after_some_windows() {
        let mut watched = Watched::new();
        assert!(counts(watched.window(1.0, 1.0)));
        let verdicts = [(); 3].map(|()| watched.window(0.1, 1.0));
        assert_eq!(
            verdicts,
            [Verdict::Excused, Verdict::Excused, Verdict::LeftOut]
        );
        assert!(watched.pace.is_alone() && watched.pace.share().is_none());
    }

    #[test]
    fn who_is_late_once_or_loses_what_all_lose_stays() {
        let mut watched = Watched::new();
        for _ in 0..20 {
            assert!(counts(watched.window(0.3, 0.4)));
        }
        for _ in 0..20 {
            watched.window(0.0, 1.0);
            watched.window(0.0, 1.0);
            assert!(counts(watched.window(1.0, 1.0)));
        }
    }

    #[test]
    fn group_waits_for_who_is_not_far_behind_and_looks_again_later() {
        let mut watched = Watched::new();
        let excused = (0..200).map(|_| watched.window(0.5, 1.0) == Verdict::Excused);
        let excused: Vec<_> = excused.collect();
        assert_eq!(excused.iter().filter(|excused| **excused).count(), 26);
        assert!(excused[0] && !excused[13] && !excused[100] && excused[120]);
        assert!(!watched.pace.is_alone());
    }

    #[test]
    fn who_is_left_out_time_and_again_is_left_out_for_longer() {
        let mut watched = Watched::new();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            while !watched.pace.is_alone() {
                watched.window(0.1, 1.0);
            }
            let since = watched.now;
            assert!(!watched.pace.returns(false, since + SELDOM * 2));
            while !watched.is_let_in() {
                watched.now += AGAIN / 4;
            }
            pauses.push((watched.now - since).as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 64, 64]);
        // It has kept up for longer than that.
        for _ in 0..4000 {
            assert!(counts(watched.window(1.0, 1.0)));
        }
        for _ in 0..3 {
            watched.window(0.1, 1.0);
        }
        watched.now += AGAIN;
        assert!(watched.is_let_in());
    }

    #[test]
    fn who_does_not_leave_is_told_again() {
        let mut watched = Watched::new();
        while !watched.pace.is_alone() {
            watched.window(0.1, 1.0);
        }
        let now = watched.now;
        let told = [0, 100, 101, 150, 200, 250];
        let told = told.map(|ms| watched.pace.is_to_be_told(now + Duration::from_millis(ms)));
        assert_eq!(told, [false, true, false, false, true, false]);
    }
}
