//! Lines from a QEMU that a guest may have taken over: none may be longer than any that QEMU says.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, ReadBuf};

/// Bytes of a line, at most: several times what QEMU says of a chain of 1,000 slices.
pub(super) const LINE: usize = 8 << 20;

/// Fails once a line is too long; nothing is read after that.
#[derive(Debug)]
pub(super) struct Bounded<R> {
    inner: R,
    /// Bytes since the last line ended.
    line: usize,
}

impl<R> Bounded<R> {
    pub fn new(inner: R) -> Self {
        Self { inner, line: 0 }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Bounded<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.line > LINE {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "QEMU says a line without an end",
            )));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        let new = &buffer.filled()[before..];
        self.line = match new.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => new.len() - end - 1,
            None => self.line + new.len(),
        };
        Poll::Ready(Ok(()))
    }
}
