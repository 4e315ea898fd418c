//! An attacker on the network that has no key, and sends what it captured or made up.

use crate::hosts::Hosts;
use crate::serving::{GROUP, Serving, Way, content, until};
use forkyard_transfer::{
    ClientId, ClientTurn, Complete, CookieSecret, EndGame, FamilyKey, ImageKey, Page, PageContent,
    PageSink, PageSource, Push, Receiver, Receiving, Run, Sender, SenderStep, ServerEpoch, To,
    Window, flow,
};
use forkyard_types::{ImageId, PageCount, PageNo};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt,
};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};
use std::ops::{Range, RangeInclusive};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PAGES: u64 = 3000;
/// Host of the attacker.
const ATTACKER: u8 = 3;
/// Of each capture, so many packets.
const ENOUGH: usize = 500;
/// Of a packet, its kind, its channel, all before its number, that, and the kinds that
/// say which run they are of.
const KIND: usize = 3;
const CHANNEL: Range<usize> = 4..12;
const NAMES: Range<usize> = 4..20;
const SEQ: Range<usize> = 20..28;
const PAGES_OF: u8 = 21;
const OF_AN_EPOCH: RangeInclusive<u8> = 19..=21;

/// Every page, and none of it right.
struct Wrong;

impl PageSource for Wrong {
    fn read(&mut self, page: PageNo, out: &mut Page) -> PageContent {
        *out = content(page);
        out.iter_mut().for_each(|byte| *byte ^= 0x55);
        PageContent::Data
    }
}

impl PageSink for Wrong {
    fn page(&mut self, _: PageNo, _: &Page) {}
    fn zeros(&mut self, _: Run) {}
}

/// Captures the packets that a server of wrong pages sends, to its one client
/// or to all.
fn capture(key: &ImageKey, group: Option<u16>) -> Vec<Vec<u8>> {
    let (mut now, pages) = (Instant::now(), PageCount(PAGES));
    let serving = forkyard_transfer::Serving {
        key: key.clone(),
        epoch: ServerEpoch(1),
        secret: CookieSecret::new([0; 32]),
        pages,
        data: pages,
        datagram: 1400,
        group,
        law: flow::FlowLaw::Delivery(flow::RateBounds::default()),
        push: Push::Nothing,
        working_set: Vec::new(),
        gather: (0, Duration::ZERO),
        disjoint: Vec::new(),
        window: Window::default(),
        end_game: EndGame::default(),
        patience: Duration::from_secs(20),
    };
    let mut sender = Sender::new(serving, now);
    let mut clients = [1, 2].map(|n: u8| {
        let receiving = Receiving {
            key: key.clone(),
            client: ClientId(n.into()),
            nonce: 1,
            pages,
            patience: Duration::from_secs(9),
            ahead: 256,
        };
        let mut receiver = Receiver::new(receiving, now).expect("memory");
        receiver.complete(Complete::Yes);
        (SocketAddr::from(([10, 9, 9, n], 1)), receiver)
    });
    let (mut captured, mut out) = (Vec::new(), Vec::new());
    while captured.len() < ENOUGH {
        now += Duration::from_millis(1);
        for (from, client) in &mut clients {
            while client.poll(now, &mut out) == ClientTurn::Send {
                sender.receive(*from, &out, now);
            }
        }
        while let SenderStep::Send(to) = sender.poll(&mut Wrong, now, &mut out) {
            for (at, client) in &mut clients {
                if matches!(to, To::Group(_)) || to == To::One(*at) {
                    client.receive(&out, to.via(), &mut Wrong, now);
                }
            }
            captured.push(out.clone());
        }
    }
    captured
}

/// Pages of another image, as they are and as if they were of this one, and those of
/// another run of a server of this one, which are authentic.
fn forge(key: &ImageKey) -> Vec<Vec<u8>> {
    let other = FamilyKey::new([6; 32]).image(ImageId::random());
    let mut forged = Vec::new();
    for group in [None, Some(GROUP)] {
        let of_another = capture(&other, group);
        let relabelled = of_another.iter().cloned().map(|mut packet| {
            packet[CHANNEL].copy_from_slice(&key.channel().0.to_le_bytes());
            packet
        });
        forged.extend(relabelled);
        forged.extend(of_another);
        let of_another_run = capture(key, group).into_iter();
        forged.extend(of_another_run.filter(|packet| OF_AN_EPOCH.contains(&packet[KIND])));
    }
    forged
}

/// Pages that look as if they came next after what was heard last.
fn pose(packet: &[u8], last: &[u8], n: usize) -> Option<Vec<u8>> {
    let mut posing = packet.to_vec();
    let number = u64::from_le_bytes(last.get(SEQ)?.try_into().ok()?);
    let next = number + 1 + n as u64 % 64;
    posing[NAMES].copy_from_slice(&last[NAMES]);
    posing[SEQ].copy_from_slice(&next.to_le_bytes());
    (posing[KIND] == PAGES_OF).then_some(posing)
}

