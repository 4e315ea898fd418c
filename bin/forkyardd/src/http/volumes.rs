//! Volumes: disks that outlive the VMs that write them. For the host's operator alone.

use super::{Answer, Input, Path, Query, spawned, substrates};
use crate::{gate::Asker, reply::Refusal};
use axum::{
    Json,
    extract::{Extension, State},
    http::StatusCode,
};
use forkyard_fork::Host;
use forkyard_node::Node;
use forkyard_types::{
    BringVolume, CreateVolume, ExportVolume, MirrorVolume, MoveVolume, ResizeVolume,
    SnapshotVolume, TuneVolume, VolumeMoved, VolumeView, VolumeWhy,
};
use std::sync::Arc;

type Shared = State<Arc<Host>>;
type By = Extension<Asker>;

/// Refuses all but the host's operator, who may ask over another node.
pub fn for_the_operator(asker: &Asker) -> Result<(), Refusal> {
    match asker {
        Asker::Node(_, None) => Ok(()),
        Asker::Host | Asker::Node(_, Some(_)) | Asker::User(_) | Asker::Guest => {
            substrates::for_the_operator(asker)
        }
    }
}

/// List the volumes of this host, sorted by name; in a cluster, those of all nodes.
#[utoipa::path(get, path = "/v1/volumes", operation_id = "list_volumes", tag = "volumes",
    responses((status = 200, body = Vec<VolumeView>, description = "The volumes"), Refusal))]
pub async fn list(
    State(host): Shared,
    State(node): State<Option<Node>>,
    Extension(asker): By,
) -> Answer<Vec<VolumeView>> {
    for_the_operator(&asker)?;
    let own = host.volumes().await?;
    Ok(Json(match node {
        Some(node) if !asker.is_node() => node.all_volumes(own).await,
        Some(_) | None => own,
    }))
}

/// Make a volume: of zeroes, or a copy of an image's disk or of a file of the host.
#[utoipa::path(post, path = "/v1/volumes", operation_id = "create_volume", tag = "volumes", request_body = CreateVolume,
    responses((status = 201, body = VolumeView, description = "The volume; it is on disk"), Refusal))]
pub async fn create(
    State(host): Shared,
    Extension(asker): By,
    Input(request): Input<CreateVolume>,
) -> Result<(StatusCode, Json<VolumeView>), Refusal> {
    for_the_operator(&asker)?;
    let made = spawned(async move { host.create_volume(request).await });
    Ok((StatusCode::CREATED, Json(made.await?)))
}

/// Show a volume, its snapshots, and the VMs that have it.
#[utoipa::path(get, path = "/v1/volumes/{name}", operation_id = "inspect_volume", tag = "volumes",
    params(("name" = String, Path, description = "Name of the volume")),
    responses((status = 200, body = VolumeView, description = "The volume"), Refusal))]
pub async fn inspect(
    State(host): Shared,
    Extension(asker): By,
    Path(name): Path<String>,
) -> Answer<VolumeView> {
    for_the_operator(&asker)?;
    Ok(Json(host.volume(&name).await?))
}

/// Remove a volume that no VM has, or lies over.
#[utoipa::path(delete, path = "/v1/volumes/{name}", operation_id = "remove_volume", tag = "volumes",
    params(("name" = String, Path, description = "Name of the volume")),
    responses((status = 200, body = VolumeView, description = "The volume as it was"), Refusal))]
pub async fn remove(
    State(host): Shared,
    Extension(asker): By,
    Path(name): Path<String>,
) -> Answer<VolumeView> {
    for_the_operator(&asker)?;
    let removed = spawned(async move { host.remove_volume(&name).await });
    Ok(Json(removed.await?))
}

/// Keep a volume as it is, also while a VM writes it. Blocks are shared.
#[utoipa::path(post, path = "/v1/volumes/{name}/snapshots", operation_id = "snapshot_volume", tag = "volumes",
    params(("name" = String, Path, description = "Name of the volume")), request_body = SnapshotVolume,
    responses((status = 201, body = VolumeView, description = "The volume; the snapshot is on disk"), Refusal))]
pub async fn snapshot(
    State(host): Shared,
    Extension(asker): By,
    Path(name): Path<String>,
    Input(request): Input<SnapshotVolume>,
) -> Result<(StatusCode, Json<VolumeView>), Refusal> {
    for_the_operator(&asker)?;
    let kept = spawned(async move { host.snapshot_volume(&name, request).await });
    Ok((StatusCode::CREATED, Json(kept.await?)))
}

/// Remove a snapshot that no VM lies over.
#[utoipa::path(delete, path = "/v1/volumes/{name}/snapshots/{snapshot}", operation_id = "remove_volume_snapshot", tag = "volumes",
    params(("name" = String, Path, description = "The volume's name"), ("snapshot" = String, Path, description = "The snapshot's name")),
    responses((status = 200, body = VolumeView, description = "The volume"), Refusal))]
pub async fn drop_snapshot(
    State(host): Shared,
    Extension(asker): By,
    Path((name, snapshot)): Path<(String, String)>,
) -> Answer<VolumeView> {
    for_the_operator(&asker)?;
    let dropped = spawned(async move { host.drop_volume_snapshot(&name, &snapshot).await });
    Ok(Json(dropped.await?))
}

/// Change the size of a volume that no VM has.
#[utoipa::path(post, path = "/v1/volumes/{name}/resize", operation_id = "resize_volume", tag = "volumes",
    params(("name" = String, Path, description = "Name of the volume")), request_body = ResizeVolume,
    responses((status = 200, body = VolumeView, description = "The volume"), Refusal))]
