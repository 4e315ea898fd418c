//! Commands that go on without a host: the last of what they write is kept, and hosts attach to
//! them and leave again.
//!
//! ```text
//! pipes --pump--> log (bounded) --a thread for each reader--> outbox
//! ```
//!
//! A command waits only where a reader that is attached would miss what has to go; without readers
//! the oldest output goes. A host that connects anew finds all commands here, detached.
//! If the agent itself dies, their pipes break.

mod log;

use super::{
    group::Group,
    outbox::Outbox,
    output::{self, Passage, Sink},
};
use forkyard_agent_link::{Command, Session, Stream, ToHost, WINDOW};
use forkyard_types::{ExitStatus, KeptCommand, NotStarted};
use log::{Reader, Said};
use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io::Write,
    os::fd::OwnedFd,
    process::Child,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

/// Bytes of input that may wait for a command that does not read.
const MOST_INPUT: usize = 1 << 20;

/// Bytes of input, and whose.
type Input = (Session, Vec<u8>);

/// A command that is kept.
#[derive(Debug)]
struct Entry {
    pid: u32,
    told: KeptCommand,
    group: Group,
    terminal: Option<Arc<OwnedFd>>,
    /// None once it has ended, or reads nothing.
    input: Mutex<Option<Sender<Input>>>,
    /// Bytes of input that it has not taken.
    waiting: AtomicUsize,
    passage: Passage,
    said: Mutex<Said>,
    changed: Condvar,
}

impl Sink for Entry {
    fn passage(&self) -> &Passage {
        &self.passage
    }

    fn take(&self, stream: Stream, data: &[u8]) {
        let mut said = lock(&self.said);
        while said.log.is_full(data.len()) {
            let awaited = |said: &mut Said| said.log.is_full(data.len()) && said.is_awaited();
            let waited = self.changed.wait_while(said, awaited);
            said = waited.unwrap_or_else(PoisonError::into_inner);
            if said.log.is_full(data.len()) {
                said.log.drop_some(data.len());
            }
        }
        // A chunk that some reader has been sent already is not added to.
        let end = Some(said.log.end());
        let may_join = said.readers.values().all(|reader| reader.next != end);
        said.log.push(stream, data, may_join);
        drop(said);
        self.changed.notify_all();
    }
}

impl Entry {
    /// Sends a reader what there is and what comes, until it detaches or the command's end.
    fn deliver(&self, session: Session, id: u64, outbox: &Outbox) {
        loop {
            let mut said = lock(&self.said);
            let message = loop {
                if !said.has(session, id) {
                    return;
                }
                if let Some(message) = said.message(session) {
                    break message;
                }
                said = self
                    .changed
                    .wait(said)
                    .unwrap_or_else(PoisonError::into_inner);
            };
            drop(said);
            // The pump may wait for this reader to have gone on.
            self.changed.notify_all();
            outbox.push(message);
        }
    }

    fn view(&self) -> KeptCommand {
        let said = lock(&self.said);
        KeptCommand {
            exit: said.outcome.as_ref().map(|outcome| match outcome {
                Ok(status) => *status,
                Err(why) => ExitStatus::Code(why.code),
            }),
            attached: u16::try_from(said.readers.len()).unwrap_or(u16::MAX),
            kept: u32::try_from(said.log.bytes).unwrap_or(u32::MAX),
            lost: said.log.lost,
            ..self.told.clone()
        }
    }

    fn feed(&self, mut stdin: File, inputs: Receiver<Input>, outbox: &Outbox) {
        for (session, data) in inputs {
            if data.is_empty() {
                match self.terminal {
                    // Others may type on it later.
                    Some(_) => continue,
                    None => break,
                }
            }
            if stdin.write_all(&data).is_err() {
                break;
            }
            self.waiting.fetch_sub(data.len(), Ordering::SeqCst);
            if lock(&self.said).readers.contains_key(&session) {
                outbox.push(ToHost::ExecMore { session, chunks: 1 });
            }
        }
        lock(&self.input).take();
    }
}

#[derive(Debug, Default)]
struct Table {
    all: BTreeMap<u32, Arc<Entry>>,
    /// In the order of their ends.
    ended: VecDeque<u32>,
    attached: BTreeMap<Session, Arc<Entry>>,
}

