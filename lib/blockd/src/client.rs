//! Client of the control socket.

use crate::{Answer, Request};
use forkyard_volume_store::Blame;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

/// Connection to the control socket.
#[derive(Debug)]
pub struct BlockdClient {
    stream: BufReader<UnixStream>,
    socket: PathBuf,
}

/// Request without an answer, or with one that says why not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockdError {
    /// No server, or none that answers.
    #[error("cannot talk to the server at {} (is forkyard-blockd running?)", socket.display())]
    Socket {
        /// Control socket.
        socket: PathBuf,
        /// Reason.
        source: io::Error,
    },
    /// Answer of another version.
    #[error(
        "server answered something that this client does not understand (install both from one build)"
    )]
    Answer(#[source] serde_json::Error),
    /// Refused or failed.
    #[error("{why}")]
    Failed {
        /// Class of the failure.
        blame: Blame,
        /// Reason.
        why: String,
    },
}

impl BlockdClient {
    /// Connects.
    pub fn connect(socket: &Path) -> Result<Self, BlockdError> {
        let stream = UnixStream::connect(socket).map_err(|source| BlockdError::Socket {
            socket: socket.to_owned(),
            source,
        })?;
        Ok(Self {
            stream: BufReader::new(stream),
            socket: socket.to_owned(),
        })
    }

    /// Has the server flush all volumes and end, and waits until its process has gone: nothing
    /// of it is open or locked then.
    pub fn end(mut self) -> Result<(), BlockdError> {
        self.ask(&Request::End {})?;
        // It never closes this connection itself.
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Err(source) if source.kind() != io::ErrorKind::ConnectionReset => {
                let socket = self.socket;
                Err(BlockdError::Socket { socket, source })
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Waits for each answer no longer than this; for ever if never told. A server that is late may
    /// have done what it was asked for: the connection is of no more use.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))
    }

    /// Number of the server's process.
    pub fn pid(&self) -> io::Result<i32> {
        Ok(getsockopt(self.stream.get_ref(), PeerCredentials)?.pid())
    }

    /// Asks, and waits for the answer. A failure is an error.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, BlockdError> {
        let mut line = serde_json::to_vec(request).map_err(BlockdError::Answer)?;
        line.push(b'\n');
        let asked = self.stream.get_mut().write_all(&line);
        asked.map_err(|source| BlockdError::Socket {
            socket: self.socket.clone(),
            source,
        })?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Answer, BlockdError> {
        let mut answer = String::new();
        let read = match self.stream.read_line(&mut answer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            read => read,
        };
        read.map_err(|source| BlockdError::Socket {
            socket: self.socket.clone(),
            source,
        })?;
        match serde_json::from_str(&answer).map_err(BlockdError::Answer)? {
            Answer::Failed { blame, why } => Err(BlockdError::Failed { blame, why }),
            answer @ (Answer::Done {}
            | Answer::Volumes(_)
            | Answer::Volume(_)
            | Answer::Stream {}
            | Answer::Blocks(_)
            | Answer::Counts(_)
            | Answer::Needs(_)
            | Answer::Why(_)
            | Answer::Opened { .. }) => Ok(answer),
        }
    }

    /// Has a snapshot sent; returns what it is read from, by [`crate::relay`].
    pub fn send(mut self, request: &Request) -> Result<impl BufRead + use<>, BlockdError> {
        self.ask(request)?;
        Ok(self.stream)
    }

    /// Has the server answer by a stream, both ways from then on; what came of it already is returned
    /// with the connection.
    pub fn line(mut self, request: &Request) -> Result<(UnixStream, Vec<u8>), BlockdError> {
        self.ask(request)?;
        let came = self.stream.buffer().to_vec();
        Ok((self.stream.into_inner(), came))
    }

    /// Begins to have a snapshot taken: what is returned is to be written the stream, and
    /// [`Self::finish`] then waits for the answer.
    pub fn receive(&mut self, request: &Request) -> Result<UnixStream, BlockdError> {
        let mut line = serde_json::to_vec(request).map_err(BlockdError::Answer)?;
        line.push(b'\n');
        let stream = self.stream.get_mut();
        let begun = stream.write_all(&line).and_then(|()| stream.try_clone());
        begun.map_err(|source| BlockdError::Socket {
            socket: self.socket.clone(),
            source,
        })
    }

    /// Waits for the answer to a stream that was written, or could not be.
    pub fn finish(mut self) -> Result<(), BlockdError> {
        self.answer().map(drop)
    }
}
