//! Tests of addresses that VMs have outside.

use crate::{
    beyond::{PORT, at, heard},
    guest::{Guest, PATIENCE, SILENCE, alone, checksum, ethernet, family_with, until},
};
use forkyard_e2e::{
    Outside,
    outside::{HOST, NEIGHBOUR, PRIVATE, SERVER},
};
use forkyard_network::{NetworkError, Networks, Subnet, Unfit};
use forkyard_types::{NetworkPolicy, Publish, WayOut};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    process::Command,
    time::Duration,
};

/// One of the network that the host is in, and one that is routed to it.
const NEAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);
const FAR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

fn lead(word: &str) -> Publish {
    word.parse().expect("a lead")
}

fn policy(out: WayOut, words: &[&str]) -> NetworkPolicy {
    NetworkPolicy {
        out,
        publish: words.iter().map(|word| lead(word)).collect(),
        ..NetworkPolicy::default()
    }
}

/// The cable, with a route for what is far.
fn outside() -> Outside {
    let outside = Outside::join();
    outside.learn_route(FAR, 32);
    outside
}

fn client(outside: &Outside, address: Ipv4Addr, port: u16) -> UdpSocket {
    outside.within(move || UdpSocket::bind((address, port)).expect("bound"))
}

/// A question of a client at an address is heard by the guest, and answered from there.
fn is_answered(client: &UdpSocket, to: Ipv4Addr, guest: &Guest) -> SocketAddrV4 {
    client.send_to(b"question", at(to)).expect("sent");
    let (from, _) = guest.hears(PORT, PATIENCE).expect("it is led there");
    guest.sends_out(PORT, from, b"answer");
    let answered = heard(client, b"answer", PATIENCE);
    assert_eq!(answered, Some(SocketAddr::from(at(to))));
    from
}

