//! One way out of a server: to the group, or to one member. Each has its own
//! queue, law, sequence, memory of what it sent, and push.

use crate::codec::{Encoding, Packer, Page};
use crate::flow::{Backlog, Bucket, FlowControl, FlowLaw, Rate};
use crate::lockstep::{Asking, Recent, Repeat, Window};
use crate::pages::Run;
use crate::push::Pusher;
use crate::source::{PageContent, PageSource};
use crate::stats::Sent;
use crate::wire::{
    DATA_HEAD, Item, PART_HEAD, PagePart, PartSet, Seq, TAIL, Urgency, WHOLE_HEAD, ZERO_BYTES,
    part_bytes, put_item,
};
use forkyard_types::{PAGE_SIZE, PageNo};
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Most pages that wait in a lane; a client that asks for more asks again.
const MOST_QUEUED: usize = 8192;
/// Bytes of IP and UDP around each packet, which the link carries too.
const AROUND: usize = 28;
/// A lane that had nothing to send so lately was not held back by its law.
const DRY: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug)]
pub(crate) struct Lane {
    seq: Seq,
    law: Box<dyn FlowControl>,
    bucket: Bucket,
    queue: Queue,
    recent: Recent,
    pub pusher: Pusher,
    /// A page that did not fit into the last packet, or not all of it.
    pending: Option<Pending>,
    dry: Instant,
}

/// Pages asked for and not yet sent, each once.
#[derive(Debug, Default)]
struct Queue {
    waited: VecDeque<PageNo>,
    ahead: VecDeque<PageNo>,
    /// Parts that are wanted; tells which places in the two queues still hold,
    /// as they may be stale.
    wanted: HashMap<PageNo, (Urgency, PartSet)>,
}

/// A page ready to go.
#[derive(Debug)]
struct Pending {
    page: PageNo,
    encoding: Encoding,
    bytes: Vec<u8>,
    /// The next part to send, of so many; 1 is the page in one piece.
    part: u8,
    parts: u8,
    /// Those of them that are wanted.
    wanted: PartSet,
}

/// Reason why a page is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Asked(Urgency),
    Pushed,
}

/// Result of an ask for one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The page will be sent.
    Queued,
    /// The page will be sent, once more: it got lost.
    Lost,
    /// The page is in the queue, or on its way.
    Lockstep,
    /// The queue is full.
    Full,
}

/// Parts of the server that filling a packet needs.
pub(crate) struct Filling<'a> {
    pub source: &'a mut dyn PageSource,
    pub packer: &'a mut Packer,
    pub stats: &'a mut Sent,
    /// Longest packet.
    pub datagram: usize,
    /// True if this lane may push.
    pub push: bool,
    pub now: Instant,
}

impl Queue {
    fn has(&self, page: PageNo) -> bool {
        self.wanted.contains_key(&page)
    }

    fn add(&mut self, page: PageNo, urgency: Urgency, parts: PartSet) {
        if let Some((before, wanted)) = self.wanted.get_mut(&page) {
            *wanted = wanted.and(parts);
            if [urgency, Urgency::Waited].contains(before) {
                return;
            }
            *before = urgency;
        } else {
            self.wanted.insert(page, (urgency, parts));
        }
        match urgency {
            Urgency::Waited => self.waited.push_back(page),
            Urgency::Ahead | Urgency::Withdrawn => self.ahead.push_back(page),
        }
    }

    /// Drops stale places once they are many: asking and withdrawing leaves some each time.
    fn tidy(&mut self) {
        for (urgency, places) in [
            (Urgency::Waited, &mut self.waited),
            (Urgency::Ahead, &mut self.ahead),
        ] {
            if places.len() > 2 * self.wanted.len() + 64 {
                let mut kept = HashSet::new();
                places.retain(|page| {
                    let now = self.wanted.get(page).map(|(now, _)| *now);
                    now == Some(urgency) && kept.insert(*page)
                });
            }
        }
    }

    fn take(&mut self) -> Option<(PageNo, PartSet, Urgency)> {
        for (urgency, places) in [
            (Urgency::Waited, &mut self.waited),
            (Urgency::Ahead, &mut self.ahead),
        ] {
            while let Some(page) = places.pop_front() {
                if let Some((now, parts)) = self.wanted.get(&page).copied()
                    && now == urgency
                {
                    self.wanted.remove(&page);
                    return Some((page, parts, urgency));
                }
            }
        }
        None
    }
}

