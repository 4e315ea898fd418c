//! Hosts of a fork's clones, how many each makes, and the source of the pages.

use super::Peer;
use crate::{Host, HostError, fork::MOST_CLONES};
use forkyard_types::{ForkRequest, PeerPromise, TicketId, VmId};
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Name of this host where others are named.
pub const HERE: &str = "here";
/// Other hosts that one fork may go to.
const MOST_HOSTS: usize = 64;
/// Turns they may have: one a clone at most.
const MOST_TURNS: usize = MOST_CLONES as usize;

/// Assignment of clones to hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dealt {
    /// Clones on this host.
    pub here: u16,
    /// Clones on others, by name.
    pub elsewhere: Vec<(String, u16)>,
}

/// Clones of a fork that other hosts make.
#[derive(Clone, Debug, Default)]
pub(crate) struct Far {
    /// Share of each host.
    pub shares: Vec<Share>,
    /// True if they are to become independent of this host in time.
    pub settle: bool,
    /// The ticket that promised them, and the VM it was granted to.
    pub ticket: Option<(TicketId, VmId)>,
}

/// Clones that one host makes.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    /// Host.
    pub peer: Arc<dyn Peer>,
    /// Number of clones.
    pub count: u16,
    /// Number of the first of them among the fork's, unless they were promised.
    pub first: u16,
    /// Promises of a guest's ticket for them; empty without a ticket.
    pub promised: Vec<PeerPromise>,
    /// Measured while the instant is taken.
    pub round_trip: RoundTrip,
}

/// Round trip to a host, if it could be measured.
pub(crate) type RoundTrip = Shared<BoxFuture<'static, Option<Duration>>>;

impl Share {
    /// Share of a host, whose clones are numbered from `first` on. Starts to measure the way
    /// there.
    pub fn of(peer: Arc<dyn Peer>, count: u16, first: u16) -> Self {
        let measured = peer.clone();
        let measured = tokio::spawn(async move { measured.round_trip().await });
        Self {
            peer,
            count,
            first,
            promised: Vec::new(),
            round_trip: measured
                .map(|measured| measured.ok().flatten())
                .boxed()
                .shared(),
        }
    }

    /// Their numbers.
    pub fn numbers(&self) -> Vec<u16> {
        match self.promised.is_empty() {
            true => (self.first..).take(self.count.into()).collect(),
            false => self.promised.iter().map(|clone| clone.number).collect(),
        }
    }
}

impl Dealt {
    /// Deals clones of a fork to hosts.
    pub fn new(request: &ForkRequest) -> Result<Self, HostError> {
        Self::of(request.count, &request.to, request.spread)
    }

    /// Deals VMs to hosts in turns; a host that is named twice has two turns. A request to spread them
    /// is one that no cluster has dealt.
    pub fn of(wanted: u16, to: &[String], spread: bool) -> Result<Self, HostError> {
        if spread {
            return Err(HostError::Invalid(
                "this host is no node of a cluster that VMs could be spread over: name peers \
                 instead, with `to`"
                    .into(),
            ));
        }
        let hosts: BTreeSet<_> = to.iter().collect();
        for (many, most, what) in [
            (hosts.len(), MOST_HOSTS, "hosts"),
            (to.len(), MOST_TURNS, "turns"),
        ] {
            if many > most {
                return Err(HostError::Invalid(format!(
                    "{many} {what} are named: {most} at most"
                )));
            }
        }
        let mut dealt = Self::default();
        let Some(turns) = u16::try_from(to.len()).ok().filter(|n| *n > 0) else {
            dealt.here = wanted;
            return Ok(dealt);
        };
        for (turn, name) in (0..).zip(to) {
            let count = wanted / turns + u16::from(turn < wanted % turns);
            if name == HERE {
                dealt.here += count;
                continue;
            }
            match dealt.elsewhere.iter_mut().find(|(other, _)| other == name) {
                Some((_, had)) => *had += count,
                None => dealt.elsewhere.push((name.clone(), count)),
            }
        }
        dealt.elsewhere.retain(|(_, count)| *count > 0);
        Ok(dealt)
    }

    /// Clones on other hosts.
    pub fn far(&self) -> u16 {
        self.elsewhere.iter().map(|(_, count)| count).sum()
    }

    /// Leaves the other hosts no more than these, the first ones theirs.
    pub fn cut(&mut self, mut granted: u16) {
        for (_, count) in &mut self.elsewhere {
            *count = granted.min(*count);
            granted -= *count;
        }
        self.elsewhere.retain(|(_, count)| *count > 0);
    }
}

impl Host {
    /// Finds the hosts that are named. Their clones are numbered after `here` of
    /// this one's.
    pub(crate) fn far(&self, dealt: &Dealt, here: u16, settle: bool) -> Result<Far, HostError> {
        let mut first = here + 1;
        let mut shares = Vec::new();
        for (name, count) in &dealt.elsewhere {
            shares.push(Share::of(self.peer(name)?, *count, first));
            first += count;
        }
        Ok(Far {
            shares,
            settle,
            ticket: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn deal(count: u16, to: &[&str]) -> Dealt {
        let request = ForkRequest {
            count,
            to: to.iter().map(|name| (*name).to_owned()).collect(),
            ..ForkRequest::default()
        };
        Dealt::new(&request).expect("few hosts")
    }

    #[test]
    fn clones_are_dealt_in_turns_and_all_stay_here_unless_others_are_named() {
        assert_eq!(deal(5, &[]).here, 5);
        let dealt = deal(5, &["b", HERE, "c", "b"]);
        assert_eq!(dealt.here, 1);
        assert_eq!(dealt.elsewhere, [("b".into(), 3), ("c".into(), 1)]);
        assert_eq!(deal(1, &["b", "c"]).elsewhere, [("b".into(), 1)]);
    }

    #[test]
    fn too_many_hosts_and_a_spread_that_nobody_has_dealt_are_refused() {
        let refused = |to: Vec<String>, spread| {
            let request = ForkRequest {
                count: 1,
                to,
                spread,
                ..ForkRequest::default()
            };
            Dealt::new(&request).expect_err("refused").to_string()
        };
        let many = (0..=MOST_HOSTS).map(|host| host.to_string()).collect();
        assert!(refused(many, false).contains("65 hosts"));
        assert!(refused(vec!["b".into(); MOST_TURNS + 1], false).contains("257 turns"));
        assert!(refused(Vec::new(), true).contains("no node of a cluster"));
    }

    proptest! {
        #[test]
        fn none_is_dealt_twice_and_none_is_forgotten(
            count in 0..300u16,
            to in prop::collection::vec(prop::sample::select(vec![HERE, "b", "c", "d"]), 0..9),
            granted in 0..300u16,
        ) {
            let mut dealt = deal(count, &to);
            prop_assert_eq!(dealt.here + dealt.far(), count);
            let far = dealt.far();
            dealt.cut(granted);
            prop_assert_eq!(dealt.far(), far.min(granted));
        }
    }
}
