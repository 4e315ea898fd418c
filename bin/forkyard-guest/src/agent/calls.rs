//! Programs that call the fork API: one connection a call, answered when the
//! host has answered, or, for the call that made a clone and for those that wait
//! for a fork, by the clone itself.

use super::{
    addresses,
    holders::{Held, Holder},
    identity,
    outbox::Outbox,
};
use forkyard_agent_link::{
    Answer, Ask, CallId, Cloned, FrameReader, Request, SOCKET, ToHost, send,
};
use forkyard_types::{ApiError, Epoch, ErrorKind, RequestId, TicketId};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io, mem,
    net::Shutdown,
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Reason why a call fails that was under way when its VM was cloned.
pub const IN_A_CLONE: &str = "this VM is a clone: the call stayed with its parent";
/// Calls under way; more are refused.
const MOST: usize = 64;

/// A caller that does not take its answer is not waited for.
const TAKE: Duration = Duration::from_secs(1);

type Outcome = Result<Answer, ApiError>;

/// Number of a program's connection.
type Conversation = u64;

#[derive(Debug)]
struct Caller {
    conversation: Conversation,
    request: RequestId,
    stream: UnixStream,
    role: Role,
}

/// Change by a call's answer to the holders of tickets.
#[derive(Debug)]
enum Role {
    /// Asks for a ticket, which will end with this process.
    Holder(Holder),
    /// Uses a ticket up.
    Spends(TicketId),
    /// Changes nothing.
    Other,
}

#[derive(Debug, Default)]
struct Pending {
    last: u32,
    waiting: BTreeMap<CallId, Caller>,
    /// Those that want to know when this VM becomes a clone.
    watching: Vec<Caller>,
    /// Calls to make when processes end.
    held: Held,
    /// Calls for tickets whose callers have gone.
    orphaned: BTreeSet<CallId>,
}

impl Pending {
    fn is_full(&self) -> bool {
        self.waiting.len() + self.watching.len() >= MOST
    }

    fn number(&mut self) -> CallId {
        self.last = self.last.wrapping_add(1);
        CallId(self.last)
    }
}

/// The calls under way.
#[derive(Debug)]
pub struct Calls {
    pending: Arc<Mutex<Pending>>,
    outbox: Arc<Outbox>,
    /// The folder of processes.
    processes: PathBuf,
}

impl Calls {
    pub fn new(outbox: Arc<Outbox>) -> Self {
        Self {
            pending: Arc::new(Mutex::new(Pending {
                // An answer to a call of an earlier agent must not be taken
                // for another's.
                last: RequestId::random().0.as_fields().0,
                ..Pending::default()
            })),
            outbox,
            processes: addresses::PROCESSES.into(),
        }
    }

    /// Takes calls from here on. Only root may call: a fork is of all users'
    /// processes.
    pub fn listen(self: &Arc<Self>) -> Result<(), String> {
        let failed = |error: io::Error| format!("listen on {SOCKET}: {error}");
        let _ = fs::remove_file(SOCKET);
        let listener = UnixListener::bind(SOCKET).map_err(failed)?;
        fs::set_permissions(SOCKET, fs::Permissions::from_mode(0o660)).map_err(failed)?;
        let this = self.clone();
        thread::spawn(move || {
            for (conversation, stream) in (0..).zip(listener.incoming().flatten()) {
                let this = this.clone();
                thread::spawn(move || this.converse(conversation, &stream));
            }
        });
        Ok(())
    }

    /// Takes one program's calls until it goes, and forgets it then.
    fn converse(&self, conversation: Conversation, stream: &UnixStream) {
        let mut asks = FrameReader::new(stream);
        while let Ok(Some(Request { id, ask })) = asks.read_message() {
            let Ok(stream) = stream.try_clone() else {
                break;
            };
            let (ask, role) = role_of(ask, &stream);
            let caller = Caller {
                conversation,
                request: id,
                stream,
                role,
            };
            if let Ask::WaitFork { since } = ask {
                self.watch(since, caller);
            } else if let Ask::Disjoint { address, bytes } = ask {
                self.disjoint(address, bytes, caller);
            } else if let Ask::EndWithMe { status } = ask {
                self.tie(status, caller);
            } else if let Ask::DisjointFrames(_) = ask {
                // Which frames are whose is not a program's to say.
                tell(caller, &Err(no_program()));
            } else {
                self.ask(ask, caller);
            }
        }
        let mut pending = self.lock();
        pending
            .watching
            .retain(|caller| caller.conversation != conversation);
        let gone: Vec<_> = pending
            .waiting
            .extract_if(.., |_, caller| caller.conversation == conversation)
            .collect();
        // A ticket that is granted to a process that has gone is given back: its
        // answer must be heard.
        let (orphaned, forgotten): (Vec<_>, Vec<_>) = gone
            .into_iter()
            .partition(|(_, caller)| matches!(caller.role, Role::Holder(_)));
        let orphaned = orphaned.into_iter().map(|(call, _)| call);
        pending.orphaned.extend(orphaned);
        drop(pending);
        for (call, _) in forgotten {
            self.outbox.push(ToHost::Forget { call });
        }
    }