impl Lane {
    pub fn new(law: FlowLaw, window: Window, pusher: Pusher, now: Instant) -> Self {
        Self {
            seq: Seq(0),
            law: law.start(now),
            bucket: Bucket::new(now),
            queue: Queue::default(),
            recent: Recent::new(window),
            pusher,
            pending: None,
            dry: now,
        }
    }

    /// The number of the next packet.
    pub fn next_seq(&mut self) -> Seq {
        self.seq.0 += 1;
        self.seq
    }

    /// The number of the last one.
    pub fn newest(&self) -> Seq {
        self.seq
    }

    /// That packet was not sent after all.
    pub fn give_back(&mut self, seq: Seq) {
        if self.seq == seq {
            self.seq.0 -= 1;
        }
    }

    /// A page is asked for.
    pub fn ask(&mut self, page: PageNo, urgency: Urgency, asking: Asking, now: Instant) -> Taken {
        let pending = self.pending.as_ref();
        if pending.is_some_and(|p| p.page == page && p.wanted.covers(asking.parts)) {
            return Taken::Lockstep;
        }
        if self.queue.has(page) {
            self.queue.add(page, urgency, asking.parts);
            return Taken::Lockstep;
        }
        if self.queue.wanted.len() >= MOST_QUEUED {
            return Taken::Full;
        }
        let taken = match self.recent.judge(page, asking, now) {
            Repeat::Lockstep => return Taken::Lockstep,
            Repeat::Lost if asking.again && self.pusher.was_sent(page) => Taken::Lost,
            Repeat::Lost | Repeat::No => Taken::Queued,
        };
        self.queue.add(page, urgency, asking.parts);
        taken
    }

    /// Tells whether a client may yet get a page by this lane though it asks
    /// nothing of it.
    pub fn is_coming(&self, page: PageNo, asking: Asking, now: Instant) -> bool {
        let pending = self.pending.as_ref().is_some_and(|p| p.page == page);
        pending || self.queue.has(page) || self.recent.is_coming(page, asking, now)
    }

    /// Notes that these are not needed any more.
    pub fn withdraw(&mut self, run: Run) {
        // The shorter of the two decides.
        if run.pages.0 < self.queue.wanted.len() as u64 {
            run.iter().for_each(|page| {
                self.queue.wanted.remove(&page);
            });
        } else {
            let end = run.first.0.saturating_add(run.pages.0);
            let within = run.first.0..end;
            self.queue
                .wanted
                .retain(|page, _| !within.contains(&page.0));
        }
        self.queue.tidy();
    }

    /// A client reports on this lane.
    pub fn report(
        &mut self,
        mean: Rate,
        (sent, lost): (u64, u64),
        round_trip: Duration,
        now: Instant,
    ) {
        // Notes what was not used until now.
        let _ = self.ready(now);
        let dry = now.saturating_duration_since(self.dry) < DRY;
        let feedback = crate::flow::Feedback {
            mean,
            sent,
            lost,
            backlog: if dry {
                Backlog::RanDry
            } else {
                Backlog::Enough
            },
            round_trip,
        };
        self.law.report(feedback, now);
    }

    /// Something sent on this lane was lost.
    pub fn lost(&mut self, mean: Rate, now: Instant) {
        self.law.lost(mean, now);
    }

    /// Tells whether a client has asked for pages that were not sent.
    pub fn is_asked(&self) -> bool {
        self.pending.is_some() || !self.queue.wanted.is_empty()
    }

    /// Returns when it may send: now, or later. That it has nothing to send for a moment is not
    /// running dry: of a client that asks for one page after the other it may be the rate that
    /// holds each of them up.
    pub fn ready(&mut self, now: Instant) -> Option<Instant> {
        let ready = self.bucket.ready(self.law.rate(now), now);
        if self.bucket.take_unused() {
            self.dry = now;
        }
        ready
    }

    /// Returns the rate.
    pub fn rate(&mut self, now: Instant) -> Rate {
        self.law.rate(now)
    }

    /// A packet of so many bytes went out.
    pub fn spend(&mut self, bytes: usize) {
        self.bucket.spend(bytes + AROUND);
    }

