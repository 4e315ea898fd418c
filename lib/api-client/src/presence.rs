//! Presence of the daemon while a call waits for it.
//!
//! ```text
//! call waits --pause--> ping --answer--> call waits
//!                         +---no answer, several in a row--> call fails
//! ```
//!
//! A call may take as long as its work does: an image is built for minutes. A daemon that
//! does not even answer a ping does no work, and a connection to a host that is gone can stay open for ever.
//! Any answer counts, a refusal too.

use crate::{Client, ClientError, Way};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request};
use std::time::Duration;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

/// Patience with a daemon that does not answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Time between two pings while a call waits.
    pause: Duration,
    /// Time that a ping may take.
    answer: Duration,
    /// Pings in a row without an answer after which a call fails.
    misses: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            pause: Duration::from_secs(10),
            answer: Duration::from_secs(10),
            misses: 3,
        }
    }
}

impl Client {
    /// Tests whether a daemon answers. On a socket that a daemon has just died on one may
    /// still be able to connect: a process that it was about to start holds it.
    pub async fn answers(&self) -> bool {
        let connected = async {
            match &self.way {
                Way::Socket(_) => self.ping(self.patience.answer).await.is_ok(),
                Way::Network { host, port, .. } => {
                    TcpStream::connect((host.as_str(), *port)).await.is_ok()
                }
                Way::Node { address, .. } => TcpStream::connect(address).await.is_ok(),
            }
        };
        timeout(self.patience.answer, connected)
            .await
            .unwrap_or(false)
    }

    /// Has the daemon show that it is there, within this time. Cancel-safe.
    pub async fn ping(&self, within: Duration) -> Result<(), ClientError> {
        let request = Request::builder().method(Method::GET).uri("/v1/ping");
        match timeout(within, self.exchange(request, Full::new(Bytes::new()))).await {
            Ok(answer) => answer.map(drop),
            Err(_) => Err(ClientError::Hangs {
                place: self.place(),
                after: within,
            }),
        }
    }

    /// Waits for `work` as long as the daemon answers pings. Cancel-safe if `work` is.
    pub(crate) async fn attend<T>(
        &self,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        tokio::select! {
            // What has come counts, however late.
            biased;
            done = work => done,
            hangs = self.hangs() => Err(hangs),
        }
    }

    /// Resolves, with the error, when the daemon has stopped answering. Cancel-safe.
    async fn hangs(&self) -> ClientError {
        let mut missed = 0;
        loop {
            sleep(self.patience.pause).await;
            match self.ping(self.patience.answer).await {
                Ok(()) => missed = 0,
                Err(error) if missed + 1 >= self.patience.misses => return error,
                Err(_) => missed += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests;
