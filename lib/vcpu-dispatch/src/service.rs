//! Client of a host's dispatcher, which it starts when a VM is to be scheduled.
//!
//! ```text
//! set     -> one that listens, or else starts one -> its answer
//! others  -> one that listens, or else NoneScheduled
//! ```
//!
//! The dispatcher outlives the process that started it. It ends by itself ten seconds after its
//! last VM; as long as its starter lives, that reaps it.

use crate::{
    protocol::{Reply, Request, Shown, Wanted},
    socket::ask,
};
use forkyard_sys_host::private;
use forkyard_types::ErrorKind;
use std::{
    fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time a dispatcher may take to answer for the first time.
const START: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// Reason for which a dispatcher did not do something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// No dispatcher runs.
    #[error("no VM is scheduled on this host")]
    NoneScheduled,
    /// The process is not one it schedules.
    #[error("{0}")]
    NotScheduled(String),
    /// The dispatcher cannot do it as it was asked for.
    #[error("{0}")]
    Refused(String),
    /// The host failed.
    #[error("{0}")]
    Failed(String),
    /// No answer came.
    #[error("the dispatcher did not answer")]
    Silent(#[source] io::Error),
    /// The program cannot be run.
    #[error("cannot run {path}", path = .path.display())]
    Program {
        /// Program or log.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
    /// The dispatcher ended at once.
    #[error("the dispatcher did not start: {said}")]
    Start {
        /// Text that it wrote.
        said: String,
    },
}

impl ServiceError {
    /// Classifies the error for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoneScheduled | Self::NotScheduled(_) => ErrorKind::NotFound,
            Self::Refused(_) => ErrorKind::Invalid,
            Self::Failed(_) | Self::Silent(_) | Self::Program { .. } | Self::Start { .. } => {
                ErrorKind::Host
            }
        }
    }

    /// Returns advice to the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoneScheduled => Some("begin with `forkyard sched set VM --policy sbco`"),
            Self::NotScheduled(_) => Some("`forkyard sched show` lists what is scheduled"),
            Self::Refused(_)
            | Self::Failed(_)
            | Self::Silent(_)
            | Self::Program { .. }
            | Self::Start { .. } => None,
        }
    }
}

/// The dispatcher of a host, seen from another process.
#[derive(Clone, Debug)]
pub struct Service {
    socket: PathBuf,
    log: PathBuf,
    program: PathBuf,
}

impl Service {
    /// Dispatcher whose socket is in this run folder, and whose program is in this folder of
    /// programs.
    pub fn new(run: &Path, bin: &Path) -> Self {
        Self {
            socket: run.join("sched.sock"),
            log: run.join("sched.log"),
            program: bin.join("forkyard-dispatcher"),
        }
    }

    /// Has a VM scheduled; starts a dispatcher if none runs. Blocks, for two minutes at most.
    pub fn set(&self, wanted: Wanted) -> Result<Shown, ServiceError> {
        self.start()?;
        self.done(&Request::Set(wanted))
    }

    /// Lets a VM go. Blocks, for a minute at most.
    pub fn release(&self, pid: u32) -> Result<Shown, ServiceError> {
        match self.done(&Request::Release { pid }) {
            Err(ServiceError::Refused(why)) => Err(ServiceError::NotScheduled(why)),
            done => done,
        }
    }

    /// Reads the present state. Blocks, for a minute at most.
    pub fn show(&self) -> Result<Shown, ServiceError> {
        let shown = self.done(&Request::Show)?;
        match shown.vms.is_empty() {
            // It ends in a moment, and to users there is none.
            true => Err(ServiceError::NoneScheduled),
            false => Ok(shown),
        }
    }

    fn done(&self, request: &Request) -> Result<Shown, ServiceError> {
        let absent = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        let reply = ask(&self.socket, request).map_err(|error| {
            if absent.contains(&error.kind()) {
                ServiceError::NoneScheduled
            } else {
                ServiceError::Silent(error)
            }
        })?;
        match reply {
            Reply::Done(shown) => Ok(shown),
            Reply::Refused(why) => Err(ServiceError::Refused(why)),
            Reply::Failed(why) => Err(ServiceError::Failed(why)),
        }
    }

    /// Starts a dispatcher unless one answers.
    fn start(&self) -> Result<(), ServiceError> {
        if ask(&self.socket, &Request::Show).is_ok() {
            return Ok(());
        }
        let cannot = |path: &Path| {
            let path = path.to_owned();
            move |source| ServiceError::Program { path, source }
        };
        let to = private::create(&self.log).map_err(cannot(&self.log))?;
        let mut command = Command::new(&self.program);
        command.args(["serve", "--socket"]).arg(&self.socket);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(to);
        // What ends this process does not end it.
        command.process_group(0);
        let mut child = command.spawn().map_err(cannot(&self.program))?;
        let answers = self.wait(&mut child);
        thread::spawn(move || child.wait());
        answers
    }

    fn wait(&self, child: &mut Child) -> Result<(), ServiceError> {
        let begun = Instant::now();
        let mut ended = false;
        while ask(&self.socket, &Request::Show).is_err() {
            // Another request may have started one at the same time. That one has the place
            // then, and this one ended because it listens.
            if ended || begun.elapsed() > START {
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                let said = said.trim_end().to_owned();
                return Err(ServiceError::Start { said });
            }
            ended = matches!(child.try_wait(), Ok(Some(_)) | Err(_));
            thread::sleep(POLL);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_dispatcher_nothing_is_scheduled_and_one_that_cannot_run_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let service = Service::new(folder.path(), folder.path());
        let none = |outcome| matches!(outcome, Err(ServiceError::NoneScheduled));
        assert!(none(service.show()));
        assert!(none(service.release(1)));
        let absent = service.set(Wanted::default());
        assert!(matches!(absent, Err(ServiceError::Program { .. })));
        std::os::unix::fs::symlink("/bin/false", &service.program).expect("linked");
        let ended = service.set(Wanted::default());
        assert!(matches!(ended, Err(ServiceError::Start { .. })));
    }
}
