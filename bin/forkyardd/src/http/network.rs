//! Ports of the host that lead to VMs, and addresses of the VMs' own.

use super::{Answer, Input, Path, Query, spawned};
use crate::reply::Refusal;
use axum::{Json, extract::State};
use forkyard_fork::Host;
use forkyard_types::{EgressRequest, NetworkPolicy, PublishRequest, Transport, Unpublish, VmView};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

type Shared = State<Arc<Host>>;

/// Of which transport a port is.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Of {
    /// `tcp` if absent; of no meaning for an address.
    #[serde(default)]
    transport: Transport,
}

/// Have more ports of the host lead to a VM that runs, until it stops, or give it addresses of its own.
#[utoipa::path(post, path = "/v1/vms/{vm}/published", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    request_body = PublishRequest,
    responses((status = 200, body = VmView, description = "The VM as it is now"), Refusal))]
pub async fn publish(
    State(host): Shared,
    Path(vm): Path<String>,
    Input(wanted): Input<PublishRequest>,
) -> Answer<VmView> {
    let done = spawned(async move { host.publish_ports(&vm, &wanted.ports).await });
    Ok(Json(done.await?))
}

/// Say what the VMs of a VM's family may reach from now on, on the host where it is. Connections to what
/// may be reached no more end; others go on.
#[utoipa::path(post, path = "/v1/vms/{vm}/egress", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    request_body = EgressRequest,
    responses((status = 200, body = NetworkPolicy, description = "What the family may do on the network now"), Refusal))]
pub async fn egress(
    State(host): Shared,
    Path(vm): Path<String>,
    Input(wanted): Input<EgressRequest>,
) -> Answer<NetworkPolicy> {
    let done = spawned(async move { host.set_egress(&vm, wanted).await });
    Ok(Json(done.await?))
}

/// Close a port of the host that leads to a VM, or take an address of its own from it. Connections that are
/// open go on.
#[utoipa::path(delete, path = "/v1/vms/{vm}/published/{port}", tag = "vms",
    params(("vm" = String, Path, description = "Name or id"),
        ("port" = String, Path, description = "The host's port, or the address", pattern = "^([1-9][0-9]{0,4}|[0-9]+\\.[0-9]+\\.[0-9]+\\.[0-9]+)$"), Of),
    responses((status = 200, body = VmView, description = "The VM as it is now"), Refusal))]
pub async fn unpublish(
    State(host): Shared,
    Path((vm, what)): Path<(String, Unpublish)>,
    Query(of): Query<Of>,
) -> Answer<VmView> {
    let what = match what {
        Unpublish::Port(port, _) => Unpublish::Port(port, of.transport),
        Unpublish::Address(ip) => Unpublish::Address(ip),
    };
    let done = spawned(async move { host.unpublish(&vm, what).await });
    Ok(Json(done.await?))
}
