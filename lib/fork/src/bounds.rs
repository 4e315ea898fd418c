//! Limits on the host's resources that guests may obtain by asking for them
//! themselves. Clients outside that fork a VM have the host's word already; a
//! program in a guest has not.

use forkyard_host::GuestBounds;
use forkyard_types::FamilyId;
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::{Duration, Instant},
};

/// Requests of guests that are limited in rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rated {
    /// Forking.
    Fork,
    /// Asking for tickets: clones are made ready for each.
    Ticket,
    /// Taking checkpoints.
    Checkpoint,
}

impl fmt::Display for Rated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fork => "forked",
            Self::Ticket => "asked for tickets",
            Self::Checkpoint => "taken checkpoints",
        })
    }
}

/// A guest may not have what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoundReached {
    /// Too many forks lie before it.
    #[error(
        "fork depth limit of guests reached: this VM is {limit} generations below its founder (fork it from outside)"
    )]
    Generations {
        /// As deep as may be.
        limit: u16,
    },
    /// Too many instants are kept for its family's guests.
    #[error("checkpoint limit of the family's guests reached: {limit} are kept (drop one)")]
    Checkpoints {
        /// As many as may be.
        limit: u16,
    },
    /// The family does this too often.
    #[error(
        "rate limit of the family's guests reached: it has {what} {limit} times within a minute (try again later)"
    )]
    Rate {
        /// Kind of request.
        what: Rated,
        /// As often as may be.
        limit: u16,
    },
}

/// Checks that a VM of this generation may have clones.
pub(crate) fn check_depth(bounds: GuestBounds, generation: u16) -> Result<(), BoundReached> {
    let limit = bounds.generations;
    match generation < limit {
        true => Ok(()),
        false => Err(BoundReached::Generations { limit }),
    }
}

/// Times at which families lately forked, asked for tickets and took checkpoints.
#[derive(Debug, Default)]
pub(crate) struct RecentForks(BTreeMap<(FamilyId, Rated), VecDeque<Instant>>);

impl RecentForks {
    /// Counts one more time, unless that would be one too many.
    pub fn count(
        &mut self,
        family: FamilyId,
        what: Rated,
        bounds: GuestBounds,
        now: Instant,
    ) -> Result<(), BoundReached> {
        const MINUTE: Duration = Duration::from_secs(60);
        for times in self.0.values_mut() {
            while times
                .front()
                .is_some_and(|at| now.duration_since(*at) >= MINUTE)
            {
                times.pop_front();
            }
        }
        self.0.retain(|_, times| !times.is_empty());
        let times = self.0.entry((family, what)).or_default();
        let limit = bounds.forks_a_minute;
        if times.len() >= limit.into() {
            return Err(BoundReached::Rate { what, limit });
        }
        times.push_back(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: GuestBounds = GuestBounds {
        clones: 9,
        generations: 2,
        forks_a_minute: 3,
        checkpoints: 1,
    };

    #[test]
    fn a_family_that_forks_too_often_is_refused_until_a_minute_has_passed() {
        let (mut recent_forks, begun) = (RecentForks::default(), Instant::now());
        let [family, other] = [(); 2].map(|()| FamilyId::random());
        let at = |s| begun + Duration::from_secs(s);
        let fork = |recent_forks: &mut RecentForks, family, s| {
            recent_forks.count(family, Rated::Fork, BOUNDS, at(s))
        };
        for s in [0, 20, 40] {
            assert_eq!(fork(&mut recent_forks, family, s), Ok(()));
        }
        let refused = Err(BoundReached::Rate {
            what: Rated::Fork,
            limit: 3,
        });
        assert_eq!(fork(&mut recent_forks, family, 59), refused);
        assert_eq!(fork(&mut recent_forks, other, 59), Ok(()));
        let ticket = recent_forks.count(family, Rated::Ticket, BOUNDS, at(59));
        assert_eq!(ticket, Ok(()), "counted by themselves");
        assert_eq!(fork(&mut recent_forks, family, 60), Ok(()));
        assert_eq!(fork(&mut recent_forks, family, 61), refused);
    }

    #[test]
    fn families_that_have_not_forked_lately_are_forgotten() {
        let (mut recent_forks, begun) = (RecentForks::default(), Instant::now());
        for s in 0..500 {
            let now = begun + Duration::from_secs(s);
            recent_forks
                .count(FamilyId::random(), Rated::Fork, BOUNDS, now)
                .expect("its first");
        }
        assert!(recent_forks.0.len() <= 60);
    }

    #[test]
    fn the_last_generation_has_no_clones() {
        let limit = BOUNDS.generations;
        assert_eq!(check_depth(BOUNDS, 1), Ok(()));
        assert_eq!(
            check_depth(BOUNDS, 2),
            Err(BoundReached::Generations { limit })
        );
    }
}
