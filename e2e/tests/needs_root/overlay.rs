//! A member of a family moves while others on other hosts talk to it.

use forkyard_e2e::{Cluster, Host, eventually};
use forkyard_types::{Address, CloneResult, ForkResponse, Mac, MigrateResponse, VmView};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd,
};
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    net::Ipv4Addr,
    os::fd::{AsFd as _, OwnedFd},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Between two packets: as many as a port keeps are sent in 20 s, far longer than a VM stands still.
const BETWEEN: Duration = Duration::from_millis(20);
/// Packets that come back before each move, and after it.
const AROUND: u16 = 20;
/// The virtio-net header before each frame.
const HEADER: usize = 10;
/// Interface of one that talks.
const TAP: &str = "talker";

/// One that sends numbered packets to a member, and counts what comes back: on the family's bridge of
/// one host, at a place of that host's that no VM has.
struct Talker {
    stop: Arc<AtomicBool>,
    /// Packets that have come back.
    back: Arc<AtomicU16>,
    thread: JoinHandle<Account>,
}

/// Account of its packets.
#[derive(Debug, Default)]
struct Account {
    sent: u16,
    /// Times that each came back.
    back: BTreeMap<u16, u32>,
    silence: Duration,
}

impl Talker {
    fn start(host: &Host, own: Address, to: Address, family: String) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        // The tap is made in the host's network, and read from anywhere.
        let tap = host.within(move || {
            let tap = forkyard_sys_host::tap::create(TAP).expect("a tap");
            let bridge = format!("fyb{family}");
            let words = ["link", "set", TAP, "master", &bridge, "up"];
            let ip = Command::new("ip").args(words).status().expect("ip");
            assert!(ip.success());
            tap
        });
        let back = Arc::new(AtomicU16::new(0));
        let counted = back.clone();
        let thread = thread::spawn(move || talk(&tap, own, to, &stopped, &counted));
        Self { stop, back, thread }
    }

    /// Waits until so many more packets have come back.
    #[track_caller]
    fn hears(&self, more: u16) {
        let wanted = self.back.load(Relaxed) + more;
        eventually("answers", || self.back.load(Relaxed) >= wanted);
    }

    fn end(self) -> Account {
        self.stop.store(true, Relaxed);
        self.thread.join().expect("it talks")
    }
}

fn talk(
    tap: &OwnedFd,
    own: Address,
    to: Address,
    stopped: &AtomicBool,
    back: &AtomicU16,
) -> Account {
    let mut account = Account::default();
    let (mut next, mut heard) = (Instant::now(), None);
    let mut ended = None;
    loop {
        if stopped.load(Relaxed) && ended.is_none() {
            ended = Some(Instant::now());
        }
        let all = account.back.len() == usize::from(account.sent);
        // What waits is waited for, but not for ever.
        if ended.is_some_and(|ended| all || ended.elapsed() > Duration::from_secs(30)) {
            return account;
        }
        if ended.is_none() && next <= Instant::now() {
            let frame = echo(own, to, account.sent);
            unistd::write(tap, &frame).expect("sent");
            account.sent += 1;
            next += BETWEEN;
        }
        let mut fds = [PollFd::new(tap.as_fd(), PollFlags::POLLIN)];
        let left = next.saturating_duration_since(Instant::now());
        let left = left.clamp(Duration::from_millis(1), BETWEEN);
        let timeout = PollTimeout::try_from(left).expect("short");
        if poll(&mut fds, timeout).expect("poll") == 0 {
            continue;
        }
        let mut frame = [0; 2048];
        let length = unistd::read(tap, &mut frame).expect("read");
        let frame = &frame[HEADER..length];
        if let Some(known) = known(frame, own) {
            unistd::write(tap, &known).expect("answered");
        }
        if let Some(number) = answer(frame, own) {
            *account.back.entry(number).or_default() += 1;
            back.fetch_add(1, Relaxed);
            let now = Instant::now();
            let since = heard.replace(now).map(|before| now - before);
            account.silence = account.silence.max(since.unwrap_or_default());
        }
    }
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let halves = bytes.chunks(2);
    let sum = halves.map(|it| u32::from(it[0]) << 8 | it.get(1).map_or(0, |low| u32::from(*low)));
    let mut sum: u32 = sum.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    (!u16::try_from(sum).expect("folded")).to_be_bytes()
}

