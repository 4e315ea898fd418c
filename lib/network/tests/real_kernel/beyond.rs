//! Tests of traffic that leaves a family's network, and that gets in.

use crate::guest::{Guest, PATIENCE, SILENCE, alone, datagram, family, family_with, until};
use forkyard_e2e::{
    Outside,
    outside::{HOST, NEIGHBOUR, PRIVATE, SERVER},
};
use forkyard_network::{Closed, NetworkError, Networks, Ports, Subnet};
use forkyard_types::{NetworkPolicy, Publish, Transport, WayOut};
use std::{
    collections::BTreeSet,
    fs,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    time::{Duration, Instant},
};

pub(crate) const PORT: u16 = 7777;

pub(crate) fn nat() -> NetworkPolicy {
    NetworkPolicy {
        out: WayOut::Nat,
        ..NetworkPolicy::default()
    }
}

fn publish(words: &[&str]) -> NetworkPolicy {
    let ports = words.iter().map(|word| word.parse().expect("a port"));
    NetworkPolicy {
        publish: ports.collect(),
        ..NetworkPolicy::default()
    }
}

pub(crate) fn listen(outside: &Outside, address: Ipv4Addr) -> UdpSocket {
    outside.within(move || bound(address))
}

fn bound(address: Ipv4Addr) -> UdpSocket {
    UdpSocket::bind((address, PORT)).expect("bound")
}

/// Returns the sender of this datagram to a socket, if it arrives.
pub(crate) fn heard(socket: &UdpSocket, payload: &[u8], within: Duration) -> Option<SocketAddr> {
    socket.set_read_timeout(Some(within)).expect("set");
    let mut bytes = [0; 2048];
    while let Ok((length, from)) = socket.recv_from(&mut bytes) {
        if &bytes[..length] == payload {
            return Some(from);
        }
    }
    None
}

/// Tells whether a guest is told that the way is shut: ICMP, administratively
/// prohibited.
pub(crate) fn is_refused(guest: &Guest) -> bool {
    guest.waits(PATIENCE, |frame| {
        frame.get(23) == Some(&1) && frame.get(34..36) == Some(&[3, 13])
    })
}

/// Ports that were taken, once they are free again.
async fn take_freed(networks: &Networks, wanted: &[Publish]) -> Ports {
    let mut taken = None;
    until(async || {
        taken = networks.take_ports(wanted).ok();
        taken.is_some()
    })
    .await;
    taken.expect("taken")
}

pub(crate) fn at(address: Ipv4Addr) -> SocketAddrV4 {
    SocketAddrV4::new(address, PORT)
}

#[test]
fn a_guest_with_a_way_out_is_answered_from_the_internet_and_seen_there_as_its_host() {
    alone(|networks| async move {
        let outside = Outside::join();
        let [parent, clone] = family_with(&networks, 0, nat()).await;
        let server = listen(&outside, SERVER);
        for (port, guest) in [(1000, &parent), (1001, &clone)] {
            guest.sends_out(port, at(SERVER), b"question");
            let from = heard(&server, b"question", PATIENCE).expect("it gets out");
            assert_eq!(from.ip(), HOST);
            server.send_to(b"answer", from).expect("sent");
            let (from, answer) = guest.hears(port, PATIENCE).expect("and is answered");
            assert_eq!((from, answer.as_slice()), (at(SERVER), &b"answer"[..]));
        }
    });
}

#[test]
fn a_way_out_leads_to_no_private_network_no_other_family_and_not_to_the_host() {
    alone(|networks| async move {
        let outside = Outside::join();
        let [guest] = family_with(&networks, 0, nat()).await;
        let [other] = family_with(&networks, 1, nat()).await;
        let private = listen(&outside, PRIVATE);
        let host = bound(Ipv4Addr::UNSPECIFIED);
        guest.sends_out(1000, at(PRIVATE), b"private");
        assert!(is_refused(&guest));
        assert_eq!(heard(&private, b"private", SILENCE), None);
        let (_, gateway) = guest.gateway();
        for own in [gateway, HOST, Ipv4Addr::LOCALHOST] {
            guest.sends_out(1000, at(own), b"host");
            assert_eq!(heard(&host, b"host", SILENCE), None, "{own}");
        }
        guest.sends_out(1000, at(other.address.ip), b"other");
        assert_eq!(other.hears(PORT, SILENCE), None);
        let server = listen(&outside, SERVER);
        guest.sends_out(1000, at(SERVER), b"server");
        assert!(
            heard(&server, b"server", PATIENCE).is_some(),
            "or this test proves nothing"
        );
    });
}

