//! Counters of a host's links to others.

use crate::Host;
use std::{collections::BTreeMap, net::Ipv4Addr};

/// The peer that what goes to several hosts at once is counted for.
const GROUP: &str = "group";

/// One look at a host's counters: each by what is counted and the peer.
#[derive(Clone, Debug, Default)]
pub struct Links(BTreeMap<(String, String), u64>);

impl Links {
    /// As they stand.
    #[track_caller]
    pub fn of(host: &Host) -> Self {
        let text = host.get("/metrics");
        let counts = text.lines().filter_map(|line| {
            let line = line.strip_prefix("forkyard_link_")?;
            let (name, rest) = line.split_once("_total{peer=\"")?;
            let (peer, value) = rest.split_once("\"} ")?;
            let value = value.parse().expect("a count");
            Some(((name.to_owned(), peer.to_owned()), value))
        });
        Self(counts.collect())
    }

    /// For all peers together; `name` as in `forkyard_link_NAME_total`.
    pub fn all(&self, name: &str) -> u64 {
        self.sum(name, |_| true)
    }

    /// Returns the traffic to several hosts at once.
    pub fn group(&self, name: &str) -> u64 {
        self.sum(name, |peer| peer == GROUP)
    }

    /// Returns the traffic between this host and one other alone.
    pub fn with(&self, other: Ipv4Addr, name: &str) -> u64 {
        self.sum(name, |peer| peer == other.to_string())
    }

    fn sum(&self, name: &str, which: impl Fn(&str) -> bool) -> u64 {
        let counts = self.0.iter();
        let counts = counts.filter(|((counted, peer), _)| counted == name && which(peer));
        counts.map(|(_, count)| count).sum()
    }
}
