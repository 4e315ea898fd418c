//! `vmfork run`: clones, a command in each, their output and exit codes here.
//!
//! ```text
//! parent: listen, ticket, clone --+-- take reports in ... join -- exit code
//! clone:                          +-- connect, run, report, wait for the
//!                                     acknowledgement, exit
//! ```
//!
//! In a clone of a hierarchical ticket the middle of that is done once for
//! each process it is granted, side by side.
//!
//! A clone that dies says nothing; the join tells. When this program ends before
//! the join, by a signal or however, the clones end: on SIGINT, SIGTERM and SIGHUP
//! it kills its ticket first, and otherwise the agent does, to which the ticket's
//! holder is this process. A clone ends with its own copy of this process.

use super::{
    Failure, number,
    report::{Lines, Report},
    report_failed,
};
use forkyard_guestlink::{
    CHUNK, Client, CloneEnd, Cloning, FrameReader, IDENTITY_FILE, SOCKET, Stream, send,
};
use forkyard_types::{ExitStatus, TicketId, TicketKind};
use nix::sys::signal::{SigSet, Signal};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// How long a clone waits for its parent: to answer, and to acknowledge.
const PATIENCE: Duration = Duration::from_secs(30);
/// A command that could not be started, as shells report it.
const NOT_STARTED: u8 = 127;
/// A clone that was lost.
const LOST: u8 = 125;

struct Words<'a> {
    count: u16,
    kind: TicketKind,
    prefix: bool,
    command: &'a [&'a str],
}

fn parse<'a>(words: &'a [&'a str]) -> Result<Words<'a>, Failure> {
    let mut parsed = Words {
        count: 1,
        kind: TicketKind::Flat,
        prefix: true,
        command: &[],
    };
    let mut rest = words;
    loop {
        rest = match rest {
            ["-n", count, rest @ ..] => {
                parsed.count = number(count)?;
                rest
            }
            ["--hierarchical", rest @ ..] => {
                parsed.kind = TicketKind::Hierarchical;
                rest
            }
            ["--no-prefix", rest @ ..] => {
                parsed.prefix = false;
                rest
            }
            ["--", command @ ..] if !command.is_empty() => {
                parsed.command = command;
                break;
            }
            [] | ["--"] => return Err(Failure::Usage("no command after --".into())),
            [word, ..] => {
                return Err(Failure::Usage(format!(
                    "{word}: unknown; the command goes after --"
                )));
            }
        };
    }
    match parsed.count {
        0 => Err(Failure::Usage("-n 0: no clones, nothing to run".into())),
        _ => Ok(parsed),
    }
}

/// A signal has ended the job: the thread that saw it ends this process.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Runs the command in clones.
pub fn run(client: &Client, words: &[&str]) -> Result<ExitCode, Failure> {
    let outcome = run_job(client, words);
    // What failed then failed for that reason.
    while GIVEN_UP.load(Ordering::SeqCst) {
        thread::park();
    }
    outcome
}

fn run_job(client: &Client, words: &[&str]) -> Result<ExitCode, Failure> {
    let words = parse(words)?;
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| Failure::Failed(format!("{what}: {error}"))
    };
    let ip = own_address().map_err(failed("cannot tell this VM's address"))?;
    let listener =
        TcpListener::bind((ip, 0)).map_err(failed("cannot listen on the family's network"))?;
    let home = listener
        .local_addr()
        .map_err(failed("cannot listen on the family's network"))?;
    let signals = ends();
    let blocked = signals.thread_block();
    blocked.map_err(|error| Failure::Failed(format!("cannot block signals: {error}")))?;
    let ticket = client.request_ticket(words.count, words.kind)?;
    give_up_on(signals, client.clone(), ticket.id);
    let count: u16 = ticket
        .clones
        .iter()
        .map(|clone| u16::from(clone.processes))
        .sum();
    if count < words.count {
        eprintln!("vmfork: {count} of {} clones were granted", words.count);
    }
    match client.clone_vm(ticket.id)? {
        Cloning::Clone { id, processes } => {
            drop(listener);
            // Its command, too, is to be interrupted as any other.
            let _ = signals.thread_unblock();
            client.end_with_me(LOST)?;
            let job = Job {
                count,
                home,
                command: words.command,
            };
            let (status, others) = job.work_all(id, processes);
            match client.exit(status, others)? {}
        }
        Cloning::Parent { failed } => {
            report_failed(&failed);
            Ok(gather(client, ticket.id, listener, words.prefix))
        }
    }
}

