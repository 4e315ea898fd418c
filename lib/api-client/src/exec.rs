//! Commands in guests: the stream of what they do, and of what they are told.

use crate::{Client, ClientError, of_vm};
use bytes::Bytes;
use forkyard_types::{Attach, ExecEvent, ExecInput, ExecRequest};
use futures::{Stream, StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    Method, Request,
    body::{Frame, Incoming},
};
use serde::Serialize;
use std::{convert::Infallible, time::Duration};
use tokio::{sync::mpsc, time::timeout};

/// Longest silence of a client that has nothing to send: the daemon takes it for gone after 30 s.
const SILENCE: Duration = Duration::from_secs(10);

/// Events of a command, as they come. Dropped, the command is hung up on.
#[derive(Debug)]
pub struct Events {
    body: Incoming,
    client: Client,
    pending: Vec<u8>,
}

impl Client {
    /// Runs a command in a VM. Its input is what the request has.
    pub async fn exec(&self, vm: &str, request: &ExecRequest) -> Result<Events, ClientError> {
        let answer = self.stream(&of_vm(vm, "exec"), request).await?;
        Ok(self.events(answer.into_body()))
    }

    /// Runs a command in a VM, and passes on what comes for it on the channel. Once that is
    /// closed the command reads the end of its input.
    pub async fn exec_with(
        &self,
        vm: &str,
        request: &ExecRequest,
        input: mpsc::Receiver<ExecInput>,
    ) -> Result<Events, ClientError> {
        let first = line_of(request)?;
        let head = Request::builder()
            .method(Method::POST)
            .uri(of_vm(vm, "exec"))
            .header("content-type", "application/x-ndjson");
        let lines = stream::once(async { first }).chain(lines(input));
        let frames = lines.map(|line| Ok::<_, Infallible>(Frame::data(line)));
        let body = StreamBody::new(Box::pin(frames));
        let answer = self.ask(head, body).await?;
        Ok(self.events(answer.into_body()))
    }

    /// Attaches to a command that a VM keeps, and passes on what comes for it on the channel. Its
    /// input ends by [`ExecInput::Eof`] alone.
    pub async fn attach(
        &self,
        vm: &str,
        pid: u32,
        Attach { output }: Attach,
        input: mpsc::Receiver<ExecInput>,
    ) -> Result<Events, ClientError> {
        let head = Request::builder()
            .method(Method::POST)
            .uri(of_vm(vm, &format!("sessions/{pid}?output={output}")))
            .header("content-type", "application/x-ndjson");
        let frames = lines(input).map(|line| Ok::<_, Infallible>(Frame::data(line)));
        let answer = self.ask(head, StreamBody::new(Box::pin(frames))).await?;
        Ok(self.events(answer.into_body()))
    }

    fn events(&self, body: Incoming) -> Events {
        let (client, pending) = (self.clone(), Vec::new());
        Events {
            body,
            client,
            pending,
        }
    }
}

fn line_of(value: &impl Serialize) -> serde_json::Result<Bytes> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line.into())
}

/// Turns input into lines. Inserts an empty line after [`SILENCE`] without input.
fn lines(input: mpsc::Receiver<ExecInput>) -> impl Stream<Item = Bytes> + Send {
    stream::unfold(input, |mut input| async {
        let line = match timeout(SILENCE, input.recv()).await {
            Ok(input) => line_of(&input?).ok()?,
            Err(_) => Bytes::from_static(b"\n"),
        };
        Some((line, input))
    })
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
