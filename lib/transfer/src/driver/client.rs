//! A client on a socket: one image, from one server.

use super::random;
use super::socket::{self, LONGEST, Waker};
use crate::key::ImageKey;
use crate::pages::{PageSet, Run};
use crate::receiver::{ClientTurn, Complete, Loss, Receiver, ReceiverEvent, Receiving, Via};
use crate::source::PageSink;
use crate::stats::Received;
use crate::wire::{ClientId, Urgency};
use forkyard_types::{PageCount, PageNo};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Datagrams taken before anything else is looked at.
const TURN: usize = 64;
/// While pages come, the thread sleeps no longer than that, as long as no answer
/// is given up sooner: a request for the next page need not wake it to be punctual.
const NAP: Duration = Duration::from_millis(4);
/// Pages come if one did within that.
const BUSY: Duration = Duration::from_millis(50);

/// Image to fetch, and its server.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// Address at which the server listens.
    pub server: SocketAddr,
    /// Our address on the way there.
    pub local: IpAddr,
    /// The image's key.
    pub key: ImageKey,
    /// Size of the image.
    pub pages: PageCount,
    /// Time the server may be silent.
    pub patience: Duration,
    /// Most pages asked for in advance at a time.
    pub ahead: usize,
}

/// Reason why a page did not come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The server is lost, and will not be asked again.
    #[error("{page} cannot be fetched from {server}; fork again from a host that is alive")]
    Lost {
        /// The page.
        page: PageNo,
        /// Address of its server.
        server: SocketAddr,
        /// Cause.
        source: Loss,
    },
    /// The server cannot read it.
    #[error("{server} cannot read {page}: what it has is damaged")]
    Gone {
        /// The page.
        page: PageNo,
        /// Address of its server.
        server: SocketAddr,
    },
    /// The client has been ended.
    #[error("{page} is not fetched any more")]
    Ended {
        /// The page.
        page: PageNo,
    },
}

/// Fetches the pages of an image until it is dropped; callers that wait then are told.
#[derive(Debug)]
pub struct PageClient {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    socket: UdpSocket,
    state: Mutex<State>,
    changed: Condvar,
    waker: Waker,
}

struct State {
    receiver: Receiver,
    sink: Box<dyn PageSink + Send>,
    gone: BTreeSet<PageNo>,
    complete: bool,
    ended: bool,
    /// Until when the thread sleeps, if it does.
    sleeps: Option<Instant>,
    listen: Option<SocketAddrV4>,
    out: Vec<u8>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("receiver", &self.receiver)
            .finish_non_exhaustive()
    }
}

