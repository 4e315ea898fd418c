//! Commands of a guest that moves to another host go on, and their clients keep their streams.
//!
//! ```text
//! client -- desk -- Guest of the host it left == stream == Visitors -- Guest of its host -- agent
//! ```
//!
//! A guest that holds still has said and heard all that was on the way, so both hosts know of each
//! message on which side of the move it is: none is lost and none comes twice. Windows of output
//! and input are those between desk and agent, whatever lies in between.
//!
//! | fails | then |
//! |---|---|
//! | the stream, or the host that was left | [`Visitors`] hangs up on the commands |
//! | the stream, or the host where the VM is | desks are told [`LinkError::Moved`] |
//! | the host that was left never comes | the commands are hung up on when [`Visitors`] is dropped |

use super::{Frame, Guest, LinkError, Shared, exec::hang_up, lock, tasks::carry};
use crate::{
    CallId, Decoder, INPUT_WINDOW, Request, Session, ToGuest, ToHost, WINDOW, encode_with_data,
    frame::AT_ONCE,
};
use std::{fmt, future::pending, io, pin::Pin, sync::Arc};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};

/// Messages of one command that may be under way to its client: both windows, its start and its end.
const EACH: usize = WINDOW as usize + INPUT_WINDOW as usize + 2;
/// Commands that may be begun beside those that were handed over.
const MORE: usize = 16;

/// A stream of bytes both ways.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn Duplex>>> + Send>>;

/// The host that a VM has moved to, and a way to its commands there.
pub struct Elsewhere {
    host: String,
    stream: Connecting,
}

impl fmt::Debug for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Elsewhere({})", self.host)
    }
}

impl Elsewhere {
    /// Serves handles over that host, until the way there breaks.
    pub(super) async fn follow(
        self,
        queued: &mut mpsc::Receiver<Frame>,
        directed: &mut mpsc::Receiver<Frame>,
        shared: &Shared,
        calls: &mpsc::Sender<(CallId, Request)>,
    ) -> LinkError {
        // What was said to the guest while it was held still, which its new host says to it.
        shared.held.send_replace(false);
        let source = match self.stream.await {
            Ok(stream) => {
                let held = shared.held.subscribe();
                let why = carry(stream, (queued, directed), held, shared, calls).await;
                match why {
                    LinkError::Io { source } => Some(source),
                    LinkError::Connect { .. }
                    | LinkError::Closed
                    | LinkError::Timeout { .. }
                    | LinkError::TooLong { .. }
                    | LinkError::Refused { .. }
                    | LinkError::Version { .. }
                    | LinkError::Protocol { .. }
                    | LinkError::Moved { .. }
                    | LinkError::Lost => None,
                }
            }
            Err(error) => Some(Arc::new(error)),
        };
        let host = self.host;
        LinkError::Moved { host, source }
    }
}

/// Commands of a host that a VM has left. Dropped, they are hung up on.
#[derive(Debug)]
pub struct Visitors {
    guest: Guest,
    from_guest: mpsc::Receiver<Frame>,
    to: mpsc::Sender<Frame>,
}

impl Guest {
    /// Numbers of the commands that are followed over this connection.
    pub fn sessions(&self) -> Vec<Session> {
        let visitors: Vec<_> = lock(&self.shared.visitors).keys().copied().collect();
        let own = lock(&self.shared.desks);
        own.keys().copied().chain(visitors).collect()
    }

    /// Follows the commands on another host, where the VM has gone on while its guest held still.
    /// To be said before the machine here ends.
    pub fn follow(
        &self,
        host: &str,
        stream: impl Future<Output = io::Result<Box<dyn Duplex>>> + Send + 'static,
    ) {
        let elsewhere = Elsewhere {
            host: host.to_owned(),
            stream: Box::pin(stream),
        };
        // A connection that has moved on already, or is closed, stays so.
        let _ = self.shared.moved.try_send(elsewhere);
    }

