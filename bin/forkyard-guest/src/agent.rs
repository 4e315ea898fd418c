//! The agent: does in the guest what the host says.
//!
//! ```text
//!            +-- calls: programs' sockets --+
//! port ---> work --- sessions: commands ----+--> outbox ---> port
//!            +-- userland, identity, hooks
//! ```
//!
//! One thread reads what the host says and acts on it at once, in order. It
//! alone changes who this VM is.

mod addresses;
mod calls;
mod hooks;
pub mod identity;
mod netlink;
mod outbox;
mod port;
mod sessions;
pub mod userland;

use crate::{AGENT, PROGRAM};
use calls::Calls;
use forkyard_guestlink::{Cloned, FrameReader, Identify, ReadError, ToGuest, ToHost, VERSION};
use forkyard_types::{Address, Epoch, ForkId};
use outbox::Outbox;
use sessions::Sessions;
use std::{
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
    sync::Arc,
    thread::sleep,
    time::Duration,
};
use userland::Userland;

/// Between the death of a worker and the start of the next.
const PAUSE: Duration = Duration::from_millis(200);

/// Keeps a worker running: the image's init does not know of us.
pub fn supervise() -> ExitCode {
    loop {
        let ended = Command::new(PROGRAM).arg0(AGENT).arg("worker").status();
        eprintln!("forkyard-guest: the agent ended: {ended:?}");
        sleep(PAUSE);
    }
}

/// The agent proper. Returns only if it cannot go on.
pub fn work() -> ExitCode {
    // What is sent to the console's session is not meant for us.
    let _ = nix::unistd::setsid();
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("forkyard-guest: {why}");
            ExitCode::FAILURE
        }
    }
}

struct Agent {
    outbox: Arc<Outbox>,
    userland: Userland,
    calls: Arc<Calls>,
    sessions: Sessions,
    epoch: Option<Epoch>,
    arriving: Option<Arriving>,
}

/// Between `Identify` and `Release`.
#[derive(Debug)]
struct Arriving {
    /// How this clone came about; none for a VM that booted.
    cloned: Option<Cloned>,
    /// What the host should know.
    notes: Vec<String>,
    /// What the neighbours are to know.
    address: Address,
}

fn serve() -> Result<(), String> {
    let port = port::Port::open()?;
    let outbox = Arc::new(Outbox::new(port.writer()?));
    let mut agent = Agent::new(outbox.clone(), Userland::default());
    // Past the queue, which may be held; and before any call, for the host
    // forgets those that were made before it hears this.
    outbox.say_now(&ToHost::Started);
    outbox.start();
    agent.calls.listen()?;
    let mut messages = FrameReader::new(port);
    loop {
        match messages.read_message::<ToGuest>() {
            Ok(Some(message)) => agent.act(message),
            Ok(None) => messages.abandon(),
            Err(ReadError::Frame(error)) => eprintln!("forkyard-guest: from the host: {error}"),
            Err(error) => return Err(format!("read from the host: {error:?}")),
        }
    }
}

impl Agent {
    /// An earlier worker may have died holding user code still. It stays so:
    /// this VM may be a clone that is nobody yet, and the host, which hears
    /// that there is another worker, says what it is and when to go on.
    fn new(outbox: Arc<Outbox>, userland: Userland) -> Self {
        let held = userland.is_held();
        if held {
            outbox.hold();
        }
        Self {
            calls: Arc::new(Calls::new(outbox.clone())),
            sessions: Sessions::new(outbox.clone(), userland.clone()),
            outbox,
            userland,
            // An identity may have been applied in part.
            epoch: identity::told().filter(|_| !held).map(|(epoch, _)| epoch),
            arriving: None,
        }
    }

    fn act(&mut self, message: ToGuest) {
        match message {
            ToGuest::Hello { version: _ } => self.hello(),
            ToGuest::Quiesce { fork } => self.quiesce(fork),
            ToGuest::Resume => self.resume(),
            ToGuest::Identify(identify) => self.identify(*identify),
            ToGuest::Release => self.release(),
            ToGuest::Exec { session, argv, env } => self.sessions.start(session, argv, env),
            ToGuest::ExecInput { session, data } => self.sessions.input(session, data),
            ToGuest::ExecMore { session, chunks } => self.sessions.more(session, chunks),
            ToGuest::ExecDetach { session } => self.sessions.detach(session),
            ToGuest::ExecSignal { session, signal } => self.sessions.signal(session, signal),
            ToGuest::Reply { call, outcome } => self.calls.answer(call, outcome),
        }
    }

    /// A host that has just connected knows nothing of what went before.
    fn hello(&mut self) {
        self.sessions.detach_all();
        self.calls.hang_up();
        self.outbox.clear();
        // Past the queue: an earlier host may have died holding us still.
        self.outbox.say_now(&ToHost::Hello {
            version: VERSION,
            epoch: self.epoch,
        });
    }

    fn quiesce(&mut self, fork: ForkId) {
        // Asked while everything still runs, and may be needed.
        let refused = hooks::run(hooks::FORK, &[("FORKYARD_FORK", fork.to_string())]);
        let failed = match refused.is_empty() {
            true => {
                // The link first: what commands still write now waits here.
                self.outbox.hold();
                self.userland.freeze().err()
            }
            false => Some(refused.join("; ")),
        };
        let held = failed.is_none();
        self.outbox.say_now(&ToHost::Quiesced { fork, failed });
        if !held {
            self.resume();
        }
    }

    fn resume(&mut self) {
        self.userland.thaw();
        self.outbox.release();
    }

    fn identify(&mut self, identify: Identify) {
        let (epoch, cloned) = (identify.identity.epoch, identify.cloned);
        let mut problems = Vec::new();
        // Heard already: a host that is not sure says it again.
        if self.epoch != Some(epoch) {
            let applied = identity::apply(&identify, &self.userland);
            problems = applied.problems;
            self.epoch = Some(epoch);
            if let Some(cloned) = cloned {
                // Nobody who listened to the parent listens here.
                self.sessions.detach_all();
                self.outbox.clear();
                self.calls.fail_all(cloned.request, calls::IN_A_CLONE);
            }
            self.arriving = Some(Arriving {
                cloned,
                notes: applied.notes,
                address: identify.identity.address,
            });
        }
        self.outbox.say_now(&ToHost::Identified { epoch, problems });
    }

    fn release(&mut self) {
        let arriving = self.arriving.take();
        if let Some(arriving) = &arriving {
            identity::network::announce_address(arriving.address);
        }
        let cloned = arriving.as_ref().and_then(|arriving| arriving.cloned);
        let mut problems = arriving.map(|arriving| arriving.notes).unwrap_or_default();
        if cloned.is_some() {
            problems.extend(hooks::run(hooks::CLONE, &[]));
        }
        self.userland.take_in_hooks();
        self.userland.thaw();
        if cloned.is_none() {
            crate::init::entry::is_up();
        }
        if let Some(cloned) = cloned {
            self.calls.cloned(cloned);
        }
        self.outbox.say_now(&ToHost::Released { problems });
        self.outbox.release();
    }
}

#[cfg(test)]
mod tests;
