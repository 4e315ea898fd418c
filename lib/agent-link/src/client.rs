//! Client of the fork API for programs in a guest: it asks the agent over a
//! Unix socket, one connection a call, and waits.
//!
//! A clone of the VM has a copy of everything, this connection and the agent's
//! end of it included; so the same call returns in both.
//!
//! An agent that dies during a call is replaced: the same request is made of
//! the next one, until it is answered or none has come for a while.

use crate::{Answer, Ask, CloneEnd, FrameReader, ReadError, Request, send};
use forkyard_types::{ApiError, Epoch, ErrorKind, RequestId, Ticket, TicketId, TicketKind, VmId};
use std::{
    convert::Infallible,
    env, fs, io,
    os::unix::net::UnixStream,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

/// Socket at which the agent listens.
pub const SOCKET: &str = "/opt/forkyard/agent.sock";
/// Environment variable that names another socket.
pub const SOCKET_ENV: &str = "FORKYARD_AGENT_SOCKET";
/// Name of the file beside the socket that holds this VM's identity: `KEY=VALUE`
/// lines.
pub const IDENTITY_FILE: &str = "identity";

/// Time a program waits for an agent to take the place of one that died.
const SUCCESSOR: Duration = Duration::from_secs(20);
/// Between looks for it.
const LOOK: Duration = Duration::from_millis(100);

/// Reason why a call came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// There is no agent, or this program may not talk to it.
    #[error("cannot reach the agent at {}", path.display())]
    Unreachable {
        /// Path of the socket.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The agent went away in the middle of the call.
    #[error("the agent went away during the call")]
    Gone,
    /// The connection failed in the middle of the call.
    #[error("the connection to the agent failed")]
    Broken(#[from] ReadError),
    /// The answer is not one to the request.
    #[error("the agent's answer is not one to the request")]
    Unexpected,
    /// The request was refused, or failed.
    #[error(transparent)]
    Refused(#[from] ApiError),
    /// The file of this VM's identity cannot be read.
    #[error("cannot read this VM's identity from {}", path.display())]
    Identity {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

impl CallError {
    /// Classifies the error for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused(error) => error.kind,
            Self::Unreachable { .. }
            | Self::Gone
            | Self::Broken(_)
            | Self::Unexpected
            | Self::Identity { .. } => ErrorKind::Guest,
        }
    }
}

/// Result of `clone`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cloning {
    /// This is the parent. Clones that could not be made, and why.
    Parent {
        /// By number.
        failed: Vec<(u16, String)>,
    },
    /// This is the clone of that number.
    Clone {
        /// 1 and up.
        id: u16,
        /// Processes to fork into, this one included, with the numbers from
        /// `id` on; 1 unless the ticket is hierarchical.
        processes: u8,
    },
}

/// Result of `checkpoint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpointing {
    /// This is the VM that took it.
    Taken {
        /// Id of the checkpoint, for [`AgentClient::create_clones`].
        checkpoint: VmId,
    },
    /// This is a clone of it, of that number in its ticket.
    Clone {
        /// 1 and up.
        id: u16,
        /// As in [`Cloning::Clone`].
        processes: u8,
    },
}

/// The agent, as programs in its guest see it.
#[derive(Clone, Debug)]
pub struct AgentClient {
    socket: PathBuf,
    patience: Duration,
}

impl AgentClient {
    /// The agent of this VM, or the one [`SOCKET_ENV`] names.
    pub fn from_env() -> Self {
        Self::at(env::var_os(SOCKET_ENV).map_or_else(|| SOCKET.into(), PathBuf::from))
    }

    /// The agent that listens there.
    pub fn at(socket: PathBuf) -> Self {
        Self {
            socket,
            patience: SUCCESSOR,
        }
    }

    /// Sets the time to wait for an agent that takes the place of one that died
    /// during a call.
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Reserves clones, or processes in clones. Fewer may be granted than are
    /// asked for. The ticket belongs to this process: when that ends, clones
    /// that were not joined are ended, and a ticket not yet cloned with is given back.
    pub fn request_ticket(&self, count: u16, kind: TicketKind) -> Result<Ticket, CallError> {
        let Answer::Ticket(ticket) = self.call(Ask::RequestTicket { count, kind })? else {
            return Err(CallError::Unexpected);
        };
        Ok(ticket)
    }

    /// Reserves clones for no process in particular. A ticket that is not cloned
    /// with in time is given back.
    pub fn request_detached(&self, count: u16, kind: TicketKind) -> Result<Ticket, CallError> {
        let Answer::Ticket(ticket) = self.call(Ask::RequestDetached { count, kind })? else {
            return Err(CallError::Unexpected);
        };
        Ok(ticket)
    }

    /// Ends this clone, with this status for the parent's join, when this
    /// process ends in any other way than by [`AgentClient::exit`].
    pub fn end_with_me(&self, status: u8) -> Result<(), CallError> {
        let Answer::Tied = self.call(Ask::EndWithMe { status })? else {
            return Err(CallError::Unexpected);
        };
        Ok(())
    }

    /// Clones this VM: returns once in the parent and once in every clone.
    pub fn clone_vm(&self, ticket: TicketId) -> Result<Cloning, CallError> {
        let Answer::Cloned {
            id,
            processes,
            failed,
        } = self.call(Ask::Clone { ticket })?
        else {
            return Err(CallError::Unexpected);
        };
        Ok(match id {
            0 => Cloning::Parent { failed },
            id => Cloning::Clone { id, processes },
        })
    }

    /// Keeps this instant of this VM: returns once in the caller, and once in
    /// every clone that is made of it later.
    pub fn checkpoint(&self) -> Result<Checkpointing, CallError> {
        let answer = self.call(Ask::Checkpoint)?;
        if let Answer::Checkpointed { checkpoint } = answer {
            return Ok(Checkpointing::Taken { checkpoint });
        }
        if let Answer::Cloned { id, processes, .. } = answer
            && id > 0
        {
            return Ok(Checkpointing::Clone { id, processes });
        }
        Err(CallError::Unexpected)
    }

    /// Clones a checkpoint; clones that could not be made, by number, and why.
    /// Returns in the caller alone: in the clones it is `checkpoint` that does.
    pub fn create_clones(
        &self,
        checkpoint: VmId,
        ticket: TicketId,
    ) -> Result<Vec<(u16, String)>, CallError> {
        let ask = Ask::CreateClones { checkpoint, ticket };
        let Answer::Cloned { id: 0, failed, .. } = self.call(ask)? else {
            return Err(CallError::Unexpected);
        };
        Ok(failed)
    }

    /// Forgets a checkpoint. Clones it has live on.
    pub fn drop_checkpoint(&self, checkpoint: VmId) -> Result<(), CallError> {
        let Answer::Dropped = self.call(Ask::DropCheckpoint { checkpoint })? else {
            return Err(CallError::Unexpected);
        };
        Ok(())
    }

    /// Marks memory of this process, at this address, as disjoint access: each
    /// clone will read other pages of it, and only those hosts are sent one that
    /// ask for it. Pages that are in memory now, for forks from now on.
    pub fn disjoint(&self, address: u64, bytes: u64) -> Result<(), CallError> {
        let Answer::Marked = self.call(Ask::Disjoint { address, bytes })? else {
            return Err(CallError::Unexpected);
        };
        Ok(())
    }

    /// Ends this clone: its memory and disk vanish. `others` is how its other
    /// processes ended, where they are numbered. Returns only if that failed.
    pub fn exit(&self, status: u8, others: Vec<CloneEnd>) -> Result<Infallible, CallError> {
        self.call(Ask::Exit { status, others })?;
        Err(CallError::Unexpected)
    }

    /// Waits until every clone of the ticket has ended. The ticket is used up.
    pub fn join(&self, ticket: TicketId) -> Result<Vec<CloneEnd>, CallError> {
        let Answer::Joined(ends) = self.call(Ask::Join { ticket })? else {
            return Err(CallError::Unexpected);
        };
        Ok(ends)
    }

    /// Ends every clone of the ticket now. The ticket is used up.
    pub fn kill(&self, ticket: TicketId) -> Result<(), CallError> {
        let Answer::Killed = self.call(Ask::Kill { ticket })? else {
            return Err(CallError::Unexpected);
        };
        Ok(())
    }

    /// Waits until this VM is forked, by whatever request: returns in every
    /// clone, with its number, and in the parent goes on waiting.
    pub fn wait_fork(&self) -> Result<u16, CallError> {
        let since = self.epoch()?;
        let Answer::Forked { id } = self.call(Ask::WaitFork { since })? else {
            return Err(CallError::Unexpected);
        };
        Ok(id)
    }

    /// The number of the clone this runs in; 0 in a VM that was booted. Asks
    /// no one.
    pub fn id(&self) -> Result<u16, CallError> {
        self.identity(Identity::id)
    }

    /// This life of the VM's memory: another in every clone. Asks no one.
    pub fn epoch(&self) -> Result<Epoch, CallError> {
        self.identity(Identity::epoch)
    }

    fn identity<T>(&self, field: impl FnOnce(&Identity) -> Option<T>) -> Result<T, CallError> {
        let path = self.socket.with_file_name(IDENTITY_FILE);
        let read = fs::read_to_string(&path).and_then(|text| {
            let found = field(&Identity { text });
            found.ok_or_else(|| io::ErrorKind::InvalidData.into())
        });
        read.map_err(|source| CallError::Identity { path, source })
    }

    fn call(&self, ask: Ask) -> Result<Answer, CallError> {
        let request = Request {
            id: RequestId::random(),
            ask,
        };
        let mut lost: Option<(Instant, CallError)> = None;
        loop {
            let error = match self.try_call(&request) {
                Err(error @ (CallError::Gone | CallError::Broken(ReadError::Io(_)))) => error,
                // Only an agent that was there can be on its way back.
                Err(error @ CallError::Unreachable { .. }) if lost.is_some() => error,
                other => return other,
            };
            let (since, first) = lost.unwrap_or((Instant::now(), error));
            if since.elapsed() >= self.patience {
                return Err(first);
            }
            lost = Some((since, first));
            sleep(LOOK);
        }
    }

    fn try_call(&self, request: &Request) -> Result<Answer, CallError> {
        let unreachable = |source| CallError::Unreachable {
            path: self.socket.clone(),
            source,
        };
        let mut stream = UnixStream::connect(&self.socket).map_err(unreachable)?;
        send(&mut stream, request).map_err(ReadError::Io)?;
        let answer = FrameReader::new(stream).read_message::<Result<Answer, ApiError>>()?;
        Ok(answer.ok_or(CallError::Gone)??)
    }
}

/// The file of this VM's identity.
struct Identity {
    text: String,
}

impl Identity {
    fn id(&self) -> Option<u16> {
        self.value("FORKYARD_ID=")
    }

    fn epoch(&self) -> Option<Epoch> {
        self.value("FORKYARD_EPOCH=")
    }

    fn value<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        let mut lines = self.text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.parse().ok())
    }
}

#[cfg(test)]
mod tests;