    fn ask(&self, ask: Ask, caller: Caller) {
        let mut pending = self.lock();
        if pending.is_full() {
            drop(pending);
            return tell(caller, &Err(too_many()));
        }
        let call = pending.number();
        let request = Request {
            id: caller.request,
            ask,
        };
        pending.waiting.insert(call, caller);
        drop(pending);
        self.outbox.push(ToHost::Call { call, request });
    }

    /// The host knows of no addresses of programs, only of page frames.
    fn disjoint(&self, address: u64, bytes: u64, caller: Caller) {
        let process = addresses::folder_of_peer(&self.processes, &caller.stream);
        let process = process.map_err(|error| {
            let why = format!("the kernel does not tell which process calls: {error}");
            refusal(ErrorKind::Guest, &why)
        });
        match process.and_then(|process| addresses::frames(&process, address, bytes)) {
            Ok(frames) => self.ask(Ask::DisjointFrames(frames), caller),
            Err(refused) => tell(caller, &Err(refused)),
        }
    }

    /// One that asks again after its agent died may have missed the fork: the
    /// lock is held from the look at the identity until it is on the list.
    fn watch(&self, since: Epoch, caller: Caller) {
        let mut pending = self.lock();
        let outcome = match identity::told() {
            Some((epoch, id)) if epoch != since => Ok(Answer::Forked { id }),
            Some(_) | None if pending.is_full() => Err(too_many()),
            Some(_) | None => return pending.watching.push(caller),
        };
        drop(pending);
        tell(caller, &outcome);
    }

    /// This clone ends with its caller.
    fn tie(&self, status: u8, caller: Caller) {
        let outcome = match Holder::of_peer(&caller.stream) {
            Ok(holder) => {
                let others = Vec::new();
                self.hold(holder, Ask::Exit { status, others });
                Ok(Answer::Tied)
            }
            Err(error) => {
                let why = format!("the kernel does not tell which process calls: {error}");
                Err(refusal(ErrorKind::Guest, &why))
            }
        };
        tell(caller, &outcome);
    }

    /// Has this asked of the host when that process ends.
    fn hold(&self, holder: Holder, ask: Ask) {
        let Some(entry) = self.lock().held.add(&holder, ask) else {
            return;
        };
        let (pending, outbox) = (self.pending.clone(), self.outbox.clone());
        thread::spawn(move || {
            if let Err(error) = holder.wait() {
                eprintln!("forkyard-guest: wait for a program: {error}");
                return;
            }
            let asks = lock(&pending).held.ended(entry);
            asks.into_iter().for_each(|ask| owe(&pending, &outbox, ask));
        });
    }

    /// The host has answered.
    pub fn answer(&self, call: CallId, outcome: Outcome) {
        let mut pending = self.lock();
        pending.held.paid(call);
        let orphaned = pending.orphaned.remove(&call);
        let waiting = pending.waiting.remove(&call);
        drop(pending);
        match (waiting, &outcome) {
            (Some(mut caller), _) => {
                // Before the program hears of it, for it may then end at once.
                match (mem::replace(&mut caller.role, Role::Other), &outcome) {
                    (Role::Holder(holder), Ok(Answer::Ticket(ticket))) => {
                        self.hold(holder, Ask::Kill { ticket: ticket.id });
                    }
                    (Role::Spends(ticket), Ok(_)) => self.lock().held.spent(ticket),
                    (Role::Holder(_) | Role::Spends(_) | Role::Other, _) => {}
                }
                tell(caller, &outcome);
            }
            (None, Ok(Answer::Ticket(ticket))) if orphaned => {
                owe(&self.pending, &self.outbox, Ask::Kill { ticket: ticket.id });
            }
            (None, _) => {}
        }
    }

