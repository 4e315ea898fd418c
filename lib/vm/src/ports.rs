//! Connections to TCP ports of guests.
//!
//! ```text
//! client --PortIn---> parts --> program of the agent --> 127.0.0.1:PORT in the guest
//!        <--PortOut-- parts <--
//! ```
//!
//! The program runs as any command, so that a fork holds it still with user code, and bytes wait
//! wherever they are not taken. Dropped before its end, a connection is reset in the guest, and so is
//! a clone's copy of it. A daemon that dies leaves the guest to reset its connections.

use crate::{InUse, RunningVm, Used, Vm, VmError, alive::Lost, files::PROGRAM, lock};
use forkyard_agent_link::{
    CHUNK, CONNECTED, Command, END, Exec, ExecControls, ExecOut, Stream, StreamPiece,
    StreamReceiver, part,
};
use forkyard_types::{ErrorKind, ExitStatus, GuestPort, VmName};
use std::{collections::VecDeque, fmt, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most connections to ports of one guest, each of which is a process there.
const MOST: usize = 64;
/// Most bytes kept of what the program complains of.
const MOST_SAID: usize = 1 << 10;
/// Exit code of the program where nothing listens.
const NOTHING_LISTENS: u8 = 3;

/// A port of a guest that cannot be connected to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// No server is there, neither on the loopback nor on an address of the guest's.
    #[error("nothing listens on TCP port {port} in {vm}: {said}")]
    NothingListens {
        /// The VM.
        vm: VmName,
        /// Port of the guest.
        port: GuestPort,
        /// Answer of the guest's kernel.
        said: String,
    },
    /// No place is left.
    #[error("connection limit of {vm} reached: {MOST} to its ports are open")]
    TooMany {
        /// The VM.
        vm: VmName,
    },
    /// The agent's program did not do what it is there for.
    #[error("the agent of {vm} made no connection to port {port}: {said}")]
    Agent {
        /// The VM.
        vm: VmName,
        /// Port of the guest.
        port: GuestPort,
        /// Complaint of the guest.
        said: String,
    },
    /// The connection was reset in the guest.
    #[error("the connection to port {port} of {vm} was reset in the guest")]
    Reset {
        /// The VM.
        vm: VmName,
        /// Port of the guest.
        port: GuestPort,
    },
}

impl PortError {
    /// Classifies the error for programs.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NothingListens { .. } | Self::Agent { .. } | Self::Reset { .. } => {
                ErrorKind::Guest
            }
            Self::TooMany { .. } => ErrorKind::Exhausted,
        }
    }

    /// Returns advice to the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NothingListens { .. } => {
                "start the server in the VM first; `forkyard exec VM -- ss -lnt` lists what listens, if the image has it"
            }
            Self::TooMany { .. } => "close some of them first",
            Self::Agent { .. } => {
                "a VM that booted under an older version has an older agent: boot it anew"
            }
            Self::Reset { .. } => "the server's log may tell why",
        }
    }
}

/// Places for connections to one guest's ports.
#[derive(Debug)]
pub struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST)))
    }
}

/// The way to a server in a guest.
#[derive(Debug)]
pub struct PortIn(ExecControls);

/// The way back. Dropped, the connection is reset.
pub struct PortOut {
    running: Exec,
    vm: VmName,
    port: GuestPort,
    parts: StreamReceiver,
    pieces: VecDeque<StreamPiece>,
    said: Vec<u8>,
    lost: Lost,
    _held: (OwnedSemaphorePermit, InUse),
}

impl fmt::Debug for PortOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortOut({}:{})", self.vm, self.port)
    }
}

impl Used {
    /// Connects to a TCP port of a guest. Returns once its server has taken the connection.
    /// Cancel-safe: a connection that is not returned is reset.
    pub async fn connect(self, port: GuestPort) -> Result<(PortIn, PortOut), VmError> {
        let body = self.answering()?;
        let vm = self.vm.clone();
        let Ok(place) = vm.ports.0.clone().try_acquire_owned() else {
            return Err(PortError::TooMany { vm: vm.name() }.into());
        };
        let connected = self.connect_in(&body, port, place).await;
        connected.map_err(|error| why_not(&vm, error))
    }

