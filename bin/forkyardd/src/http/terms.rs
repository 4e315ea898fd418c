//! Labels, lifetimes and restarts of VMs.

use super::{Answer, Input, Path, spawned};
use crate::reply::Refusal;
use axum::{Json, extract::State};
use forkyard_fork::Host;
use forkyard_types::{Idle, Labels, Lifetime, RenameRequest, RestartRequest, VmView};
use std::sync::Arc;

type Shared = State<Arc<Host>>;

/// Say for how long from now on a VM is wanted, and what becomes of it then. Again and again, it is
/// kept alive.
#[utoipa::path(post, path = "/v1/vms/{vm}/lifetime", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    request_body = Lifetime,
    responses((status = 200, body = VmView, description = "The VM as it is now"), Refusal))]
pub async fn set_lifetime(
    State(host): Shared,
    Path(vm): Path<String>,
    Input(wanted): Input<Lifetime>,
) -> Answer<VmView> {
    Ok(Json(host.set_lifetime(&vm, Some(wanted))?))
}

/// Want a VM until it is removed.
#[utoipa::path(delete, path = "/v1/vms/{vm}/lifetime", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = VmView, description = "The VM as it is now"), Refusal))]
pub async fn remove_lifetime(State(host): Shared, Path(vm): Path<String>) -> Answer<VmView> {
    Ok(Json(host.set_lifetime(&vm, None)?))
}

/// Say what becomes of a VM that is not used for a time. Its time begins now. If it is paused or
/// stopped then, its next command, copy, session or connection to a port by this API wakes it.
#[utoipa::path(post, path = "/v1/vms/{vm}/idle", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    request_body = Idle,
    responses((status = 200, body = VmView, description = "The VM as it is now"), Refusal))]
pub async fn set_idle(
    State(host): Shared,
    Path(vm): Path<String>,
    Input(wanted): Input<Idle>,
) -> Answer<VmView> {
    Ok(Json(host.set_idle(&vm, Some(wanted))?))
}

/// Let a VM run on that is not used.
#[utoipa::path(delete, path = "/v1/vms/{vm}/idle", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = VmView, description = "The VM as it is now"), Refusal))]
pub async fn remove_idle(State(host): Shared, Path(vm): Path<String>) -> Answer<VmView> {
    Ok(Json(host.set_idle(&vm, None)?))
}

/// Say whether a VM is started again when it ends by itself, or its host went down, from now on. Clones are not.
#[utoipa::path(post, path = "/v1/vms/{vm}/restart-policy", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    request_body = RestartRequest,
    responses((status = 200, body = VmView, description = "The VM as it is now"), Refusal))]
pub async fn set_restart(
    State(host): Shared,
    Path(vm): Path<String>,
    Input(wanted): Input<RestartRequest>,
) -> Answer<VmView> {
    Ok(Json(host.set_restart(&vm, wanted.restart)?))
}

/// Give a VM these labels instead of those it had.
#[utoipa::path(post, path = "/v1/vms/{vm}/labels", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    request_body = Labels,
    responses((status = 200, body = VmView, description = "The VM as it is now"), Refusal))]
pub async fn set_labels(
    State(host): Shared,
    Path(vm): Path<String>,
    Input(labels): Input<Labels>,
) -> Answer<VmView> {
    Ok(Json(host.set_labels(&vm, labels)?))
}

/// Give a VM or a checkpoint another name. The guest's host name stays until it boots again.
#[utoipa::path(post, path = "/v1/vms/{vm}/rename", operation_id = "rename_vm", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    request_body = RenameRequest,
    responses((status = 200, body = VmView, description = "The VM as it is now"), Refusal))]
pub async fn rename(
    State(host): Shared,
    Path(vm): Path<String>,
    Input(wanted): Input<RenameRequest>,
) -> Answer<VmView> {
    let done = spawned(async move { host.rename(&vm, wanted.name).await });
    Ok(Json(done.await?))
}