/// Returns the address at which the client on this host gets its server's packets.
fn port(hosts: &Hosts, n: u8) -> SocketAddr {
    let table = hosts.on(n, || std::fs::read_to_string("/proc/thread-self/net/udp"));
    let table = table.expect("a table of sockets");
    // Connected to 10.9.0.1:4789.
    let line = table.lines().find(|line| line.contains(" 0100090A:12B5 "));
    let port = line.and_then(|line| {
        line.split([':', ' '])
            .filter(|field| !field.is_empty())
            .nth(2)
    });
    let port = u16::from_str_radix(port.expect("a socket"), 16).expect("a port");
    SocketAddr::new(hosts.address(n), port)
}

/// A socket that sends as if it were at that address.
fn posing(at: SocketAddr) -> UdpSocket {
    let SocketAddr::V4(at) = at else {
        panic!("{at} is not IPv4");
    };
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Inet, SockType::Datagram, flags, None).expect("a socket");
    setsockopt(&fd, sockopt::IpTransparent, &true).expect("this test takes root");
    bind(fd.as_raw_fd(), &SockaddrIn::from(at)).expect("bound");
    UdpSocket::from(fd)
}

/// Sends all that is forged, and what it hears of the group with a bit turned, wherever
/// it is told to, over and over until it is dropped.
struct Attack {
    targets: Arc<Mutex<Vec<SocketAddr>>>,
    /// Packets that looked like the server's next.
    posed: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Attack {
    /// Sends nothing at first.
    fn start(hosts: &Hosts, serving: &Serving) -> Self {
        let (server, key) = (serving.server.address(), serving.key.clone());
        let targets: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
        let ended = Arc::new(AtomicBool::new(false));
        let (told, its) = (Arc::clone(&targets), Arc::clone(&ended));
        let posed = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&posed);
        let IpAddr::V4(by) = hosts.address(ATTACKER) else {
            panic!("IPv4");
        };
        let thread = hosts.on(ATTACKER, move || {
            let ear = UdpSocket::bind(SocketAddrV4::new(key.group(0), GROUP)).expect("bound");
            ear.join_multicast_v4(&key.group(0), &by).expect("joined");
            ear.set_nonblocking(true).expect("set");
            let (as_server, as_us) = (posing(server), UdpSocket::bind((by, 0)).expect("bound"));
            // It is to hear others, not itself.
            as_us.set_multicast_loop_v4(false).expect("set");
            thread::spawn(move || {
                let (forged, mut heard) = (forge(&key), vec![0; 2000]);
                // Of every kind soon.
                let mixed = (0..).map(|n| (n, &forged[n * 7919 % forged.len()]));
                let mut last = vec![];
                for (n, packet) in mixed {
                    if its.load(Ordering::Relaxed) {
                        return;
                    }
                    let changed = match ear.recv(&mut heard) {
                        Ok(length) => {
                            last = heard[..length].to_vec();
                            let mut changed = last.clone();
                            changed[n % length] ^= 1 << (n % 8);
                            Some(changed)
                        }
                        Err(_) => {
                            let posing = pose(packet, &last, n);
                            count.fetch_add(u64::from(posing.is_some()), Ordering::Relaxed);
                            posing
                        }
                    };
                    let changed = changed.as_deref();
                    for target in told.lock().expect("unharmed").iter() {
                        // A client hears its server alone, on its own socket.
                        let anybody = target.ip().is_multicast() || *target == server;
                        let socket = if anybody { &as_us } else { &as_server };
                        for packet in [Some(&packet[..]), changed].into_iter().flatten() {
                            // Fails while another client is flooded.
                            let _ = socket.send_to(packet, target);
                        }
                    }
                    if n % 8 == 0 {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            })
        });
        Self {
            targets,
            posed,
            ended,
            thread: Some(thread),
        }
    }

    fn on(&self, targets: &[SocketAddr]) {
        *self.targets.lock().expect("unharmed") = targets.to_vec();
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn what_is_captured_or_forged_on_the_network_installs_nothing() {
    let hosts = Hosts::bridged(4);
    let serving = Serving::start(&hosts, Way::multicast(PAGES, 2));
    let clients = [1, 2].map(|n| serving.client(&hosts, n));
    let channel = serving.key.channel();
    let stats = || serving.server.stats(channel).expect("served");
    until("both are in", || serving.server.clients(channel) == 2);
    until("beacons", || stats().group_bytes > 100);
    let attack = Attack::start(&hosts, &serving);
    let alone = [1, 2].map(|n| port(&hosts, n));
    let group = SocketAddr::from((serving.key.group(0), GROUP));
    let server = serving.server.address();
    // It is heard by every way that there is.
    for (target, way) in [
        (alone[0], 0),
        (alone[1], 1),
        (group, 0),
        (group, 1),
        (server, 2),
    ] {
        let refused = || match clients.get(way) {
            Some((client, _)) => client.stats().refused,
            None => stats().refused,
        };
        let posed = || attack.posed.load(Ordering::Relaxed);
        let before = (refused(), posed());
        attack.on(&[target]);
        until("refused", || {
            refused() > before.0 + 20 && posed() > before.1 + 20
        });
        assert!(clients.iter().all(|(_, got)| got.count() == 0), "{target}");
    }
    attack.on(&[alone[0], alone[1], group, server]);
    clients
        .iter()
        .for_each(|(client, _)| client.complete(Complete::Yes));
    for (client, got) in &clients {
        until("complete", || client.is_complete());
        assert_eq!(got.count(), PAGES);
    }
}
