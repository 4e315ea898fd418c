//! Substrates in object stores, and keys that they are signed by. For the host's operator alone.

use super::{Answer, Input, Path, Query, spawned, substrates::for_the_operator};
use crate::{gate::Asker, reply::Refusal};
use axum::{
    Json,
    extract::{Extension, State},
};
use forkyard_fork::Host;
use forkyard_types::{
    CollectRequest, Collected, StoreQuery, StoredQuery, StoredSubstrate, TrustRequest, TrustedKeys,
};
use std::sync::Arc;

type Shared = State<Arc<Host>>;

/// List the substrates in an object store, by name. For the host's operator alone.
#[utoipa::path(get, path = "/v1/stores", operation_id = "list_stored_substrates", tag = "substrates", params(StoreQuery),
    responses((status = 200, body = Vec<StoredSubstrate>, description = "The substrates that are there"), Refusal))]
pub async fn list(
    State(host): Shared,
    Extension(asker): Extension<Asker>,
    Query(wanted): Query<StoreQuery>,
) -> Answer<Vec<StoredSubstrate>> {
    for_the_operator(&asker)?;
    Ok(Json(host.stored_substrates(&wanted.store).await?))
}

/// Remove a substrate from an object store, with what nothing there needs any more. For the host's operator alone.
#[utoipa::path(delete, path = "/v1/stores", operation_id = "remove_stored_substrate", tag = "substrates", params(StoredQuery),
    responses((status = 200, body = Collected, description = "What was removed beside it"), Refusal))]
pub async fn remove(
    State(host): Shared,
    Extension(asker): Extension<Asker>,
    Query(wanted): Query<StoredQuery>,
) -> Answer<Collected> {
    for_the_operator(&asker)?;
    let removed =
        spawned(async move { host.remove_stored(&wanted.store, &wanted.name).await }).await?;
    Ok(Json(removed))
}

/// Remove from an object store what no substrate in it needs. For the host's operator alone.
#[utoipa::path(post, path = "/v1/stores/collect", operation_id = "collect_store", tag = "substrates", request_body = CollectRequest,
    responses((status = 200, body = Collected, description = "What was removed"), Refusal))]
pub async fn collect(
    State(host): Shared,
    Extension(asker): Extension<Asker>,
    Input(request): Input<CollectRequest>,
) -> Answer<Collected> {
    for_the_operator(&asker)?;
    let removed = spawned(async move { host.collect_store(&request.store).await }).await?;
    Ok(Json(removed))
}

/// List the keys of other hosts whose substrates are trusted here.
#[utoipa::path(get, path = "/v1/substrate-keys", operation_id = "list_trusted_keys", tag = "substrates",
    responses((status = 200, body = TrustedKeys, description = "The keys"), Refusal))]
pub async fn keys(State(host): Shared) -> Answer<TrustedKeys> {
    Ok(Json(host.trusted_keys()?))
}

/// Trust a key from now on. For the host's operator alone.
#[utoipa::path(post, path = "/v1/substrate-keys", operation_id = "trust_key", tag = "substrates", request_body = TrustRequest,
    responses((status = 200, body = TrustedKeys, description = "The keys that are trusted now"), Refusal))]
pub async fn trust(
    State(host): Shared,
    Extension(asker): Extension<Asker>,
    Input(request): Input<TrustRequest>,
) -> Answer<TrustedKeys> {
    for_the_operator(&asker)?;
    Ok(Json(host.trust_key(&request.key)?))
}

/// Trust a key no longer. Substrates that were pulled stay. For the host's operator alone.
#[utoipa::path(delete, path = "/v1/substrate-keys/{key}", operation_id = "forget_key", tag = "substrates",
    params(("key" = String, Path, description = "The key")),
    responses((status = 200, body = TrustedKeys, description = "The keys that are trusted now"), Refusal))]
pub async fn forget(
    State(host): Shared,
    Extension(asker): Extension<Asker>,
    Path(key): Path<String>,
) -> Answer<TrustedKeys> {
    for_the_operator(&asker)?;
    Ok(Json(host.forget_key(&key)?))
}
