//! Commands that guests keep: told of, signalled and typed to, each by its process id.
//!
//! Nothing of them is known here: the agent keeps them, so a daemon that dies changes nothing.

use crate::{Used, VmError};
use forkyard_agent_link::{Exec, ExecOut, Guest};
use forkyard_types::{ErrorKind, KeptCommand, VmName, WindowSize};

/// A command that is kept cannot be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// There is none of that number, or it is forgotten.
    #[error("{vm} has no session {pid}")]
    Unknown {
        /// The VM.
        vm: VmName,
        /// Requested process id.
        pid: u32,
    },
    /// The session has ended.
    #[error("session {pid} of {vm} has ended")]
    Ended {
        /// The VM.
        vm: VmName,
        /// Requested process id.
        pid: u32,
    },
    /// The agent would not take it.
    #[error("{vm} took no input for session {pid}: {said}")]
    Refused {
        /// The VM.
        vm: VmName,
        /// Requested process id.
        pid: u32,
        /// Reason.
        said: String,
    },
}

impl SessionError {
    /// Classifies the error for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown { .. } => ErrorKind::NotFound,
            Self::Ended { .. } => ErrorKind::Conflict,
            Self::Refused { .. } => ErrorKind::Exhausted,
        }
    }

    /// Returns advice to the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Unknown { .. } | Self::Ended { .. } => "`forkyard sessions ls VM` lists them",
            Self::Refused { .. } => "wait until the command has read its input",
        }
    }
}

impl Used {
    /// Commands that a guest keeps, the oldest first. Cancel-safe.
    pub async fn sessions(&self) -> Result<Vec<KeptCommand>, VmError> {
        let body = self.answering()?;
        tokio::select! {
            listed = listed(&body.guest) => listed,
            error = self.lost() => Err(error),
        }
    }

    /// A command that a guest keeps, also one that has ended. Cancel-safe.
    pub async fn find_session(&self, pid: u32) -> Result<KeptCommand, VmError> {
        let all = self.sessions().await?;
        let found = all.into_iter().find(|command| command.pid == pid);
        let unknown = || SessionError::Unknown {
            vm: self.vm.name(),
            pid,
        };
        Ok(found.ok_or_else(unknown)?)
    }

    /// Sends a command that runs a signal; 2 and 3 are for its process group, 9 for all that it
    /// started. Cancel-safe: the signal is sent or not.
    pub async fn signal_session(&self, pid: u32, signal: u8) -> Result<(), VmError> {
        if !(1..=64).contains(&signal) {
            return Err(VmError::Invalid(format!("there is no signal {signal}")));
        }
        let held = self.hold_session(pid).await?;
        Ok(held.input().signal(signal).await?)
    }

    /// Gives the terminal of a command another size. Cancel-safe: it has the one size or the other.
    pub async fn resize_session(&self, pid: u32, size: WindowSize) -> Result<(), VmError> {
        let held = self.hold_session(pid).await?;
        Ok(held.input().resize(size).await?)
    }

    /// Sends bytes to a command's standard input, or its end if there are none; returns once it has
    /// read them. If cancelled, some of them may be read.
    pub async fn type_to_session(&self, pid: u32, bytes: Vec<u8>) -> Result<(), VmError> {
        let mut held = self.hold_session(pid).await?;
        let input = held.input();
        if bytes.is_empty() {
            return Ok(input.end().await?);
        }
        let sent = async {
            input.send(bytes).await?;
            input.taken().await
        };
        tokio::pin!(sent);
        loop {
            let out = tokio::select! {
                sent = &mut sent => return Ok(sent?),
                out = held.next() => out,
            };
            let name = self.vm.name();
            return Err(match out {
                Some(ExecOut::NotStarted(why)) => SessionError::Refused {
                    vm: name,
                    pid,
                    said: why.message,
                }
                .into(),
                Some(ExecOut::Lost(error)) => error.into(),
                Some(ExecOut::Ended(_)) | None => SessionError::Ended { vm: name, pid }.into(),
                Some(ExecOut::Output { .. } | ExecOut::Started { .. } | ExecOut::Kept(_)) => {
                    continue;
                }
            });
        }
    }

    /// Attaches to a command that runs, for as long as what is returned is held.
    async fn hold_session(&self, pid: u32) -> Result<Exec, VmError> {
        let body = self.answering()?;
        let name = self.vm.name();
        let held = async {
            if self.find_session(pid).await?.exit.is_some() {
                return Err(SessionError::Ended { vm: name, pid }.into());
            }
            let mut held = body.guest.attach(pid, false).await?;
            match held.next().await {
                Some(ExecOut::Started { .. }) => Ok(held),
                Some(ExecOut::Lost(error)) => Err(error.into()),
                Some(
                    ExecOut::NotStarted(_)
                    | ExecOut::Output { .. }
                    | ExecOut::Ended(_)
                    | ExecOut::Kept(_),
                )
                | None => Err(SessionError::Unknown { vm: name, pid }.into()),
            }
        };
        tokio::select! {
            held = held => held,
            error = self.lost() => Err(error),
        }
    }
}

/// Commands that a guest keeps, the oldest first. Cancel-safe.
pub async fn listed(guest: &Guest) -> Result<Vec<KeptCommand>, VmError> {
    let mut asked = guest.list_kept().await?;
    match asked.next().await {
        Some(ExecOut::Kept(commands)) => Ok(commands),
        Some(ExecOut::Lost(error)) => Err(error.into()),
        Some(
            ExecOut::Started { .. }
            | ExecOut::NotStarted(_)
            | ExecOut::Output { .. }
            | ExecOut::Ended(_),
        )
        | None => Ok(Vec::new()),
    }
}