#[test]
fn an_allow_list_is_all_that_can_be_reached_private_or_not() {
    alone(|networks| async move {
        let outside = Outside::join();
        let mut policy = nat();
        policy.allow = vec![
            format!("{PRIVATE}/32").parse().expect("a network"),
            format!("{NEIGHBOUR}:9").parse().expect("a port"),
        ];
        let [guest] = family_with(&networks, 0, policy).await;
        let [server, private, neighbour] =
            [SERVER, PRIVATE, NEIGHBOUR].map(|address| listen(&outside, address));
        guest.sends_out(1000, at(PRIVATE), b"allowed");
        assert!(heard(&private, b"allowed", PATIENCE).is_some());
        for (shut, address) in [(server, SERVER), (neighbour, NEIGHBOUR)] {
            guest.sends_out(1000, at(address), b"shut");
            assert!(is_refused(&guest));
            assert_eq!(heard(&shut, b"shut", SILENCE), None);
        }
    });
}

#[test]
fn a_policy_that_changes_ends_connections_to_what_may_be_reached_no_more_and_no_others() {
    alone(|networks| async move {
        let outside = Outside::join();
        let allowing = |allow: &[Ipv4Addr], deny: &[Ipv4Addr]| {
            let words =
                |list: &[Ipv4Addr]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
            NetworkPolicy {
                allow: words(allow)
                    .iter()
                    .map(|it| it.parse().expect("a network"))
                    .collect(),
                deny: words(deny)
                    .iter()
                    .map(|it| it.parse().expect("a network"))
                    .collect(),
                ..nat()
            }
        };
        let wide = allowing(&[SERVER, PRIVATE], &[]);
        let [guest, clone] = family_with(&networks, 0, wide.clone()).await;
        let [server, private] = [SERVER, PRIVATE].map(|address| listen(&outside, address));
        let opened = |port, to, socket: &UdpSocket| {
            guest.sends_out(port, at(to), b"open");
            heard(socket, b"open", PATIENCE).expect("it gets out")
        };
        let to_server = opened(1000, SERVER, &server);
        let to_private = opened(1001, PRIVATE, &private);
        let family = guest.family;

        networks
            .set_way(family, &allowing(&[SERVER], &[]))
            .await
            .expect("narrowed");
        // A guest that only listens hears what it may still reach, and nothing else.
        server.send_to(b"more", to_server).expect("sent");
        assert!(guest.hears(1000, PATIENCE).is_some());
        private.send_to(b"more", to_private).expect("sent");
        assert_eq!(guest.hears(1001, SILENCE), None);
        for guest in [&guest, &clone] {
            guest.sends_out(1001, at(PRIVATE), b"shut");
            assert!(is_refused(guest));
        }
        assert_eq!(heard(&private, b"shut", SILENCE), None);

        // What is denied is not reached though it is allowed.
        let denied = allowing(&[SERVER, PRIVATE], &[SERVER]);
        networks.set_way(family, &denied).await.expect("turned");
        opened(1001, PRIVATE, &private);
        guest.sends_out(1000, at(SERVER), b"denied");
        assert!(is_refused(&guest));
        server.send_to(b"more", to_server).expect("sent");
        assert_eq!(guest.hears(1000, SILENCE), None);

        networks
            .set_way(family, &NetworkPolicy::default())
            .await
            .expect("shut");
        guest.sends_out(1001, at(PRIVATE), b"none");
        assert!(is_refused(&guest));
        networks.set_way(family, &wide).await.expect("open again");
        opened(1000, SERVER, &server);
    });
}

