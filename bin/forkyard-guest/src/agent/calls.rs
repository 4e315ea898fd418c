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
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Sender, channel},
    },
    thread,
};

/// Why a call fails that was under way when its VM was cloned.
pub const IN_A_CLONE: &str = "this VM is a clone: the call stayed with its parent";
/// Why a call fails whose host forgot it.
pub const HOST_RESTARTED: &str = "the host's daemon was restarted during the call";
/// Calls under way; more are refused.
const MOST: usize = 64;

type Outcome = Result<Answer, ApiError>;

#[derive(Debug, Default)]
struct Pending {
    last: u32,
    waiting: BTreeMap<CallId, Sender<Outcome>>,
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
            for stream in listener.incoming().flatten() {
                let this = this.clone();
                thread::spawn(move || this.converse(stream));
            }
        });
        Ok(())
    }

    fn converse(&self, mut stream: UnixStream) -> Option<()> {
        let mut asks = FrameReader::new(stream.try_clone().ok()?);
        while let Some(ask) = asks.read_message::<Ask>().ok()? {
            // A caller that has gone has nothing to be told.
            send(&mut stream, &self.ask(ask)).ok()?;
        }
        Some(())
    }

    fn ask(&self, ask: Ask) -> Outcome {
        let (answer, answered) = channel();
        let call = {
            let mut pending = self.lock();
            if pending.waiting.len() >= MOST {
                return Err(refusal(
                    ErrorKind::Exhausted,
                    "too many calls are under way in this VM",
                ));
            }
            pending.last = pending.last.wrapping_add(1);
            let call = CallId(pending.last);
            pending.waiting.insert(call, answer);
            call
        };
        self.outbox.push(ToHost::Call { call, ask });
        answered
            .recv()
            .unwrap_or_else(|_| Err(refusal(ErrorKind::Guest, "the agent lost the call")))
    }

    /// The host has answered.
    pub fn answer(&self, call: CallId, outcome: Outcome) {
        let waiting = self.lock().waiting.remove(&call);
        if let Some(waiting) = waiting {
            let _ = waiting.send(outcome);
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
        for (_, waiting) in failed {
            let _ = waiting.send(Err(refusal(ErrorKind::Conflict, why)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refusal(kind: ErrorKind, why: &str) -> ApiError {
    ApiError {
        kind,
        message: why.to_owned(),
        hint: None,
    }
}
