//! VMs: boot, fork, run commands in, end.

use super::{Answer, Input, Path, Query, Raw, spawned, volumes};
use crate::{forward, gate::Asker, reply::Refusal};
use axum::{
    Json,
    body::{Body, Bytes, to_bytes},
    extract::{Extension, Request, State},
    http::{HeaderName, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use forkyard_api_client::Client;
use forkyard_cluster::{CloneLayout, Reservation};
use forkyard_fork::{ConsoleText, Host, HostError, VmError};
use forkyard_node::Node;
use forkyard_types::{
    CheckpointRequest, CloneResult, ErrorKind, ForkProgress, ForkRequest, ForkResponse,
    ForkStarted, ListPlace, ListedVm, MigrateRequest, MigrateResponse, NodeName, RunRequest, Usage,
    VmInspect, VmView, VmsRequest,
};
use futures::{StreamExt, stream};
use serde::Deserialize;
use std::{convert::Infallible, sync::Arc};
use utoipa::IntoParams;

type Shared = State<Arc<Host>>;

type Cluster = State<Option<Node>>;

/// List the VMs, the oldest first: in a cluster those of every node, this
/// one's first, as the others last told of them.
#[utoipa::path(get, path = "/v1/vms", operation_id = "list_vms", tag = "vms", params(VmsRequest), responses(
    (status = 200, body = Vec<ListedVm>, description = "The VMs", headers(("link" = String, description = "With `limit`: address of the next page, if there is one"))), Refusal))]
pub async fn list(
    State(host): Shared,
    State(node): Cluster,
    Extension(asker): Extension<Asker>,
    Query(wanted): Query<VmsRequest>,
    uri: Uri,
) -> Result<Response, Refusal> {
    let here = node.as_ref().map(|node| node.cluster().name().clone());
    if wanted.made {
        host.made().await;
    }
    let own = match &node {
        Some(node) => node.own(&host),
        None => host.list(),
    };
    let own = own.into_iter().map(|vm| ListedVm {
        vm,
        node: here.clone(),
        lost: false,
    });
    let mut vms: Vec<_> = own.collect();
    if let Some(node) = node
        && !asker.is_node()
    {
        match node.cluster().others_vms().await {
            Ok(others) => vms.extend(others),
            // A node that is cut off still tells of its own.
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "others' VMs not known"
                );
            }
        }
    }
    if let Some(wrong) = vms.iter().find_map(|vm| wanted.wants(&vm.vm).err()) {
        let text = format!("the filter {wrong:?} is not NAME=VALUE");
        return Err(Refusal::new(ErrorKind::Invalid, &text).answered(StatusCode::BAD_REQUEST));
    }
    vms.retain(|vm| wanted.wants(&vm.vm) == Ok(true));
    let next = wanted.page(&mut vms, |vm| &vm.vm);
    let next = next.map(|after| next_page(&uri, after));
    Ok((next, Json(vms)).into_response())
}

/// The header that leads to the page of a list after this one.
fn next_page(uri: &Uri, after: ListPlace) -> [(HeaderName, String); 1] {
    let query = uri.query().unwrap_or_default().split('&');
    let same = query.filter(|part| !part.starts_with("after="));
    let mut words: Vec<_> = same.map(str::to_owned).collect();
    words.push(format!("after={after}"));
    let link = format!("<{}?{}>; rel=\"next\"", uri.path(), words.join("&"));
    [(header::LINK, link)]
}

/// Choice whether the answer comes when the work is done.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Patience {
    /// False: answer as soon as the request has been accepted.
    #[serde(default = "yes")]
    wait: bool,
}

fn yes() -> bool {
    true
}

/// Bytes of another node's answer that are read: one VM.
const ANSWER: usize = 1 << 20;

/// On which node of a cluster a VM is run.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Where {
    /// This one; if absent, the one that was asked if it has room.
    #[serde(default)]
    node: Option<NodeName>,
    /// True: the one with most vCPUs free.
    #[serde(default)]
    spread: bool,
}