#[test]
fn a_family_that_was_shut_in_is_given_a_way_out() {
    alone(|networks| async move {
        let outside = Outside::join();
        let [guest] = family(&networks, 0).await;
        let server = listen(&outside, SERVER);
        assert_eq!(networks.route(guest.family), None);
        networks.set_way(guest.family, &nat()).await.expect("open");
        let route = networks.route(guest.family).expect("a way out");
        assert_eq!(route.gateway, guest.gateway().1);
        guest.sends_out(1000, at(SERVER), b"out");
        assert!(heard(&server, b"out", PATIENCE).is_some());
        networks.remove_family(guest.family).await.expect("removed");
    });
}

#[test]
fn what_is_closed_to_guests_is_not_reached_whatever_their_family_is_allowed() {
    alone(|networks| async move {
        let outside = Outside::join();
        let allowed = format!("{PRIVATE}/32").parse().expect("a destination");
        let policy = NetworkPolicy {
            allow: vec![allowed],
            ..nat()
        };
        let [before] = family_with(&networks, 0, policy.clone()).await;
        let etcd = Closed {
            at: at(PRIVATE),
            transport: Transport::Udp,
        };
        let closed = BTreeSet::from([etcd]);
        networks.close(closed.clone()).await.expect("closed");
        let [after] = family_with(&networks, 1, policy).await;
        let server = listen(&outside, PRIVATE);
        for guest in [&before, &after] {
            guest.sends_out(1000, at(PRIVATE), b"etcd");
            assert!(is_refused(guest));
        }
        // At every address alone, and beside one of them.
        let everywhere = Closed {
            at: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, etcd.at.port()),
            ..etcd
        };
        for closed in [
            BTreeSet::from([everywhere]),
            BTreeSet::from([etcd, everywhere]),
        ] {
            networks.close(closed).await.expect("closed");
            before.sends_out(1000, at(PRIVATE), b"etcd");
            assert!(is_refused(&before));
        }
        assert_eq!(heard(&server, b"etcd", SILENCE), None);
        networks.close(BTreeSet::new()).await.expect("opened");
        before.sends_out(1000, at(PRIVATE), b"open");
        let from = heard(&server, b"open", PATIENCE);
        assert!(from.is_some(), "or this test proves nothing");
    });
}

#[test]
fn a_family_that_is_shut_in_reaches_nothing_even_where_others_have_a_way_out() {
    alone(|networks| async move {
        let outside = Outside::join();
        let [with] = family_with(&networks, 0, nat()).await;
        let [without] = family(&networks, 1).await;
        let server = listen(&outside, SERVER);
        let (mac, _) = with.gateway();
        let from = SocketAddrV4::new(without.address.ip, 1000);
        let frame = datagram(mac, without.address.mac, from, at(SERVER), b"out");
        without.send(&frame);
        assert_eq!(heard(&server, b"out", SILENCE), None);
        assert_eq!(networks.route(without.family), None);
        assert!(networks.route(with.family).is_some());
    });
}

#[test]
fn a_guest_sends_no_more_than_its_rate_and_its_siblings_have_theirs() {
    alone(|networks| async move {
        let outside = Outside::join();
        let mut policy = nat();
        policy.rate = "1mbit".parse().ok();
        let [greedy, modest] = family_with(&networks, 0, policy).await;
        let server = listen(&outside, SERVER);
        let (mac, _) = greedy.gateway();
        let from = SocketAddrV4::new(greedy.address.ip, 1000);
        let chunk = [7; 1400];
        let frame = datagram(mac, greedy.address.mac, from, at(SERVER), &chunk);
        let begun = Instant::now();
        let (mut sent, mut received) = (0, 0);
        server.set_nonblocking(true).expect("set");
        let mut bytes = [0; 2048];
        // What a full bucket holds, and what drips into it.
        let most = || (128 << 10) + 125_000 * (begun.elapsed().as_millis() as usize + 100) / 1000;
        // Far more than that, or this test proves nothing, however slowly this machine sends it.
        while begun.elapsed() < Duration::from_secs(1) || sent <= 2 * most() {
            assert!(begun.elapsed() < PATIENCE, "no more than {sent} were sent");
            greedy.send(&frame);
            sent += chunk.len();
            while let Ok((length, _)) = server.recv_from(&mut bytes) {
                received += length;
            }
        }
        server.set_nonblocking(false).expect("set");
        let most = most();
        assert!(received <= most, "{received} of {most} bytes");
        assert!(received > 0);
        modest.sends_out(1001, at(SERVER), b"modest");
        assert!(heard(&server, b"modest", PATIENCE).is_some());
    });
}

