//! A job's clones, as its parent sees them: forked, known by their key, given
//! orders, heard, ended.
//!
//! ```text
//! listen, key, ticket, clone --+-- in the parent: Crew
//!                              +-- in a clone: member::serve
//! ```
//!
//! A clone that dies says nothing: one that is not heard for 30 s is `Gone`, and
//! the join tells of it, too. When this program ends before the join, by a signal
//! or however, the clones end: on SIGINT, SIGTERM and SIGHUP it kills its ticket
//! first, and otherwise the agent does, to which the ticket's holder is this
//! process. A clone ends with its own copy of this process.

use super::{
    Failure, chain, member,
    report::{Ended, Into, Key, Order, Report, TaskNo},
    report_failed,
};
use forkyard_agent_link::{
    AgentClient, CloneEnd, Cloning, FrameReader, IDENTITY_FILE, SOCKET, send,
};
use forkyard_types::{Ticket, TicketKind};
use nix::{
    ifaddrs::{InterfaceAddress, getifaddrs},
    sys::{
        signal::{SigSet, Signal, kill, killpg},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::Pid,
};
use std::{
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// Longest silence of a clone, and longest time until its first message.
const SILENCE: Duration = Duration::from_secs(30);
/// Longest time until a new connection has shown the key.
const STRANGER: Duration = Duration::from_secs(10);
/// Time between two messages to clones that their parent is there.
const BEAT: Duration = Duration::from_secs(60);

/// Something that concerns the parent.
pub enum Event {
    /// A clone is there and takes orders.
    Here { id: u16 },
    /// A command gave something.
    Output {
        number: TaskNo,
        into: Into,
        data: Vec<u8>,
    },
    /// A command has read the input that it was sent.
    Taken { number: TaskNo },
    /// A command ended.
    End { number: TaskNo, ended: Ended },
    /// A clone is not there any more, or never was.
    Gone { id: u16 },
    /// Nothing more is wanted of the clones.
    Stopped,
    /// All clones have ended.
    Joined(Result<Vec<CloneEnd>, String>),
}

/// Clones that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Number of clones, or of processes in them.
    pub count: u16,
    /// Unit of that number: clones or processes.
    pub kind: TicketKind,
    /// Least number that will do.
    pub least: u16,
}

/// A job's clones.
pub struct Crew {
    client: AgentClient,
    ticket: Ticket,
    links: Links,
    events: mpsc::Sender<Event>,
    inbox: mpsc::Receiver<Event>,
}

/// A signal has ended the job: the thread that saw it ends this process.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);
/// Receiver of signals, if it is not this process.
static FOREMAN: Mutex<Option<Foreman>> = Mutex::new(None);
/// Origin of a signal that a terminal's key has sent, as siginfo tells it.
const SI_KERNEL: i32 = 0x80;

/// Folder that goes when a signal ends the job.
static FOLDER: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Has a folder go with the job, also when a signal ends it.
pub fn remove_when_given_up(folder: &Path) {
    let mut kept = FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    *kept = Some(folder.to_owned());
}

/// Gives what a job came to, unless a signal has ended it: what failed then
/// failed for that reason.
pub fn unless_given_up<T>(outcome: T) -> T {
    while GIVEN_UP.load(Ordering::SeqCst) {
        thread::park();
    }
    outcome
}

/// Command that signals are for while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreman {
    /// In this process's group: a terminal's keys reach it by themselves.
    Beside(Pid),
    /// Leader of a group of its own, which nothing but this process signals.
    Apart(Pid),
}

impl Foreman {
    /// Sends it a signal that has come from there, unless it has it already.
    fn pass(self, signal: Signal, origin: i32) {
        // One that has just ended needs no signal.
        let _ = match self {
            Self::Beside(_) if origin == SI_KERNEL => Ok(()),
            Self::Beside(process) => kill(process, signal),
            Self::Apart(leader) => killpg(leader, signal),
        };
    }
}

/// Has signals go there from now on, instead of ending the job, which they do again if it is none.
pub fn pass_signals_to(foreman: Option<Foreman>) {
    *FOREMAN.lock().unwrap_or_else(PoisonError::into_inner) = foreman;
}

