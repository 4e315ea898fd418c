//! The host's end: one connection to one guest's agent.
//!
//! ```text
//! Guest (handles) --queue, direct--> writer task --> socket
//!        ^---- slots, sessions, calls ---- reader task <--'
//! ```
//!
//! What the guest says is hostile input: what is not awaited is dropped,
//! what exceeds its window ends its command, and nothing grows with it. It is read
//! no faster than is good for the host.

mod elsewhere;
mod error;
mod exec;
mod pace;
mod slot;
mod tasks;

pub use elsewhere::{Duplex, Visitors};
pub use error::LinkError;
pub use exec::{Exec, ExecControls, ExecOut};

use crate::{
    Answer, CallId, Command, Identify, Request, Session, ToGuest, VERSION, encode_with_data,
};
use elsewhere::Elsewhere;
use exec::Desk;
use forkyard_types::{ApiError, Epoch, ForkId};
use slot::Slot;
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU32, Ordering},
    },
    time::Duration,
};
use tasks::Ends;
use tokio::{
    net::UnixStream,
    sync::{mpsc, watch},
};

/// Messages to a guest waiting to be written.
const QUEUE: usize = 64;

/// A message, ready to be written.
type Frame = Vec<u8>;

/// A guest's agent. The connection closes with the last handle.
#[derive(Clone, Debug)]
pub struct Guest {
    shared: Arc<Shared>,
    /// Closes the connection when the last handle goes: the tasks hold none.
    _open: Arc<watch::Sender<()>>,
}

/// Greeting of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Identity it last applied; none before the first.
    pub epoch: Option<Epoch>,
}

/// A call that takes up one of the places that a guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// Unanswered call; the guest may withdraw it.
    Open,
    /// Answered call whose reply is not queued yet. The guest cannot free its slot.
    Answering,
}

/// A guest that wakes with an identity: what it was told, to be said again if its
/// agent dies before it has heard.
#[derive(Clone, Debug)]
struct Waking {
    identify: Box<Identify>,
    /// True if it was also told to go on.
    released: bool,
}

#[derive(Debug)]
struct Shared {
    /// Everything in its order, but while the guest holds still.
    queue: mpsc::Sender<Frame>,
    /// Frames that may be sent to a guest that is quiescent.
    direct: mpsc::Sender<Frame>,
    held: watch::Sender<bool>,
    closed: watch::Sender<Option<LinkError>>,
    hello: Slot<(u16, Option<Epoch>)>,
    quiesced: Slot<(ForkId, Option<String>)>,
    identified: Slot<(Epoch, Vec<String>)>,
    released: Slot<Vec<String>>,
    /// Filled whenever the agent shows that it is there.
    alive: Slot<()>,
    /// Requests to hold still that were not answered since the agent last said anything.
    missed: AtomicU32,
    /// Percent of the last time in which the guest's programs waited for memory.
    memory_wait: AtomicU8,
    waking: Mutex<Option<Waking>>,
    desks: Mutex<BTreeMap<Session, Desk>>,
    /// Commands of a host that the VM has left, and where what they do goes.
    visitors: Mutex<BTreeMap<Session, mpsc::Sender<Frame>>>,
    moved: mpsc::Sender<Elsewhere>,
    calls: Mutex<BTreeMap<CallId, Call>>,
    next: AtomicU32,
}

impl Guest {
    /// Connects to the port's socket. Says nothing by itself. Calls of the
    /// guest's programs arrive on `calls`; those it has no room for are
    /// refused. Cancel-safe.
    pub async fn connect(
        socket: &Path,
        calls: mpsc::Sender<(CallId, Request)>,
    ) -> Result<Self, LinkError> {
        let stream = UnixStream::connect(socket)
            .await
            .map_err(|source| LinkError::Connect {
                path: socket.into(),
                source: Arc::new(source),
            })?;
        let (queue, queued) = mpsc::channel(QUEUE);
        let (direct, directed) = mpsc::channel(QUEUE);
        let (moved, elsewhere) = mpsc::channel(1);
        let shared = Arc::new(Shared {
            queue,
            direct,
            held: watch::Sender::new(false),
            closed: watch::Sender::new(None),
            hello: Slot::default(),
            quiesced: Slot::default(),
            identified: Slot::default(),
            released: Slot::default(),
            alive: Slot::default(),
            missed: AtomicU32::new(0),
            memory_wait: AtomicU8::new(0),
            waking: Mutex::default(),
            desks: Mutex::default(),
            visitors: Mutex::default(),
            moved,
            calls: Mutex::default(),
            // What a command of an earlier connection still says must not be
            // taken for another's.
            next: AtomicU32::new(Epoch::random().0.as_fields().0),
        });
        let (open, last) = watch::channel(());
        let ends = Ends {
            queued,
            directed,
            last,
            elsewhere,
        };
        tasks::start(&shared, socket.into(), stream, ends, calls);
        Ok(Self {
            shared,
            _open: Arc::new(open),
        })
    }

