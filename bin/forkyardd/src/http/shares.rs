//! Tokens with which a gateway's clients reach ports of VMs.

use super::{Answer, Input, Path};
use crate::reply::Refusal;
use axum::{Json, extract::State, http::StatusCode};
use forkyard_fork::Host;
use forkyard_types::{ShareGrant, ShareId, ShareRequest, ShareView};
use std::sync::Arc;

type Shared = State<Arc<Host>>;

/// Give out a token with which clients of a gateway reach one port of a VM, until it expires or is
/// taken back. It is shown this once.
#[utoipa::path(post, path = "/v1/vms/{vm}/shares", operation_id = "share_port", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    request_body = ShareRequest,
    responses((status = 201, body = ShareGrant, description = "The token"), Refusal))]
pub async fn create(
    State(host): Shared,
    Path(vm): Path<String>,
    Input(wanted): Input<ShareRequest>,
) -> Result<(StatusCode, Json<ShareGrant>), Refusal> {
    Ok((StatusCode::CREATED, Json(host.share_port(&vm, wanted)?)))
}

/// Tokens for ports of a VM that hold, the oldest first.
#[utoipa::path(get, path = "/v1/vms/{vm}/shares", operation_id = "list_shares", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = Vec<ShareView>, description = "The tokens, without what makes them tokens"), Refusal))]
pub async fn list(State(host): Shared, Path(vm): Path<String>) -> Answer<Vec<ShareView>> {
    Ok(Json(host.shares(&vm)?))
}

/// Take a token back: gateways refuse it within two seconds. Connections that are open go on.
#[utoipa::path(delete, path = "/v1/vms/{vm}/shares/{share}", operation_id = "remove_share", tag = "vms",
    params(("vm" = String, Path, description = "Name or id"), ("share" = ShareId, Path, description = "Id of the token")),
    responses((status = 200, body = ShareView, description = "The token that was"), Refusal))]
pub async fn remove(
    State(host): Shared,
    Path((vm, share)): Path<(String, ShareId)>,
) -> Answer<ShareView> {
    Ok(Json(host.take_share_back(&vm, share)?))
}