    /// This is a clone now: `clone()` returns in it, and so does every
    /// `wait_fork()`.
    pub fn cloned(&self, cloned: Cloned) {
        let mut pending = self.lock();
        let watching = mem::take(&mut pending.watching);
        let made_it: Vec<_> = pending
            .waiting
            .extract_if(.., |_, caller| Some(caller.request) == cloned.request)
            .collect();
        drop(pending);
        for (_, caller) in made_it {
            let answer = Answer::Cloned {
                id: cloned.id,
                processes: cloned.processes,
                failed: Vec::new(),
            };
            tell(caller, &Ok(answer));
        }
        for caller in watching {
            tell(caller, &Ok(Answer::Forked { id: cloned.id }));
        }
    }

    /// This is a clone now: its processes hold nothing, and every call fails but
    /// this request's, and those that wait for a fork.
    pub fn fail_all(&self, but: Option<RequestId>, why: &str) {
        let mut pending = self.lock();
        pending.held.clear();
        pending.orphaned.clear();
        let failed: Vec<_> = pending
            .waiting
            .extract_if(.., |_, caller| Some(caller.request) != but)
            .collect();
        drop(pending);
        for (_, caller) in failed {
            tell(caller, &Err(refusal(ErrorKind::Conflict, why)));
        }
    }

    /// Another daemon of the host's may not know of the calls under way: their
    /// programs are hung up on, and make them again.
    pub fn hang_up(&self) {
        let mut pending = self.lock();
        pending.orphaned.clear();
        let waiting = mem::take(&mut pending.waiting);
        drop(pending);
        for (_, caller) in waiting {
            // One that has gone makes no more calls.
            let _ = caller.stream.shutdown(Shutdown::Both);
        }
    }

    /// Another daemon is asked again what the last one did not answer.
    pub fn ask_again(&self) {
        let owed = self.lock().held.owed();
        for (call, request) in owed {
            self.outbox.push(ToHost::Call { call, request });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        lock(&self.pending)
    }
}

fn lock(pending: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks this of the host for a process that has ended.
fn owe(pending: &Mutex<Pending>, outbox: &Outbox, ask: Ask) {
    let mut pending = lock(pending);
    let call = pending.number();
    let request = pending.held.owe(call, ask);
    drop(pending);
    outbox.push(ToHost::Call { call, request });
}

/// A ticket is held by the process that asks for it. Of one that the kernel does
/// not tell it is held by nothing, and has its time.
fn role_of(ask: Ask, stream: &UnixStream) -> (Ask, Role) {
    match ask {
        Ask::RequestTicket { count, kind } => match Holder::of_peer(stream) {
            Ok(holder) => (ask, Role::Holder(holder)),
            Err(_) => (Ask::RequestDetached { count, kind }, Role::Other),
        },
        Ask::Join { ticket } | Ask::Kill { ticket } => (ask, Role::Spends(ticket)),
        Ask::Clone { .. }
        | Ask::Exit { .. }
        | Ask::WaitFork { .. }
        | Ask::Checkpoint
        | Ask::CreateClones { .. }
        | Ask::DropCheckpoint { .. }
        | Ask::Disjoint { .. }
        | Ask::DisjointFrames(_)
        | Ask::RequestDetached { .. }
        | Ask::EndWithMe { .. } => (ask, Role::Other),
    }
}

/// A caller that has gone has nothing to be told.
fn tell(mut caller: Caller, outcome: &Outcome) {
    if caller.stream.set_write_timeout(Some(TAKE)).is_ok() {
        let _ = send(&mut caller.stream, outcome);
    }
}

fn too_many() -> ApiError {
    refusal(
        ErrorKind::Exhausted,
        "too many calls are under way in this VM",
    )
}

fn no_program() -> ApiError {
    refusal(
        ErrorKind::Invalid,
        "programs mark memory by its address, not by page frames",
    )
}

pub(super) fn refusal(kind: ErrorKind, why: &str) -> ApiError {
    ApiError {
        kind,
        message: why.to_owned(),
        hint: None,
    }
}

#[cfg(test)]
mod tests;
