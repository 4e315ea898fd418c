//! How a program in a guest calls the fork API: it asks the agent over a Unix
//! socket, one connection a call, and waits.
//!
//! A clone of the VM has a copy of everything, this connection and the agent's
//! end of it included; so the same call returns in both.

use crate::{Answer, Ask, CloneEnd, FrameReader, ReadError, send};
use forkyard_types::{ApiError, ErrorKind, Ticket, TicketId};
use std::{
    convert::Infallible,
    env, fs, io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
};

/// Where the agent listens.
pub const SOCKET: &str = "/opt/forkyard/agent.sock";
/// Environment variable that names another socket.
pub const SOCKET_ENV: &str = "FORKYARD_AGENT_SOCKET";
/// Name of the file beside the socket that says who this VM is: `KEY=VALUE`
/// lines.
pub const IDENTITY_FILE: &str = "identity";

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// There is no agent, or this program may not talk to it.
    #[error("cannot reach the agent at {}", path.display())]
    Unreachable {
        /// Its socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The agent went away in the middle of the call.
    #[error("the agent went away during the call")]
    Gone,
    /// The connection failed in the middle of the call.
    #[error("the connection to the agent failed")]
    Broken(#[from] ReadError),
    /// It was answered with something else than was asked for.
    #[error("the agent answered something else")]
    Unexpected,
    /// It was refused, or failed.
    #[error(transparent)]
    Refused(#[from] ApiError),
    /// The file that says who this VM is cannot be read.
    #[error("cannot tell who this VM is from {}", path.display())]
    Identity {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl CallError {
    /// What a program can branch on.
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

/// What `clone` returned.
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
    },
}

/// The agent, as programs in its guest see it.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// The agent of this VM, or the one [`SOCKET_ENV`] names.
    pub fn from_env() -> Self {
        Self::at(env::var_os(SOCKET_ENV).map_or_else(|| SOCKET.into(), PathBuf::from))
    }

    /// The agent that listens there.
    pub fn at(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Reserves clones. Fewer may be granted than are asked for.
    pub fn request_ticket(&self, count: u16) -> Result<Ticket, CallError> {
        match self.call(&Ask::RequestTicket { count })? {
            Answer::Ticket(ticket) => Ok(ticket),
            Answer::Cloned { .. } | Answer::Joined(_) | Answer::Killed => {
                Err(CallError::Unexpected)
            }
        }
    }

    /// Clones this VM: returns once in the parent and once in every clone.
    pub fn clone_vm(&self, ticket: TicketId) -> Result<Cloning, CallError> {
        match self.call(&Ask::Clone { ticket })? {
            Answer::Cloned { id: 0, failed } => Ok(Cloning::Parent { failed }),
            Answer::Cloned { id, failed: _ } => Ok(Cloning::Clone { id }),
            Answer::Ticket(_) | Answer::Joined(_) | Answer::Killed => Err(CallError::Unexpected),
        }
    }

    /// Ends this clone: its memory and disk vanish. Returns only if that failed.
    pub fn exit(&self, status: u8) -> Result<Infallible, CallError> {
        self.call(&Ask::Exit { status })?;
        Err(CallError::Unexpected)
    }

    /// Waits until every clone of the ticket has ended. The ticket is used up.
    pub fn join(&self, ticket: TicketId) -> Result<Vec<CloneEnd>, CallError> {
        match self.call(&Ask::Join { ticket })? {
            Answer::Joined(ends) => Ok(ends),
            Answer::Ticket(_) | Answer::Cloned { .. } | Answer::Killed => {
                Err(CallError::Unexpected)
            }
        }
    }

    /// Ends every clone of the ticket now. The ticket is used up.
    pub fn kill(&self, ticket: TicketId) -> Result<(), CallError> {
        match self.call(&Ask::Kill { ticket })? {
            Answer::Killed => Ok(()),
            Answer::Ticket(_) | Answer::Cloned { .. } | Answer::Joined(_) => {
                Err(CallError::Unexpected)
            }
        }
    }

    /// The number of the clone this runs in; 0 in a VM that was booted. Asks
    /// no one.
    pub fn id(&self) -> Result<u16, CallError> {
        let path = self.socket.with_file_name(IDENTITY_FILE);
        read_id(&path).map_err(|source| CallError::Identity { path, source })
    }

    fn call(&self, ask: &Ask) -> Result<Answer, CallError> {
        let unreachable = |source| CallError::Unreachable {
            path: self.socket.clone(),
            source,
        };
        let mut stream = UnixStream::connect(&self.socket).map_err(unreachable)?;
        send(&mut stream, ask).map_err(unreachable)?;
        let answer = FrameReader::new(stream).read_message::<Result<Answer, ApiError>>()?;
        Ok(answer.ok_or(CallError::Gone)??)
    }
}

fn read_id(path: &Path) -> io::Result<u16> {
    let text = fs::read_to_string(path)?;
    let id = text
        .lines()
        .find_map(|line| line.strip_prefix("FORKYARD_ID="))
        .and_then(|id| id.parse().ok());
    id.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests;
