//! What a client wants and does not have.
//!
//! ```text
//! wanted --asked--> in flight --page--> gone from here
//!              ^        |
//!              '- due --+-- time-out, or a page asked for later came
//! ```

use crate::pages::Run;
use crate::roundtrip::RoundTrip;
use crate::wire::{Ask, MAX_ASKS, Urgency};
use forkyard_types::{PageCount, PageNo};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// A page is taken for lost when so many asked for after it came first.
const OVERTAKEN: u64 = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    open: HashMap<PageNo, Open>,
    due: BTreeSet<(Instant, PageNo)>,
    waited: Ring,
    ahead: Ring,
    /// Number of the next ask.
    number: u64,
    pages_ahead: usize,
}

/// Pages of one urgency.
#[derive(Debug, Default)]
struct Ring {
    /// Not asked for yet.
    fresh: VecDeque<PageNo>,
    /// In flight, by the number of the ask.
    flight: BTreeMap<u64, PageNo>,
    /// Highest number among those that came.
    newest: u64,
    /// What is waited for is answered before what is not.
    trip: RoundTrip,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    urgency: Urgency,
    before: u8,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Fresh,
    Flying {
        /// The first ask, and the last: when, and its number.
        first: (Instant, u64),
        at: Instant,
        number: u64,
        due: Instant,
    },
}

/// What it came to that pages were asked for again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    pub pages: u64,
    pub again: u64,
    /// When what has been unanswered twice or more was asked for last.
    pub stuck: Option<Instant>,
}

impl Asks {
    /// A page is wanted; whether it was not, or not as urgently.
    pub fn want(&mut self, page: PageNo, urgency: Urgency) -> bool {
        match self.open.get(&page).map(|open| (open.urgency, open.state)) {
            Some((Urgency::Waited, _)) => return false,
            Some((before, _)) if before == urgency => return false,
            Some((_, state)) => {
                self.forget(page, state);
                self.pages_ahead -= 1;
            }
            None => {}
        }
        let open = Open {
            urgency,
            before: 0,
            state: State::Fresh,
        };
        self.open.insert(page, open);
        if urgency != Urgency::Waited {
            self.pages_ahead += 1;
        }
        self.ring(urgency).fresh.push_back(page);
        true
    }

    /// A page is not wanted any more; whether it was, and was asked for.
    pub fn withdraw(&mut self, page: PageNo) -> Option<bool> {
        let open = self.remove(page)?;
        Some(matches!(open.state, State::Flying { .. }))
    }

    /// A page came; how urgently it was wanted, if it was.
    pub fn came(&mut self, page: PageNo, now: Instant) -> Option<Urgency> {
        let open = self.remove(page)?;
        if let State::Flying {
            first: (first, number),
            at,
            ..
        } = open.state
        {
            let trip = &mut self.ring(open.urgency).trip;
            // Sooner than can be: it is the answer to an earlier ask (Karn, Eifel).
            let last = now.saturating_duration_since(at);
            let soon = trip.mean().is_none_or(|mean| last < mean / 2);
            if open.before == 0 || soon {
                trip.took(now.saturating_duration_since(first));
            }
            // The first ask's number: that the last one was answered is not known.
            self.overtake(open.urgency, number, now);
        }
        Some(open.urgency)
    }

    /// What was asked for long before the one of that number is due soon.
    fn overtake(&mut self, urgency: Urgency, number: u64, now: Instant) {
        let ring = self.ring(urgency);
        let soon = now + ring.trip.mean().unwrap_or_default() / 4;
        ring.newest = ring.newest.max(number);
        let Some(limit) = ring.newest.checked_sub(OVERTAKEN) else {
            return;
        };
        let mut lost = Vec::new();
        while let Some(entry) = ring.flight.first_entry() {
            if *entry.key() > limit {
                break;
            }
            lost.push(entry.remove());
        }
        for page in lost {
            if let Some(open) = self.open.get_mut(&page)
                && let State::Flying { due, .. } = &mut open.state
                && *due > soon
            {
                self.due.remove(&(*due, page));
                *due = soon;
                self.due.insert((soon, page));
            }
        }
    }

