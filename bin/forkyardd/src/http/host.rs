//! The host: its page images, its health.

use super::{Answer, spawned};
use crate::reply::Refusal;
use axum::{Json, extract::State, http::StatusCode};
use forkyard_fork::Host;
use forkyard_types::{Diagnosis, ImageView};
use std::sync::Arc;

type Shared = State<Arc<Host>>;

/// Check that the daemon answers.
#[utoipa::path(get, path = "/v1/ping", tag = "host", responses((status = 204, description = "The daemon answers"), Refusal))]
pub async fn ping() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// List the other hosts that VMs can be forked and moved to, by the names that they have here: nodes of the
/// cluster that are not lost, or peers.
#[utoipa::path(get, path = "/v1/hosts", tag = "host",
    responses((status = 200, body = Vec<String>, description = "Their names"), Refusal))]
pub async fn hosts(State(host): Shared) -> Answer<Vec<String>> {
    Ok(Json(host.other_hosts()?))
}

/// The page images that memories of clones are views of.
#[utoipa::path(get, path = "/v1/pages", tag = "host",
    responses((status = 200, body = Vec<ImageView>, description = "The page images"), Refusal))]
pub async fn pages(State(host): Shared) -> Answer<Vec<ImageView>> {
    Ok(Json(host.page_images().await?))
}

/// Find what crashes left behind, and what the host lacks.
#[utoipa::path(get, path = "/v1/doctor", tag = "host",
    responses((status = 200, body = Diagnosis, description = "Findings"), Refusal))]
pub async fn examine(State(host): Shared) -> Answer<Diagnosis> {
    Ok(Json(host.examine().await?))
}

/// Find what crashes left behind, and remove it.
#[utoipa::path(post, path = "/v1/doctor", tag = "host",
    responses((status = 200, body = Diagnosis, description = "Findings, and whether they were removed"), Refusal))]
pub async fn repair(State(host): Shared) -> Answer<Diagnosis> {
    Ok(Json(spawned(async move { host.repair().await }).await?))
}
