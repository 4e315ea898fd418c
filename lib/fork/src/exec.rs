//! Running a command in a guest.

use crate::{Host, HostError, alive::silent_for};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use forkyard_guestlink::{Exec, ExecOut, Stream};
use forkyard_types::{ApiError, ErrorKind, ExecEvent, ExecRequest};
use std::{future::pending, sync::Arc, time::Duration};
use tokio::{sync::mpsc, time::sleep};

/// Events on their way to a client that reads slowly; more and the guest's
/// command waits.
const WAITING: usize = 16;
const SIGKILL: u8 = 9;

impl Host {
    /// Starts a command; what it does arrives on the channel, its end last.
    /// Dropping the channel hangs the command up.
    pub async fn exec(
        &self,
        vm: &str,
        request: ExecRequest,
    ) -> Result<mpsc::Receiver<ExecEvent>, HostError> {
        if request.argv.is_empty() {
            return Err(HostError::Invalid("no command".into()));
        }
        let input = match request.stdin {
            Some(text) => BASE64_STANDARD
                .decode(text)
                .map_err(|_| HostError::Invalid("stdin is not base64".into()))?,
            None => Vec::new(),
        };
        let vm = self.vm(vm)?;
        let body = vm.answering()?;
        let running = body.guest.exec(request.argv, request.env).await?;
        let stdin = running.input();
        tokio::spawn(async move {
            // A command that ends without reading all of it is no error.
            if input.is_empty() || stdin.send(input).await.is_ok() {
                let _ = stdin.end().await;
            }
        });
        let (events, receiver) = mpsc::channel(WAITING);
        let limit = request.timeout_s.map(|s| Duration::from_secs(s.into()));
        let lost = silent_for(Arc::downgrade(&vm), self.options.patience);
        tokio::spawn(relay(running, events, limit, lost));
        Ok(receiver)
    }
}

async fn relay(
    mut running: Exec,
    events: mpsc::Sender<ExecEvent>,
    limit: Option<Duration>,
    lost: impl Future<Output = HostError>,
) {
    let too_long = async {
        match limit {
            Some(limit) => sleep(limit).await,
            None => pending().await,
        }
    };
    tokio::pin!(too_long, lost);
    loop {
        let out = tokio::select! {
            out = running.next() => out,
            // Dropped, the command is hung up on, though it may never write.
            () = events.closed() => return,
            error = &mut lost => {
                let _ = events.send(ExecEvent::Error(error.to_api())).await;
                return;
            }
            () = &mut too_long => {
                let killed = running.signal(SIGKILL).await;
                let why = killed.err().map(|error| format!(" ({error})")).unwrap_or_default();
                let _ = events.send(failed(ErrorKind::Timeout, format!("the command took too long and was killed{why}"))).await;
                return;
            }
        };
        let event = match out {
            Some(ExecOut::Output {
                stream: Stream::Out,
                data,
            }) => ExecEvent::Stdout(BASE64_STANDARD.encode(data)),
            Some(ExecOut::Output {
                stream: Stream::Err,
                data,
            }) => ExecEvent::Stderr(BASE64_STANDARD.encode(data)),
            Some(ExecOut::Ended(status)) => ExecEvent::Exit(status),
            Some(ExecOut::NotStarted(why)) => failed(ErrorKind::Invalid, why),
            Some(ExecOut::Lost(error)) => ExecEvent::Error(HostError::from(error).to_api()),
            None => return,
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

fn failed(kind: ErrorKind, message: String) -> ExecEvent {
    ExecEvent::Error(ApiError {
        kind,
        message,
        hint: None,
    })
}
