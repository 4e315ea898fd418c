//! Images that come from another pager.

use crate::harness::{Fixture, byte, eventually, filling, layer};
use forkyard_image::Lineage;
use forkyard_pager::{Fetching, Offering, Over, PagerRefusal, PeerKey, Push};
use forkyard_types::{ImageId, PAGE_SIZE, PageCount};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const KEY: PeerKey = PeerKey([42; 32]);
/// More than the kernel reads ahead.
const PAGES: u64 = 3000;

/// A page in five is zero.
fn filled(page: u64) -> u8 {
    if page.is_multiple_of(5) {
        0
    } else {
        filling(page)
    }
}

fn fetching(server: SocketAddr, settle: bool) -> Fetching {
    Fetching {
        pages: PageCount(PAGES),
        key: KEY,
        server,
        local: HERE,
        settle,
        first: Vec::new(),
        last: Vec::new(),
        over: None,
    }
}

/// A pager that has an image and offers it, and where.
fn offering() -> (Fixture, ImageId, SocketAddr) {
    let parent = Fixture::start();
    let image = parent.publish(PAGES, filled);
    let at = parent
        .client
        .listen(SocketAddr::new(HERE, 0))
        .expect("listens");
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
    (parent, image, at)
}

/// The filling of a page, read as a file is.
fn read(fixture: &Fixture, image: ImageId, page: u64) -> std::io::Result<u8> {
    let mut bytes = [0; PAGE_SIZE];
    let file = fixture.open(image).expect("opens");
    file.read_exact_at(&mut bytes, page * PAGE_SIZE as u64)?;
    assert!(
        bytes.iter().all(|byte| *byte == bytes[0]),
        "page {page} is torn"
    );
    Ok(bytes[0])
}

#[test]
fn pages_come_as_they_are_read_and_are_right() {
    let (parent, image, at) = offering();
    let host = Fixture::start();
    host.client
        .fetch(image, fetching(at, false))
        .expect("fetches");
    for page in [0, 1, 7, 2999, 1500] {
        assert_eq!(read(&host, image, page).expect("comes"), filled(page));
    }
    let arrival = host.client.arrival(image).expect("known");
    assert!(arrival.alive && arrival.away.0 > PAGES - 100, "{arrival:?}");
    // Clones of one host share what has come, and a mapping sees the same.
    let view = host.view(image, PAGES);
    assert!((0..PAGES).all(|page| byte(&view, page) == filled(page)));
    let arrival = host.client.arrival(image).expect("known");
    assert_eq!(arrival.away, PageCount(0));
    drop(parent);
    assert_eq!(read(&host, image, 1234).expect("is here"), filled(1234));
}

#[test]
fn settled_image_needs_its_host_no_more_and_can_be_offered_on() {
    let (mut parent, image, at) = offering();
    let host = Fixture::start();
    host.client
        .fetch(image, fetching(at, true))
        .expect("fetches");
    // It is an image like any other when everything has come.
    eventually("settled", || host.stats(image).layers == 1);
    assert_eq!(
        host.client.arrival(image).expect("known").away,
        PageCount(0)
    );
    parent.kill();
    let view = host.view(image, PAGES);
    assert!((0..PAGES).all(|page| byte(&view, page) == filled(page)));
    let at = host
        .client
        .listen(SocketAddr::new(HERE, 0))
        .expect("listens");
    let offering = Offering {
        key: KEY,
        group: None,
        hosts: 1,
        push: Push::WorkingSet,
        disjoint: Vec::new(),
        last: None,
        changed: None,
    };
    host.client.offer(image, offering).expect("offers on");
    let third = Fixture::start();
    third
        .client
        .fetch(image, fetching(at, false))
        .expect("fetches");
    assert_eq!(read(&third, image, 2001).expect("comes"), filled(2001));
}

/// A page in seven has changed, one of which became zero and one of which was zero before.
fn changed(page: u64) -> u8 {
    match page {
        14 => 0,
        page if page.is_multiple_of(7) => filled(page + 2).max(1),
        page => filled(page),
    }
}

