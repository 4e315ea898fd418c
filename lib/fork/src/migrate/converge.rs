//! Convergence of pre-copy: when to stop a guest whose pages are sent while it writes them.
//!
//! After each round the pages that were written meanwhile are left. The guest is stopped once
//! those can be sent within the gap that is wanted; a guest that writes as fast as they are sent
//! is stuck. Pure: the caller measures.

use forkyard_types::PageCount;
use std::time::Duration;

/// Time that a stop takes beside what is sent: devices saved and loaded, an answer.
const FIXED: Duration = Duration::from_millis(60);
/// Gap that is wanted beyond one and a half round trips, if none was asked for.
const USUAL: Duration = Duration::from_millis(100);
/// Pages that are not worth another round, whatever was asked for.
const FEW: PageCount = PageCount(64);
/// Pages a second that are believed to be sent until some were: 100 Mbit/s, half of them packed.
const RATE: f64 = 6000.0;
/// Fewest pages whose time says something of the rate.
const TELLING: u64 = 256;
/// Rounds in a row that left hardly fewer than the one before.
const STALLED: u8 = 3;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Convergence {
    round_trip: Duration,
    wanted: Duration,
    deadline: Option<Duration>,
    rate: f64,
    left: Option<PageCount>,
    stalled: u8,
}

/// Next step of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send what is left while the guest runs.
    Round,
    /// Stop the guest: the gap will be about as wanted.
    Stop,
    /// Sending on would leave no less.
    Stuck {
        /// Gap that stopping it now would make.
        gap: Duration,
        /// True if time has run out, rather than pages.
        late: bool,
    },
}

impl Convergence {
    /// Begins; nothing was sent yet.
    pub fn new(
        round_trip: Option<Duration>,
        wanted: Option<Duration>,
        deadline: Option<Duration>,
    ) -> Self {
        let round_trip = round_trip.unwrap_or_default();
        Self {
            round_trip,
            wanted: wanted.unwrap_or(round_trip * 3 / 2 + USUAL),
            deadline,
            rate: RATE,
            left: None,
            stalled: 0,
        }
    }

    /// Notes that so many pages were there after this time.
    pub fn sent(&mut self, pages: PageCount, took: Duration) {
        let took = took.saturating_sub(self.round_trip).as_secs_f64();
        if pages.0 >= TELLING && took > 0.0 {
            self.rate = pages.0 as f64 / took;
        }
    }

    /// Expects how long the guest would stand still if it were stopped with so much left.
    pub fn gap(&self, left: PageCount) -> Duration {
        let sending = Duration::try_from_secs_f64(left.0 as f64 / self.rate);
        let sending = sending.unwrap_or(Duration::MAX);
        (self.round_trip * 3 / 2 + FIXED).saturating_add(sending)
    }

    /// Decides what to do with so many pages left, this long after the beginning.
    pub fn next(&mut self, left: PageCount, elapsed: Duration) -> Next {
        let gap = self.gap(left);
        if gap <= self.wanted || left <= FEW {
            return Next::Stop;
        }
        let before = self.left.replace(left);
        let hardly_fewer = before.is_some_and(|before| left.0 > before.0 / 4 * 3);
        self.stalled = match hardly_fewer {
            true => self.stalled + 1,
            false => 0,
        };
        let late = self.deadline.is_some_and(|deadline| elapsed >= deadline);
        match late || self.stalled >= STALLED {
            true => Next::Stuck { gap, late },
            false => Next::Round,
        }
    }

    /// Begins to count rounds anew, for the guest is slower now.
    pub fn is_slower(&mut self) {
        self.stalled = 0;
    }
}

/// Part of the time for which a guest's vCPUs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Half,
    Quarter,
    Eighth,
}

impl Pace {
    /// The next smaller one, of a guest that is not slowed if there is none yet; none if this is the
    /// smallest.
    pub fn below(share: Option<Self>) -> Option<Self> {
        match share {
            None => Some(Self::Half),
            Some(Self::Half) => Some(Self::Quarter),
            Some(Self::Quarter) => Some(Self::Eighth),
            Some(Self::Eighth) => None,
        }
    }

