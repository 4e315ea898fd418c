//! One NBD connection.
//!
//! Its thread reads requests and carries out at once what memory suffices for. Replies gather in
//! a buffer that is sent when there is nothing more to read. Flushes, durable writes and reads
//! of what is not in memory go to workers, whose replies a second thread sends: workers never
//! wait for a client.

use crate::{
    exports::{Opened, Shelf},
    passes::Passes,
    workers::{Pending, Ticket, Workers},
};
use forkyard_nbd::{
    Broken, ByteRange, Cookie, DecodeOutcome, Durability, Extent, Extents, Fragments, Handshake,
    HandshakeStep, NbdCommand, NbdError, ReplyEncoder, Request, Transmission,
};
use forkyard_volume::WriterEpoch;
use forkyard_volume_store::{Blame, Found, Library, Patience, Scratch, Store, StoreError};
use std::{
    borrow::Cow,
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

/// Bytes read at once.
const PIECE: usize = 256 << 10;
/// Bytes of replies that are sent although there is more to read.
const ENOUGH: usize = 256 << 10;
/// Requests that workers have of one connection.
const MOST_PENDING: usize = 64;
/// Extents of one block status reply.
const MOST_EXTENTS: usize = 1024;

/// End of a connection that is not the client's wish.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("connection failed")]
    Io(#[from] io::Error),
}

/// Received bytes that are not used yet.
#[derive(Debug, Default)]
struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    fn unused(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Waits for more, until there are `least` unused bytes. False at the end of the stream.
    fn fill(&mut self, mut stream: &UnixStream, least: usize) -> io::Result<bool> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        while self.end < least {
            // Grows with what has come, not with what was announced.
            let room = least.min(self.end * 2).max(self.end + PIECE);
            if self.bytes.len() < room {
                self.bytes.resize(room, 0);
            }
            match stream.read(&mut self.bytes[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Serves a client until it leaves.
pub(crate) fn serve(
    stream: UnixStream,
    (library, passes): (&Library, Option<&Passes>),
    workers: &Workers,
) -> Result<(), Ended> {
    let mut input = Input::default();
    let Some((transmission, opened)) = negotiate(&stream, (library, passes), &mut input)? else {
        return Ok(());
    };
    let stream = Arc::new(stream);
    let outgoing = Arc::new(Mutex::new(Arc::clone(&stream)));
    let (replies, late) = channel();
    let sender = Arc::clone(&outgoing);
    let sender = thread::Builder::new()
        .name("replies".into())
        .spawn(move || send_late(&late, &sender))?;
    let mut connection = Connection {
        reply: transmission.reply(),
        opened: Arc::new(opened),
        workers,
        pending: Arc::default(),
        replies,
        out: Vec::new(),
        scratch: Scratch::default(),
    };
    let outcome = connection.run(&transmission, &mut input, &stream, &outgoing);
    connection.pending.drain();
    drop(connection);
    if outcome.is_err() {
        let _ = stream.shutdown(Shutdown::Both);
    }
    let _ = sender.join();
    outcome
}

fn negotiate(
    mut stream: &UnixStream,
    (library, passes): (&Library, Option<&Passes>),
    input: &mut Input,
) -> Result<Option<(Transmission, Opened)>, Ended> {
    let (mut handshake, greeting) = Handshake::begin();
    stream.write_all(&greeting)?;
    let mut shelf = Shelf {
        library,
        passes,
        opened: None,
    };
    loop {
        match handshake.step(input.unused(), &mut shelf)? {
            HandshakeStep::Need(least) => {
                if !input.fill(stream, least)? {
                    return Ok(None);
                }
            }
            HandshakeStep::Send { used, bytes } => {
                input.start += used;
                stream.write_all(&bytes)?;
            }
            HandshakeStep::Opened {
                used,
                bytes,
                agreed,
            } => {
                input.start += used;
                stream.write_all(&bytes)?;
                let opened = shelf.opened.take();
                return Ok(opened.map(|opened| (Transmission::new(agreed), opened)));
            }
            HandshakeStep::Ended { bytes } => {
                stream.write_all(&bytes)?;
                return Ok(None);
            }
        }
    }
}

fn send_late(late: &Receiver<Vec<u8>>, outgoing: &Mutex<Arc<UnixStream>>) {
    for bytes in late {
        if send(outgoing, &bytes).is_err() {
            // The connection's own thread notices, too.
            return;
        }
    }
}

fn send(outgoing: &Mutex<Arc<UnixStream>>, bytes: &[u8]) -> io::Result<()> {
    let outgoing = outgoing.lock().unwrap_or_else(PoisonError::into_inner);
    let mut stream: &UnixStream = &outgoing;
    stream.write_all(bytes)
}

struct Connection<'a> {
    reply: ReplyEncoder,
    opened: Arc<Opened>,
    workers: &'a Workers,
    pending: Arc<Pending>,
    replies: Sender<Vec<u8>>,
    out: Vec<u8>,
    scratch: Scratch,
}

impl Connection<'_> {
    fn run(
        &mut self,
        transmission: &Transmission,
        input: &mut Input,
        stream: &UnixStream,
        outgoing: &Mutex<Arc<UnixStream>>,
    ) -> Result<(), Ended> {
        loop {
            if self.out.len() >= ENOUGH {
                send(outgoing, &self.out)?;
                self.out.clear();
            }
            match transmission.step(input.unused())? {
                DecodeOutcome::Need(least) => {
                    if !self.out.is_empty() {
                        send(outgoing, &self.out)?;
                        self.out.clear();
                    }
                    if !input.fill(stream, least)? {
                        return Ok(());
                    }
                }
                DecodeOutcome::Request { used, request } => {
                    self.carry_out(request);
                    input.start += used;
                }
                DecodeOutcome::Refused {
                    used,
                    cookie,
                    error,
                } => {
                    self.reply.failed(&mut self.out, cookie, error);
                    input.start += used;
                }
                DecodeOutcome::Ended => return Ok(()),
            }
        }
    }

    fn carry_out(&mut self, request: Request<'_>) {
        let cookie = request.cookie;
        match request.command {
            NbdCommand::Read { range, fragments } => self.read(cookie, range, fragments),
            NbdCommand::Write {
                offset,
                data,
                durability,
            } => {
                let change = Change::Write(offset, data.into());
                self.change(cookie, change, durability);
            }
            NbdCommand::Trim { range, durability } => {
                self.change(cookie, Change::Discard(range), durability);
            }
            NbdCommand::WriteZeroes {
                range, durability, ..
            } => self.change(cookie, Change::Zero(range), durability),
            NbdCommand::Flush => self.flush_later(cookie),
            // What is read stays in memory by itself.
            NbdCommand::Cache(_) => self.reply.done(&mut self.out, cookie),
            NbdCommand::BlockStatus { range, extents } => self.status(cookie, range, extents),
        }
    }

    fn change(&mut self, cookie: Cookie, change: Change<'_>, durability: Durability) {
        let Some(epoch) = self.opened.epoch else {
            let code = NbdError::Permission;
            return self.reply.failed(&mut self.out, cookie, code);
        };
        match (
            change.make(&self.opened.store, epoch, Patience::Now),
            durability,
        ) {
            (Ok(()), Durability::Cached) => self.reply.done(&mut self.out, cookie),
            (Ok(()), Durability::Durable) => self.flush_later(cookie),
            (Err(StoreError::NotCached), _) => {
                let (opened, reply) = (Arc::clone(&self.opened), self.reply);
                let change = change.into_owned();
                let mut target = None;
                self.later(cookie, move |out| {
                    // Once it is made only other hosts are waited for.
                    if target.is_none() {
                        change.make(&opened.store, epoch, Patience::Disk)?;
                    }
                    if durability == Durability::Durable {
                        opened.store.flush_held(&mut target)?;
                        opened.store.admit(epoch)?;
                    }
                    reply.done(out, cookie);
                    Ok(())
                });
            }
            (Err(error), _) => {
                let code = self.code(&error);
                self.reply.failed(&mut self.out, cookie, code);
            }
        }
    }

    fn read(&mut self, cookie: Cookie, range: ByteRange, fragments: Fragments) {
        let (out, scratch) = (&mut self.out, &mut self.scratch);
        let form = (range, fragments);
        let read = read(
            &self.opened,
            self.reply,
            cookie,
            form,
            out,
            scratch,
            Patience::Now,
        );
        match read {
            Ok(()) => {}
            Err(StoreError::NotCached) => self.read_later(cookie, range, fragments),
            Err(error) => {
                let code = self.code(&error);
                self.reply.failed(&mut self.out, cookie, code);
            }
        }
    }

    fn read_later(&mut self, cookie: Cookie, range: ByteRange, fragments: Fragments) {
        let (opened, reply) = (Arc::clone(&self.opened), self.reply);
        self.later(cookie, move |out| {
            let mut scratch = Scratch::default();
            let form = (range, fragments);
            let patience = Patience::Disk;
            read(&opened, reply, cookie, form, out, &mut scratch, patience)
        });
    }

    fn flush_later(&mut self, cookie: Cookie) {
        let (opened, reply) = (Arc::clone(&self.opened), self.reply);
        let mut target = None;
        self.later(cookie, move |out| {
            opened.store.flush_held(&mut target)?;
            // Of a writer that was fenced meanwhile nothing is answered: it may be held nowhere.
            if let Some(epoch) = opened.epoch {
                opened.store.admit(epoch)?;
            }
            reply.done(out, cookie);
            Ok(())
        });
    }

    /// Has a worker fill a reply. What needs blocks of another host is tried again once they are
    /// here; no worker waits for them.
    fn later(
        &mut self,
        cookie: Cookie,
        attempt: impl FnMut(&mut Vec<u8>) -> Result<(), StoreError> + Send + 'static,
    ) {
        let late = Late {
            opened: Arc::clone(&self.opened),
            reply: self.reply,
            cookie,
            workers: self.workers.clone(),
            replies: self.replies.clone(),
            _ticket: self.pending.enter(MOST_PENDING),
            attempt: Box::new(attempt),
        };
        self.workers.run(move || late.run());
    }

    fn status(&mut self, cookie: Cookie, range: ByteRange, extents: Extents) {
        let most = match extents {
            Extents::Any => MOST_EXTENTS,
            Extents::One => 1,
        };
        let (offset, length) = (range.offset, u64::from(range.length));
        let opened = &self.opened;
        let found = opened.view();
        match found.and_then(|view| opened.store.extents(view, offset, length, most)) {
            Ok(found) => {
                let extents = found.into_iter().map(|(length, hole)| Extent {
                    length: u32::try_from(length).unwrap_or(u32::MAX),
                    hole,
                });
                let extents: Vec<_> = extents.collect();
                self.reply.status(&mut self.out, cookie, &extents);
            }
            Err(error) => {
                let code = self.code(&error);
                self.reply.failed(&mut self.out, cookie, code);
            }
        }
    }

    fn code(&self, error: &StoreError) -> NbdError {
        code(&self.opened, error)
    }
}

/// Change that a client asked for.
enum Change<'a> {
    Write(u64, Cow<'a, [u8]>),
    Discard(ByteRange),
    Zero(ByteRange),
}

impl Change<'_> {
    fn make(&self, store: &Store, epoch: WriterEpoch, wait: Patience) -> Result<(), StoreError> {
        match self {
            Self::Write(offset, data) => store.write_if(epoch, *offset, data, wait),
            Self::Discard(range) => store.discard(epoch, range.offset, range.length.into(), wait),
            Self::Zero(range) => store.zero_if(epoch, range.offset, range.length.into(), wait),
        }
    }

    fn into_owned(self) -> Change<'static> {
        match self {
            Self::Write(offset, data) => Change::Write(offset, data.into_owned().into()),
            Self::Discard(range) => Change::Discard(range),
            Self::Zero(range) => Change::Zero(range),
        }
    }
}

/// Appends a reply, or nothing if it fails. Called again if another host had to be waited for.
type Attempt = dyn FnMut(&mut Vec<u8>) -> Result<(), StoreError> + Send;

/// Reply that a worker fills.
struct Late {
    opened: Arc<Opened>,
    reply: ReplyEncoder,
    cookie: Cookie,
    workers: Workers,
    replies: Sender<Vec<u8>>,
    _ticket: Ticket,
    attempt: Box<Attempt>,
}

impl Late {
    fn run(mut self) {
        let mut out = Vec::new();
        match (self.attempt)(&mut out) {
            Ok(()) => self.answer(out),
            Err(StoreError::Absent(absent)) => absent.when_here(move |outcome| match outcome {
                Ok(()) => self.workers.clone().run(move || self.run()),
                Err(error) => self.fail(&error),
            }),
            Err(StoreError::Unheld(unheld)) => unheld.when_held(move |outcome| match outcome {
                Ok(()) => self.workers.clone().run(move || self.run()),
                Err(error) => self.fail(&error),
            }),
            Err(error) => self.fail(&error),
        }
    }

    fn fail(self, error: &StoreError) {
        let mut out = Vec::new();
        let code = code(&self.opened, error);
        self.reply.failed(&mut out, self.cookie, code);
        self.answer(out);
    }

    fn answer(self, out: Vec<u8>) {
        // Fails once the connection has: no answer can be sent then.
        let _ = self.replies.send(out);
    }
}

/// Appends the reply to a read. If it fails, nothing was appended.
fn read(
    opened: &Opened,
    reply: ReplyEncoder,
    cookie: Cookie,
    (range, fragments): (ByteRange, Fragments),
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
    patience: Patience,
) -> Result<(), StoreError> {
    let (store, view) = (&opened.store, opened.view()?);
    let start = out.len();
    reply.data(out, cookie, range);
    let data = out.len();
    let length = usize::try_from(range.length).unwrap_or(0);
    out.resize(data + length, 0);
    match store.read(view, range.offset, &mut out[data..], scratch, patience) {
        Ok(Found::Data) => Ok(()),
        Ok(Found::Zeroes) => {
            if fragments == Fragments::Allowed {
                let whole = out.split_off(start);
                if !reply.hole(out, cookie, range) {
                    out.extend_from_slice(&whole);
                }
            }
            Ok(())
        }
        Err(error) => {
            out.truncate(start);
            Err(error)
        }
    }
}

/// Number of an error for the client. The text of those that are the host's goes to the log.
fn code(opened: &Opened, error: &StoreError) -> NbdError {
    match error.blame() {
        Blame::Fenced => NbdError::Permission,
        Blame::Caller => NbdError::Invalid,
        // QEMU stops a VM on this, which goes on once there is room, or the other host is back.
        Blame::Room | Blame::Elsewhere => NbdError::NoSpace,
        Blame::Missing | Blame::Key | Blame::Host => {
            let volume = opened.store.name();
            tracing::error!(volume, %error, source = ?error, "request failed");
            NbdError::Io
        }
    }
}
