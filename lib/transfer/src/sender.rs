//! The server of one image: the choice of receivers, times and ways of its pages.
//!
//! ```text
//! packet --receive--> members, lanes --poll--> packet, or until when to wait
//! ```
//!
//! What is asked for goes to the group if several members hear it, else to those that
//! asked; so do answers about pages marked as disjoint (SnowFlock, 6.1),
//! and, once the end game has begun, about those that went to the group before.
//! A member that does not hear the group gets
//! everything alone. The server keeps membership and flow control and nothing
//! more: that pages arrive is ensured by the clients that want them.
//!
//! No socket, no clock: the caller passes `now` and sends what comes out.

mod requests;
mod room;

use crate::codec::Packer;
use crate::flow::Rate;
use crate::lane::{Filling, Lane};
use crate::members::{Admission, Members, Unheard};
use crate::pages::PageSet;
use crate::push::{Push, Pusher};
use crate::seal::{Endpoint, Opener, Sealer};
use crate::serving::{EndGame, LEAST_DATAGRAM, Serving};
use crate::source::PageSource;
use crate::stats::{Sent, Tally};
use crate::step::{SenderStep, To};
use crate::wire::{
    self, Body, MemberId, MulticastGroup, Packet, Seq, ServerEpoch, ToClient, ToServer, Welcome,
};
use std::collections::VecDeque;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most answers that are no pages and wait to be sent.
const MOST_CONTROL: usize = 1024;
/// Most pages of one request that are looked at.
const MOST_ASKED: u64 = 4096;
/// Until the first sign to the group after a client came; doubles.
const FIRST_BEACON: Duration = Duration::from_millis(1);
/// So many packets of others on our group, and we take another.
const FOREIGN: u32 = 32;
/// Between two signs by which members see what they have missed.
const SHOWN: Duration = Duration::from_millis(2);
/// A member that asks is told so often, at least, that it is heard.
const TOLD: Duration = Duration::from_millis(250);
/// Between two changes of the group.
const REGROUP: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub struct Sender {
    serving: Serving,
    sealer: Sealer,
    opener: Opener,
    /// The last packet opened.
    opened: Vec<u8>,
    members: Members,
    group: Lane,
    room: Room,
    control: VecDeque<(SocketAddr, ToClient<'static>)>,
    packer: Packer,
    disjoint: Arc<PageSet>,
    turn: Turn,
    tally: Tally,
}

/// State that all members share but the lane.
#[derive(Debug)]
struct Room {
    /// Number of the group among the image's.
    attempt: u8,
    regrouped: Instant,
    /// Packets of others that came to it.
    foreign: u32,
    /// Time at which the next sign is due.
    beacon: Instant,
    /// Time of the last one.
    shown: Instant,
    /// Time from that one to the next.
    pause: Duration,
    /// Time at which the first member came.
    opened: Option<Instant>,
    /// Time at which a page was last asked for.
    asked: Instant,
}

/// A lane, and where it leads.
struct Way<'a> {
    lane: &'a mut Lane,
    to: To,
    /// Member that its packets name.
    member: Option<MemberId>,
    /// True if unasked pages go this way: to the group if there is one, and to
    /// members it does not reach.
    pushed_to: bool,
}

/// Receivers of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    /// All that hear the group.
    All,
    /// All, about what they were not sent yet; else the member that asked. The end game: what
    /// is still asked for again, one or two have lost.
    AllOnce,
    /// The member that asked.
    One,
}

/// Lane whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Group,
    Member(MemberId),
}

impl Sender {
    /// A server without members.
    pub fn new(mut serving: Serving, now: Instant) -> Self {
        serving.datagram = serving.datagram.max(LEAST_DATAGRAM);
        let mut disjoint = PageSet::new(serving.pages);
        let marked = serving
            .disjoint
            .iter()
            .filter_map(|run| run.within(serving.pages));
        let marked: Vec<_> = marked.collect();
        for page in marked.iter().flat_map(|run| run.iter()) {
            disjoint.insert(page);
        }
        let disjoint = Arc::new(disjoint);
        let group = lane(&serving, &disjoint, now);
        let endpoint = Endpoint::Server(serving.epoch);
        Self {
            sealer: Sealer::new(&serving.key, endpoint),
            opener: Opener::new(serving.key.clone()),
            opened: Vec::new(),
            members: Members::new(serving.secret.clone(), serving.patience),
            group,
            room: Room {
                attempt: 0,
                regrouped: now,
                beacon: now,
                shown: now,
                pause: FIRST_BEACON,
                opened: None,
                asked: now,
                foreign: 0,
            },
            control: VecDeque::new(),
            packer: Packer::new(),
            disjoint,
            turn: Turn::Group,
            tally: Tally::default(),
            serving,
        }
    }

