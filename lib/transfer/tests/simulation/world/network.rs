//! Fate of packets on their way.

use super::{What, World};
use crate::forgery;
use crate::plot::{Cut, Network, Span, Which};
use forkyard_transfer::{To, Via};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

impl World {
    pub(super) fn leaves_client(&mut self, n: usize, bytes: &[u8]) {
        let client = &self.clients[n];
        let (address, image) = (client.address, client.job.image);
        let passed = self.now - self.start;
        let stopped = Cut::any(&client.job.cuts, Which::Out, passed)
            || Cut::any(&self.plot.servers[image].cuts, Which::In, passed);
        if !stopped {
            let at = self.now + self.plot.network.delay;
            self.carry(image, at, bytes, |bytes| {
                What::ToServer(image, address, bytes)
            });
        }
    }

    /// All that leaves one server shares one link.
    pub(super) fn leaves_server(&mut self, image: usize, to: To, bytes: &[u8]) {
        assert!(
            bytes.len() <= self.plot.datagram,
            "packet of {} bytes",
            bytes.len()
        );
        let Network {
            rate, queue, delay, ..
        } = self.plot.network;
        let length = bytes.len() as u64 + 28;
        let server = &mut self.servers[image];
        let free = server.busy_until.max(self.now);
        let waiting = (free - self.now).as_secs_f64() * rate as f64;
        if waiting > queue as f64 {
            return;
        }
        server.busy_until = free + Duration::from_secs_f64(length as f64 / rate as f64);
        let at = server.busy_until + delay;
        if Cut::any(
            &self.plot.servers[image].cuts,
            Which::Out,
            self.now - self.start,
        ) {
            return;
        }
        for n in 0..self.clients.len() {
            if self.reaches(n, to)
                && let Some(at) = self.passes(n, at, length)
            {
                self.carry(image, at, bytes, |bytes| What::ToClient(n, to.via(), bytes));
            }
        }
    }

    /// Returns the time at which so many bytes are through the link of a client, if they are not lost there.
    fn passes(&mut self, n: usize, at: Instant, length: u64) -> Option<Instant> {
        let (client, passed) = (&mut self.clients[n], self.now - self.start);
        let slow = client.job.slow.as_ref();
        let Some((_, slow)) = slow.filter(|(when, _)| when.contains(&passed)) else {
            return Some(at);
        };
        let free = client.busy_until.map_or(at, |until| until.max(at));
        let waiting = (free - at).as_secs_f64() * slow.rate as f64;
        if waiting > slow.queue as f64 {
            return None;
        }
        let through = free + Duration::from_secs_f64(length as f64 / slow.rate as f64);
        client.busy_until = Some(through);
        Some(through)
    }

    fn reaches(&self, n: usize, to: To) -> bool {
        let (client, passed) = (&self.clients[n], self.now - self.start);
        let is_now = |spans: &[Span]| spans.iter().any(|span| span.contains(&passed));
        let meant = match to {
            To::One(address) => address == client.address,
            To::Group(group) => {
                let hears = client.job.multicast && !is_now(&client.job.deaf);
                client.group == Some(group) && hears && !is_now(&self.plot.deaf)
            }
        };
        meant && !Cut::any(&client.job.cuts, Which::In, passed)
    }

    fn carry(&mut self, image: usize, at: Instant, bytes: &[u8], to: impl Fn(Vec<u8>) -> What) {
        let Network {
            loss,
            twice,
            late,
            late_by,
            replayed,
            forged,
            ..
        } = self.plot.network;
        if self.rng.chance(replayed) {
            self.replay(at, bytes);
        }
        if self.rng.chance(forged) {
            self.forge(image, at, bytes);
        }
        if self.rng.chance(loss) {
            return;
        }
        let copies = 1 + u32::from(self.rng.chance(twice));
        for _ in 0..copies {
            let mut at = at;
            if self.rng.chance(late) {
                at += late_by.mul_f64(self.rng.below(1000) as f64 / 1000.0);
            }
            self.at(at, to(bytes.to_vec()));
        }
    }

    /// An attacker records a packet, and sends it later to any peer, from any address
    /// it likes.
    fn replay(&mut self, at: Instant, bytes: &[u8]) {
        let (at, n, from, image) = self.somewhere(at);
        let via = self.via();
        self.at(at, What::ToClient(n, via, bytes.to_vec()));
        self.at(at, What::ToServer(image, from, bytes.to_vec()));
    }

    /// An attacker sends packets it has changed, or has from elsewhere.
    fn forge(&mut self, image: usize, at: Instant, bytes: &[u8]) {
        let (at, n, from, to) = self.somewhere(at);
        if self.rng.chance(30.0) {
            let mut changed = bytes.to_vec();
            let place = usize::try_from(self.rng.below(bytes.len() as u64)).expect("short");
            changed[place] ^= 1 << self.rng.below(8);
            let via = self.via();
            self.at(at, What::ForgedToClient(n, via, changed.clone()));
            self.at(at, What::ForgedToServer(image, from, changed));
            return;
        }
        let mut any = |all: &'static [Vec<u8>]| {
            all[usize::try_from(self.rng.below(all.len() as u64)).expect("few")].clone()
        };
        let (mut client, server) = (
            any(&forgery::of(self.clients[n].job.image).to_clients),
            any(&forgery::of(to).to_servers),
        );
        if self.rng.chance(50.0) {
            forgery::pose(&mut client, bytes, self.rng.below(64));
        }
        let via = self.via();
        self.at(at, What::ForgedToClient(n, via, client));
        self.at(at, What::ForgedToServer(to, from, server));
    }

    /// Chooses whether to send a packet to a host alone, or to its group.
    fn via(&mut self) -> Via {
        match self.rng.chance(50.0) {
            true => Via::Alone,
            false => Via::Group,
        }
    }

    /// Draws a time, a client, a source and a server.
    fn somewhere(&mut self, at: Instant) -> (Instant, usize, SocketAddr, usize) {
        let late = [20, 2000][usize::from(self.rng.chance(10.0))];
        let at = at + self.rng.millis(0, late);
        let n = usize::try_from(self.rng.below(self.clients.len() as u64)).expect("few");
        let from = match self.rng.chance(50.0) {
            true => self.clients[n].address,
            false => SocketAddr::from((Ipv4Addr::new(66, 6, 6, 6), 666)),
        };
        let image = usize::try_from(self.rng.below(self.servers.len() as u64)).expect("few");
        (at, n, from, image)
    }
}
