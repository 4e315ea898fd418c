//! Substrates: VMs that are kept small, and VMs made of them.

use super::{Answer, Input, Path, spawned};
use crate::{gate::Asker, reply::Refusal};
use axum::{
    Json,
    extract::{Extension, State},
    http::StatusCode,
};
use forkyard_fork::Host;
use forkyard_node::Node;
use forkyard_types::{
    ActivateRequest, ActivateResponse, CloneResult, DockRequest, ErrorKind, ForkProgress,
    PullRequest, PushRequest, PushResponse, StandbyRequest, SubstrateInspect, SubstrateKey,
    SubstrateView,
};
use std::{collections::BTreeSet, sync::Arc};

type Shared = State<Arc<Host>>;

/// List the substrates that the asker may activate, the oldest first.
#[utoipa::path(get, path = "/v1/substrates", operation_id = "list_substrates", tag = "substrates",
    responses((status = 200, body = Vec<SubstrateView>, description = "The substrates"), Refusal))]
pub async fn list(
    State(host): Shared,
    Extension(asker): Extension<Asker>,
) -> Answer<Vec<SubstrateView>> {
    Ok(Json(host.substrates(asker.user())?))
}

/// Make a substrate of a running VM of this host. The VM ends as that, unless `live` is said.
#[utoipa::path(post, path = "/v1/substrates", operation_id = "dock", tag = "substrates", request_body = DockRequest,
    responses((status = 201, body = SubstrateView, description = "The substrate; it is on disk"), Refusal))]
pub async fn dock(
    State(host): Shared,
    Extension(asker): Extension<Asker>,
    Input(request): Input<DockRequest>,
) -> Result<(StatusCode, Json<SubstrateView>), Refusal> {
    let owner = asker.user().map(str::to_owned);
    let docked = spawned(async move { host.dock(request, owner).await }).await?;
    Ok((StatusCode::CREATED, Json(docked)))
}

/// Show where a substrate's bytes are, and what its guest did before it was docked.
#[utoipa::path(get, path = "/v1/substrates/{name}", operation_id = "inspect_substrate", tag = "substrates",
    params(("name" = String, Path, description = "Name of the substrate")),
    responses((status = 200, body = SubstrateInspect, description = "The substrate in full"), Refusal))]
pub async fn inspect(
    State(host): Shared,
    Extension(asker): Extension<Asker>,
    Path(name): Path<String>,
) -> Answer<SubstrateInspect> {
    Ok(Json(host.inspect_substrate(&name, asker.user()).await?))
}

/// Make VMs of a substrate. Each is the founder of a family of its own. Other hosts make those that are to
/// run there, over pages that they fetch from this one.
#[utoipa::path(post, path = "/v1/substrates/{name}/activate", operation_id = "activate_substrate", tag = "substrates",
    params(("name" = String, Path, description = "Name of the substrate")), request_body = ActivateRequest,
    responses((status = 201, body = ActivateResponse, description = "A VM or an error for each VM wanted"), Refusal))]
pub async fn activate(
    State(host): Shared,
    State(node): State<Option<Node>>,
    Extension(asker): Extension<Asker>,
    Path(name): Path<String>,
    Input(mut request): Input<ActivateRequest>,
) -> Result<(StatusCode, Json<ActivateResponse>), Refusal> {
    let user = asker.user().map(str::to_owned);
    let Some(node) = node else {
        let made = spawned(async move {
            let asked = (user.as_deref(), BTreeSet::new());
            host.activate(&name, request, asked).await
        });
        return Ok((StatusCode::CREATED, Json(made.await?)));
    };
    let (reserved, refused) = {
        let size = host.size_of_activation(&name, &request, user.as_deref());
        node.place_founders(size.await?, user.clone(), &mut request)
            .await?
    };
    let taken = node.cluster().others_vms().await?.into_iter();
    let taken: BTreeSet<String> = taken.map(|vm| vm.vm.name.to_string()).collect();
    let ready = node
        .ready(request.name.as_ref().filter(|_| request.count == 1))
        .await?;
    let made = spawned(async move {
        let outcome = host
            .activate(&name, request, (user.as_deref(), taken))
            .await;
        let made = outcome.as_ref().map_or(&[][..], |made| &made.vms);
        own_those_here(&node, user, made);
        reserved.settle(made);
        node.report(&host).await;
        // Held until the VMs count by themselves.
        drop(ready);
        outcome
    });
    let mut answer = made.await?;
    answer
        .vms
        .extend(refused.into_iter().map(CloneResult::Error));
    Ok((StatusCode::CREATED, Json(answer)))
}

/// Notes whose the VMs are that were made here: their families count for the user that asked.
pub(super) fn own_those_here(node: &Node, user: Option<String>, made: &[CloneResult]) {
    let Some(user) = user else { return };
    for made in made {
        if let CloneResult::Vm(vm) = made
            && vm.host.is_none()
        {
            node.cluster().own(vm.family, user.clone());
        }
    }
}