    /// Asks the agent for its identity; it may be long in answering, while its guest
    /// boots. Cancel-safe.
    pub async fn hello(&self, within: Duration) -> Result<Hello, LinkError> {
        // Bytes wait in QEMU until the agent opens its port: once is enough.
        self.greet(ToGuest::Hello { version: VERSION }, within)
            .await
    }

    /// Asks the agent of a VM that comes from another host for its identity, with the commands that
    /// host has started going on. Cancel-safe.
    pub async fn hello_after_move(&self, within: Duration) -> Result<Hello, LinkError> {
        self.greet(ToGuest::Moved { version: VERSION }, within)
            .await
    }

    async fn greet(&self, word: ToGuest, within: Duration) -> Result<Hello, LinkError> {
        self.shared.hello.clear();
        self.say(word).await?;
        self.await_slot(&self.shared.hello, "the guest's agent", within)
            .await
            .and_then(understood)
    }

    /// Waits as long as it takes for the answer to a [`Guest::hello`] that was
    /// given up. Cancel-safe.
    pub async fn hello_again(&self) -> Result<Hello, LinkError> {
        tokio::select! {
            hello = self.shared.hello.take() => understood(hello),
            why = self.closed() => Err(why),
        }
    }

    /// Has user code hold still and the link fall silent. From here on all but
    /// `resume` and `identify` wait. If this fails or is cancelled the guest is
    /// told to go on.
    pub async fn quiesce(&self, fork: ForkId, within: Duration) -> Result<(), LinkError> {
        let undo = GoOn(Some(self.clone()));
        self.shared.quiesced.clear();
        self.shared.held.send_replace(true);
        self.say_direct(ToGuest::Quiesce { fork }).await?;
        loop {
            let answered = self
                .await_slot(&self.shared.quiesced, "the guest to hold still", within)
                .await;
            if let Err(LinkError::Timeout { .. }) = answered {
                self.shared.missed.fetch_add(1, Ordering::Relaxed);
            }
            let (answers, failed) = answered?;
            // An answer to an earlier fork that was given up came late.
            if answers != fork {
                continue;
            }
            return match failed {
                Some(why) => Err(LinkError::Refused {
                    what: "hold still",
                    why,
                }),
                None => {
                    undo.disarm();
                    Ok(())
                }
            };
        }
    }

    /// Has the agent show that it is there. While the guest holds still it is not asked, and counts
    /// as there. Cancel-safe.
    pub async fn ping(&self, within: Duration) -> Result<(), LinkError> {
        if *self.shared.held.borrow() {
            return Ok(());
        }
        self.shared.alive.clear();
        let answered = async {
            self.say(ToGuest::Ping).await?;
            self.await_slot(&self.shared.alive, "the guest's agent", within)
                .await
        };
        // Also where messages it does not read leave no room for this one.
        match tokio::time::timeout(within, answered).await {
            Ok(answered) => answered,
            Err(_) if *self.shared.held.borrow() => Ok(()),
            Err(_) => Err(LinkError::Timeout {
                what: "the guest's agent",
                after: within,
            }),
        }
    }

    /// Returns how many requests to hold still were not answered, one after the other, since the agent last said
    /// anything.
    pub fn missed(&self) -> u32 {
        self.shared.missed.load(Ordering::Relaxed)
    }

    /// Returns the percent of the last ten seconds in which all programs of the guest waited for memory,
    /// as its agent last said; 0 if that is little.
    pub fn memory_wait(&self) -> u8 {
        self.shared.memory_wait.load(Ordering::Relaxed)
    }

    /// Has the guest set its clock right: its vCPUs stood still without its having been asked to
    /// hold still. Cancel-safe.
    pub async fn stood_still(&self) -> Result<(), LinkError> {
        self.say_direct(ToGuest::StoodStill).await
    }

    /// Lets user code go on. Harmless if it does. Cancel-safe.
    pub async fn resume(&self) -> Result<(), LinkError> {
        self.say_direct(ToGuest::Resume).await?;
        self.shared.held.send_replace(false);
        Ok(())
    }

    /// Gives the guest its identity. May be said before it runs: the words wait.
    /// Cancel-safe.
    pub async fn identify(&self, what: Identify) -> Result<(), LinkError> {
        self.shared.identified.clear();
        self.shared.released.clear();
        let identify = Box::new(what);
        *lock(&self.shared.waking) = Some(Waking {
            identify: identify.clone(),
            released: false,
        });
        self.shared.held.send_replace(true);
        self.say_direct(ToGuest::Identify(identify)).await
    }

    /// Waits until the identity has been applied; the parts that failed.
    /// Cancel-safe.
    pub async fn identified(&self, within: Duration) -> Result<Vec<String>, LinkError> {
        let expected = lock(&self.shared.waking)
            .as_ref()
            .map(|waking| waking.identify.identity.epoch);
        loop {
            let (epoch, problems) = self
                .await_slot(
                    &self.shared.identified,
                    "the guest to take its identity",
                    within,
                )
                .await?;
            if Some(epoch) == expected {
                return Ok(problems);
            }
        }
    }

