//! Sites that hear news in whatever order, and frames between them.

use crate::{
    Event, Holding, Key, News, NewsError, Part, PlaceGeneration, PlaceNews, Port, Span, Subnet,
    Table, TableChange, TablePlan, Whereabout, Whereabouts,
};
use forkyard_types::{FamilyHost, FamilyId, Member, VmId};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

mod kernel;
mod moves;

fn site(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, u8::try_from(number).expect("few"))
}

fn host(number: usize, places: std::ops::Range<u16>) -> FamilyHost {
    FamilyHost {
        tunnel: site(number),
        first: Member(places.start),
        places: places.end - places.start,
    }
}

fn span(of: usize, hosts: Vec<FamilyHost>) -> Span {
    Span {
        tunnel: site(of),
        hosts,
        seen: Whereabouts::default(),
        parts: BTreeMap::new(),
    }
}

#[test]
fn who_was_lent_places_has_them_and_its_lender_the_rest() {
    let hosts = vec![
        host(3, 40..50),
        host(1, 0..Subnet::MEMBERS),
        host(2, 32..64),
    ];
    let seen = |last| {
        let table = Table::of(&span(last, hosts.clone()));
        let plan = Table::empty(site(last)).plan(&table);
        let told = plan.heard.into_iter();
        let mut told: Vec<_> = told
            .map(|it| (it.places.start, it.places.end, it.tunnel.octets()[3]))
            .collect();
        told.sort_unstable();
        told
    };
    let end = Subnet::MEMBERS;
    assert_eq!(seen(1), [(32, 40, 2), (40, 50, 3), (50, 64, 2)]);
    assert_eq!(seen(2), [(0, 32, 1), (40, 50, 3), (64, end, 1)]);
    let of_third = [(0, 32, 1), (32, 40, 2), (50, 64, 2), (64, end, 1)];
    assert_eq!(seen(3), of_third);
}

#[test]
fn what_lies_beyond_the_family_is_nobodys() {
    let beyond = vec![host(2, Subnet::MEMBERS - 1..u16::MAX), host(3, 3000..3001)];
    let table = Table::of(&span(1, beyond));
    assert_eq!(table.len(), 1);
    assert_eq!(table.site(Member(Subnet::MEMBERS - 1)), Some(site(2)));
    let mut seen = Whereabouts::default();
    assert!(!seen.learn(PlaceNews {
        member: Member(Subnet::MEMBERS),
        generation: PlaceGeneration(1),
        at: Whereabout::At(site(2)),
    }));
}

#[test]
fn of_two_hosts_that_name_one_place_the_later_has_it() {
    for (first, last) in [(2, 3), (3, 2)] {
        let hosts = vec![host(1, 0..64), host(first, 5..6), host(last, 5..6)];
        let table = Table::of(&span(1, hosts));
        assert_eq!(table.site(Member(5)), Some(site(last)));
    }
}

#[test]
fn a_part_in_a_move_ends_as_the_move_does_and_heeds_nothing_that_is_not_of_it() {
    let (port, other) = (VmId::random(), VmId::random());
    let (from, to) = (site(1), site(2));
    let expecting = Part::step(None, Event::Expected { from, port });
    assert_eq!(expecting, Some(Part::Expecting { from, port }));
    assert_eq!(Part::step(expecting, Event::GivenUp), None);
    for nothing in [Event::Stayed, Event::Left, Event::Settled] {
        assert_eq!(Part::step(expecting, nothing), expecting);
    }
    let arrived = Part::step(expecting, Event::Announced);
    assert_eq!(arrived, Some(Part::Arrived { from, port }));
    assert_eq!(Part::step(arrived, Event::GivenUp), arrived);
    assert_eq!(
        Part::step(arrived, Event::Settled),
        Some(Part::Here { port })
    );
    let passing = Part::step(arrived, Event::Stopped { to, port });
    assert_eq!(passing, Some(Part::Passing { to, port }));
    assert_eq!(Part::step(passing, Event::Announced), passing);
    assert_eq!(
        Part::step(passing, Event::Stayed),
        Some(Part::Here { port })
    );
    assert_eq!(Part::step(passing, Event::Left), None);
    let back = Event::Expected {
        from: to,
        port: other,
    };
    let back = Part::step(passing, back);
    assert_eq!(
        back,
        Some(Part::Expecting {
            from: to,
            port: other
        })
    );
    for nothing in [
        Event::Announced,
        Event::Settled,
        Event::GivenUp,
        Event::Stayed,
        Event::Left,
    ] {
        assert_eq!(Part::step(None, nothing), None);
    }
}

