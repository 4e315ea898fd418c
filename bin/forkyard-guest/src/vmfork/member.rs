//! A clone of a job: does what its parent orders, until it may leave.
//!
//! Whatever fails ends the clone: the parent's link is all it lives for. While a
//! command runs, a parent that says nothing is waited for.

use super::{
    Failure, crew,
    report::{Ended, Input, Into, Key, Order, Report, Task, TaskNo},
};
use forkyard_agent_link::{AgentClient, CHUNK, CloneEnd, FrameReader, ReadError, send};
use forkyard_sys_guest::process::Process;
use forkyard_types::ExitStatus;
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

/// Time the parent may take to answer a connection.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time an idle clone waits for a silent parent.
const SILENCE: Duration = Duration::from_secs(600);
/// Interval of a clone's signs of life.
const BEAT: Duration = Duration::from_secs(5);
/// A clone that was lost.
pub const LOST: u8 = 125;

/// Serves the parent; ends the clone, never returns but with a failure.
pub fn serve(
    client: &AgentClient,
    id: u16,
    home: SocketAddr,
    key: Key,
) -> Result<Infallible, Failure> {
    client.end_with_me(LOST)?;
    let own = crew::identity().ok();
    let (status, others) = attend(id, home, key).unwrap_or((LOST, Vec::new()));
    // A command of this clone has forked it: this is a copy of the process, whose link is not its
    // own. That clone lives for the command's copy, whose output is taken here.
    while crew::identity().ok() != own {
        thread::park();
    }
    let numbers = id.saturating_add(1)..;
    let others = numbers.zip(others).map(|(id, status)| CloneEnd {
        id,
        status: Some(status),
    });
    Ok(client.exit(status, others.collect())?)
}

