//! How often an address may come without a good token.
//!
//! Each has some failures to spend, and gets one back every so often. The
//! table is bounded: who fills it from many addresses makes it forget the one
//! that failed longest ago, not anyone's tokens.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::{Duration, Instant},
};

/// Failures that may come at once.
const BURST: u32 = 10;
/// Time after which one of them is forgiven.
const FORGIVEN: Duration = Duration::from_secs(3);
/// Addresses that are remembered.
const ADDRESSES: usize = 1024;

/// Who failed lately.
#[derive(Debug, Default)]
pub struct Failures {
    /// When everything an address did will be forgiven.
    clean: HashMap<IpAddr, Instant>,
}

impl Failures {
    /// How long an address must wait before it is listened to; none if not at all.
    pub fn wait(&self, from: IpAddr, now: Instant) -> Option<Duration> {
        let debt = self.debt(from, now);
        let most = FORGIVEN * (BURST - 1);
        (debt > most).then(|| debt - most)
    }

    /// An address has failed once more.
    pub fn charge(&mut self, from: IpAddr, now: Instant) {
        let debt = self.debt(from, now) + FORGIVEN;
        self.clean.retain(|_, clean| *clean > now);
        if self.clean.len() >= ADDRESSES
            && let Some(oldest) = self.clean.iter().min_by_key(|(_, clean)| **clean)
        {
            let oldest = *oldest.0;
            self.clean.remove(&oldest);
        }
        self.clean.insert(network(from), now + debt);
    }

    fn debt(&self, from: IpAddr, now: Instant) -> Duration {
        let clean = self.clean.get(&network(from));
        clean.map_or(Duration::ZERO, |clean| clean.saturating_duration_since(now))
    }
}

/// One who has an IPv6 address has 2^64 of them.
fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    #[test]
    fn an_address_may_fail_a_few_times_and_is_listened_to_again_later() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        for _ in 0..BURST {
            assert_eq!(failures.wait(A, now), None);
            failures.charge(A, now);
        }
        let wait = failures.wait(A, now).expect("too often");
        assert_eq!(failures.wait(A, now + wait), None);
        let other = "10.0.0.2".parse().expect("an address");
        assert_eq!(failures.wait(other, now), None);
    }

    #[test]
    fn all_addresses_of_an_ipv6_network_are_one() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        for n in 0..BURST {
            failures.charge(Ipv6Addr::from(1 << 70 | u128::from(n)).into(), now);
        }
        let relative = Ipv6Addr::from(1 << 70 | 0xffff).into();
        let stranger = Ipv6Addr::from(1u128 << 71).into();
        assert!(failures.wait(relative, now).is_some());
        assert!(failures.wait(stranger, now).is_none());
    }

    proptest! {
        #[test]
        fn the_table_stays_small_and_nobody_waits_who_did_not_fail(
            events in prop::collection::vec((0..3000u32, 0..500u64), 1..2000)
        ) {
            let (mut failures, start) = (Failures::default(), Instant::now());
            let mut passed = Duration::ZERO;
            for (from, millis) in events {
                passed += Duration::from_millis(millis);
                failures.charge(IpAddr::V4(from.into()), start + passed);
                prop_assert!(failures.clean.len() <= ADDRESSES);
            }
            prop_assert_eq!(failures.wait(A, start + passed), None);
        }
    }
}
