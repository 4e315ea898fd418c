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

mod calls;
mod hooks;
mod identity;
mod outbox;
mod port;
mod sessions;
pub mod userland;

use crate::{AGENT, PROGRAM};
use calls::Calls;
use forkyard_guestlink::{Cloned, FrameReader, Identify, ReadError, ToGuest, ToHost, VERSION};
use forkyard_types::{Epoch, ForkId};
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
    /// Between `Identify` and `Release`: how this clone came about.
    arriving: Option<Cloned>,
}

fn serve() -> Result<(), String> {
    let port = port::Port::open()?;
    let outbox = Arc::new(Outbox::new(port.writer()?));
    let userland = Userland::default();
    // An earlier worker may have died holding user code still.
    userland.thaw();
    let calls = Arc::new(Calls::new(outbox.clone()));
    calls.listen()?;
    outbox.start();
    outbox.push(ToHost::Started);
    let mut agent = Agent {
        sessions: Sessions::new(outbox.clone()),
        outbox,
        userland,
        calls,
        epoch: None,
        arriving: None,
    };
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
        self.calls.fail_all(None, calls::HOST_RESTARTED);
        self.outbox.clear();
        // Past the queue: an earlier host may have died holding us still.
        self.outbox.say_now(&ToHost::Hello {
            version: VERSION,
            epoch: self.epoch,
        });
    }

    fn quiesce(&mut self, fork: ForkId) {
        // The link first: what commands still write now waits here.
        self.outbox.hold();
        let failed = self.userland.freeze().err();
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
        let Identify { identity, cloned } = identify;
        let problems = match self.epoch == Some(identity.epoch) {
            // Heard already: a host that restarted may say it again.
            true => Vec::new(),
            false => identity::apply(&identity, cloned),
        };
        self.epoch = Some(identity.epoch);
        if let Some(cloned) = cloned {
            // Nobody who listened to the parent listens here.
            self.sessions.detach_all();
            self.outbox.clear();
            self.calls.fail_all(cloned.call, calls::IN_A_CLONE);
        }
        self.arriving = cloned;
        self.outbox.say_now(&ToHost::Identified {
            epoch: identity.epoch,
            problems,
        });
    }

    fn release(&mut self) {
        let arriving = self.arriving.take();
        let problems = if arriving.is_some() {
            hooks::run()
        } else {
            Vec::new()
        };
        self.userland.take_in_hooks();
        self.userland.thaw();
        if let Some(Cloned {
            id,
            call: Some(call),
        }) = arriving
        {
            self.calls.cloned(call, id);
        }
        self.outbox.say_now(&ToHost::Released { problems });
        self.outbox.release();
    }
}
