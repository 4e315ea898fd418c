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
    Broken, Command, Cookie, Durability, ErrorCode, Extent, Extents, Fragments, Handshake,
    Incoming, Range, Reply, Request, Transmission, Turn,
};
use forkyard_volume_store::{Blame, Found, Library, Patience, Scratch, StoreError};
use std::{
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
            Turn::Need(least) => {
                if !input.fill(stream, least)? {
                    return Ok(None);
                }
            }
            Turn::Send { used, bytes } => {
                input.start += used;
                stream.write_all(&bytes)?;
            }
            Turn::Opened {
                used,
                bytes,
                agreed,
            } => {
                input.start += used;
                stream.write_all(&bytes)?;
                let opened = shelf.opened.take();
                return Ok(opened.map(|opened| (Transmission::new(agreed), opened)));
            }
            Turn::Ended { bytes } => {
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
    reply: Reply,
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
                Incoming::Need(least) => {
                    if !self.out.is_empty() {
                        send(outgoing, &self.out)?;
                        self.out.clear();
                    }
                    if !input.fill(stream, least)? {
                        return Ok(());
                    }
                }
                Incoming::Request { used, request } => {
                    self.carry_out(request);
                    input.start += used;
                }
                Incoming::Refused {
                    used,
                    cookie,
                    error,
                } => {
                    self.reply.failed(&mut self.out, cookie, error);
                    input.start += used;
                }
                Incoming::Ended => return Ok(()),
            }
        }
    }

    fn carry_out(&mut self, request: Request<'_>) {
        let cookie = request.cookie;
        match request.command {
            Command::Read { range, fragments } => self.read(cookie, range, fragments),
            Command::Write {
                offset,
                data,
                durability,
            } => {
                let written = self.writer().and_then(|epoch| {
                    let written = self.opened.store.write(epoch, offset, data);
                    written.map_err(|error| self.code(&error))
                });
                self.written(cookie, written, durability);
            }
            Command::Trim { range, durability } => {
                let written = self.writer().and_then(|epoch| {
                    let (offset, length) = (range.offset, u64::from(range.length));
                    let discarded = self.opened.store.discard(epoch, offset, length);
                    discarded.map_err(|error| self.code(&error))
                });
                self.written(cookie, written, durability);
            }
            Command::WriteZeroes {
                range, durability, ..
            } => {
                let written = self.writer().and_then(|epoch| {
                    let (offset, length) = (range.offset, u64::from(range.length));
                    let zeroed = self.opened.store.zero(epoch, offset, length);
                    zeroed.map_err(|error| self.code(&error))
                });
                self.written(cookie, written, durability);
            }
            Command::Flush => self.flush_later(cookie),
            // What is read stays in memory by itself.
            Command::Cache(_) => self.reply.done(&mut self.out, cookie),
            Command::BlockStatus { range, extents } => self.status(cookie, range, extents),
        }
    }

    fn writer(&self) -> Result<forkyard_volume::Epoch, ErrorCode> {
        self.opened.epoch.ok_or(ErrorCode::Permission)
    }

    fn written(&mut self, cookie: Cookie, done: Result<(), ErrorCode>, durability: Durability) {
        match (done, durability) {
            (Ok(()), Durability::Cached) => self.reply.done(&mut self.out, cookie),
            (Ok(()), Durability::Durable) => self.flush_later(cookie),
            (Err(error), _) => self.reply.failed(&mut self.out, cookie, error),
        }
    }

    fn read(&mut self, cookie: Cookie, range: Range, fragments: Fragments) {
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

    fn read_later(&mut self, cookie: Cookie, range: Range, fragments: Fragments) {
        let (opened, reply) = (Arc::clone(&self.opened), self.reply);
        self.later(move |out| {
            let mut scratch = Scratch::default();
            let form = (range, fragments);
            let read = read(
                &opened,
                reply,
                cookie,
                form,
                out,
                &mut scratch,
                Patience::Wait,
            );
            if let Err(error) = read {
                reply.failed(out, cookie, code(&opened, &error));
            }
        });
    }

    fn flush_later(&mut self, cookie: Cookie) {
        let (opened, reply) = (Arc::clone(&self.opened), self.reply);
        self.later(move |out| match opened.store.flush() {
            Ok(()) => reply.done(out, cookie),
            Err(error) => reply.failed(out, cookie, code(&opened, &error)),
        });
    }

    /// Has a worker fill a reply.
    fn later(&mut self, job: impl FnOnce(&mut Vec<u8>) + Send + 'static) {
        let ticket: Ticket = self.pending.enter(MOST_PENDING);
        let replies = self.replies.clone();
        self.workers.run(move || {
            let mut out = Vec::new();
            job(&mut out);
            // Fails once the connection has: no answer can be sent then.
            let _ = replies.send(out);
            drop(ticket);
        });
    }

    fn status(&mut self, cookie: Cookie, range: Range, extents: Extents) {
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

    fn code(&self, error: &StoreError) -> ErrorCode {
        code(&self.opened, error)
    }
}

/// Appends the reply to a read. If it fails, nothing was appended.
fn read(
    opened: &Opened,
    reply: Reply,
    cookie: Cookie,
    (range, fragments): (Range, Fragments),
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
fn code(opened: &Opened, error: &StoreError) -> ErrorCode {
    match error.blame() {
        Blame::Fenced => ErrorCode::Permission,
        Blame::Caller => ErrorCode::Invalid,
        Blame::Room => ErrorCode::NoSpace,
        Blame::Missing | Blame::Host => {
            let volume = opened.store.name();
            tracing::error!(volume, %error, source = ?error, "request failed");
            ErrorCode::Io
        }
    }
}
