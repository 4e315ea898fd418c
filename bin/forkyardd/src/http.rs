//! The API: routes, and nothing but translation between HTTP and the host.

use crate::{idle::Idle, reply::Refusal};
use axum::{
    Json, Router,
    body::Body,
    extract::{DefaultBodyLimit, Path, Request, State},
    http::{StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use forkyard_fork::Host;
use forkyard_types::{
    CheckpointRequest, Diagnosis, ExecRequest, ForkRequest, ForkResponse, GuestImage, ImageView,
    RunRequest, VmInspect, VmView,
};
use futures::StreamExt;
use std::sync::Arc;
use tokio_stream::wrappers::ReceiverStream;

type Answer<T> = Result<Json<T>, Refusal>;
type Shared = State<Arc<Host>>;

/// Most bytes of a request to run a command: standard input is part of it.
const INPUT: usize = 64 << 20;

/// Every route of the API.
pub fn routes(host: Arc<Host>, idle: Idle) -> Router {
    Router::new()
        .route("/v1/ping", get(async || StatusCode::NO_CONTENT))
        .route("/v1/vms", get(list).post(run))
        .route("/v1/vms/{vm}", get(one).delete(remove))
        .route("/v1/vms/{vm}/fork", post(fork))
        .route("/v1/vms/{vm}/checkpoint", post(checkpoint))
        .route(
            "/v1/vms/{vm}/exec",
            post(exec).layer(DefaultBodyLimit::max(INPUT)),
        )
        .route("/v1/vms/{vm}/inspect", get(inspect))
        .route("/v1/vms/{vm}/stop", post(stop))
        .route("/v1/images", get(images))
        .route(
            "/v1/images/{name}",
            post(build_image).merge(delete(remove_image)),
        )
        .route("/v1/pages", get(pages))
        .route("/v1/doctor", get(examine).post(repair))
        .with_state(host)
        .layer(from_fn_with_state(idle, busy))
}

/// A daemon with a request under way is not idle.
async fn busy(State(idle): State<Idle>, request: Request, next: Next) -> Response {
    let _busy = idle.busy();
    next.run(request).await
}

async fn list(State(host): Shared) -> Json<Vec<VmView>> {
    Json(host.list())
}

async fn one(State(host): Shared, Path(vm): Path<String>) -> Answer<VmView> {
    Ok(Json(host.find(&vm)?))
}

async fn run(
    State(host): Shared,
    Json(request): Json<RunRequest>,
) -> Result<impl IntoResponse, Refusal> {
    // Spawned: a client that goes away must not leave half a VM.
    let vm = spawned(async move { host.run(request).await }).await?;
    Ok((StatusCode::CREATED, Json(vm)))
}

async fn fork(
    State(host): Shared,
    Path(vm): Path<String>,
    Json(request): Json<ForkRequest>,
) -> Result<(StatusCode, Json<ForkResponse>), Refusal> {
    let answer = spawned(async move { host.fork(&vm, request).await }).await?;
    Ok((StatusCode::CREATED, Json(answer)))
}

async fn checkpoint(
    State(host): Shared,
    Path(vm): Path<String>,
    Json(request): Json<CheckpointRequest>,
) -> Result<(StatusCode, Json<VmView>), Refusal> {
    let kept = spawned(async move { host.checkpoint(&vm, request).await }).await?;
    Ok((StatusCode::CREATED, Json(kept)))
}

async fn exec(
    State(host): Shared,
    Path(vm): Path<String>,
    Json(request): Json<ExecRequest>,
) -> Result<Response, Refusal> {
    let events = host.exec(&vm, request).await?;
    let lines = ReceiverStream::new(events).map(|event| {
        serde_json::to_vec(&event).map(|mut line| {
            line.push(b'\n');
            line
        })
    });
    Ok((
        [(header::CONTENT_TYPE, "application/x-ndjson")],
        Body::from_stream(lines),
    )
        .into_response())
}

async fn inspect(State(host): Shared, Path(vm): Path<String>) -> Answer<VmInspect> {
    Ok(Json(host.inspect(&vm).await?))
}

async fn stop(State(host): Shared, Path(vm): Path<String>) -> Answer<VmView> {
    Ok(Json(spawned(async move { host.stop(&vm).await }).await?))
}

async fn remove(State(host): Shared, Path(vm): Path<String>) -> Answer<VmView> {
    Ok(Json(spawned(async move { host.remove(&vm).await }).await?))
}

async fn images(State(host): Shared) -> Answer<Vec<GuestImage>> {
    Ok(Json(host.images().await?))
}

async fn build_image(State(host): Shared, Path(name): Path<String>) -> Answer<GuestImage> {
    Ok(Json(
        spawned(async move { host.build_image(&name).await }).await?,
    ))
}

async fn remove_image(State(host): Shared, Path(name): Path<String>) -> Answer<GuestImage> {
    Ok(Json(host.remove_image(&name).await?))
}

async fn pages(State(host): Shared) -> Answer<Vec<ImageView>> {
    Ok(Json(host.page_images().await?))
}

async fn examine(State(host): Shared) -> Answer<Diagnosis> {
    Ok(Json(host.examine().await?))
}

async fn repair(State(host): Shared) -> Answer<Diagnosis> {
    Ok(Json(spawned(async move { host.repair().await }).await?))
}

/// Runs work to its end whatever becomes of the connection that asked for it.
async fn spawned<T: Send + 'static, E: Into<Refusal> + Send + 'static>(
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::spawn(work).await {
        Ok(outcome) => outcome.map_err(Into::into),
        Err(panic) => Err(Refusal::bug(&panic)),
    }
}