    async fn connect_in(
        self,
        body: &RunningVm,
        port: GuestPort,
        place: OwnedSemaphorePermit,
    ) -> Result<(PortIn, PortOut), VmError> {
        let argv = [PROGRAM, "connect", &port.to_string()];
        let command = Command::of_root(argv.map(str::to_owned).to_vec());
        let running = body.guest.exec(command).await?;
        let input = running.input();
        let mut out = PortOut {
            running,
            vm: self.vm.name(),
            port,
            parts: StreamReceiver::default(),
            pieces: VecDeque::new(),
            said: Vec::new(),
            lost: self.lost(),
            _held: (place, self.in_use),
        };
        out.begin().await?;
        Ok((PortIn(input), out))
    }
}

/// Says of a link that broke before there was a connection that its VM has left, if so: the server
/// has been told nothing, and is there or here when it is asked for again.
fn why_not(vm: &Vm, error: VmError) -> VmError {
    match (error, lock(&vm.moving).clone()) {
        (VmError::Link(_) | VmError::Port(PortError::Agent { .. }), Some(moving)) => {
            VmError::Moving {
                vm: vm.name(),
                host: moving.peer,
            }
        }
        (error, _) => error,
    }
}

impl PortIn {
    /// Sends bytes as fast as the server takes them. Not cancel-safe: some may have been sent.
    pub async fn send(&self, bytes: &[u8]) -> Result<(), VmError> {
        for piece in bytes.chunks(CHUNK - END.len()) {
            self.0.send(part(piece)).await?;
        }
        Ok(())
    }

    /// Tells the server that nothing follows; it may still say something. Cancel-safe.
    pub async fn end(&self) -> Result<(), VmError> {
        Ok(self.0.send(END.to_vec()).await?)
    }
}

impl PortOut {
    /// Receives the next piece from the server; none once both directions have
    /// ended. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<StreamPiece>, VmError> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Ok(Some(piece));
            }
            match self.hear().await? {
                Heard::Bytes(bytes) => self.pieces.extend(self.parts.feed(&bytes)),
                Heard::Ended(Some(0)) => return Ok(None),
                Heard::Ended(_) => {
                    let (vm, port) = (self.vm.clone(), self.port);
                    return Err(PortError::Reset { vm, port }.into());
                }
            }
        }
    }

    /// Waits until the program says that it is connected.
    async fn begin(&mut self) -> Result<(), VmError> {
        let heard = self.hear().await?;
        let (vm, port) = (self.vm.clone(), self.port);
        let code = match heard {
            Heard::Bytes(bytes) if bytes.first() == Some(&CONNECTED) => {
                self.pieces.extend(self.parts.feed(&bytes[1..]));
                return Ok(());
            }
            Heard::Bytes(_) => None,
            Heard::Ended(code) => code,
        };
        let said = String::from_utf8_lossy(&self.said).trim().to_owned();
        Err(match code {
            Some(NOTHING_LISTENS) => PortError::NothingListens { vm, port, said },
            Some(_) | None => PortError::Agent { vm, port, said },
        }
        .into())
    }

    async fn hear(&mut self) -> Result<Heard, VmError> {
        loop {
            let out = tokio::select! {
                out = self.running.next() => out,
                error = &mut self.lost => return Err(error),
            };
            return Ok(match out {
                Some(ExecOut::Output { stream, data }) => match stream {
                    Stream::Out => Heard::Bytes(data),
                    Stream::Err => {
                        let room = MOST_SAID.saturating_sub(self.said.len());
                        self.said.extend_from_slice(&data[..room.min(data.len())]);
                        continue;
                    }
                },
                Some(ExecOut::Ended(ExitStatus::Code(code))) => Heard::Ended(Some(code)),
                Some(ExecOut::NotStarted(why)) => {
                    self.said = why.message.into_bytes();
                    Heard::Ended(None)
                }
                Some(ExecOut::Lost(error)) => return Err(error.into()),
                Some(
                    ExecOut::Ended(ExitStatus::Signal(_))
                    | ExecOut::Started { .. }
                    | ExecOut::Kept(_),
                )
                | None => Heard::Ended(None),
            });
        }
    }
}

/// Events of the program.
enum Heard {
    Bytes(Vec<u8>),
    /// Exit code, if there is one.
    Ended(Option<u8>),
}
