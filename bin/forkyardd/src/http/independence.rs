//! Disks that come to depend on nothing.

use super::{Answer, Path, spawned};
use crate::reply::Refusal;
use axum::{Json, extract::State};
use forkyard_fork::Host;
use forkyard_types::VmInspect;
use std::sync::Arc;

/// Have the disk of a running VM come to depend on no other file: what it lies over is copied in the background, at
/// 64 MiB a second at most, while the VM runs. `independence` in the answer, and in that of `inspect`, shows how far it is.
#[utoipa::path(post, path = "/v1/vms/{vm}/independence", operation_id = "make_independent", tag = "vms",
    params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = VmInspect, description = "The VM, whose disk is being copied, or is its own"), Refusal))]
pub async fn begin(State(host): State<Arc<Host>>, Path(vm): Path<String>) -> Answer<VmInspect> {
    let begun = spawned(async move { host.make_independent(&vm).await });
    Ok(Json(begun.await?))
}
