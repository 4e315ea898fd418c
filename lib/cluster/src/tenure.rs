//! Decision whether a node may act for its cluster.
//!
//! ```text
//! Fenced --renewed--> Holding --a while without--> Fenced
//!                        |                           |
//!                        +------- removed -----------+--> Removed
//! ```
//!
//! A lease lasts from some moment between a renewal's request and its answer;
//! the node counts from the request, and gives up a quarter of the lease before
//! it runs out: whatever the others believe, a node that acts is one they
//! count on. Reads no clock: the caller passes `now`, of a clock that does not
//! jump.

use std::time::{Duration, Instant};

/// Standing of a node in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The node may act, until this moment if nothing happens before.
    Holding {
        /// The moment.
        until: Instant,
    },
    /// The node may not act: others may believe it lost.
    Fenced,
    /// The node was removed from the cluster, and will never be let in as it
    /// is.
    Removed,
}

/// A node's lease, as the node sees it.
#[derive(Clone, Copy, Debug)]
pub struct Tenure {
    length: Duration,
    standing: Standing,
}

impl Tenure {
    /// A lease of this length that is not held yet.
    pub fn new(length: Duration) -> Self {
        Self {
            length,
            standing: Standing::Fenced,
        }
    }

    /// A renewal that was asked for at `asked` was granted.
    pub fn renewed(&mut self, asked: Instant) {
        let until = asked + self.length * 3 / 4;
        match self.standing {
            // An answer that was overtaken by a later one takes nothing back.
            Standing::Holding { until: already } if already >= until => {}
            Standing::Holding { .. } | Standing::Fenced => {
                self.standing = Standing::Holding { until };
            }
            Standing::Removed => {}
        }
    }

    /// The lease is known to be gone.
    pub fn lapsed(&mut self) {
        match self.standing {
            Standing::Holding { .. } | Standing::Fenced => self.standing = Standing::Fenced,
            Standing::Removed => {}
        }
    }

    /// The node was removed from the cluster.
    pub fn removed(&mut self) {
        self.standing = Standing::Removed;
    }

    /// Returns the standing of the node.
    pub fn standing(&self, now: Instant) -> Standing {
        match self.standing {
            Standing::Holding { until } if now >= until => Standing::Fenced,
            standing @ (Standing::Holding { .. } | Standing::Fenced | Standing::Removed) => {
                standing
            }
        }
    }

    /// Returns the time between two renewals: several may fail in a row.
    pub fn pace(&self) -> Duration {
        self.length / 6
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LENGTH: Duration = Duration::from_secs(8);

    #[derive(Clone, Copy, Debug)]
    enum Happens {
        /// A renewal is asked for, and the answer takes so long; or never comes.
        Renewal(Option<u64>),
        Lapse,
        Time(u64),
    }

    fn happens() -> impl Strategy<Value = Happens> {
        prop_oneof![
            prop::option::of(0..5000u64).prop_map(Happens::Renewal),
            Just(Happens::Lapse),
            (0..5000u64).prop_map(Happens::Time),
        ]
    }

    proptest! {
        #[test]
        fn a_node_that_acts_is_one_whose_lease_has_not_run_out(
            events in prop::collection::vec(happens(), 1..60)
        ) {
            let start = Instant::now();
            let (mut now, mut tenure) = (start, Tenure::new(LENGTH));
            // What etcd knows: it granted the renewal when it was asked, at the earliest.
            let mut expires = None;
            for event in events {
                match event {
                    Happens::Renewal(Some(delay)) => {
                        let asked = now;
                        now += Duration::from_millis(delay);
                        // etcd may have lost patience before; then it says so.
                        expires = Some(asked + LENGTH);
                        tenure.renewed(asked);
                    }
                    Happens::Renewal(None) => {}
                    Happens::Lapse => {
                        expires = None;
                        tenure.lapsed();
                    }
                    Happens::Time(passed) => now += Duration::from_millis(passed),
                }
                match tenure.standing(now) {
                    Standing::Holding { until } => {
                        prop_assert!(now < until);
                        prop_assert!(expires.is_some_and(|end| until < end));
                    }
                    Standing::Fenced => {}
                    Standing::Removed => prop_assert!(false, "it was not removed"),
                }
            }
        }
    }

    #[test]
    fn an_answer_that_was_overtaken_takes_nothing_back() {
        let (start, mut tenure) = (Instant::now(), Tenure::new(LENGTH));
        tenure.renewed(start + Duration::from_secs(2));
        let standing = tenure.standing(start);
        tenure.renewed(start);
        assert_eq!(tenure.standing(start), standing);
    }

    #[test]
    fn who_was_removed_stays_so() {
        let (now, mut tenure) = (Instant::now(), Tenure::new(LENGTH));
        tenure.renewed(now);
        tenure.removed();
        tenure.renewed(now + LENGTH);
        tenure.lapsed();
        assert_eq!(tenure.standing(now), Standing::Removed);
    }

    #[test]
    fn several_renewals_may_fail_before_it_matters() {
        let tenure = Tenure::new(LENGTH);
        assert!(tenure.pace() * 4 < LENGTH * 3 / 4);
    }
}