#[test]
fn an_image_over_one_that_is_here_brings_what_has_changed_to_those_who_wait_for_it() {
    let (mut parent, before, at) = offering();
    let host = Fixture::start();
    let fetched = host.client.fetch(before, fetching(at, true));
    fetched.expect("fetches");
    eventually("settled", || host.stats(before).layers == 1);
    // Its file is opened, and read, before anything of it is there.
    let image = ImageId::random();
    let promised = host.client.promise(image, PageCount(PAGES));
    promised.expect("promises");
    let file = host.open(image).expect("opens");
    let early = std::thread::spawn(move || {
        let mut bytes = [0; 2 * PAGE_SIZE];
        file.read_exact_at(&mut bytes, 13 * PAGE_SIZE as u64)
            .map(|()| (bytes[0], bytes[PAGE_SIZE]))
    });
    let lineage = Lineage {
        image,
        parent: None,
    };
    let layer = layer(lineage, PAGES, changed);
    parent.client.publish(lineage, layer).expect("publishes");
    let differ: Vec<_> = (0..PAGES).filter(|n| changed(*n) != filled(*n)).collect();
    let runs = parent.client.changes(image, before).expect("both are here");
    let told = runs.iter().flat_map(|run| run.iter());
    assert!(told.map(|page| page.0).eq(differ.iter().copied()));
    let none = parent.client.changes(image, image).expect("itself");
    assert!(none.is_empty());
    let received = |host: &Fixture| {
        let links = host.client.links().expect("known");
        links
            .iter()
            .map(|it| it.got.received.waited + it.got.received.ahead)
            .sum::<u64>()
    };
    let until_now = received(&host);
    let offering = Offering {
        key: KEY,
        group: None,
        hosts: 1,
        push: Push::Everything,
        disjoint: Vec::new(),
        last: None,
        changed: Some(runs.clone()),
    };
    parent.client.offer(image, offering).expect("offers");
    let over = Some(Over {
        image: before,
        changed: runs,
    });
    let fetching = Fetching {
        over,
        ..fetching(at, true)
    };
    host.client.fetch(image, fetching).expect("fetches");
    let early = early.join().expect("no panic").expect("comes");
    assert_eq!(early, (changed(13), changed(14)));
    eventually("settled", || host.stats(image).layers == 2);
    let came = received(&host) - until_now;
    assert!((1..=differ.len() as u64 + 1).contains(&came), "{came}");
    parent.kill();
    let view = host.view(image, PAGES);
    for page in 0..PAGES {
        assert_eq!(byte(&view, page), changed(page), "{page}");
    }
}

#[test]
fn death_of_the_other_host_fails_what_is_missing_and_nothing_else() {
    let (mut parent, image, at) = offering();
    let host = Fixture::start();
    host.client
        .fetch(image, fetching(at, false))
        .expect("fetches");
    assert_eq!(read(&host, image, 11).expect("comes"), filled(11));
    parent.kill();
    // It waits for as long as the host may only be slow, and no longer.
    read(&host, image, 2222).expect_err("nobody has it");
    read(&host, image, 2223).expect_err("nobody has it");
    assert_eq!(read(&host, image, 11).expect("is here"), filled(11));
    let arrival = host.client.arrival(image).expect("known");
    assert!(!arrival.alive && !arrival.settled, "{arrival:?}");
    assert_eq!(arrival.from, Some(at));
    let lost = |page: u64| {
        let stretches = arrival.lost.iter();
        let mut within = stretches.map(|(first, pages)| first.0..first.0 + pages.0);
        within.any(|stretch| stretch.contains(&page))
    };
    assert!(lost(2222) && !lost(11), "{arrival:?}");
}

