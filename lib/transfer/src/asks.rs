//! Pages that a client wants and does not have.
//!
//! ```text
//! wanted --asked--> in flight --page--> gone from here
//!              ^        |
//!              '- due --+-- time-out, a page asked for later came, or a
//!                           packet is missing
//! ```

use crate::pages::Run;
use crate::roundtrip::RoundTrip;
use crate::wire::{MAX_ASKS, PageRequest, PartSet, Urgency};
use forkyard_types::{PageCount, PageNo};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// A page that is waited for may be lost when so many asked for after it came
/// first. If it is not, the server knows, and nothing is lost but a question.
const OVERTAKEN_WAITED: u64 = 3;
/// Number of later answers after which a page of another kind may be lost; many
/// are in flight, in any order.
const OVERTAKEN_AHEAD: u64 = 16;
/// So many of those in flight are asked for early at a time.
const OLDEST: usize = 64;

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
    /// Round trip of asks that are waited for: they are answered before the
    /// others.
    trip: RoundTrip,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    urgency: Urgency,
    /// Number of asks for it in vain.
    before: u8,
    /// Number of these that took too long; the others were asked early.
    late: u8,
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
        /// True if that is before its time.
        early: bool,
    },
}

/// Result of collecting: pages that were asked for, once more or for the first
/// time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    pub pages: u64,
    pub again: u64,
    /// Time at which what has taken too long twice or more was asked for last.
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
            late: 0,
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
            let took = now.saturating_duration_since(first);
            match open.before {
                0 => trip.took(took),
                _ => trip.took_again(took, now.saturating_duration_since(at)),
            }
            // The first ask's number: that the last one was answered is not known.
            self.overtake(open.urgency, number, now);
        }
        Some(open.urgency)
    }

    /// Lets asks from long before the one of that number be due soon.
    fn overtake(&mut self, urgency: Urgency, number: u64, now: Instant) {
        let ring = self.ring(urgency);
        let soon = now + ring.trip.mean().unwrap_or_default() / 4;
        ring.newest = ring.newest.max(number);
        let overtaken = match urgency {
            Urgency::Waited => OVERTAKEN_WAITED,
            Urgency::Ahead | Urgency::Withdrawn => OVERTAKEN_AHEAD,
        };
        let Some(limit) = ring.newest.checked_sub(overtaken) else {
            return;
        };
        let mut lost = Vec::new();
        while let Some(entry) = ring.flight.first_entry() {
            if *entry.key() > limit {
                break;
            }
            lost.push(entry.remove());
        }
        lost.into_iter().for_each(|page| self.hasten(page, soon));
    }

    /// A packet is missing. If there was an answer in it, then that is overdue as soon
    /// as it has taken as long as others do.
    pub fn missed(&mut self, now: Instant) {
        for urgency in [Urgency::Waited, Urgency::Ahead] {
            if let Some(mean) = self.ring(urgency).trip.mean() {
                // It may have been overtaken by a little.
                self.hasten_oldest(urgency, mean, now + mean / 4);
            }
        }
    }

    /// Nothing has come for longer than is usual: what was asked for may have been
    /// lost, with nothing after it that would show it.
    pub fn silence(&mut self, now: Instant) {
        for urgency in [Urgency::Waited, Urgency::Ahead] {
            self.hasten_oldest(urgency, Duration::ZERO, now);
        }
    }

    /// Something else than a page was answered so soon.
    pub fn guess(&mut self, took: Duration) {
        self.waited.trip.guess(took);
        self.ahead.trip.guess(took);
    }

    /// Returns the length of a suspicious silence if something is in flight.
    pub fn silent_after(&self) -> Option<Duration> {
        let trip = [&self.waited, &self.ahead]
            .into_iter()
            .find(|ring| !ring.flight.is_empty())
            .map(|ring| ring.trip)?;
        Some(trip.silence())
    }

    /// Makes the oldest asks due at `then`, or once they have that age, but not
    /// before there can be an answer to the last ask.
    fn hasten_oldest(&mut self, urgency: Urgency, age: Duration, then: Instant) {
        let ring = self.ring(urgency);
        let least = ring.trip.least();
        let oldest: Vec<_> = ring.flight.values().take(OLDEST).copied().collect();
        for page in oldest {
            let state = self.open.get(&page).map(|open| open.state);
            if let Some(State::Flying { first, at, .. }) = state {
                self.hasten(page, then.max(first.0 + age).max(at + least));
            }
        }
    }

    /// A page in flight is due then, if it is not before.
    fn hasten(&mut self, page: PageNo, soon: Instant) {
        if let Some(open) = self.open.get_mut(&page)
            && let State::Flying { due, early, .. } = &mut open.state
            && *due > soon
        {
            self.due.remove(&(*due, page));
            (*due, *early) = (soon, true);
            self.due.insert((soon, page));
        }
    }

    /// Collects the pages to ask for now, as many as fit into a packet: first those
    /// that are waited for, then those that got lost, then the rest. `missing` tells
    /// which parts of a page are.
    pub fn collect(
        &mut self,
        missing: impl Fn(PageNo) -> PartSet,
        now: Instant,
    ) -> (Vec<PageRequest>, Collected) {
        let (mut asks, mut collected) = (Vec::new(), Collected::default());
        while let Some(page) = self.next(now) {
            let Some(mut open) = self.open.get(&page).copied() else {
                continue;
            };
            self.number += 1;
            let number = self.number;
            let mut asked = (now, number);
            if let State::Flying {
                first,
                at,
                number,
                due,
                early,
            } = open.state
            {
                asked = first;
                open.before = open.before.saturating_add(1);
                open.late = open.late.saturating_add(u8::from(!early));
                collected.again += 1;
                if open.late > 1 {
                    collected.stuck = collected.stuck.max(Some(at));
                }
                self.due.remove(&(due, page));
                self.ring(open.urgency).flight.remove(&number);
            }
            let ring = self.ring(open.urgency);
            let due = now + ring.trip.patience(open.late);
            ring.flight.insert(number, page);
            self.due.insert((due, page));
            open.state = State::Flying {
                first: asked,
                at: now,
                number,
                due,
                early: false,
            };
            self.open.insert(page, open);
            collected.pages += 1;
            // What comes by itself may have left parts, too.
            let ask = PageRequest {
                run: one(page),
                urgency: open.urgency,
                before: open.before,
                parts: missing(page),
            };
            if !add(&mut asks, ask) {
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

    /// Returns the time at which something has to be asked for; `None`: nothing is wanted.
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

    /// Tells whether a page is wanted.
    pub fn contains(&self, page: PageNo) -> bool {
        self.open.contains_key(&page)
    }

    /// Pages wanted in advance.
    pub fn ahead(&self) -> usize {
        self.pages_ahead
    }

    /// Pages that are waited for, in order.
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

fn one(first: PageNo) -> Run {
    let pages = PageCount(1);
    Run { first, pages }
}

/// Adds an ask for one page; whether there is room for one more after that.
fn add(asks: &mut Vec<PageRequest>, ask: PageRequest) -> bool {
    let is_next = |last: &PageRequest| {
        let end = last.run.first.checked_add(last.run.pages);
        let alike = (last.urgency, last.before) == (ask.urgency, ask.before);
        alike && end == Some(ask.run.first) && [last.parts, ask.parts] == [PartSet::ALL; 2]
    };
    match asks.last_mut().filter(|last| is_next(last)) {
        Some(last) => last.run.pages.0 += 1,
        None => asks.push(ask),
    }
    asks.len() < MAX_ASKS
}

#[cfg(test)]
mod tests;
