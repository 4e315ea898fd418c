//! The two tasks of a connection: one writes, one reads.

use super::{
    Call, Frame, LinkError, Shared, Waking, elsewhere::Elsewhere, exec::Desk, lock, pace::Pace,
    say_at_once,
};
use crate::{
    CallId, Decoder, FrameError, Request, ToGuest, ToHost, VERSION, encode, frame::AT_ONCE,
};
use forkyard_types::{ApiError, ErrorKind, NotStarted};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::UnixStream,
    sync::{mpsc, watch},
};

/// Calls of one guest that may be unanswered.
const CALLS: usize = 64;
/// Frames that make no sense before the connection is closed.
const NONSENSE: u32 = 64;
/// Time after which it is made again.
const AGAIN: Duration = Duration::from_secs(2);

/// Part of the handles that a connection's task has.
#[derive(Debug)]
pub struct Ends {
    pub queued: mpsc::Receiver<Frame>,
    pub directed: mpsc::Receiver<Frame>,
    /// Fails when the last handle goes.
    pub last: watch::Receiver<()>,
    /// Filled once the VM has moved.
    pub elsewhere: mpsc::Receiver<Elsewhere>,
}

pub fn start(
    shared: &Arc<Shared>,
    socket: PathBuf,
    mut stream: UnixStream,
    mut ends: Ends,
    calls: mpsc::Sender<(CallId, Request)>,
) {
    // The tasks keep what handles share, but no handle: when the last of
    // those goes, `last` fails and the connection closes.
    let shared = shared.clone();
    tokio::spawn(async move {
        let moved = loop {
            let held = shared.held.subscribe();
            let why = tokio::select! {
                biased;
                // First: the machine here ends as soon as this is said.
                Some(elsewhere) = ends.elsewhere.recv() => break Ok(elsewhere),
                why = carry(stream, (&mut ends.queued, &mut ends.directed), held, &shared, &calls) => why,
                _ = ends.last.changed() => break Err(LinkError::Closed),
            };
            let LinkError::Protocol { .. } = why else {
                break Err(why);
            };
            // A clone that is not itself yet is given up.
            if lock(&shared.waking).is_some() {
                break Err(why);
            }
            // Its machine runs on, and it may talk sense again: its agent may be another by then. What
            // commands were to be told is not said to those that come after them.
            shared.break_off(&why);
            while ends.queued.try_recv().is_ok() {}
            let mut held = shared.held.subscribe();
            stream = tokio::select! {
                biased;
                Some(elsewhere) = ends.elsewhere.recv() => break Ok(elsewhere),
                again = begun_again(&socket, &mut held) => match again {
                    Ok(stream) => stream,
                    Err(error) => break Err(failed(error)),
                },
                _ = ends.last.changed() => break Err(LinkError::Closed),
            };
        };
        let why = match moved {
            Err(why) => why,
            Ok(elsewhere) => tokio::select! {
                why = elsewhere.follow(&mut ends.queued, &mut ends.directed, &shared, &calls) => why,
                _ = ends.last.changed() => LinkError::Closed,
            },
        };
        shared.closed.send_replace(Some(why.clone()));
        for (_, desk) in std::mem::take(&mut *lock(&shared.desks)) {
            desk.lose(why.clone());
        }
        lock(&shared.visitors).clear();
    });
}

/// Connects to a guest that has talked nonsense, after a while, and once no fork wants it silent. It may have missed
/// that it is to go on.
async fn begun_again(socket: &Path, held: &mut watch::Receiver<bool>) -> io::Result<UnixStream> {
    tokio::time::sleep(AGAIN).await;
    held.wait_for(|held| !held)
        .await
        .map_err(io::Error::other)?;
    let mut stream = UnixStream::connect(socket).await?;
    for word in [ToGuest::Hello { version: VERSION }, ToGuest::Resume] {
        let frame = encode(&word).map_err(io::Error::other)?;
        stream.write_all(&frame).await?;
    }
    Ok(stream)
}

