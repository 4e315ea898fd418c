//! The conversation on a WebSocket.
//!
//! ```text
//! client --messages--> hear --lines--> what is asked for
//!        <---events--- tell <--------- what becomes of it
//! ```
//!
//! Each direction is held back by itself: where nothing wants what the client says, its next messages, a
//! close among them, are not read; where it does not read, what is told waits.
//!
//! A client has left if it closes the socket, or answers no ping for two minutes in which it could have.

use crate::{
    lines::{LINE, Lines},
    reply::Refusal,
};
use axum::{body::Bytes, http::StatusCode};
use forkyard_types::{ApiError, ErrorKind, ExecEvent};
use futures::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream, poll_fn},
};
use std::{
    collections::VecDeque,
    future,
    pin::{Pin, pin},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    sync::mpsc,
    time::{Interval, MissedTickBehavior, interval, timeout},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message, Utf8Bytes,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};

/// Time between two pings, by which proxies on the way know that the connection is used.
const PING: Duration = match cfg!(test) {
    true => Duration::from_millis(50),
    false => Duration::from_secs(15),
};
/// Pings without an answer after which a client has left.
const UNANSWERED: u32 = 8;
/// Time that a client has to close its side: it may have much to read before.
const FAREWELL: Duration = Duration::from_secs(60);
/// Time for the last bytes on a connection that is closed.
const LAST: Duration = Duration::from_secs(2);
/// Bytes of each buffer of a connection.
const BUFFER: usize = 16 << 10;
/// Most bytes that wait to be sent, answers to pings among them. An event has less.
const UNSENT: usize = 1 << 20;

type Out<S> = SplitSink<WebSocketStream<S>, Message>;
type In<S> = SplitStream<WebSocketStream<S>>;

/// Gives `begin` the client's messages as lines, and tells what it returns until its end. It is dropped
/// when the client leaves.
pub async fn talk<S, F>(connection: S, begin: impl FnOnce(Lines) -> F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Result<mpsc::Receiver<ExecEvent>, Refusal>>,
{
    let bounds = WebSocketConfig::default()
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        .max_write_buffer_size(UNSENT)
        .max_message_size(Some(LINE))
        .max_frame_size(Some(LINE));
    let socket = WebSocketStream::from_raw_socket(connection, Role::Server, Some(bounds)).await;
    let (mut to, mut from) = socket.split();
    let over = converse(&mut to, &mut from, begin).await;
    let Ok(mut socket) = to.reunite(from) else {
        return;
    };
    match over {
        Over::Closed => {
            let last = async {
                // The answer to the client's close may wait.
                socket.flush().await.ok()?;
                socket.get_mut().shutdown().await.ok()
            };
            let _ = timeout(LAST, last).await;
        }
        Over::TooLong => {
            let _ = timeout(FAREWELL, refuse(&mut socket)).await;
        }
        Over::Gone => {}
    }
}

/// End of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// Both sides have closed, or one has and the other takes its time.
    Closed,
    /// A message is too long: where the next begins cannot be told.
    TooLong,
    /// The connection is of no use any more.
    Gone,
}

async fn converse<S, F>(to: &mut Out<S>, from: &mut In<S>, begin: impl FnOnce(Lines) -> F) -> Over
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = Result<mpsc::Receiver<ExecEvent>, Refusal>>,
{
    let signs = Signs::default();
    let (sender, mut heard) = mpsc::channel(1);
    let lines = Lines::from_stream(poll_fn(move |cx| heard.poll_recv(cx)));
    let mut hearing = pin!(hear(from, sender, &signs));
    let told = tokio::select! {
        over = &mut hearing => return over,
        told = tell(to, begin(lines), &signs) => told,
    };
    match told {
        // A connection that is closed with unread bytes is reset, and the client may lose the end.
        Some(()) => timeout(FAREWELL, hearing).await.unwrap_or(Over::Closed),
        None => Over::Gone,
    }
}

/// Signs that a client is there.
#[derive(Debug, Default)]
struct Signs {
    /// Pings that it has not answered.
    unanswered: AtomicU32,
    /// True while what it says has to wait, answers to pings with it.
    held: AtomicBool,
}

impl Signs {
    fn seen(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
    }

    /// Notes another ping; false if the client has left.
    fn asked(&self) -> bool {
        self.held.load(Ordering::Relaxed)
            || self.unanswered.fetch_add(1, Ordering::Relaxed) < UNANSWERED
    }
}

