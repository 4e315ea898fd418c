//! Guest images: list, build, remove, in and out.

use super::{Answer, Input, Path, Query, Raw, spawned};
use crate::{gate::Asker, reply::Refusal};
use axum::{
    Json,
    body::Body,
    extract::{Extension, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use forkyard_fork::{FetchReach, Host, Incoming, Outgoing};
use forkyard_types::{
    ExportRequest, GuestImage, ImageBuildRequest, ImageCommitRequest, ImagePullRequest,
    ImportRequest,
};
use futures::{StreamExt, stream};
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    sync::Arc,
};

type Shared = State<Arc<Host>>;

/// Bytes of a disk in one piece.
const PIECE: usize = 256 << 10;

/// List the recipes of guest images, which are built, and those imported.
#[utoipa::path(get, path = "/v1/images", tag = "images",
    responses((status = 200, body = Vec<GuestImage>, description = "The images"), Refusal))]
pub async fn images(State(host): Shared) -> Answer<Vec<GuestImage>> {
    Ok(Json(host.images().await?))
}

/// Build a guest image now rather than at the first boot from it.
#[utoipa::path(post, path = "/v1/images/{name}", tag = "images", params(("name" = String, Path, description = "The recipe's name")),
    responses((status = 200, body = GuestImage, description = "The image is built"), Refusal))]
pub async fn build_image(State(host): Shared, Path(name): Path<String>) -> Answer<GuestImage> {
    Ok(Json(
        spawned(async move { host.build_image(&name).await }).await?,
    ))
}

/// Remove a guest image, unless a VM uses it. One from a recipe can be built
/// again; one that was imported is gone.
#[utoipa::path(delete, path = "/v1/images/{name}", tag = "images", params(("name" = String, Path, description = "The image's name")),
    responses((status = 200, body = GuestImage, description = "The image, no longer there"), Refusal))]
pub async fn remove_image(State(host): Shared, Path(name): Path<String>) -> Answer<GuestImage> {
    let removed = spawned(async move { host.remove_image(&name).await });
    Ok(Json(removed.await?))
}

/// Import an image: the body is a disk, or an archive of a container image.
/// If the client goes away before the answer there is no image.
#[utoipa::path(put, path = "/v1/images/{name}", tag = "images", params(("name" = String, Path, description = "The image's name from here on"), ImportRequest),
    request_body(content = Raw, content_type = "application/octet-stream"),
    responses((status = 201, body = GuestImage, description = "VMs can be booted from it"), Refusal))]
pub async fn import_image(
    State(host): Shared,
    Path(name): Path<String>,
    Query(request): Query<ImportRequest>,
    body: Body,
) -> Result<(StatusCode, Json<GuestImage>), Refusal> {
    // Not spawned: dropped with the connection, the import is given up.
    taken(host.import(&name, request).await?, &name, body).await
}

/// Build a guest image from a Dockerfile: the body is a tar archive of the context. Steps run on the
/// host, in a user namespace of their own and on its network: for the host's root alone, not for
/// requests over the network. If the client goes away before the answer there is no image.
#[utoipa::path(put, path = "/v1/images/{name}/build", tag = "images", params(("name" = String, Path, description = "The image's name from here on"), ImageBuildRequest),
    request_body(content = Raw, content_type = "application/octet-stream"),
    responses((status = 201, body = GuestImage, description = "VMs can be booted from it"), Refusal))]
pub async fn build_from(
    State(host): Shared,
    Extension(asker): Extension<Asker>,
    Path(name): Path<String>,
    Query(request): Query<ImageBuildRequest>,
    body: Body,
) -> Result<(StatusCode, Json<GuestImage>), Refusal> {
    if asker.user().is_some() {
        return Err(Refusal::new(
            forkyard_types::ErrorKind::Forbidden,
            "steps of a build run on the host: it builds for its own root alone",
        )
        .hinting("build elsewhere, and import or pull the image"));
    }
    // Not spawned: dropped with the connection, the build is given up.
    taken(host.build_from(&name, request).await?, &name, body).await
}

/// Passes a body on, and waits for what becomes of it.
async fn taken(
    incoming: Incoming,
    name: &str,
    body: Body,
) -> Result<(StatusCode, Json<GuestImage>), Refusal> {
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| {
            tracing::info!(%error, name, "an import broke off");
            Refusal::new(
                forkyard_types::ErrorKind::Invalid,
                "the image did not come in whole",
            )
        })?;
        if incoming.push(piece.into()).await.is_err() {
            break;
        }
    }
    let image = incoming.finish().await?;
    Ok((StatusCode::CREATED, Json(image)))
}