/// An ICMP echo request with a number.
fn echo(own: Address, to: Address, number: u16) -> Vec<u8> {
    let mut ping = vec![8, 0, 0, 0, 0x46, 0x59];
    ping.extend(number.to_be_bytes());
    ping.extend([7; 24]);
    let sum = checksum(&ping);
    ping[2..4].copy_from_slice(&sum);
    let length = u16::try_from(ping.len() + 20).expect("short");
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 1, 0, 0]);
    packet.extend(own.ip.octets());
    packet.extend(to.ip.octets());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum);
    [
        &[0; HEADER],
        &to.mac.0[..],
        &own.mac.0,
        &[8, 0],
        &packet,
        &ping,
    ]
    .concat()
}

/// Answer to an ARP request for its address.
fn known(frame: &[u8], own: Address) -> Option<Vec<u8>> {
    let asks = frame.get(12..22)? == [8, 6, 0, 1, 8, 0, 6, 4, 0, 1]
        && frame.get(38..42)? == own.ip.octets();
    let asker = frame.get(22..32)?;
    let answer = [&frame[12..20], &[0, 2], &own.mac.0, &own.ip.octets(), asker].concat();
    asks.then(|| [&[0; HEADER], &asker[..6], &own.mac.0, &answer].concat())
}

/// Number of a packet that came back.
fn answer(frame: &[u8], own: Address) -> Option<u16> {
    let is_answer = frame.get(..6)? == own.mac.0
        && frame.get(12..15)? == [8, 0, 0x45]
        && frame.get(23) == Some(&1)
        && frame.get(34) == Some(&0);
    let number = frame.get(40..42)?;
    is_answer.then(|| u16::from_be_bytes([number[0], number[1]]))
}

/// Address so many places after a VM's.
fn after(vm: &VmView, places: u8) -> Address {
    let Address { ip, prefix, mac } = vm.address;
    let mut own: Mac = mac;
    own.0[5] += places;
    let ip = Ipv4Addr::from(u32::from(ip) + u32::from(places));
    Address {
        ip,
        prefix,
        mac: own,
    }
}

/// Changes of entries for a MAC in a host's kernel, with the time of each.
struct Watch {
    child: Child,
    lines: JoinHandle<Vec<(Duration, String)>>,
}

impl Watch {
    fn start(host: &Host, mac: Mac) -> Self {
        let begun = std::time::SystemTime::UNIX_EPOCH;
        let mut child = host.within(|| {
            let mut bridge = Command::new("bridge");
            let bridge = bridge.args(["monitor", "fdb"]).stdout(Stdio::piped());
            bridge.spawn().expect("bridge")
        });
        let number = child.id().to_string();
        eventually("it to listen", || {
            // Of each socket: where it lies, its protocol, its process, its groups.
            let sockets = format!("/proc/{number}/net/netlink");
            let sockets = std::fs::read_to_string(sockets).expect("it runs");
            sockets.lines().any(|line| {
                let words: Vec<_> = line.split_whitespace().collect();
                words.get(2) == Some(&&*number) && words.get(3).is_some_and(|it| *it != "00000000")
            })
        });
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let lines = thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            let lines = lines.map(|line| (begun.elapsed().expect("after 1970"), line));
            let of_mac = lines.filter(|(_, line)| line.contains(&mac.to_string()));
            of_mac.collect()
        });
        Self { child, lines }
    }

    fn end(mut self) -> Vec<(Duration, String)> {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
        self.lines.join().expect("read")
    }
}

