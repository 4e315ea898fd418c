//! The agent: does in the guest what the host says.
//!
//! ```text
//!            +-- calls: programs' sockets --+
//! port ---> work --- sessions: commands ----+--> outbox ---> port
//!            +-- userland, identity, hooks
//! ```
//!
//! One thread reads what the host says and acts on it at once, in order. It
//! alone changes this VM's identity.

mod addresses;
mod attended;
mod calls;
mod cgroup;
mod clock;
mod console;
mod group;
mod holders;
mod hooks;
mod host_keys;
pub mod identity;
mod kept;
mod lane;
mod launch;
mod netlink;
mod outbox;
mod output;
mod port;
mod pressure;
mod sessions;
mod supervisor;
pub mod userland;

use calls::Calls;
use clock::{Clock, Heard, Kernel, Reading};
use forkyard_agent_link::{
    Cloned, FrameReader, Identify, ReadError, SOCKET, ToGuest, ToHost, VERSION,
};
use forkyard_types::{Address, Epoch, ForkId};
use outbox::Outbox;
use pressure::Pressure;
use sessions::Sessions;
use std::{collections::VecDeque, fs, path::Path, process::ExitCode, sync::Arc};
pub use supervisor::supervise;
use userland::Userland;

/// Share of the time that programs wait for memory, as the kernel tells it.
const PRESSURE: &str = "/proc/pressure/memory";

/// Bytes of freed memory that are kept: some messages of commands' input and output.
const KEPT: u32 = 1 << 20;

