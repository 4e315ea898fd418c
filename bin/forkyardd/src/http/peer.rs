//! What other hosts ask of this one.

use super::{Answer, Input, spawned};
use crate::reply::Refusal;
use axum::{Json, extract::State};
use forkyard_fork::Host;
use forkyard_types::{PeerForkRequest, PeerForkResponse};
use std::sync::Arc;

/// Make clones of an instant of another host's VM. Their pages are fetched from
/// there as they are touched. At most 64 MiB of request.
#[utoipa::path(post, path = "/v1/peer/clones", tag = "peers", request_body = PeerForkRequest,
    responses((status = 200, body = PeerForkResponse, description = "One entry a clone: it, or why there is none"), Refusal))]
pub async fn clones(
    State(host): State<Arc<Host>>,
    Input(request): Input<PeerForkRequest>,
) -> Answer<PeerForkResponse> {
    // Spawned: a host that goes away must not leave half a clone.
    Ok(Json(
        spawned(async move { host.take(request).await }).await?,
    ))
}
