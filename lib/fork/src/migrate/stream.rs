//! Snapshots of volumes on their way to other hosts.

use crate::{Host, HostError, blocking, remote::Peer, volumes::VolumeError};
use forkyard_blockd::{Hot, StreamError};
use forkyard_types::{ApiError, ErrorKind, ForkId, PeerMigrated, SentVolume, VmName, VolumeAt};
use std::{
    io::{self, Write},
    os::unix::net::UnixStream as StdUnixStream,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::{net::UnixStream, time::timeout};

/// A snapshot that is to be sent.
#[derive(Debug)]
pub(crate) struct Sending {
    /// Snapshot.
    pub at: VolumeAt,
    /// Name of the volume there.
    pub there: VmName,
    /// Snapshot there of which the difference is sent.
    pub since: Option<String>,
    /// Blocks that are sent, if not all are.
    pub hot: Option<Hot>,
    /// Bytes that were sent.
    pub sent: Arc<AtomicU64>,
}

/// Writer that counts.
struct Counting<W> {
    to: W,
    sent: Arc<AtomicU64>,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.sent.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl Host {
    /// Sends a snapshot, by what differs from one that is there. Returns how many blocks were left.
    pub(crate) async fn stream_snapshot(
        &self,
        (peer, migration): (&dyn Peer, ForkId),
        sending: Sending,
    ) -> Result<u64, HostError> {
        let Sending {
            at,
            there,
            since,
            hot,
            sent,
        } = sending;
        let failed = HostError::io("make", std::path::Path::new("a pair of sockets"));
        let pair = StdUnixStream::pair().and_then(|(to, from)| {
            from.set_nonblocking(true)?;
            Ok((to, UnixStream::from_std(from)?))
        });
        let (to, from) = pair.map_err(failed)?;
        let (blockd, read) = (self.volumes.disks.blockd.clone(), at.clone());
        let whose = (hot, peer.name().to_owned());
        let counting = Counting {
            to,
            sent: sent.clone(),
        };
        let read = tokio::spawn(blocking(move || blockd.send(&read, since, whose, counting)));
        let taken = SentVolume {
            volume: there,
            snapshot: at.snapshot,
        };
        let answer = self
            .while_it_goes(peer.volume(migration, taken, from), &sent)
            .await;
        // It is told of first: that host only sees that it was cut off.
        let read = read.await.map_err(|_| HostError::Closing)?;
        let answer = answer.map_err(|source| HostError::Peer {
            peer: peer.name().to_owned(),
            source,
        });
        match (read, answer) {
            (Ok(left), Ok(_)) => Ok(left),
            (Err(_), Ok(_)) => Ok(0),
            // It does not read on where it has found something wrong: then it is that.
            (Err(VolumeError::Stream(error @ StreamError::Io { .. })), Err(refused)) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "stream not sent to its end"
                );
                Err(refused)
            }
            // Otherwise it saw that nothing, or not all, was sent to it, for this reason.
            (Err(error), _) => Err(error.into()),
            (Ok(_), Err(error)) => Err(error),
        }
    }

    /// Waits for a host that takes a stream, for as long as it takes more of it. What it has taken in whole it
    /// may have to make durable.
    async fn while_it_goes(
        &self,
        taken: impl Future<Output = Result<PeerMigrated, ApiError>>,
        sent: &AtomicU64,
    ) -> Result<PeerMigrated, ApiError> {
        let patience = self.parts.options.patience * 2;
        let mut taken = pin!(taken);
        let mut before = sent.load(Ordering::Relaxed);
        loop {
            if let Ok(answer) = timeout(patience, &mut taken).await {
                return answer;
            }
            let now = sent.load(Ordering::Relaxed);
            if now == before {
                return Err(ApiError {
                    kind: ErrorKind::Timeout,
                    message: format!("it took nothing of a volume for {} s", patience.as_secs()),
                    hint: None,
                });
            }
            before = now;
        }
    }
}