/// Writes and reads until one of both fails.
pub async fn carry(
    stream: impl AsyncRead + AsyncWrite,
    (queued, directed): (&mut mpsc::Receiver<Frame>, &mut mpsc::Receiver<Frame>),
    held: watch::Receiver<bool>,
    shared: &Shared,
    calls: &mpsc::Sender<(CallId, Request)>,
) -> LinkError {
    let (read, write) = tokio::io::split(stream);
    tokio::select! {
        why = writer(write, queued, directed, held) => why,
        why = reader(read, shared, calls) => why,
    }
}

async fn writer(
    mut to: impl AsyncWrite + Unpin,
    queued: &mut mpsc::Receiver<Frame>,
    directed: &mut mpsc::Receiver<Frame>,
    mut held: watch::Receiver<bool>,
) -> LinkError {
    loop {
        let silent = *held.borrow_and_update();
        let frame = tokio::select! {
            biased;
            frame = directed.recv() => frame,
            frame = queued.recv(), if !silent => frame,
            changed = held.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return LinkError::Closed,
            },
        };
        let Some(frame) = frame else {
            return LinkError::Closed;
        };
        // Flushed: a stream over TLS keeps what it is given.
        let written = async {
            to.write_all(&frame).await?;
            to.flush().await
        };
        if let Err(error) = written.await {
            return failed(error);
        }
    }
}

async fn reader(
    mut from: impl AsyncRead + Unpin,
    shared: &Shared,
    calls: &mpsc::Sender<(CallId, Request)>,
) -> LinkError {
    let mut decoder = Decoder::default();
    let mut nonsense = 0;
    let mut pace = Pace::new(Instant::now());
    loop {
        let read = match from.read(decoder.room(AT_ONCE)).await {
            Ok(0) => return LinkError::Closed,
            Ok(read) => read,
            Err(error) => return failed(error),
        };
        decoder.fed(read);
        let mut messages = 0;
        while let Some(message) = decoder.next_message::<ToHost>() {
            messages += 1;
            match message {
                Ok(message) => shared.hear(message, calls),
                Err(error) => {
                    nonsense += 1;
                    if nonsense > NONSENSE {
                        return LinkError::Protocol {
                            source: Arc::<FrameError>::new(error),
                        };
                    }
                }
            }
        }
        let ahead = pace.spent(read, messages, Instant::now());
        if !ahead.is_zero() {
            tokio::time::sleep(ahead).await;
        }
    }
}

/// Nanoseconds since 1970.
fn now_ns() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since_1970.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

fn failed(error: io::Error) -> LinkError {
    let hung_up =
        [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset].contains(&error.kind());
    match hung_up {
        true => LinkError::Closed,
        false => LinkError::Io {
            source: Arc::new(error),
        },
    }
}

