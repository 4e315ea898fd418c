//! Ports of the host that lead to VMs.

use super::{Answer, Input, Path, Query, spawned};
use crate::reply::Refusal;
use axum::{Json, extract::State};
use forkyard_fork::Host;
use forkyard_types::{EgressRequest, GuestPort, NetworkPolicy, PublishRequest, Transport, VmView};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

type Shared = State<Arc<Host>>;

/// Of which transport a port is.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Of {
    /// `tcp` if absent.
    #[serde(default)]
    transport: Transport,
}

/// Have more ports of the host lead to a VM that runs, until it stops.
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

/// Close a port of the host that leads to a VM. Connections that are open go on.
#[utoipa::path(delete, path = "/v1/vms/{vm}/published/{port}", tag = "vms",
    params(("vm" = String, Path, description = "Name or id"), ("port" = u16, Path, description = "The host's port", minimum = 1), Of),
    responses((status = 200, body = VmView, description = "The VM as it is now"), Refusal))]
pub async fn unpublish(
    State(host): Shared,
    Path((vm, port)): Path<(String, GuestPort)>,
    Query(of): Query<Of>,
) -> Answer<VmView> {
    let done = spawned(async move { host.unpublish_port(&vm, port.number(), of.transport).await });
    Ok(Json(done.await?))
}