/// Boot a VM. Its image is built if it has not been yet, which takes minutes.
#[utoipa::path(post, path = "/v1/vms", tag = "vms", request_body = RunRequest, params(Patience, Where),
    responses((status = 201, body = VmView, description = "The VM runs: its agent has answered"),
        (status = 202, body = VmView, description = "The VM is starting; one that does not come up is listed no more"), Refusal))]
pub async fn run(
    State(host): Shared,
    State(node): Cluster,
    Extension(asker): Extension<Asker>,
    (uri, Query(patience), Query(place)): (Uri, Query<Patience>, Query<Where>),
    Input(request): Input<RunRequest>,
) -> Result<Response, Refusal> {
    if request.volume.is_some() || !request.data.is_empty() {
        volumes::for_the_operator(&asker)?;
    }
    let Some(node) = node else {
        return Ok(run_here(host, patience, request).await?.into_response());
    };
    let user = asker.user().map(str::to_owned);
    let wanted = match &request.join {
        Some(member) => Some(node_of(&node, &host, member).await?),
        None => place.node,
    };
    // What a node passes on, it has reserved.
    let mut reserved = match asker.is_node() {
        true => None,
        false => {
            let layout = match place.spread {
                true => CloneLayout::Spread,
                false => CloneLayout::Pack,
            };
            let reserved = node.place(&request, user.clone(), wanted, layout);
            Some(reserved.await?)
        }
    };
    let chosen = reserved.as_ref().and_then(|it| it.grant().places.first());
    let chosen = chosen.map(|place| place.node.clone());
    if let (Some(chosen), Some(reserved)) = (chosen, reserved.take_if(|it| it.is_elsewhere())) {
        let client = node.cluster().client(&chosen)?;
        let body = serde_json::to_vec(&request).map_err(|_| unwritable())?;
        let mut passed = Request::new(Body::from(body));
        *passed.method_mut() = axum::http::Method::POST;
        *passed.uri_mut() = uri;
        let json = header::HeaderValue::from_static("application/json");
        passed.headers_mut().insert(header::CONTENT_TYPE, json);
        return run_there(client, asker, passed, reserved).await;
    }
    let ready = node.ready(request.name.as_ref()).await?;
    let ran = spawned(async move {
        let outcome = run_here(host.clone(), patience, request).await;
        if let Ok((_, Json(vm))) = &outcome {
            if let Some(user) = user {
                node.cluster().own(vm.family, user);
            }
            node.report(&host).await;
        }
        if let (Ok((_, Json(vm))), Some(reserved)) = (&outcome, reserved) {
            reserved.settle([vm.id].into());
        }
        // Held until the VM counts by itself.
        drop(ready);
        outcome
    });
    Ok(ran.await?.into_response())
}

/// Finds the node of a VM that another is to join.
async fn node_of(node: &Node, host: &Host, vm: &str) -> Result<NodeName, Refusal> {
    let cluster = node.cluster();
    let found = match host.find(vm).is_ok_and(|vm| vm.host.is_none()) {
        true => Some(cluster.name().clone()),
        false => cluster.find(vm).await?.map(|found| found.node),
    };
    let none = || Refusal::new(ErrorKind::NotFound, &format!("there is no VM {vm:?}"));
    found.ok_or_else(none)
}

fn broke_off() -> Refusal {
    let text = "the node that has it broke off: it may have made the VM";
    Refusal::new(ErrorKind::Timeout, text).hinting("`forkyard ps` tells")
}

fn unwritable() -> Refusal {
    Refusal::new(
        ErrorKind::Host,
        "the request cannot be written for the node that is to make the VM",
    )
}

