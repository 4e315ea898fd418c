//! Measures the costs on this machine, in numbers for the documents: not a
//! test.

use crate::hosts::Hosts;
use crate::link::LinkFaults;
use crate::serving::{Serving, Way, until};
use forkyard_transfer::{Complete, Push};
use forkyard_types::PageNo;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// `cargo test --release -p forkyard-transfer --test needs_root -- --ignored --nocapture --test-threads 1`
#[test]
#[ignore = "prints figures"]
fn latency_of_a_page() {
    let hosts = Hosts::bridged(2);
    let at = SocketAddr::new(hosts.address(0), 5000);
    // The same bytes, there and back: 130 to ask, and four packets to answer, as a
    // page that does not pack takes.
    hosts.on(0, move || {
        let socket = UdpSocket::bind(at).expect("bound");
        std::thread::spawn(move || {
            let mut buffer = [0; 2000];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                if length == 1 {
                    return;
                }
                for _ in 0..4 {
                    socket.send_to(&[0; 1100], from).expect("sent");
                }
            }
        });
    });
    let local = SocketAddr::new(hosts.address(1), 0);
    let mut echoes = hosts.on(1, move || {
        let socket = UdpSocket::bind(local).expect("bound");
        socket.connect(at).expect("connected");
        let echo = || {
            let begun = Instant::now();
            socket.send(&[0; 130]).expect("sent");
            for _ in 0..4 {
                socket.recv(&mut [0; 2000]).expect("answered");
            }
            begun.elapsed()
        };
        let echoes: Vec<_> = (0..3000).map(|_| echo()).collect();
        socket.send(&[0]).expect("sent");
        echoes
    });
    let serving = Serving::start(&hosts, Way::unicast(20_000));
    let (client, _) = serving.client(&hosts, 1);
    client.fetch(PageNo(0)).expect("fetched");
    // Pages that do not pack.
    let plain = (1..20_000).filter(|page| page % 7 != 0 && page % 3 != 0);
    let mut fetches: Vec<_> = plain
        .take(3000)
        .map(|page| {
            let begun = Instant::now();
            client.fetch(PageNo(page)).expect("fetched");
            begun.elapsed()
        })
        .collect();
    for (name, times) in [
        ("echo of the same size", &mut echoes),
        ("page", &mut fetches),
    ] {
        times.sort_unstable();
        let at = |percent: usize| times[times.len() * percent / 100];
        println!(
            "{name}: median {:?}, 90 % {:?}, 99 % {:?}",
            at(50),
            at(90),
            at(99)
        );
    }
}

#[test]
#[ignore = "prints figures"]
fn pages_sent_to_many() {
    println!("clients  way        pages sent  pushed  lockstep  bytes sent  took");
    for clients in [1, 2, 4, 7] {
        for (name, group, push) in [
            ("unicast", None, Push::Nothing),
            ("multicast", Some(crate::serving::GROUP), Push::Nothing),
            ("push", Some(crate::serving::GROUP), Push::Everything),
        ] {
            let hosts = Hosts::bridged(clients + 1);
            let way = Way {
                group,
                push,
                ..Way::multicast(8000, usize::from(clients))
            };
            let serving = Serving::start(&hosts, way);
            let channel = serving.key.channel();
            let all: Vec<_> = (1..=clients).map(|n| serving.client(&hosts, n)).collect();
            until("all are in", || {
                serving.server.clients(channel) == usize::from(clients)
            });
            std::thread::sleep(Duration::from_millis(250));
            let begun = Instant::now();
            for (client, _) in &all {
                client.complete(Complete::Yes);
                client.fetch(PageNo(1)).expect("fetched");
            }
            for (client, _) in &all {
                until("complete", || client.is_complete());
            }
            let took = begun.elapsed();
            let sent = serving.server.stats(channel).expect("served");
            println!(
                "{clients:7}  {name:9}  {:10}  {:6}  {:8}  {:10}  {took:.0?}",
                sent.pages, sent.pushed, sent.lockstep, sent.bytes
            );
        }
    }
}

#[test]
#[ignore = "prints figures"]
fn cost_of_loss() {
    for loss in [0.0, 1.0, 3.0] {
        let network = LinkFaults {
            rate: 30_000_000,
            queue: Duration::from_millis(10),
            delay: Duration::from_millis(1),
            loss,
            ..LinkFaults::default()
        };
        let hosts = Hosts::linked(4, network);
        let serving = Serving::start(&hosts, Way::multicast(16_000, 3));
        let all: Vec<_> = (1..4).map(|n| serving.client(&hosts, n)).collect();
        until("all are in", || {
            serving.server.clients(serving.key.channel()) == 3
        });
        std::thread::sleep(Duration::from_millis(250));
        let begun = Instant::now();
        all.iter()
            .for_each(|(client, _)| client.complete(Complete::Yes));
        for (client, _) in &all {
            until("complete", || client.is_complete());
        }
        let bytes = hosts.link().bytes();
        println!(
            "loss {loss} %: {:?}, {} MB on the link",
            begun.elapsed(),
            bytes / 1_000_000
        );
    }
}
