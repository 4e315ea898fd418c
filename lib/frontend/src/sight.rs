//! Answers of hosts about one VM, and the hosts through which it is reached.
//!
//! ```text
//! absent --(it comes)--> starts --> runs --(moves)--> leaving --> elsewhere
//! ```
//!
//! Hosts are asked at different moments, so two of them may seem to run the VM: the later answer counts.

use std::{collections::BTreeMap, fmt};

/// Name of a host, as the configuration, other hosts and the cluster call it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

impl HostName {
    /// A host of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Answer of one host about a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// The host was not asked yet, or does not answer.
    Silent,
    /// The host knows no such VM.
    Absent,
    /// The VM is being booted there.
    Starts,
    /// The VM runs there.
    Runs,
    /// The VM is there, and is being handed over.
    Leaving {
        /// Next host.
        to: HostName,
    },
    /// The VM is at another host.
    Elsewhere {
        /// Host that has it.
        at: HostName,
    },
    /// The VM is there and does not run, by the will of its user.
    Still {
        /// State of the VM.
        state: String,
    },
}

/// State of a VM by all that was answered, as far as its clients are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VmStanding {
    /// A host has it running, or says which one has.
    There,
    /// The VM begins to run.
    Starts,
    /// The VM does not run, by the will of its user.
    Still {
        /// State of the VM.
        state: String,
    },
    /// No host that answers knows it, and some do not answer.
    Unknown,
    /// Every host answers that it has no such VM.
    Gone,
}

/// Answers of all hosts about one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sights {
    by_host: BTreeMap<HostName, (u64, Sighting)>,
    answers: u64,
}

impl Sights {
    /// Begins with hosts of which none has answered.
    pub fn new(hosts: impl IntoIterator<Item = HostName>) -> Self {
        let silent = hosts.into_iter().map(|host| (host, (0, Sighting::Silent)));
        Self {
            by_host: silent.collect(),
            answers: 0,
        }
    }

    /// Takes an answer down; tells if it differs from the host's last. One of a host that is not
    /// configured is ignored.
    pub fn see(&mut self, host: &HostName, seen: Sighting) -> bool {
        self.answers += 1;
        let Some(last) = self.by_host.get_mut(host) else {
            return false;
        };
        let differs = last.1 != seen;
        *last = (self.answers, seen);
        differs
    }

    /// Finds the host at which the VM runs by that host's own word: the latest, if several say so.
    pub fn place(&self) -> Option<&HostName> {
        let claims = self.by_host.iter();
        let claims = claims.filter(|(_, (_, seen))| *seen == Sighting::Runs);
        claims
            .max_by_key(|(_, (when, _))| *when)
            .map(|(host, _)| host)
    }

    /// Lists hosts to ask for a connection, the likeliest first: those at which it runs; those to
    /// which others point; those that point elsewhere, since in a cluster they pass a connection on,
    /// and one that hands the VM over holds the request meanwhile. Hosts that do not answer are
    /// tried if there is nothing else.
    pub fn routes(&self) -> Vec<HostName> {
        let mut routes = Vec::new();
        let mut claims: Vec<_> = self.by_host.iter().collect();
        // The latest answer first.
        claims.sort_by_key(|(_, (when, _))| std::cmp::Reverse(*when));
        for rank in [Rank::Runs, Rank::PointedTo, Rank::Points] {
            for (host, (_, seen)) in &claims {
                let host = match (rank, seen) {
                    (Rank::Runs, Sighting::Runs) => *host,
                    (
                        Rank::PointedTo,
                        Sighting::Leaving { to: at } | Sighting::Elsewhere { at },
                    ) => at,
                    (Rank::Points, Sighting::Leaving { .. } | Sighting::Elsewhere { .. }) => *host,
                    (Rank::Runs | Rank::PointedTo | Rank::Points, _) => continue,
                };
                if self.by_host.contains_key(host) && !routes.contains(host) {
                    routes.push(host.clone());
                }
            }
        }
        if routes.is_empty() {
            let silent = claims.iter();
            let silent = silent.filter(|(_, (_, seen))| *seen == Sighting::Silent);
            routes.extend(silent.map(|(host, _)| (*host).clone()));
        }
        routes
    }

    /// Judges all answers together.
    pub fn standing(&self) -> VmStanding {
        let all = || self.by_host.values().map(|(_, seen)| seen);
        let there = |seen: &Sighting| {
            matches!(
                seen,
                Sighting::Runs | Sighting::Leaving { .. } | Sighting::Elsewhere { .. }
            )
        };
        // The host that has it says best how it is.
        if all().any(|seen| *seen == Sighting::Runs) {
            return VmStanding::There;
        }
        let still = all().find_map(|seen| match seen {
            Sighting::Still { state } => Some(state.clone()),
            Sighting::Silent
            | Sighting::Absent
            | Sighting::Starts
            | Sighting::Runs
            | Sighting::Leaving { .. }
            | Sighting::Elsewhere { .. } => None,
        });
        if let Some(state) = still {
            return VmStanding::Still { state };
        }
        if all().any(there) {
            return VmStanding::There;
        }
        if all().any(|seen| *seen == Sighting::Starts) {
            return VmStanding::Starts;
        }
        match all().any(|seen| *seen == Sighting::Silent) {
            true => VmStanding::Unknown,
            false => VmStanding::Gone,
        }
    }
}