/// Runs a VM on another node, whatever becomes of its client: its room is held
/// here.
async fn run_there(
    client: Client,
    asker: Asker,
    request: Request,
    reserved: Reservation,
) -> Result<Response, Refusal> {
    let ran = async move {
        let node = reserved.grant().places.first().map(|it| it.node.clone());
        let node = node.as_ref().unwrap_or(reserved.holder());
        let answer = forward::pass_on(&client, &asker, request).await;
        let (head, body) = answer
            .map_err(|error| forward::not_reached(node, &error))?
            .into_parts();
        let body = to_bytes(body, ANSWER).await.map_err(|_| broke_off())?;
        if let Ok(vm) = serde_json::from_slice::<VmView>(&body) {
            reserved.settle([vm.id].into());
        }
        Ok::<_, Refusal>(Response::from_parts(head, Body::from(body)))
    };
    spawned(ran).await
}

async fn run_here(
    host: Arc<Host>,
    patience: Patience,
    request: RunRequest,
) -> Result<(StatusCode, Json<VmView>), Refusal> {
    // Spawned: a client that goes away must not leave half a VM.
    let (status, vm) = match patience.wait {
        true => (
            StatusCode::CREATED,
            spawned(async move { host.run(request).await }).await?,
        ),
        false => (
            StatusCode::ACCEPTED,
            spawned(async move { host.launch(request).await }).await?,
        ),
    };
    Ok((status, Json(vm)))
}

/// One VM.
#[utoipa::path(get, path = "/v1/vms/{vm}", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = VmView, description = "The VM"), Refusal))]
pub async fn one(State(host): Shared, Path(vm): Path<String>) -> Answer<VmView> {
    Ok(Json(host.find(&vm)?))
}

/// End a VM and remove all that is its own.
#[utoipa::path(delete, path = "/v1/vms/{vm}", operation_id = "remove_vm", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = VmView, description = "The VM as it was"), Refusal))]
pub async fn remove(State(host): Shared, Path(vm): Path<String>) -> Answer<VmView> {
    Ok(Json(spawned(async move { host.remove(&vm).await }).await?))
}

/// Fork a running VM into clones. It goes on; each clone wakes in the same
/// instant of memory and disk, with an identity of its own.
#[utoipa::path(post, path = "/v1/vms/{vm}/fork", tag = "vms", params(("vm" = String, Path, description = "Name or id"), Patience),
    request_body = ForkRequest,
    responses((status = 201, body = ForkResponse, description = "One entry a clone: it, or why there is none"),
        (status = 202, body = ForkStarted, description = "Begun; clones are listed as they come"), Refusal))]
pub async fn fork(
    State(host): Shared,
    State(node): Cluster,
    Path(vm): Path<String>,
    Query(patience): Query<Patience>,
    Input(mut request): Input<ForkRequest>,
) -> Result<Response, Refusal> {
    // In a cluster no more than there is room for; the rest is told of as not made.
    let (reserved, refused) = match node {
        Some(node) if request.count > 0 => {
            node.place_clones(&host.find(&vm)?, &mut request).await?
        }
        Some(_) | None => Default::default(),
    };
    if !patience.wait {
        if let Some(why) = refused.first() {
            tracing::warn!(vm, clones = refused.len(), %why, "no room for some");
        }
        let done = move |clones: &[CloneResult]| reserved.settle(clones);
        let begun = spawned(async move { host.launch_fork(vm, request, done).await }).await?;
        return Ok((StatusCode::ACCEPTED, Json(begun)).into_response());
    }
    let mut answer = spawned(async move {
        let outcome = host.fork(&vm, request).await;
        reserved.settle(outcome.as_ref().map_or(&[], |made| &made.clones));
        outcome
    })
    .await?;
    let refused = refused.into_iter().map(CloneResult::Error);
    answer.clones.extend(refused);
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

/// Forks of a VM that are under way, and the last ones that were, the oldest first: how
/// far each host is with its clones.
#[utoipa::path(get, path = "/v1/vms/{vm}/forks", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = Vec<ForkProgress>, description = "The forks"), Refusal))]
pub async fn forks(
    State(host): Shared,
    State(node): Cluster,
    Extension(asker): Extension<Asker>,
    Path(vm): Path<String>,
) -> Answer<Vec<ForkProgress>> {
    let mut forks = match host.forks_of(&vm).await {
        // The host that forks that VM asks what is made of it here: nothing yet.
        Err(HostError::Vm(VmError::Unknown { .. })) if asker.is_node() => Vec::new(),
        found => found?,
    };
    // Whichever node was asked: "here" would be another one.
    if let Some(node) = node {
        let hosts = forks.iter_mut().flat_map(|fork| &mut fork.hosts);
        for host in hosts.filter(|host| host.host.is_none()) {
            host.host = Some(node.cluster().name().to_string());
        }
    }
    Ok(Json(forks))
}

/// Keep the present instant of a running VM on disk. It is a VM by itself, in
/// the state `checkpoint`, that can be forked any time later.
#[utoipa::path(post, path = "/v1/vms/{vm}/checkpoint", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    request_body = CheckpointRequest,
    responses((status = 201, body = VmView, description = "The checkpoint; it is on disk"), Refusal))]