    /// What to ask for now, as much as fits into a packet: first what is waited
    /// for, then what got lost, then the rest.
    pub fn collect(&mut self, now: Instant) -> (Vec<Ask>, Collected) {
        let (mut asks, mut collected) = (Vec::new(), Collected::default());
        while let Some(page) = self.next(now) {
            let Some(open) = self.open.get_mut(&page) else {
                continue;
            };
            let (urgency, mut before) = (open.urgency, open.before);
            let mut asked = None;
            if let State::Flying {
                first,
                at,
                number,
                due,
            } = open.state
            {
                asked = Some(first);
                before = before.saturating_add(1);
                open.before = before;
                collected.again += 1;
                if before > 1 {
                    collected.stuck = collected.stuck.max(Some(at));
                }
                self.due.remove(&(due, page));
                self.ring(urgency).flight.remove(&number);
            }
            let due = now + self.ring(urgency).trip.patience(before);
            self.number += 1;
            let number = self.number;
            if let Some(open) = self.open.get_mut(&page) {
                open.state = State::Flying {
                    first: asked.unwrap_or((now, number)),
                    at: now,
                    number,
                    due,
                };
            }
            self.due.insert((due, page));
            self.ring(urgency).flight.insert(number, page);
            collected.pages += 1;
            if !add(&mut asks, page, urgency, before) {
                break;
            }
        }
        (asks, collected)
    }

    fn next(&mut self, now: Instant) -> Option<PageNo> {
        if let Some(page) = fresh(&mut self.waited, &self.open, Urgency::Waited) {
            return Some(page);
        }
        let late = self.due.first().filter(|(due, _)| *due <= now);
        late.map(|(_, page)| *page)
            .or_else(|| fresh(&mut self.ahead, &self.open, Urgency::Ahead))
    }

    /// When something has to be asked for; `None`: nothing is wanted.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        if !self.waited.fresh.is_empty() || !self.ahead.fresh.is_empty() {
            return Some(now);
        }
        self.due.first().map(|(due, _)| *due)
    }

    /// All has to be asked for again: the server has forgotten it.
    pub fn start_over(&mut self) {
        let flying = std::mem::take(&mut self.due);
        for (_, page) in flying {
            if let Some(open) = self.open.get_mut(&page) {
                open.state = State::Fresh;
                let urgency = open.urgency;
                self.ring(urgency).fresh.push_back(page);
            }
        }
        self.waited.flight.clear();
        self.ahead.flight.clear();
    }

    /// Whether a page is wanted.
    pub fn contains(&self, page: PageNo) -> bool {
        self.open.contains_key(&page)
    }

    /// Pages wanted in advance.
    pub fn ahead(&self) -> usize {
        self.pages_ahead
    }

    /// Pages that somebody waits for, in order.
    pub fn waited(&self) -> Vec<PageNo> {
        let waited = self
            .open
            .iter()
            .filter(|(_, open)| open.urgency == Urgency::Waited);
        let mut pages: Vec<_> = waited.map(|(page, _)| *page).collect();
        pages.sort_unstable();
        pages
    }

    /// Nothing is wanted any more.
    pub fn clear(&mut self) {
        let ring = |trip| Ring {
            trip,
            ..Ring::default()
        };
        *self = Self {
            waited: ring(self.waited.trip),
            ahead: ring(self.ahead.trip),
            ..Self::default()
        };
    }

    /// From a question to its answer.
    pub fn round_trip(&self) -> Option<Duration> {
        self.waited.trip.mean().or(self.ahead.trip.mean())
    }

    fn remove(&mut self, page: PageNo) -> Option<Open> {
        let open = self.open.remove(&page)?;
        self.forget(page, open.state);
        self.pages_ahead -= usize::from(open.urgency != Urgency::Waited);
        Some(open)
    }

    fn forget(&mut self, page: PageNo, state: State) {
        if let State::Flying { number, due, .. } = state {
            self.due.remove(&(due, page));
            self.waited.flight.remove(&number);
            self.ahead.flight.remove(&number);
        }
    }

    fn ring(&mut self, urgency: Urgency) -> &mut Ring {
        match urgency {
            Urgency::Waited => &mut self.waited,
            Urgency::Ahead | Urgency::Withdrawn => &mut self.ahead,
        }
    }
}

/// The next page not asked for yet. Places of pages that came meanwhile, or became
/// more urgent, are passed over.
fn fresh(ring: &mut Ring, open: &HashMap<PageNo, Open>, urgency: Urgency) -> Option<PageNo> {
    while let Some(page) = ring.fresh.pop_front() {
        if let Some(open) = open.get(&page)
            && open.urgency == urgency
            && matches!(open.state, State::Fresh)
        {
            return Some(page);
        }
    }
    None
}

