//! The client of one image: what to ask for, again if need be, until it is there.
//!
//! ```text
//! Knocking --Welcome--> Member --silent too long--> Lost
//!     ^                   |
//!     '------ Stale ------'
//! ```
//!
//! A server that was started again, or has forgotten us, says that what we
//! say is stale; we knock again, and ask again for all that is wanted. One that
//! is silent for longer than our patience is lost for good, and so is every
//! page that is waited for.
//!
//! No socket, no clock: the caller passes `now`, sends what comes out, listens
//! to the groups it is told of, and puts pages where they belong.

mod held;
mod membership;
mod taking;

use crate::asks::Asks;
use crate::assembly::Assembly;
use crate::codec::Unpacker;
use crate::key::ImageKey;
use crate::pages::Run;
use crate::seal::{Endpoint, Opener, Sealer};
use crate::source::PageSink;
use crate::stats::Received;
use crate::wire::{
    self, Body, ClientId, Knock, Packet, Report, Request, Seq, ServerEpoch, ToServer, Urgency,
    WireError,
};
use forkyard_types::{PageCount, PageNo};
use held::Held;
use membership::{Came, Membership, News, Silence};
use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};
use std::{io, mem};

/// Between two reports while pages come.
const REPORT: Duration = Duration::from_millis(10);
/// Between the first two knocks; doubles.
const KNOCK: Duration = Duration::from_millis(5);
/// Not longer.
const SLOW_KNOCK: Duration = Duration::from_millis(500);
/// So long nothing of a group that should be heard, and it is not heard.
const DEAF: Duration = Duration::from_millis(250);
/// Delay of asks that are not waited for, if no group is heard.
const LISTEN: Duration = Duration::from_millis(20);
/// Signs of life in the time that the patience lasts.
const SIGNS: u32 = 10;

/// Parameters of a client.
#[derive(Clone, Debug)]
pub struct Receiving {
    /// The image's key.
    pub key: ImageKey,
    /// This client: drawn at random.
    pub client: ClientId,
    /// Drawn at random.
    pub nonce: u64,
    /// Size of the image.
    pub pages: PageCount,
    /// Time the server may be silent.
    pub patience: Duration,
    /// Most pages asked for in advance at a time.
    pub ahead: usize,
}

/// Something the caller has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// Listen to this group and to no other, and [receive](Receiver::receive) what comes
    /// there.
    Listen(Option<SocketAddrV4>),
    /// The server cannot read this page, and will not.
    Gone(PageNo),
    /// No page will come any more. `waited` are those that are waited for.
    Lost {
        /// Reason.
        why: Loss,
        /// In order.
        waited: Vec<PageNo>,
    },
    /// Every page is there, or gone.
    Complete,
}

/// Reason why a server is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The server has not been heard for so long.
    #[error("server has been silent for {0:?}")]
    Silent(Duration),
    /// The server serves an image of another size.
    #[error("server has an image of {0}")]
    WrongSize(PageCount),
}

/// Next action of a client.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientTurn {
    /// Send what was written to the server, then ask again.
    Send,
    /// Nothing before then, unless a packet comes or a page is wanted; `None`:
    /// nothing at all.
    Wait(Option<Instant>),
}

/// Way by which a datagram came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Via {
    /// To this client alone.
    Alone,
    /// To the group that it [listens](ReceiverEvent::Listen) to.
    Group,
}

/// Choice whether to fetch pages that were not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complete {
    /// Everything, in the background.
    Yes,
    /// Only what is asked for.
    No,
}

/// See the module.
#[derive(Debug)]
pub struct Receiver {
    receiving: Receiving,
    sealer: Sealer,
    opener: Opener,
    /// Kept from one packet to the next.
    opened: Vec<u8>,
    state: State,
    asks: Asks,
    held: Held,
    assembly: Assembly,
    unpacker: Unpacker,
    /// Number of our next packet; never starts again.
    seq: Seq,
    /// Time at which something came that shows that the server hears us: what goes to a
    /// group says nothing of that.
    heard: Instant,
    events: VecDeque<ReceiverEvent>,
    stats: Received,
}

#[derive(Debug)]
enum State {
    Knocking {
        knock: Knock,
        cookie: u64,
        due: Instant,
        pause: Duration,
        /// Time at which it knocked last.
        sent: Option<Instant>,
    },
    Member(Box<Membership>),
    Lost(Loss),
}

