//! Members that get pages from a server.
//!
//! ```text
//! Join --> Challenge --> Join with its cookie --> Welcome ... silent, or Leave
//! ```
//!
//! A server remembers no client before it has heard an answer to its challenge, and so
//! sends no page to an address from which none was heard, however often a
//! captured `Join` is sent again.

use crate::key::CookieSecret;
use crate::lane::Lane;
use crate::meter::Replays;
use crate::pace::{Pace, Share};
use crate::wire::{Knock, MemberId, Report, Seq};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Most members: each has a queue of its own.
const MOST: usize = 1024;

/// A client that is in.
#[derive(Debug)]
pub(crate) struct Member {
    pub knock: Knock,
    pub address: SocketAddr,
    pub seen: Replays,
    /// Time at which it was last heard.
    pub heard: Instant,
    /// Time at which it was last told so.
    pub told: Instant,
    pub report: Report,
    /// Number of the request that brought the report.
    pub reported: Seq,
    /// Pace of the member in the group.
    pub pace: Pace,
    pub lane: Lane,
}

impl Member {
    /// Tells whether packets to the group are for it, too.
    pub fn is_in_group(&self) -> bool {
        self.report.hears && !self.pace.is_alone()
    }

    /// Returns the round trip of the member; zero if it does not know.
    pub fn round_trip(&self) -> Duration {
        Duration::from_micros(u64::from(self.report.round_trip))
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Members {
    secret: CookieSecret,
    list: BTreeMap<MemberId, Member>,
    last: MemberId,
    /// Time a member may be silent.
    patience: Duration,
}

/// Answer to a knocking client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Challenge(u64),
    /// The client is new.
    New(MemberId),
    /// The client is in already, and has not heard so.
    Known(MemberId),
    Full,
}

impl Members {
    pub fn new(secret: CookieSecret, patience: Duration) -> Self {
        Self {
            secret,
            list: BTreeMap::new(),
            last: MemberId(0),
            patience,
        }
    }

    pub fn knocks(
        &mut self,
        from: SocketAddr,
        knock: Knock,
        cookie: u64,
        now: Instant,
        lane: impl FnOnce() -> Lane,
    ) -> Admission {
        let right = self.secret.cookie(from, knock.client.0, knock.nonce);
        if cookie != right {
            return Admission::Challenge(right);
        }
        let client = knock.client;
        let known = self.list.iter().find(|(_, m)| m.knock.client == client);
        match known.map(|(id, member)| (*id, member.knock.nonce, member.address)) {
            Some((id, nonce, at)) if nonce == knock.nonce && at == from => {
                return Admission::Known(id);
            }
            // It has started again, or moved.
            Some((id, ..)) => {
                self.list.remove(&id);
            }
            None => {}
        }
        let Some(id) = self
            .last
            .0
            .checked_add(1)
            .filter(|_| self.list.len() < MOST)
        else {
            return Admission::Full;
        };
        self.last = MemberId(id);
        let member = Member {
            knock,
            address: from,
            seen: Replays::default(),
            heard: now,
            told: now,
            report: Report::default(),
            reported: Seq(0),
            pace: Pace::default(),
            lane: lane(),
        };
        self.list.insert(self.last, member);
        Admission::New(self.last)
    }

    /// A packet of a member came from `from`: `None` if there is no such member
    /// there, or the packet is an old one.
    pub fn hear(
        &mut self,
        id: MemberId,
        from: SocketAddr,
        seq: Seq,
        now: Instant,
    ) -> Result<&mut Member, Unheard> {
        let member = self.list.get_mut(&id).filter(|m| m.address == from);
        let member = member.ok_or(Unheard::Stranger)?;
        if !member.seen.admit(seq) {
            return Err(Unheard::Replay);
        }
        member.heard = now;
        Ok(member)
    }

    pub fn leave(&mut self, id: MemberId) {
        self.list.remove(&id);
    }

    /// Forgets members that have been silent for too long.
    pub fn expire(&mut self, now: Instant) {
        let patience = self.patience;
        self.list
            .retain(|_, member| now.saturating_duration_since(member.heard) < patience);
    }

    /// Returns the time at which the first will have been silent for too long.
    pub fn next_expiry(&self) -> Option<Instant> {
        let heard = self.list.values().map(|member| member.heard).min();
        heard.map(|heard| heard + self.patience)
    }

    pub fn get_mut(&mut self, id: MemberId) -> Option<&mut Member> {
        self.list.get_mut(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (MemberId, &Member)> {
        self.list.iter().map(|(id, member)| (*id, member))
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Members that hear the group, and are not left out of it.
    pub fn in_group(&self) -> impl Iterator<Item = (MemberId, &Member)> {
        self.iter().filter(|(_, member)| member.is_in_group())
    }

    /// Returns the recent shares of the other members.
    pub fn shares_of_others(&self, but: MemberId) -> Vec<Share> {
        let others = self.in_group().filter(|(id, _)| *id != but);
        others.filter_map(|(_, other)| other.pace.share()).collect()
    }
}

/// Reason why a member's packet does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unheard {
    /// No such member, or not there.
    Stranger,
    /// The packet came before.
    Replay,
}