/// Frames that have come to a host from others of a family.
fn come(host: &Host, family: &str) -> u64 {
    let tunnel = format!("fyv{family}:");
    host.within(move || {
        let counted = std::fs::read_to_string("/proc/thread-self/net/dev").expect("counted");
        let line = counted
            .lines()
            .find_map(|line| line.trim().strip_prefix(&tunnel));
        let frames = line.and_then(|line| line.split_whitespace().nth(1));
        frames.and_then(|it| it.parse().ok()).expect("a number")
    })
}

fn moved(host: &Host, to: &str) -> MigrateResponse {
    host.json(["migrate", "p", "--to", to, "--if-stuck", "stop"])
}

#[test]
fn nothing_that_is_sent_to_a_vm_that_moves_is_lost_or_doubled_and_its_mac_moves_once() {
    let cluster = Cluster::waking(3);
    let [a, b, c] = [0, 1, 2].map(|number| cluster.host(number));
    a.ok(["run", "tiny", "--name", "p"]);
    // One on each other host, so that all are in the family.
    let made: ForkResponse = a.json(["fork", "p", "-n", "2", "--to", "h1,h2"]);
    let made = made.clones.into_iter().map(|clone| match clone {
        CloneResult::Vm(vm) => *vm,
        CloneResult::Error(error) => panic!("not made: {error}"),
    });
    let made: Vec<_> = made.collect();
    let p = a.vm("p");
    let family = p.family.to_string();
    // Few after: a host that a VM leaves lends some of its places to the other.
    let beside: Vec<_> = [&p, &made[0], &made[1]].map(|vm| after(vm, 8)).into();
    // On to a host that its first one knows by its own loans alone, and home.
    let hosts = [a, b, c];
    for (from, to, third) in [(0, 1, 2), (1, 2, 0), (2, 0, 1)] {
        let watches = [third, to].map(|host| Watch::start(hosts[host], p.address.mac));
        let talkers: Vec<_> = hosts
            .into_iter()
            .zip(&beside)
            .map(|(host, own)| Talker::start(host, *own, p.address, family.clone()))
            .collect();
        talkers.iter().for_each(|talker| talker.hears(AROUND));
        let there = format!("h{to}");
        let answer = moved(hosts[from], &there);
        assert_eq!(answer.vm.host.as_deref(), Some(there.as_str()));
        talkers.iter().for_each(|talker| talker.hears(AROUND));
        for (talker, host) in talkers.into_iter().zip(["h0", "h1", "h2"]) {
            let account = talker.end();
            eprintln!(
                "at {host}: {} packets, silent for {:?} while {} us stood still",
                account.sent, account.silence, answer.report.gap_us
            );
            let lost = (0..account.sent).filter(|it| !account.back.contains_key(it));
            assert_eq!(
                lost.collect::<Vec<u16>>(),
                Vec::<u16>::new(),
                "lost, as sent from {host}"
            );
            let doubled = account.back.iter().filter(|(_, times)| **times > 1);
            assert_eq!(doubled.count(), 0, "doubled, as sent from {host}");
        }
        // Not by its former host any more.
        let before = come(hosts[from], &family);
        let talker = Talker::start(hosts[third], beside[third], p.address, family.clone());
        talker.hears(5);
        talker.end();
        assert_eq!(
            come(hosts[from], &family),
            before,
            "nothing goes by the host that it left"
        );
        let [third, there] = watches.map(Watch::end);
        let dst = format!(" dst {} ", cluster.address(to));
        let switched: Vec<_> = third
            .iter()
            .filter(|(_, line)| line.contains(" dst "))
            .collect();
        assert_eq!(switched.len(), 1, "{third:?}");
        assert!(switched[0].1.contains(&dst), "{third:?}");
        let opened = there.iter().find(|(_, line)| line.contains("fyt"));
        let opened = opened.expect("its port").0;
        // Both are told of at once.
        let after = switched[0].0.as_secs_f64() - opened.as_secs_f64();
        eprintln!(
            "the third host's entry: {:.1} ms after the port's",
            after * 1e3
        );
    }
    cluster.end();
}
