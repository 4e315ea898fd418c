//! Commands that the host runs.
//!
//! Output goes out in chunks, so many at a time as its reader asks for; a
//! command whose reader is slow waits, and nothing piles up. When no
//! reader is left, output is read and dropped: the command goes on. In a clone, which has
//! its parent's commands, it goes to the console.

use super::{
    attended::{Attended, Flow, Window},
    cgroup::CommandGroups,
    console::{self, Console},
    group::{Group, Mark},
    kept::Kept,
    lane::Stage,
    launch::{self, Launched},
    outbox::Outbox,
    output::{self, Passage},
    userland::Userland,
};
use crate::PROGRAM;
use forkyard_agent_link::{Command, Session, ToHost};
use forkyard_types::WindowSize;
use nix::{sys::signal::Signal, unistd::Pid};
use std::{
    collections::BTreeMap,
    fs::File,
    io::Write,
    os::fd::OwnedFd,
    process::Child,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
};

/// Signals by which users end a command.
const ENDING: [Signal; 4] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
];

#[derive(Debug)]
struct Running {
    flow: Arc<Flow>,
    input: Sender<Vec<u8>>,
    group: Group,
    /// Set once its client has sent it a signal that ends programs.
    told_to_end: Arc<AtomicBool>,
    terminal: Option<Arc<OwnedFd>>,
}

impl Running {
    /// Hangs up on it. Blocks. Its input stays open until then: an end of it would be taken for the end of
    /// what its client had to say.
    fn hang_up(self) {
        self.group.hang_up();
    }
}

type Table = Arc<Mutex<BTreeMap<Session, Running>>>;

/// The commands that run.
#[derive(Debug)]
pub struct Sessions {
    outbox: Arc<Outbox>,
    userland: Userland,
    groups: CommandGroups,
    table: Table,
    kept: Kept,
    /// Commands of an earlier agent, which died.
    lost: Mutex<Vec<Group>>,
    pub(super) console: Console,
}

impl Sessions {
    /// Commands of this user code.
    pub fn new(outbox: Arc<Outbox>, userland: Userland) -> Self {
        let groups = CommandGroups::of(&userland);
        let lost = groups.lost().into_iter();
        let lost = lost.map(|(name, cgroup)| Group::lost(userland.clone(), Mark::of(name), cgroup));
        Self {
            lost: Mutex::new(lost.collect()),
            kept: Kept::new(outbox.clone()),
            outbox,
            groups,
            userland,
            table: Table::default(),
            console: Console::of_guest(),
        }
    }

    /// Hangs up on what an agent that died has left: their clients were told that they are lost.
    pub fn end_lost(&self) {
        for group in std::mem::take(&mut *lock(&self.lost)) {
            thread::spawn(move || {
                group.hang_up();
                group.release();
            });
        }
    }

    /// Starts a command.
    pub fn start(&self, session: Session, command: &Command) {
        let mark = Mark::draw();
        let keeps = command.detach || command.keep;
        let outcome = match keeps {
            true => self.kept.room(),
            false => Ok(()),
        };
        let own = outcome.is_ok().then(|| self.groups.make(mark.name()));
        let own = own.flatten();
        if let (true, Some(own)) = (keeps, &own) {
            own.spare();
        }
        let launched = || launch::launch(command, &mark, &self.userland, own.as_ref());
        let Launched { child, terminal } = match outcome.and_then(|()| launched()) {
            Ok(launched) => launched,
            Err(why) => {
                if let Some(own) = own {
                    own.remove();
                }
                return self.outbox.push(ToHost::ExecEnd {
                    session,
                    outcome: Err(why),
                });
            }
        };
        let leader = leader_of(&child);
        let group = Group::new(self.userland.clone(), mark, leader, own);
        if !keeps {
            return self.attend(session, command, child, terminal.map(Arc::new), group);
        }
        self.kept.take_in(session, command, child, terminal, group);
    }

    fn attend(
        &self,
        session: Session,
        command: &Command,
        mut child: Child,
        terminal: Option<Arc<OwnedFd>>,
        group: Group,
    ) {
        let flow = Arc::new(Flow::new());
        let told_to_end = Arc::new(AtomicBool::new(false));
        let (input, inputs) = channel();
        let (outbox, table) = (self.outbox.clone(), self.table.clone());
        let console = self.console.clone();
        let name = console::name(&command.argv);
        let stage = is_of_files(command).then(Stage::open).and_then(Result::ok);
        let stdin = match &terminal {
            Some(terminal) => terminal.try_clone().ok(),
            None => child.stdin.take().map(OwnedFd::from),
        };
        if let Some(stdin) = stdin.map(File::from) {
            let (outbox, flow) = (outbox.clone(), flow.clone());
            thread::spawn(move || feed(session, stdin, inputs, &outbox, &flow));
        }
        let outputs = output::of(&mut child, terminal.as_ref());
        lock(&table).insert(
            session,
            Running {
                flow: flow.clone(),
                input,
                group: group.clone(),
                told_to_end: told_to_end.clone(),
                terminal,
            },
        );
        thread::spawn(move || {
            let sink = Arc::new(Attended {
                session,
                name,
                outbox: outbox.clone(),
                console,
                flow: flow.clone(),
                passage: Passage::default(),
                stage,
            });
            let outcome = output::see_through(&mut child, outputs, &sink);
            // What it left running goes on, also without this agent.
            group.spare();
            // Another command may have the number by now, of another host or in
            // a clone.
            lock(&table).retain(|_, running| !Arc::ptr_eq(&running.flow, &flow));
            if flow.is_heard() {
                outbox.push(ToHost::ExecEnd { session, outcome });
                // What it left running goes on, unheard.
                flow.detach();
            }
            if told_to_end.load(Ordering::SeqCst) {
                group.hang_up();
            }
            group.release();
        });
    }

