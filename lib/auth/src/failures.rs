//! Delay of answers to addresses that keep failing.
//!
//! Each address has some failures to spend, and regains one every so often. Once
//! they are spent, answers to its failures come late. Nothing is refused for it: a
//! valid token passes whatever others at the same address sent. The table is bounded:
//! when it is full, the address that failed longest ago is forgotten.

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

/// Addresses that failed lately.
#[derive(Debug, Default)]
pub struct Failures {
    /// Time at which all failures of an address are forgiven.
    clean: HashMap<IpAddr, Instant>,
}

impl Failures {
    /// Delay of the next answer to an address, `FORGIVEN` at most; none while it has
    /// failures to spend.
    pub fn delay(&self, from: IpAddr, now: Instant) -> Duration {
        self.debt(from, now).saturating_sub(FORGIVEN * (BURST - 1))
    }

    /// Counts a failure of an address.
    pub fn charge(&mut self, from: IpAddr, now: Instant) {
        let debt = (self.debt(from, now) + FORGIVEN).min(FORGIVEN * BURST);
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

/// The network that one client is taken for: its IPv4 address, or the /64 of its IPv6
/// address, of which it has all addresses.
pub fn network(from: IpAddr) -> IpAddr {
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
    fn answers_to_an_address_that_keeps_failing_come_late_but_never_later_than_that() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        for _ in 0..BURST {
            assert_eq!(failures.delay(A, now), Duration::ZERO);
            failures.charge(A, now);
        }
        for _ in 0..1000 {
            assert_eq!(failures.delay(A, now), FORGIVEN);
            failures.charge(A, now);
        }
        assert_eq!(failures.delay(A, now + FORGIVEN), Duration::ZERO);
        let other = "10.0.0.2".parse().expect("an address");
        assert_eq!(failures.delay(other, now), Duration::ZERO);
    }

    #[test]
    fn all_addresses_of_an_ipv6_network_are_one() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        for n in 0..BURST {
            failures.charge(Ipv6Addr::from(1 << 70 | u128::from(n)).into(), now);
        }
        let relative = Ipv6Addr::from(1 << 70 | 0xffff).into();
        let stranger = Ipv6Addr::from(1u128 << 71).into();
        assert!(!failures.delay(relative, now).is_zero());
        assert!(failures.delay(stranger, now).is_zero());
    }

    proptest! {
        #[test]
        fn the_table_stays_small_and_an_address_without_failures_is_not_delayed(
            events in prop::collection::vec((0..3000u32, 0..500u64), 1..2000)
        ) {
            let (mut failures, start) = (Failures::default(), Instant::now());
            let mut passed = Duration::ZERO;
            for (from, millis) in events {
                passed += Duration::from_millis(millis);
                failures.charge(IpAddr::V4(from.into()), start + passed);
                prop_assert!(failures.clean.len() <= ADDRESSES);
            }
            prop_assert!(failures.delay(A, start + passed).is_zero());
        }
    }
}