impl Receiver {
    /// A client that has nothing yet. Fails if there is no memory to unpack in.
    pub fn new(receiving: Receiving, now: Instant) -> io::Result<Self> {
        let knock = Knock {
            client: receiving.client,
            nonce: receiving.nonce,
        };
        let endpoint = Endpoint::Client(receiving.client);
        Ok(Self {
            sealer: Sealer::new(&receiving.key, endpoint),
            opener: Opener::new(receiving.key.clone()),
            opened: Vec::new(),
            state: knocking(knock, now),
            asks: Asks::default(),
            held: Held::new(receiving.pages),
            assembly: Assembly::default(),
            unpacker: Unpacker::new()?,
            seq: Seq(0),
            heard: now,
            events: VecDeque::new(),
            stats: Received::default(),
            receiving,
        })
    }

    /// A page is there already, from elsewhere.
    pub fn have(&mut self, page: PageNo) {
        self.held.have.insert(page);
        self.held.settled.insert(page);
        self.asks.withdraw(page);
    }

    /// A page is wanted. If it is there, or the server is lost, nothing happens.
    pub fn want(&mut self, page: PageNo, urgency: Urgency) {
        let lost = matches!(self.state, State::Lost(_));
        if page.0 >= self.receiving.pages.0 || self.held.have.contains(page) || lost {
            return;
        }
        if self.held.settled.contains(page) {
            self.events.push_back(ReceiverEvent::Gone(page));
            return;
        }
        self.asks.want(page, urgency);
    }

    /// A page is not wanted any more. It may come all the same.
    pub fn withdraw(&mut self, page: PageNo) {
        self.asks.withdraw(page);
    }

    /// Chooses whether to fetch everything in the background.
    pub fn complete(&mut self, complete: Complete) {
        self.held.complete = complete;
    }

    /// Has these pages come before all others, where everything is fetched.
    pub fn put_first(&mut self, runs: &[Run]) {
        self.held.put_first(runs);
    }

    /// Has these pages come after all others, where everything is fetched.
    pub fn put_last(&mut self, runs: &[Run]) {
        self.held.put_last(runs);
    }

    /// Tells whether a page is there.
    pub fn has(&self, page: PageNo) -> bool {
        self.held.have.contains(page)
    }

    /// Pages that are there.
    pub fn pages(&self) -> PageCount {
        self.held.have.count()
    }

    /// Returns why the server is lost, if it is.
    pub fn lost(&self) -> Option<Loss> {
        match self.state {
            State::Lost(loss) => Some(loss),
            State::Knocking { .. } | State::Member(_) => None,
        }
    }

    /// Returns the counters so far.
    pub fn stats(&self) -> Received {
        self.stats
    }

    /// From a question to its answer, on average.
    pub fn round_trip(&self) -> Option<Duration> {
        self.asks.round_trip()
    }

    /// The next thing the caller has to know.
    pub fn event(&mut self) -> Option<ReceiverEvent> {
        self.events.pop_front()
    }

    /// Takes a datagram, from the server or from the group; pages in it go to
    /// `sink`. Anything that is not in order is counted and forgotten. Only what comes by
    /// the group shows that it passes, or that others use it.
    pub fn receive(&mut self, datagram: &[u8], via: Via, sink: &mut dyn PageSink, now: Instant) {
        let mut opened = mem::take(&mut self.opened);
        match wire::open(&mut self.opener, datagram, &mut opened) {
            Ok(Packet {
                epoch,
                seq,
                body: Body::ToClient(message),
            }) => {
                let came = Came {
                    epoch,
                    seq,
                    via,
                    bytes: datagram.len(),
                };
                if !self.take(came, message, sink, now) {
                    self.stats.refused += 1;
                }
            }
            Ok(_) => self.stats.refused += 1,
            Err(error) => {
                self.stats.refused += 1;
                let others = matches!(error, WireError::Channel | WireError::Forged);
                if let State::Member(member) = &mut self.state
                    && others
                    && via == Via::Group
                {
                    member.foreign = member.foreign.saturating_add(1);
                }
            }
        }
        self.opened = opened;
    }

    /// The next packet for the server, written into `out`; to be called until
    /// it says wait, and then when that is over, a packet came, or a page
    /// is wanted.
    pub fn poll(&mut self, now: Instant, out: &mut Vec<u8>) -> ClientTurn {
        let patience = self.receiving.patience;
        let lost_at = self.heard + patience;
        if !matches!(self.state, State::Lost(_)) && now >= lost_at {
            self.lose(Loss::Silent(patience));
        }
        match &mut self.state {
            State::Lost(_) => ClientTurn::Wait(None),
            State::Knocking {
                knock,
                cookie,
                due,
                pause,
                sent,
            } => {
                if now < *due {
                    return ClientTurn::Wait(Some((*due).min(lost_at)));
                }
                *sent = Some(now);
                *due = now + *pause;
                *pause = (*pause * 2).min(SLOW_KNOCK);
                let join = ToServer::Join {
                    knock: *knock,
                    cookie: *cookie,
                };
                self.write(ServerEpoch(0), join, out);
                ClientTurn::Send
            }
            State::Member(_) => self.poll_member(lost_at, now, out),
        }
    }

