//! Commands that the host runs.
//!
//! Output goes out in chunks, so many at a time as its reader asks for; a
//! command whose reader is slow waits, and nothing piles up. When no
//! reader is left, output is read and dropped: the command goes on. In a clone, which has
//! its parent's commands, it goes to the console.

use super::{
    cgroup::CommandGroups,
    console::{self, Console},
    group::{Group, Mark},
    kept::Kept,
    lane::Stage,
    launch::{self, Launched},
    outbox::{MUCH, Outbox},
    output::{self, Passage, Sink},
    userland::Userland,
};
use crate::PROGRAM;
use forkyard_agent_link::{CHUNK, Command, Session, Stream, ToHost, WINDOW};
use forkyard_types::{NotStarted, WindowSize};
use nix::{sys::signal::Signal, unistd::Pid};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
    process::Child,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
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

/// Limit of a command's output, and whether it has a reader.
#[derive(Debug)]
struct Flow {
    state: Mutex<Window>,
    changed: Condvar,
}

/// Output on its way to the host that started its command.
#[derive(Debug)]
struct Attended {
    session: Session,
    name: String,
    outbox: Arc<Outbox>,
    console: Console,
    flow: Arc<Flow>,
    passage: Passage,
    /// Pipe in which its output waits uncopied, if it is of our own program.
    stage: Option<Stage>,
}

impl Sink for Attended {
    fn passage(&self) -> &Passage {
        &self.passage
    }

    fn take(&self, stream: Stream, data: &[u8]) {
        match self.flow.take(data.len()) {
            Way::Host => self.outbox.pass(ToHost::ExecOutput {
                session: self.session,
                stream,
                data: data.to_vec(),
            }),
            Way::Console { bytes, last } => self.console.tell(&self.name, &data[..bytes], last),
            Way::Nowhere => {}
        }
    }

    fn take_from(&self, stream: Stream, from: &OwnedFd) -> bool {
        let Some(stage) = self.stage.as_ref().filter(|_| stream == Stream::Out) else {
            return false;
        };
        // Nothing of ours is locked: its writer may hold this up.
        let Ok(bytes @ 1..) = stage.take(from, CHUNK) else {
            return false;
        };
        if bytes < MUCH {
            self.take(stream, &stage.read());
            return true;
        }
        match self.flow.take(bytes) {
            Way::Host => match self.outbox.pass_on(self.session, stream, stage, bytes) {
                Ok(true) => {}
                Ok(false) => self.outbox.push(ToHost::ExecOutput {
                    session: self.session,
                    stream,
                    data: stage.read(),
                }),
                Err(error) => self.lose(&error),
            },
            Way::Console { bytes: shown, last } => {
                self.console.tell(&self.name, &stage.read()[..shown], last);
            }
            Way::Nowhere => drop(stage.read()),
        }
        true
    }
}

impl Attended {
    /// Some of its output is lost: its client hears no more of it but that.
    fn lose(&self, error: &io::Error) {
        self.flow.detach();
        self.outbox.push(ToHost::ExecEnd {
            session: self.session,
            outcome: Err(NotStarted {
                code: NotStarted::CANNOT_RUN,
                message: format!(
                    "the guest lost some of its output on the way to the host: {error}"
                ),
            }),
        });
    }
}

#[derive(Debug)]
enum Window {
    Open(u32),
    /// In a clone: so many bytes still go to the console.
    Console(usize),
    Detached,
}

/// Destination of a chunk.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    Host,
    /// So much of it, and nothing that follows if it is the last.
    Console {
        bytes: usize,
        last: bool,
    },
    Nowhere,
}

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
    pub(super) console: Console,
}

impl Sessions {
    /// Commands of this user code.
    pub fn new(outbox: Arc<Outbox>, userland: Userland) -> Self {
        let groups = CommandGroups::of(&userland);
        for (name, cgroup) in groups.lost() {
            let group = Group::lost(userland.clone(), Mark::of(name), cgroup);
            thread::spawn(move || {
                group.hang_up();
                group.release();
            });
        }
        Self {
            kept: Kept::new(outbox.clone()),
            outbox,
            groups,
            userland,
            table: Table::default(),
            console: Console::of_guest(),
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
        group.spare();
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
        let flow = Arc::new(Flow {
            state: Mutex::new(Window::Open(WINDOW.into())),
            changed: Condvar::new(),
        });
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
        for running in std::mem::take(&mut *lock(&self.table)).into_values() {
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

impl Flow {
    /// Waits for room for one chunk of so many bytes.
    fn take(&self, length: usize) -> Way {
        let full = |window: &mut Window| matches!(window, Window::Open(0));
        let state = self.changed.wait_while(lock(&self.state), full);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            Window::Open(room) => {
                *room -= 1;
                Way::Host
            }
            Window::Console(left) if *left > length => {
                *left -= length;
                Way::Console {
                    bytes: length,
                    last: false,
                }
            }
            Window::Console(left) => {
                let bytes = *left;
                *state = Window::Detached;
                Way::Console { bytes, last: true }
            }
            Window::Detached => Way::Nowhere,
        }
    }

    fn more(&self, chunks: u32) {
        if let Window::Open(room) = &mut *lock(&self.state) {
            *room = room.saturating_add(chunks);
        }
        self.changed.notify_all();
    }

    fn detach(&self) {
        self.turn_to(Window::Detached);
    }

    fn turn_to(&self, window: Window) {
        *lock(&self.state) = window;
        self.changed.notify_all();
    }

    fn is_heard(&self) -> bool {
        matches!(*lock(&self.state), Window::Open(_))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_shows_the_first_of_what_a_command_says_and_that_there_is_more() {
        let flow = Flow {
            state: Mutex::new(Window::Console(10)),
            changed: Condvar::new(),
        };
        let some = |bytes, last| Way::Console { bytes, last };
        assert_eq!(flow.take(6), some(6, false));
        assert_eq!(flow.take(6), some(4, true));
        assert_eq!(flow.take(6), Way::Nowhere);
    }
}