    /// Returns the counters so far.
    pub fn stats(&self) -> Sent {
        self.tally.sum()
    }

    /// Returns the counters, by link.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns the number of members.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The rate to the group now.
    pub fn group_rate(&mut self, now: Instant) -> Rate {
        self.group.rate(now)
    }

    /// Takes a datagram. Anything that is not in order is counted and forgotten.
    pub fn receive(&mut self, from: SocketAddr, datagram: &[u8], now: Instant) {
        match wire::open(&mut self.opener, datagram, &mut self.opened) {
            Ok(Packet {
                epoch,
                seq,
                body: Body::ToServer(message),
            }) => self.take(from, (epoch, seq), message, now),
            Ok(_) | Err(_) => self.tally.refuse(),
        }
    }

    fn take(
        &mut self,
        from: SocketAddr,
        (epoch, seq): (ServerEpoch, Seq),
        message: ToServer,
        now: Instant,
    ) {
        match message {
            ToServer::Join { knock, cookie } => {
                let (serving, disjoint) = (&self.serving, &self.disjoint);
                let lane = || lane(serving, disjoint, now);
                match self.members.knocks(from, knock, cookie, now, lane) {
                    Admission::Challenge(cookie) => {
                        self.say(from, ToClient::Challenge { knock, cookie });
                    }
                    Admission::New(id) => {
                        self.room.opened.get_or_insert(now);
                        self.room.asked = now;
                        self.room.beacon = now;
                        self.room.pause = FIRST_BEACON;
                        self.welcome(id);
                    }
                    Admission::Known(id) => self.welcome(id),
                    Admission::Full => self.tally.refuse(),
                }
            }
            ToServer::Request(request) => {
                let id = request.member;
                let heard = match epoch == self.serving.epoch {
                    true => self.members.hear(id, from, seq, now).map(|_| ()),
                    false => Err(Unheard::Stranger),
                };
                match heard {
                    Ok(()) => self.request(&request, seq, now),
                    Err(Unheard::Stranger) => self.say(from, ToClient::Stale(id, seq)),
                    Err(Unheard::Replay) => self.tally.refuse(),
                }
            }
            ToServer::Leave(member) => {
                let ours = epoch == self.serving.epoch;
                if ours && self.members.hear(member, from, seq, now).is_ok() {
                    self.members.leave(member);
                }
            }
        }
    }

