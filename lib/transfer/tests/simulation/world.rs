//! A server, its clients and a network between them, in virtual time: each run
//! follows from its seed alone.

use crate::plot::{Check, Ending, Job, Network, Outcome, Pages, Plot, Rng, is_zero};
use forkyard_transfer::{
    ClientId, Complete, CookieSecret, EndGame, Epoch, Event, FamilyKey, ImageKey, Receiver,
    Receiving, Sender, Sent, Serving, Step, To, Turn, Urgency,
};
use forkyard_types::{ImageId, PageCount, PageNo};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

/// No run takes longer, in virtual time.
const END: Duration = Duration::from_secs(120);
/// Nor more events: something goes round in circles then.
const MOST_EVENTS: u64 = 3_000_000;
/// How long peers may be silent.
pub const PATIENCE: Duration = Duration::from_secs(5);

struct Client {
    job: Job,
    receiver: Option<Receiver>,
    address: SocketAddr,
    group: Option<SocketAddrV4>,
    have: BTreeSet<PageNo>,
    next: usize,
    waiting: BTreeMap<PageNo, Instant>,
    resting: usize,
    complete: bool,
    ending: Option<Ending>,
    poll_at: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    ToServer(SocketAddr, Vec<u8>),
    ToClient(usize, Vec<u8>),
    Server,
    Client(usize),
    Want(usize),
    Starts(usize),
    Dies(usize),
    ServerDies,
    ServerStarts,
}

pub struct World {
    plot: Plot,
    rng: Rng,
    start: Instant,
    now: Instant,
    queue: BinaryHeap<Reverse<(Instant, u64, What)>>,
    events: u64,
    key: ImageKey,
    server: Option<Sender>,
    sent: Sent,
    pages: Pages,
    server_poll: Option<Instant>,
    busy_until: Instant,
    clients: Vec<Client>,
    waits: Vec<Duration>,
    took: Duration,
}

impl World {
    pub fn new(plot: Plot) -> Self {
        let start = Instant::now();
        let mut rng = Rng(plot.seed);
        let key =
            FamilyKey::new([plot.seed.to_le_bytes()[0]; 32]).image(ImageId(Default::default()));
        let clients = plot.jobs.iter().zip(1..).map(|(job, n): (_, u8)| Client {
            job: job.clone(),
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
        });
        let clients = clients.collect();
        let pages = Pages {
            seed: plot.seed,
            size: plot.pages,
            gone: plot.gone.clone(),
        };
        let _ = rng.next();
        let mut world = Self {
            rng,
            start,
            now: start,
            queue: BinaryHeap::new(),
            events: 0,
            key,
            server: None,
            sent: Sent::default(),
            pages,
            server_poll: None,
            busy_until: start,
            clients,
            waits: Vec::new(),
            took: Duration::ZERO,
            plot,
        };
        world.start_server();
        for n in 0..world.clients.len() {
            let job = world.clients[n].job.clone();
            world.at(start + job.starts, What::Starts(n));
            if let Some(dies) = job.dies {
                world.at(start + dies, What::Dies(n));
            }
        }
        if let Some((dies, again)) = world.plot.server_dies {
            world.at(start + dies, What::ServerDies);
            if let Some(again) = again {
                world.at(start + again, What::ServerStarts);
            }
        }
        world
    }

    /// Runs until every client has ended.
    pub fn run(mut self) -> Outcome {
        while self.clients.iter().any(|client| client.ending.is_none()) {
            let Some(Reverse((at, _, what))) = self.queue.pop() else {
                panic!("seed {}: nothing will ever happen again", self.plot.seed);
            };
            self.now = at;
            assert!(
                at - self.start < END,
                "seed {}: it does not end",
                self.plot.seed
            );
            self.events += 1;
            assert!(
                self.events < MOST_EVENTS,
                "seed {}: it goes round in circles",
                self.plot.seed
            );
            self.happens(what);
        }
        if let Some(server) = &self.server {
            self.sent.add(server.stats());
        }
        let received = self.clients.iter().map(|client| {
            let receiver = client.receiver.as_ref();
            receiver.map(Receiver::stats).unwrap_or_default()
        });
        Outcome {
            received: received.collect(),
            wanting: self
                .clients
                .iter()
                .map(|c| c.wanting(&self.plot.gone))
                .collect(),
            endings: self
                .clients
                .into_iter()
                .filter_map(|client| client.ending)
                .collect(),
            sent: self.sent,
            took: self.took,
            waits: self.waits,
        }
    }

