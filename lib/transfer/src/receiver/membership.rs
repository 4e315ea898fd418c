//! State of a client while a server serves it.

use super::Via;
use crate::meter::{Replays, Way};
use crate::wire::{Knock, MemberId, Seq, ServerEpoch};
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Membership {
    pub id: MemberId,
    pub since: Instant,
    /// Number of our last packet before it knew us.
    pub entered: Seq,
    pub epoch: ServerEpoch,
    pub knock: Knock,
    pub group: Option<SocketAddrV4>,
    pub alone: Way,
    pub all: Way,
    pub seen: (Replays, Replays),
    /// Time at which the group was last heard; `None`: not, or not any more.
    pub hears: Option<Instant>,
    pub foreign: u32,
    pub news: News,
    pub reported: Instant,
    pub silence: Silence,
}

/// Circumstances of a packet besides its content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Came {
    pub epoch: ServerEpoch,
    pub seq: Seq,
    pub via: Via,
    pub bytes: usize,
}

/// Time in which no page has come, nor was any asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Silence {
    pub since: Instant,
    /// Number of times that was taken for a loss.
    pub tries: u32,
}

/// News to report, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum News {
    None,
    /// Pages came.
    Pages,
    /// The group is heard, or not any more: that cannot wait.
    Hearing,
}

impl Silence {
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            tries: 0,
        }
    }

    /// Returns the time at which it is one, if `after` is the first time; later each time.
    pub fn ends(self, after: Duration) -> Instant {
        self.since + after * (1 << self.tries.min(8))
    }
}

impl Membership {
    /// Counts a packet of the group; tells whether packets before it are
    /// missing.
    pub fn hear_group(&mut self, came: Came, now: Instant) -> bool {
        // What is still on its way when we have left, or is sent on by another, says nothing.
        let listens = self.group.is_some() && came.via == Via::Group;
        if listens && self.hears.replace(now).is_none() {
            self.news = News::Hearing;
        }
        self.all.add(came.seq, came.bytes, now)
    }
}