    /// So much of a time.
    pub fn of(self, time: Duration) -> Duration {
        match self {
            Self::Half => time / 2,
            Self::Quarter => time / 4,
            Self::Eighth => time / 8,
        }
    }

    /// In percent.
    pub fn percent(self) -> u8 {
        match self {
            Self::Half => 50,
            Self::Quarter => 25,
            Self::Eighth => 12,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Rounds of a guest that writes so many pages a second, over a link that carries so many.
    fn simulate(mut convergence: Convergence, writes: u64, carries: u64) -> (u32, Next) {
        let (mut elapsed, mut left) = (0, 50_000u64);
        for round in 0.. {
            let took = left * 1_000_000 / carries;
            convergence.sent(PageCount(left), Duration::from_micros(took));
            elapsed += took;
            // A guest has so much memory, and no more.
            left = (writes * took / 1_000_000).min(50_000);
            match convergence.next(PageCount(left), Duration::from_micros(elapsed)) {
                Next::Round => {}
                done @ (Next::Stop | Next::Stuck { .. }) => return (round, done),
            }
        }
        unreachable!("it ends")
    }

    fn usual() -> Convergence {
        Convergence::new(Some(Duration::from_millis(80)), None, None)
    }

    #[test]
    fn a_guest_that_writes_less_than_the_link_carries_is_stopped_in_a_few_rounds() {
        for (writes, most) in [(0, 0), (600, 3), (2000, 5), (4000, 12)] {
            let (rounds, done) = simulate(usual(), writes, 6000);
            assert_eq!(done, Next::Stop, "{writes}");
            assert!(rounds <= most, "{writes}: {rounds}");
        }
    }

    #[test]
    fn a_guest_that_writes_faster_is_stuck_and_its_gap_is_told() {
        let (rounds, done) = simulate(usual(), 9000, 6000);
        let Next::Stuck { gap, late: false } = done else {
            panic!("{done:?}");
        };
        assert!(rounds <= 4, "{rounds}");
        assert!(gap > 5 * SECOND && gap < 10 * SECOND, "{gap:?}");
    }

    #[test]
    fn a_guest_that_writes_faster_converges_once_it_is_slow_enough() {
        let (mut convergence, mut share) = (usual(), None);
        let mut left = 40_000;
        let slowest = loop {
            let took = left * 1_000_000 / 6000;
            convergence.sent(PageCount(left), Duration::from_micros(took));
            let writes = share
                .map_or(SECOND, |share: Pace| share.of(SECOND))
                .as_millis()
                * 9;
            left = (u64::try_from(writes).expect("few") * took / 1_000_000).min(50_000);
            match convergence.next(PageCount(left), Duration::ZERO) {
                Next::Round => {}
                Next::Stop => break share,
                Next::Stuck { .. } => {
                    share = Pace::below(share);
                    assert!(share.is_some(), "still stuck");
                    convergence.is_slower();
                }
            }
        };
        assert!(slowest.is_some());
    }

    #[test]
    fn a_deadline_ends_rounds_that_would_have_converged() {
        let hurried = Convergence::new(None, None, Some(9 * SECOND));
        let (_, done) = simulate(hurried, 5400, 6000);
        assert!(matches!(done, Next::Stuck { late: true, .. }), "{done:?}");
    }

    #[test]
    fn a_longer_gap_is_reached_sooner() {
        let patient = Convergence::new(None, Some(5 * SECOND), None);
        assert_eq!(simulate(patient, 3000, 6000), (0, Next::Stop));
        assert!(simulate(usual(), 3000, 6000).0 > 2);
    }

    proptest! {
        #[test]
        fn it_always_ends_and_stops_only_for_a_gap_that_is_wanted(
            trip in 0..300u64,
            wanted in prop::option::of(1..2000u64),
            writes in 0..50_000u64,
            carries in 500..200_000u64,
        ) {
            let wanted = wanted.map(Duration::from_millis);
            let convergence = Convergence::new(Some(Duration::from_millis(trip)), wanted, None);
            let (rounds, _) = simulate(convergence, writes, carries);
            prop_assert!(rounds < 60, "{rounds}");
        }
    }
}
