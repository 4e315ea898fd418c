//! The dispatcher's socket, and its loop.

use crate::{
    Dispatcher,
    error::Blame,
    protocol::{Reply, Request},
};
use forkyard_sched::Nanos;
use std::{
    error::Error,
    io::{self, BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

/// The longest request.
const LONGEST: u64 = 64 * 1024;
/// Time a dispatcher with no VM to schedule stays.
const STAYS: Duration = Duration::from_secs(10);
/// Time it may take to answer on a busy host: to make a group takes the kernel
/// tens of milliseconds.
const ANSWERS: Duration = Duration::from_secs(60);

type Asked = (Request, Sender<Reply>);

/// Schedules and answers until no VM has been scheduled for ten seconds. Blocks.
pub fn serve(dispatcher: &mut Dispatcher, listener: UnixListener) {
    let (tell, asked) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let tell = tell.clone();
            std::thread::spawn(move || {
                if let Err(error) = converse(&stream, &tell) {
                    tracing::debug!(%error, "a conversation broke off");
                }
            });
        }
    });
    run(dispatcher, &asked);
}

fn run(dispatcher: &mut Dispatcher, asked: &Receiver<Asked>) {
    let begun = Instant::now();
    let now = || Nanos(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut busy = Instant::now();
    while busy.elapsed() < STAYS {
        let next = dispatcher.step(now());
        let wait = Duration::from_nanos(next.minus(now()).0);
        match asked.recv_timeout(wait) {
            Ok((request, reply)) => {
                // A client that has hung up needs no answer.
                let _ = reply.send(answer(dispatcher, &request, now()));
                busy = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if !dispatcher.is_idle() {
            busy = Instant::now();
        }
    }
}

fn answer(dispatcher: &mut Dispatcher, request: &Request, now: Nanos) -> Reply {
    let done = match request {
        Request::Set(wanted) => dispatcher.set(wanted, now),
        Request::Release { pid } => dispatcher.release(*pid, now),
        Request::Show => Ok(()),
    };
    match done {
        Ok(()) => Reply::Done(dispatcher.shown()),
        Err(error) => {
            let causes = std::iter::successors(error.source(), |cause| (*cause).source());
            let causes: String = causes.map(|cause| format!(": {cause}")).collect();
            let text = format!("{error}{causes}");
            match error.blame() {
                Blame::Request => Reply::Refused(text),
                Blame::Host => Reply::Failed(text),
            }
        }
    }
}

fn converse(stream: &UnixStream, tell: &Sender<Asked>) -> io::Result<()> {
    let mut reader = BufReader::new(io::Read::take(stream, LONGEST));
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        let reply = match serde_json::from_str(&line) {
            Ok(request) => {
                let (sender, receiver) = channel();
                let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
                tell.send((request, sender))
                    .map_err(|_| io::ErrorKind::BrokenPipe)?;
                receiver.recv().map_err(gone)?
            }
            Err(error) => Reply::Refused(format!("not understood: {error}")),
        };
        let mut text = serde_json::to_string(&reply)?;
        text.push('\n');
        let mut stream = stream;
        stream.write_all(text.as_bytes())?;
        line.clear();
    }
    Ok(())
}

/// Asks the dispatcher that listens at a path. Blocks until it has answered, for
/// a minute at most.
pub fn ask(path: &Path, request: &Request) -> io::Result<Reply> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWERS))?;
    let mut text = serde_json::to_string(request)?;
    text.push('\n');
    stream.write_all(text.as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}
