//! Families that are on several hosts.

use crate::{
    guest::{BROADCAST, Guest, PATIENCE, SILENCE, arp, checksum, datagram, ethernet, ipv4, until},
    stations::{Stations, first_place, place, span},
};
use forkyard_network::{Link, Subnet};
use forkyard_types::{Address, Mac, NetworkPolicy};
use std::{
    net::{SocketAddrV4, UdpSocket},
    process::Command,
};

/// Tests for a host's answer to an ARP for this address.
fn is_answer(of: Address) -> impl Fn(&[u8]) -> bool {
    move |frame| {
        frame.get(12..22) == Some(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2])
            && frame.get(22..28) == Some(&of.mac.0)
            && frame.get(28..32) == Some(&of.ip.octets())
    }
}

fn hear_each_other(one: &Guest, other: &Guest) -> bool {
    let (there, back) = (one.packet_to(other), other.packet_to(one));
    one.send(&there);
    other.send(&back);
    other.receives(&there) && one.receives(&back)
}

#[test]
fn members_on_three_hosts_hear_each_other_from_the_first_frame_and_arp_is_answered_at_home() {
    let hosts = Stations::new(3);
    let family = hosts.family(7, &[0, 1, 2]);
    let guests: Vec<_> = (0..3)
        .map(|host| hosts.guest(host, family, 7, first_place(host)))
        .collect();
    for (one, other) in [(0, 1), (1, 2), (2, 0)] {
        let (one, other) = (&guests[one], &guests[other]);
        let (mac, ip) = (one.address.mac, one.address.ip);
        let question = arp(mac, mac, ip, other.address.ip);
        one.send(&question);
        assert!(one.waits(PATIENCE, is_answer(other.address)));
        assert!(other.misses(&question), "nobody is asked");
        assert!(hear_each_other(one, other));
        // As a kernel asks whether a neighbour is still there.
        let mut still = question;
        still[..6].copy_from_slice(&other.address.mac.0);
        one.send(&still);
        assert!(other.receives(&still));
    }
}

#[test]
fn hosts_of_a_family_hear_each_other_after_the_rules_of_one_were_flushed() {
    let hosts = Stations::new(2);
    let family = hosts.family(7, &[0, 1]);
    let [here, there] = [0, 1].map(|host| hosts.guest(host, family, 7, first_place(host)));
    hosts.on(0, async move |networks| {
        let mut watch = networks.watch().expect("not given out yet");
        let nft = Command::new("nft").args(["flush", "ruleset"]).status();
        assert!(nft.expect("nft").success());
        while !networks
            .mend(&watch.next().await.expect("told"))
            .await
            .expect("mended")
        {}
    });
    let (mac, ip) = (here.address.mac, here.address.ip);
    here.send(&arp(mac, mac, ip, there.address.ip));
    assert!(here.waits(PATIENCE, is_answer(there.address)));
    assert!(hear_each_other(&here, &there));
}

#[test]
fn frames_to_everybody_and_to_nobody_stay_on_their_host() {
    let hosts = Stations::new(2);
    let family = hosts.family(7, &[0, 1]);
    let [a, b] = [(0, 0), (0, 1)].map(|(host, member)| hosts.guest(host, family, 7, member));
    let far = hosts.guest(1, family, 7, first_place(1));
    let (mac, ip) = (a.address.mac, a.address.ip);
    for frame in [
        ipv4(BROADCAST, mac, ip, far.address.ip),
        ipv4(Mac([1, 0, 0x5e, 0, 0, 5]), mac, ip, far.address.ip),
        arp(mac, mac, ip, ip),
    ] {
        a.send(&frame);
        assert!(b.receives(&frame), "a sibling beside it hears it");
        assert!(far.misses(&frame), "{frame:02x?}");
    }
    assert!(hear_each_other(&a, &far), "or this test proves nothing");
}

