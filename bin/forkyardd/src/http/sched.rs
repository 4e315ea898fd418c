//! Scheduling of vCPUs: of VMs, and of other QEMUs of the host.

use super::{Answer, Input, Path, spawned};
use crate::reply::Refusal;
use axum::{Json, extract::State};
use forkyard_fork::Host;
use forkyard_types::{ErrorKind, SchedProcess, SchedSettings, SchedState};
use forkyard_vcpu_dispatch::{Service, ServiceError, protocol::Wanted};
use std::{error::Error, sync::Arc};
use tokio::task::spawn_blocking;

/// Show the vCPUs that are scheduled on this host.
#[utoipa::path(get, path = "/v1/sched", operation_id = "scheduling", tag = "sched",
    responses((status = 200, body = SchedState, description = "Policy, CPUs and VMs; 404 if no VM is scheduled"), Refusal))]
pub async fn show(State(service): State<Service>) -> Answer<SchedState> {
    done(move || service.show()).await
}

/// Show the vCPUs that are scheduled on a VM's host.
#[utoipa::path(get, path = "/v1/vms/{vm}/sched", operation_id = "scheduling_of_vm", tag = "sched",
    params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = SchedState, description = "Policy, CPUs and VMs; 404 if no VM is scheduled there"), Refusal))]
pub async fn show_host(
    State(host): State<Arc<Host>>,
    State(service): State<Service>,
    Path(vm): Path<String>,
) -> Answer<SchedState> {
    host.find(&vm)?;
    done(move || service.show()).await
}

/// Have a VM's vCPUs scheduled. What is absent stays as it is. All scheduled VMs of a host are
/// under one policy: one that is named here is that of all. The settings end with the VM's process:
/// when it is stopped, or moved to another host.
#[utoipa::path(put, path = "/v1/vms/{vm}/sched", operation_id = "schedule_vm", tag = "sched",
    params(("vm" = String, Path, description = "Name or id")), request_body = SchedSettings,
    responses((status = 200, body = SchedState, description = "The state of the VM's host, once it is done"), Refusal))]
pub async fn set(
    State(host): State<Arc<Host>>,
    State(service): State<Service>,
    Path(vm): Path<String>,
    Input(settings): Input<SchedSettings>,
) -> Answer<SchedState> {
    let (pid, name) = process(&host, &vm)?;
    let wanted = Wanted {
        name: Some(name),
        ..Wanted::of(pid, settings)
    };
    done(move || service.set(wanted)).await
}

/// Let a VM's vCPUs go, as if they had never been scheduled.
#[utoipa::path(delete, path = "/v1/vms/{vm}/sched", operation_id = "release_vm", tag = "sched",
    params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = SchedState, description = "The state of the VM's host, once it is done"), Refusal))]
pub async fn release(
    State(host): State<Arc<Host>>,
    State(service): State<Service>,
    Path(vm): Path<String>,
) -> Answer<SchedState> {
    let (pid, _) = process(&host, &vm)?;
    done(move || service.release(pid)).await
}

/// Have the vCPUs of any QEMU of the host scheduled. Not over the network.
#[utoipa::path(put, path = "/v1/sched/processes/{pid}", operation_id = "schedule_process", tag = "sched",
    params(("pid" = u32, Path, maximum = 4294967295_u32, description = "Process of the QEMU")), request_body = SchedProcess,
    responses((status = 200, body = SchedState, description = "The state, once it is done"), Refusal))]
pub async fn set_process(
    State(service): State<Service>,
    Path(pid): Path<u32>,
    Input(process): Input<SchedProcess>,
) -> Answer<SchedState> {
    let wanted = Wanted {
        threads: process.threads,
        ..Wanted::of(pid, process.settings)
    };
    done(move || service.set(wanted)).await
}

/// Let the vCPUs of any QEMU of the host go. Not over the network.
#[utoipa::path(delete, path = "/v1/sched/processes/{pid}", operation_id = "release_process", tag = "sched",
    params(("pid" = u32, Path, maximum = 4294967295_u32, description = "Process of the QEMU")),
    responses((status = 200, body = SchedState, description = "The state, once it is done"), Refusal))]
pub async fn release_process(
    State(service): State<Service>,
    Path(pid): Path<u32>,
) -> Answer<SchedState> {
    done(move || service.release(pid)).await
}

/// Finds the process of a VM of this host, and the VM's name.
fn process(host: &Host, vm: &str) -> Result<(u32, String), Refusal> {
    let found = host.find(vm)?;
    let name = found.name.to_string();
    match (found.host, found.pid) {
        (None, Some(pid)) => Ok((pid, name)),
        (None, None) => Err(Refusal::new(
            ErrorKind::Conflict,
            &format!("{name} does not run"),
        )),
        (Some(elsewhere), _) => Err(Refusal::new(
            ErrorKind::Conflict,
            &format!("{name} runs on host {elsewhere}"),
        )
        .hinting("ask the daemon there")),
    }
}

async fn done(
    work: impl FnOnce() -> Result<SchedState, ServiceError> + Send + 'static,
) -> Answer<SchedState> {
    let worked = async move {
        match spawn_blocking(work).await {
            Ok(done) => done.map_err(refusal),
            Err(panic) => Err(Refusal::bug(&panic)),
        }
    };
    Ok(Json(spawned(worked).await?))
}

fn refusal(error: ServiceError) -> Refusal {
    tracing::info!(error = &error as &dyn Error, "request refused");
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    let causes: String = causes.map(|cause| format!(": {cause}")).collect();
    let text = format!("{error}{causes}");
    let refusal = Refusal::new(error.kind(), &text);
    match error.hint() {
        Some(hint) => refusal.hinting(hint),
        None => refusal,
    }
}
