//! The nodes of a cluster: list, invite, drain, remove; quotas; and how a host
//! that was invited becomes one.

use super::{Answer, Input, Path, Query, spawned};
use crate::reply::Refusal;
use axum::{Json, extract::State, http::StatusCode};
use forkyard_cluster::{ClusterError, Force};
use forkyard_node::Node;
use forkyard_types::{
    ErrorKind, Invitation, InviteRequest, JoinRequest, Joined, NodeName, NodeView, QuotaRequest,
    QuotaView,
};
use serde::Deserialize;
use std::time::Duration;
use utoipa::IntoParams;

/// Longest that an invitation holds: a week.
const LONGEST: u64 = 7 * 24 * 3600;

type Cluster = State<Option<Node>>;

fn member(node: Option<Node>) -> Result<Node, Refusal> {
    node.ok_or_else(|| {
        Refusal::new(ErrorKind::Conflict, "this host is no node of a cluster").hinting(
            "`forkyardd --cluster URL --node NAME --advertise IP` makes it one: see docs/cluster.md",
        )
    })
}

/// List the nodes of the cluster, by name.
#[utoipa::path(get, path = "/v1/nodes", operation_id = "list_nodes", tag = "cluster",
    responses((status = 200, body = Vec<NodeView>, description = "The nodes"), Refusal))]
pub async fn list(State(node): Cluster) -> Answer<Vec<NodeView>> {
    Ok(Json(member(node)?.cluster().nodes().await?))
}

/// Invite a host to become a node. Not over the network.
#[utoipa::path(post, path = "/v1/nodes", tag = "cluster", request_body = InviteRequest,
    responses((status = 201, body = Invitation, description = "Token to start the host's daemon with"), Refusal))]
pub async fn invite(
    State(node): Cluster,
    Input(request): Input<InviteRequest>,
) -> Result<(StatusCode, Json<Invitation>), Refusal> {
    let expires_s = request.expires_s;
    if !(1..=LONGEST).contains(&expires_s) {
        return Err(Refusal::new(
            ErrorKind::Invalid,
            "an invitation holds for a second to a week",
        ));
    }
    let length = Duration::from_secs(expires_s);
    let node = member(node)?;
    let token = spawned(async move { node.cluster().invite(length).await });
    let token = token.await?.to_string();
    Ok((StatusCode::CREATED, Json(Invitation { token, expires_s })))
}

/// Let in a host that was invited: it comes without a token.
#[utoipa::path(post, path = "/v1/join", tag = "cluster", request_body = JoinRequest,
    responses((status = 200, body = Joined, description = "The host is a node now"), Refusal))]
pub async fn join(State(node): Cluster, Input(request): Input<JoinRequest>) -> Answer<Joined> {
    let node = member(node)?;
    // Spawned: an invitation that is used up must have made a node.
    let joined = spawned(async move { node.cluster().admit(request).await });
    Ok(Json(joined.await?))
}

/// Have a node take nothing new; what runs on it runs on.
#[utoipa::path(post, path = "/v1/nodes/{node}/drain", tag = "cluster", params(("node" = String, Path, description = "Name of the node")),
    responses((status = 200, body = NodeView, description = "The node as it is now"), Refusal))]
pub async fn drain(State(node): Cluster, Path(name): Path<String>) -> Answer<NodeView> {
    let (node, name) = (member(node)?, named(&name)?);
    let drained = spawned(async move {
        node.cluster().drain(&name).await?;
        view(&node, &name).await
    });
    drained.await
}

/// Have a node take new work again.
#[utoipa::path(post, path = "/v1/nodes/{node}/activate", tag = "cluster", params(("node" = String, Path, description = "Name of the node")),
    responses((status = 200, body = NodeView, description = "The node as it is now"), Refusal))]
pub async fn activate(State(node): Cluster, Path(name): Path<String>) -> Answer<NodeView> {
    let (node, name) = (member(node)?, named(&name)?);
    let active = spawned(async move {
        node.cluster().activate(&name).await?;
        view(&node, &name).await
    });
    active.await
}

/// Options of removing a node.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Removal {
    /// True: also if it is alive and has VMs. They are forgotten, not ended.
    #[serde(default)]
    force: bool,
}

/// Remove a node for good. Its VMs are forgotten.
#[utoipa::path(delete, path = "/v1/nodes/{node}", operation_id = "remove_node", tag = "cluster", params(("node" = String, Path, description = "Name of the node"), Removal),
    responses((status = 200, body = NodeView, description = "The node as it was"), Refusal))]
pub async fn remove(
    State(node): Cluster,
    Path(name): Path<String>,
    Query(removal): Query<Removal>,
) -> Answer<NodeView> {
    let (node, name) = (member(node)?, named(&name)?);
    let was = view(&node, &name).await?;
    let force = match removal.force {
        true => Force::Yes,
        false => Force::No,
    };
    // Spawned: its VMs are forgotten one after the other, and once it is gone it cannot be asked for again.
    let removed = spawned(async move { node.cluster().remove(&name, force).await });
    removed.await.map(|()| was)
}

/// List what users have of the cluster, and may have.
#[utoipa::path(get, path = "/v1/quotas", tag = "cluster",
    responses((status = 200, body = Vec<QuotaView>, description = "Users with VMs or a quota, by name"), Refusal))]
pub async fn quotas(State(node): Cluster) -> Answer<Vec<QuotaView>> {
    Ok(Json(member(node)?.cluster().quotas().await?))
}

/// Say what a user may have of the cluster. Not over the network.
#[utoipa::path(post, path = "/v1/quotas/{user}", tag = "cluster", params(("user" = String, Path, description = "Name of the user's token")),
    request_body = QuotaRequest,
    responses((status = 200, body = Vec<QuotaView>, description = "Every user's"), Refusal))]
pub async fn set_quota(
    State(node): Cluster,
    Path(user): Path<String>,
    Input(request): Input<QuotaRequest>,
) -> Answer<Vec<QuotaView>> {
    let node = member(node)?;
    let set = spawned(async move {
        node.cluster().set_quota(&user, request.vcpus).await?;
        node.cluster().quotas().await
    });
    Ok(Json(set.await?))
}

fn named(name: &str) -> Result<NodeName, Refusal> {
    name.parse().map_err(|error: forkyard_types::InvalidId| {
        Refusal::new(ErrorKind::Invalid, &error.to_string())
    })
}

async fn view(node: &Node, name: &NodeName) -> Answer<NodeView> {
    let nodes = node.cluster().nodes().await?;
    let found = nodes.into_iter().find(|view| view.name == *name);
    let no_such = || ClusterError::NoSuchNode { node: name.clone() };
    Ok(Json(found.ok_or_else(no_such)?))
}