    /// Lets the hooks run and user code go on; the hooks that failed.
    /// Cancel-safe.
    pub async fn release(&self, within: Duration) -> Result<Vec<String>, LinkError> {
        if let Some(waking) = &mut *lock(&self.shared.waking) {
            waking.released = true;
        }
        self.say_direct(ToGuest::Release).await?;
        self.shared.held.send_replace(false);
        self.await_slot(&self.shared.released, "the guest's hooks", within)
            .await
    }

    /// Starts a command. Fails at once if its words and environment are too
    /// long to be sent. Cancel-safe: a command without a holder is hung up on.
    pub async fn exec(&self, command: Command) -> Result<Exec, LinkError> {
        let session = self.session();
        let exec = Exec::open(self, session, command.keep);
        let command = Box::new(command);
        self.say(ToGuest::Exec { session, command }).await?;
        Ok(exec)
    }

    /// Follows a command that is kept: it tells that it runs, what it has written as far as that is
    /// kept and goes on to write, if `output` is wanted, and its end. Dropped, it goes on.
    /// Cancel-safe.
    pub async fn attach(&self, pid: u32, output: bool) -> Result<Exec, LinkError> {
        let session = self.session();
        let exec = Exec::open(self, session, true);
        let attach = ToGuest::Attach {
            session,
            pid,
            output,
        };
        self.say(attach).await?;
        Ok(exec)
    }

    /// Asks for the commands that are kept; they are the one thing that the answer has. Cancel-safe.
    pub async fn list_kept(&self) -> Result<Exec, LinkError> {
        let session = self.session();
        let exec = Exec::open(self, session, false);
        self.say(ToGuest::ListKept { session }).await?;
        Ok(exec)
    }

    fn session(&self) -> Session {
        Session(self.shared.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Answers a call. One that is unknown or answered already is ignored.
    /// Cancel-safe.
    pub async fn reply(
        &self,
        call: CallId,
        outcome: Result<Answer, ApiError>,
    ) -> Result<(), LinkError> {
        match lock(&self.shared.calls).get_mut(&call) {
            Some(state @ Call::Open) => *state = Call::Answering,
            Some(Call::Answering) | None => return Ok(()),
        }
        let place = Place {
            shared: &self.shared,
            call,
        };
        let said = self.say(ToGuest::Reply { call, outcome }).await;
        drop(place);
        said
    }

    /// Waits until the link is gone, and says why. Cancel-safe.
    pub async fn closed(&self) -> LinkError {
        let mut closed = self.shared.closed.subscribe();
        let why = closed.wait_for(Option::is_some).await;
        why.ok()
            .and_then(|why| why.clone())
            .unwrap_or(LinkError::Closed)
    }

    async fn say(&self, message: ToGuest) -> Result<(), LinkError> {
        let frame = framed(&message)?;
        self.shared
            .queue
            .send(frame)
            .await
            .map_err(|_| self.why_closed())
    }

    async fn say_direct(&self, message: ToGuest) -> Result<(), LinkError> {
        let frame = framed(&message)?;
        self.shared
            .direct
            .send(frame)
            .await
            .map_err(|_| self.why_closed())
    }

    fn why_closed(&self) -> LinkError {
        self.shared
            .closed
            .borrow()
            .clone()
            .unwrap_or(LinkError::Closed)
    }

    async fn await_slot<T>(
        &self,
        slot: &Slot<T>,
        what: &'static str,
        within: Duration,
    ) -> Result<T, LinkError> {
        tokio::select! {
            value = slot.take() => Ok(value),
            why = self.closed() => Err(why),
            () = tokio::time::sleep(within) => Err(LinkError::Timeout { what, after: within }),
        }
    }
}

fn understood((version, epoch): (u16, Option<Epoch>)) -> Result<Hello, LinkError> {
    match version {
        VERSION => Ok(Hello { epoch }),
        guest => Err(LinkError::Version { guest }),
    }
}

/// The place of a call that is being answered; given back when dropped.
struct Place<'a> {
    shared: &'a Shared,
    call: CallId,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        lock(&self.shared.calls).remove(&self.call);
    }
}

/// Tells a guest to go on, unless all went well.
struct GoOn(Option<Guest>);

impl GoOn {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for GoOn {
    fn drop(&mut self) {
        if let Some(guest) = self.0.take() {
            // Only a full queue to a guest that reads nothing refuses this.
            say_at_once(&guest.shared.direct, &ToGuest::Resume);
            guest.shared.held.send_replace(false);
        }
    }
}

fn framed(message: &ToGuest) -> Result<Frame, LinkError> {
    encode_with_data(message, message.data()).map_err(|source| LinkError::TooLong { source })
}

/// Says something short if there is room for it, without waiting; whether there was.
fn say_at_once(queue: &mpsc::Sender<Frame>, message: &ToGuest) -> bool {
    framed(message).is_ok_and(|frame| queue.try_send(frame).is_ok())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
