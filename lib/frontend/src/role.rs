//! Role of one front-end for a service, after the VM moved nearer to another one or came back.
//!
//! ```text
//! active --VM is nearer to another--> forwarding --no traffic for `quiet`--> drained
//!   ^                                   |   ^                                  |
//!   +------ VM is nearest here ---------+   +------------ traffic -------------+
//! ```
//!
//! Every role forwards what comes: resolvers may keep an address far beyond its time to live. Drained
//! says that the address is not used any more.

use std::{fmt, time::Duration};

/// Front-end that a VM is nearest to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nearest {
    /// This one.
    Here,
    /// Another one.
    Other,
    /// Not known: the VM moves, does not run, or is at a host that no front-end is near to.
    Unknown,
}

/// Traffic of a service at this front-end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Clients' connections that are open.
    pub open: usize,
    /// Time of the last connection's begin, the last request or the last end.
    pub last: Duration,
}

/// Role of this front-end for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// New clients come here.
    Active,
    /// New clients go to another front-end; those that still come are served.
    Forwarding {
        /// Time at which it ceased to be active.
        since: Duration,
    },
    /// Nothing has come for a while, and nothing is open.
    Drained,
}

impl Role {
    /// Returns the role at `now`.
    #[must_use]
    pub fn after(self, nearest: Nearest, traffic: Traffic, now: Duration, quiet: Duration) -> Self {
        let since = match (nearest, self) {
            (Nearest::Here, _) | (Nearest::Unknown, Self::Active) => return Self::Active,
            (Nearest::Other, Self::Active) => return Self::Forwarding { since: now },
            (Nearest::Other | Nearest::Unknown, Self::Forwarding { since }) => since,
            // Whatever was before is long over.
            (Nearest::Other | Nearest::Unknown, Self::Drained) => Duration::ZERO,
        };
        let last = traffic.last.max(since);
        let died_out = traffic.open == 0 && now.saturating_sub(last) >= quiet;
        match (died_out, self) {
            (true, _) => Self::Drained,
            (false, Self::Drained) => Self::Forwarding { since: now },
            (false, Self::Active | Self::Forwarding { .. }) => Self::Forwarding { since },
        }
    }

    /// Returns the word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Forwarding { .. } => "forwarding",
            Self::Drained => "drained",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUIET: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn traffic(open: usize, last: u64) -> Traffic {
        let last = at(last);
        Traffic { open, last }
    }

    #[test]
    fn it_forwards_until_its_traffic_has_died_out_and_again_if_any_comes() {
        let mut role = Role::Active;
        for (nearest, traffic, now, wanted) in [
            (Nearest::Unknown, traffic(0, 0), 99, "active"),
            (Nearest::Other, traffic(1, 50), 100, "forwarding"),
            (Nearest::Other, traffic(1, 50), 500, "forwarding"),
            (Nearest::Other, traffic(0, 510), 569, "forwarding"),
            // Moving on says nothing of this front-end's traffic.
            (Nearest::Unknown, traffic(0, 510), 570, "drained"),
            (Nearest::Other, traffic(0, 510), 900, "drained"),
            (Nearest::Other, traffic(1, 901), 901, "forwarding"),
            (Nearest::Other, traffic(0, 902), 950, "forwarding"),
            (Nearest::Here, traffic(0, 902), 951, "active"),
            (Nearest::Other, traffic(0, 0), 960, "forwarding"),
            (Nearest::Other, traffic(0, 0), 1020, "drained"),
        ] {
            role = role.after(nearest, traffic, at(now), QUIET);
            assert_eq!(role.name(), wanted, "at {now}");
        }
    }

    fn any_step() -> impl Strategy<Value = (Nearest, usize, u64)> {
        let nearest = prop_oneof![
            Just(Nearest::Here),
            Just(Nearest::Other),
            Just(Nearest::Unknown)
        ];
        (nearest, 0usize..3, 0u64..40)
    }

    proptest! {
        #[test]
        fn it_is_drained_only_after_quiet_and_active_only_by_a_reason(
            steps in prop::collection::vec(any_step(), 1..60),
        ) {
            let (mut role, mut now, mut last) = (Role::Active, at(0), at(0));
            for (nearest, open, pause) in steps {
                now += at(pause);
                if open > 0 {
                    last = now;
                }
                let before = role;
                role = role.after(nearest, Traffic { open, last }, now, QUIET);
                match role {
                    Role::Active => prop_assert!(
                        nearest == Nearest::Here
                            || (nearest == Nearest::Unknown && before == Role::Active)
                    ),
                    Role::Forwarding { since } => prop_assert!(since <= now),
                    Role::Drained => prop_assert!(open == 0 && now - last >= QUIET),
                }
            }
        }
    }
}
