//! Actions of clients, and the check of all that comes to them.

use super::{PATIENCE, What, World};
use crate::plot::{Check, Ending, Job};
use forkyard_transfer::{
    ClientId, ClientTurn, Complete, Receiver, ReceiverEvent, Receiving, Urgency, Via,
};
use forkyard_types::PageNo;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

pub(super) struct Client {
    pub job: Job,
    pub receiver: Option<Receiver>,
    pub address: SocketAddr,
    pub group: Option<SocketAddrV4>,
    pub have: BTreeSet<PageNo>,
    pub next: usize,
    pub waiting: BTreeMap<PageNo, Instant>,
    pub resting: usize,
    pub complete: bool,
    pub ending: Option<Ending>,
    pub poll_at: Option<Instant>,
    /// Number of times it was told where to listen.
    pub listened: u64,
    /// Time at which it had what it wanted.
    pub ended: Option<Duration>,
    /// Until when its link carries what was sent to it so far.
    pub busy_until: Option<Instant>,
}

impl Client {
    pub fn new(job: Job, n: u8) -> Self {
        Self {
            job,
            receiver: None,
            address: SocketAddr::from((Ipv4Addr::new(10, 0, 0, n), 4000)),
            group: None,
            have: BTreeSet::new(),
            next: 0,
            waiting: BTreeMap::new(),
            resting: 0,
            complete: false,
            ending: None,
            poll_at: None,
            listened: 0,
            ended: None,
            busy_until: None,
        }
    }

    /// Returns the pages it has not got.
    pub fn wanting(&self, gone: &BTreeSet<PageNo>) -> BTreeSet<PageNo> {
        let wants = self.job.wants.iter().copied();
        wants
            .filter(|page| !self.have.contains(page) && !gone.contains(page))
            .collect()
    }
}

impl World {
    pub(super) fn start_client(&mut self, n: usize) {
        if self.clients[n].ending.is_some() {
            return;
        }
        let receiving = Receiving {
            key: self.servers[self.clients[n].job.image].key.clone(),
            client: ClientId(self.rng.next()),
            nonce: self.rng.next(),
            pages: self.plot.pages,
            patience: PATIENCE,
            ahead: self.plot.ahead,
        };
        let mut receiver = Receiver::new(receiving, self.now).expect("memory");
        let client = &mut self.clients[n];
        receiver.complete(client.job.complete);
        client.receiver = Some(receiver);
        for _ in 0..client.job.at_once {
            self.want(n);
        }
        self.settle(n);
        self.poll_client(n);
    }

    /// The client goes on to its next page that is not there.
    pub(super) fn want(&mut self, n: usize) {
        let client = &mut self.clients[n];
        let Some(receiver) = &mut client.receiver else {
            return;
        };
        while let Some(page) = client.job.wants.get(client.next) {
            client.next += 1;
            if !client.have.contains(page) && !self.plot.gone.contains(page) {
                receiver.want(*page, Urgency::Waited);
                client.waiting.insert(*page, self.now);
                return;
            }
        }
    }

    pub(super) fn receive(&mut self, n: usize, via: Via, bytes: &[u8]) {
        let client = &mut self.clients[n];
        let Some(receiver) = &mut client.receiver else {
            return;
        };
        let mut check = Check {
            seed: self.servers[client.job.image].pages.seed,
            gone: &self.plot.gone,
            have: &mut client.have,
        };
        receiver.receive(bytes, via, &mut check, self.now);
        let came: Vec<_> = client
            .waiting
            .iter()
            .filter(|(page, _)| client.have.contains(page))
            .map(|(page, since)| (*page, *since))
            .collect();
        for (page, since) in came {
            self.waits.push(self.now - since);
            let client = &mut self.clients[n];
            client.waiting.remove(&page);
            client.resting += 1;
            let thinks = client.job.thinks;
            self.at(self.now + thinks, What::Want(n));
        }
        self.settle(n);
    }

    /// A packet that is none of its server's for it.
    pub(super) fn receive_forged(&mut self, n: usize, via: Via, bytes: &[u8]) {
        let refused = |world: &Self| {
            let client = &world.clients[n];
            let receiver = client.receiver.as_ref()?;
            Some((receiver.stats().refused, client.have.len()))
        };
        let Some((before, have)) = refused(self) else {
            return;
        };
        self.receive(n, via, bytes);
        let seed = self.plot.seed;
        let after = refused(self);
        assert_eq!(after, Some((before + 1, have)), "seed {seed}: not refused");
        self.forged.0 += 1;
    }

    /// Takes note of what the client says, and whether it is done.
    pub(super) fn settle(&mut self, n: usize) {
        let (now, seed) = (self.now, self.plot.seed);
        let client = &mut self.clients[n];
        let Some(receiver) = &mut client.receiver else {
            return;
        };
        while let Some(event) = receiver.event() {
            match event {
                ReceiverEvent::Listen(group) => {
                    let both = client.group.is_some() && group.is_some();
                    self.regrouped += u64::from(both);
                    client.group = group;
                    client.listened += 1;
                }
                ReceiverEvent::Gone(page) => {
                    assert!(
                        self.plot.gone.contains(&page),
                        "seed {seed}: {page} is there"
                    );
                    client.waiting.remove(&page);
                }
                ReceiverEvent::Complete => {
                    client.complete = true;
                    let all = client.have.len() + self.plot.gone.len();
                    assert_eq!(all as u64, self.plot.pages.0, "seed {seed}: not complete");
                }
                ReceiverEvent::Lost { why, waited } => {
                    let waiting: Vec<_> = client.waiting.keys().copied().collect();
                    assert_eq!(waited, waiting, "seed {seed}");
                    client.ending.get_or_insert(Ending::Lost(why, waited));
                }
            }
        }
        let job = &client.job;
        let served = client.next >= job.wants.len() && client.waiting.is_empty();
        let completed = client.complete || job.complete == Complete::No;
        if served && completed && client.resting == 0 && client.ending.is_none() {
            client.ending = Some(Ending::Served);
            client.ended = Some(now - self.start);
            self.took = now - self.start;
        }
    }

    pub(super) fn poll_client(&mut self, n: usize) {
        let mut out = Vec::new();
        loop {
            let client = &mut self.clients[n];
            let Some(receiver) = &mut client.receiver else {
                return;
            };
            match receiver.poll(self.now, &mut out) {
                ClientTurn::Send => self.leaves_client(n, &out),
                ClientTurn::Wait(until) => {
                    let before = std::mem::replace(&mut client.poll_at, until);
                    if let Some(until) = until.filter(|_| until != before) {
                        self.at(until, What::Client(n));
                    }
                    return self.settle(n);
                }
            }
        }
    }
}
