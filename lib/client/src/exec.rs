//! Commands in guests: the stream of what they do.

use crate::{Client, ClientError};
use bytes::Bytes;
use forkyard_types::{ExecEvent, ExecRequest};
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// What a command does, as it does it. Dropped, the command is hung up on.
#[derive(Debug)]
pub struct Events {
    body: Incoming,
    client: Client,
    pending: Vec<u8>,
}

impl Client {
    /// Runs a command in a VM.
    pub async fn exec(&self, vm: &str, request: &ExecRequest) -> Result<Events, ClientError> {
        let answer = self.stream(&format!("/v1/vms/{vm}/exec"), request).await?;
        Ok(Events {
            body: answer.into_body(),
            client: self.clone(),
            pending: Vec::new(),
        })
    }
}

impl Events {
    /// The next event; none if the daemon went away before the command ended.
    /// Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, ClientError> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            let body = &mut self.body;
            let frame = async { Ok(body.frame().await.transpose()?) };
            match self.client.attend(frame).await? {
                Some(frame) => {
                    let data = frame.into_data().unwrap_or_else(|_| Bytes::new());
                    self.pending.extend_from_slice(&data);
                }
                None => return Ok(None),
            }
        }
    }
}
