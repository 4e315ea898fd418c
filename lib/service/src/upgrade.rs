//! Connections of HTTP that become connections of another protocol.

use crate::{counts::Connected, doors::Visit};
use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::Response,
};
use std::sync::Arc;

/// The protocol that a connection becomes one of.
pub const TCP: HeaderValue = HeaderValue::from_static("tcp");

/// Connection over the network that carries a request, for as long as it is open.
#[derive(Clone, Debug)]
pub struct Carrier {
    _visit: Arc<Visit>,
    _connected: Arc<Connected>,
}

impl Carrier {
    /// A connection with a place, which is counted.
    pub fn new(visit: Arc<Visit>, connected: Arc<Connected>) -> Self {
        Self {
            _visit: visit,
            _connected: connected,
        }
    }
}

/// True if a request wants its connection to become one of TCP.
pub fn asks_for_tcp(headers: &HeaderMap) -> bool {
    asks_for(headers, "tcp")
}

/// True if a request wants its connection to become one of this protocol.
pub fn asks_for(headers: &HeaderMap, protocol: &str) -> bool {
    let has =
        |name, wanted: &str| words(headers, &name).any(|word| word.eq_ignore_ascii_case(wanted));
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, protocol)
}

/// Words of a header that is a list.
pub fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter();
    let values = values.filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// The answer after which the connection is one of TCP.
pub fn switching() -> Response {
    switching_to(TCP)
}

/// The answer after which the connection is one of this protocol.
pub fn switching_to(protocol: HeaderValue) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let upgrade = HeaderValue::from_static("upgrade");
    response.headers_mut().insert(header::CONNECTION, upgrade);
    response.headers_mut().insert(header::UPGRADE, protocol);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_with_both_headers_asks_for_a_protocol() {
        for (connection, upgrade, wanted) in [
            ("Upgrade", "tcp", true),
            ("keep-alive, upgrade", "TCP", true),
            ("Upgrade", "websocket", false),
            ("Upgrade", "websocket, tcp", true),
            ("close", "tcp", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONNECTION, connection.parse().expect("text"));
            headers.insert(header::UPGRADE, upgrade.parse().expect("text"));
            assert_eq!(asks_for_tcp(&headers), wanted, "{connection}: {upgrade}");
            let other = connection != "close" && upgrade.contains("websocket");
            assert_eq!(
                asks_for(&headers, "WebSocket"),
                other,
                "{connection}: {upgrade}"
            );
        }
        assert!(!asks_for_tcp(&HeaderMap::new()));
    }
}