impl Crew {
    /// Forks; returns in the parent alone.
    pub fn fork(client: &AgentClient, wanted: Wanted) -> Result<Self, Failure> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| Failure::Failed(format!("{what}: {error}"))
        };
        let key = Key::draw().map_err(failed("cannot draw a key"))?;
        let ip = own_address().map_err(failed("cannot tell this VM's address"))?;
        let listening = "cannot listen on the family's network";
        let listener = TcpListener::bind((ip, 0)).map_err(failed(listening))?;
        let home = listener.local_addr().map_err(failed(listening))?;
        let signals = ends();
        let blocked = signals.thread_block();
        blocked.map_err(|error| Failure::Failed(format!("cannot block signals: {error}")))?;
        let ticket = client.request_ticket(wanted.count, wanted.kind)?;
        let granted = granted(&ticket);
        if granted < wanted.least {
            // It would go with this process, but a moment later.
            let _ = client.kill(ticket.id);
            return Err(Failure::Failed(format!(
                "{granted} of {} clones were granted, and {} are the least that will do (--least N takes fewer)",
                wanted.count, wanted.least
            )));
        }
        if granted < wanted.count {
            eprintln!("vmfork: {granted} of {} clones were granted", wanted.count);
        }
        let signalled = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC);
        let signalled =
            signalled.map_err(|error| Failure::Failed(format!("cannot read signals: {error}")))?;
        give_up_on(signalled, client.clone(), ticket.clone());
        match client.clone_vm(ticket.id)? {
            Cloning::Clone { id, processes: _ } => {
                drop(listener);
                // Its commands, too, are to be interrupted as any others.
                let _ = signals.thread_unblock();
                match member::serve(client, id, home, key)? {}
            }
            Cloning::Parent { failed } => {
                report_failed(&failed);
                let crew = Self::new(client.clone(), ticket);
                crew.receive(listener, key);
                for (id, _) in failed {
                    let _ = crew.events.send(Event::Gone { id });
                }
                Ok(crew)
            }
        }
    }

    fn new(client: AgentClient, ticket: Ticket) -> Self {
        let (events, inbox) = mpsc::channel();
        Self {
            client,
            ticket,
            links: Links::default(),
            events,
            inbox,
        }
    }

    /// Takes clones in, and tells of those that do not come. These threads end
    /// with the process: a dead clone closes no connection.
    fn receive(&self, listener: TcpListener, key: Key) {
        let ids: Vec<u16> = self.ticket.clones.iter().map(|clone| clone.id).collect();
        let door = Door {
            key,
            ids: ids.clone(),
            links: self.links.clone(),
            events: self.events.clone(),
        };
        thread::spawn(move || {
            for link in listener.incoming().flatten() {
                let door = door.clone();
                thread::spawn(move || door.listen(link));
            }
        });
        let (links, events) = (self.links.clone(), self.events.clone());
        thread::spawn(move || {
            thread::sleep(SILENCE);
            for id in ids {
                if !links.were_there(id) && events.send(Event::Gone { id }).is_err() {
                    return;
                }
            }
        });
        let links = self.links.clone();
        thread::spawn(move || {
            loop {
                thread::sleep(BEAT);
                links.beat();
            }
        });
    }

    /// The clones that were granted.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// Numbers that were granted: clones, or processes in them.
    pub fn granted(&self) -> u16 {
        granted(&self.ticket)
    }

    /// Ways to the clones, for other threads.
    pub fn links(&self) -> Links {
        self.links.clone()
    }

    /// Waits for the next event; blocks.
    pub fn next(&self) -> Option<Event> {
        self.inbox.recv().ok()
    }

    /// Waits for the end of all clones in a thread of its own: `Joined` tells.
    pub fn start_join(&self) {
        let (client, ticket, events) = (self.client.clone(), self.ticket.id, self.events.clone());
        thread::spawn(move || {
            let joined = client.join(ticket).map_err(|error| chain(&error));
            events.send(Event::Joined(joined))
        });
    }

    /// Gives what has `Stopped` come, after what is on its way.
    pub fn stop(&self) -> impl FnOnce() + Send + use<> {
        let events = self.events.clone();
        move || {
            // Without an inbox it has stopped.
            let _ = events.send(Event::Stopped);
        }
    }

    /// Ends all clones, at once.
    pub fn end(&self) -> Result<(), Failure> {
        Ok(self.client.kill(self.ticket.id)?)
    }
}

fn granted(ticket: &Ticket) -> u16 {
    let processes = ticket.clones.iter().map(|clone| clone.processes);
    processes.map(u16::from).sum()
}

/// Connections of the clones that are there.
#[derive(Clone, Default)]
pub struct Links(Arc<(Mutex<Connections>, Condvar)>);

/// By number; none for a clone that was there and is gone.
type Connections = BTreeMap<u16, Option<TcpStream>>;

impl Links {
    fn all(&self) -> MutexGuard<'_, Connections> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn were_there(&self, id: u16) -> bool {
        self.all().contains_key(&id)
    }

    /// Lets one clone of a number in.
    fn add(&self, id: u16, link: TcpStream) -> bool {
        let mut all = self.all();
        if all.contains_key(&id) {
            return false;
        }
        all.insert(id, Some(link));
        self.0.1.notify_all();
        true
    }

    fn lose(&self, id: u16) {
        self.all().insert(id, None);
    }

    fn beat(&self) {
        for link in self.all().values_mut().flatten() {
            let _ = send(link, &Order::Alive);
        }
    }

    /// Tells a clone, which is waited for.
    pub fn order(&self, id: u16, order: &Order) -> io::Result<()> {
        let absent = |all: &mut Connections| !all.contains_key(&id);
        let all = self.all();
        let waited = self.0.1.wait_timeout_while(all, SILENCE, absent);
        let (mut all, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let link = all.get_mut(&id).and_then(Option::as_mut);
        send(link.ok_or(io::ErrorKind::HostUnreachable)?, order)
    }
}