impl PageClient {
    /// Starts to fetch; pages go to `sink`, on a thread of the client's own.
    pub fn start(fetch: Fetch, sink: Box<dyn PageSink + Send>) -> io::Result<Self> {
        let socket = socket::unicast(SocketAddr::new(fetch.local, 0))?;
        // Only the server's packets come in, and its refusals are heard of.
        socket.connect(fetch.server)?;
        let receiving = Receiving {
            key: fetch.key,
            client: ClientId(random()?),
            nonce: random()?,
            pages: fetch.pages,
            patience: fetch.patience,
            ahead: fetch.ahead,
        };
        let state = State {
            receiver: Receiver::new(receiving, Instant::now())?,
            sink,
            gone: BTreeSet::new(),
            complete: false,
            ended: false,
            sleeps: None,
            listen: None,
            out: Vec::new(),
        };
        let shared = Arc::new(Shared {
            server: fetch.server,
            socket,
            state: Mutex::new(state),
            changed: Condvar::new(),
            waker: Waker::new()?,
        });
        let its = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("fetch".into())
            .spawn(move || its.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Blocks until `page` is with the sink. A server that is silent for longer
    /// than the patience is an error, and so is every page from then on.
    pub fn fetch(&self, page: PageNo) -> Result<(), FetchError> {
        self.fetch_all(&[page])
    }

    /// As [`fetch`](Self::fetch), for several at once; the error is about the first
    /// that does not come.
    pub fn fetch_all(&self, pages: &[PageNo]) -> Result<(), FetchError> {
        let shared = &*self.shared;
        let mut state = shared.state();
        self.ask(&mut state, pages, Urgency::Waited);
        for page in pages {
            let page = *page;
            while !state.receiver.has(page) {
                shared.stands(&state, page)?;
                let woken = shared.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            }
        }
        Ok(())
    }

    /// Asks for pages without blocking until they come.
    pub fn want(&self, pages: &[PageNo], urgency: Urgency) {
        let mut state = self.shared.state();
        self.ask(&mut state, pages, urgency);
    }

    /// Notes that these are not waited for any more.
    pub fn withdraw(&self, pages: &[PageNo]) {
        let mut state = self.shared.state();
        pages.iter().for_each(|page| state.receiver.withdraw(*page));
    }

    /// All pages but these are there already, from elsewhere.
    pub fn have_all_but(&self, changed: &PageSet) {
        let mut state = self.shared.state();
        let pages = (0..changed.size().0).map(PageNo);
        for page in pages.filter(|page| !changed.contains(*page)) {
            state.receiver.have(page);
        }
    }

    /// Has these pages come before all others, where everything is fetched.
    pub fn put_first(&self, runs: &[Run]) {
        self.shared.state().receiver.put_first(runs);
    }

    /// Has these pages come after all others, where everything is fetched.
    pub fn put_last(&self, runs: &[Run]) {
        self.shared.state().receiver.put_last(runs);
    }

    /// Chooses whether to fetch everything, in the background.
    pub fn complete(&self, complete: Complete) {
        let mut state = self.shared.state();
        state.receiver.complete(complete);
        self.shared.poll(&mut state);
    }

    /// Tells whether everything is there that ever will be.
    pub fn is_complete(&self) -> bool {
        self.shared.state().complete
    }

    /// Pages that are there.
    pub fn pages(&self) -> PageCount {
        self.shared.state().receiver.pages()
    }

    /// Tells whether a page is there.
    pub fn has(&self, page: PageNo) -> bool {
        self.shared.state().receiver.has(page)
    }

    /// Returns the counters of the client.
    pub fn stats(&self) -> Received {
        self.shared.state().receiver.stats()
    }

    /// From a question to its answer, on average.
    pub fn round_trip(&self) -> Option<Duration> {
        self.shared.state().receiver.round_trip()
    }

    /// Returns why the server is lost, if it is.
    pub fn lost(&self) -> Option<Loss> {
        self.shared.state().receiver.lost()
    }

    /// The caller's own thread sends the request: the other need not wake up.
    fn ask(&self, state: &mut State, pages: &[PageNo], urgency: Urgency) {
        for page in pages {
            state.receiver.want(*page, urgency);
        }
        self.shared.poll(state);
    }
}

impl Drop for PageClient {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.ended = true;
            let State { receiver, out, .. } = &mut *state;
            if receiver.leave(out).is_some() {
                // If it does not arrive, the server will notice in time.
                let _ = self.shared.socket.send(out);
            }
        }
        self.shared.changed.notify_all();
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            // It has said why, if it panicked.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks whether a page may still come.
    fn stands(&self, state: &State, page: PageNo) -> Result<(), FetchError> {
        let server = self.server;
        if let Some(source) = state.receiver.lost() {
            return Err(FetchError::Lost {
                page,
                server,
                source,
            });
        }
        if state.gone.contains(&page) {
            return Err(FetchError::Gone { page, server });
        }
        match state.ended {
            true => Err(FetchError::Ended { page }),
            false => Ok(()),
        }
    }

    /// Sends what is due, and has the thread wake up in time; answers for when.
    fn poll(&self, state: &mut State) -> Option<Instant> {
        let until = loop {
            let State { receiver, out, .. } = &mut *state;
            match receiver.poll(Instant::now(), out) {
                // As if it had been lost on the way, if it fails.
                ClientTurn::Send => drop(self.socket.send(out)),
                ClientTurn::Wait(until) => break until,
            }
        };
        let late = match (until, state.sleeps) {
            (Some(until), Some(sleeps)) => until < sleeps,
            (Some(_), None) | (None, _) => false,
        };
        if self.note(state) || late {
            state.sleeps = until;
            self.waker.wake();
        }
        until
    }

    /// Takes note of what the receiver says; whether there was anything.
    fn note(&self, state: &mut State) -> bool {
        let mut any = false;
        while let Some(event) = state.receiver.event() {
            any = true;
            match event {
                ReceiverEvent::Listen(group) => state.listen = group,
                ReceiverEvent::Gone(page) => {
                    state.gone.insert(page);
                    state.sink.gone(page);
                }
                ReceiverEvent::Lost { why, .. } => state.sink.lost(why),
                ReceiverEvent::Complete => state.complete = true,
            }
        }
        if any {
            self.changed.notify_all();
        }
        any
    }

    fn run(&self) {
        let mut buffer = vec![0; LONGEST];
        let mut group: Option<(SocketAddrV4, Option<UdpSocket>)> = None;
        let mut came = Instant::now();
        loop {
            let listening = group.iter().filter_map(|(_, socket)| socket.as_ref());
            let sockets: Vec<_> = std::iter::once(&self.socket).chain(listening).collect();
            let ways = [Via::Alone, Via::Group];
            let received = sockets
                .iter()
                .zip(ways)
                .try_fold(false, |any, (socket, via)| {
                    let some = self.take(socket, via, &mut buffer)?;
                    io::Result::Ok(any || some)
                });
            let now = Instant::now();
            if matches!(received, Ok(true)) {
                came = now;
            }
            let mut state = self.state();
            let until = self.poll(&mut state);
            if state.ended {
                return;
            }
            let listen = state.listen;
            if listen != group.as_ref().map(|(group, _)| *group) {
                drop(state);
                group = listen.map(|address| (address, self.listen(address)));
                continue;
            }
            // Not `None`, which says that it does not sleep.
            let longest = match now < came + BUSY {
                true => now + NAP,
                false => now + Duration::from_secs(3600),
            };
            let until = until.map_or(longest, |until| until.min(longest));
            state.sleeps = Some(until);
            drop(state);
            let waited = received.and_then(|_| socket::wait(&self.waker, &sockets, Some(until)));
            self.state().sleeps = None;
            if waited.is_err() {
                // The host is short of something.
                thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// A socket for the group. Without one, all comes by unicast.
    fn listen(&self, address: SocketAddrV4) -> Option<UdpSocket> {
        let by = self.socket.local_addr().ok().and_then(socket::interface)?;
        socket::group(address, by).ok()
    }

    /// Takes packets from a socket; tells whether there were any. What has come by now
    /// is taken in one go, so that the sink can put it in its place in one go, and
    /// before any reader sees that it is there.
    fn take(&self, socket: &UdpSocket, via: Via, buffer: &mut [u8]) -> io::Result<bool> {
        let (mut batch, mut received, mut taken) = (None, Ok(()), 0);
        while taken < TURN {
            let datagrams = match socket::receive(socket, buffer) {
                Ok(Some((datagrams, _))) => datagrams,
                Ok(None) => break,
                Err(error) => {
                    received = Err(error);
                    break;
                }
            };
            let (state, _) = batch.get_or_insert_with(|| {
                let state = self.state();
                let before = state.receiver.pages();
                (state, before)
            });
            let State { receiver, sink, .. } = &mut **state;
            taken += datagrams.len().max(1);
            let now = Instant::now();
            datagrams.for_each(|datagram| receiver.receive(datagram, via, &mut **sink, now));
        }
        let Some((mut state, before)) = batch else {
            return received.map(|()| false);
        };
        state.sink.flush();
        self.note(&mut state);
        let new = state.receiver.pages() != before;
        drop(state);
        if new {
            self.changed.notify_all();
        }
        received.map(|()| true)
    }
}
