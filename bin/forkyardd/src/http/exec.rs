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
use forkyard_service::websocket::Asked;
use forkyard_types::{
    ApiError, Attach, ErrorKind, ExecEvent, ExecInput, ExecRequest, KeptCommand, SessionSignal,
    plainly,
};
use futures::stream;
use std::{sync::Arc, time::Duration};
use tokio::{sync::mpsc, time::timeout};

/// Time that a client has to say over a WebSocket which command it wants.
const FIRST: Duration = Duration::from_secs(30);

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

/// Run a command in a guest over a WebSocket.
///
/// The first message is the request, each that follows is input, and the answers are events, as the
/// lines of `POST` are. The command's input ends by `eof` alone. When nothing follows, or with an
/// event `error`, the socket is closed. A client that closes it, or answers no ping for two minutes, has gone away.
/// Clients that can set no header offer the protocols `forkyard.v1` and `forkyard.token.TOKEN`.
#[utoipa::path(get, path = "/v1/vms/{vm}/exec", operation_id = "exec_socket", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    responses((status = 101, description = "Connected: messages of text, each an object of JSON"),
        (status = 426, body = ApiError, description = "The request asks for no WebSocket"), Refusal))]
pub async fn exec_socket(
    State(host): State<Arc<Host>>,
    Path(vm): Path<String>,
    socket: Asked,
) -> Result<Response, Refusal> {
    let vm = host.use_vm(&vm).await?;
    Ok(socket.talk(async move |mut lines| {
        let first = timeout(FIRST, request_of(&mut lines)).await;
        let request =
            first.map_err(|_| refused("the first message, the request, did not come"))??;
        let input = Following::Input(follow(lines, OnEnd::Leave));
        Ok(vm.exec(request, input).await?)
    }))
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
            let lines = Lines::new(request.into_body());
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

/// Attach to a command that a guest keeps over a WebSocket.
///
/// Messages are as the lines of `POST`.
#[utoipa::path(get, path = "/v1/vms/{vm}/sessions/{pid}", operation_id = "attach_session_socket", tag = "vms",
    params(("vm" = String, Path, description = "Name or id"), ("pid" = u32, Path, maximum = 4294967295_u32, description = "The session"), Attach),
    responses((status = 101, description = "Connected: messages of text, each an object of JSON"),
        (status = 426, body = ApiError, description = "The request asks for no WebSocket"), Refusal))]
pub async fn attach_socket(
    State(host): State<Arc<Host>>,
    Path((vm, pid)): Path<(String, u32)>,
    super::Query(wanted): super::Query<Attach>,
    socket: Asked,
) -> Result<Response, Refusal> {
    let vm = host.use_vm(&vm).await?;
    Ok(socket.talk(async move |lines| {
        let input = Following::Input(follow(lines, OnEnd::Leave));
        Ok(vm.attach(pid, wanted, input).await?)
    }))
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
    let sent = super::spawned(async move {
        let used = host.use_vm(&vm).await?;
        Ok::<_, Refusal>(used.signal_session(pid, wanted.signal).await?)
    });
    Ok(axum::Json(sent.await?))
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
    let mut lines = Lines::new(request.into_body());
    let request = match request_of(&mut lines).await {
        Ok(request) => request,
        Err(refusal) => {
            // The client would hear of a broken connection, and not of this, while it sends.
            tokio::spawn(lines.drain());
            return Err(refusal);
        }
    };
    let on_end = match request.keep {
        true => OnEnd::Leave,
        false => OnEnd::Eof,
    };
    Ok((request, Following::Input(follow(lines, on_end))))
}

/// The request, which is the first line.
async fn request_of(lines: &mut Lines) -> Result<ExecRequest, Refusal> {
    let first = lines.command().await?;
    let first = first.ok_or_else(|| refused("the body is empty: its first line is the request"))?;
    understood(&first)
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