#[derive(Clone, Copy)]
enum Rank {
    Runs,
    PointedTo,
    Points,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host(name: &str) -> HostName {
        HostName::new(name)
    }

    fn sights() -> Sights {
        Sights::new(["a", "b", "c"].map(host))
    }

    fn names(routes: &[HostName]) -> Vec<String> {
        routes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_move_is_followed_from_the_first_word_of_it_to_the_last() {
        let mut seen = sights();
        assert_eq!(names(&seen.routes()).len(), 3, "any may have it");
        assert_eq!(seen.standing(), VmStanding::Unknown);
        for (name, what) in [("a", Sighting::Runs), ("b", Sighting::Absent)] {
            assert!(seen.see(&host(name), what));
        }
        assert_eq!(seen.place(), Some(&host("a")));
        assert_eq!(names(&seen.routes()), ["a"]);
        // The new host is asked first; the old one holds what it is asked meanwhile.
        seen.see(&host("a"), Sighting::Leaving { to: host("b") });
        assert_eq!(names(&seen.routes()), ["b", "a"]);
        assert_eq!((seen.place(), seen.standing()), (None, VmStanding::There));
        seen.see(&host("b"), Sighting::Runs);
        assert_eq!(names(&seen.routes()), ["b", "a"]);
        seen.see(&host("a"), Sighting::Elsewhere { at: host("b") });
        assert_eq!(seen.place(), Some(&host("b")));
        // The former host's daemon dies: it is needed no more.
        seen.see(&host("a"), Sighting::Silent);
        assert_eq!(names(&seen.routes()), ["b"]);
    }

    #[test]
    fn of_two_that_seem_to_run_it_the_later_answer_counts() {
        let mut seen = sights();
        seen.see(&host("b"), Sighting::Runs);
        seen.see(&host("a"), Sighting::Runs);
        assert_eq!(seen.place(), Some(&host("a")));
        assert!(!seen.see(&host("b"), Sighting::Runs), "nothing new");
        assert_eq!(seen.place(), Some(&host("b")));
    }

    #[test]
    fn what_waiting_does_not_help_is_told_apart() {
        let mut seen = sights();
        for name in ["a", "b"] {
            seen.see(&host(name), Sighting::Absent);
        }
        assert_eq!(seen.standing(), VmStanding::Unknown, "c has not answered");
        seen.see(&host("c"), Sighting::Absent);
        assert_eq!(seen.standing(), VmStanding::Gone);
        assert!(seen.routes().is_empty());
        // One that moved, and was paused where it is now.
        seen.see(&host("a"), Sighting::Elsewhere { at: host("c") });
        let state = "paused".to_owned();
        seen.see(&host("c"), Sighting::Still { state });
        assert!(matches!(seen.standing(), VmStanding::Still { .. }));
    }

    #[test]
    fn a_host_that_is_not_configured_is_no_route() {
        let mut seen = sights();
        seen.see(&host("a"), Sighting::Elsewhere { at: host("far") });
        assert_eq!(names(&seen.routes()), ["a"], "which may pass it on");
        assert!(!seen.see(&host("far"), Sighting::Runs));
        assert_eq!(seen.place(), None);
    }

    fn any_sighting() -> impl Strategy<Value = Sighting> {
        let any_host = || "[abc]".prop_map(HostName::new);
        prop_oneof![
            Just(Sighting::Silent),
            Just(Sighting::Absent),
            Just(Sighting::Starts),
            Just(Sighting::Runs),
            any_host().prop_map(|to| Sighting::Leaving { to }),
            any_host().prop_map(|at| Sighting::Elsewhere { at }),
            Just(Sighting::Still {
                state: String::new()
            }),
        ]
    }

    proptest! {
        #[test]
        fn routes_are_configured_hosts_once_each_and_the_place_is_the_first(
            answers in prop::collection::vec(("[abcd]", any_sighting()), 0..20),
        ) {
            let mut seen = sights();
            for (name, what) in answers {
                seen.see(&host(&name), what);
            }
            let routes = seen.routes();
            let mut once = routes.clone();
            once.sort();
            once.dedup();
            prop_assert_eq!(once.len(), routes.len());
            prop_assert!(routes.iter().all(|it| ["a", "b", "c"].map(host).contains(it)));
            if let Some(place) = seen.place() {
                prop_assert_eq!(routes.first(), Some(place));
                prop_assert_eq!(seen.standing(), VmStanding::There);
            }
            if seen.standing() == VmStanding::There {
                prop_assert!(!routes.is_empty());
            }
        }
    }
}
