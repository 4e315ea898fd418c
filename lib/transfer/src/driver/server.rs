//! A server on a socket: serves many images, each by its own [`Sender`].

use super::batch::Batch;
use super::random;
use super::socket::{self, LONGEST, Waker};
use crate::flow::FlowLaw;
use crate::key::{Channel, CookieSecret, ImageKey};
use crate::lockstep::Window;
use crate::pages::Run;
use crate::push::Push;
use crate::sender::Sender;
use crate::serving::{EndGame, Serving};
use crate::source::PageSource;
use crate::stats::{Sent, Tally};
use crate::step::{SenderStep, To};
use crate::wire::{self, ServerEpoch};
use forkyard_types::PageCount;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Packets taken, or sent, before anything else is looked at.
const TURN: usize = 64;

/// Terms on which an image is offered.
#[derive(Clone, Debug)]
pub struct ImageOffer {
    /// The image's key.
    pub key: ImageKey,
    /// Size of the image.
    pub pages: PageCount,
    /// Pages of it that are not known to be zero.
    pub data: PageCount,
    /// Port of the group, if multicast is wanted.
    pub group: Option<u16>,
    /// Longest packet that passes, without IP and UDP.
    pub datagram: usize,
    /// Law of the rate.
    pub law: FlowLaw,
    /// Pages to send unasked.
    pub push: Push,
    /// Pages its clones are expected to want first.
    pub working_set: Vec<Run>,
    /// Nothing is pushed before so many are here, or so much time has passed.
    pub gather: (usize, Duration),
    /// Pages that each of its clones reads for itself.
    pub disjoint: Vec<Run>,
}

/// Serves images to other hosts until it is dropped.
#[derive(Debug)]
pub struct PageServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    socket: UdpSocket,
    images: Mutex<Images>,
    waker: Waker,
    ended: AtomicBool,
}

#[derive(Debug, Default)]
struct Images {
    served: HashMap<Channel, Served>,
    /// Traffic of the images that are not served any more.
    past: Tally,
}

struct Served {
    sender: Sender,
    source: Box<dyn PageSource>,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Served").field(&self.sender).finish()
    }
}

impl PageServer {
    /// Listens at `at`. Multicast needs an address of one interface.
    pub fn start(at: SocketAddr) -> io::Result<Self> {
        let socket = socket::unicast(at)?;
        let address = socket.local_addr()?;
        let shared = Arc::new(Shared {
            socket,
            images: Mutex::default(),
            waker: Waker::new()?,
            ended: AtomicBool::new(false),
        });
        let its = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("serve".into())
            .spawn(move || its.run())?;
        Ok(Self {
            address,
            shared,
            thread: Some(thread),
        })
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves an image, in place of one of the same key. Fails if no random
    /// numbers are to be had.
    pub fn offer(&self, offer: ImageOffer, source: Box<dyn PageSource>) -> io::Result<()> {
        let channel = offer.key.channel();
        let ImageOffer {
            key,
            pages,
            data,
            group,
            datagram,
            law,
            push,
            working_set,
            gather,
            disjoint,
        } = offer;
        let serving = Serving {
            key,
            epoch: ServerEpoch(random()?),
            secret: CookieSecret::new(super::secret()?),
            pages,
            data,
            datagram,
            group: group.filter(|_| socket::interface(self.address).is_some()),
            law,
            push,
            working_set,
            gather,
            disjoint,
            window: Window::default(),
            end_game: EndGame::default(),
            patience: Duration::from_secs(20),
        };
        let sender = Sender::new(serving, Instant::now());
        self.shared
            .images()
            .put(channel, Some(Served { sender, source }));
        Ok(())
    }

    /// Serves an image no more; its clients will find that it is silent.
    pub fn withdraw(&self, channel: Channel) {
        self.shared.images().put(channel, None);
    }

    /// Returns the traffic of an image; `None` if it is not served.
    pub fn stats(&self, channel: Channel) -> Option<Sent> {
        let images = self.shared.images();
        let served = images.served.get(&channel);
        served.map(|served| served.sender.stats())
    }

    /// Returns the traffic of all images there were, by link.
    pub fn tally(&self) -> Tally {
        let images = self.shared.images();
        let mut tally = images.past.clone();
        for served in images.served.values() {
            tally.add(served.sender.tally());
        }
        tally
    }

    /// Returns the number of an image's clients.
    pub fn clients(&self, channel: Channel) -> usize {
        let images = self.shared.images();
        let served = images.served.get(&channel);
        served.map_or(0, |served| served.sender.members())
    }
}

impl Images {
    /// Another in the place of one, or none.
    fn put(&mut self, channel: Channel, served: Option<Served>) {
        let before = match served {
            Some(served) => self.served.insert(channel, served),
            None => self.served.remove(&channel),
        };
        if let Some(before) = before {
            self.past.add(before.sender.tally());
        }
    }
}

impl Drop for PageServer {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            // It has said why, if it panicked.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn images(&self) -> MutexGuard<'_, Images> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let (mut buffer, mut out, mut batch) = (vec![0; LONGEST], Vec::new(), Batch::new());
        while !self.ended.load(Ordering::Acquire) {
            // A client that asks alone has an answer before it is looked whether others ask.
            let mut turn = |most| self.turn(most, &mut buffer, &mut out, &mut batch);
            let step = match turn(1) {
                Ok((1.., _)) => turn(TURN),
                other => other,
            };
            let step = step.map(|(_, until)| until);
            let waited = step.and_then(|until| socket::wait(&self.waker, &[&self.socket], until));
            if waited.is_err() {
                // The host is short of something; clients will ask again.
                thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// Takes what has come, in so many datagrams or a few more, and sends what is due;
    /// answers how many came, and until when to wait.
    fn turn(
        &self,
        most: usize,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
        batch: &mut Batch,
    ) -> io::Result<(usize, Option<Instant>)> {
        let (mut images, mut taken) = (self.images(), 0);
        while taken < most {
            let Some((datagrams, from)) = socket::receive(&self.socket, buffer)? else {
                break;
            };
            taken += datagrams.len().max(1);
            let now = Instant::now();
            for datagram in datagrams {
                let channel = wire::channel(datagram).ok();
                if let Some(served) = channel.and_then(|channel| images.served.get_mut(&channel)) {
                    served.sender.receive(from, datagram, now);
                }
            }
        }
        let mut wait: Option<Instant> = None;
        for served in images.served.values_mut() {
            let until = self.send(served, out, batch)?;
            wait = [wait, until].into_iter().flatten().min();
        }
        Ok((taken, wait))
    }

    fn send(
        &self,
        served: &mut Served,
        out: &mut Vec<u8>,
        batch: &mut Batch,
    ) -> io::Result<Option<Instant>> {
        // There may be more.
        let mut until = Some(Instant::now());
        for _ in 0..TURN {
            let now = Instant::now();
            let to = match served.sender.poll(&mut served.source, now, out) {
                SenderStep::Wait(wait) => {
                    until = wait;
                    break;
                }
                SenderStep::Send(To::One(to)) => to,
                SenderStep::Send(To::Group(group)) => SocketAddr::V4(group),
            };
            batch.add(&self.socket, out, to)?;
        }
        batch.send(&self.socket)?;
        Ok(until)
    }
}