fn is_on(address: Ipv4Addr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// MAC that is known outside for an address.
fn known_outside(outside: &Outside, address: Ipv4Addr) -> Option<String> {
    let table = outside.within(|| std::fs::read_to_string("/proc/thread-self/net/arp"));
    let table = table.expect("read");
    let line = table
        .lines()
        .find(|line| line.split_whitespace().next() == Some(&address.to_string()))?;
    line.split_whitespace().nth(3).map(str::to_owned)
}

async fn freed(networks: &Networks, word: &str) {
    until(async || networks.take_ports(&[lead(word)]).is_ok()).await;
}

#[test]
fn a_vm_is_reached_by_its_address_and_seen_with_it_outside_and_its_clone_is_not() {
    alone(|networks| async move {
        let outside = outside();
        let client = client(&outside, NEIGHBOUR, 4000);
        let server = outside.within(|| UdpSocket::bind((SERVER, PORT)).expect("bound"));
        for (number, ip, word) in [
            (0, NEAR, "192.0.2.7/bridge"),
            (1, FAR, "203.0.113.7/routed"),
        ] {
            let [vm, clone] = family_with(
                &networks,
                number,
                policy(WayOut::Nat, &[word, "9000:1/udp"]),
            )
            .await;
            vm.gateway();
            let from = is_answered(&client, ip, &vm);
            assert_eq!(*from.ip(), NEIGHBOUR, "clients have their own addresses");
            for (guest, seen) in [(&vm, ip), (&clone, HOST)] {
                guest.sends_out(1000, at(SERVER), b"out");
                let from = heard(&server, b"out", PATIENCE).expect("it gets out");
                assert_eq!(from.ip(), seen);
            }
            // A port of all of the host's addresses is none of this one's.
            client.send_to(b"port", (ip, 9000)).expect("sent");
            assert!(vm.hears(9000, PATIENCE).is_some());
            networks.remove_family(vm.family).await.expect("removed");
            assert!(!is_on(ip), "it goes with its family");
            freed(&networks, word).await;
        }
    });
}

#[test]
fn two_vms_of_a_family_have_an_address_each_which_come_and_go_while_they_run() {
    alone(|networks| async move {
        let outside = outside();
        let [one, two] = family_with(&networks, 0, policy(WayOut::None, &[])).await;
        for (guest, word) in [(&one, "192.0.2.7/bridge"), (&two, "203.0.113.7/routed")] {
            let leads = [lead(word)];
            let taken = networks.take_ports(&leads).expect("free");
            let published = networks.publish(guest.family, guest.address.ip, &leads, taken);
            published.await.expect("led");
            guest.gateway();
        }
        let near = client(&outside, NEIGHBOUR, 4000);
        is_answered(&near, NEAR, &one);
        is_answered(&near, FAR, &two);
        // They may be reached, not reach.
        one.sends_out(1000, at(SERVER), b"out");
        let server = outside.within(|| UdpSocket::bind((SERVER, PORT)).expect("bound"));
        assert_eq!(heard(&server, b"out", SILENCE), None);
        let shut = networks.unpublish(one.family, one.address.ip, &[]).await;
        shut.expect("closed");
        assert!(!is_on(NEAR) && is_on(FAR));
        let again = client(&outside, NEIGHBOUR, 4001);
        again.send_to(b"late", at(NEAR)).expect("sent");
        assert_eq!(one.hears(PORT, SILENCE), None);
        is_answered(&again, FAR, &two);
        freed(&networks, "192.0.2.7/bridge").await;
    });
}

#[test]
fn the_host_its_programs_and_other_families_reach_it_as_far_as_they_may_reach_anything_there() {
    alone(|networks| async move {
        let _outside = outside();
        let [vm, sibling] =
            family_with(&networks, 0, policy(WayOut::None, &["203.0.113.7/routed"])).await;
        let [free] = family_with(&networks, 1, policy(WayOut::Nat, &[])).await;
        let [own] = family_with(&networks, 2, policy(WayOut::Nat, &["192.0.2.7/bridge"])).await;
        let [shut] = family_with(&networks, 3, policy(WayOut::None, &["9001:1/udp"])).await;
        let mut denied = policy(WayOut::Nat, &[]);
        denied.deny = vec!["203.0.113.0/24".parse().expect("a network")];
        let [denied] = family_with(&networks, 4, denied).await;
        for guest in [&vm, &sibling, &free, &own, &shut, &denied] {
            guest.gateway();
        }
        let here = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bound");
        let from = is_answered(&here, FAR, &vm);
        assert_eq!(
            *from.ip(),
            vm.gateway().1,
            "the host is not taken for the VM"
        );
        let gateway = vm.gateway().1;
        // A kernel that shows bridged frames to IPv4's rules leads a sibling's on within the bridge.
        let bridged = sibling.address.ip;
        for (guest, seen) in [
            (&sibling, [gateway, bridged]),
            (&free, [gateway; 2]),
            (&own, [NEAR; 2]),
        ] {
            guest.sends_out(1000, at(FAR), b"question");
            let (from, _) = vm.hears(PORT, PATIENCE).expect("it is led there");
            assert!(seen.contains(from.ip()), "{from}");
            vm.sends_out(PORT, from, b"answer");
            let (from, _) = guest.hears(1000, PATIENCE).expect("answered");
            assert_eq!(from, at(FAR));
        }
        for guest in [&shut, &denied] {
            guest.sends_out(1000, at(FAR), b"question");
            assert_eq!(vm.hears(PORT, SILENCE), None);
        }
        // By the address that it has in its family, it is as far as ever.
        free.sends_out(1001, at(vm.address.ip), b"question");
        assert_eq!(vm.hears(PORT, SILENCE), None);
        // A connection that was open is cut with what it was opened by.
        let closed = networks.unpublish(vm.family, vm.address.ip, &[]).await;
        closed.expect("closed");
        free.sends_out(1000, at(FAR), b"question");
        assert_eq!(vm.hears(PORT, SILENCE), None);
    });
}

#[test]
fn an_address_outlives_its_daemon_and_the_host_answers_nothing_there_meanwhile() {
    alone(|networks| async move {
        let outside = outside();
        let words = ["192.0.2.7/bridge"];
        let [vm] = family_with(&networks, 0, policy(WayOut::Nat, &words)).await;
        drop(networks);
        let networks = crate::lifecycle::opened().await;
        let host = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).expect("bound");
        let early = client(&outside, NEIGHBOUR, 4000);
        early.send_to(b"early", at(NEAR)).expect("sent");
        assert_eq!(heard(&host, b"early", SILENCE), None);
        early.send_to(b"host", at(HOST)).expect("sent");
        assert!(
            heard(&host, b"host", PATIENCE).is_some(),
            "or this test proves nothing"
        );
        let admitted = networks.admit(&[(vm.vm, vm.address)]).await;
        admitted.expect("admitted");
        let subnet = Subnet::of(0).expect("room");
        let policy = policy(WayOut::Nat, &words);
        let taken = networks.take_ports(&policy.publish).expect("free");
        let restored = networks
            .restore_family(vm.family, subnet, &policy, Some(taken))
            .await;
        restored.expect("restored");
        vm.gateway();
        is_answered(&client(&outside, NEIGHBOUR, 4001), NEAR, &vm);
        // One that the next daemon knows nothing of goes.
        drop(networks);
        let networks = crate::lifecycle::opened().await;
        let bare = NetworkPolicy {
            out: WayOut::Nat,
            ..NetworkPolicy::default()
        };
        let restored = networks.restore_family(vm.family, subnet, &bare, None);
        restored.await.expect("restored");
        assert!(!is_on(NEAR));
    });
}

