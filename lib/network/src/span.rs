//! Hosts of a family's places: a pure function of what each host
//! was lent.

use crate::Subnet;
use forkyard_types::FamilyHost;
use std::{net::Ipv4Addr, ops::Range};

/// The hosts of a family, as one of them sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// That host's own end of tunnels.
    pub tunnel: Ipv4Addr,
    /// All of them, this one among them if it gives any place.
    pub hosts: Vec<FamilyHost>,
}

/// Places in a row, and the other host they are on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub tunnel: Ipv4Addr,
    pub places: Range<u16>,
}

/// A span as the kernel knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Laid {
    pub subnet: Subnet,
    pub tunnel: Ipv4Addr,
    pub holdings: Vec<Holding>,
}

impl Span {
    /// Places on other hosts, none twice, in their order.
    pub(crate) fn holdings(&self) -> Vec<Holding> {
        let mut hosts = self.hosts.clone();
        // A borrower of places comes after their lender.
        hosts.sort_by_key(|host| (std::cmp::Reverse(host.places), *host));
        let mut holders = vec![None; usize::from(Subnet::MEMBERS)];
        for host in hosts {
            let range = host.range();
            let end = range.end.min(Subnet::MEMBERS);
            let range = usize::from(range.start.min(end))..usize::from(end);
            holders[range].fill(Some(host.tunnel));
        }
        let mut holdings: Vec<Holding> = Vec::new();
        for (place, holder) in (0..).zip(holders) {
            let Some(tunnel) = holder.filter(|tunnel| *tunnel != self.tunnel) else {
                continue;
            };
            match holdings.last_mut() {
                Some(last) if last.tunnel == tunnel && last.places.end == place => {
                    last.places.end += 1;
                }
                Some(_) | None => holdings.push(Holding {
                    tunnel,
                    places: place..place + 1,
                }),
            }
        }
        holdings
    }
}

/// Every place that is in the first and has another host, or none, in the second.
pub(crate) fn beyond<'a>(
    these: &'a [Holding],
    those: &'a [Holding],
) -> impl Iterator<Item = (u16, Ipv4Addr)> + 'a {
    let holder = |place: u16| {
        let after = those.partition_point(|holding| holding.places.end <= place);
        let found = those.get(after).filter(|it| it.places.contains(&place));
        found.map(|it| it.tunnel)
    };
    these.iter().flat_map(move |holding| {
        let places = holding.places.clone();
        let moved = places.filter(move |place| holder(*place) != Some(holding.tunnel));
        moved.map(|place| (place, holding.tunnel))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::Member;
    use proptest::prelude::*;

    fn host(last: u8, places: Range<u16>) -> FamilyHost {
        FamilyHost {
            tunnel: Ipv4Addr::new(192, 0, 2, last),
            first: Member(places.start),
            places: places.end - places.start,
        }
    }

    #[test]
    fn who_was_lent_places_has_them_and_its_lender_the_rest() {
        let hosts = vec![
            host(3, 40..50),
            host(1, 0..Subnet::MEMBERS),
            host(2, 32..64),
        ];
        let span = |last| Span {
            tunnel: Ipv4Addr::new(192, 0, 2, last),
            hosts: hosts.clone(),
        };
        let seen = |last| {
            let told = span(last).holdings().into_iter();
            let told = told.map(|it| (it.tunnel.octets()[3], it.places));
            told.collect::<Vec<_>>()
        };
        let end = Subnet::MEMBERS;
        assert_eq!(seen(1), [(2, 32..40), (3, 40..50), (2, 50..64)]);
        assert_eq!(seen(2), [(1, 0..32), (3, 40..50), (1, 64..end)]);
        let of_third = [(1, 0..32), (2, 32..40), (2, 50..64), (1, 64..end)];
        assert_eq!(seen(3), of_third);
    }

    #[test]
    fn what_lies_beyond_the_family_is_nobodys() {
        let span = Span {
            tunnel: Ipv4Addr::new(192, 0, 2, 1),
            hosts: vec![host(2, Subnet::MEMBERS - 1..u16::MAX), host(3, 3000..3001)],
        };
        let last = Subnet::MEMBERS - 1..Subnet::MEMBERS;
        let holdings = span.holdings();
        assert_eq!(holdings.len(), 1);
        assert_eq!(holdings[0].places, last);
    }

    proptest! {
        #[test]
        fn what_is_taken_away_and_added_makes_the_one_of_the_other(
            before in prop::collection::vec((1..5u8, 0..60u16, 0..30u16), 0..6),
            after in prop::collection::vec((1..5u8, 0..60u16, 0..30u16), 0..6),
        ) {
            let holdings = |hosts: Vec<(u8, u16, u16)>| {
                let hosts = hosts.into_iter();
                let hosts = hosts.map(|(last, start, count)| host(last, start..start + count));
                let tunnel = Ipv4Addr::new(192, 0, 2, 1);
                Span { tunnel, hosts: hosts.collect() }.holdings()
            };
            let (before, after) = (holdings(before), holdings(after));
            let all = |of: &[Holding]| -> std::collections::BTreeMap<u16, Ipv4Addr> {
                beyond(of, &[]).collect()
            };
            let mut changed = all(&before);
            for (place, tunnel) in beyond(&before, &after) {
                prop_assert_eq!(changed.remove(&place), Some(tunnel));
            }
            changed.extend(beyond(&after, &before));
            prop_assert_eq!(changed, all(&after));
        }
    }
}
