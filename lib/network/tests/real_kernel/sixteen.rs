//! Sixteen sites and a thousand addresses: what it takes to tell their kernels.

use crate::stations::{Stations, address};
use forkyard_network::{Link, Span, Subnet};
use forkyard_overlay::Whereabout;
use forkyard_types::{FamilyHost, FamilyId, Member, NetworkPolicy};
use std::{
    process::Command,
    time::{Duration, Instant},
};

const SITES: usize = 16;
const EACH: u16 = 64;
const FAMILY: u16 = 7;

fn span(of: usize) -> Span {
    let host = |(site, first): (usize, u16)| FamilyHost {
        tunnel: address(site),
        first: Member(first * EACH),
        places: EACH,
    };
    Span {
        tunnel: address(of),
        hosts: (0..SITES).zip(0..).map(host).collect(),
        seen: Default::default(),
        parts: Default::default(),
    }
}

/// Entries of a family that send to other sites: of its tunnel, and of its bridge.
fn entries(family: FamilyId) -> (usize, usize) {
    let said = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).output().expect("runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let tunnel = Link::Tunnel(family).name();
    let forwarded = said("bridge", &["fdb", "show", "dev", &tunnel]);
    let of = |what: &str| forwarded.lines().filter(|line| line.contains(what)).count();
    (of(" dst "), of(" master "))
}

#[test]
fn sixteen_sites_are_told_of_a_thousand_addresses_and_of_one_that_moves() {
    let hosts = Stations::new(SITES);
    let family = FamilyId::random();
    let told = |span: fn(usize) -> Span| -> Vec<Duration> {
        let told = (0..SITES).map(|site| {
            hosts.on(site, async move |networks| {
                let subnet = Subnet::of(FAMILY).expect("room");
                let begun = Instant::now();
                let stretched = networks.stretch(family, subnet, &span(site)).await;
                stretched.expect("stretched");
                begun.elapsed()
            })
        });
        told.collect()
    };
    for site in 0..SITES {
        hosts.on(site, async move |networks| {
            let subnet = Subnet::of(FAMILY).expect("room");
            let policy = NetworkPolicy::default();
            let made = networks.create_family(family, subnet, &policy, None);
            made.await.expect("a family");
        });
    }
    let all = told(span);
    let elsewhere = usize::from(EACH) * (SITES - 1);
    for site in 0..SITES {
        let found = hosts.on(site, async move |_| entries(family));
        // The device has two of its own.
        assert_eq!((found.0, found.1 - 1), (elsewhere, elsewhere), "at {site}");
    }
    let moves = |site: usize| {
        let mut span = span(site);
        span.seen.tell(
            Member(3),
            Whereabout::Moving {
                from: address(0),
                to: address(1),
            },
        );
        span
    };
    let about_to = told(moves);
    let moved = told(|site| {
        let mut span = span(site);
        span.seen.tell(
            Member(3),
            Whereabout::Moving {
                from: address(0),
                to: address(1),
            },
        );
        span.seen.tell(Member(3), Whereabout::At(address(1)));
        span
    });
    let tell = |what: &str, all: &[Duration]| {
        let most = all.iter().max().copied().unwrap_or_default();
        let sum: Duration = all.iter().sum();
        eprintln!(
            "{what}: {sum:?} for {SITES} sites one after the other, {most:?} for the slowest"
        );
    };
    tell(
        "a tunnel, and entries for 960 addresses of other sites",
        &all,
    );
    tell("one is about to move", &about_to);
    tell("it has moved", &moved);
}