fn sightings() -> impl Strategy<Value = Vec<PlaceNews>> {
    let at = (1..5usize, 1..5usize).prop_map(|(from, to)| match from == to {
        true => Whereabout::At(site(to)),
        false => Whereabout::Moving {
            from: site(from),
            to: site(to),
        },
    });
    let one = (0..6u16, 0..5u32, at).prop_map(|(member, generation, at)| PlaceNews {
        member: Member(member),
        generation: PlaceGeneration(generation),
        at,
    });
    prop::collection::vec(one, 0..200)
}

proptest! {
    #[test]
    fn sites_that_heard_the_same_agree_and_old_news_change_nothing(
        (said, shuffled) in sightings().prop_flat_map(|said| {
            (Just(said.clone()), Just(said).prop_shuffle())
        }),
        again in any::<prop::sample::Index>(),
    ) {
        let mut one = Whereabouts::default();
        let mut best: BTreeMap<Member, PlaceGeneration> = BTreeMap::new();
        for it in &said {
            let before = one.get(it.member);
            let is_news = one.learn(*it);
            let known = best.entry(it.member).or_default();
            prop_assert!(is_news || one.get(it.member) == before);
            prop_assert!(!(is_news && it.generation < *known), "old news");
            *known = (*known).max(it.generation);
        }
        let mut other = Whereabouts::default();
        for it in &shuffled {
            other.learn(*it);
        }
        prop_assert_eq!(&one, &other);
        if !said.is_empty() {
            prop_assert!(!one.learn(said[again.index(said.len())]), "heard before");
            let made = one.tell(said[0].member, Whereabout::At(site(9)));
            prop_assert!(other.learn(made), "what is made counts for more than all that was said");
            prop_assert_eq!(one, other);
        }
    }

    #[test]
    fn news_are_read_as_they_were_sealed_and_not_with_a_bit_or_the_key_changed(
        said in sightings(), key in any::<[u8; 32]>(), bit in any::<prop::sample::Index>(),
    ) {
        let (family, key) = (FamilyId::random(), Key(key));
        let news = News { family, said: said.clone() };
        let mut read = Vec::new();
        for datagram in news.seal(&key) {
            prop_assert!(datagram.len() <= 1400);
            prop_assert_eq!(News::family_of(&datagram), Ok(family));
            read.extend(News::open(&datagram, &key).expect("sealed").said);
            let mut other = key;
            other.0[0] ^= 1;
            prop_assert_eq!(News::open(&datagram, &other), Err(NewsError::Sealed));
            let mut changed = datagram.clone();
            let bit = bit.index(changed.len() * 8);
            changed[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(News::open(&changed, &key).is_err());
            let shorter = &datagram[..bit / 8];
            prop_assert!(News::open(shorter, &key).is_err());
        }
        prop_assert_eq!(read, said);
    }
}

#[test]
fn sealed_nonsense_is_no_news() {
    let key = Key([7; 32]);
    let sealed = |change: fn(&mut Vec<u8>)| {
        let said = vec![PlaceNews {
            member: Member(1),
            generation: PlaceGeneration(1),
            at: Whereabout::At(site(1)),
        }];
        let news = News {
            family: FamilyId::random(),
            said,
        };
        let mut bytes = news.seal(&key).remove(0);
        bytes.truncate(bytes.len() - 32);
        change(&mut bytes);
        let seal = blake3::keyed_hash(&key.0, &bytes);
        bytes.extend(seal.as_bytes());
        News::open(&bytes, &key)
    };
    assert!(sealed(|_| ()).is_ok());
    // A kind that there is not, another site than itself, a count that is not there, no host, a rest.
    let changes: [fn(&mut Vec<u8>); 6] = [
        |bytes| bytes[22] = 2,
        |bytes| bytes[22] = 1,
        |bytes| bytes[26] = 9,
        |bytes| bytes[15] = 2,
        |bytes| bytes[23..31].fill(0xff),
        |bytes| bytes.push(0),
    ];
    for change in changes {
        assert_eq!(sealed(change), Err(NewsError::Malformed));
    }
}
