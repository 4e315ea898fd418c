//! Programs that call the fork API: one connection a call, answered when the
//! host has answered, or, for the call that made a clone, by the clone itself.

use super::outbox::Outbox;
use forkyard_guestlink::{Answer, Ask, CallId, FrameReader, SOCKET, ToHost, send};
use forkyard_types::{ApiError, ErrorKind};
use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Why a call fails that was under way when its VM was cloned.
pub const IN_A_CLONE: &str = "this VM is a clone: the call stayed with its parent";
/// Why a call fails whose host forgot it.
pub const HOST_RESTARTED: &str = "the host's daemon was restarted during the call";
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
    stream: UnixStream,
}

#[derive(Debug, Default)]
struct Pending {
    last: u32,
    waiting: BTreeMap<CallId, Caller>,
}

/// The calls under way.
#[derive(Debug)]
pub struct Calls {
    pending: Mutex<Pending>,
    outbox: Arc<Outbox>,
}

impl Calls {
    pub fn new(outbox: Arc<Outbox>) -> Self {
        Self {
            pending: Mutex::default(),
            outbox,
        }
    }

    /// Takes calls from here on. Only root may call: a fork is of everyone's
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
        while let Ok(Some(ask)) = asks.read_message::<Ask>() {
            let Ok(stream) = stream.try_clone() else {
                break;
            };
            let caller = Caller {
                conversation,
                stream,
            };
            self.ask(ask, caller);
        }
        let gone: Vec<_> = self
            .lock()
            .waiting
            .extract_if(.., |_, caller| caller.conversation == conversation)
            .collect();
        for (call, _) in gone {
            self.outbox.push(ToHost::Forget { call });
        }
    }

    fn ask(&self, ask: Ask, caller: Caller) {
        let mut pending = self.lock();
        if pending.waiting.len() >= MOST {
            drop(pending);
            let why = "too many calls are under way in this VM";
            return tell(caller, &Err(refusal(ErrorKind::Exhausted, why)));
        }
        pending.last = pending.last.wrapping_add(1);
        let call = CallId(pending.last);
        pending.waiting.insert(call, caller);
        drop(pending);
        self.outbox.push(ToHost::Call { call, ask });
    }

    /// The host has answered.
    pub fn answer(&self, call: CallId, outcome: Outcome) {
        let waiting = self.lock().waiting.remove(&call);
        if let Some(caller) = waiting {
            tell(caller, &outcome);
        }
    }

    /// `clone()` returns in this clone.
    pub fn cloned(&self, call: CallId, id: u16) {
        self.answer(
            call,
            Ok(Answer::Cloned {
                id,
                failed: Vec::new(),
            }),
        );
    }

    /// Every call but this one fails.
    pub fn fail_all(&self, but: Option<CallId>, why: &str) {
        let failed: Vec<_> = self
            .lock()
            .waiting
            .extract_if(.., |call, _| Some(*call) != but)
            .collect();
        for (_, caller) in failed {
            tell(caller, &Err(refusal(ErrorKind::Conflict, why)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller that has gone has nothing to be told.
fn tell(mut caller: Caller, outcome: &Outcome) {
    if caller.stream.set_write_timeout(Some(TAKE)).is_ok() {
        let _ = send(&mut caller.stream, outcome);
    }
}

fn refusal(kind: ErrorKind, why: &str) -> ApiError {
    ApiError {
        kind,
        message: why.to_owned(),
        hint: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::TicketId;
    use std::{fs::File, os::fd::OwnedFd};

    /// The calls of an agent, and the host's end of its port.
    fn calls() -> (Arc<Calls>, FrameReader<UnixStream>) {
        let (port, host) = UnixStream::pair().expect("a pair");
        let outbox = Arc::new(Outbox::new(File::from(OwnedFd::from(port))));
        outbox.start();
        (Arc::new(Calls::new(outbox)), FrameReader::new(host))
    }

    fn caller(calls: &Arc<Calls>, conversation: Conversation) -> UnixStream {
        let (program, stream) = UnixStream::pair().expect("a pair");
        let calls = calls.clone();
        thread::spawn(move || calls.converse(conversation, &stream));
        program
    }

    fn join(program: &mut UnixStream, host: &mut FrameReader<UnixStream>) -> CallId {
        let ticket = TicketId::random();
        send(program, &Ask::Join { ticket }).expect("taken");
        match host.read_message() {
            Ok(Some(ToHost::Call { call, ask })) if ask == (Ask::Join { ticket }) => call,
            other => panic!("the host heard {other:?}"),
        }
    }

    #[test]
    fn caller_that_goes_is_forgotten_here_and_by_the_host() {
        let (calls, mut host) = calls();
        let (mut gone, mut stays) = (caller(&calls, 1), caller(&calls, 2));
        let call = join(&mut gone, &mut host);
        let other = join(&mut stays, &mut host);
        drop(gone);
        let heard = host.read_message::<ToHost>().expect("sense");
        assert_eq!(heard, Some(ToHost::Forget { call }));
        let waiting: Vec<_> = calls.lock().waiting.keys().copied().collect();
        assert_eq!(waiting, [other]);
    }

    #[test]
    fn in_a_clone_every_call_fails_but_the_one_that_made_it() {
        let (calls, mut host) = calls();
        let (mut made_it, mut other) = (caller(&calls, 1), caller(&calls, 2));
        let call = join(&mut made_it, &mut host);
        join(&mut other, &mut host);
        calls.fail_all(Some(call), IN_A_CLONE);
        calls.cloned(call, 3);
        let answer = |program| FrameReader::new(program).read_message::<Outcome>();
        let refused = answer(other).expect("sense").expect("an answer");
        assert_eq!(refused.expect_err("refused").kind, ErrorKind::Conflict);
        let cloned = answer(made_it).expect("sense").expect("an answer");
        assert!(matches!(cloned, Ok(Answer::Cloned { id: 3, .. })));
    }

    #[test]
    fn calls_beyond_the_most_are_refused() {
        let (calls, mut host) = calls();
        let mut program = caller(&calls, 1);
        for _ in 0..MOST {
            join(&mut program, &mut host);
        }
        send(&mut program, &Ask::RequestTicket { count: 1 }).expect("taken");
        let answer = FrameReader::new(program).read_message::<Outcome>();
        let refused = answer.expect("sense").expect("an answer");
        assert_eq!(refused.expect_err("refused").kind, ErrorKind::Exhausted);
    }
}
