//! A network in user space, for tests: taps joined by a switch whose frames all
//! share one rate, and are delayed, lost, doubled and overtaken as it is told.
//!
//! ```text
//! tap 0 --> enters: cut? queue full? --> flying, by time of arrival --> tap 1
//!                   lost? doubled? late?                            --> tap 2
//! ```
//!
//! It learns by which tap an address is reached, as a switch does, and knows
//! nothing of what hosts are; a group goes to all of them. The maker of the taps
//! gives them away: they go when it is dropped.

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Bytes of the virtio-net header that a tap puts before each frame.
const HEADER: usize = 10;
/// Looks for the end so often when nothing passes.
const LOOK: Duration = Duration::from_millis(20);

/// Faults that frames suffer. Chances are in percent.
#[derive(Clone, Debug, Default)]
pub struct LinkFaults {
    /// Bytes a second, of all frames together; 0: as fast as it goes.
    pub rate: u64,
    /// Time that frames may wait for that; others are lost.
    pub queue: Duration,
    /// Time that a frame is on its way.
    pub delay: Duration,
    /// Chance of being lost.
    pub loss: f64,
    /// Chance of arriving twice.
    pub twice: f64,
    /// Chance of taking another `delay` more.
    pub late: f64,
    /// Ports that no multicast reaches.
    pub deaf: Vec<usize>,
    /// Ports that nothing passes.
    pub cut: Vec<usize>,
}

#[derive(Debug, Default)]
struct Shared {
    network: Mutex<LinkFaults>,
    ended: AtomicBool,
    groups: AtomicU64,
    far: AtomicU64,
    bytes: AtomicU64,
}

/// The switch, which works until this is dropped.
#[derive(Debug)]
pub struct TestSwitch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A frame on its way.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    at: Instant,
    number: u64,
    port: usize,
    frame: Vec<u8>,
}

struct Switch {
    taps: Vec<File>,
    shared: Arc<Shared>,
    learned: HashMap<[u8; 6], usize>,
    flying: BinaryHeap<Reverse<Flying>>,
    busy_until: Instant,
    number: u64,
    random: u64,
}

impl TestSwitch {
    /// Joins taps whose frames carry the virtio-net header; they are numbered as
    /// they are given.
    pub fn new(taps: Vec<OwnedFd>, network: LinkFaults) -> Self {
        let shared = Arc::new(Shared::default());
        *shared.network.lock().expect("unharmed") = network;
        let switch = Switch {
            taps: taps.into_iter().map(File::from).collect(),
            shared: Arc::clone(&shared),
            learned: HashMap::new(),
            flying: BinaryHeap::new(),
            busy_until: Instant::now(),
            number: 0,
            random: 0x1234_5678_9ABC_DEF1,
        };
        let thread = Some(thread::spawn(move || switch.run()));
        Self { shared, thread }
    }

    /// From now on it is another network.
    pub fn becomes(&self, network: LinkFaults) {
        *self.shared.network.lock().expect("unharmed") = network;
    }

    /// UDP frames that went to a group, and those of them that could have left
    /// the link: their TTL is not 1.
    pub fn groups(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (load(&self.shared.groups), load(&self.shared.far))
    }

    /// Bytes of all frames that entered it.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for TestSwitch {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Switch {
    fn run(mut self) {
        for tap in &self.taps {
            let flags = nix::fcntl::OFlag::O_NONBLOCK;
            nix::fcntl::fcntl(tap, nix::fcntl::FcntlArg::F_SETFL(flags)).expect("nonblocking");
        }
        let mut buffer = vec![0; 70_000];
        while !self.shared.ended.load(Ordering::Relaxed) {
            for port in 0..self.taps.len() {
                for _ in 0..64 {
                    let Ok(length) = (&self.taps[port]).read(&mut buffer) else {
                        break;
                    };
                    self.enters(port, &buffer[..length]);
                }
            }
            let wait = self.deliver();
            let mut fds: Vec<_> = self
                .taps
                .iter()
                .map(|tap| PollFd::new(tap.as_fd(), PollFlags::POLLIN))
                .collect();
            let _ = ppoll(&mut fds, Some(TimeSpec::from_duration(wait)), None);
        }
    }

    /// Hands over what has arrived; answers how long nothing will.
    fn deliver(&mut self) -> Duration {
        while let Some(Reverse(first)) = self.flying.peek() {
            let left = first.at.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                return left.min(LOOK);
            }
            if let Some(Reverse(flying)) = self.flying.pop() {
                // An interface that is not up refuses it.
                let _ = (&self.taps[flying.port]).write_all(&flying.frame);
            }
        }
        LOOK
    }

    fn enters(&mut self, port: usize, frame: &[u8]) {
        let Some(ethernet) = frame.get(HEADER..).filter(|frame| frame.len() >= 14) else {
            return;
        };
        let to: [u8; 6] = ethernet[..6].try_into().expect("six");
        let from: [u8; 6] = ethernet[6..12].try_into().expect("six");
        self.learned.insert(from, port);
        let shared = Arc::clone(&self.shared);
        shared
            .bytes
            .fetch_add(ethernet.len() as u64, Ordering::Relaxed);
        // IPv4 and UDP, to a group.
        let group = to[..3] == [0x01, 0x00, 0x5E];
        if group && ethernet.get(12..14) == Some(&[8, 0]) && ethernet.get(23) == Some(&17) {
            shared.groups.fetch_add(1, Ordering::Relaxed);
            shared
                .far
                .fetch_add(u64::from(ethernet[22] != 1), Ordering::Relaxed);
        }
        let network = shared.network.lock().expect("unharmed").clone();
        if network.cut.contains(&port) {
            return;
        }
        let now = Instant::now();
        let mut at = now;
        if network.rate > 0 {
            at = self.busy_until.max(now);
            if at - now > network.queue {
                return;
            }
            at += Duration::from_secs_f64(ethernet.len() as f64 / network.rate as f64);
            self.busy_until = at;
        }
        at += network.delay;
        let known = self.learned.get(&to).copied();
        for out in 0..self.taps.len() {
            let meant = known.is_none_or(|known| known == out) && out != port;
            let deaf = group && network.deaf.contains(&out);
            let reaches = !(deaf || network.cut.contains(&out));
            if !meant || !reaches || self.chance(network.loss) {
                continue;
            }
            for _ in 0..1 + u32::from(self.chance(network.twice)) {
                let late = self.chance(network.late);
                self.number += 1;
                self.flying.push(Reverse(Flying {
                    at: at + if late { network.delay } else { Duration::ZERO },
                    number: self.number,
                    port: out,
                    frame: frame.to_vec(),
                }));
            }
        }
    }

    fn chance(&mut self, percent: f64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % 1_000_000) as f64 / 10_000.0 < percent
    }
}
