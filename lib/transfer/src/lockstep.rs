//! Requests for a page that are repeats of one that was just answered.
//!
//! Clones that start together run in lockstep and ask for the same pages at
//! the same time (SnowFlock, 3.5): the first request is answered to all, and
//! those that follow are ignored for a while, or until there were many. A
//! client also says which packet it has seen last. If the answer was an earlier
//! one, then it is not on its way but lost, and the page is sent again at once,
//! which the paper's server cannot know. Nor can it that a client lags behind: if
//! neither the answer nor anything sent after it has been seen, then all that still
//! stands in a queue somewhere, and to send it again would make that longer. Of the
//! last packet nothing tells whether it was lost but the time that answers take.

use crate::wire::{PartSet, Seq};
use forkyard_types::PageNo;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Time, and number, for which repeats are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// A repeat so long after the answer is answered again.
    pub time: Duration,
    /// So is one of a client that lags behind, only then.
    pub lag: Duration,
    /// So is the one after so many.
    pub repeats: u32,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            time: Duration::from_millis(40),
            lag: Duration::from_secs(1),
            repeats: 64,
        }
    }
}

/// Sooner is nothing taken for lost by time alone: hosts are descheduled for milliseconds.
const LEAST: Duration = Duration::from_millis(5);

/// Circumstances of a client's ask for a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    /// Highest packet that it has seen.
    pub seen: Seq,
    /// Parts of it.
    pub parts: PartSet,
    /// True if it does not ask for the first time.
    pub again: bool,
    /// Round trip of the client; zero if it does not know.
    pub round_trip: Duration,
}

/// Kind of a request for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The first for it, or the first in a long time.
    No,
    /// The answer is on the way.
    Lockstep,
    /// The answer was lost.
    Lost,
}

impl Window {
    /// Returns the time after the last packet in which a client that asks for a page
    /// in it is taken to be about to get it.
    fn of(&self, asking: Asking) -> Duration {
        match asking.again && !asking.round_trip.is_zero() {
            true => (asking.round_trip * 2).clamp(LEAST.min(self.lag), self.lag),
            false => self.time,
        }
    }
}

/// Pages sent in the window.
#[derive(Debug)]
pub(crate) struct Recent {
    window: Window,
    pages: HashMap<PageNo, Sent>,
    /// In the order in which they leave the window.
    order: VecDeque<(Instant, PageNo)>,
    /// The last packet with a page in it.
    newest: Seq,
}

/// Times at which a page was sent last, whole and in part.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    whole: Option<Sending>,
    part: Option<(PartSet, Sending)>,
    repeats: u32,
}

#[derive(Clone, Copy, Debug)]
struct Sending {
    seq: Seq,
    at: Instant,
}

impl Sent {
    /// The last sending that had all of these.
    fn last(&self, parts: PartSet) -> Option<Sending> {
        let part = self.part.filter(|(sent, _)| sent.covers(parts));
        part.map(|(_, sending)| sending).or(self.whole)
    }

    fn at(&self) -> Option<Instant> {
        let part = self.part.map(|(_, sending)| sending);
        part.or(self.whole).map(|sending| sending.at)
    }
}

impl Recent {
    pub fn new(window: Window) -> Self {
        Self {
            window,
            pages: HashMap::new(),
            order: VecDeque::new(),
            newest: Seq(0),
        }
    }

    /// The last of these parts of `page` went out in the packet of that number.
    pub fn sent(&mut self, page: PageNo, parts: PartSet, seq: Seq, now: Instant) {
        self.expire(now);
        let sending = Sending { seq, at: now };
        let sent = self.pages.entry(page).or_default();
        sent.repeats = 0;
        sent.part = (parts != PartSet::ALL).then_some((parts, sending));
        if parts == PartSet::ALL {
            sent.whole = Some(sending);
        }
        self.order.push_back((now, page));
        self.newest = self.newest.max(seq);
    }

    /// Judges a client's ask for `page`.
    pub fn judge(&mut self, page: PageNo, asking: Asking, now: Instant) -> Repeat {
        self.expire(now);
        let (window, newest) = (self.window, self.newest);
        let Asking {
            seen, again, parts, ..
        } = asking;
        let sent = self.pages.get_mut(&page);
        let Some((sent, last)) = sent.and_then(|sent| sent.last(parts).map(|last| (sent, last)))
        else {
            return if again { Repeat::Lost } else { Repeat::No };
        };
        let lags = seen < last.seq && last.seq < newest;
        let passed = now.saturating_duration_since(last.at);
        if passed >= window.of(asking) && !lags {
            return if again { Repeat::Lost } else { Repeat::No };
        }
        sent.repeats += 1;
        if again && seen > last.seq {
            return Repeat::Lost;
        }
        match sent.repeats > window.repeats {
            true => Repeat::Lost,
            false => Repeat::Lockstep,
        }
    }

    /// Tells whether a page went out that a client which asks for it may yet
    /// get.
    pub fn is_coming(&self, page: PageNo, asking: Asking, now: Instant) -> bool {
        let sent = self.pages.get(&page);
        let last = sent.and_then(|sent| sent.last(asking.parts));
        let last = last.filter(|last| asking.seen < last.seq);
        last.is_some_and(|last| {
            let window = match last.seq < self.newest {
                true => self.window.lag,
                false => self.window.of(asking),
            };
            now.saturating_duration_since(last.at) < window
        })
    }

