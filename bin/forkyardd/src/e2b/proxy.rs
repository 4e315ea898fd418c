//! HTTP of a sandbox's ports, WebSockets included.
//!
//! ```text
//! client --HTTP--> here --HTTP over a connection of Host::connect--> server in the guest
//! ```
//!
//! A connection to the guest for each request: it is a process there, and ends with the request.

use super::{
    E2b, Who,
    reply::{self, Failure},
};
use crate::{http::ports::carry, upgrade::Carrier};
use axum::{
    body::Body,
    extract::Request,
    http::{HeaderName, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use forkyard_e2b::{PRIVATE, is_token};
use forkyard_fork::{HostError, PortError, VmError};
use forkyard_gateway::{exchange, opened, strip, upgrades};
use forkyard_types::{GuestPort, VmView};
use tokio::io::{DuplexStream, duplex};

/// Bytes on their way in each direction.
const BUFFER: usize = 64 << 10;
/// Token for ports that are not public.
pub const TRAFFIC: HeaderName = HeaderName::from_static("e2b-traffic-access-token");
/// Tokens, which are not the servers' matter.
static OWN: [HeaderName; 3] = [
    TRAFFIC,
    HeaderName::from_static("x-access-token"),
    HeaderName::from_static("x-api-key"),
];

/// Passes a request on to a port of a sandbox, and the answer back, as they come.
pub async fn pass(e2b: &E2b, vm: &VmView, port: u16, request: Request) -> Response {
    if vm.labels.0.contains_key(PRIVATE) {
        let shown = request.headers().get(TRAFFIC);
        let shown = shown.and_then(|value| value.to_str().ok());
        let wanted = e2b.key.token("traffic", vm.id);
        if !shown.is_some_and(|shown| is_token(shown, &wanted)) {
            let why = "the sandbox's ports are not public: e2b-traffic-access-token is missing or does not hold";
            return e2b.refuse(Who::of(&request), why).await.into_response();
        }
    }
    // A connection that got here knows a sandbox, and gives way to no stranger's.
    if let Err(full) = Who::of(&request).greet(vm.id) {
        return full.into_response();
    }
    let Ok(port) = port.to_string().parse::<GuestPort>() else {
        return Failure::invalid("there is no port 0").into_response();
    };
    let connected = async {
        let used = e2b.host.use_vm(vm.id.as_str()).await?;
        Ok::<_, HostError>(used.connect(port).await?)
    };
    let (input, output) = match connected.await {
        Ok(connection) => connection,
        Err(HostError::Vm(VmError::Port(PortError::NothingListens { .. }))) => {
            return reply::closed(vm.id.as_str(), port);
        }
        Err(error) => return Failure::from(error).into_response(),
    };
    let (mine, guests) = duplex(BUFFER);
    tokio::spawn(carry(guests, input, output));
    match through(mine, request).await {
        Ok(response) => response,
        Err(error) => {
            let text = format!("port {port} of the sandbox answered no HTTP: {error}");
            tracing::debug!(vm = %vm.name, %port, %error, "not passed on");
            let body = Failure {
                status: StatusCode::BAD_GATEWAY,
                code: "unavailable",
                message: text,
            };
            body.into_response()
        }
    }
}

async fn through(guest: DuplexStream, mut request: Request) -> Result<Response, hyper::Error> {
    let mut sender = opened(guest).await?;
    let switches = upgrades(request.headers());
    // Counted until its end, whatever it becomes.
    let carrier = request.extensions().get::<Carrier>().cloned();
    let client = hyper::upgrade::on(&mut request);
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    strip(&mut head.headers, &OWN, switches);
    let mut passed = hyper::Request::new(body);
    *passed.method_mut() = head.method;
    *passed.uri_mut() = head.uri;
    *passed.headers_mut() = head.headers;
    let answer = exchange(&mut sender, passed, Some(client), carrier).await?;
    Ok(answer.response.map(Body::new))
}