#[test]
fn an_address_leads_on_once_rules_that_were_flushed_are_back() {
    alone(|networks| async move {
        let outside = outside();
        let words = ["192.0.2.7/bridge"];
        let [vm] = family_with(&networks, 0, policy(WayOut::Nat, &words)).await;
        let mut watch = networks.watch().expect("the first to ask");
        let flushed = Command::new("nft").args(["flush", "ruleset"]).status();
        assert!(flushed.expect("nft").success());
        until(async || {
            let commits = watch.next().await.expect("notices");
            networks.mend(&commits).await.expect("mended")
        })
        .await;
        vm.gateway();
        is_answered(&client(&outside, NEIGHBOUR, 4000), NEAR, &vm);
    });
}

/// Tells whether a TCP packet to a port comes to a raw socket.
fn comes(socket: &Socket, port: u16, within: Duration) -> bool {
    socket.0.set_read_timeout(Some(within)).expect("set");
    let mut packet = [0; 256];
    while let Ok(length) = socket.0.recv(&mut packet) {
        if length >= 40 && packet[22..24] == port.to_be_bytes() {
            return true;
        }
    }
    false
}

/// A raw socket for TCP. The standard library reads any socket of datagrams.
struct Socket(UdpSocket);

impl Socket {
    fn open(outside: &Outside) -> Self {
        let raw = outside.within(|| {
            let kind = (SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Tcp);
            socket(AddressFamily::Inet, kind.0, kind.1, kind.2).expect("a raw socket")
        });
        Self(raw.into())
    }
}

/// A TCP packet with these flags, as a guest sends it out.
fn tcp(guest: &Guest, to: Ipv4Addr, port: u16, flags: u8) {
    let (mac, _) = guest.gateway();
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
    packet.extend(guest.address.ip.octets());
    packet.extend(to.octets());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut segment = [&[3, 232], &port.to_be_bytes()[..], &[0; 8]].concat();
    segment.extend([0x50, flags, 1, 0, 0, 0, 0, 0]);
    let pseudo = [&packet[12..20], &[0, 6, 0, 20], &segment].concat();
    segment[16..18].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    packet.extend(segment);
    guest.send(&ethernet(mac, guest.address.mac, 0x0800, &packet));
}

#[test]
fn a_packet_of_no_connection_gets_out_nowhere() {
    const SYN: u8 = 2;
    alone(|networks| async move {
        let outside = outside();
        let [vm] = family_with(&networks, 0, policy(WayOut::Nat, &[])).await;
        let [other] = family_with(&networks, 1, policy(WayOut::Nat, &[])).await;
        let raw = Socket::open(&outside);
        for (to, port) in [(PRIVATE, 81), (SERVER, 82)] {
            // No flags at all: connection tracking takes it for nothing.
            tcp(&vm, to, port, 0);
            assert!(!comes(&raw, port, SILENCE), "{to}");
        }
        tcp(&vm, other.address.ip, 80, 0);
        assert!(!other.waits(SILENCE, |frame| frame.get(23) == Some(&6)));
        tcp(&vm, SERVER, 83, SYN);
        assert!(comes(&raw, 83, PATIENCE), "or this test proves nothing");
        tcp(&vm, PRIVATE, 84, SYN);
        assert!(!comes(&raw, 84, SILENCE));
    });
}

