//! Connections of HTTP that become connections of TCP.

use crate::{counts::Connected, doors::Visit};
use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
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
    let has = |name, wanted: &str| {
        let values = headers.get_all(name).into_iter();
        let mut words = values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','));
        words.any(|word| word.trim().eq_ignore_ascii_case(wanted))
    };
    has(header::CONNECTION, "upgrade") && has(header::UPGRADE, "tcp")
}

/// The answer after which the connection is one of TCP.
pub fn switching() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let upgrade = HeaderValue::from_static("upgrade");
    response.headers_mut().insert(header::CONNECTION, upgrade);
    response.headers_mut().insert(header::UPGRADE, TCP);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_with_both_headers_asks_for_tcp() {
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
        }
        assert!(!asks_for_tcp(&HeaderMap::new()));
    }
}
