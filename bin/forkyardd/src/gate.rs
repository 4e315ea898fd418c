//! Nobody comes in over the network without a token. A request is judged by
//! its head: the body of one that is refused is never read.

use crate::reply::Refusal;
use axum::{
    extract::{Extension, Request, State},
    http::header,
    middleware::Next,
    response::{IntoResponse, Response},
};
use forkyard_access::Access;
use std::{net::SocketAddr, sync::Arc, time::Instant};

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// Passes on what comes with a token, and answers the rest.
pub async fn token(
    State(access): State<Arc<Access>>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let token = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    match access.admit(peer.ip(), token, crate::now(), Instant::now()) {
        Ok(token) => {
            tracing::debug!(%peer, token = token.name, path = request.uri().path(), "request");
            next.run(request).await
        }
        Err(refused) => {
            tracing::info!(%peer, error = &refused as &dyn std::error::Error, "not let in");
            crate::metrics::not_let_in(&refused);
            Refusal::from(refused).into_response()
        }
    }
}
