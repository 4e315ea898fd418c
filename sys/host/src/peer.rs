//! The other end of a connection, known without reading from it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};
use tokio::io::{Interest, unix::AsyncFd};

/// A connection that is watched beside its owner.
#[derive(Clone, Debug)]
pub struct WatchedConnection(Arc<OwnedFd>);

impl WatchedConnection {
    /// The one at the other end of this socket. Takes another descriptor of it.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        let own = socket.as_fd().try_clone_to_owned()?;
        Ok(Self(Arc::new(own)))
    }

    /// Resolves once it has closed its side, whatever it has sent that nothing has read. Must be called
    /// within a tokio runtime; panics otherwise. Cancel-safe.
    pub async fn closed(self) -> io::Result<()> {
        // SAFETY: the `Arc` given away here owns the descriptor, never changes it, and keeps it open for
        // as long as it is registered.
        let watched = unsafe { AsyncFd::register_with_interest(self.0, Interest::READABLE) }?;
        loop {
            let mut guard = watched.readable().await?;
            if guard.ready().is_read_closed() {
                return Ok(());
            }
            guard.clear_ready();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, os::unix::net::UnixStream};

    #[tokio::test]
    async fn an_end_is_known_behind_what_was_not_read() {
        let (here, mut there) = UnixStream::pair().expect("a pair");
        let mut closed = Box::pin(WatchedConnection::of(&here).expect("a descriptor").closed());
        for _ in 0..3 {
            there.write_all(b"unread").expect("sent");
            tokio::select! {
                biased;
                _ = &mut closed => panic!("it is there"),
                () = tokio::task::yield_now() => {}
            }
        }
        drop(there);
        closed.await.expect("watched");
    }
}
