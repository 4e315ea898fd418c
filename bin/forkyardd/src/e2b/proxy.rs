//! HTTP of a sandbox's ports, WebSockets included.
//!
//! ```text
//! client --HTTP--> here --HTTP over a connection of Host::connect--> server in the guest
//! ```
//!
//! A connection to the guest for each request: it is a process there, and ends with the request.

use super::{
    E2b, PRIVATE, Who, is_token,
    reply::{self, Failure},
};
use crate::http::ports::carry;
use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use forkyard_fork::{HostError, PortError};
use forkyard_types::{GuestPort, VmView};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{copy_bidirectional, duplex};

/// Bytes on their way in each direction.
const BUFFER: usize = 64 << 10;
/// Token for ports that are not public.
pub const TRAFFIC: HeaderName = HeaderName::from_static("e2b-traffic-access-token");
/// What is between two ends of one connection alone.
const OWN: [HeaderName; 6] = [
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authorization"),
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
    // Whoever got here knows a sandbox, and loses its connection to no stranger.
    if let Err(full) = Who::of(&request).greet(vm.id) {
        return full.into_response();
    }
    let Ok(port) = port.to_string().parse::<GuestPort>() else {
        return Failure::invalid("there is no port 0").into_response();
    };
    let (input, output) = match e2b.host.connect(vm.id.as_str(), port).await {
        Ok(connection) => connection,
        Err(HostError::Port(PortError::NothingListens { .. })) => {
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

async fn through(
    guest: tokio::io::DuplexStream,
    mut request: Request,
) -> Result<Response, hyper::Error> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(guest)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to a sandbox's port broke");
        }
    });
    let upgrades = request.headers().contains_key(header::UPGRADE);
    let client = hyper::upgrade::on(&mut request);
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    strip(&mut head.headers, upgrades);
    let mut passed = hyper::Request::new(body);
    *passed.method_mut() = head.method;
    *passed.uri_mut() = head.uri;
    *passed.headers_mut() = head.headers;
    let mut answer = sender.send_request(passed).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (mut head, body) = answer.into_parts();
        strip(&mut head.headers, false);
        return Ok(Response::from_parts(head, Body::new(body)));
    }
    let server = hyper::upgrade::on(&mut answer);
    tokio::spawn(async move {
        let (Ok(client), Ok(server)) = tokio::join!(client, server) else {
            return;
        };
        let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
        if let Err(error) = copy_bidirectional(&mut client, &mut server).await {
            tracing::debug!(%error, "an upgraded connection to a sandbox's port broke");
        }
    });
    let (head, _) = answer.into_parts();
    Ok(Response::from_parts(head, Body::empty()))
}

/// Takes away what is of one connection, and tokens that are not the server's matter.
fn strip(headers: &mut HeaderMap, upgrades: bool) {
    for name in OWN {
        headers.remove(name);
    }
    headers.remove(TRAFFIC);
    headers.remove("x-access-token");
    headers.remove("x-api-key");
    let connection = headers.remove(header::CONNECTION);
    if upgrades {
        let upgrade = HeaderValue::from_static("upgrade");
        headers.insert(header::CONNECTION, connection.unwrap_or(upgrade));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_get_no_tokens_of_the_endpoints_and_nothing_of_the_connection() {
        let of = |upgrades| {
            let mut headers = HeaderMap::new();
            for (name, value) in [
                ("x-api-key", "k"),
                ("x-access-token", "t"),
                ("e2b-traffic-access-token", "t"),
                ("connection", "Upgrade"),
                ("upgrade", "websocket"),
                ("transfer-encoding", "chunked"),
                ("authorization", "Bearer of-the-server"),
            ] {
                let name: HeaderName = name.parse().expect("a name");
                headers.insert(name, value.parse().expect("text"));
            }
            strip(&mut headers, upgrades);
            let mut names: Vec<_> = headers
                .keys()
                .map(|name| name.as_str().to_owned())
                .collect();
            names.sort();
            names
        };
        assert_eq!(of(true), ["authorization", "connection", "upgrade"]);
        assert_eq!(of(false), ["authorization", "upgrade"]);
    }
}