/// Signals by which the user ends a job.
fn ends() -> SigSet {
    SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])
}

/// Ends the clones and this process at the first of these signals, which every
/// thread has blocked.
fn give_up_on(signals: SigSet, client: Client, ticket: TicketId) {
    thread::spawn(move || {
        let Ok(signal) = signals.wait() else { return };
        GIVEN_UP.store(true, Ordering::SeqCst);
        eprintln!("vmfork: {signal}: its clones are ended");
        // In a clone it is refused: the ticket is the parent's.
        let _ = client.kill(ticket);
        std::process::exit(128 + signal as i32);
    });
}

fn own_address() -> io::Result<IpAddr> {
    let text = fs::read_to_string(Path::new(SOCKET).with_file_name(IDENTITY_FILE))?;
    let ip = text
        .lines()
        .find_map(|line| line.strip_prefix("FORKYARD_IP=")?.parse().ok());
    ip.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

// ---- in a clone ----

/// What every clone does.
struct Job<'a> {
    count: u16,
    home: SocketAddr,
    command: &'a [&'a str],
}

impl Job<'_> {
    /// Does the work of so many numbers, side by side; the code to exit with,
    /// and those of the numbers after the first.
    fn work_all(&self, first: u16, processes: u8) -> (u8, Vec<CloneEnd>) {
        let others = first + 1..first + u16::from(processes);
        thread::scope(|scope| {
            let others: Vec<_> = others
                .map(|id| (id, scope.spawn(move || self.work(id))))
                .collect();
            let own = self.work(first);
            let ends = others.into_iter().map(|(id, work)| CloneEnd {
                id,
                status: work.join().ok(),
            });
            (own, ends.collect())
        })
    }

    /// Runs the command and tells the parent of it; the code to exit with.
    fn work(&self, id: u16) -> u8 {
        let outcome = TcpStream::connect_timeout(&self.home, PATIENCE).and_then(|mut link| {
            link.set_nodelay(true)?;
            tell(&mut link, &Report::Hello { id })?;
            let ended = self.execute(id, &link);
            let code = code_of(&ended);
            tell(&mut link, &Report::End(ended))?;
            // Gone too early, and what is still on its way would be lost.
            link.set_read_timeout(Some(PATIENCE))?;
            link.read_exact(&mut [0])?;
            Ok(code)
        });
        outcome.unwrap_or(LOST)
    }

    fn execute(&self, id: u16, link: &TcpStream) -> Result<ExitStatus, String> {
        let (program, arguments) = self.command.split_first().ok_or("no command")?;
        let mut child = Command::new(program)
            .args(arguments)
            .env("FORKYARD_ID", id.to_string())
            .env("FORKYARD_COUNT", self.count.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot run {program}: {error}"))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        // Frames of both streams share the connection, one at a time.
        let link = Mutex::new(link);
        thread::scope(|scope| {
            scope.spawn(|| pump(out, Stream::Out, &link));
            scope.spawn(|| pump(err, Stream::Err, &link));
        });
        ended(&mut child).map_err(|error| format!("cannot wait for {program}: {error}"))
    }
}

fn pump(from: Option<impl Read>, stream: Stream, link: &Mutex<&TcpStream>) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; CHUNK];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let report = Report::Output {
            stream,
            data: buffer[..read].to_vec(),
        };
        let mut link = link.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a parent the command runs on to its end, unheard.
        let _ = tell(&mut *link, &report);
    }
}

fn tell(mut link: impl Write, report: &Report) -> io::Result<()> {
    send(&mut link, report)
}

fn ended(child: &mut Child) -> io::Result<ExitStatus> {
    let status = child.wait()?;
    let small = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => ExitStatus::Code(small(code)),
        (None, signal) => ExitStatus::Signal(small(signal.unwrap_or_default())),
    })
}

