//! Guests that adapt their demand.

use super::{Answer, Input, Path, spawned};
use crate::reply::Refusal;
use axum::{Json, extract::State};
use forkyard_fork::Host;
use forkyard_types::FriendlySettings;
use serde_json::Value;
use std::sync::Arc;

/// Show whether a VM adapts its demand, what it senses, and what it does.
#[utoipa::path(get, path = "/v1/vms/{vm}/friendly", operation_id = "friendly", tag = "friendly",
    params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = Value, description = "`vm`, `friendly` (true if it does), and the state of the program there"), Refusal))]
pub async fn show(State(host): State<Arc<Host>>, Path(vm): Path<String>) -> Answer<Value> {
    Ok(Json(host.friendly(&vm).await?))
}

/// Have a VM adapt its demand to what its host can give. What is absent stays as it is. Done again,
/// it changes nothing else.
#[utoipa::path(put, path = "/v1/vms/{vm}/friendly", operation_id = "make_friendly", tag = "friendly",
    params(("vm" = String, Path, description = "Name or id")), request_body = FriendlySettings,
    responses((status = 200, body = Value, description = "The state, as it is shown"), Refusal))]
pub async fn set(
    State(host): State<Arc<Host>>,
    Path(vm): Path<String>,
    Input(wanted): Input<FriendlySettings>,
) -> Answer<Value> {
    let set = spawned(async move { host.set_friendly(&vm, wanted).await });
    Ok(Json(set.await?))
}

/// End it: everything in the VM is as it was before. Of a VM that does not adapt, nothing changes.
#[utoipa::path(delete, path = "/v1/vms/{vm}/friendly", operation_id = "end_friendly", tag = "friendly",
    params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = Value, description = "The state, as it is shown"), Refusal))]
pub async fn end(State(host): State<Arc<Host>>, Path(vm): Path<String>) -> Answer<Value> {
    let ended = spawned(async move { host.end_friendly(&vm).await });
    Ok(Json(ended.await?))
}