    fn expire(&mut self, now: Instant) {
        while let Some((at, page)) = self.order.front().copied() {
            if now.saturating_duration_since(at) < self.window.lag {
                break;
            }
            self.order.pop_front();
            // It may have been sent again since.
            if self.pages.get(&page).and_then(Sent::at) == Some(at) {
                self.pages.remove(&page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageNo = PageNo(7);

    fn sent() -> (Recent, Instant) {
        let now = Instant::now();
        let mut recent = Recent::new(Window {
            time: Duration::from_millis(40),
            lag: Duration::from_millis(500),
            repeats: 5,
        });
        recent.sent(PAGE, PartSet::ALL, Seq(10), now);
        (recent, now)
    }

    fn asks(seen: u64, again: bool) -> Asking {
        Asking {
            seen: Seq(seen),
            parts: PartSet::ALL,
            again,
            round_trip: Duration::ZERO,
        }
    }

    #[test]
    fn last_packet_is_lost_if_it_takes_twice_as_long_as_others() {
        let (mut recent, now) = sent();
        let asks = |round_trip| Asking {
            round_trip: Duration::from_millis(round_trip),
            ..asks(9, true)
        };
        let then = now + Duration::from_millis(10);
        assert!(recent.is_coming(PAGE, asks(6), then) && !recent.is_coming(PAGE, asks(5), then));
        assert_eq!(recent.judge(PAGE, asks(6), then), Repeat::Lockstep);
        assert_eq!(recent.judge(PAGE, asks(5), then), Repeat::Lost);
        let sooner = now + Duration::from_millis(4);
        assert_eq!(recent.judge(PAGE, asks(1), sooner), Repeat::Lockstep);
        // A slow host has all the time it needs.
        let later = now + Duration::from_millis(99);
        assert_eq!(recent.judge(PAGE, asks(50), later), Repeat::Lockstep);
    }

    #[test]
    fn who_lost_another_part_than_was_sent_again_is_sent_it() {
        let (mut recent, now) = sent();
        let some = |bits| PartSet::of(bits).expect("some");
        recent.sent(PAGE, some(0b0110), Seq(20), now);
        recent.sent(PageNo(8), PartSet::ALL, Seq(21), now);
        let asks = |bits| Asking {
            parts: some(bits),
            ..asks(15, true)
        };
        for (bits, repeat) in [
            (0b0010, Repeat::Lockstep),
            (0b0110, Repeat::Lockstep),
            (0b0101, Repeat::Lost),
            (0b1000, Repeat::Lost),
        ] {
            assert_eq!(recent.judge(PAGE, asks(bits), now), repeat, "{bits:b}");
            assert_eq!(
                recent.is_coming(PAGE, asks(bits), now),
                repeat == Repeat::Lockstep
            );
        }
        // Once more, all of it.
        recent.sent(PAGE, PartSet::ALL, Seq(30), now);
        assert_eq!(recent.judge(PAGE, asks(0b1000), now), Repeat::Lockstep);
    }

    #[test]
    fn repeats_in_the_window_are_ignored_and_then_served_again() {
        let (mut recent, now) = sent();
        let late = now + Duration::from_millis(39);
        assert_eq!(recent.judge(PAGE, asks(0, false), late), Repeat::Lockstep);
        let later = now + Duration::from_millis(40);
        assert_eq!(recent.judge(PAGE, asks(0, false), later), Repeat::No);
        assert_eq!(recent.judge(PAGE, asks(0, true), later), Repeat::Lost);
        let last = now + Duration::from_millis(500);
        assert_eq!(recent.judge(PAGE, asks(0, false), last), Repeat::No);
        assert!(recent.pages.is_empty() && recent.order.is_empty());
    }

    #[test]
    fn client_that_lags_behind_gets_nothing_twice() {
        let (mut recent, now) = sent();
        recent.sent(PageNo(8), PartSet::ALL, Seq(11), now);
        let later = now + Duration::from_millis(499);
        assert_eq!(recent.judge(PAGE, asks(9, true), later), Repeat::Lockstep);
        assert_eq!(recent.judge(PAGE, asks(11, true), later), Repeat::Lost);
        assert!(recent.is_coming(PAGE, asks(9, false), later));
        assert!(!recent.is_coming(PAGE, asks(10, false), later));
        // Nothing came after this one: if it was lost, then nothing tells.
        assert!(!recent.is_coming(PageNo(8), asks(9, false), later));
        assert_eq!(recent.judge(PageNo(8), asks(9, true), later), Repeat::Lost);
        let last = now + Duration::from_millis(500);
        assert_eq!(recent.judge(PAGE, asks(9, true), last), Repeat::Lost);
    }

    #[test]
    fn many_repeats_are_served_again() {
        let (mut recent, now) = sent();
        for _ in 0..5 {
            assert_eq!(recent.judge(PAGE, asks(0, false), now), Repeat::Lockstep);
        }
        assert_eq!(recent.judge(PAGE, asks(0, false), now), Repeat::Lost);
    }

    #[test]
    fn client_that_has_seen_later_packets_has_lost_it() {
        let (mut recent, now) = sent();
        assert_eq!(recent.judge(PAGE, asks(10, true), now), Repeat::Lockstep);
        assert_eq!(recent.judge(PAGE, asks(11, true), now), Repeat::Lost);
        // Asked before it saw them: the answer may have come since.
        assert_eq!(recent.judge(PAGE, asks(11, false), now), Repeat::Lockstep);
    }

    #[test]
    fn page_sent_again_stays_for_a_window_from_then() {
        let (mut recent, now) = sent();
        let again = now + Duration::from_millis(30);
        recent.sent(PAGE, PartSet::ALL, Seq(20), again);
        let late = now + Duration::from_millis(60);
        assert_eq!(recent.judge(PAGE, asks(0, false), late), Repeat::Lockstep);
    }
}
