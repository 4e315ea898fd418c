//! The daemon in a sandbox, as its clients know it: its access checks and routes.

use super::{
    E2b, Who, files, filesystem, process,
    reply::{self, Failure},
    watch,
};
use crate::{gate::Asker, http::Budget};
use axum::{
    body::{Body, Bytes, to_bytes},
    extract::Request,
    http::{HeaderMap, Method, StatusCode},
    response::{IntoResponse, Response},
};
use forkyard_e2b::{EnvelopeDecoder, LONGEST, is_token, user};
use forkyard_fork::{HostError, Used};
use forkyard_types::{VmId, VmView};
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;

/// Longest deadline: what is longer is none.
const LONGEST_S: u64 = 86_400 * 365;
/// Shortest and longest time between two signs of life on a stream.
const SIGNS_S: std::ops::RangeInclusive<u64> = 1..=3600;
/// Seconds that a signature holds if none are given.
const SIGN_S: u64 = 90;

/// A call of Connect: for which sandbox, and what it says beside its message.
#[derive(Clone, Debug)]
pub struct Call {
    pub e2b: E2b,
    pub vm: VmView,
    /// The guest's user; none: as its image has it.
    pub user: Option<String>,
    /// Time after which its client waits no more.
    pub deadline: Option<Duration>,
    /// Time between two signs of life.
    pub sign: Duration,
}

impl Call {
    /// The sandbox, as the host knows it.
    pub fn id(&self) -> &str {
        self.vm.id.as_str()
    }

    /// The sandbox, for a use of it.
    pub async fn used(&self) -> Result<Used, HostError> {
        self.e2b.host.use_vm(self.id()).await
    }

    fn of(e2b: &E2b, vm: &VmView, headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name)?.to_str().ok();
        let number = |name: &str| text(name)?.parse::<u64>().ok();
        let deadline = number("connect-timeout-ms").filter(|ms| (1..LONGEST_S * 1000).contains(ms));
        let sign = number("keepalive-ping-interval").unwrap_or(SIGN_S);
        Self {
            e2b: e2b.clone(),
            vm: vm.clone(),
            user: user(headers),
            deadline: deadline.map(Duration::from_millis),
            sign: Duration::from_secs(sign.clamp(*SIGNS_S.start(), *SIGNS_S.end())),
        }
    }
}

/// Answers a request for the daemon of a sandbox that runs.
pub async fn answer(e2b: &E2b, vm: &VmView, request: Request) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    if (&method, path.as_str()) == (&Method::GET, "/health") {
        return StatusCode::NO_CONTENT.into_response();
    }
    let wanted = e2b.key.token("envd", vm.id);
    let shown = request.headers().get("x-access-token");
    let shown = shown.and_then(|value| value.to_str().ok());
    let who = Who::of(&request);
    let may = shown.is_some_and(|shown| is_token(shown, &wanted))
        || files::Signed::of(&request).is_some_and(|signed| signed.is_by(&wanted));
    if !may {
        let why = "the sandbox's token or the signature is missing or does not hold";
        return e2b.refuse(who, why).await.into_response();
    }
    if let Err(full) = who.welcome(&party(vm.id)) {
        return full.into_response();
    }
    let call = Call::of(e2b, vm, request.headers());
    match (&method, path.as_str()) {
        (&Method::GET, "/files") => files::download(&call, files::path(&request))
            .await
            .into_response(),
        (&Method::POST, "/files") => files::upload(&call, request).await.into_response(),
        (&Method::POST, path) => rpc(call, path, request.into_body()).await,
        _ => Failure::unsupported("this path of the sandbox's daemon").into_response(),
    }
}

async fn rpc(call: Call, path: &str, body: Body) -> Response {
    match path {
        "/process.Process/Start" => streamed(call, body, process::start).await,
        "/process.Process/Connect" => streamed(call, body, process::connect).await,
        "/process.Process/StreamInput" => process::stream_input(call, body).await,
        "/process.Process/List" => unary(call, body, process::list).await,
        "/process.Process/Update" => unary(call, body, process::update).await,
        "/process.Process/SendInput" => unary(call, body, process::send_input).await,
        "/process.Process/SendSignal" => unary(call, body, process::send_signal).await,
        "/process.Process/CloseStdin" => unary(call, body, process::close_stdin).await,
        "/filesystem.Filesystem/Stat" => unary(call, body, filesystem::stat).await,
        "/filesystem.Filesystem/MakeDir" => unary(call, body, filesystem::make_dir).await,
        "/filesystem.Filesystem/Move" => unary(call, body, filesystem::rename).await,
        "/filesystem.Filesystem/ListDir" => unary(call, body, filesystem::list_dir).await,
        "/filesystem.Filesystem/Remove" => unary(call, body, filesystem::remove).await,
        "/filesystem.Filesystem/WatchDir" => streamed(call, body, watch::watch_dir).await,
        "/filesystem.Filesystem/CreateWatcher" => unary(call, body, watch::create).await,
        "/filesystem.Filesystem/GetWatcherEvents" => unary(call, body, watch::events).await,
        "/filesystem.Filesystem/RemoveWatcher" => unary(call, body, watch::remove).await,
        _ => Failure::unsupported("this call").rpc(),
    }
}

const NOT_WHOLE: &str = "the request did not come in whole, or is too long";

/// All of a request, and the room that it takes among what is read for its sandbox.
async fn whole(call: &Call, body: Body) -> Result<(Bytes, Budget), Failure> {
    let asker = Asker::User(party(call.vm.id));
    let room = call.e2b.bodies.of(Some(&asker));
    room.take_for(&body, LONGEST).await?;
    match to_bytes(body, LONGEST).await {
        Ok(asked) => Ok((asked, room)),
        Err(_) => Err(Failure::invalid(NOT_WHOLE)),
    }
}

/// Owner of all that holders of a sandbox's token use.
fn party(vm: VmId) -> String {
    format!("sandbox {vm}")
}

async fn unary<Q, A, W>(call: Call, body: Body, work: impl FnOnce(Call, Q) -> W) -> Response
where
    Q: DeserializeOwned,
    A: Serialize,
    W: Future<Output = Result<A, Failure>>,
{
    let deadline = call.deadline.unwrap_or(Duration::MAX);
    let answered = async {
        let (asked, _room) = whole(&call, body).await?;
        work(call, understood(&asked)?).await
    };
    let answered = tokio::time::timeout(deadline, answered).await;
    match answered.unwrap_or_else(|_| Err(Failure::too_late())) {
        Ok(answer) => axum::Json(answer).into_response(),
        Err(failure) => failure.rpc(),
    }
}

/// Answers a call with a stream that `work` has begun, or that ends with its failure.
async fn streamed<Q, W>(call: Call, body: Body, work: impl FnOnce(Call, Q) -> W) -> Response
where
    Q: DeserializeOwned,
    W: Future<Output = Result<Body, Failure>>,
{
    let begun = async {
        let (asked, _room) = whole(&call, body).await?;
        let mut decoder = EnvelopeDecoder::default();
        decoder.push(&asked);
        let message = decoder
            .message()
            .map_err(|wrong| Failure::invalid(wrong.to_string()))?;
        let message = message.ok_or_else(|| Failure::invalid("the stream has no message"))?;
        work(call, understood(&message)?).await
    };
    reply::stream(match begun.await {
        Ok(body) => body,
        Err(failure) => Body::from(failure.end()),
    })
}

/// A message of JSON.
pub fn understood<T: DeserializeOwned>(message: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(message)
        .map_err(|wrong| Failure::invalid(format!("the message is wrong: {wrong}")))
}