    fn at(&mut self, at: Instant, what: What) {
        let number = self.rng.next();
        self.queue.push(Reverse((at.max(self.now), number, what)));
    }

    fn happens(&mut self, what: What) {
        match what {
            What::ToServer(from, bytes) => {
                if let Some(server) = &mut self.server {
                    server.receive(from, &bytes, self.now);
                    self.poll_server();
                }
            }
            What::ToClient(n, bytes) => {
                self.receive(n, &bytes);
                self.poll_client(n);
            }
            What::Server if self.server_poll == Some(self.now) => self.poll_server(),
            What::Client(n) if self.clients[n].poll_at == Some(self.now) => self.poll_client(n),
            What::Server | What::Client(_) => {}
            What::Want(n) => {
                self.clients[n].resting -= 1;
                self.want(n);
                self.poll_client(n);
            }
            What::Starts(n) => self.start_client(n),
            What::Dies(n) => {
                self.clients[n].receiver = None;
                self.clients[n].ending.get_or_insert(Ending::Died);
            }
            What::ServerDies => {
                if let Some(server) = self.server.take() {
                    self.sent.add(server.stats());
                }
            }
            What::ServerStarts => self.start_server(),
        }
    }

    fn start_server(&mut self) {
        let plot = &self.plot;
        let zero = (0..plot.pages.0)
            .filter(|page| is_zero(PageNo(*page)))
            .count() as u64;
        let serving = Serving {
            key: self.key.clone(),
            epoch: Epoch(self.rng.next()),
            secret: CookieSecret::new([7; 32]),
            pages: plot.pages,
            data: PageCount(plot.pages.0 - zero),
            datagram: plot.datagram,
            group: plot.multicast.then_some(4790),
            law: plot.law,
            push: plot.push,
            working_set: plot.working_set.clone(),
            gather: (plot.jobs.len(), Duration::from_millis(100)),
            disjoint: plot.disjoint.clone(),
            window: plot.window,
            end_game: EndGame::default(),
            patience: Duration::from_secs(20),
        };
        self.server = Some(Sender::new(serving, self.now));
        self.busy_until = self.now;
        self.poll_server();
    }