    /// The next packet, written into `out`; to be called until it says wait, and
    /// then when that is over or a packet came.
    pub fn poll(
        &mut self,
        source: &mut dyn PageSource,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> SenderStep {
        self.members.expire(now);
        if let Some((to, message)) = self.control.pop_front() {
            let seq = match message {
                // What only a member hears counts among what it hears.
                ToClient::Pulse(id) => self.members.get_mut(id).map(|m| m.lane.next_seq()),
                ToClient::Challenge { .. }
                | ToClient::Welcome(_)
                | ToClient::Stale(..)
                | ToClient::Beacon
                | ToClient::Data(..) => None,
            };
            self.write(message, seq.unwrap_or_default(), out);
            return self.sent(To::One(to), out);
        }
        if let Some(group) = self.beacon_due(now) {
            let seq = self.group.next_seq();
            self.write(ToClient::Beacon, seq, out);
            return self.sent(To::Group(group), out);
        }
        self.poll_lanes(source, now, out)
    }

    fn poll_lanes(
        &mut self,
        source: &mut dyn PageSource,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> SenderStep {
        let together = self.is_together();
        let pushing = self.is_pushing(now);
        let mut wait = self.timers(pushing);
        let all = self.lanes();
        for push in [false, true] {
            if push && !pushing {
                break;
            }
            for turn in &all {
                let Some(Way {
                    lane,
                    to,
                    member,
                    pushed_to,
                }) = self.way(*turn, together)
                else {
                    continue;
                };
                let may_push = pushing && pushed_to && !lane.pusher.is_idle();
                let has_work = if push { may_push } else { lane.is_asked() };
                if !has_work {
                    continue;
                }
                if let Some(later) = lane.ready(now) {
                    wait = Some(wait.map_or(later, |wait| wait.min(later)));
                    continue;
                }
                self.turn = *turn;
                if self.fill((*turn, to), member, may_push && push, source, now, out) {
                    return self.sent(to, out);
                }
            }
        }
        SenderStep::Wait(wait)
    }

    /// Fills a packet; tells whether it is one of pages.
    fn fill(
        &mut self,
        (turn, to): (Turn, To),
        member: Option<MemberId>,
        push: bool,
        source: &mut dyn PageSource,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> bool {
        let lane = match turn {
            Turn::Group => &mut self.group,
            Turn::Member(id) => match self.members.get_mut(id) {
                Some(member) => &mut member.lane,
                None => return false,
            },
        };
        let seq = lane.next_seq();
        wire::begin_data(&self.sealer, seq, member, out);
        let mut filling = Filling {
            source,
            packer: &mut self.packer,
            stats: self.tally.on(to.link()),
            datagram: self.serving.datagram,
            push,
            now,
        };
        if !lane.fill(&mut filling, seq, out) {
            lane.give_back(seq);
            return false;
        }
        wire::finish(&mut self.sealer, out);
        lane.spend(out.len());
        true
    }

    fn write(&mut self, message: ToClient<'_>, seq: Seq, out: &mut Vec<u8>) {
        let packet = Packet {
            epoch: self.serving.epoch,
            seq,
            body: Body::ToClient(message),
        };
        wire::seal(&mut self.sealer, &packet, out);
    }

    fn sent(&mut self, to: To, out: &[u8]) -> SenderStep {
        let bytes = out.len() as u64;
        let sent = self.tally.on(to.link());
        sent.packets += 1;
        sent.bytes += bytes;
        sent.group_bytes += if matches!(to, To::Group(_)) { bytes } else { 0 };
        SenderStep::Send(to)
    }

    /// Lanes in turn: first the one after the last that sent.
    fn lanes(&self) -> Vec<Turn> {
        let members = self.members.iter().map(|(id, _)| Turn::Member(id));
        let mut all: Vec<_> = std::iter::once(Turn::Group).chain(members).collect();
        let next = all.iter().position(|turn| *turn > self.turn).unwrap_or(0);
        all.rotate_left(next);
        all
    }

    fn way(&mut self, turn: Turn, together: bool) -> Option<Way<'_>> {
        match turn {
            Turn::Group => Some(Way {
                to: To::Group(self.group_address()?),
                lane: &mut self.group,
                member: None,
                pushed_to: together,
            }),
            Turn::Member(id) => {
                let member = self.members.get_mut(id)?;
                Some(Way {
                    to: To::One(member.address),
                    pushed_to: !(member.is_in_group() && together),
                    lane: &mut member.lane,
                    member: Some(id),
                })
            }
        }
    }

    fn welcome(&mut self, id: MemberId) {
        let group = self.serving.group.map(|port| MulticastGroup {
            attempt: self.room.attempt,
            port,
        });
        if let Some(member) = self.members.get_mut(id) {
            let (to, knock) = (member.address, member.knock);
            // What goes there would only take the place of what it is sent.
            let group = group.filter(|_| !member.pace.is_alone());
            let welcome = Welcome {
                knock,
                member: id,
                pages: self.serving.pages,
                group,
            };
            self.say(to, ToClient::Welcome(welcome));
        }
    }

    fn say(&mut self, to: SocketAddr, message: ToClient<'static>) {
        // A client that is not answered asks again.
        if self.control.len() < MOST_CONTROL {
            self.control.push_back((to, message));
        }
    }

    fn group_address(&self) -> Option<SocketAddrV4> {
        let address = self.serving.key.group(self.room.attempt);
        Some(SocketAddrV4::new(address, self.serving.group?))
    }

    /// Tells whether a group is worth it.
    fn is_together(&self) -> bool {
        self.serving.group.is_some() && self.members.in_group().nth(1).is_some()
    }

    /// Chooses the receivers of an answer that could go to the group.
    fn answers(&self, now: Instant) -> Answers {
        let EndGame { percent, idle } = self.serving.end_game;
        let gone = self.group.pusher.data().0.saturating_mul(100);
        if now.saturating_duration_since(self.room.asked) >= idle {
            Answers::One
        } else if gone >= self.serving.data.0.saturating_mul(u64::from(percent)) {
            Answers::AllOnce
        } else {
            Answers::All
        }
    }

    fn is_pushing(&self, now: Instant) -> bool {
        let (members, patience) = self.serving.gather;
        self.serving.push != Push::Nothing
            && self
                .room
                .opened
                .is_some_and(|at| self.members.len() >= members || now >= at + patience)
    }

    /// Returns the time at which something has to be done though nothing is asked.
    fn timers(&self, pushing: bool) -> Option<Instant> {
        let expiry = self.members.next_expiry();
        let beacon = self
            .serving
            .group
            .map(|_| self.room.beacon)
            .filter(|_| expiry.is_some());
        let opens = self.room.opened.map(|at| at + self.serving.gather.1);
        let opens =
            opens.filter(|_| !pushing && self.serving.push != Push::Nothing && expiry.is_some());
        [expiry, beacon, opens].into_iter().flatten().min()
    }
}

fn lane(serving: &Serving, disjoint: &Arc<PageSet>, now: Instant) -> Lane {
    let barred = Arc::clone(disjoint);
    let pusher = Pusher::new(serving.push, &serving.working_set, serving.pages, barred);
    Lane::new(serving.law, serving.window, pusher, now)
}

#[cfg(test)]
mod tests;