impl Table {
    fn has_ended(&mut self, entry: &Arc<Entry>) {
        let found = self.all.get(&entry.pid);
        if !found.is_some_and(|found| Arc::ptr_eq(found, entry)) {
            return;
        }
        self.ended.push_back(entry.pid);
        while self.ended.len() > KeptCommand::ENDED {
            if let Some(oldest) = self.ended.pop_front() {
                self.all.remove(&oldest);
            }
        }
    }

    /// Takes in another; the kernel gives numbers of those that have ended again.
    fn insert(&mut self, entry: &Arc<Entry>) {
        self.ended.retain(|pid| *pid != entry.pid);
        self.all.insert(entry.pid, entry.clone());
    }
}

/// All that are kept.
#[derive(Debug)]
pub struct Kept {
    outbox: Arc<Outbox>,
    table: Arc<Mutex<Table>>,
    readers: AtomicU64,
}

impl Kept {
    /// None yet.
    pub fn new(outbox: Arc<Outbox>) -> Self {
        Self {
            outbox,
            table: Arc::default(),
            readers: AtomicU64::default(),
        }
    }

    /// Refuses one more where too many run.
    pub fn room(&self) -> Result<(), NotStarted> {
        let table = lock(&self.table);
        match table.all.len() - table.ended.len() < KeptCommand::RUNNING {
            true => Ok(()),
            false => Err(NotStarted {
                code: NotStarted::CANNOT_RUN,
                message: format!(
                    "limit of commands that are kept reached: {} run (`forkyard sessions kill` ends one)",
                    KeptCommand::RUNNING
                ),
            }),
        }
    }

    /// Keeps a command that was just started, and has the host that started it follow it unless it
    /// was to be detached.
    pub fn take_in(
        &self,
        session: Session,
        command: &Command,
        mut child: Child,
        terminal: Option<OwnedFd>,
        group: Group,
    ) {
        let pid = child.id();
        let terminal = terminal.map(Arc::new);
        let stdin = match &terminal {
            Some(terminal) => terminal.try_clone().ok(),
            None => child.stdin.take().map(OwnedFd::from),
        };
        let (input, inputs) = channel();
        let mut said = Said::default();
        let reader = (!command.detach).then(|| self.reader(Some(0)));
        let id = reader.as_ref().map(|reader| reader.id);
        said.readers.extend(reader.map(|reader| (session, reader)));
        let outputs = output::of(&mut child, terminal.as_ref());
        let entry = Arc::new(Entry {
            pid,
            told: told(pid, command),
            group,
            terminal,
            input: Mutex::new(stdin.is_some().then_some(input)),
            waiting: AtomicUsize::new(0),
            passage: Passage::default(),
            said: Mutex::new(said),
            changed: Condvar::new(),
        });
        let mut table = lock(&self.table);
        table.insert(&entry);
        if !command.detach {
            table.attached.insert(session, entry.clone());
        }
        drop(table);
        self.outbox.push(ToHost::ExecStarted { session, pid });
        if let Some(stdin) = stdin.map(File::from) {
            let (entry, outbox) = (entry.clone(), self.outbox.clone());
            thread::spawn(move || entry.feed(stdin, inputs, &outbox));
        }
        if let Some(id) = id {
            self.follow(session, id, entry.clone());
        }
        let table = self.table.clone();
        thread::spawn(move || {
            let outcome = output::see_through(&mut child, outputs, &entry);
            lock(&entry.input).take();
            lock(&entry.said).outcome = Some(outcome);
            lock(&table).has_ended(&entry);
            entry.changed.notify_all();
            entry.group.release();
        });
    }

    /// Has a host follow one, from the oldest output that is kept.
    pub fn attach(&self, session: Session, pid: u32, output: bool) {
        let mut table = lock(&self.table);
        let Some(entry) = table.all.get(&pid).cloned() else {
            drop(table);
            let outcome = Err(NotStarted {
                code: NotStarted::NOT_FOUND,
                message: format!("no command with process id {pid} is kept"),
            });
            return self.outbox.push(ToHost::ExecEnd { session, outcome });
        };
        table.attached.insert(session, entry.clone());
        let mut said = lock(&entry.said);
        let reader = self.reader(output.then_some(said.log.first));
        let id = reader.id;
        said.readers.insert(session, reader);
        drop((said, table));
        self.outbox.push(ToHost::ExecStarted { session, pid });
        self.follow(session, id, entry);
    }