    /// Bytes for its standard input; none of them means end of file.
    pub fn input(&self, session: Session, data: Vec<u8>) {
        if let Some(running) = lock(&self.table).get(&session) {
            // One that reads no more needs no input.
            let _ = running.input.send(data);
        } else {
            self.kept.input(session, data);
        }
    }

    /// Notes that its reader has room for more.
    pub fn more(&self, session: Session, chunks: u16) {
        if let Some(running) = lock(&self.table).get(&session) {
            running.flow.more(chunks.into());
        } else {
            self.kept.more(session, chunks);
        }
    }

    /// Hangs up on it: what is left of it and of all that it started is killed a little later.
    pub fn detach(&self, session: Session) {
        if let Some(running) = lock(&self.table).remove(&session) {
            running.flow.detach();
            thread::spawn(move || running.hang_up());
        } else {
            self.kept.detach(session);
        }
    }

    /// Follows a command that is kept.
    pub fn attach(&self, session: Session, pid: u32, output: bool) {
        self.kept.attach(session, pid, output);
    }

    /// Tells of the commands that are kept.
    pub fn list_kept(&self, session: Session) {
        let commands = self.kept.list();
        self.outbox.push(ToHost::Kept { session, commands });
    }

    /// Notes that none of them has a client any more, as their clients were an earlier daemon's: those
    /// that are kept go on, and the others are hung up on.
    pub fn hang_up_all(&self) {
        self.kept.detach_all();
        for running in std::mem::take(&mut *lock(&self.table)).into_values() {
            running.flow.detach();
            thread::spawn(move || running.hang_up());
        }
    }

    /// This is a clone, and the readers are its parent's: what its commands say goes to the
    /// console.
    pub fn leave_to_console(&self) {
        self.kept.detach_all();
        // No client here waits for them: they end with no agent.
        for group in std::mem::take(&mut *lock(&self.lost)) {
            group.spare();
        }
        for running in std::mem::take(&mut *lock(&self.table)).into_values() {
            running.group.spare();
            running.flow.turn_to(Window::Console(console::MOST));
        }
    }

    /// Sends it a signal; SIGKILL is for all that it started. What is left when it ends after one that
    /// ends programs is hung up on.
    pub fn signal(&self, session: Session, signal: u8) {
        let Ok(signal) = Signal::try_from(i32::from(signal)) else {
            return;
        };
        let table = lock(&self.table);
        let running = table.get(&session).map(|running| {
            if ENDING.contains(&signal) {
                running.told_to_end.store(true, Ordering::SeqCst);
            }
            running.group.clone()
        });
        let found = running.or_else(|| self.kept.group(session));
        drop(table);
        let Some(group) = found else { return };
        if signal == Signal::SIGKILL {
            // This thread has other commands to hear of.
            thread::spawn(move || group.kill());
        } else {
            group.pass(signal);
        }
    }

    /// State that the threads of a command hold until they have cleared up after it.
    #[cfg(test)]
    pub(super) fn held_by(&self, session: Session) -> Option<std::sync::Weak<Flow>> {
        let table = lock(&self.table);
        table.get(&session).map(|it| Arc::downgrade(&it.flow))
    }

    /// Gives its terminal another size.
    pub fn resize(&self, session: Session, size: WindowSize) {
        let table = lock(&self.table);
        let running = table.get(&session).and_then(|it| it.terminal.clone());
        let terminal = running.or_else(|| self.kept.terminal(session));
        drop(table);
        if let Some(terminal) = terminal {
            launch::resize(&terminal, size);
        }
    }
}

/// Tells whether a command is our own program that reads and writes files.
fn is_of_files(command: &Command) -> bool {
    command.argv.get(1).is_some_and(|word| word == "files")
        && command
            .argv
            .first()
            .is_some_and(|program| program == PROGRAM)
}

fn leader_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX))
}

fn feed(
    session: Session,
    mut stdin: File,
    inputs: std::sync::mpsc::Receiver<Vec<u8>>,
    outbox: &Outbox,
    flow: &Flow,
) {
    output::widen(&stdin);
    for data in inputs {
        if data.is_empty() || stdin.write_all(&data).is_err() {
            return;
        }
        if flow.is_heard() {
            outbox.push(ToHost::ExecMore { session, chunks: 1 });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
