//! Tests that pages clones on other hosts have wanted are sent to those of the
//! next fork.

use crate::harness::{Fixture, byte, eventually, filling};
use forkyard_pager::{Fetching, Offering, PeerKey, Push};
use forkyard_types::{ImageId, PageCount};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const KEY: PeerKey = PeerKey([7; 32]);
const PAGES: u64 = 3000;

/// Lists the pages a clone touches; some of them are zero.
fn wanted() -> impl Iterator<Item = u64> {
    (0..60).map(|n| n * 41)
}

fn filled(page: u64) -> u8 {
    if page.is_multiple_of(3) {
        0
    } else {
        filling(page)
    }
}

/// A host with the image of a fork, made on `parent`, whose pages come on demand.
fn forked(parent: &Fixture, at: SocketAddr) -> (Fixture, ImageId) {
    fetched(parent, at, false)
}

fn fetched(parent: &Fixture, at: SocketAddr, settle: bool) -> (Fixture, ImageId) {
    let image = parent.publish(PAGES, filled);
    let offering = Offering {
        key: KEY,
        group: None,
        hosts: 1,
        push: Push::WorkingSet,
        disjoint: Vec::new(),
        last: None,
        changed: None,
    };
    parent.client.offer(image, offering).expect("offers");
    let host = Fixture::start();
    let fetching = Fetching {
        pages: PageCount(PAGES),
        key: KEY,
        server: at,
        local: HERE,
        settle,
        first: Vec::new(),
        last: Vec::new(),
        over: None,
    };
    host.client.fetch(image, fetching).expect("fetches");
    (host, image)
}

#[test]
fn what_clones_elsewhere_wanted_is_pushed_to_those_of_the_next_fork() {
    let parent = Fixture::start();
    let at = parent.client.listen(SocketAddr::new(HERE, 0));
    let at = at.expect("listens");
    let (first, image) = forked(&parent, at);
    let view = first.view(image, PAGES);
    wanted().for_each(|page| assert_eq!(byte(&view, page), filled(page)));
    let data = wanted().filter(|page| filled(*page) != 0).count() as u64;
    // All of it: what is noted is noted a moment later, zeros among the rest.
    let all = wanted().count() as u64;
    eventually("it is known", || parent.stats(image).touched.0 >= all);
    let (second, image) = forked(&parent, at);
    let here = |image| {
        let arrival = second.client.arrival(image).expect("known");
        PAGES - arrival.away.0
    };
    // No page was read there.
    eventually("it has come", || here(image) >= data);
    let view = second.view(image, PAGES);
    let before = here(image);
    let data = |page: &u64| filled(*page) != 0;
    let right = |page| assert_eq!(byte(&view, page), filled(page));
    wanted().filter(data).for_each(right);
    assert_eq!(here(image), before, "what was pushed is what was wanted");
}

#[test]
fn what_clones_elsewhere_touched_of_pages_that_had_come_is_told_and_expected_of_the_next_fork() {
    let parent = Fixture::start();
    let at = parent.client.listen(SocketAddr::new(HERE, 0));
    let at = at.expect("listens");
    let (first, image) = fetched(&parent, at, true);
    let away = || first.client.arrival(image).expect("known").away.0;
    eventually("all has come", || away() == 0);
    let view = first.view(image, PAGES);
    wanted().for_each(|page| assert_eq!(byte(&view, page), filled(page)));
    // No reader waited for a page, so none was requested.
    assert!(parent.client.expected(image).expect("known").is_empty());
    let touched = first.client.touched(image).expect("known");
    let told = parent.client.touched_elsewhere(image, touched);
    told.expect("believed");
    let data: Vec<u64> = wanted().filter(|page| filled(*page) != 0).collect();
    let next = parent.publish(PAGES, filled);
    let expected = parent.client.expected(next).expect("known");
    let expected = expected.into_iter().flat_map(|run| run.iter());
    let expected: Vec<u64> = expected.map(|page| page.0).collect();
    assert_eq!(expected, data, "in the order in which it was touched");
}
