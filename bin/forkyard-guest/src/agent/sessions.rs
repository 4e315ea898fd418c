//! Commands that the host runs.
//!
//! Output goes out in chunks, so many at a time as its reader asks for; a
//! command whose reader is slow waits, and nothing piles up. When nobody
//! listens any more, output is read and dropped: the command goes on.

use super::{
    group::{Group, Mark},
    launch::{self, Launched},
    outbox::Outbox,
    userland::Userland,
};
use forkyard_guestlink::{CHUNK, Command, Session, Stream, ToHost, WINDOW};
use forkyard_types::{ExitStatus, NotStarted, WindowSize};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, killpg},
    unistd::{Pid, read},
};
use std::{
    collections::BTreeMap,
    fs::File,
    io::Write,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    process::Child,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

/// Silence after a command's end that counts as the end of its output.
const LINGER: Duration = Duration::from_millis(200);

/// How much a command may say, and whether anyone listens.
#[derive(Debug)]
struct Flow {
    state: Mutex<Window>,
    changed: Condvar,
    /// Chunks that were read, and of them those that went on their way.
    entered: AtomicU64,
    left: AtomicU64,
}

#[derive(Debug)]
enum Window {
    Open(u32),
    Detached,
}

#[derive(Debug)]
struct Running {
    flow: Arc<Flow>,
    input: Sender<Vec<u8>>,
    /// Leader of its process group.
    leader: Pid,
    group: Group,
    terminal: Option<Arc<OwnedFd>>,
}

type Table = Arc<Mutex<BTreeMap<Session, Running>>>;

/// The commands that run.
#[derive(Debug)]
pub struct Sessions {
    outbox: Arc<Outbox>,
    userland: Userland,
    table: Table,
}

impl Sessions {
    /// Commands of this user code.
    pub fn new(outbox: Arc<Outbox>, userland: Userland) -> Self {
        Self {
            outbox,
            userland,
            table: Table::default(),
        }
    }

    /// Starts a command.
    pub fn start(&self, session: Session, command: &Command) {
        let mark = Mark::draw();
        let outcome = launch::launch(command, &mark, &self.userland);
        let Launched { child, terminal } = match outcome {
            Ok(launched) => launched,
            Err(why) => {
                return self.outbox.push(ToHost::ExecEnd {
                    session,
                    outcome: Err(why),
                });
            }
        };
        match command.detach {
            true => self.leave(session, child),
            false => self.attend(session, child, terminal.map(Arc::new), mark),
        }
    }

    /// Has it go on by itself.
    fn leave(&self, session: Session, mut child: Child) {
        let pid = child.id();
        self.outbox.push(ToHost::ExecStarted { session, pid });
        thread::spawn(move || child.wait());
    }

    fn attend(
        &self,
        session: Session,
        mut child: Child,
        terminal: Option<Arc<OwnedFd>>,
        mark: Mark,
    ) {
        let flow = Arc::new(Flow {
            state: Mutex::new(Window::Open(WINDOW.into())),
            changed: Condvar::new(),
            entered: AtomicU64::new(0),
            left: AtomicU64::new(0),
        });
        let leader = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        let group = Group::new(self.userland.clone(), mark, leader);
        let (input, inputs) = channel();
        let (outbox, table) = (self.outbox.clone(), self.table.clone());
        let stdin = match &terminal {
            Some(terminal) => terminal.try_clone().ok(),
            None => child.stdin.take().map(OwnedFd::from),
        };
        if let Some(stdin) = stdin.map(File::from) {
            let (outbox, flow) = (outbox.clone(), flow.clone());
            thread::spawn(move || feed(session, stdin, inputs, &outbox, &flow));
        }
        let outputs = match &terminal {
            Some(terminal) => vec![(Stream::Out, terminal.clone())],
            None => {
                let out = child.stdout.take().map(|pipe| (Stream::Out, pipe.into()));
                let err = child.stderr.take().map(|pipe| (Stream::Err, pipe.into()));
                let pipes = [out, err].into_iter().flatten();
                pipes
                    .map(|(to, pipe): (_, OwnedFd)| (to, Arc::new(pipe)))
                    .collect()
            }
        };
        lock(&table).insert(
            session,
            Running {
                flow: flow.clone(),
                input,
                leader,
                group,
                terminal,
            },
        );
        thread::spawn(move || {
            let outcome = see_through(&mut child, session, outputs, &outbox, &flow);
            // Another command may have the number by now, of another host or in
            // a clone.
            lock(&table).retain(|_, running| !Arc::ptr_eq(&running.flow, &flow));
            if flow.is_heard() {
                outbox.push(ToHost::ExecEnd { session, outcome });
            }
            // What it left running goes on, unheard.
            flow.detach();
        });
    }

    /// Bytes for its standard input; none of them means end of file.
    pub fn input(&self, session: Session, data: Vec<u8>) {
        if let Some(running) = lock(&self.table).get(&session) {
            // One that reads no more needs no input.
            let _ = running.input.send(data);
        }
    }

    /// Its reader has room for more.
    pub fn more(&self, session: Session, chunks: u16) {
        if let Some(running) = lock(&self.table).get(&session) {
            running.flow.more(chunks.into());
        }
    }

    /// Hangs up on it: what is left of it and of all that it started is killed a little later.
    pub fn detach(&self, session: Session) {
        if let Some(running) = lock(&self.table).remove(&session) {
            running.flow.detach();
            thread::spawn(move || running.group.hang_up());
        }
    }

    /// Nobody listens to any of them any more; they go on.
    pub fn detach_all(&self) {
        for running in std::mem::take(&mut *lock(&self.table)).into_values() {
            running.flow.detach();
        }
    }

    /// Sends its process group a signal; SIGKILL is for all that it started.
    pub fn signal(&self, session: Session, signal: u8) {
        if let Some(running) = lock(&self.table).get(&session)
            && let Ok(signal) = Signal::try_from(i32::from(signal))
        {
            if signal == Signal::SIGKILL {
                // This thread has other commands to hear of.
                let group = running.group.clone();
                thread::spawn(move || group.kill());
            } else {
                let _ = killpg(running.leader, signal);
            }
        }
    }

    /// Gives its terminal another size.
    pub fn resize(&self, session: Session, size: WindowSize) {
        if let Some(running) = lock(&self.table).get(&session)
            && let Some(terminal) = &running.terminal
        {
            launch::resize(terminal, size);
        }
    }
}

impl Flow {
    fn enter(&self) {
        self.entered.fetch_add(1, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.left.fetch_add(1, Ordering::SeqCst);
    }

    fn passed(&self) -> u64 {
        self.left.load(Ordering::SeqCst)
    }

    /// Whether nothing that was read waits for its reader.
    fn is_idle(&self) -> bool {
        self.entered.load(Ordering::SeqCst) == self.passed()
    }

    /// Waits for room for one chunk; false if nobody listens.
    fn take(&self) -> bool {
        let full = |window: &mut Window| matches!(window, Window::Open(0));
        let state = self.changed.wait_while(lock(&self.state), full);
        match &mut *state.unwrap_or_else(PoisonError::into_inner) {
            Window::Open(room) => {
                *room -= 1;
                true
            }
            Window::Detached => false,
        }
    }

    fn more(&self, chunks: u32) {
        if let Window::Open(room) = &mut *lock(&self.state) {
            *room = room.saturating_add(chunks);
        }
        self.changed.notify_all();
    }

    fn detach(&self) {
        *lock(&self.state) = Window::Detached;
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
    for data in inputs {
        if data.is_empty() || stdin.write_all(&data).is_err() {
            return;
        }
        if flow.is_heard() {
            outbox.push(ToHost::ExecMore { session, chunks: 1 });
        }
    }
}

/// Passes a command's output on until it has ended and said all. A process it
/// left running may keep the pipe open for ever: that one is not waited for.
fn see_through(
    child: &mut Child,
    session: Session,
    outputs: Vec<(Stream, Arc<OwnedFd>)>,
    outbox: &Arc<Outbox>,
    flow: &Arc<Flow>,
) -> Result<ExitStatus, NotStarted> {
    let (done, over) = channel();
    let mut pipes = Vec::new();
    for (stream, pipe) in outputs {
        pipes.push(pipe.clone());
        let (outbox, flow, done) = (outbox.clone(), flow.clone(), done.clone());
        thread::spawn(move || {
            pump(session, stream, &pipe, &outbox, &flow);
            done.send(())
        });
    }
    drop(done);
    let outcome = ended(child);
    loop {
        let before = flow.passed();
        match over.recv_timeout(LINGER) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return outcome,
            // However little time this guest has: what lies in a pipe is output.
            Err(RecvTimeoutError::Timeout)
                if !pipes.iter().any(|pipe| holds_some(pipe))
                    && flow.is_idle()
                    && flow.passed() == before =>
            {
                return outcome;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn pump(session: Session, stream: Stream, from: &OwnedFd, outbox: &Outbox, flow: &Flow) {
    let mut buffer = vec![0; CHUNK];
    loop {
        // Entered before it is taken out of the pipe: it is always in one of the two.
        match readable(from, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => return,
        }
        flow.enter();
        let read = read(from, &mut buffer);
        if let Ok(read @ 1..) = read
            && flow.take()
        {
            outbox.push(ToHost::ExecOutput {
                session,
                stream,
                data: buffer[..read].to_vec(),
            });
        }
        flow.leave();
        match read {
            Ok(1..) | Err(Errno::EINTR) => {}
            Ok(0) | Err(_) => return,
        }
    }
}

/// Waits so long for something to read, or the end; whether there is something.
fn readable(pipe: &OwnedFd, within: PollTimeout) -> nix::Result<bool> {
    let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, within)?;
    let seen = fds[0].revents().unwrap_or_else(PollFlags::empty);
    Ok(seen.contains(PollFlags::POLLIN))
}

fn holds_some(pipe: &OwnedFd) -> bool {
    readable(pipe, PollTimeout::ZERO).unwrap_or(false)
}

fn ended(child: &mut Child) -> Result<ExitStatus, NotStarted> {
    let status = child.wait().map_err(|error| NotStarted {
        code: NotStarted::CANNOT_RUN,
        message: format!("cannot wait for it: {error}"),
    })?;
    let small = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => ExitStatus::Code(small(code)),
        (None, signal) => ExitStatus::Signal(small(signal.unwrap_or_default())),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_a_pipe_is_output_and_its_end_is_none() {
        let (from, to) = nix::unistd::pipe().expect("a pipe");
        assert!(!holds_some(&from));
        nix::unistd::write(&to, b"said").expect("written");
        assert!(holds_some(&from));
        drop(to);
        assert!(holds_some(&from), "its writer has gone");
        let mut said = [0; 8];
        assert_eq!(read(&from, &mut said), Ok(4));
        assert!(!holds_some(&from), "the end");
    }
}