/// Whether there is room for one more after that.
fn add(asks: &mut Vec<Ask>, page: PageNo, urgency: Urgency, before: u8) -> bool {
    if let Some(last) = asks.last_mut()
        && last.urgency == urgency
        && last.before == before
        && last.run.first.checked_add(last.run.pages) == Some(page)
    {
        last.run.pages.0 += 1;
    } else {
        let run = Run {
            first: page,
            pages: PageCount(1),
        };
        asks.push(Ask {
            run,
            urgency,
            before,
        });
    }
    asks.len() < MAX_ASKS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(pages: &[u64]) -> (Asks, Instant) {
        let mut asks = Asks::default();
        for page in pages {
            assert!(asks.want(PageNo(*page), Urgency::Ahead));
        }
        (asks, Instant::now())
    }

    fn runs(asks: &[Ask]) -> Vec<(u64, u64, Urgency, u8)> {
        let of = |ask: &Ask| (ask.run.first.0, ask.run.pages.0, ask.urgency, ask.before);
        asks.iter().map(of).collect()
    }

    #[test]
    fn pages_in_a_row_are_one_ask_and_those_waited_for_go_first() {
        let (mut asks, now) = wanted(&[3, 4, 5, 9, 10]);
        assert!(asks.want(PageNo(9), Urgency::Waited));
        assert!(!asks.want(PageNo(9), Urgency::Ahead));
        let (found, collected) = asks.collect(now);
        let want = [
            (9, 1, Urgency::Waited, 0),
            (3, 3, Urgency::Ahead, 0),
            (10, 1, Urgency::Ahead, 0),
        ];
        assert_eq!(runs(&found), want);
        assert_eq!((collected.pages, collected.again), (5, 0));
        assert_eq!((asks.ahead(), asks.waited()), (4, vec![PageNo(9)]));
    }

    #[test]
    fn unanswered_page_is_asked_for_again_ever_later() {
        let (mut asks, mut now) = wanted(&[1]);
        asks.collect(now);
        let mut waits = Vec::new();
        for before in 1..=4 {
            let due = asks.next_due(now).expect("is in flight");
            assert_eq!(asks.collect(due - Duration::from_micros(1)).0, []);
            waits.push(due - now);
            now = due;
            let (found, collected) = asks.collect(now);
            assert_eq!(runs(&found), [(1, 1, Urgency::Ahead, before)]);
            assert_eq!(collected.stuck.is_some(), before > 1);
        }
        assert!(
            waits.windows(2).all(|pair| pair[0] * 2 == pair[1]),
            "{waits:?}"
        );
    }

    #[test]
    fn page_that_others_have_overtaken_is_asked_for_before_its_time() {
        let (mut asks, now) = wanted(&(0..40).collect::<Vec<_>>());
        asks.collect(now);
        let then = now + Duration::from_millis(2);
        (1..=16).for_each(|page| assert!(asks.came(PageNo(page), then).is_some()));
        let soon = then + Duration::from_millis(1);
        let (found, collected) = asks.collect(soon);
        assert_eq!(runs(&found), [(0, 1, Urgency::Ahead, 1)]);
        assert_eq!(collected.again, 1);
    }

    #[test]
    fn what_was_withdrawn_or_came_is_not_asked_for() {
        let (mut asks, now) = wanted(&[1, 2, 3]);
        assert_eq!(asks.withdraw(PageNo(1)), Some(false));
        assert_eq!(asks.came(PageNo(2), now), Some(Urgency::Ahead));
        assert_eq!(runs(&asks.collect(now).0), [(3, 1, Urgency::Ahead, 0)]);
        assert_eq!(asks.withdraw(PageNo(3)), Some(true));
        assert_eq!(asks.withdraw(PageNo(3)), None);
        assert_eq!((asks.ahead(), asks.next_due(now)), (0, None));
    }

    #[test]
    fn all_is_asked_for_again_of_a_server_that_forgot() {
        let (mut asks, now) = wanted(&[1, 2]);
        asks.want(PageNo(7), Urgency::Waited);
        asks.collect(now);
        asks.start_over();
        assert_eq!(asks.collect(now).1.pages, 3);
    }
}