#[test]
fn image_whose_pager_died_on_the_way_is_said_to_be_lost() {
    let (_parent, image, at) = offering();
    let host = Fixture::start();
    host.client
        .fetch(image, fetching(at, false))
        .expect("fetches");
    host.client.fail(image, "as after a death").expect("fails");
    let arrival = host.client.arrival(image).expect("known");
    assert!(!arrival.alive && arrival.away == PageCount(PAGES));
}

#[test]
fn host_without_the_familys_key_gets_nothing() {
    let (_parent, image, at) = offering();
    let host = Fixture::start();
    let wrong = Fetching {
        key: PeerKey([43; 32]),
        ..fetching(at, true)
    };
    host.client.fetch(image, wrong).expect("tries");
    read(&host, image, 11).expect_err("is not served");
    assert_eq!(
        host.client.arrival(image).expect("known").away,
        PageCount(PAGES)
    );
}

#[test]
fn nobody_waits_for_an_image_that_is_retired_and_closed() {
    let (_parent, image, at) = offering();
    let host = Fixture::start();
    host.client
        .fetch(image, fetching(at, false))
        .expect("fetches");
    let file = host.open(image).expect("opens");
    host.client.retire(image).expect("retires");
    let mut bytes = [0; PAGE_SIZE];
    // A process that has it open keeps it.
    file.read_exact_at(&mut bytes, 21 * PAGE_SIZE as u64)
        .expect("comes");
    assert_eq!(bytes[0], filled(21));
    let before = host.layers_open();
    drop(file);
    eventually("let go of", || host.layers_open() < before);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let pager = Fixture::start();
    let refusal = |result: Result<(), forkyard_pager::PagerError>| {
        let error = result.expect_err("refused");
        error.refusal().expect("by the pager").clone()
    };
    let image = pager.publish(1, filling);
    let offering = Offering {
        key: KEY,
        group: None,
        hosts: 1,
        push: Push::WorkingSet,
        disjoint: Vec::new(),
        last: None,
        changed: None,
    };
    assert_eq!(
        refusal(pager.client.offer(image, offering.clone())),
        PagerRefusal::ListensNot
    );
    let at = pager
        .client
        .listen(SocketAddr::new(HERE, 0))
        .expect("listens");
    // The daemon that asks may be another than the one that asked first.
    let again = pager.client.listen(SocketAddr::new(HERE, 0));
    assert_eq!(again.expect("as it does"), at);
    let elsewhere = SocketAddr::new(HERE, at.port() ^ 1);
    let elsewhere = pager.client.listen(elsewhere).map(drop);
    assert_eq!(refusal(elsewhere), PagerRefusal::ListensAlready);
    let image = ImageId::random();
    pager.client.promise(image, PageCount(1)).expect("promises");
    assert_eq!(
        refusal(pager.client.offer(image, offering)),
        PagerRefusal::NotReady { image }
    );
    let twice = pager.client.fetch(image, fetching(at, false));
    let (promised, got) = (PageCount(1), PageCount(PAGES));
    assert_eq!(refusal(twice), PagerRefusal::WrongSize { promised, got });
    let image = pager.publish(PAGES, filling);
    let twice = pager.client.fetch(image, fetching(at, false));
    assert_eq!(refusal(twice), PagerRefusal::AlreadyExists { image });
    let of = |image| Over {
        image,
        changed: Vec::new(),
    };
    let over = |of| Fetching {
        over: Some(of),
        ..fetching(at, false)
    };
    let unknown = ImageId::random();
    let lies = pager.client.fetch(ImageId::random(), over(of(unknown)));
    assert_eq!(
        refusal(lies),
        PagerRefusal::UnknownImage { image: unknown },
        "what it lies over is not here"
    );
    let small = pager.publish(1, filling);
    let lies = pager.client.fetch(ImageId::random(), over(of(small)));
    assert_eq!(refusal(lies), PagerRefusal::WrongSize { promised, got });
    let image = ImageId::random();
    assert_eq!(
        refusal(pager.client.settle(image)),
        PagerRefusal::UnknownImage { image }
    );
}
