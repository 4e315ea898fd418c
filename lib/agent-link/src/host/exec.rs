//! A command in a guest.

use super::{Guest, LinkError, framed, lock, say_at_once};
use crate::{INPUT, INPUT_WINDOW, Session, Stream, ToGuest, WINDOW};
use forkyard_types::{ExitStatus, KeptCommand, NotStarted, WindowSize};
use std::sync::Arc;
use tokio::{
    runtime::Handle,
    sync::{Semaphore, mpsc},
};

/// Output of a command, and its end.
#[derive(Debug)]
pub enum ExecOut {
    /// The command wrote something.
    Output {
        /// Destination.
        stream: Stream,
        /// Bytes of output.
        data: Vec<u8>,
    },
    /// The command ended; nothing follows.
    Ended(ExitStatus),
    /// The command could not be started; nothing follows.
    NotStarted(NotStarted),
    /// The command runs and is kept; nothing follows if it was to be detached.
    Started {
        /// Process id of the command.
        pid: u32,
    },
    /// The commands that are kept; nothing follows.
    Kept(Vec<KeptCommand>),
    /// The link or the agent failed; nothing follows.
    Lost(LinkError),
}

/// A command that runs. Dropped before its end, it is hung up on.
#[derive(Debug)]
pub struct Exec {
    guest: Guest,
    session: Session,
    out: mpsc::Receiver<ExecOut>,
    room: Arc<Semaphore>,
    over: bool,
    follows: bool,
    /// Room made for output that the guest has not been told of.
    owed: u16,
}

/// A command's standard input, and what else it can be told.
#[derive(Clone, Debug)]
pub struct ExecControls {
    guest: Guest,
    session: Session,
    room: Arc<Semaphore>,
}

/// Desk at which the connection leaves what a command does.
#[derive(Debug)]
pub struct Desk {
    out: mpsc::Sender<ExecOut>,
    room: Arc<Semaphore>,
    follows: bool,
}

impl Exec {
    /// Opens a desk for what a command does; one that is followed goes on once it is started.
    pub(super) fn open(guest: &Guest, session: Session, follows: bool) -> Self {
        // Room for its start if that is told, the whole window, and its end.
        let (sender, out) = mpsc::channel(usize::from(WINDOW) + usize::from(follows) + 1);
        let room = Arc::new(Semaphore::new(INPUT_WINDOW.into()));
        lock(&guest.shared.desks).insert(
            session,
            Desk {
                out: sender,
                room: room.clone(),
                follows,
            },
        );
        Self {
            guest: guest.clone(),
            session,
            out,
            room,
            over: false,
            follows,
            owed: 0,
        }
    }

    /// The next thing it does; none after its end. Cancel-safe.
    pub async fn next(&mut self) -> Option<ExecOut> {
        let queue = &self.guest.shared.queue;
        let out = loop {
            tokio::select! {
                biased;
                // Half of the window at once: the guest still has the other half, and each message
                // stops its processor once.
                room = queue.reserve(), if self.owed >= WINDOW / 2 => {
                    let chunks = std::mem::take(&mut self.owed);
                    let more = framed(&ToGuest::ExecMore { session: self.session, chunks });
                    // With no link there is no sender to make room for.
                    if let (Ok(room), Ok(more)) = (room, more) {
                        room.send(more);
                    }
                }
                out = self.out.recv() => break out,
            }
        };
        match &out {
            Some(ExecOut::Output { .. }) => self.owed += 1,
            Some(ExecOut::Started { .. }) if self.follows => {}
            Some(
                ExecOut::Ended(_)
                | ExecOut::NotStarted(_)
                | ExecOut::Started { .. }
                | ExecOut::Kept(_)
                | ExecOut::Lost(_),
            )
            | None => self.over = true,
        }
        out
    }

    /// Returns the standard input of the command.
    pub fn input(&self) -> ExecControls {
        ExecControls {
            guest: self.guest.clone(),
            session: self.session,
            room: self.room.clone(),
        }
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        if !self.over
            && lock(&self.guest.shared.desks)
                .remove(&self.session)
                .is_some()
        {
            let detach = ToGuest::ExecDetach {
                session: self.session,
            };
            hang_up(&self.guest, detach);
        }
    }
}

