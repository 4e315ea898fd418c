//! Tests of traffic that passes and that does not.

use crate::guest::{
    BROADCAST, Guest, PATIENCE, SILENCE, TRIES, alone, arp, arrives, datagram, ethernet, family,
    ipv4, send, tagged,
};
use forkyard_network::Link;
use forkyard_types::{Address, FamilyId, Mac};
use futures::TryStreamExt;
use nix::net::if_::if_nametoindex;
use rtnetlink::{Handle, LinkBridge, LinkUnspec, packet_route::link::LinkAttribute};
use std::net::{Ipv4Addr, SocketAddrV4};
use tokio::{net::UdpSocket, time::timeout};

#[test]
fn members_of_a_family_hear_each_other_once_their_ports_are_open() {
    alone(|networks| async move {
        let [a] = family(&networks, 0).await;
        let b = Guest::new(&networks, a.family, 0, 1).await;
        let packet = a.packet_to(&b);
        a.send(&packet);
        assert!(b.misses(&packet), "its port is shut");
        b.open(&networks).await;
        a.send(&packet);
        assert!(b.receives(&packet));
        let question = arp(b.address.mac, b.address.mac, b.address.ip, a.address.ip);
        b.send(&question);
        assert!(a.receives(&question));
    });
}

#[test]
fn nothing_a_guest_sends_before_its_port_opens_ever_arrives() {
    alone(|networks| async move {
        let [a] = family(&networks, 0).await;
        let b = Guest::new(&networks, a.family, 0, 1).await;
        let early = ipv4(BROADCAST, b.address.mac, b.address.ip, a.address.ip);
        b.send(&early);
        b.open(&networks).await;
        let later = b.packet_to(&a);
        b.send(&later);
        assert!(a.misses(&early));
        b.send(&later);
        assert!(a.receives(&later), "or this test proves nothing");
    });
}

#[test]
fn nothing_passes_between_families_however_forged() {
    alone(|networks| async move {
        let [us] = family(&networks, 0).await;
        let [them, peer] = family(&networks, 1).await;
        let (ours, theirs, peers) = (us.address, them.address, peer.address);
        for frame in [
            us.packet_to(&them),
            peer.packet_to(&them),
            ipv4(BROADCAST, ours.mac, ours.ip, theirs.ip),
            arp(ours.mac, ours.mac, ours.ip, theirs.ip),
            arp(peers.mac, peers.mac, peers.ip, theirs.ip),
        ] {
            us.send(&frame);
            assert!(them.misses(&frame));
        }
    });
}

#[test]
fn a_member_speaks_as_itself_or_not_at_all() {
    alone(|networks| async move {
        let [a, b, c] = family(&networks, 0).await;
        let honest = a.packet_to(&b);
        a.send(&honest);
        assert!(b.receives(&honest), "or this test proves nothing");
        let (own, to, other) = (a.address, b.address, c.address);
        for forged in [
            ipv4(to.mac, other.mac, other.ip, to.ip),
            ipv4(to.mac, other.mac, own.ip, to.ip),
            ipv4(to.mac, own.mac, other.ip, to.ip),
            tagged(&ipv4(to.mac, own.mac, other.ip, to.ip)),
            tagged(&ipv4(to.mac, other.mac, own.ip, to.ip)),
            arp(own.mac, own.mac, other.ip, to.ip),
            arp(own.mac, other.mac, own.ip, to.ip),
            arp(other.mac, own.mac, own.ip, to.ip),
            arp(other.mac, other.mac, other.ip, to.ip),
            ethernet(to.mac, own.mac, 0x86dd, &[0x60; 46]),
            ethernet(to.mac, own.mac, 0x88b5, &[1; 46]),
        ] {
            a.send(&forged);
            assert!(b.misses(&forged), "{forged:02x?}");
        }
    });
}

#[test]
fn no_guest_can_draw_a_siblings_frames_to_itself() {
    alone(|networks| async move {
        let [a, b, c] = family(&networks, 0).await;
        let hello = b.packet_to(&a);
        b.send(&hello);
        assert!(a.receives(&hello), "the bridge has learnt where b is");
        // Frames to these addresses a bridge keeps to itself.
        for last in 0..16 {
            let link_local = Mac([0x01, 0x80, 0xc2, 0, 0, last]);
            c.send(&ethernet(link_local, b.address.mac, 0x88cc, &[1; 46]));
        }
        let secret = a.packet_to(&b);
        a.send(&secret);
        assert!(b.receives(&secret));
        assert!(c.misses(&secret));
    });
}

#[test]
fn whoever_is_forgotten_is_not_heard() {
    alone(|networks| async move {
        let [a, b] = family(&networks, 0).await;
        let packet = a.packet_to(&b);
        networks.forget(a.vm).await.expect("forgotten");
        a.send(&packet);
        assert!(b.misses(&packet));
        let answer = b.packet_to(&a);
        b.send(&answer);
        assert!(a.receives(&answer), "the others still are");
    });
}

