//! Commands in guests over HTTP.

use super::{Answer, Budget, Input, Path};
use crate::{
    lines::{LINE, LINES, Lines, is_lines},
    reply::Refusal,
};
use axum::{
    body::Body,
    extract::{FromRequest, Request, State},
    http::header,
    response::{IntoResponse, Response},
};
use forkyard_fork::{Following, Host};
use forkyard_types::{
    ApiError, Attach, ErrorKind, ExecEvent, ExecInput, ExecRequest, KeptCommand, SessionSignal,
    plainly,
};
use futures::stream;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Run a command in a guest.
///
/// With a body of `application/json` the command's input is what the request has. With one of
/// `application/x-ndjson` the first line is the request, and each line that follows is input; both
/// directions stream at the same time. Over the network a client that has nothing to send sends an
/// empty line every 20 seconds at the latest. If the client goes away, all processes of the
/// command get SIGHUP, and those left after two seconds SIGKILL, unless it was started with `detach` or `keep`.
#[utoipa::path(post, path = "/v1/vms/{vm}/exec", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    request_body(content((ExecRequest = "application/json"), (ExecInput = "application/x-ndjson"))),
    responses((status = 200, body = ExecEvent, content_type = "application/x-ndjson",
        description = "A stream of lines, each one event as JSON; the last is `exit`, `not_started`, `timed_out`, `error`, or `started` of a command that is detached"), Refusal))]
pub async fn exec(
    State(host): State<Arc<Host>>,
    Path(vm): Path<String>,
    request: Request,
) -> Result<Response, Refusal> {
    let (request, following) = match is_lines(&request) {
        false => {
            let Input(request) = Input::from_request(request, &()).await?;
            (request, Following::Nothing)
        }
        true => streamed(request).await?,
    };
    Ok(told(
        host.use_vm(&vm).await?.exec(request, following).await?,
    ))
}

/// List the commands that a guest keeps: those started with `detach` or `keep` that run, and the
/// last that have ended.
#[utoipa::path(get, path = "/v1/vms/{vm}/sessions", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = Vec<KeptCommand>, description = "They, the oldest first"), Refusal))]
pub async fn sessions(
    State(host): State<Arc<Host>>,
    Path(vm): Path<String>,
) -> Answer<Vec<KeptCommand>> {
    Ok(axum::Json(host.use_vm(&vm).await?.sessions().await?))
}

/// Attach to a command that a guest keeps.
///
/// The answer is as that of `exec`: `started`, then what is kept of the command's output and what
/// it goes on to write. Each line of the body is input; the command's
/// input ends by `eof` alone. The command goes on when the client leaves.
#[utoipa::path(post, path = "/v1/vms/{vm}/sessions/{pid}", operation_id = "attach_session", tag = "vms",
    params(("vm" = String, Path, description = "Name or id"), ("pid" = u32, Path, maximum = 4294967295_u32, description = "The session"), Attach),
    request_body(content = ExecInput, content_type = "application/x-ndjson"),
    responses((status = 200, body = ExecEvent, content_type = "application/x-ndjson",
        description = "A stream of lines, as of `exec`"), Refusal))]
pub async fn attach(
    State(host): State<Arc<Host>>,
    Path((vm, pid)): Path<(String, u32)>,
    super::Query(wanted): super::Query<Attach>,
    request: Request,
) -> Result<Response, Refusal> {
    let following = match is_lines(&request) {
        true => {
            let lines = Lines::new(request.into_body().into_data_stream());
            Following::Input(follow(lines, OnEnd::Leave))
        }
        false => Following::Nothing,
    };
    Ok(told(
        host.use_vm(&vm)
            .await?
            .attach(pid, wanted, following)
            .await?,
    ))
}

/// Send a command that a guest keeps a signal: unless another is said, one that kills it and all
/// that it started.
#[utoipa::path(delete, path = "/v1/vms/{vm}/sessions/{pid}", operation_id = "kill_session", tag = "vms",
    params(("vm" = String, Path, description = "Name or id"), ("pid" = u32, Path, maximum = 4294967295_u32, description = "The session"), SessionSignal),
    responses((status = 200, description = "The signal is sent"), Refusal))]
pub async fn kill(
    State(host): State<Arc<Host>>,
    Path((vm, pid)): Path<(String, u32)>,
    super::Query(wanted): super::Query<SessionSignal>,
) -> Answer<()> {
    Ok(axum::Json(
        host.use_vm(&vm)
            .await?
            .signal_session(pid, wanted.signal)
            .await?,
    ))
}

/// The answer to a command's client.
fn told(events: mpsc::Receiver<ExecEvent>) -> Response {
    let lines = stream::unfold(Some(events), |events| async {
        let mut events = events?;
        let event = events.recv().await?;
        let rest = (!event.is_last()).then_some(events);
        Some((line_of(&event), rest))
    });
    ([(header::CONTENT_TYPE, LINES)], Body::from_stream(lines)).into_response()
}

fn line_of(event: &ExecEvent) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    Ok(line)
}

async fn streamed(request: Request) -> Result<(ExecRequest, Following), Refusal> {
    if let Some(budget) = request.extensions().get::<Budget>().cloned() {
        budget.take(Some(LINE)).await?;
    }
    let mut lines = Lines::new(request.into_body().into_data_stream());
    let first = match lines.command().await {
        Ok(first) => first,
        Err(refusal) => {
            // The client would hear of a broken connection, and not of this, while it sends.
            tokio::spawn(lines.drain());
            return Err(refusal);
        }
    };
    let first = first.ok_or_else(|| refused("the body is empty: its first line is the request"))?;
    let request: ExecRequest = understood(&first)?;
    let on_end = match request.keep {
        true => OnEnd::Leave,
        false => OnEnd::Eof,
    };
    Ok((request, Following::Input(follow(lines, on_end))))
}

/// Meaning of a body's end.
#[derive(Clone, Copy, Debug)]
enum OnEnd {
    /// The command's input ends.
    Eof,
    /// The client leaves, and the input stays open for others.
    Leave,
}

/// Understands lines as they come.
fn follow(mut lines: Lines, on_end: OnEnd) -> mpsc::Receiver<Result<ExecInput, ApiError>> {
    let (sender, input) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let line = tokio::select! {
                () = sender.closed() => return lines.drain().await,
                line = lines.next() => line,
            };
            let heard = match line {
                Ok(None) => {
                    if let OnEnd::Eof = on_end {
                        // It may have been said before.
                        let _ = sender.send(Ok(ExecInput::Eof)).await;
                    }
                    return;
                }
                Ok(Some(line)) => understood::<ExecInput>(&line),
                Err(refusal) => Err(refusal),
            };
            let over = heard.is_err();
            let heard = heard.map_err(ApiError::from);
            // The command may end while a line waits for it.
            if sender.send(heard).await.is_err() || over {
                return lines.drain().await;
            }
        }
    });
    input
}

fn understood<T: serde::de::DeserializeOwned>(line: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(line)
        .map_err(|error| refused(&format!("a line is wrong: {}", plainly(&error.to_string()))))
}

fn refused(text: &str) -> Refusal {
    Refusal::new(ErrorKind::Invalid, text)
}