impl Shared {
    /// Acts on one message. Never waits: a guest cannot make the host wait.
    fn hear(&self, message: ToHost, calls: &mpsc::Sender<(CallId, Request)>) {
        // Whatever it says: what it is asked may be behind much else.
        self.alive.fill(());
        self.missed.store(0, Ordering::Relaxed);
        if self.is_for_visitor(&message) {
            return;
        }
        match message {
            ToHost::Started => self.restarted(),
            ToHost::Hello { version, epoch } => self.hello.fill((version, epoch)),
            ToHost::Quiesced { fork, failed } => self.quiesced.fill((fork, failed)),
            ToHost::Identified { epoch, problems } => self.identified.fill((epoch, problems)),
            ToHost::Released { problems } => {
                *lock(&self.waking) = None;
                self.released.fill(problems);
            }
            ToHost::ExecOutput {
                session,
                stream,
                data,
            } => {
                self.at_desk(session, |desk| desk.output(stream, data));
            }
            ToHost::ExecMore { session, chunks } => {
                self.at_desk(session, |desk| desk.room(chunks));
            }
            ToHost::ExecEnd { session, outcome } => {
                if let Some(desk) = lock(&self.desks).remove(&session) {
                    desk.end(outcome);
                }
            }
            ToHost::ExecStarted { session, pid } => {
                let mut desks = lock(&self.desks);
                if let Some(desk) = desks.get(&session).filter(|desk| desk.follows()) {
                    desk.begun(pid);
                } else if let Some(desk) = desks.remove(&session) {
                    desk.started(pid);
                }
            }
            ToHost::Kept { session, commands } => {
                if let Some(desk) = lock(&self.desks).remove(&session) {
                    desk.kept(commands);
                }
            }
            ToHost::Call { call, request } => self.called(call, request, calls),
            ToHost::Forget { call } => {
                let mut calls = lock(&self.calls);
                if calls.get(&call) == Some(&Call::Open) {
                    calls.remove(&call);
                }
            }
            ToHost::AskTime { asked } => {
                // Past the queue: it is asked for while the guest holds still.
                let host = now_ns();
                say_at_once(&self.direct, &ToGuest::Time { asked, host });
            }
            ToHost::MemoryWait { percent } => {
                self.memory_wait.store(percent.min(100), Ordering::Relaxed);
            }
        }
    }

    /// Commands and calls that are under way are lost.
    fn break_off(&self, why: &LinkError) {
        lock(&self.calls).retain(|_, call| *call == Call::Answering);
        for (_, desk) in std::mem::take(&mut *lock(&self.desks)) {
            desk.lose(why.clone());
        }
        for (session, to) in std::mem::take(&mut *lock(&self.visitors)) {
            let end = ToHost::ExecEnd {
                session,
                outcome: Err(NotStarted {
                    code: NotStarted::CANNOT_RUN,
                    message: why.to_string(),
                }),
            };
            // There is room for an end, if what came before it has been taken.
            let _ = encode(&end).map(|frame| to.try_send(frame));
        }
    }

    /// The commands and calls of an agent that died are lost. So may be what
    /// it was told last: it is said again to its successor, which holds user
    /// code still until it knows.
    fn restarted(&self) {
        self.break_off(&LinkError::Lost);
        let again = match lock(&self.waking).clone() {
            Some(Waking { identify, released }) => {
                let release = released.then_some(ToGuest::Release);
                [Some(ToGuest::Identify(identify)), release]
            }
            // Quiet for a fork: the fork says how it goes on.
            None if *self.held.borrow() => [None, None],
            None => [Some(ToGuest::Resume), None],
        };
        for message in again.iter().flatten() {
            say_at_once(&self.direct, message);
        }
    }

    fn at_desk(&self, session: crate::Session, act: impl FnOnce(&Desk) -> bool) {
        let mut desks = lock(&self.desks);
        if let Some(desk) = desks.get(&session)
            && !act(desk)
            && let Some(desk) = desks.remove(&session)
        {
            // It said more than it had room for.
            desk.lose(LinkError::Lost);
        }
    }

    fn called(&self, call: CallId, request: Request, calls: &mpsc::Sender<(CallId, Request)>) {
        let room = {
            let mut open = lock(&self.calls);
            open.len() < CALLS && !open.contains_key(&call) && {
                open.insert(call, Call::Open);
                true
            }
        };
        if room {
            if calls.try_send((call, request)).is_ok() {
                return;
            }
            // Not that of another call under the same number, which is under way.
            lock(&self.calls).remove(&call);
        }
        let busy = ApiError {
            kind: ErrorKind::Exhausted,
            message: "too many calls of this VM are under way".into(),
            hint: None,
        };
        // Full as well: then this guest is told nothing, which it earned.
        let reply = ToGuest::Reply {
            call,
            outcome: Err(busy),
        };
        say_at_once(&self.queue, &reply);
    }
}