    fn poll_member(&mut self, lost_at: Instant, now: Instant, out: &mut Vec<u8>) -> ClientTurn {
        let listens = self.listens_until(now);
        if listens.is_none() {
            self.look_ahead();
        }
        let State::Member(member) = &mut self.state else {
            return ClientTurn::Wait(None);
        };
        let silent =
            |member: &Membership, asks: &Asks| Some(member.silence.ends(asks.silent_after()?));
        if silent(member, &self.asks).is_some_and(|end| now >= end) {
            self.asks.silence(now);
            member.silence.tries += 1;
        }
        let assembly = &self.assembly;
        let (asks, collected) = self.asks.collect(|page| assembly.missing(page), now);
        if let Some(asked) = collected.stuck
            && member
                .hears
                .is_some_and(|heard| heard < asked && now >= heard + DEAF)
        {
            // Others may hear the group; we do not, or not any more.
            member.hears = None;
            member.news = News::Hearing;
        }
        let sign = member.reported + self.receiving.patience / SIGNS;
        let report = match member.news {
            News::Hearing => now,
            News::Pages => sign.min(member.reported + REPORT),
            News::None => sign,
        };
        if asks.is_empty() && now < report {
            let due = self.asks.next_due(now);
            let silent = silent(member, &self.asks);
            let next = [Some(report), due, silent, listens]
                .into_iter()
                .flatten()
                .min();
            return ClientTurn::Wait(Some(next.map_or(lost_at, |next| next.min(lost_at))));
        }
        member.news = News::None;
        member.reported = now;
        if !asks.is_empty() {
            member.silence.since = now;
        }
        let round_trip = self.asks.round_trip().unwrap_or_default().as_micros();
        let report = Report {
            hears: member.hears.is_some(),
            foreign: member.foreign,
            round_trip: u32::try_from(round_trip).unwrap_or(u32::MAX),
            alone: member.alone.report(now),
            group: member.all.report(now),
        };
        let request = Request {
            member: member.id,
            report,
            asks,
        };
        let epoch = member.epoch;
        self.stats.asked += collected.pages;
        self.stats.again += collected.again;
        self.write(epoch, ToServer::Request(request), out);
        ClientTurn::Send
    }

    /// Until when it is waited for a sign that the group passes: what is asked for before
    /// comes to this client alone, though others may want the same.
    fn listens_until(&self, now: Instant) -> Option<Instant> {
        let State::Member(member) = &self.state else {
            return None;
        };
        let until = member.since + LISTEN;
        let listens = member.group.is_some() && member.hears.is_none() && now < until;
        listens.then_some(until)
    }

    /// Wants more in advance, if everything is wanted in the end.
    fn look_ahead(&mut self) {
        let held = &mut self.held;
        if held.complete == Complete::No || held.told {
            return;
        }
        let room = self.receiving.ahead.saturating_sub(self.asks.ahead());
        if room > 0 {
            let asks = &self.asks;
            let missing = held.missing(room, |page| asks.contains(page));
            for page in missing {
                self.asks.want(page, Urgency::Ahead);
            }
        }
        if held.settled.is_full() {
            held.told = true;
            self.events.push_back(ReceiverEvent::Complete);
        }
    }

    /// A packet that says that we are gone; `None` if we were never there.
    pub fn leave(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let State::Member(member) = &self.state else {
            return None;
        };
        let (epoch, leave) = (member.epoch, ToServer::Leave(member.id));
        self.write(epoch, leave, out);
        Some(())
    }

    fn write(&mut self, epoch: ServerEpoch, message: ToServer, out: &mut Vec<u8>) {
        self.seq.0 += 1;
        let packet = Packet {
            epoch,
            seq: self.seq,
            body: Body::ToServer(message),
        };
        wire::seal(&mut self.sealer, &packet, out);
        self.stats.packets += 1;
        self.stats.bytes += out.len() as u64;
    }

    fn lose(&mut self, why: Loss) {
        self.state = State::Lost(why);
        let waited = self.asks.waited();
        self.asks.clear();
        self.events.push_back(ReceiverEvent::Listen(None));
        self.events.push_back(ReceiverEvent::Lost { why, waited });
    }
}

fn knocking(knock: Knock, now: Instant) -> State {
    State::Knocking {
        knock,
        cookie: 0,
        due: now,
        pause: KNOCK,
        sent: None,
    }
}

#[cfg(test)]
mod tests;
