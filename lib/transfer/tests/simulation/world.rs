//! Servers, their clients and a network between them, in virtual time: each run
//! follows from its seed alone.

mod clients;
mod network;

use crate::forgery;
use crate::plot::{Ending, Outcome, Pages, Plot, Rng, contents, is_zero};
use clients::Client;
use forkyard_transfer::{
    CookieSecret, EndGame, ImageKey, Receiver, Sender, SenderStep, Sent, ServerEpoch, Serving, Via,
};
use forkyard_types::{PageCount, PageNo};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// No run takes longer, in virtual time.
const END: Duration = Duration::from_secs(120);
/// Nor more events: something goes round in circles then.
const MOST_EVENTS: u64 = 3_000_000;
/// Time peers may be silent.
pub const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    ToServer(usize, SocketAddr, Vec<u8>),
    ToClient(usize, Via, Vec<u8>),
    ForgedToServer(usize, SocketAddr, Vec<u8>),
    ForgedToClient(usize, Via, Vec<u8>),
    Server(usize),
    Client(usize),
    Want(usize),
    Starts(usize),
    Dies(usize),
    ServerDies(usize),
    ServerStarts(usize),
}

/// The server of one image.
struct Served {
    key: ImageKey,
    pages: Pages,
    sender: Option<Sender>,
    poll_at: Option<Instant>,
    busy_until: Instant,
}

pub struct World {
    plot: Plot,
    rng: Rng,
    start: Instant,
    now: Instant,
    queue: BinaryHeap<Reverse<(Instant, u64, What)>>,
    events: u64,
    servers: Vec<Served>,
    clients: Vec<Client>,
    sent: Sent,
    waits: Vec<Duration>,
    took: Duration,
    forged: (u64, u64),
    regrouped: u64,
}

impl World {
    pub fn new(plot: Plot) -> Self {
        let start = Instant::now();
        let mut rng = Rng(plot.seed);
        let _ = rng.next();
        let servers = (0..plot.servers.len()).map(|image| Served {
            key: forgery::keys()[image].clone(),
            pages: Pages {
                seed: contents(plot.seed, image),
                size: plot.pages,
                gone: plot.gone.clone(),
            },
            sender: None,
            poll_at: None,
            busy_until: start,
        });
        let clients = plot.jobs.iter().zip(1..);
        let mut world = Self {
            rng,
            start,
            now: start,
            queue: BinaryHeap::new(),
            events: 0,
            servers: servers.collect(),
            clients: clients
                .map(|(job, n)| Client::new(job.clone(), n))
                .collect(),
            sent: Sent::default(),
            waits: Vec::new(),
            took: Duration::ZERO,
            forged: (0, 0),
            regrouped: 0,
            plot,
        };
        for image in 0..world.servers.len() {
            world.start_server(image);
            for (dies, again) in world.plot.servers[image].dies.clone() {
                world.at(start + dies, What::ServerDies(image));
                if let Some(again) = again {
                    world.at(start + again, What::ServerStarts(image));
                }
            }
        }
        for n in 0..world.clients.len() {
            let job = world.clients[n].job.clone();
            world.at(start + job.starts, What::Starts(n));
            if let Some(dies) = job.dies {
                world.at(start + dies, What::Dies(n));
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
        for sender in self
            .servers
            .iter()
            .filter_map(|server| server.sender.as_ref())
        {
            self.sent.add(sender.stats());
        }
        let received = self.clients.iter().map(|client| {
            let receiver = client.receiver.as_ref();
            receiver.map(Receiver::stats).unwrap_or_default()
        });
        Outcome {
            received: received.collect(),
            ended: self.clients.iter().map(|client| client.ended).collect(),
            listened: self.clients.iter().map(|client| client.listened).collect(),
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
            forged: self.forged,
            regrouped: self.regrouped,
        }
    }

    fn at(&mut self, at: Instant, what: What) {
        let number = self.rng.next();
        self.queue.push(Reverse((at.max(self.now), number, what)));
    }

    fn happens(&mut self, what: What) {
        match what {
            What::ToServer(image, from, bytes) => {
                if let Some(sender) = &mut self.servers[image].sender {
                    sender.receive(from, &bytes, self.now);
                    self.poll_server(image);
                }
            }
            What::ToClient(n, via, bytes) => {
                self.receive(n, via, &bytes);
                self.poll_client(n);
            }
            What::ForgedToServer(image, from, bytes) => {
                if let Some(sender) = &mut self.servers[image].sender {
                    let before = sender.stats().refused;
                    sender.receive(from, &bytes, self.now);
                    let after = sender.stats().refused;
                    assert_eq!(after, before + 1, "seed {}: not refused", self.plot.seed);
                    self.forged.1 += 1;
                    self.poll_server(image);
                }
            }
            What::ForgedToClient(n, via, bytes) => {
                self.receive_forged(n, via, &bytes);
                self.poll_client(n);
            }
            What::Server(image) if self.servers[image].poll_at == Some(self.now) => {
                self.servers[image].poll_at = None;
                self.poll_server(image);
            }
            What::Client(n) if self.clients[n].poll_at == Some(self.now) => {
                self.clients[n].poll_at = None;
                self.poll_client(n);
            }
            What::Server(_) | What::Client(_) => {}
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
            What::ServerDies(image) => {
                if let Some(sender) = self.servers[image].sender.take() {
                    self.sent.add(sender.stats());
                }
            }
            What::ServerStarts(image) => self.start_server(image),
        }
    }

    fn start_server(&mut self, image: usize) {
        let plot = &self.plot;
        let zero = (0..plot.pages.0)
            .filter(|page| is_zero(PageNo(*page)))
            .count() as u64;
        let serving = Serving {
            key: self.servers[image].key.clone(),
            epoch: ServerEpoch(self.rng.next()),
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
        let server = &mut self.servers[image];
        server.sender = Some(Sender::new(serving, self.now));
        server.busy_until = self.now;
        self.poll_server(image);
    }

    fn poll_server(&mut self, image: usize) {
        let mut out = Vec::new();
        loop {
            let server = &mut self.servers[image];
            let Some(sender) = &mut server.sender else {
                return;
            };
            match sender.poll(&mut server.pages, self.now, &mut out) {
                SenderStep::Send(to) => self.leaves_server(image, to, &out),
                SenderStep::Wait(until) => {
                    let before = std::mem::replace(&mut server.poll_at, until);
                    if let Some(until) = until.filter(|_| until != before) {
                        self.at(until, What::Server(image));
                    }
                    return;
                }
            }
        }
    }
}
