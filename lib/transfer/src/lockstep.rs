//! Which requests for a page are repeats of one that was just answered.
//!
//! Clones that start together run in lockstep and ask for the same pages at
//! the same time (SnowFlock, 3.5): the first request is answered to all, and
//! those that follow are ignored for a while, or until there were many. A
//! client also says which packet it has seen last. If the answer was an earlier
//! one, then it is not on its way but lost, and the page is sent again at once,
//! which the paper's server cannot know. Nor can it that a client lags behind: if
//! neither the answer nor anything sent after it has been seen, then all that still
//! stands in a queue somewhere, and to send it again would make that longer.

use crate::wire::Seq;
use forkyard_types::PageNo;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long, and how many, repeats are ignored.
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

/// What a request for a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The first for it, or the first in a long time.
    No,
    /// Its answer is on the way.
    Lockstep,
    /// Its answer was lost.
    Lost,
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

#[derive(Clone, Copy, Debug)]
struct Sent {
    seq: Seq,
    at: Instant,
    repeats: u32,
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

    /// `page` went out in the packet of that number.
    pub fn sent(&mut self, page: PageNo, seq: Seq, now: Instant) {
        self.expire(now);
        let sent = Sent {
            seq,
            at: now,
            repeats: 0,
        };
        self.pages.insert(page, sent);
        self.order.push_back((now, page));
        self.newest = self.newest.max(seq);
    }

    /// A client that has seen packets up to `seen` asks for `page`, not for the
    /// first time if `again`.
    pub fn judge(&mut self, page: PageNo, seen: Seq, again: bool, now: Instant) -> Repeat {
        self.expire(now);
        let most = self.window.repeats;
        let Some(sent) = self.pages.get_mut(&page) else {
            return if again { Repeat::Lost } else { Repeat::No };
        };
        let lags = seen < sent.seq && sent.seq < self.newest;
        if now.saturating_duration_since(sent.at) >= self.window.time && !lags {
            return if again { Repeat::Lost } else { Repeat::No };
        }
        sent.repeats += 1;
        if again && seen > sent.seq {
            return Repeat::Lost;
        }
        match sent.repeats > most {
            true => Repeat::Lost,
            false => Repeat::Lockstep,
        }
    }

    /// Whether a page went out that a client which has seen packets up to `seen`
    /// may yet get.
    pub fn is_coming(&self, page: PageNo, seen: Seq, now: Instant) -> bool {
        let sent = self.pages.get(&page).filter(|sent| seen < sent.seq);
        sent.is_some_and(|sent| {
            let window = match sent.seq < self.newest {
                true => self.window.lag,
                false => self.window.time,
            };
            now.saturating_duration_since(sent.at) < window
        })
    }

    fn expire(&mut self, now: Instant) {
        while let Some((at, page)) = self.order.front().copied() {
            if now.saturating_duration_since(at) < self.window.lag {
                break;
            }
            self.order.pop_front();
            // It may have been sent again since.
            if self.pages.get(&page).is_some_and(|sent| sent.at == at) {
                self.pages.remove(&page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageNo = PageNo(7);
    const NOTHING: Seq = Seq(0);

    fn sent() -> (Recent, Instant) {
        let now = Instant::now();
        let mut recent = Recent::new(Window {
            time: Duration::from_millis(40),
            lag: Duration::from_millis(500),
            repeats: 5,
        });
        recent.sent(PAGE, Seq(10), now);
        (recent, now)
    }

    #[test]
    fn repeats_in_the_window_are_ignored_and_then_served_again() {
        let (mut recent, now) = sent();
        let late = now + Duration::from_millis(39);
        assert_eq!(recent.judge(PAGE, NOTHING, false, late), Repeat::Lockstep);
        let later = now + Duration::from_millis(40);
        assert_eq!(recent.judge(PAGE, NOTHING, false, later), Repeat::No);
        assert_eq!(recent.judge(PAGE, NOTHING, true, later), Repeat::Lost);
        let last = now + Duration::from_millis(500);
        assert_eq!(recent.judge(PAGE, NOTHING, false, last), Repeat::No);
        assert!(recent.pages.is_empty() && recent.order.is_empty());
    }

    #[test]
    fn client_that_lags_behind_gets_nothing_twice() {
        let (mut recent, now) = sent();
        recent.sent(PageNo(8), Seq(11), now);
        let later = now + Duration::from_millis(499);
        assert_eq!(recent.judge(PAGE, Seq(9), true, later), Repeat::Lockstep);
        assert_eq!(recent.judge(PAGE, Seq(11), true, later), Repeat::Lost);
        assert!(recent.is_coming(PAGE, Seq(9), later));
        assert!(!recent.is_coming(PAGE, Seq(10), later));
        // Nothing came after this one: if it was lost, then nothing tells.
        assert!(!recent.is_coming(PageNo(8), Seq(9), later));
        assert_eq!(recent.judge(PageNo(8), Seq(9), true, later), Repeat::Lost);
        let last = now + Duration::from_millis(500);
        assert_eq!(recent.judge(PAGE, Seq(9), true, last), Repeat::Lost);
    }

    #[test]
    fn many_repeats_are_served_again() {
        let (mut recent, now) = sent();
        for _ in 0..5 {
            assert_eq!(recent.judge(PAGE, NOTHING, false, now), Repeat::Lockstep);
        }
        assert_eq!(recent.judge(PAGE, NOTHING, false, now), Repeat::Lost);
    }

    #[test]
    fn client_that_has_seen_later_packets_has_lost_it() {
        let (mut recent, now) = sent();
        assert_eq!(recent.judge(PAGE, Seq(10), true, now), Repeat::Lockstep);
        assert_eq!(recent.judge(PAGE, Seq(11), true, now), Repeat::Lost);
        // Asked before it saw them: the answer may have come since.
        assert_eq!(recent.judge(PAGE, Seq(11), false, now), Repeat::Lockstep);
    }

    #[test]
    fn page_sent_again_stays_for_a_window_from_then() {
        let (mut recent, now) = sent();
        let again = now + Duration::from_millis(30);
        recent.sent(PAGE, Seq(20), again);
        let late = now + Duration::from_millis(60);
        assert_eq!(recent.judge(PAGE, NOTHING, false, late), Repeat::Lockstep);
    }
}