    fn follow(&self, session: Session, id: u64, entry: Arc<Entry>) {
        let (outbox, table) = (self.outbox.clone(), self.table.clone());
        thread::spawn(move || {
            entry.deliver(session, id, &outbox);
            let mut table = lock(&table);
            // A host that has connected since may have given the number to another.
            let of = |found: &Arc<Entry>| Arc::ptr_eq(found, &entry);
            if table.attached.get(&session).is_some_and(of)
                && !lock(&entry.said).readers.contains_key(&session)
            {
                table.attached.remove(&session);
            }
        });
    }

    fn reader(&self, next: Option<u64>) -> Reader {
        Reader {
            id: self.readers.fetch_add(1, Ordering::Relaxed),
            next,
            room: WINDOW.into(),
        }
    }

    /// Tells of each, the oldest first.
    pub fn list(&self) -> Vec<KeptCommand> {
        let entries: Vec<_> = lock(&self.table).all.values().cloned().collect();
        let mut all: Vec<_> = entries.iter().map(|entry| entry.view()).collect();
        all.sort_by_key(|command| (command.started, command.pid));
        all
    }

    /// Bytes from a host that is attached; none of them means end of file.
    pub fn input(&self, session: Session, data: Vec<u8>) {
        let Some(entry) = self.of(session) else {
            return;
        };
        if lock(&entry.input).is_none() {
            // One that reads no more needs no input.
            return;
        }
        let waits = entry.waiting.fetch_add(data.len(), Ordering::SeqCst);
        if waits + data.len() > MOST_INPUT {
            entry.waiting.fetch_sub(data.len(), Ordering::SeqCst);
            lock(&entry.said).readers.remove(&session);
            entry.changed.notify_all();
            let outcome = Err(NotStarted {
                code: NotStarted::CANNOT_RUN,
                message: format!(
                    "{MOST_INPUT} bytes of input wait for a command that does not read"
                ),
            });
            // Not from here, which must not wait for the host.
            let outbox = self.outbox.clone();
            thread::spawn(move || outbox.push(ToHost::ExecEnd { session, outcome }));
            return;
        }
        if let Some(input) = &*lock(&entry.input) {
            let _ = input.send((session, data));
        }
    }

    /// A host that is attached has room for more.
    pub fn more(&self, session: Session, chunks: u16) {
        let Some(entry) = self.of(session) else {
            return;
        };
        if let Some(reader) = lock(&entry.said).readers.get_mut(&session) {
            reader.room = reader.room.saturating_add(chunks.into());
        }
        entry.changed.notify_all();
    }

    /// A host follows it no more; it goes on.
    pub fn detach(&self, session: Session) {
        let entry = lock(&self.table).attached.remove(&session);
        if let Some(entry) = entry {
            lock(&entry.said).readers.remove(&session);
            entry.changed.notify_all();
        }
    }

    /// Detaches all readers from all commands.
    pub fn detach_all(&self) {
        let sessions: Vec<_> = lock(&self.table).attached.keys().copied().collect();
        for session in sessions {
            self.detach(session);
        }
    }

    /// Processes of the command that a host is attached to.
    pub fn group(&self, session: Session) -> Option<Group> {
        let entry = self.of(session)?;
        let runs = lock(&entry.said).outcome.is_none();
        runs.then(|| entry.group.clone())
    }

    /// Terminal of the command.
    pub fn terminal(&self, session: Session) -> Option<Arc<OwnedFd>> {
        self.of(session)?.terminal.clone()
    }

    fn of(&self, session: Session) -> Option<Arc<Entry>> {
        lock(&self.table).attached.get(&session).cloned()
    }
}

fn told(pid: u32, command: &Command) -> KeptCommand {
    let mut room = KeptCommand::ARGV;
    let mut cut = |word: &String| {
        let mut word = word.clone();
        word.truncate(word.floor_char_boundary(room));
        room -= word.len();
        word
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    KeptCommand {
        pid,
        tag: command.tag.as_ref().map(&mut cut),
        workdir: command.workdir.as_ref().map(&mut cut),
        argv: command.argv.iter().take(64).map(cut).collect(),
        tty: command.tty.is_some(),
        started: now.unwrap_or_default().as_secs(),
        exit: None,
        attached: 0,
        kept: 0,
        lost: 0,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
