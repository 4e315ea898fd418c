//! Programs that call the fork API: one connection a call, answered when the
//! host has answered, or, for the call that made a clone and for those that wait
//! for a fork, by the clone itself.

use super::{addresses, identity, outbox::Outbox};
use forkyard_guestlink::{Answer, Ask, CallId, Cloned, FrameReader, Request, SOCKET, ToHost, send};
use forkyard_types::{ApiError, Epoch, ErrorKind, RequestId};
use std::{
    collections::BTreeMap,
    fs, io,
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

/// Why a call fails that was under way when its VM was cloned.
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
}

#[derive(Debug, Default)]
struct Pending {
    last: u32,
    waiting: BTreeMap<CallId, Caller>,
    /// Those that want to know when this VM becomes a clone.
    watching: Vec<Caller>,
}

impl Pending {
    fn is_full(&self) -> bool {
        self.waiting.len() + self.watching.len() >= MOST
    }
}

/// The calls under way.
#[derive(Debug)]
pub struct Calls {
    pending: Mutex<Pending>,
    outbox: Arc<Outbox>,
    /// The folder of processes.
    processes: PathBuf,
}

impl Calls {
    pub fn new(outbox: Arc<Outbox>) -> Self {
        Self {
            pending: Mutex::new(Pending {
                // An answer to a call of an earlier agent must not be taken
                // for another's.
                last: RequestId::random().0.as_fields().0,
                ..Pending::default()
            }),
            outbox,
            processes: addresses::PROCESSES.into(),
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
        while let Ok(Some(Request { id, ask })) = asks.read_message() {
            let Ok(stream) = stream.try_clone() else {
                break;
            };
            let caller = Caller {
                conversation,
                request: id,
                stream,
            };
            if let Ask::WaitFork { since } = ask {
                self.watch(since, caller);
            } else if let Ask::Disjoint { address, bytes } = ask {
                self.disjoint(address, bytes, caller);
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
        drop(pending);
        for (call, _) in gone {
            self.outbox.push(ToHost::Forget { call });
        }
    }

    fn ask(&self, ask: Ask, caller: Caller) {
        let mut pending = self.lock();
        if pending.is_full() {
            drop(pending);
            return tell(caller, &Err(too_many()));
        }
        pending.last = pending.last.wrapping_add(1);
        let call = CallId(pending.last);
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
            let why = format!("the kernel does not tell who calls: {error}");
            refusal(ErrorKind::Guest, &why)
        });
        match process.and_then(|process| addresses::frames(&process, address, bytes)) {
            Ok(frames) => self.ask(Ask::DisjointFrames(frames), caller),
            Err(refused) => tell(caller, &Err(refused)),
        }
    }

    /// One that asks again after its agent died may have missed the fork: the
    /// lock is held from the look at who we are until it is on the list.
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

    /// The host has answered.
    pub fn answer(&self, call: CallId, outcome: Outcome) {
        let waiting = self.lock().waiting.remove(&call);
        if let Some(caller) = waiting {
            tell(caller, &outcome);
        }
    }

    /// This is a clone now: `clone()` returns in it, and so does every
    /// `wait_fork()`.
    pub fn cloned(&self, cloned: Cloned) {
        let mut pending = self.lock();
        let watching = std::mem::take(&mut pending.watching);
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

    /// Every call fails but this request's, and those that wait for a fork.
    pub fn fail_all(&self, but: Option<RequestId>, why: &str) {
        let failed: Vec<_> = self
            .lock()
            .waiting
            .extract_if(.., |_, caller| Some(caller.request) != but)
            .collect();
        for (_, caller) in failed {
            tell(caller, &Err(refusal(ErrorKind::Conflict, why)));
        }
    }

    /// Another daemon of the host's may not know of the calls under way: their
    /// programs are hung up on, and make them again.
    pub fn hang_up(&self) {
        for (_, caller) in std::mem::take(&mut self.lock().waiting) {
            // One that has gone makes no more calls.
            let _ = caller.stream.shutdown(Shutdown::Both);
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
mod tests {
    use super::*;
    use forkyard_guestlink::Frames;
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

    fn asked(ask: Ask) -> Request {
        Request {
            id: RequestId::random(),
            ask,
        }
    }

    fn join(program: &mut UnixStream, host: &mut FrameReader<UnixStream>) -> (CallId, RequestId) {
        let wanted = asked(Ask::Join {
            ticket: TicketId::random(),
        });
        send(program, &wanted).expect("taken");
        match host.read_message() {
            Ok(Some(ToHost::Call { call, request })) if request == wanted => (call, request.id),
            other => panic!("the host heard {other:?}"),
        }
    }

    fn answer(program: UnixStream) -> Outcome {
        let answer = FrameReader::new(program).read_message();
        answer.expect("sense").expect("an answer")
    }

    fn as_clone(request: Option<RequestId>) -> Cloned {
        Cloned {
            id: 3,
            processes: 2,
            vcpus: None,
            request,
        }
    }

    #[test]
    fn caller_that_goes_is_forgotten_here_and_by_the_host() {
        let (calls, mut host) = calls();
        let (mut gone, mut stays) = (caller(&calls, 1), caller(&calls, 2));
        let (call, _) = join(&mut gone, &mut host);
        let (other, _) = join(&mut stays, &mut host);
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
        let (_, request) = join(&mut made_it, &mut host);
        join(&mut other, &mut host);
        calls.fail_all(Some(request), IN_A_CLONE);
        calls.cloned(as_clone(Some(request)));
        let refused = answer(other).expect_err("refused");
        assert_eq!(refused.kind, ErrorKind::Conflict);
        let cloned = answer(made_it);
        assert!(matches!(
            cloned,
            Ok(Answer::Cloned {
                id: 3,
                processes: 2,
                ..
            })
        ));
    }

    #[test]
    fn whoever_waits_for_a_fork_is_told_in_the_clone_whoever_asked_for_it() {
        let (calls, _host) = calls();
        let mut watcher = caller(&calls, 1);
        let since = Epoch::random();
        send(&mut watcher, &asked(Ask::WaitFork { since })).expect("taken");
        while calls.lock().watching.is_empty() {
            thread::yield_now();
        }
        calls.fail_all(None, IN_A_CLONE);
        calls.cloned(as_clone(None));
        assert_eq!(answer(watcher).expect("told"), Answer::Forked { id: 3 });
    }

    #[test]
    fn memory_that_a_program_marks_is_its_own_and_is_told_in_page_frames() {
        let (port, host) = UnixStream::pair().expect("a pair");
        let outbox = Arc::new(Outbox::new(File::from(OwnedFd::from(port))));
        outbox.start();
        // This process is the caller; there is no other to be seen.
        let processes = addresses::tests::process(std::process::id(), 16, &[8, 9, 0, 3]);
        let calls = Arc::new(Calls {
            processes: processes.path().to_owned(),
            ..Calls::new(outbox)
        });
        let mut host = FrameReader::new(host);
        let mut program = caller(&calls, 1);
        let frames = |first, count| Frames { first, count };
        for (marked, refused) in [
            (Ask::DisjointFrames(vec![frames(1, 1)]), ErrorKind::Invalid),
            (
                Ask::Disjoint {
                    address: 90 << 12,
                    bytes: 1,
                },
                ErrorKind::Guest,
            ),
        ] {
            send(&mut program, &asked(marked)).expect("taken");
            let outcome: Option<Outcome> =
                FrameReader::new(&program).read_message().expect("sense");
            let error = outcome.expect("an answer").expect_err("refused");
            assert_eq!(error.kind, refused);
        }
        let marks = asked(Ask::Disjoint {
            address: 16 << 12,
            bytes: 4 << 12,
        });
        send(&mut program, &marks).expect("taken");
        // The first that it hears: the host never heard of the others.
        let heard = host.read_message().expect("sense");
        let Some(ToHost::Call { call, request }) = heard else {
            panic!("the host heard {heard:?}");
        };
        assert_eq!(request.id, marks.id);
        let want = Ask::DisjointFrames(vec![frames(3, 1), frames(8, 2)]);
        assert_eq!(request.ask, want);
        calls.answer(call, Ok(Answer::Marked));
        assert_eq!(answer(program), Ok(Answer::Marked));
    }

    #[test]
    fn calls_beyond_the_most_are_refused() {
        let (calls, mut host) = calls();
        let mut program = caller(&calls, 1);
        for _ in 0..MOST {
            join(&mut program, &mut host);
        }
        let one_more = asked(Ask::Exit {
            status: 0,
            others: vec![],
        });
        send(&mut program, &one_more).expect("taken");
        let refused = answer(program).expect_err("refused");
        assert_eq!(refused.kind, ErrorKind::Exhausted);
    }
}