/// Does what is ordered; the codes to leave with.
fn attend(id: u16, home: SocketAddr, key: Key) -> io::Result<(u8, Vec<u8>)> {
    let link = TcpStream::connect_timeout(&home, PATIENCE)?;
    link.set_nodelay(true)?;
    link.set_read_timeout(Some(SILENCE))?;
    let voice = Voice(Arc::new(Mutex::new(link.try_clone()?)));
    voice.tell(&Report::Hello { id, key })?;
    let beat = voice.clone();
    thread::spawn(move || {
        while beat.tell(&Report::Alive).is_ok() {
            thread::sleep(BEAT);
        }
    });
    let running = Arc::new(AtomicUsize::new(0));
    let mut inputs = BTreeMap::new();
    let mut orders = FrameReader::new(link);
    loop {
        match orders.read_message() {
            Ok(Some(Order::Run(task))) => {
                running.fetch_add(1, Ordering::SeqCst);
                let (voice, running) = (voice.clone(), running.clone());
                let input = (task.input == Input::Sent).then(mpsc::channel);
                let (pieces, input) = input.unzip();
                inputs.extend(pieces.map(|pieces| (task.number, pieces)));
                thread::spawn(move || {
                    let ended = execute(&task, input, &voice);
                    let number = task.number;
                    // Fails only if the parent is gone.
                    let _ = voice.tell(&Report::End { number, ended });
                    running.fetch_sub(1, Ordering::SeqCst);
                });
            }
            Ok(Some(Order::Input { number, data })) => {
                // Dropping the sender is the end of the input. A command that reads no more has ended it, too.
                if let Some(pieces) = inputs.remove(&number)
                    && !data.is_empty()
                    && pieces.send(data).is_ok()
                {
                    inputs.insert(number, pieces);
                }
            }
            Ok(Some(Order::Alive)) => {}
            Ok(Some(Order::Leave { status, others })) => return Ok((status, others)),
            Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(ReadError::Io(error))
                if error.kind() == io::ErrorKind::WouldBlock
                    && running.load(Ordering::SeqCst) > 0 => {}
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// The way home: reports of all commands share it, one at a time.
#[derive(Clone)]
struct Voice(Arc<Mutex<TcpStream>>);

impl Voice {
    fn tell(&self, report: &Report) -> io::Result<()> {
        let mut link = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        send(&mut *link, report)
    }
}

/// Pieces of a command's input; closed at its end.
type Pieces = mpsc::Receiver<Vec<u8>>;

fn execute(task: &Task, input: Option<Pieces>, voice: &Voice) -> Ended {
    let folder = match &task.folder {
        None => None,
        Some(name) => match make_folder(task, name) {
            Ok(path) => Some(path),
            Err(error) => return Ended::Failed(format!("cannot make its folder: {error}")),
        },
    };
    let Some((program, arguments)) = task.words.split_first() else {
        return Ended::Failed("no command".to_owned());
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(task.variables.iter().map(|(name, value)| (name, value)))
        .process_group(0);
    if let Some(folder) = &folder {
        command.env("FORKYARD_OUT", folder);
    }
    let ended = match run(command, task, input, voice) {
        Ok(ended) => ended,
        Err(error) => Ended::Failed(format!("cannot run {program}: {error}")),
    };
    match folder.map_or(Ok(()), |folder| bring_home(&folder, task, voice)) {
        Ok(()) => ended,
        Err(error) => Ended::Failed(format!("cannot bring its folder home: {error}")),
    }
}

fn make_folder(task: &Task, name: &str) -> io::Result<std::path::PathBuf> {
    // Numbers never come twice in a clone: nothing of another try is there.
    let above = super::scratch().join(format!(
        "forkyard-out-{}-{}",
        std::process::id(),
        task.number.0
    ));
    fs::create_dir(&above)?;
    let folder = above.join(name);
    fs::create_dir(&folder)?;
    Ok(folder)
}

fn run(
    mut command: Command,
    task: &Task,
    input: Option<Pieces>,
    voice: &Voice,
) -> io::Result<Ended> {
    let stdin = match &input {
        Some(_) => Stdio::piped(),
        None => Stdio::null(),
    };
    let mut child = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let (Some(input), Some(stdin)) = (input, child.stdin.take()) {
        let (number, voice) = (task.number, voice.clone());
        // Not waited for: what reads no input may end before the input does.
        thread::spawn(move || feed(number, &input, stdin, &voice));
    }
    let (out, err) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(|| pump(out, Into::Out, task, voice));
        scope.spawn(|| pump(err, Into::Err, task, voice));
        if let Some(limit) = task.limit {
            Process::open(child.id())?.wait_at_most(limit)?;
        }
        if task.limit.is_some() && child.try_wait()?.is_none() {
            // Its children, too: they hold the pipes that are read here.
            let group = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
            killpg(group, Signal::SIGKILL)?;
            child.wait()?;
            return Ok(Ended::TimedOut);
        }
        status(&mut child).map(Ended::Exited)
    })
}

/// Writes input to a command, until it ends or the command reads no more.
fn feed(number: TaskNo, input: &Pieces, mut stdin: ChildStdin, voice: &Voice) {
    for data in input {
        let taken = stdin.write_all(&data);
        if taken.and(voice.tell(&Report::Taken { number })).is_err() {
            return;
        }
    }
}

fn pump(from: Option<impl Read>, into: Into, task: &Task, voice: &Voice) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; CHUNK];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let report = Report::Output {
            number: task.number,
            into,
            data: buffer[..read].to_vec(),
        };
        // Without a parent the command runs on to its end, unheard.
        let _ = voice.tell(&report);
    }
}

fn bring_home(folder: &Path, task: &Task, voice: &Voice) -> io::Result<()> {
    let mut sender = Command::new(crate::PROGRAM)
        .args(["files", "send"])
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    pump(sender.stdout.take(), Into::Folder, task, voice);
    match sender.wait()?.success() {
        true => fs::remove_dir_all(folder.parent().unwrap_or(folder)),
        false => Err(io::Error::other("it cannot be read")),
    }
}

fn status(child: &mut Child) -> io::Result<ExitStatus> {
    let status = child.wait()?;
    let small = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => ExitStatus::Code(small(code)),
        (None, signal) => ExitStatus::Signal(small(signal.unwrap_or_default())),
    })
}
