//! Pages between hosts.

use crate::hosts::Hosts;
use crate::link::LinkFaults;
use crate::serving::{Serving, Way, until};
use forkyard_transfer::driver::FetchError;
use forkyard_transfer::{Complete, Loss, Push, Run, Urgency};
use forkyard_types::{PageCount, PageNo};
use std::time::Duration;

#[test]
fn page_waited_for_comes_and_is_right() {
    let hosts = Hosts::bridged(2);
    let serving = Serving::start(&hosts, Way::unicast(1000));
    let (client, got) = serving.client(&hosts, 1);
    for page in (0..1000).step_by(9) {
        client.fetch(PageNo(page)).expect("fetched");
    }
    let all: Vec<_> = (100..400).map(PageNo).collect();
    client.fetch_all(&all).expect("fetched");
    assert!(got.count() >= 300 && got.count() < 450, "{}", got.count());
    assert_eq!(client.stats().refused, 0);
}

#[test]
fn everything_comes_in_the_background_and_the_server_is_free_then() {
    let hosts = Hosts::bridged(2);
    let serving = Serving::start(&hosts, Way::unicast(3000));
    let (client, got) = serving.client(&hosts, 1);
    client.complete(Complete::Yes);
    until("complete", || client.is_complete());
    assert_eq!(got.count(), 3000);
    drop(serving);
    client.fetch(PageNo(7)).expect("is there");
}

#[test]
fn clients_in_lockstep_share_what_is_sent_to_the_group() {
    let hosts = Hosts::bridged(5);
    let serving = Serving::start(&hosts, Way::multicast(2000, 4));
    let clients: Vec<_> = (1..5).map(|n| serving.client(&hosts, n)).collect();
    until("all are in", || {
        serving.server.clients(serving.key.channel()) == 4
    });
    let stats = || serving.server.stats(serving.key.channel()).expect("served");
    // They are given time to hear that the group reaches them.
    until("beacons", || stats().group_bytes > 100);
    for (client, _) in &clients {
        client.complete(Complete::Yes);
    }
    for (client, got) in &clients {
        until("complete", || client.is_complete());
        assert_eq!(got.count(), 2000);
    }
    let sent = stats();
    assert!(sent.group_bytes * 4 > sent.bytes, "{sent:?}");
    // What was lost on a busy machine, and sent again by the same way, is not counted.
    let once = sent.pages - sent.again;
    assert!(once < 3 * 2000, "four alone take 8000: {sent:?}");
}

#[test]
fn host_that_hears_no_group_is_served_alone_and_groups_never_leave_the_link() {
    let network = LinkFaults {
        deaf: vec![2],
        ..LinkFaults::default()
    };
    let hosts = Hosts::linked(4, network);
    let serving = Serving::start(
        &hosts,
        Way {
            push: Push::Everything,
            ..Way::multicast(1000, 3)
        },
    );
    let clients: Vec<_> = (1..4).map(|n| serving.client(&hosts, n)).collect();
    for (client, _) in &clients {
        client.fetch(PageNo(1)).expect("fetched");
        client.complete(Complete::Yes);
    }
    for (client, got) in &clients {
        until("complete", || client.is_complete());
        assert_eq!(got.count(), 1000);
    }
    let (groups, far) = hosts.link().groups();
    assert!(
        groups > 0 && far == 0,
        "{groups} frames to groups, {far} beyond the link"
    );
}

#[test]
fn network_that_loses_doubles_and_reorders_delivers_every_page() {
    let network = LinkFaults {
        rate: 20_000_000,
        queue: Duration::from_millis(5),
        delay: Duration::from_micros(500),
        loss: 3.0,
        twice: 3.0,
        late: 10.0,
        ..LinkFaults::default()
    };
    let hosts = Hosts::linked(4, network);
    let serving = Serving::start(&hosts, Way::multicast(1500, 3));
    let clients: Vec<_> = (1..4).map(|n| serving.client(&hosts, n)).collect();
    for (client, _) in &clients {
        client.complete(Complete::Yes);
        client.fetch(PageNo(1400)).expect("fetched");
    }
    for (client, got) in &clients {
        until("complete", || client.is_complete());
        assert_eq!(got.count(), 1500);
    }
}

#[test]
fn disjoint_pages_reach_nobody_else() {
    let hosts = Hosts::bridged(3);
    let all = Run {
        first: PageNo(0),
        pages: PageCount(500),
    };
    let way = Way {
        disjoint: vec![all],
        ..Way::multicast(500, 2)
    };
    let serving = Serving::start(&hosts, way);
    let channel = serving.key.channel();
    let (one, _) = serving.client(&hosts, 1);
    let (_other, got) = serving.client(&hosts, 2);
    until("both are in", || serving.server.clients(channel) == 2);
    let pages: Vec<_> = (0..500).map(PageNo).collect();
    one.fetch_all(&pages).expect("fetched");
    assert_eq!(got.count(), 0);
}

#[test]
fn who_waits_for_a_server_that_died_is_told_and_so_is_who_asks_later() {
    let hosts = Hosts::bridged(2);
    let serving = Serving::start(&hosts, Way::unicast(100));
    let (client, _) = serving.client(&hosts, 1);
    client.fetch(PageNo(1)).expect("fetched");
    drop(serving);
    for page in [PageNo(2), PageNo(3)] {
        let error = client.fetch(page).expect_err("nobody is there");
        let FetchError::Lost {
            page: lost,
            source: Loss::Silent(_),
            ..
        } = error
        else {
            panic!("{error:?}");
        };
        assert_eq!(lost, page);
    }
    client.fetch(PageNo(1)).expect("it is here");
}

#[test]
fn host_that_was_cut_off_for_a_while_goes_on() {
    let hosts = Hosts::linked(2, LinkFaults::default());
    let serving = Serving::start(&hosts, Way::unicast(200));
    let (client, got) = serving.client(&hosts, 1);
    client.fetch(PageNo(1)).expect("fetched");
    hosts.link().becomes(LinkFaults {
        cut: vec![1],
        ..LinkFaults::default()
    });
    let pages: Vec<_> = (0..200).map(PageNo).collect();
    client.want(&pages, Urgency::Ahead);
    std::thread::sleep(crate::serving::PATIENCE / 10);
    hosts.link().becomes(LinkFaults::default());
    client.fetch_all(&pages).expect("fetched");
    assert_eq!(got.count(), 200);
}