/// The agent proper. Returns only if it cannot go on.
pub fn work() -> ExitCode {
    // What is sent to the console's session is not meant for us.
    let _ = nix::unistd::setsid();
    supervisor::outlive_others();
    match supervisor::watch().and_then(|()| serve()) {
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
    clock: Clock,
    /// Step that needs the host's time first.
    waiting: Option<Waiting>,
    /// Messages for commands that arrived while user code was frozen and waited for the time. A
    /// process started then would be frozen before exec, and would block this thread.
    deferred: VecDeque<ToGuest>,
    epoch: Option<Epoch>,
    arriving: Option<Arriving>,
    pressure: Pressure,
}

/// Step to take once the host has answered with its time.
#[derive(Debug)]
enum Waiting {
    /// Hold user code still for this fork.
    HoldStill(ForkId),
    /// Let user code go on.
    GoOn,
    /// Say that the identity has been applied.
    BeSomebody {
        epoch: Epoch,
        problems: Vec<String>,
        /// Set if the host has already let user code go on.
        released: bool,
    },
    /// Make up for time that it stood still.
    CatchUp,
}

/// Between `Identify` and `Release`.
#[derive(Debug)]
struct Arriving {
    /// Origin of this clone; none for a VM that booted.
    cloned: Option<Cloned>,
    /// Problems to report to the host.
    notes: Vec<String>,
    /// Address to announce to the neighbours.
    address: Address,
}

fn serve() -> Result<(), String> {
    forkyard_sys_guest::heap::keep(KEPT);
    let port = port::Port::open()?;
    let outbox = Arc::new(Outbox::new(port.writer()?));
    let mut agent = Agent::new(
        outbox.clone(),
        Userland::default(),
        Clock::new(Box::new(Kernel)),
    );
    if Path::new(SOCKET).exists() {
        // An agent before this one may have died in the middle of a frame, which would swallow what follows.
        outbox.end_frame();
    }
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
    /// this VM may be a clone without an identity yet, and the host, which hears
    /// that there is another worker, says what it is and when to go on.
    fn new(outbox: Arc<Outbox>, userland: Userland, clock: Clock) -> Self {
        let held = userland.is_held();
        if held {
            outbox.hold();
        }
        Self {
            calls: Arc::new(Calls::new(outbox.clone())),
            sessions: Sessions::new(outbox.clone(), userland.clone()),
            outbox,
            userland,
            clock,
            waiting: None,
            deferred: VecDeque::new(),
            // An identity may have been applied in part.
            epoch: identity::told().filter(|_| !held).map(|(epoch, _)| epoch),
            arriving: None,
            pressure: Pressure::default(),
        }
    }

    fn act(&mut self, message: ToGuest) {
        if is_of_commands(&message) && self.waiting.is_some() && self.userland.is_held() {
            return self.deferred.push_back(message);
        }
        match message {
            ToGuest::Hello { version: _ } => self.hello(),
            ToGuest::Moved { version: _ } => self.hello_after_move(),
            ToGuest::Quiesce { fork } => self.quiesce(fork),
            ToGuest::Resume => self.resume(),
            ToGuest::Ping => {
                self.ask_time();
                // A kernel without it tells nothing.
                let kernel = fs::read_to_string(PRESSURE).unwrap_or_default();
                if let Some(word) = self.pressure.word(&kernel) {
                    self.outbox.say_now(&word);
                }
            }
            ToGuest::StoodStill => self.stood_still(),
            ToGuest::Time { asked, host } => self.hear_time(asked, host),
            ToGuest::Identify(identify) => self.identify(*identify),
            ToGuest::Release => self.release(),
            ToGuest::Exec { session, command } => self.sessions.start(session, &command),
            ToGuest::ExecInput { session, data } => self.sessions.input(session, data),
            ToGuest::ExecMore { session, chunks } => self.sessions.more(session, chunks),
            ToGuest::ExecDetach { session } => self.sessions.detach(session),
            ToGuest::ExecSignal { session, signal } => self.sessions.signal(session, signal),
            ToGuest::ExecResize { session, size } => self.sessions.resize(session, size),
            ToGuest::Attach {
                session,
                pid,
                output,
            } => self.sessions.attach(session, pid, output),
            ToGuest::ListKept { session } => self.sessions.list_kept(session),
            ToGuest::Reply { call, outcome } => self.calls.answer(call, outcome),
        }
    }

    /// A host that has just connected knows nothing of what went before.
    fn hello(&mut self) {
        self.deferred.clear();
        self.sessions.hang_up_all();
        if !self.userland.is_held() {
            self.sessions.end_lost();
        }
        self.calls.hang_up();
        self.outbox.clear();
        self.answer_hello();
    }

    /// The host that this VM has moved to has those follow the commands that followed them before.
    fn hello_after_move(&mut self) {
        self.calls.hang_up();
        self.outbox.keep(|message| message.session().is_some());
        self.answer_hello();
    }

    fn answer_hello(&mut self) {
        // Past the queue: an earlier host may have died holding us still.
        self.outbox.say_now(&ToHost::Hello {
            version: VERSION,
            epoch: self.epoch,
        });
        self.calls.ask_again();
    }

    fn ask_time(&mut self) {
        let question = self.clock.ask();
        // Past the queue, which may be held.
        self.outbox.say_now(&question);
    }

    /// Has something done when the host's time is known.
    fn when_known(&mut self, what: Waiting) {
        self.waiting = Some(what);
        self.ask_time();
    }

    fn hear_time(&mut self, asked: u64, host: u64) {
        match self.clock.hear(asked, host) {
            Heard::Stale => {}
            Heard::Again(question) => self.outbox.say_now(&question),
            Heard::Known(reading) => {
                self.know_time(reading);
                for message in std::mem::take(&mut self.deferred) {
                    self.act(message);
                }
            }
        }
    }

    fn know_time(&mut self, reading: Reading) {
        let set = match self.waiting.take() {
            // What was known from before it stood still is still to be made up for.
            None if self.userland.is_held() => Ok(()),
            None | Some(Waiting::CatchUp) => self.clock.follow(reading),
            Some(Waiting::HoldStill(fork)) => {
                let followed = match self.userland.is_held() {
                    true => Ok(()),
                    false => self.clock.follow(reading),
                };
                self.hold_still(fork);
                followed
            }
            Some(Waiting::GoOn) => {
                let followed = self.clock.follow(reading);
                self.go_on();
                followed
            }
            Some(Waiting::BeSomebody {
                epoch,
                mut problems,
                released,
            }) => {
                problems.extend(self.clock.adopt(reading).err());
                self.outbox.say_now(&ToHost::Identified { epoch, problems });
                if released {
                    self.release();
                }
                Ok(())
            }
        };
        if let Err(error) = set {
            eprintln!("forkyard-guest: {error}");
        }
    }

    fn stood_still(&mut self) {
        // Whatever else waits for the time makes up for it as well.
        if self.waiting.is_none() {
            self.when_known(Waiting::CatchUp);
        }
    }

    fn quiesce(&mut self, fork: ForkId) {
        // Asked while everything still runs, and may be needed.
        let refused = hooks::run(hooks::FORK, &[("FORKYARD_FORK", fork.to_string())]);
        match refused.is_empty() {
            // The last answer that is on its way has come then, too: nothing is left of the
            // link in what clones are made of.
            true => self.when_known(Waiting::HoldStill(fork)),
            false => {
                let failed = Some(refused.join("; "));
                self.outbox.say_now(&ToHost::Quiesced { fork, failed });
                self.go_on();
            }
        }
    }

    fn hold_still(&mut self, fork: ForkId) {
        // The link first: what commands still write now waits here.
        self.outbox.hold();
        let failed = self.userland.freeze().err();
        let held = failed.is_none();
        self.outbox.say_now(&ToHost::Quiesced { fork, failed });
        if !held {
            self.go_on();
        }
    }

    fn resume(&mut self) {
        match self.userland.is_held() {
            // Before user code can look at the clock.
            true => self.when_known(Waiting::GoOn),
            false => {
                // A fork that it was about to hold still for is given up.
                self.waiting = None;
                self.go_on();
                // It may have stood still all the same: on a full disk, while no daemon ran.
                self.stood_still();
            }
        }
    }

    fn go_on(&mut self) {
        self.userland.thaw();
        self.outbox.release();
        self.sessions.end_lost();
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
                // No reader of the parent's output is connected here.
                self.sessions.leave_to_console();
                self.outbox.clear();
                self.calls.fail_all(cloned.request, calls::IN_A_CLONE);
            }
            self.arriving = Some(Arriving {
                cloned,
                notes: applied.notes,
                address: identify.identity.address,
            });
        }
        self.when_known(Waiting::BeSomebody {
            epoch,
            problems,
            released: false,
        });
    }

    fn release(&mut self) {
        if let Some(Waiting::BeSomebody { released, .. }) = &mut self.waiting {
            *released = true;
            return;
        }
        let arriving = self.arriving.take();
        if let Some(arriving) = &arriving {
            identity::network::announce_address(arriving.address);
        }
        let cloned = arriving.as_ref().and_then(|arriving| arriving.cloned);
        let mut problems = arriving.map(|arriving| arriving.notes).unwrap_or_default();
        if cloned.is_some() {
            problems.extend(hooks::run(hooks::CLONE, &[]));
            host_keys::make_missing();
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

fn is_of_commands(message: &ToGuest) -> bool {
    matches!(
        message,
        ToGuest::Exec { .. }
            | ToGuest::ExecInput { .. }
            | ToGuest::ExecMore { .. }
            | ToGuest::ExecDetach { .. }
            | ToGuest::ExecSignal { .. }
            | ToGuest::ExecResize { .. }
            | ToGuest::Attach { .. }
            | ToGuest::ListKept { .. }
    )
}

#[cfg(test)]
mod tests;
