//! Addresses of a service in the DNS, and the times at which this front-end sees to them.
//!
//! ```text
//! unseen --due--> asked: right --------> confirmed --after REFRESH--> due
//!                   |    wrong --update--> confirmed
//!                   +--fails--> failed --after a while, longer each time--> due
//! ```
//!
//! Only the active front-end, and only while its near host itself says that the VM runs there, asks and
//! updates: a VM runs on one host at a time, so no two front-ends differ for longer than an answer is under way.
//! That is made good by the next look: what is published is looked at, not remembered.

use crate::Role;
use std::{collections::BTreeSet, net::IpAddr, time::Duration};

/// Between two looks at what is published.
const REFRESH: Duration = Duration::from_secs(10);
/// Before another try after a failure, and the most.
const AGAIN: Duration = Duration::from_millis(500);

/// Addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The name, fully qualified.
    pub name: String,
    /// Time for which resolvers keep an answer.
    pub ttl: Duration,
    /// Addresses.
    pub addresses: BTreeSet<IpAddr>,
}

/// A change to be made in one message: all addresses of the name make way for these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update(pub Record);

impl Record {
    /// Compares with what the name server answers; returns the change that is due.
    pub fn differs(&self, found: &BTreeSet<IpAddr>) -> Option<Update> {
        (self.addresses != *found).then(|| Update(self.clone()))
    }
}

/// State of what is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Publication {
    /// Not looked at since this front-end became active.
    #[default]
    Unseen,
    /// The DNS was right, or has been put right.
    Confirmed {
        /// Time of it.
        at: Duration,
    },
    /// The name server did not answer, or refused.
    Failed {
        /// Time of it.
        at: Duration,
        /// Times in a row.
        times: u32,
    },
}

impl Publication {
    /// True if the name server is to be asked now. `sure` tells that the nearest host says itself that
    /// it has the VM.
    pub fn is_due(self, role: Role, sure: bool, now: Duration) -> bool {
        let active = match role {
            Role::Active => sure,
            Role::Forwarding { .. } | Role::Drained => false,
        };
        active && now >= self.next()
    }

    /// Returns the time of the next look, if it is this front-end's matter then.
    fn next(self) -> Duration {
        match self {
            Self::Unseen => Duration::ZERO,
            Self::Confirmed { at } => at.saturating_add(REFRESH),
            Self::Failed { at, times } => {
                let pause = AGAIN.saturating_mul(1 << times.min(16));
                at.saturating_add(pause.min(REFRESH))
            }
        }
    }

    /// Returns the state after a look and the change that it took, if any.
    #[must_use]
    pub fn after<E>(self, outcome: &Result<(), E>, now: Duration) -> Self {
        let times = match (outcome, self) {
            (Ok(()), _) => return Self::Confirmed { at: now },
            (Err(_), Self::Unseen | Self::Confirmed { .. }) => 0,
            (Err(_), Self::Failed { times, .. }) => times.saturating_add(1),
        };
        Self::Failed { at: now, times }
    }

    /// Forgets what was seen if the front-end is not active: another one sees to it meanwhile.
    #[must_use]
    pub fn under(self, role: Role) -> Self {
        match role {
            Role::Active => self,
            Role::Forwarding { .. } | Role::Drained => Self::Unseen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: Result<(), ()> = Ok(());
    const FAILED: Result<(), ()> = Err(());

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn only_one_that_is_active_and_sure_looks_and_others_forget() {
        let forwarding = Role::Forwarding { since: at(0) };
        let unseen = Publication::Unseen;
        assert!(unseen.is_due(Role::Active, true, at(0)));
        assert!(!unseen.is_due(Role::Active, false, at(0)));
        assert!(!unseen.is_due(forwarding, true, at(0)));
        assert!(!unseen.is_due(Role::Drained, true, at(0)));
        let seen = unseen.after(&OK, at(0));
        assert_eq!(seen.under(Role::Active), seen);
        assert_eq!(seen.under(forwarding), Publication::Unseen);
    }

    #[test]
    fn a_look_comes_again_sooner_after_a_failure_and_never_too_often() {
        let mut state = Publication::Unseen.after(&OK, at(1000));
        assert!(!state.is_due(Role::Active, true, at(10_999)));
        assert!(state.is_due(Role::Active, true, at(11_000)));
        let mut pauses = Vec::new();
        for _ in 0..20 {
            state = state.after(&FAILED, at(0));
            pauses.push(state.next());
        }
        assert_eq!(pauses[..3], [at(500), at(1000), at(2000)]);
        assert!(pauses.is_sorted());
        assert_eq!(pauses.last(), Some(&REFRESH));
        state = state.after(&OK, at(0)).after(&FAILED, at(0));
        assert_eq!(state.next(), at(500));
    }

    #[test]
    fn what_is_published_already_is_not_written_again() {
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let record = Record {
            name: "www.example.org.".to_owned(),
            ttl: Duration::from_secs(60),
            addresses: [address(1), address(2)].into(),
        };
        assert_eq!(record.differs(&[address(2), address(1)].into()), None);
        for wrong in [vec![], vec![address(1)], vec![address(3), address(1)]] {
            let update = record.differs(&wrong.into_iter().collect());
            assert_eq!(update, Some(Update(record.clone())));
        }
    }
}