pub async fn checkpoint(
    State(host): Shared,
    Path(vm): Path<String>,
    Input(request): Input<CheckpointRequest>,
) -> Result<(StatusCode, Json<VmView>), Refusal> {
    let kept = spawned(async move { host.checkpoint(&vm, request).await }).await?;
    Ok((StatusCode::CREATED, Json(kept)))
}

/// Move a running VM to another host: a node of the cluster, or a peer. It goes on there under
/// its identity; commands under way in it go on, and this host goes on serving their clients.
#[utoipa::path(post, path = "/v1/vms/{vm}/migrate", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    request_body = MigrateRequest,
    responses((status = 200, body = MigrateResponse, description = "The VM goes on there"), Refusal))]
pub async fn migrate(
    State(host): Shared,
    State(node): Cluster,
    Path(vm): Path<String>,
    Input(request): Input<MigrateRequest>,
) -> Answer<MigrateResponse> {
    let mut reserved = Vec::new();
    if let Some(node) = node {
        for vm in [&vm].into_iter().chain(&request.together) {
            let mut place = ForkRequest {
                count: 1,
                to: vec![request.to.clone()],
                ..ForkRequest::default()
            };
            let (place, refused) = node.place_clones(&host.find(vm)?, &mut place).await?;
            if let Some(why) = refused.into_iter().next() {
                return Err(why.into());
            }
            reserved.push(place);
        }
    }
    let moved = spawned(async move {
        let outcome = host.migrate(&vm, request).await;
        let moved = { outcome.iter() }
            .flat_map(|moved| [moved].into_iter().chain(&moved.together))
            .map(|moved| CloneResult::Vm(Box::new(moved.vm.clone())));
        // In the order in which they were named, as the places are; none if they did not move.
        let moved: Vec<_> = moved.collect();
        for (number, reserved) in reserved.into_iter().enumerate() {
            reserved.settle(moved.get(number).map_or(&[], std::slice::from_ref));
        }
        outcome
    });
    Ok(Json(moved.await?))
}

/// Part of a console's output to return.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Logs {
    /// Go on with what the guest says from now on, until its VM ends.
    #[serde(default)]
    follow: bool,
    /// False: nothing of what it has said so far, and so nothing of a VM that does not
    /// run.
    #[serde(default = "yes")]
    history: bool,
}

/// Show the output of a guest on its serial console: its kernel's, and that of
/// programs that write there. The last mebibyte is kept, and nothing of the time when
/// no daemon ran.
#[utoipa::path(get, path = "/v1/vms/{vm}/logs", tag = "vms", params(("vm" = String, Path, description = "Name or id"), Logs),
    responses((status = 200, body = Raw, content_type = "application/octet-stream", description = "The bytes as the guest wrote them"), Refusal))]