/// Tells the agent, now or, if much else is on its way to it, as soon as there is room.
pub(super) fn hang_up(guest: &Guest, detach: ToGuest) {
    if say_at_once(&guest.shared.queue, &detach) {
        return;
    }
    if let Ok(runtime) = Handle::try_current() {
        let guest = guest.clone();
        // With the link everything ends that was told over it.
        runtime.spawn(async move { guest.say(detach).await });
    }
}

impl ExecControls {
    /// Sends bytes, as fast as the command takes them. Any number. If
    /// cancelled, some of them may have been sent.
    pub async fn send(&self, data: Vec<u8>) -> Result<(), LinkError> {
        for chunk in data.chunks(INPUT) {
            tokio::select! {
                room = self.room.acquire() => match room {
                    Ok(room) => room.forget(),
                    // It has ended, and reads no more.
                    Err(_) => return Ok(()),
                },
                why = self.guest.closed() => return Err(why),
            }
            self.guest
                .say(ToGuest::ExecInput {
                    session: self.session,
                    data: chunk.to_vec(),
                })
                .await?;
        }
        Ok(())
    }

    /// Waits until the command has taken all that was sent, or reads no more. Cancel-safe.
    pub async fn taken(&self) -> Result<(), LinkError> {
        tokio::select! {
            // Closed once it has ended.
            _ = self.room.acquire_many(INPUT_WINDOW.into()) => Ok(()),
            why = self.guest.closed() => Err(why),
        }
    }

    /// Nothing follows. Cancel-safe.
    pub async fn end(&self) -> Result<(), LinkError> {
        self.guest
            .say(ToGuest::ExecInput {
                session: self.session,
                data: Vec::new(),
            })
            .await
    }

    /// Sends its process group a signal; SIGKILL is for all that it started. Cancel-safe.
    pub async fn signal(&self, signal: u8) -> Result<(), LinkError> {
        let session = self.session;
        self.guest
            .say(ToGuest::ExecSignal { session, signal })
            .await
    }

    /// Gives its terminal another size. Cancel-safe.
    pub async fn resize(&self, size: WindowSize) -> Result<(), LinkError> {
        let session = self.session;
        self.guest.say(ToGuest::ExecResize { session, size }).await
    }
}

impl Desk {
    /// False if it said more than it had room for.
    pub fn output(&self, stream: Stream, data: Vec<u8>) -> bool {
        self.out.capacity() > 1 && self.out.try_send(ExecOut::Output { stream, data }).is_ok()
    }

    /// Notes that the command has read some of its input. False if it has read
    /// what it never got.
    pub fn room(&self, chunks: u16) -> bool {
        let fits = self.room.available_permits() + usize::from(chunks) <= usize::from(INPUT_WINDOW);
        if fits {
            self.room.add_permits(chunks.into());
        }
        fits
    }

    /// True if it goes on.
    pub fn follows(&self) -> bool {
        self.follows
    }

    /// Notes the start of the command, if it is followed. One that is told of
    /// again and again finds no room.
    pub fn begun(&self, pid: u32) {
        if self.out.capacity() > 1 {
            let _ = self.out.try_send(ExecOut::Started { pid });
        }
    }

    pub fn started(self, pid: u32) {
        self.close(ExecOut::Started { pid });
    }

    pub fn kept(self, commands: Vec<KeptCommand>) {
        self.close(ExecOut::Kept(commands));
    }

    pub fn end(self, outcome: Result<ExitStatus, NotStarted>) {
        let end = match outcome {
            Ok(status) => ExecOut::Ended(status),
            Err(why) => ExecOut::NotStarted(why),
        };
        self.close(end);
    }

    pub fn lose(self, why: LinkError) {
        self.close(ExecOut::Lost(why));
    }

    fn close(self, end: ExecOut) {
        // The last place is kept for this.
        let _ = self.out.try_send(end);
        self.room.close();
    }
}