#[test]
fn a_published_port_leads_to_the_founder_from_outside_and_from_the_host_itself() {
    alone(|networks| async move {
        let outside = Outside::join();
        let words = [format!("{PORT}:80/udp"), format!("{HOST}:9999:81/udp")];
        let policy = publish(&words.each_ref().map(String::as_str));
        let [parent, clone] = family_with(&networks, 0, policy).await;
        // The gateway learns where the founder is from its question.
        parent.gateway();
        let client = listen(&outside, NEIGHBOUR);
        let local = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let here = UdpSocket::bind((HOST, 0)).expect("bound");
        for (client, to, port) in [
            (&client, (HOST, PORT), 80),
            (&local, (Ipv4Addr::LOCALHOST, PORT), 80),
            (&here, (HOST, PORT), 80),
            (&client, (HOST, 9999), 81),
        ] {
            client.send_to(b"question", to).expect("sent");
            let (from, _) = parent.hears(port, PATIENCE).expect("it is led there");
            parent.sends_out(port, from, b"answer");
            let answered = heard(client, b"answer", PATIENCE);
            assert_eq!(answered, Some(SocketAddr::from(to)));
        }
        assert_eq!(clone.hears(80, SILENCE), None);
    });
}

#[test]
fn nobody_outside_reaches_a_guest_but_by_a_published_port() {
    alone(|networks| async move {
        let outside = Outside::join();
        outside.learn_route(Ipv4Addr::new(10, 128, 0, 0), 9);
        let mut policy = publish(&["7777:80/udp"]);
        policy.out = WayOut::Nat;
        let [parent, clone] = family_with(&networks, 0, policy).await;
        let client = listen(&outside, NEIGHBOUR);
        for guest in [&parent, &clone] {
            guest.gateway();
            for port in [80, PORT] {
                client
                    .send_to(b"in", (guest.address.ip, port))
                    .expect("sent");
                assert_eq!(guest.hears(port, SILENCE), None);
            }
        }
        client.send_to(b"in", (HOST, PORT)).expect("sent");
        assert!(
            parent.hears(80, PATIENCE).is_some(),
            "or this test proves nothing"
        );
    });
}

#[test]
fn a_published_port_outlives_its_daemon_and_not_its_founder() {
    alone(|networks| async move {
        let outside = Outside::join();
        let policy = publish(&["7777:80/udp"]);
        let [parent] = family_with(&networks, 0, policy.clone()).await;
        let subnet = Subnet::of(0).expect("room");
        drop(networks);
        let networks = crate::lifecycle::opened().await;
        let admitted = networks.admit(&[(parent.vm, parent.address)]).await;
        admitted.expect("admitted");
        let ports = take_freed(&networks, &policy.publish).await;
        let restored = networks
            .restore_family(parent.family, subnet, &policy, Some(ports))
            .await;
        restored.expect("restored");
        parent.gateway();
        let client = listen(&outside, NEIGHBOUR);
        client.send_to(b"one", (HOST, PORT)).expect("sent");
        assert!(parent.hears(80, PATIENCE).is_some());
        networks
            .unpublish(parent.family, subnet.founder().ip, &[])
            .await
            .expect("closed");
        assert_eq!(networks.policy(parent.family).publish, []);
        // Another connection: what was known of the first one stays.
        let client = outside.within(|| UdpSocket::bind((NEIGHBOUR, 0)).expect("bound"));
        client.send_to(b"two", (HOST, PORT)).expect("sent");
        assert_eq!(parent.hears(80, SILENCE), None);
        // Free for others.
        take_freed(&networks, &policy.publish).await;
        networks
            .remove_family(parent.family)
            .await
            .expect("removed");
    });
}