pub async fn logs(
    State(host): Shared,
    Path(vm): Path<String>,
    Query(wanted): Query<Logs>,
) -> Result<Response, Refusal> {
    let said = match wanted.history {
        true => host.said(&vm).await?,
        false => ConsoleText::Running(host.listen(&vm).await?),
    };
    let body = match said {
        ConsoleText::Running(mut said) if wanted.follow => {
            let so_far = std::mem::take(&mut said.so_far);
            let first = stream::once(async { Bytes::from(so_far) });
            let rest = stream::unfold(said, |mut said| async {
                let piece = said.next().await?;
                Some((Bytes::copy_from_slice(&piece), said))
            });
            Body::from_stream(first.chain(rest).map(Ok::<_, Infallible>))
        }
        ConsoleText::Running(said) => Body::from(said.so_far),
        ConsoleText::Ended(said) => Body::from(said),
    };
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response())
}

/// Type on a guest's serial console. What is typed, in order, is the body; it
/// waits while the guest does not read.
#[utoipa::path(post, path = "/v1/vms/{vm}/console", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    request_body(content = Raw, content_type = "application/octet-stream"),
    responses((status = 204, description = "The input is typed"), Refusal))]
pub async fn console(
    State(host): Shared,
    Path(vm): Path<String>,
    Raw(typed): Raw,
) -> Result<StatusCode, Refusal> {
    // Not spawned: a client that goes away before the guest reads has typed nothing.
    host.use_vm(&vm).await?.type_in(typed.into()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Show the place of a VM's bytes, and what its forks took.
#[utoipa::path(get, path = "/v1/vms/{vm}/inspect", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = VmInspect, description = "The VM in full"), Refusal))]
pub async fn inspect(State(host): Shared, Path(vm): Path<String>) -> Answer<VmInspect> {
    Ok(Json(host.inspect(&vm).await?))
}

/// Power a VM off; its record stays until it is removed.
#[utoipa::path(post, path = "/v1/vms/{vm}/stop", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = VmView, description = "The VM as it is now"), Refusal))]
pub async fn stop(State(host): Shared, Path(vm): Path<String>) -> Answer<VmView> {
    Ok(Json(spawned(async move { host.stop(&vm).await }).await?))
}

/// Boot a VM that has stopped again, from its own disk; answered once its agent answers.
#[utoipa::path(post, path = "/v1/vms/{vm}/start", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = VmView, description = "The VM as it is now"), Refusal))]
pub async fn start(State(host): Shared, Path(vm): Path<String>) -> Answer<VmView> {
    Ok(Json(spawned(async move { host.start(&vm).await }).await?))
}

/// Have a VM stand still until it is told to go on; it can be forked so.
#[utoipa::path(post, path = "/v1/vms/{vm}/pause", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = VmView, description = "The VM as it is now"), Refusal))]
pub async fn pause(State(host): Shared, Path(vm): Path<String>) -> Answer<VmView> {
    Ok(Json(spawned(async move { host.pause(&vm).await }).await?))
}

/// Let a paused VM go on.
#[utoipa::path(post, path = "/v1/vms/{vm}/resume", tag = "vms", params(("vm" = String, Path, description = "Name or id")),
    responses((status = 200, body = VmView, description = "The VM as it is now"), Refusal))]
pub async fn resume(State(host): Shared, Path(vm): Path<String>) -> Answer<VmView> {
    Ok(Json(spawned(async move { host.resume(&vm).await }).await?))
}

/// Show the use every VM has made of the host so far: the difference between
/// two answers is the use in between.
#[utoipa::path(get, path = "/v1/usage", tag = "vms",
    responses((status = 200, body = Usage, description = "Processor time and memory of each VM"), Refusal))]
pub async fn usage(State(host): Shared) -> Answer<Usage> {
    Ok(Json(host.usage().await?))
}