    /// Adds to `out`, a packet that is begun and has the number `seq`, what fits.
    /// Whether anything was added.
    pub fn fill(&mut self, filling: &mut Filling<'_>, seq: Seq, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        loop {
            if self.pending.is_some() {
                if !self.put_pending(filling, seq, out) {
                    break;
                }
                continue;
            }
            let room = filling.datagram.saturating_sub(out.len() + TAIL);
            if room < ZERO_BYTES {
                break;
            }
            let Some((page, parts, why)) = self.take(filling.push) else {
                break;
            };
            match why {
                Why::Pushed => filling.stats.pushed += 1,
                Why::Asked(Urgency::Waited) => filling.source.waited_for(page),
                Why::Asked(Urgency::Ahead | Urgency::Withdrawn) => {}
            }
            self.load(page, parts, filling, seq, out);
        }
        out.len() > start
    }

    fn take(&mut self, push: bool) -> Option<(PageNo, PartSet, Why)> {
        match self.queue.take() {
            Some((page, parts, urgency)) => Some((page, parts, Why::Asked(urgency))),
            None if push => {
                let next = self.pusher.next();
                next.map(|page| (page, PartSet::ALL, Why::Pushed))
            }
            None => None,
        }
    }

    /// Reads a page: zero and lost ones are said at once, others are pending.
    fn load(
        &mut self,
        page: PageNo,
        wanted: PartSet,
        filling: &mut Filling<'_>,
        seq: Seq,
        out: &mut Vec<u8>,
    ) {
        let mut bytes: Page = [0; PAGE_SIZE];
        match filling.source.read(page, &mut bytes) {
            PageContent::Zero(pages) => {
                let run = Run { first: page, pages };
                put_item(&Item::Zero(run), out);
                filling.stats.zero += pages.0;
                // What more it says is not counted: clients need not ask for it.
                let first = self.pusher.sent(page);
                self.note(page, PartSet::ALL, first, filling, seq);
                run.iter().for_each(|page| {
                    self.pusher.sent(page);
                });
                self.withdraw(run);
            }
            PageContent::Gone => {
                put_item(&Item::Gone(page), out);
                filling.stats.gone += 1;
            }
            PageContent::Data => {
                let mut packed = Vec::new();
                let encoding = filling.packer.pack(&bytes, &mut packed);
                let whole = filling.datagram.saturating_sub(DATA_HEAD + WHOLE_HEAD);
                let each = filling
                    .datagram
                    .saturating_sub(DATA_HEAD + PART_HEAD)
                    .max(1);
                let parts = if packed.len() <= whole {
                    1
                } else {
                    packed.len().div_ceil(each)
                };
                // Bounded by the least datagram there may be.
                let parts = u8::try_from(parts).unwrap_or(u8::MAX);
                // Parts of something else, if it has none of those.
                let (wanted, part) = match wanted.next(0, parts) {
                    Some(part) if parts > 1 => (wanted, part),
                    Some(_) | None => (PartSet::ALL, 0),
                };
                self.pending = Some(Pending {
                    page,
                    encoding,
                    bytes: packed,
                    part,
                    parts,
                    wanted,
                });
            }
        }
    }

    /// Puts the pending page into a packet; tells whether all of it went.
    fn put_pending(&mut self, filling: &mut Filling<'_>, seq: Seq, out: &mut Vec<u8>) -> bool {
        let Some(pending) = &mut self.pending else {
            return true;
        };
        let room = filling.datagram.saturating_sub(out.len() + TAIL);
        let (page, encoding, wanted) = (pending.page, pending.encoding, pending.wanted);
        if pending.parts == 1 {
            if pending.bytes.len() + WHOLE_HEAD > room {
                return false;
            }
            put_item(&Item::Page(page, encoding, &pending.bytes), out);
        } else {
            let total = u16::try_from(pending.bytes.len()).unwrap_or(u16::MAX);
            let (index, parts) = (pending.part, pending.parts);
            let bytes = &pending.bytes[part_bytes(total, index, parts)];
            if bytes.len() + PART_HEAD > room {
                return false;
            }
            let part = PagePart {
                page,
                encoding,
                total,
                index,
                parts,
                bytes,
            };
            put_item(&Item::Part(part), out);
            if let Some(next) = wanted.next(index + 1, parts) {
                pending.part = next;
                return false;
            }
        }
        self.pending = None;
        let first = self.pusher.sent_data(page);
        self.note(page, wanted, first, filling, seq);
        true
    }

    /// A page is in the packet of that number, or the last part of it is.
    fn note(
        &mut self,
        page: PageNo,
        parts: PartSet,
        first: bool,
        filling: &mut Filling<'_>,
        seq: Seq,
    ) {
        self.recent.sent(page, parts, seq, filling.now);
        filling.stats.pages += 1;
        filling.stats.again += u64::from(!first);
    }
}

#[cfg(test)]
mod tests;