/// Door by which clones come in.
#[derive(Clone)]
struct Door {
    key: Key,
    ids: Vec<u16>,
    links: Links,
    events: mpsc::Sender<Event>,
}

impl Door {
    /// Takes in what one clone says, until it is gone.
    fn listen(&self, link: TcpStream) {
        let Some((id, mut reports)) = self.admit(link) else {
            return;
        };
        let mut sent = self.events.send(Event::Here { id });
        while sent.is_ok()
            && let Ok(Some(report)) = reports.read_message()
        {
            sent = match report {
                Report::Hello { .. } => break,
                Report::Alive => Ok(()),
                Report::Output { number, into, data } => {
                    self.events.send(Event::Output { number, into, data })
                }
                Report::Taken { number } => self.events.send(Event::Taken { number }),
                Report::End { number, ended } => self.events.send(Event::End { number, ended }),
            };
        }
        self.links.lose(id);
        // Fails only once the job is done.
        let _ = self.events.send(Event::Gone { id });
    }

    /// Admits a connection that has the key, and an unused number of this ticket.
    fn admit(&self, link: TcpStream) -> Option<(u16, FrameReader<TcpStream>)> {
        link.set_nodelay(true).ok()?;
        link.set_read_timeout(Some(STRANGER)).ok()?;
        link.set_write_timeout(Some(SILENCE)).ok()?;
        let mut reports = FrameReader::new(link.try_clone().ok()?);
        let Ok(Some(Report::Hello { id, key })) = reports.read_message() else {
            return None;
        };
        if !self.key.is(&key) || !self.ids.contains(&id) {
            return None;
        }
        link.set_read_timeout(Some(SILENCE)).ok()?;
        self.links.add(id, link).then_some((id, reports))
    }
}

/// Signals by which the user ends a job.
fn ends() -> SigSet {
    SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])
}

/// Starts something that these signals are to end as any other program: a child has the mask of the
/// thread that starts it. One that comes just then ends this process.
pub fn unmasked<T>(start: impl FnOnce() -> T) -> T {
    let _ = ends().thread_unblock();
    let started = start();
    let _ = ends().thread_block();
    started
}

/// Ends the clones and this process at the first of these signals, which every
/// thread has blocked; or hands it on.
fn give_up_on(signals: SignalFd, client: AgentClient, ticket: Ticket) {
    thread::spawn(move || {
        let signal = loop {
            let Ok(Some(told)) = signals.read_signal() else {
                return;
            };
            let number = i32::try_from(told.ssi_signo).unwrap_or_default();
            let Ok(signal) = Signal::try_from(number) else {
                continue;
            };
            let foreman = *FOREMAN.lock().unwrap_or_else(PoisonError::into_inner);
            match foreman {
                None => break signal,
                Some(foreman) => foreman.pass(signal, told.ssi_code),
            }
        };
        GIVEN_UP.store(true, Ordering::SeqCst);
        eprintln!("vmfork: {signal}: its clones are ended");
        // In a clone it is refused: the ticket is the parent's.
        let _ = client.kill(ticket.id);
        let folder = FOLDER.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Nothing more can be done about one that stays.
        let _ = folder.map(fs::remove_dir_all);
        std::process::exit(128 + signal as i32);
    });
}

/// Identity of this VM, as its agent says.
pub fn identity() -> io::Result<String> {
    fs::read_to_string(Path::new(SOCKET).with_file_name(IDENTITY_FILE))
}

fn own_address() -> io::Result<IpAddr> {
    let text = identity()?;
    let ip = text
        .lines()
        .find_map(|line| line.strip_prefix("FORKYARD_IP=")?.parse().ok());
    ip.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Name of the interface on the family's network, if it can be told.
pub fn own_interface() -> Option<String> {
    let own = own_address().ok()?;
    let has = |interface: &InterfaceAddress| {
        let address = interface
            .address
            .as_ref()
            .and_then(|it| it.as_sockaddr_in());
        address.is_some_and(|it| own == it.ip())
    };
    getifaddrs().ok()?.find(has).map(|it| it.interface_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_without_the_key_and_a_second_of_one_number_are_not_let_in() {
        let key = Key::draw().expect("drawn");
        let (events, _inbox) = mpsc::channel();
        let door = Door {
            key,
            ids: vec![1],
            links: Links::default(),
            events,
        };
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        let at = listener.local_addr().expect("bound");
        let knock = |id, key| {
            let mut link = TcpStream::connect(at).expect("connected");
            send(&mut link, &Report::Hello { id, key }).expect("sent");
            let (taken, _) = listener.accept().expect("accepted");
            door.admit(taken).map(|(id, _)| id)
        };
        assert_eq!(knock(1, Key::draw().expect("drawn")), None, "no key");
        assert_eq!(knock(2, key), None, "not of this ticket");
        assert_eq!(knock(1, key), Some(1));
        assert_eq!(knock(1, key), None, "is there already");
    }
}
