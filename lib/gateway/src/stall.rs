//! Connections whose other end takes nothing any more.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// A connection that breaks if nothing of what is written is taken for so long.
#[derive(Debug)]
pub struct Stalls<S> {
    inner: S,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> Stalls<S> {
    /// `inner`, with this patience.
    pub fn new(inner: S, patience: Duration) -> Self {
        Self {
            inner,
            patience,
            waiting: None,
        }
    }

    /// Returns the connection itself.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Judges the result of a write, unless it has been waited for too long.
    fn judge<T>(
        &mut self,
        context: &mut Context<'_>,
        came: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if came.is_ready() {
            self.waiting = None;
            return came;
        }
        let patience = self.patience;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalls<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalls<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let came = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.judge(context, came)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let came = Pin::new(&mut self.inner).poll_flush(context);
        self.judge(context, came)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let came = Pin::new(&mut self.inner).poll_shutdown(context);
        self.judge(context, came)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn who_takes_nothing_is_given_up_and_who_is_slow_is_not() {
        let (ours, mut theirs) = duplex(4);
        let mut patient = Stalls::new(ours, Duration::from_secs(3600));
        let slow = tokio::spawn(async move {
            let mut some = [0; 4];
            for _ in 0..4 {
                theirs.read_exact(&mut some).await.expect("read");
            }
        });
        patient.write_all(&[0; 16]).await.expect("taken");
        slow.await.expect("it has read");

        let (ours, _theirs) = duplex(4);
        let mut impatient = Stalls::new(ours, Duration::from_millis(1));
        let error = impatient.write_all(&[0; 16]).await;
        let error = error.expect_err("nothing is read");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