pub async fn resize(
    State(host): Shared,
    Extension(asker): By,
    Path(name): Path<String>,
    Input(request): Input<ResizeVolume>,
) -> Answer<VolumeView> {
    for_the_operator(&asker)?;
    let resized = spawned(async move { host.resize_volume(&name, request).await });
    Ok(Json(resized.await?))
}

/// Block to tell of.
#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct OfBlock {
    /// Number of the block, of 4096 bytes
    block: u64,
}

/// Tell why a block went to other hosts, came from there, or did not.
#[utoipa::path(get, path = "/v1/volumes/{name}/why", operation_id = "why_volume_block", tag = "volumes",
    params(("name" = String, Path, description = "Name of the volume"), OfBlock),
    responses((status = 200, body = VolumeWhy, description = "The law applied to it now, and its latest transfers"), Refusal))]
pub async fn why(
    State(host): Shared,
    Extension(asker): By,
    Path(name): Path<String>,
    Query(of): Query<OfBlock>,
) -> Answer<VolumeWhy> {
    for_the_operator(&asker)?;
    Ok(Json(host.volume_why(&name, of.block).await?))
}

/// Change the law by which blocks of a volume are sent ahead, also while a VM writes it.
#[utoipa::path(post, path = "/v1/volumes/{name}/tune", operation_id = "tune_volume", tag = "volumes",
    params(("name" = String, Path, description = "Name of the volume")), request_body = TuneVolume,
    responses((status = 200, body = VolumeView, description = "The volume"), Refusal))]
pub async fn tune(
    State(host): Shared,
    Extension(asker): By,
    Path(name): Path<String>,
    Input(request): Input<TuneVolume>,
) -> Answer<VolumeView> {
    for_the_operator(&asker)?;
    let tuned = spawned(async move { host.tune_volume(&name, request).await });
    Ok(Json(tuned.await?))
}

/// Say which other hosts every flush of a volume waits for.
#[utoipa::path(post, path = "/v1/volumes/{name}/mirror", operation_id = "mirror_volume", tag = "volumes",
    params(("name" = String, Path, description = "Name of the volume")), request_body = MirrorVolume,
    responses((status = 200, body = VolumeView, description = "The volume; copies are on their way"), Refusal))]
pub async fn mirror(
    State(host): Shared,
    Extension(asker): By,
    Path(name): Path<String>,
    Input(request): Input<MirrorVolume>,
) -> Answer<VolumeView> {
    for_the_operator(&asker)?;
    let told = spawned(async move { host.mirror_volume(&name, request).await });
    Ok(Json(told.await?))
}

/// Move a volume that no VM has to another host, with its snapshots. It is at home there once this is
/// answered; if it fails, it is here, unless the answer says that this is not known yet.
#[utoipa::path(post, path = "/v1/volumes/{name}/move", operation_id = "move_volume", tag = "volumes",
    params(("name" = String, Path, description = "Name of the volume")), request_body = MoveVolume,
    responses((status = 200, body = VolumeMoved, description = "The volume is at home there; what is here is a copy"), Refusal))]
pub async fn move_to(
    State(host): Shared,
    Extension(asker): By,
    Path(name): Path<String>,
    Input(request): Input<MoveVolume>,
) -> Answer<VolumeMoved> {
    for_the_operator(&asker)?;
    let moved = spawned(async move { host.move_volume(&name, request).await });
    Ok(Json(moved.await?))
}

/// Move a volume that no VM has here, from the host that it is at.
#[utoipa::path(post, path = "/v1/volumes/{name}/bring", operation_id = "bring_volume", tag = "volumes",
    params(("name" = String, Path, description = "Name of the volume")), request_body = BringVolume,
    responses((status = 200, body = VolumeMoved, description = "The volume is at home here"), Refusal))]
pub async fn bring(
    State(host): Shared,
    Extension(asker): By,
    Path(name): Path<String>,
    Input(request): Input<BringVolume>,
) -> Answer<VolumeMoved> {
    for_the_operator(&asker)?;
    let brought = spawned(async move { host.bring_volume(&name, request).await });
    Ok(Json(brought.await?))
}

/// Make a copy that is held for another host a volume that is at home here. That host is fenced.
#[utoipa::path(post, path = "/v1/volumes/{name}/promote", operation_id = "promote_volume", tag = "volumes",
    params(("name" = String, Path, description = "Name of the volume")),
    responses((status = 200, body = VolumeView, description = "The volume, as it was at the last flush that this host held"), Refusal))]
pub async fn promote(
    State(host): Shared,
    Extension(asker): By,
    Path(name): Path<String>,
) -> Answer<VolumeView> {
    for_the_operator(&asker)?;
    let promoted = spawned(async move { host.promote_volume(&name).await });
    Ok(Json(promoted.await?))
}

/// Copy a volume that no VM writes, or a snapshot of any, into a new file of the host, as a raw disk.
#[utoipa::path(post, path = "/v1/volumes/{name}/export", operation_id = "export_volume", tag = "volumes",
    params(("name" = String, Path, description = "Name of the volume")), request_body = ExportVolume,
    responses((status = 200, body = VolumeView, description = "The volume"), Refusal))]
pub async fn export(
    State(host): Shared,
    Extension(asker): By,
    Path(name): Path<String>,
    Input(request): Input<ExportVolume>,
) -> Answer<VolumeView> {
    for_the_operator(&asker)?;
    let copied = spawned(async move { host.export_volume(&name, request).await });
    Ok(Json(copied.await?))
}