fn code_of(ended: &Result<ExitStatus, String>) -> u8 {
    ended
        .as_ref()
        .map_or(NOT_STARTED, |status| status.shell_code())
}

// ---- in the parent ----

/// Something that concerns the parent.
enum Event {
    Line {
        id: u16,
        stream: Stream,
        line: Vec<u8>,
    },
    End {
        id: u16,
        ended: Result<ExitStatus, String>,
    },
    Joined(Result<Vec<CloneEnd>, String>),
}

/// Takes in what the clones say until every one of them has ended.
fn gather(
    client: &Client,
    ticket: forkyard_types::TicketId,
    listener: TcpListener,
    prefix: bool,
) -> ExitCode {
    let (events, inbox) = mpsc::channel();
    let accepting = events.clone();
    // These threads end with the process: a dead clone closes no connection.
    thread::spawn(move || {
        for link in listener.incoming().flatten() {
            let events = accepting.clone();
            thread::spawn(move || listen(link, &events));
        }
    });
    let client = client.clone();
    thread::spawn(move || {
        let joined = client.join(ticket).map_err(|error| super::chain(&error));
        events.send(Event::Joined(joined))
    });
    let mut codes = BTreeMap::new();
    for event in inbox {
        match event {
            Event::Line { id, stream, line } => show(id, stream, &line, prefix),
            Event::End { id, ended } => {
                if let Err(why) = &ended {
                    eprintln!("vmfork: [{id}] {why}");
                }
                codes.insert(id, code_of(&ended));
            }
            Event::Joined(Ok(ends)) => {
                for end in ends.iter().filter(|end| !codes.contains_key(&end.id)) {
                    eprintln!("vmfork: [{}] the clone was lost", end.id);
                }
                let code = |end: &CloneEnd| codes.get(&end.id).copied().unwrap_or(LOST);
                return ExitCode::from(ends.iter().map(code).find(|code| *code != 0).unwrap_or(0));
            }
            Event::Joined(Err(why)) => {
                if !GIVEN_UP.load(Ordering::SeqCst) {
                    eprintln!("vmfork: cannot join: {why}");
                }
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::FAILURE
}

/// Takes in what one clone says.
fn listen(link: TcpStream, events: &mpsc::Sender<Event>) {
    let Ok(mut answer) = link.try_clone() else {
        return;
    };
    let mut reports = FrameReader::new(link);
    let Ok(Some(Report::Hello { id })) = reports.read_message() else {
        return;
    };
    let mut lines = BTreeMap::from([(false, Lines::default()), (true, Lines::default())]);
    while let Ok(Some(report)) = reports.read_message() {
        let sent = match report {
            Report::Hello { .. } => return,
            Report::Output { stream, data } => {
                let lines = lines.entry(stream == Stream::Err).or_default();
                lines
                    .feed(&data)
                    .into_iter()
                    .try_for_each(|line| events.send(Event::Line { id, stream, line }))
            }
            Report::End(ended) => {
                let rest = |(err, lines): (&bool, &mut Lines)| {
                    let stream = if *err { Stream::Err } else { Stream::Out };
                    Some(Event::Line {
                        id,
                        stream,
                        line: lines.rest()?,
                    })
                };
                let sent = lines
                    .iter_mut()
                    .filter_map(rest)
                    .try_for_each(|event| events.send(event));
                let sent = sent.and_then(|()| events.send(Event::End { id, ended }));
                // After this the clone is free to go, and the join to return.
                let _ = answer.write_all(&[0]);
                sent
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

fn show(id: u16, stream: Stream, line: &[u8], prefix: bool) {
    let mut text = if prefix {
        format!("[{id}] ").into_bytes()
    } else {
        Vec::new()
    };
    text.extend_from_slice(line);
    text.push(b'\n');
    // A reader that went away is no reason to leave the clones unjoined.
    let _ = match stream {
        Stream::Out => io::stdout().write_all(&text),
        Stream::Err => io::stderr().write_all(&text),
    };
}