#[test]
fn a_host_speaks_for_its_own_places_alone() {
    let hosts = Stations::new(3);
    let family = hosts.family(7, &[0, 1, 2]);
    let founder = hosts.guest(0, family, 7, 0);
    let far = hosts.guest(2, family, 7, first_place(2));
    let honest = hosts.guest(1, family, 7, first_place(1));
    assert!(hear_each_other(&honest, &far) && hear_each_other(&honest, &founder));
    // A host that lets its VMs speak as others: the founder, a place it was not
    // lent, one of the very host that hears it.
    for member in [0, first_place(1) - 1, first_place(2), first_place(2) + 1] {
        let liar = hosts.on(1, async move |networks| {
            let liar = Guest::new(&networks, family, 7, member).await;
            liar.open(&networks).await;
            liar
        });
        let lie = liar.packet_to(&far);
        liar.send(&lie);
        assert!(far.misses(&lie), "as {member}");
    }
    let (own, founders) = (honest.address, founder.address);
    for lie in [
        ipv4(far.address.mac, own.mac, founders.ip, far.address.ip),
        ipv4(far.address.mac, founders.mac, own.ip, far.address.ip),
        ethernet(far.address.mac, own.mac, 0x86dd, &[0x60; 46]),
    ] {
        hosts.forge(1, 2, 7, &lie);
        assert!(far.misses(&lie), "{lie:02x?}");
    }
    let mut lie = arp(own.mac, founders.mac, own.ip, far.address.ip);
    hosts.forge(1, 2, 7, &lie);
    assert!(far.misses(&lie), "another's MAC");
    lie = arp(own.mac, own.mac, founders.ip, far.address.ip);
    hosts.forge(1, 2, 7, &lie);
    assert!(far.misses(&lie), "another's address");
    let honest = honest.packet_to(&far);
    hosts.forge(1, 2, 7, &honest);
    assert!(far.receives(&honest), "or this test proves nothing");
}

#[test]
fn who_is_not_in_the_family_is_not_heard_in_it() {
    let hosts = Stations::new(3);
    let ours = hosts.family(7, &[0, 1]);
    let theirs = hosts.family(8, &[0, 1, 2]);
    let founder = hosts.guest(0, ours, 7, 0);
    let clone = hosts.guest(1, ours, 7, first_place(1));
    let stranger = hosts.guest(1, theirs, 8, first_place(1));
    let packet = clone.packet_to(&founder);
    hosts.forge(2, 0, 7, &packet);
    assert!(founder.misses(&packet), "a host that is not in it");
    hosts.forge(1, 0, 8, &packet);
    assert!(founder.misses(&packet), "another family's number");
    let packet = ipv4(
        founder.address.mac,
        stranger.address.mac,
        stranger.address.ip,
        founder.address.ip,
    );
    stranger.send(&packet);
    hosts.forge(1, 0, 7, &packet);
    assert!(founder.misses(&packet), "a VM of another family");
    assert!(
        hear_each_other(&founder, &clone),
        "or this test proves nothing"
    );
}

#[test]
fn no_host_is_reached_from_another_through_a_family() {
    let hosts = Stations::new(2);
    let family = hosts.family(7, &[0, 1]);
    let founder = hosts.guest(0, family, 7, 0);
    let clone = hosts.guest(1, family, 7, first_place(1));
    let gateway = Subnet::of(7).expect("room").gateway();
    let heard = hosts.on(0, async move |_| {
        let socket = UdpSocket::bind(("0.0.0.0", 9)).expect("bound");
        socket.set_nonblocking(true).expect("set");
        socket
    });
    let mac = Subnet::of(7).expect("room").gateway_mac();
    let packet = ipv4(mac, clone.address.mac, clone.address.ip, gateway);
    hosts.forge(1, 0, 7, &packet);
    clone.send(&packet);
    assert!(founder.misses(&packet));
    assert!(heard.recv(&mut [0; 64]).is_err());
    assert!(
        hear_each_other(&founder, &clone),
        "or this test proves nothing"
    );
}

#[test]
fn what_is_too_large_is_told_what_fits_or_arrives_in_pieces() {
    let hosts = Stations::new(2);
    let family = hosts.family(7, &[0, 1]);
    let founder = hosts.guest(0, family, 7, 0);
    let clone = hosts.guest(1, family, 7, first_place(1));
    let (from, to) = (founder.address, clone.address);
    let ports = [from, to].map(|it| SocketAddrV4::new(it.ip, 9));
    // 1500 bytes with both headers, as much as a guest sends.
    let whole = datagram(to.mac, from.mac, ports[0], ports[1], &[7; 1472]);
    founder.send(&whole);
    assert!(clone.receives(&whole), "it may be cut into pieces");
    let mut uncut = whole;
    uncut[20] = 0x40;
    uncut[24..26].fill(0);
    let sum = checksum(&uncut[14..34]);
    uncut[24..26].copy_from_slice(&sum.to_be_bytes());
    founder.send(&uncut);
    let told = |frame: &[u8]| {
        // Destination unreachable: fragmentation needed, and 1450 would do.
        frame.get(23) == Some(&1)
            && frame.get(34..36) == Some(&[3, 4])
            && frame.get(40..42) == Some(&1450u16.to_be_bytes())
    };
    assert!(founder.waits(PATIENCE, told));
    assert!(!clone.waits(SILENCE, |frame| frame == uncut));
}

