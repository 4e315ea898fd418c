//! The host: its images, its page images, its health.

use super::{Answer, spawned};
use crate::reply::Refusal;
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use forkyard_fork::Host;
use forkyard_types::{Diagnosis, GuestImage, ImageView};
use std::sync::Arc;

type Shared = State<Arc<Host>>;

/// Whether the daemon answers.
#[utoipa::path(get, path = "/v1/ping", tag = "host", responses((status = 204, description = "It does"), Refusal))]
pub async fn ping() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// List the recipes of guest images, and which are built.
#[utoipa::path(get, path = "/v1/images", tag = "images",
    responses((status = 200, body = Vec<GuestImage>, description = "The images"), Refusal))]
pub async fn images(State(host): Shared) -> Answer<Vec<GuestImage>> {
    Ok(Json(host.images().await?))
}

/// Build a guest image now rather than at the first boot from it.
#[utoipa::path(post, path = "/v1/images/{name}", tag = "images", params(("name" = String, Path, description = "The recipe's name")),
    responses((status = 200, body = GuestImage, description = "It is built"), Refusal))]
pub async fn build_image(State(host): Shared, Path(name): Path<String>) -> Answer<GuestImage> {
    Ok(Json(
        spawned(async move { host.build_image(&name).await }).await?,
    ))
}

/// Remove a built guest image from the cache.
#[utoipa::path(delete, path = "/v1/images/{name}", tag = "images", params(("name" = String, Path, description = "The recipe's name")),
    responses((status = 200, body = GuestImage, description = "The image, no longer built"), Refusal))]
pub async fn remove_image(State(host): Shared, Path(name): Path<String>) -> Answer<GuestImage> {
    Ok(Json(host.remove_image(&name).await?))
}

/// The page images that memories of clones are views of.
#[utoipa::path(get, path = "/v1/pages", tag = "host",
    responses((status = 200, body = Vec<ImageView>, description = "The page images"), Refusal))]
pub async fn pages(State(host): Shared) -> Answer<Vec<ImageView>> {
    Ok(Json(host.page_images().await?))
}

/// Find what crashes left behind, and what the host lacks.
#[utoipa::path(get, path = "/v1/doctor", tag = "host",
    responses((status = 200, body = Diagnosis, description = "What was found"), Refusal))]
pub async fn examine(State(host): Shared) -> Answer<Diagnosis> {
    Ok(Json(host.examine().await?))
}

/// Find what crashes left behind, and remove it.
#[utoipa::path(post, path = "/v1/doctor", tag = "host",
    responses((status = 200, body = Diagnosis, description = "What was found, and whether it was removed"), Refusal))]
pub async fn repair(State(host): Shared) -> Answer<Diagnosis> {
    Ok(Json(spawned(async move { host.repair().await }).await?))
}