#[test]
fn guests_and_host_do_not_hear_each_other() {
    alone(|networks| async move {
        let [guest] = family(&networks, 0).await;
        let (host, everyone) = (Ipv4Addr::new(10, 128, 0, 1), Ipv4Addr::new(10, 128, 7, 255));
        let mac = join_as_host(guest.family, host).await;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 9))
            .await
            .expect("bound");
        socket.set_broadcast(true).expect("allowed");
        let packet = ipv4(mac, guest.address.mac, guest.address.ip, host);
        let host_hears = async |within| {
            guest.send(&packet);
            timeout(within, socket.recv(&mut [0; 64])).await.is_ok()
        };
        let guest_hears = async |within| {
            // The rules may refuse it as it leaves.
            let _ = socket.send_to(b"", (everyone, 9)).await;
            guest.waits(within, |got| got.get(26..30) == Some(&host.octets()))
        };
        assert!(!host_hears(SILENCE).await);
        assert!(!guest_hears(SILENCE).await);
        networks.remove_rules().await.expect("removed");
        assert!(host_hears(PATIENCE).await, "or this test proves nothing");
        assert!(guest_hears(PATIENCE).await, "or this test proves nothing");
    });
}

/// Port 68 to 67, by which one that knows nothing of itself asks all.
fn question(mac: Mac, chaddr: Mac) -> Vec<u8> {
    let mut payload = vec![1, 1, 6, 0, 0, 0, 0, 7];
    payload.resize(28, 0);
    payload.extend(chaddr.0);
    payload.resize(236, 0);
    payload.extend([99, 130, 83, 99, 53, 1, 1, 255]);
    let from = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68);
    let to = SocketAddrV4::new(Ipv4Addr::BROADCAST, 67);
    datagram(BROADCAST, mac, from, to, &payload)
}

/// The address that an answer to such a question offers.
fn is_offer_of(address: Address) -> impl Fn(&[u8]) -> bool {
    move |frame| {
        frame.get(34..38) == Some(&[0, 67, 0, 68])
            && frame.get(58..62) == Some(&address.ip.octets())
            && frame.get(70..76) == Some(&address.mac.0)
    }
}

#[test]
fn a_guest_without_the_agent_learns_its_address_and_no_sibling_can_ask_or_answer_for_it() {
    alone(|networks| async move {
        let [a, b] = family(&networks, 0).await;
        let ask = async |guest: &Guest, question: &[u8]| {
            guest.send(question);
            // The answer is this test's own thread's to give.
            tokio::time::sleep(SILENCE).await;
        };
        // Asked again, as a guest would: a busy host may answer late.
        let mut offered = false;
        for _ in 0..TRIES {
            ask(&a, &question(a.address.mac, a.address.mac)).await;
            offered = a.waits(SILENCE, is_offer_of(a.address));
            if offered {
                break;
            }
        }
        assert!(offered);
        // The answer went to all.
        b.waits(SILENCE, |_| false);
        ask(&b, &question(a.address.mac, a.address.mac)).await;
        assert!(!b.waits(SILENCE, is_offer_of(a.address)), "another's MAC");
        let asked = question(a.address.mac, a.address.mac);
        a.send(&asked);
        assert!(b.misses(&asked), "the question is the host's to hear");
        let from = SocketAddrV4::new(b.address.ip, 67);
        let to = SocketAddrV4::new(Ipv4Addr::BROADCAST, 68);
        let rogue = datagram(
            BROADCAST,
            b.address.mac,
            from,
            to,
            b"a rogue server's lie, sixty bytes",
        );
        b.send(&rogue);
        assert!(a.misses(&rogue));
    });
}

#[test]
fn bridges_of_others_are_left_alone() {
    alone(|networks| async move {
        let _guests: [Guest; 1] = family(&networks, 0).await;
        let netlink = netlink();
        let bridge = LinkBridge::new("br0").forward_delay(0).build();
        netlink.link().add(bridge).execute().await.expect("bridge");
        let bridge = if_nametoindex("br0").expect("there");
        let mut taps = Vec::new();
        for name in ["tap0", "tap1"] {
            taps.push(forkyard_sys_host::tap::create(name).expect("tap"));
            let plug = LinkUnspec::new_with_name(name).controller(bridge).up();
            let plugged = netlink.link().set(plug.build()).execute().await;
            plugged.expect("plugged in");
        }
        let frame = ethernet(BROADCAST, Mac([2, 0, 0, 0, 0, 1]), 0x88b5, &[1; 46]);
        send(&taps[0], &frame);
        assert!(arrives(&taps[1], PATIENCE, |got| got == frame));
    });
}

fn netlink() -> Handle {
    let (connection, netlink, _) = rtnetlink::new_connection().expect("netlink");
    tokio::spawn(connection);
    netlink
}

/// Gives the host an address on a family's bridge, as no program should.
async fn join_as_host(family: FamilyId, address: Ipv4Addr) -> Mac {
    let netlink = netlink();
    let bridge = if_nametoindex(Link::Bridge(family).name().as_str()).expect("there");
    let added = netlink.address().add(bridge, address.into(), 21);
    added.execute().await.expect("added");
    let mut links = netlink.link().get().match_index(bridge).execute();
    let link = links.try_next().await.expect("listed").expect("there");
    let mac = link.attributes.into_iter().find_map(|attribute| {
        let LinkAttribute::Address(mac) = attribute else {
            return None;
        };
        mac.try_into().ok()
    });
    Mac(mac.expect("six bytes"))
}