/// One guest image.
#[utoipa::path(get, path = "/v1/images/{name}", tag = "images", params(("name" = String, Path, description = "The image's name")),
    responses((status = 200, body = GuestImage, description = "The image"), Refusal))]
pub async fn image(State(host): Shared, Path(name): Path<String>) -> Answer<GuestImage> {
    Ok(Json(host.image(&name).await?))
}

/// Fetch a container image from its registry and make a guest image of it. If the client goes
/// away before the answer there is no image. Registries of the host itself are asked for its root
/// alone, not for requests over the network.
#[utoipa::path(post, path = "/v1/images/{name}/pull", tag = "images", params(("name" = String, Path, description = "The image's name from here on")),
    request_body = ImagePullRequest,
    responses((status = 201, body = GuestImage, description = "VMs can be booted from it"), Refusal))]
pub async fn pull_image(
    State(host): Shared,
    Extension(asker): Extension<Asker>,
    Path(name): Path<String>,
    Input(request): Input<ImagePullRequest>,
) -> Result<(StatusCode, Json<GuestImage>), Refusal> {
    let reach = match asker.user() {
        Some(_) => FetchReach::Outside,
        None => FetchReach::Anywhere,
    };
    if request.reference.is_of_this_host() && reach == FetchReach::Outside {
        return Err(Refusal::new(
            forkyard_types::ErrorKind::Forbidden,
            "a registry of the host itself is asked for the host's root alone",
        ));
    }
    // Not spawned: dropped with the connection, the pull is given up.
    let image = host.pull(&name, request, reach).await?.finish().await?;
    Ok((StatusCode::CREATED, Json(image)))
}

/// Make an image of a VM's disk. One that runs goes on; host keys, machine-id, logs and the like
/// are not in the image. What has begun goes on if the client goes away.
#[utoipa::path(post, path = "/v1/images/{name}/commit", tag = "images", params(("name" = String, Path, description = "The image's name from here on")),
    request_body = ImageCommitRequest,
    responses((status = 201, body = GuestImage, description = "VMs can be booted from it"), Refusal))]
pub async fn commit_image(
    State(host): Shared,
    Path(name): Path<String>,
    Input(request): Input<ImageCommitRequest>,
) -> Result<(StatusCode, Json<GuestImage>), Refusal> {
    let image = spawned(async move { host.commit(&name, request).await }).await?;
    Ok((StatusCode::CREATED, Json(image)))
}

/// The disk of an image that is built or imported.
#[utoipa::path(get, path = "/v1/images/{name}/disk", tag = "images", params(("name" = String, Path, description = "The image's name"), ExportRequest),
    responses((status = 200, body = Raw, content_type = "application/octet-stream", description = "The disk"), Refusal))]
pub async fn export_image(
    State(host): Shared,
    Path(name): Path<String>,
    Query(request): Query<ExportRequest>,
) -> Result<Response, Refusal> {
    let disk = host.export_image(&name, request.format).await?;
    Ok(streamed(disk))
}

/// The disk of a checkpoint, or of a VM that has stopped, as a whole.
#[utoipa::path(get, path = "/v1/vms/{vm}/disk", tag = "vms", params(("vm" = String, Path, description = "Name or id"), ExportRequest),
    responses((status = 200, body = Raw, content_type = "application/octet-stream", description = "The disk"), Refusal))]
pub async fn export_disk(
    State(host): Shared,
    Path(vm): Path<String>,
    Query(request): Query<ExportRequest>,
) -> Result<Response, Refusal> {
    let disk = host.export_disk(&vm, request.format).await?;
    Ok(streamed(disk))
}

fn streamed(disk: Outgoing) -> Response {
    let length = disk.size.0;
    let begun = Some((disk.file, 0));
    let pieces = stream::unfold(begun, |state| async {
        let (file, at) = state?;
        let read = tokio::task::spawn_blocking(move || piece(file, at)).await;
        match read.map_err(io::Error::other).flatten() {
            Ok(None) => None,
            Ok(Some((bytes, file))) => {
                let at = at + bytes.len() as u64;
                Some((Ok(bytes), Some((file, at))))
            }
            Err(error) => Some((Err(error), None)),
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        // So that a client that gets less knows.
        (header::CONTENT_LENGTH, length.to_string()),
    ];
    (headers, Body::from_stream(pieces)).into_response()
}

fn piece(mut file: File, at: u64) -> io::Result<Option<(Vec<u8>, File)>> {
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = vec![0; PIECE];
    let read = file.read(&mut bytes)?;
    bytes.truncate(read);
    Ok((read > 0).then_some((bytes, file)))
}