    fn start_client(&mut self, n: usize) {
        let receiving = Receiving {
            key: self.key.clone(),
            client: ClientId(self.rng.next()),
            nonce: self.rng.next(),
            pages: self.plot.pages,
            patience: PATIENCE,
            ahead: 64,
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
    fn want(&mut self, n: usize) {
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

    fn receive(&mut self, n: usize, bytes: &[u8]) {
        let client = &mut self.clients[n];
        let Some(receiver) = &mut client.receiver else {
            return;
        };
        let mut check = Check {
            seed: self.plot.seed,
            gone: &self.plot.gone,
            have: &mut client.have,
        };
        receiver.receive(bytes, &mut check, self.now);
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

    /// Takes note of what the client says, and whether it is done.
    fn settle(&mut self, n: usize) {
        let (now, seed) = (self.now, self.plot.seed);
        let client = &mut self.clients[n];
        let Some(receiver) = &mut client.receiver else {
            return;
        };
        while let Some(event) = receiver.event() {
            match event {
                Event::Listen(group) => client.group = group,
                Event::Gone(page) => {
                    assert!(
                        self.plot.gone.contains(&page),
                        "seed {seed}: {page} is there"
                    );
                    client.waiting.remove(&page);
                }
                Event::Complete => {
                    client.complete = true;
                    let all = client.have.len() + self.plot.gone.len();
                    assert_eq!(all as u64, self.plot.pages.0, "seed {seed}: not complete");
                }
                Event::Lost { why, waited } => {
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
            self.took = now - self.start;
        }
    }

    fn poll_client(&mut self, n: usize) {
        let mut out = Vec::new();
        loop {
            let client = &mut self.clients[n];
            let Some(receiver) = &mut client.receiver else {
                return;
            };
            match receiver.poll(self.now, &mut out) {
                Turn::Send => {
                    let (address, at) = (client.address, self.now + self.plot.network.delay);
                    if !self.is_cut(n) {
                        self.carry(at, &out, |bytes| What::ToServer(address, bytes));
                    }
                }
                Turn::Wait(until) => {
                    self.clients[n].poll_at = until;
                    if let Some(until) = until {
                        self.at(until, What::Client(n));
                    }
                    return self.settle(n);
                }
            }
        }
    }

    fn poll_server(&mut self) {
        let mut out = Vec::new();
        while let Some(server) = &mut self.server {
            match server.poll(&mut self.pages, self.now, &mut out) {
                Step::Send(to) => self.leaves_server(to, &out),
                Step::Wait(until) => {
                    self.server_poll = until;
                    if let Some(until) = until {
                        self.at(until, What::Server);
                    }
                    return;
                }
            }
        }
    }

    /// All that leaves the server shares one link.
    fn leaves_server(&mut self, to: To, bytes: &[u8]) {
        assert!(
            bytes.len() <= self.plot.datagram,
            "packet of {} bytes",
            bytes.len()
        );
        let Network {
            rate, queue, delay, ..
        } = self.plot.network;
        let length = bytes.len() as u64 + 28;
        let free = self.busy_until.max(self.now);
        let waiting = (free - self.now).as_secs_f64() * rate as f64;
        if waiting > queue as f64 {
            return;
        }
        self.busy_until = free + Duration::from_secs_f64(length as f64 / rate as f64);
        let at = self.busy_until + delay;
        for n in 0..self.clients.len() {
            let client = &self.clients[n];
            let reaches = match to {
                To::One(address) => address == client.address,
                To::Group(group) => client.group == Some(group) && client.job.multicast,
            };
            if reaches && !self.is_cut(n) {
                self.carry(at, bytes, |bytes| What::ToClient(n, bytes));
            }
        }
    }

    fn carry(&mut self, at: Instant, bytes: &[u8], to: impl Fn(Vec<u8>) -> What) {
        let Network {
            loss,
            twice,
            late,
            late_by,
            tampered,
            ..
        } = self.plot.network;
        if self.rng.chance(tampered) {
            self.tamper(at, bytes);
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

    /// Somebody records a packet, perhaps changes it, and sends it later to
    /// whom he likes, from where he likes.
    fn tamper(&mut self, at: Instant, bytes: &[u8]) {
        let mut forged = bytes.to_vec();
        if self.rng.chance(50.0) {
            let at = usize::try_from(self.rng.below(forged.len() as u64)).expect("short");
            forged[at] ^= 1 << self.rng.below(8);
        }
        let at = at + self.rng.millis(0, 2000);
        let n = usize::try_from(self.rng.below(self.clients.len() as u64)).expect("few");
        let from = match self.rng.chance(50.0) {
            true => self.clients[n].address,
            false => SocketAddr::from((Ipv4Addr::new(66, 6, 6, 6), 666)),
        };
        self.at(at, What::ToClient(n, forged.clone()));
        self.at(at, What::ToServer(from, forged));
    }

    fn is_cut(&self, n: usize) -> bool {
        let passed = self.now - self.start;
        self.clients[n]
            .job
            .cut
            .is_some_and(|(from, to)| (from..to).contains(&passed))
    }
}

impl Client {
    fn wanting(&self, gone: &BTreeSet<PageNo>) -> BTreeSet<PageNo> {
        let wants = self.job.wants.iter().copied();
        wants
            .filter(|page| !self.have.contains(page) && !gone.contains(page))
            .collect()
    }
}
