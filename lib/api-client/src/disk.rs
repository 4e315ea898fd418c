//! Disks, which are larger than any other request or answer: as streams.

use crate::{Client, ClientError, read};
use bytes::Bytes;
use http_body_util::{BodyExt, channel::Channel};
use hyper::{
    Method, Request,
    body::{Body, Incoming},
};
use serde::de::DeserializeOwned;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes in one piece, and pieces on their way.
const PIECE: usize = 256 << 10;
const UNDER_WAY: usize = 4;

/// Reason why something could not be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UploadError {
    /// The source could not be read here.
    #[error("it cannot be read to its end")]
    Source(#[source] io::Error),
    /// The daemon refused it, or was not reached.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// A disk that comes.
#[derive(Debug)]
pub struct DiskDownload {
    body: Incoming,
    size: Option<u64>,
}

impl Client {
    /// Puts all that can be read of `from`, which is of `size` bytes if that is
    /// known; `sent` is told of each piece. If cancelled, or if `from` fails, the
    /// daemon takes nothing of it.
    pub async fn upload<A: DeserializeOwned>(
        &self,
        path: &str,
        size: Option<u64>,
        mut from: impl AsyncRead + Unpin,
        mut sent: impl FnMut(u64),
    ) -> Result<A, UploadError> {
        let (mut sender, body) = Channel::<Bytes, io::Error>::new(UNDER_WAY);
        let mut request = Request::builder()
            .method(Method::PUT)
            .uri(path)
            .header("content-type", "application/octet-stream");
        if let Some(size) = size {
            request = request.header("content-length", size);
        }
        let pump = async {
            let mut buffer = vec![0; PIECE];
            loop {
                match from.read(&mut buffer).await {
                    Ok(0) => return Ok(()),
                    Ok(read) => {
                        let piece = Bytes::copy_from_slice(&buffer[..read]);
                        // The daemon wants no more of it, and says why.
                        if sender.send_data(piece).await.is_err() {
                            return Ok(());
                        }
                        sent(read as u64);
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let answer = self.ask(request, body);
        tokio::pin!(answer);
        let pumped = tokio::select! {
            answer = &mut answer => return Ok(read(answer?).await?),
            pumped = pump => pumped,
        };
        match pumped {
            Ok(()) => {
                drop(sender);
                Ok(read(answer.await?).await?)
            }
            Err(error) => {
                sender.abort(io::Error::other("the source failed"));
                Err(UploadError::Source(error))
            }
        }
    }

    /// Gets a disk.
    pub async fn disk(&self, path: &str) -> Result<DiskDownload, ClientError> {
        let body = self
            .open(Method::GET, path, Bytes::new())
            .await?
            .into_body();
        let size = body.size_hint().exact();
        Ok(DiskDownload { body, size })
    }
}

impl DiskDownload {
    /// Returns the size in bytes, if the daemon gave it.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// The next bytes; none at the end. Fails if it breaks off. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(piece) = frame?.into_data() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }
}