    /// Takes over commands that another host has started. To be said before the guest goes on; what
    /// they do waits for [`Visitors::carry`].
    pub fn take_over(&self, sessions: &[Session]) -> Visitors {
        let (to, from_guest) = mpsc::channel((sessions.len() + MORE) * EACH);
        let mut visitors = lock(&self.shared.visitors);
        visitors.extend(sessions.iter().map(|session| (*session, to.clone())));
        drop(visitors);
        Visitors {
            guest: self.clone(),
            from_guest,
            to,
        }
    }
}

impl Shared {
    /// Passes a message on to the host that started its command, if another one did.
    pub(super) fn is_for_visitor(&self, message: &ToHost) -> bool {
        let Some(session) = message.session() else {
            return false;
        };
        let mut visitors = lock(&self.visitors);
        let Some(to) = visitors.get(&session) else {
            return false;
        };
        let frame = encode_with_data(message, message.data());
        let sent = frame.is_ok_and(|frame| to.try_send(frame).is_ok());
        // One that says more than it has room for is no longer listened to.
        if !sent || matches!(message, ToHost::ExecEnd { .. } | ToHost::Kept { .. }) {
            visitors.remove(&session);
        }
        true
    }
}

impl Visitors {
    /// Passes on what the commands and their clients say, until the other host has left or the guest
    /// has gone. If cancelled, the commands are hung up on.
    pub async fn carry(mut self, stream: impl Duplex) {
        let (read, write) = tokio::io::split(stream);
        let guest = self.guest.clone();
        let to = self.to.clone();
        tokio::select! {
            biased;
            () = outward(&mut self.from_guest, write) => {}
            () = inward(&guest, &to, read) => {}
            _ = guest.closed() => {}
        }
    }
}

impl Drop for Visitors {
    fn drop(&mut self) {
        let mut left = Vec::new();
        lock(&self.guest.shared.visitors).retain(|session, to| {
            let is_its = to.same_channel(&self.to);
            left.extend(is_its.then_some(*session));
            !is_its
        });
        for session in left {
            hang_up(&self.guest, ToGuest::ExecDetach { session });
        }
    }
}

async fn outward(from_guest: &mut mpsc::Receiver<Frame>, mut to: impl AsyncWrite + Unpin) {
    while let Some(frame) = from_guest.recv().await {
        let written = async {
            to.write_all(&frame).await?;
            to.flush().await
        };
        if written.await.is_err() {
            return;
        }
    }
    pending().await
}

async fn inward(guest: &Guest, to: &mpsc::Sender<Frame>, mut from: impl AsyncRead + Unpin) {
    let mut decoder = Decoder::default();
    while let Ok(read @ 1..) = from.read(decoder.room(AT_ONCE)).await {
        decoder.fed(read);
        while let Some(message) = decoder.next_message::<ToGuest>() {
            let Ok(message) = message else { return };
            if guest.admits(&message, to) && guest.say(message).await.is_err() {
                return;
            }
        }
    }
}

impl Guest {
    /// True if a message of another host is about a command of its own; one that begins is, from here
    /// on.
    fn admits(&self, message: &ToGuest, to: &mpsc::Sender<Frame>) -> bool {
        let Some(session) = message.session() else {
            return false;
        };
        if lock(&self.shared.desks).contains_key(&session) {
            return false;
        }
        let mut visitors = lock(&self.shared.visitors);
        let is_its = |to: &mpsc::Sender<Frame>, of: &mpsc::Sender<Frame>| of.same_channel(to);
        match (visitors.get(&session), message) {
            (Some(of), ToGuest::ExecDetach { .. }) if is_its(to, of) => {
                visitors.remove(&session);
                true
            }
            (Some(of), _) => is_its(to, of),
            (None, ToGuest::Exec { .. } | ToGuest::Attach { .. } | ToGuest::ListKept { .. }) => {
                visitors.insert(session, to.clone());
                true
            }
            (None, _) => false,
        }
    }
}
