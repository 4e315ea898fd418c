//! Counters of traffic sent and received: of one image, and by link.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Pages asked for, every time.
    pub asked: u64,
    /// Of them, those that were ignored because the answer was on its way.
    pub lockstep: u64,
    /// Pages sent, each time: one that goes to a group counts once.
    pub pages: u64,
    /// Of them, those sent by the same way before.
    pub again: u64,
    /// Of them, those that were not asked for.
    pub pushed: u64,
    /// Pages said to be zero.
    pub zero: u64,
    /// Pages that could not be read.
    pub gone: u64,
    /// Packets, of any kind.
    pub packets: u64,
    /// Their bytes, without those of IP and UDP.
    pub bytes: u64,
    /// Bytes that went to a group.
    pub group_bytes: u64,
    /// Packets that were not authentic, not in their time, or made no sense.
    pub refused: u64,
}

/// Counters of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Pages it asked for, every time.
    pub asked: u64,
    /// Of them, those it had asked for before.
    pub again: u64,
    /// Pages that came while they were waited for.
    pub waited: u64,
    /// Pages that came without.
    pub ahead: u64,
    /// Pages that came and were there already.
    pub twice: u64,
    /// Pages that are zero.
    pub zero: u64,
    /// Packets sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Packets that were not authentic, not in their time, or made no sense.
    pub refused: u64,
}

/// Destination of a server's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountedLink {
    /// All listeners of an image's group, at once.
    Group,
    /// One host.
    Host(IpAddr),
}

/// Counters of a server, by link. Asking counts for the host that asked,
/// whichever way the answer goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    links: BTreeMap<CountedLink, Sent>,
    /// Packets of no certain sender: an address can be forged.
    refused: u64,
}

impl Tally {
    /// Each link there was anything on.
    pub fn links(&self) -> impl Iterator<Item = (CountedLink, Sent)> {
        self.links.iter().map(|(link, sent)| (*link, *sent))
    }

    /// All links together.
    pub fn sum(&self) -> Sent {
        let mut sum = Sent {
            refused: self.refused,
            ..Sent::default()
        };
        self.links.values().for_each(|sent| sum.add(*sent));
        sum
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Self) {
        self.refused += other.refused;
        for (link, sent) in &other.links {
            self.on(*link).add(*sent);
        }
    }

    pub(crate) fn on(&mut self, link: CountedLink) -> &mut Sent {
        self.links.entry(link).or_default()
    }

    pub(crate) fn refuse(&mut self) {
        self.refused += 1;
    }
}

impl Sent {
    /// Adds more of the same kind.
    pub fn add(&mut self, more: Self) {
        self.asked += more.asked;
        self.lockstep += more.lockstep;
        self.pages += more.pages;
        self.again += more.again;
        self.pushed += more.pushed;
        self.zero += more.zero;
        self.gone += more.gone;
        self.packets += more.packets;
        self.bytes += more.bytes;
        self.group_bytes += more.group_bytes;
        self.refused += more.refused;
    }
}

impl Received {
    /// Adds more of the same kind.
    pub fn add(&mut self, more: Self) {
        self.asked += more.asked;
        self.again += more.again;
        self.waited += more.waited;
        self.ahead += more.ahead;
        self.twice += more.twice;
        self.zero += more.zero;
        self.packets += more.packets;
        self.bytes += more.bytes;
        self.refused += more.refused;
    }
}
