//! Streams of lines over a WebSocket (RFC 6455): each message is a line of JSON, in both directions.
//!
//! ```text
//! GET with `Upgrade: websocket` --> 101 --> messages: what the lines of a body of `application/x-ndjson` say
//!                                       <-- messages: events; then the socket is closed (1000)
//!                               --> a refusal, as of any other request
//! ```
//!
//! A browser can neither stream a body nor set a header: it offers its token as a protocol.
//!
//! The conversation itself is in `talk`.

mod talk;

use crate::{
    lines::Lines,
    reply::Refusal,
    upgrade::{Carrier, TCP, asks_for, switching_to, words},
};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use forkyard_types::{ErrorKind, ExecEvent};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// Protocol of these messages, for clients that name one.
pub const PROTOCOL: &str = "forkyard.v1";
/// Begin of the protocol that is a token.
const TOKEN: &str = "forkyard.token.";
/// Value of `Upgrade`.
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");
/// Version of RFC 6455.
const VERSION: HeaderValue = HeaderValue::from_static("13");

/// Returns the token among the protocols that a client offers.
pub fn offered_token(headers: &HeaderMap) -> Option<&str> {
    words(headers, &header::SEC_WEBSOCKET_PROTOCOL).find_map(|word| word.strip_prefix(TOKEN))
}

/// True if a request wants its connection to become a WebSocket.
pub fn is_asked_for(headers: &HeaderMap) -> bool {
    asks_for(headers, "websocket")
}

/// Headers of a request for another protocol as they go to another node: its token stays here.
pub fn asked_elsewhere(headers: &HeaderMap) -> HeaderMap {
    let upgrade = HeaderValue::from_static("upgrade");
    let mut passed = HeaderMap::from_iter([(header::CONNECTION, upgrade)]);
    if !is_asked_for(headers) {
        passed.insert(header::UPGRADE, TCP);
        return passed;
    }
    passed.insert(header::UPGRADE, WEBSOCKET);
    for name in [header::SEC_WEBSOCKET_KEY, header::SEC_WEBSOCKET_VERSION] {
        if let Some(value) = headers.get(&name) {
            passed.insert(name, value.clone());
        }
    }
    if words(headers, &header::SEC_WEBSOCKET_PROTOCOL).any(|word| word == PROTOCOL) {
        let protocol = HeaderValue::from_static(PROTOCOL);
        passed.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    passed
}

/// A request whose connection is to become a WebSocket.
#[derive(Debug)]
pub struct Asked {
    upgrade: OnUpgrade,
    key: HeaderValue,
    named: bool,
    carrier: Option<Carrier>,
}

impl<S: Sync> FromRequestParts<S> for Asked {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let headers = &parts.headers;
        let version = headers.get(header::SEC_WEBSOCKET_VERSION);
        let asked = parts.method == Method::GET
            && is_asked_for(headers)
            && version.is_some_and(|version| version == VERSION);
        let key = headers.get(header::SEC_WEBSOCKET_KEY).cloned();
        let named = words(headers, &header::SEC_WEBSOCKET_PROTOCOL).any(|word| word == PROTOCOL);
        let upgrade = parts.extensions.remove::<OnUpgrade>();
        match (asked, key, upgrade) {
            (true, Some(key), Some(upgrade)) => Ok(Self {
                upgrade,
                key,
                named,
                carrier: parts.extensions.get().cloned(),
            }),
            _ => Err(not_asked_for()),
        }
    }
}

/// The answer to a request that wants no WebSocket, where there is nothing else.
fn not_asked_for() -> Response {
    let refusal = Refusal::new(ErrorKind::Invalid, "this path is for WebSockets alone")
        .hinting("connect with a library of WebSockets (RFC 6455, version 13), or send POST")
        .answered(StatusCode::UPGRADE_REQUIRED);
    let headers = [
        (header::UPGRADE, WEBSOCKET),
        (header::SEC_WEBSOCKET_VERSION, VERSION),
    ];
    (headers, refusal).into_response()
}

impl Asked {
    /// Answers the request. `begin` gets the client's messages as lines; what it returns is told until
    /// its end. Dropped when the client leaves.
    pub fn talk<B, F>(self, begin: B) -> Response
    where
        B: FnOnce(Lines) -> F + Send + 'static,
        F: Future<Output = Result<mpsc::Receiver<ExecEvent>, Refusal>> + Send,
    {
        let Self {
            upgrade,
            key,
            named,
            carrier,
        } = self;
        let mut response = switching_to(WEBSOCKET);
        let headers = response.headers_mut();
        if let Ok(accept) = derive_accept_key(key.as_bytes()).parse() {
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        }
        if named {
            let protocol = HeaderValue::from_static(PROTOCOL);
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
        }
        tokio::spawn(async move {
            // Counted until its end.
            let _carrier = carrier;
            match upgrade.await {
                Ok(client) => talk::talk(TokioIo::new(client), begin).await,
                Err(error) => tracing::debug!(%error, "a client went away as it was connected"),
            }
        });
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offering(protocols: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for protocol in protocols {
            let value = HeaderValue::from_static(protocol);
            headers.append(header::SEC_WEBSOCKET_PROTOCOL, value);
        }
        headers
    }

    #[test]
    fn a_token_is_found_among_the_protocols_of_one_header_or_of_several() {
        for (protocols, token) in [
            (&["forkyard.v1, forkyard.token.fy_1_x"][..], Some("fy_1_x")),
            (&["forkyard.v1", "forkyard.token.fy_1_x"], Some("fy_1_x")),
            (&["forkyard.v1"], None),
            (&["x-forkyard.token.fy_1_x"], None),
            (&[], None),
        ] {
            let headers = offering(protocols);
            assert_eq!(offered_token(&headers), token, "{protocols:?}");
        }
    }

    #[test]
    fn another_node_is_asked_for_the_same_and_not_shown_the_token() {
        let mut headers = offering(&["forkyard.token.fy_1_x, forkyard.v1"]);
        headers.append(header::CONNECTION, HeaderValue::from_static("keep-alive"));
        headers.append(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("WebSocket"));
        headers.insert(header::SEC_WEBSOCKET_VERSION, VERSION);
        let passed = asked_elsewhere(&headers);
        assert!(is_asked_for(&passed));
        assert_eq!(passed[header::SEC_WEBSOCKET_VERSION], VERSION);
        assert_eq!(passed[header::SEC_WEBSOCKET_PROTOCOL], PROTOCOL);
        assert_eq!(offered_token(&passed), None);
        headers.insert(header::UPGRADE, TCP);
        assert!(crate::upgrade::asks_for_tcp(&asked_elsewhere(&headers)));
    }
}