#[test]
fn places_move_between_hosts_and_the_next_daemon_goes_on() {
    let hosts = Stations::new(3);
    let family = hosts.family(7, &[0, 1, 2]);
    let founder = hosts.guest(0, family, 7, 0);
    let clone = hosts.guest(1, family, 7, first_place(1));
    assert!(hear_each_other(&founder, &clone));
    hosts.restart(0);
    let packet = clone.packet_to(&founder);
    clone.send(&packet);
    assert!(
        founder.misses(&packet),
        "nobody has told it of another host"
    );
    let (vm, address) = (founder.vm, founder.address);
    hosts.on(0, async move |networks| {
        networks.admit(&[(vm, address)]).await.expect("admitted");
        let (subnet, policy) = (Subnet::of(7).expect("room"), NetworkPolicy::default());
        let restored = networks.restore_family(family, subnet, &policy, None);
        restored.await.expect("restored");
    });
    hosts.stretch(0, family, 7, span(0, &[0, 1, 2]));
    assert!(hear_each_other(&founder, &clone));
    // The second host has left: its places are the founder's host's again, where
    // there is no neighbour.
    hosts.stretch(0, family, 7, span(0, &[0, 2]));
    clone.send(&packet);
    assert!(founder.misses(&packet));
    let answer = founder.packet_to(&clone);
    founder.send(&answer);
    assert!(clone.misses(&answer));
    let third = hosts.guest(2, family, 7, first_place(2));
    assert!(
        hear_each_other(&founder, &third),
        "the others are still there"
    );
    hosts.stretch(0, family, 7, span(0, &[0, 1, 2]));
    assert!(hear_each_other(&founder, &clone), "and back");
    assert_eq!(place(7, 0), founder.address);
}

#[test]
fn a_host_whose_port_a_program_has_says_so_and_is_joined_once_that_has_gone() {
    let hosts = Stations::new(2);
    let family = hosts.family(7, &[1]);
    let program = hosts.on(0, async move |networks| {
        let program = UdpSocket::bind(("0.0.0.0", 4789)).expect("bound");
        let subnet = Subnet::of(7).expect("room");
        let policy = NetworkPolicy::default();
        let made = networks.create_family(family, subnet, &policy, None);
        made.await.expect("a family");
        let stretched = networks.stretch(family, subnet, &span(0, &[0, 1])).await;
        let error = stretched.expect_err("the port is taken");
        assert!(
            error.remedy().is_some_and(|it| it.contains("4789")),
            "{error}"
        );
        program
    });
    drop(program);
    hosts.on(0, async move |networks| {
        let (subnet, span) = (Subnet::of(7).expect("room"), span(0, &[0, 1]));
        until(async || networks.stretch(family, subnet, &span).await.is_ok()).await;
    });
    hosts.stretch(1, family, 7, span(1, &[0, 1]));
    let founder = hosts.guest(0, family, 7, 0);
    let clone = hosts.guest(1, family, 7, first_place(1));
    assert!(hear_each_other(&founder, &clone));
}

#[test]
fn nothing_of_a_tunnel_is_left_when_its_family_ends() {
    let hosts = Stations::new(2);
    let family = hosts.family(7, &[0, 1]);
    let links = |host| hosts.on(host, async |networks| networks.links().expect("listed"));
    assert!(links(0).contains(&Link::Tunnel(family)));
    for host in [0, 1] {
        hosts.on(host, async move |networks| {
            let again = networks.remove_family(family).await;
            again.expect("removed");
            until(async || networks.links().expect("listed").is_empty()).await;
            networks.remove_rules().await.expect("removed");
        });
    }
    let tables = hosts.on(0, async |_| {
        let listed = std::process::Command::new("nft")
            .args(["list", "tables"])
            .output();
        listed.expect("nft").stdout
    });
    assert_eq!(String::from_utf8_lossy(&tables), "");
}