/// Hears a client until it leaves. What nothing wants to have any more is thrown away.
async fn hear<S: AsyncRead + AsyncWrite + Unpin>(
    from: &mut In<S>,
    lines: mpsc::Sender<Result<Bytes, Refusal>>,
    signs: &Signs,
) -> Over {
    while let Some(message) = from.next().await {
        signs.seen();
        let line = match message {
            Ok(Message::Text(text)) => line_of(text.as_bytes()),
            Ok(Message::Binary(bytes)) => line_of(&bytes),
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => continue,
            Ok(Message::Close(_)) => return Over::Closed,
            Err(tungstenite::Error::Capacity(_)) => return Over::TooLong,
            Err(_) => return Over::Gone,
        };
        signs.held.store(true, Ordering::Relaxed);
        let _ = lines.send(Ok(line)).await;
        signs.held.store(false, Ordering::Relaxed);
        signs.seen();
    }
    Over::Gone
}

/// A message as a line: what breaks lines is space to JSON.
fn line_of(message: &[u8]) -> Bytes {
    let within = message.iter().map(|byte| match byte {
        b'\n' => b' ',
        other => *other,
    });
    within.chain([b'\n']).collect()
}

/// Tells a client what happens, and closes the socket; none if the client has left.
async fn tell<S: AsyncRead + AsyncWrite + Unpin>(
    to: &mut Out<S>,
    begin: impl Future<Output = Result<mpsc::Receiver<ExecEvent>, Refusal>>,
    signs: &Signs,
) -> Option<()> {
    let mut pings = interval(PING);
    // One that is late, because the client did not read, counts once.
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    match pinged(to, &mut pings, signs, begin).await? {
        Ok(mut events) => {
            let mut ended = false;
            while let Some(event) = pinged(to, &mut pings, signs, events.recv()).await? {
                to.send(said(&event)?).await.ok()?;
                signs.seen();
                ended = event.is_last() || matches!(event, ExecEvent::Started(_));
                if event.is_last() {
                    break;
                }
            }
            if !ended {
                let why = Refusal::new(ErrorKind::Guest, "what became of the command is not known");
                to.send(said(&ExecEvent::Error(why.into()))?).await.ok()?;
            }
        }
        Err(refusal) => to
            .send(said(&ExecEvent::Error(refusal.into()))?)
            .await
            .ok()?,
    }
    to.send(close()).await.ok()
}

/// Pings a client until something has happened.
async fn pinged<S: AsyncRead + AsyncWrite + Unpin, T>(
    to: &mut Out<S>,
    pings: &mut Interval,
    signs: &Signs,
    happens: impl Future<Output = T>,
) -> Option<T> {
    let mut happens = pin!(happens);
    loop {
        tokio::select! {
            biased;
            happened = &mut happens => return Some(happened),
            _ = pings.tick() => {}
        }
        if !signs.asked() {
            return None;
        }
        to.send(Message::Ping(Bytes::new())).await.ok()?;
    }
}

fn said(event: &ExecEvent) -> Option<Message> {
    let text = serde_json::to_string(event).ok()?;
    Some(Message::Text(text.into()))
}

fn close() -> Message {
    Message::Close(Some(CloseFrame {
        code: CloseCode::Normal,
        reason: Utf8Bytes::default(),
    }))
}

/// Tells a client that its message is too long, and closes the socket. The rest of the message is read
/// meanwhile, for the client may read nothing until it has sent that.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut WebSocketStream<S>) {
    let text = format!("a message is longer than {LINE} bytes");
    let refusal = Refusal::new(ErrorKind::Invalid, &text).answered(StatusCode::PAYLOAD_TOO_LARGE);
    let told = said(&ExecEvent::Error(ApiError::from(refusal)));
    let mut left: VecDeque<_> = told.into_iter().chain([close()]).collect();
    let mut rest = vec![0; BUFFER];
    future::poll_fn(|cx| {
        if read_on(socket.get_mut(), &mut rest, cx).is_ready() {
            return Poll::Ready(());
        }
        while !left.is_empty() {
            match socket.poll_ready_unpin(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
            let Some(message) = left.pop_front() else {
                break;
            };
            if socket.start_send_unpin(message).is_err() {
                return Poll::Ready(());
            }
        }
        // Then the client closes, which `read_on` hears.
        match socket.poll_flush_unpin(cx) {
            Poll::Ready(Err(_)) => Poll::Ready(()),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    })
    .await;
}

/// Reads until there is no more, and throws it away.
fn read_on<S: AsyncRead + Unpin>(
    connection: &mut S,
    rest: &mut [u8],
    cx: &mut Context<'_>,
) -> Poll<()> {
    loop {
        let mut read = ReadBuf::new(rest);
        match Pin::new(&mut *connection).poll_read(cx, &mut read) {
            Poll::Ready(Ok(())) if !read.filled().is_empty() => {}
            Poll::Ready(_) => return Poll::Ready(()),
            Poll::Pending => return Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests;