#[test]
fn a_port_leads_to_one_vm() {
    alone(|networks| async move {
        // Without any address every one is as good as another.
        let _outside = Outside::join();
        let take = |words: &[&str]| networks.take_ports(&publish(words).publish);
        let conflict = |taken: Result<Ports, NetworkError>| taken.is_err_and(|e| e.is_conflict());
        let taken = take(&["8080:80", "127.0.0.1:8081:80"]).expect("free");
        assert!(conflict(take(&["8080:1"])));
        assert!(conflict(take(&["127.0.0.1:8080:1"])));
        assert!(conflict(take(&["8081:1"])));
        assert!(conflict(take(&["8082:1", "127.0.0.1:8082:2"])));
        let other = take(&["8080:1/udp", "8083:1"]).expect("others");
        assert!(matches!(
            take(&["192.0.2.77:80:80"]),
            Err(NetworkError::Port { .. })
        ));
        drop((taken, other));
        take_freed(&networks, &publish(&["8080:80", "8081:80"]).publish).await;
    });
}

#[test]
fn what_is_left_of_a_connection_is_no_way_out_for_the_next_family_of_the_same_addresses() {
    alone(|networks| async move {
        let outside = Outside::join();
        let server = listen(&outside, SERVER);
        let [first] = family_with(&networks, 0, nat()).await;
        first.sends_out(1000, at(SERVER), b"first");
        let from = heard(&server, b"first", PATIENCE).expect("it gets out");
        server.send_to(b"answer", from).expect("sent");
        assert!(first.hears(1000, PATIENCE).is_some());
        networks.forget(first.vm).await.expect("forgotten");
        networks.remove_family(first.family).await.expect("removed");
        drop(first);
        // Its packets are routed, but nothing new may go out.
        let [second] = family_with(&networks, 0, publish(&["1:1"])).await;
        second.sends_out(1000, at(SERVER), b"second");
        assert_eq!(heard(&server, b"second", SILENCE), None);
        server.send_to(b"late", from).expect("sent");
        assert_eq!(second.hears(1000, SILENCE), None);
    });
}

#[test]
fn the_host_passes_packets_on_only_while_a_family_needs_it() {
    const SWITCH: &str = "/proc/sys/net/ipv4/ip_forward";
    alone(|networks| async move {
        let is_on = || fs::read_to_string(SWITCH).expect("read") == "1\n";
        let [shut] = family(&networks, 0).await;
        assert!(!is_on());
        let [one] = family_with(&networks, 1, nat()).await;
        let [two] = family_with(&networks, 2, publish(&["1:1"])).await;
        networks.remove_family(one.family).await.expect("removed");
        assert!(is_on() && networks.turned_forwarding_on().await.expect("told"));
        // A daemon that dies leaves it on, and the next knows why it is.
        drop(networks);
        let networks = crate::lifecycle::opened().await;
        assert!(is_on() && networks.turned_forwarding_on().await.expect("told"));
        networks.remove_family(two.family).await.expect("removed");
        networks.remove_family(shut.family).await.expect("removed");
        networks.remove_rules().await.expect("removed");
        assert!(!is_on() && !networks.turned_forwarding_on().await.expect("told"));
        let networks = {
            drop(networks);
            crate::lifecycle::opened().await
        };
        // Where it was on already it is not ours to turn off.
        fs::write(SWITCH, "1").expect("written");
        let [one] = family_with(&networks, 1, nat()).await;
        networks.remove_family(one.family).await.expect("removed");
        networks.remove_rules().await.expect("removed");
        assert!(is_on());
    });
}
