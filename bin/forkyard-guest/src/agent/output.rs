//! Reading what a command writes, until it has ended and said all.

use forkyard_agent_link::{CHUNK, Stream};
use forkyard_types::{ExitStatus, NotStarted};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::read,
};
use std::{
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

/// Silence after a command's end that counts as the end of its output.
const LINGER: Duration = Duration::from_millis(200);
/// Bytes that a pipe of a command holds.
const PIPE: i32 = 256 << 10;

/// Receiver of a command's output.
pub trait Sink: Send + Sync + 'static {
    /// Count of what goes through.
    fn passage(&self) -> &Passage;
    /// Takes what was read; waits while there is no room for it.
    fn take(&self, stream: Stream, data: &[u8]);
    /// Takes itself what a pipe holds, if that is so much that it has a better way; whether it did.
    fn take_from(&self, _: Stream, _: &OwnedFd) -> bool {
        false
    }
}

/// Count of the chunks that were read, and of those that went on their way.
#[derive(Debug, Default)]
pub struct Passage {
    entered: AtomicU64,
    left: AtomicU64,
}

impl Passage {
    fn enter(&self) {
        self.entered.fetch_add(1, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.left.fetch_add(1, Ordering::SeqCst);
    }

    fn passed(&self) -> u64 {
        self.left.load(Ordering::SeqCst)
    }

    /// True if nothing that was read waits for its reader.
    fn is_idle(&self) -> bool {
        self.entered.load(Ordering::SeqCst) == self.passed()
    }
}

/// A command's outputs: its terminal, or its pipes.
pub fn of(child: &mut Child, terminal: Option<&Arc<OwnedFd>>) -> Vec<(Stream, Arc<OwnedFd>)> {
    if let Some(terminal) = terminal {
        return vec![(Stream::Out, terminal.clone())];
    }
    let out = child.stdout.take().map(|pipe| (Stream::Out, pipe.into()));
    let err = child.stderr.take().map(|pipe| (Stream::Err, pipe.into()));
    let pipes = [out, err].into_iter().flatten();
    pipes
        .map(|(to, pipe): (_, OwnedFd)| {
            widen(&pipe);
            (to, Arc::new(pipe))
        })
        .collect()
}

/// Lets a pipe hold more: a command that writes or reads much is stopped less often. Not more than is
/// allowed is fine, too.
pub fn widen(pipe: &impl AsFd) {
    let _ = fcntl(pipe, FcntlArg::F_SETPIPE_SZ(PIPE));
}

/// Passes a command's output on until it has ended and said all. A process it
/// left running may keep the pipe open for ever: that one is not waited for.
pub fn see_through<S: Sink>(
    child: &mut Child,
    outputs: Vec<(Stream, Arc<OwnedFd>)>,
    sink: &Arc<S>,
) -> Result<ExitStatus, NotStarted> {
    let (done, over) = channel();
    let mut pipes = Vec::new();
    for (stream, pipe) in outputs {
        pipes.push(pipe.clone());
        let (sink, done) = (sink.clone(), done.clone());
        thread::spawn(move || {
            pump(stream, &pipe, &*sink);
            done.send(())
        });
    }
    drop(done);
    let passage = sink.passage();
    let outcome = ended(child);
    loop {
        let before = passage.passed();
        match over.recv_timeout(LINGER) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return outcome,
            // However little time this guest has: what lies in a pipe is output.
            Err(RecvTimeoutError::Timeout)
                if !pipes.iter().any(|pipe| holds_some(pipe))
                    && passage.is_idle()
                    && passage.passed() == before =>
            {
                return outcome;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn pump(stream: Stream, from: &OwnedFd, sink: &impl Sink) {
    let mut buffer = vec![0; CHUNK];
    loop {
        // Entered before it is taken out of the pipe: it is always in one of the two.
        match readable(from, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(_) => return,
        }
        sink.passage().enter();
        if sink.take_from(stream, from) {
            sink.passage().leave();
            continue;
        }
        let read = read(from, &mut buffer);
        if let Ok(read @ 1..) = read {
            sink.take(stream, &buffer[..read]);
        }
        sink.passage().leave();
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
