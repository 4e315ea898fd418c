use super::*;
use forkyard_types::FamilyId;

fn host(last: u8, places: Range<u16>) -> FamilyHost {
    FamilyHost {
        tunnel: Ipv4Addr::new(192, 0, 2, last),
        first: Member(places.start),
        places: places.end - places.start,
    }
}

fn loan() -> Loan {
    Loan {
        family: FamilyId::random(),
        peer: "b".into(),
        places: 128..256,
    }
}

#[test]
fn a_borrower_is_believed_about_what_it_was_lent_alone() {
    let standing = FamilyStanding {
        tunnel: Some(Ipv4Addr::new(192, 0, 2, 2)),
        member: true,
        lent: vec![
            host(3, 160..192),
            host(4, 0..2000),
            host(5, 250..257),
            FamilyHost {
                tunnel: Ipv4Addr::BROADCAST,
                ..host(6, 200..210)
            },
        ],
    };
    let heard = hosts_of(&loan(), &standing, (false, &BTreeSet::new()));
    assert_eq!(heard, [host(2, 128..256), host(3, 160..192)]);
}

#[test]
fn a_borrower_is_believed_about_a_vm_that_had_moved_to_it_and_went_on() {
    let gone_on = FamilyHost {
        places: 1,
        ..host(3, 7..8)
    };
    let standing = FamilyStanding {
        tunnel: Some(Ipv4Addr::new(192, 0, 2, 2)),
        member: true,
        lent: vec![gone_on, host(4, 8..9)],
    };
    let heard = hosts_of(&loan(), &standing, (false, &[Member(7)].into()));
    assert_eq!(heard, [host(2, 128..256), gone_on]);
}

#[test]
fn a_borrower_with_nothing_of_the_family_is_no_host_of_it_unless_it_is_about_to_be() {
    let standing = FamilyStanding {
        tunnel: Some(Ipv4Addr::new(192, 0, 2, 2)),
        member: false,
        lent: Vec::new(),
    };
    assert_eq!(hosts_of(&loan(), &standing, (false, &BTreeSet::new())), []);
    assert_eq!(
        hosts_of(&loan(), &standing, (true, &BTreeSet::new())),
        [host(2, 128..256)]
    );
    let nowhere = FamilyStanding {
        tunnel: None,
        ..standing
    };
    assert_eq!(hosts_of(&loan(), &nowhere, (true, &BTreeSet::new())), []);
}

#[test]
fn a_host_knows_its_own_places_better_than_its_lender() {
    let told = [
        (Teller::Lender, host(1, 0..2045)),
        (Teller::Lender, host(4, 256..384)),
        (Teller::Lender, host(4, 128..256)),
        (Teller::Lender, host(4, 200..210)),
        (Teller::Borrower("c".into()), host(3, 160..192)),
    ];
    let tunnel = Ipv4Addr::new(192, 0, 2, 2);
    let known = compose(tunnel, &(128..256), told.into_iter());
    let expected = [
        host(2, 128..256),
        host(1, 0..2045),
        host(4, 256..384),
        host(3, 160..192),
    ];
    assert_eq!(known, expected);
}

#[test]
fn addresses_of_no_host_are_refused() {
    check(&[host(1, 0..9)]).expect("a host");
    for bad in [
        Ipv4Addr::UNSPECIFIED,
        Ipv4Addr::BROADCAST,
        Ipv4Addr::new(224, 0, 0, 1),
    ] {
        let tunnel = bad;
        check(&[FamilyHost {
            tunnel,
            ..host(1, 0..9)
        }])
        .expect_err("no host");
    }
    check(&vec![host(1, 0..9); MOST_HOSTS + 1]).expect_err("too many");
}

#[test]
fn a_borrower_is_where_most_of_what_it_was_lent_is() {
    let b = || Teller::Borrower("b".into());
    // It lent some of it to this host, which comes first.
    let told = [
        (b(), host(1, 144..160)),
        (b(), host(2, 128..256)),
        (Teller::Borrower("c".into()), host(3, 256..512)),
    ];
    assert_eq!(tunnel_of(&told, "b"), Some(Ipv4Addr::new(192, 0, 2, 2)));
    assert_eq!(tunnel_of(&told, "d"), None);
}
