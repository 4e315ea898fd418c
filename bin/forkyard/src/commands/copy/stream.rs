//! Tar streams between what blocks and what must not.

use std::{
    io::{self, Read, Write},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, ReadBuf},
    sync::mpsc::{Receiver, Sender},
};

/// A stream that arrives in pieces. To be read where blocking does no harm.
#[derive(Debug)]
pub struct Incoming {
    pieces: Receiver<Vec<u8>>,
    piece: io::Cursor<Vec<u8>>,
}

impl Incoming {
    /// One that ends with its pieces.
    pub fn new(pieces: Receiver<Vec<u8>>) -> Self {
        let piece = io::Cursor::default();
        Self { pieces, piece }
    }
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.piece.read(buffer)? {
                0 => match self.pieces.blocking_recv() {
                    Some(next) => self.piece = io::Cursor::new(next),
                    None => return Ok(0),
                },
                read => return Ok(read),
            }
        }
    }
}

/// A stream that leaves in pieces. To be written where blocking does no harm.
#[derive(Debug)]
pub struct Outgoing {
    pieces: Sender<Vec<u8>>,
    piece: Vec<u8>,
    size: usize,
}

impl Outgoing {
    /// One whose pieces are of this size, the last but for it.
    pub fn new(pieces: Sender<Vec<u8>>, size: usize) -> Self {
        let piece = Vec::with_capacity(size);
        Self {
            pieces,
            piece,
            size,
        }
    }
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.size - self.piece.len());
        self.piece.extend_from_slice(&bytes[..taken]);
        if self.piece.len() == self.size {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let next = Vec::with_capacity(self.size);
        let piece = std::mem::replace(&mut self.piece, next);
        // Its reader has failed, and says why.
        let sent = self.pieces.blocking_send(piece);
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Pieces of an [`Outgoing`], to be read where nothing may block.
#[derive(Debug)]
pub struct Leaving {
    pieces: Receiver<Vec<u8>>,
    piece: Vec<u8>,
    at: usize,
}

impl Leaving {
    /// One that ends with its pieces.
    pub fn new(pieces: Receiver<Vec<u8>>) -> Self {
        let (piece, at) = (Vec::new(), 0);
        Self { pieces, piece, at }
    }
}

impl AsyncRead for Leaving {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.at == this.piece.len() {
            match ready!(this.pieces.poll_recv(context)) {
                Some(piece) => (this.piece, this.at) = (piece, 0),
                None => return Poll::Ready(Ok(())),
            }
        }
        let most = buffer.remaining().min(this.piece.len() - this.at);
        buffer.put_slice(&this.piece[this.at..this.at + most]);
        this.at += most;
        Poll::Ready(Ok(()))
    }
}