/// Activations of a substrate that are watched: those under way, and the last ones that were, the oldest first. Of
/// each, how far this host is, and which others have answered.
#[utoipa::path(get, path = "/v1/substrates/{name}/activations", operation_id = "activations", tag = "substrates",
    params(("name" = String, Path, description = "Name of the substrate")),
    responses((status = 200, body = Vec<ForkProgress>, description = "The activations"), Refusal))]
pub async fn activations(
    State(host): Shared,
    Extension(asker): Extension<Asker>,
    Path(name): Path<String>,
) -> Answer<Vec<ForkProgress>> {
    Ok(Json(host.activations_of(&name, asker.user())?))
}

/// Keep VMs of a substrate ready, for activations to take: so many, or as many as recent demand asks for. For its owner.
#[utoipa::path(post, path = "/v1/substrates/{name}/standby", operation_id = "keep_standby", tag = "substrates",
    params(("name" = String, Path, description = "Its name")), request_body = StandbyRequest,
    responses((status = 200, body = SubstrateView, description = "The substrate; they are made in the background"), Refusal))]
pub async fn standby(
    State(host): Shared,
    State(node): State<Option<Node>>,
    Extension(asker): Extension<Asker>,
    Path(name): Path<String>,
    Input(request): Input<StandbyRequest>,
) -> Answer<SubstrateView> {
    on_a_host_alone(node.as_ref())?;
    let user = asker.user().map(str::to_owned);
    let kept = spawned(async move { host.keep_standby(&name, request, user.as_deref()).await });
    Ok(Json(kept.await?))
}

fn on_a_host_alone(node: Option<&Node>) -> Result<(), Refusal> {
    match node {
        None => Ok(()),
        Some(_) => Err(Refusal::new(
            ErrorKind::Conflict,
            "no VMs are kept ready in clusters yet: nothing reserves room for them",
        )),
    }
}

/// Put a substrate into a folder of this host or an object store, for other hosts. For the host's operator alone.
#[utoipa::path(post, path = "/v1/substrates/{name}/push", operation_id = "push_substrate", tag = "substrates",
    params(("name" = String, Path, description = "Name of the substrate")), request_body = PushRequest,
    responses((status = 200, body = PushResponse, description = "The substrate, and what was sent"), Refusal))]
pub async fn push(
    State(host): Shared,
    Extension(asker): Extension<Asker>,
    Path(name): Path<String>,
    Input(request): Input<PushRequest>,
) -> Answer<PushResponse> {
    for_the_operator(&asker)?;
    Ok(Json(host.push_substrate(&name, request).await?))
}

/// Show the key by which this host signs what it pushes.
#[utoipa::path(get, path = "/v1/substrate-key", operation_id = "substrate_key", tag = "substrates",
    responses((status = 200, body = SubstrateKey, description = "Public half of the key"), Refusal))]
pub async fn key(State(host): Shared) -> Answer<SubstrateKey> {
    let public = host.substrate_key()?;
    Ok(Json(SubstrateKey { public }))
}

/// Bring in a substrate from a folder of this host or an object store. For the host's operator alone.
#[utoipa::path(post, path = "/v1/substrates/pull", operation_id = "pull_substrate", tag = "substrates", request_body = PullRequest,
    responses((status = 201, body = SubstrateView, description = "The substrate"), Refusal))]
pub async fn pull(
    State(host): Shared,
    Extension(asker): Extension<Asker>,
    Input(request): Input<PullRequest>,
) -> Result<(StatusCode, Json<SubstrateView>), Refusal> {
    for_the_operator(&asker)?;
    let pulled = spawned(async move { host.pull_substrate(request).await });
    Ok((StatusCode::CREATED, Json(pulled.await?)))
}

pub(super) fn for_the_operator(asker: &Asker) -> Result<(), Refusal> {
    match asker {
        Asker::Host => Ok(()),
        Asker::User(_) | Asker::Node(..) | Asker::Guest => Err(Refusal::new(
            ErrorKind::Forbidden,
            "folders of a host and its stores are its operator's: ask over its socket",
        )),
    }
}

/// Remove a substrate that nothing lies over.
#[utoipa::path(delete, path = "/v1/substrates/{name}", operation_id = "remove_substrate", tag = "substrates",
    params(("name" = String, Path, description = "Name of the substrate")),
    responses((status = 200, body = SubstrateView, description = "The substrate as it was"), Refusal))]
pub async fn remove(
    State(host): Shared,
    Extension(asker): Extension<Asker>,
    Path(name): Path<String>,
) -> Answer<SubstrateView> {
    let user = asker.user().map(str::to_owned);
    let removed = spawned(async move { host.remove_substrate(&name, user.as_deref()).await });
    Ok(Json(removed.await?))
}
