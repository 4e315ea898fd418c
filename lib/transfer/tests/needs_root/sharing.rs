//! Pages between hosts.

use crate::hosts::Hosts;
use crate::link::Network;
use crate::serving::{Serving, Way, until};
use forkyard_transfer::{Complete, Push, Urgency};
use forkyard_types::PageNo;
use std::time::Duration;

#[test]
fn host_that_hears_no_group_is_served_alone_and_groups_never_leave_the_link() {
    let network = Network {
        deaf: vec![2],
        ..Network::default()
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
    let network = Network {
        rate: 20_000_000,
        queue: Duration::from_millis(5),
        delay: Duration::from_micros(500),
        loss: 3.0,
        twice: 3.0,
        late: 10.0,
        ..Network::default()
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
fn host_that_was_cut_off_for_a_while_goes_on() {
    let hosts = Hosts::linked(2, Network::default());
    let serving = Serving::start(&hosts, Way::unicast(200));
    let (client, got) = serving.client(&hosts, 1);
    client.fetch(PageNo(1)).expect("fetched");
    hosts.link().becomes(Network {
        cut: vec![1],
        ..Network::default()
    });
    let pages: Vec<_> = (0..200).map(PageNo).collect();
    client.want(&pages, Urgency::Ahead);
    std::thread::sleep(crate::serving::PATIENCE / 10);
    hosts.link().becomes(Network::default());
    client.fetch_all(&pages).expect("fetched");
    assert_eq!(got.count(), 200);
}