#[test]
fn an_address_that_another_program_takes_from_the_host_is_missed_and_put_back() {
    alone(|networks| async move {
        let outside = outside();
        let words = ["203.0.113.7/routed"];
        let [vm] = family_with(&networks, 0, policy(WayOut::Nat, &words)).await;
        assert!(networks.lost_addresses().expect("looked at").is_empty());
        let bridge = forkyard_network::Link::Bridge(vm.family).name();
        let words = ["addr", "del", "203.0.113.7/32", "dev", &bridge];
        let gone = Command::new("ip").args(words).status();
        assert!(gone.expect("ip").success() && !is_on(FAR));
        let lost = networks.lost_addresses().expect("looked at");
        assert_eq!(lost.first().map(|own| own.ip()), Some(FAR));
        networks.hold_again().await.expect("put back");
        assert!(networks.lost_addresses().expect("looked at").is_empty());
        vm.gateway();
        is_answered(&client(&outside, NEIGHBOUR, 4000), FAR, &vm);
    });
}

#[test]
fn neighbours_that_know_another_place_of_it_are_told() {
    alone(|networks| async move {
        let outside = outside();
        let stale = "02:00:00:00:00:09";
        let entry = "neigh replace 192.0.2.7 lladdr 02:00:00:00:00:09 dev in0 nud stale".split(' ');
        let noted = outside.within(move || Command::new("ip").args(entry).status());
        assert!(noted.expect("ip").success());
        assert_eq!(known_outside(&outside, NEAR).as_deref(), Some(stale));
        let [_vm] = family_with(&networks, 0, policy(WayOut::None, &["192.0.2.7/bridge"])).await;
        until(async || {
            let known = known_outside(&outside, NEAR);
            known.is_some_and(|it| it != stale)
        })
        .await;
    });
}

#[test]
fn what_no_vm_of_this_host_can_have_is_refused_with_the_reason() {
    alone(|networks| async move {
        let _outside = outside();
        let why = |words: &[&str]| {
            let leads: Vec<_> = words.iter().map(|word| lead(word)).collect();
            match networks.take_ports(&leads) {
                Err(NetworkError::Address { source, .. }) => source,
                other => panic!("{words:?}: {other:?}"),
            }
        };
        let up0 = || "up0".to_owned();
        assert_eq!(why(&["192.0.2.1/bridge"]), Unfit::OfHost { link: up0() });
        assert_eq!(
            why(&["192.0.2.255/bridge"]),
            Unfit::OfNetwork { link: up0() }
        );
        assert_eq!(why(&["203.0.113.7/bridge"]), Unfit::NoUplink);
        assert_eq!(why(&["10.128.0.2/routed"]), Unfit::OfGuests);
        let [_vm] = family_with(&networks, 0, policy(WayOut::None, &["192.0.2.7/bridge"])).await;
        assert_eq!(why(&["192.0.2.7/bridge"]), Unfit::Taken);
        assert_eq!(why(&["192.0.2.8/bridge", "192.0.2.7/routed"]), Unfit::Taken);
        networks
            .take_ports(&[lead("192.0.2.8/bridge")])
            .expect("free again");
        let near = |word| [lead(word)];
        let asked = networks.ask_neighbours(&near("192.0.2.2/bridge")).await;
        let Err(NetworkError::Address { source, .. }) = asked else {
            panic!("{asked:?}");
        };
        assert_eq!(source, Unfit::OfNeighbour { link: up0() });
        for free in ["192.0.2.8/bridge", "203.0.113.7/routed"] {
            networks.ask_neighbours(&near(free)).await.expect("free");
        }
        // Nor a port of it.
        let port = networks.take_ports(&[lead("192.0.2.7:80:80")]);
        assert!(port.is_err_and(|error| error.is_conflict()));
        let ignore = "/proc/sys/net/ipv4/conf/up0/arp_ignore";
        std::fs::write(ignore, "1").expect("written");
        assert_eq!(why(&["192.0.2.8/bridge"]), Unfit::Silent { link: up0() });
    });
}
