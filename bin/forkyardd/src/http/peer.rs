//! Requests of other hosts to this one.

use super::{Answer, Input, Path, Query, Raw, Shared, ports, spawned, substrates};
use crate::{
    gate::Asker,
    reply::Refusal,
    upgrade::{self, Carrier},
};
use axum::{
    Json,
    body::Body,
    extract::{FromRequestParts, Request, State},
    http::request::Parts,
    response::Response,
};
use forkyard_fork::{Host, Trusted};
use forkyard_node::Node;
use forkyard_types::{
    ActivateResponse, ApiError, ErrorKind, ForkId, PeerActivateRequest, PeerFamiliesRequest,
    PeerFamiliesResponse, PeerForkRequest, PeerForkResponse, PeerHold, PeerMigrated, PeerMigration,
    PeerSupply, PeerTicketRequest, PeerTicketResponse, PeerVolumeAnswer, PeerVolumeStep,
    SentVolume,
};
use futures::StreamExt;
use hyper_util::rt::TokioIo;
use std::sync::Arc;

/// A host that may ask: one with a token or, in a cluster, a node. To be taken before
/// the body, which is not read if it may not.
#[derive(Debug)]
pub struct Neighbour(Asker);

impl FromRequestParts<Shared> for Neighbour {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Refusal> {
        match parts.extensions.get::<Asker>() {
            Some(asker) if shared.cluster.is_none() || asker.is_node() => Ok(Self(asker.clone())),
            Some(_) | None => Err(Refusal::new(
                ErrorKind::Forbidden,
                "this host is a node of a cluster: only its nodes may ask for this",
            )),
        }
    }
}

/// Make clones of an instant of another host's VM. Their pages are fetched from
/// there as they are touched. At most 64 MiB of request. In a cluster its nodes
/// alone may ask: they have reserved the room.
#[utoipa::path(post, path = "/v1/peer/clones", tag = "peers", request_body = PeerForkRequest,
    responses((status = 200, body = PeerForkResponse, description = "One entry a clone: it, or why there is none"), Refusal))]
pub async fn clones(
    State(host): State<Arc<Host>>,
    State(node): State<Option<Node>>,
    Neighbour(asker): Neighbour,
    Input(request): Input<PeerForkRequest>,
) -> Answer<PeerForkResponse> {
    if let (Some(node), Some(user)) = (node, asker.user()) {
        node.cluster().own(request.handout.family.id, user.into());
    }
    // Spawned: a host that goes away must not leave half a clone.
    Ok(Json(
        spawned(async move { host.clone_from_peer(request).await }).await?,
    ))
}

/// Make VMs of a substrate of another host. Their pages are fetched from there. At most 64 MiB of request.
/// In a cluster its nodes alone may ask: they have reserved the room.
#[utoipa::path(post, path = "/v1/peer/activations", operation_id = "activate_for_peer", tag = "peers", request_body = PeerActivateRequest,
    responses((status = 200, body = ActivateResponse, description = "A VM or an error for each VM wanted"), Refusal))]
pub async fn activations(
    State(host): State<Arc<Host>>,
    State(node): State<Option<Node>>,
    Neighbour(asker): Neighbour,
    Input(request): Input<PeerActivateRequest>,
) -> Answer<ActivateResponse> {
    let trusted = match asker.is_node() {
        true => Trusted::Yes,
        false => Trusted::No,
    };
    // Spawned: a host that goes away must not leave half a VM.
    let made = spawned(async move {
        let made = host.activate_from_peer(request, trusted).await;
        if let (Some(node), Ok(made)) = (node, &made) {
            let user = asker.user().map(str::to_owned);
            substrates::own_those_here(&node, user, &made.vms);
        }
        made
    });
    Ok(Json(made.await?))
}

/// Take a step of a VM's way to this host, from the one that it leaves. At most 64 MiB of
/// request. In a cluster its nodes alone may ask: they have reserved the room.
#[utoipa::path(post, path = "/v1/peer/migrations", tag = "peers", request_body = PeerMigration,
    responses((status = 200, body = PeerMigrated, description = "Stage of the migration"), Refusal))]
pub async fn migrations(
    State(host): State<Arc<Host>>,
    State(node): State<Option<Node>>,
    Neighbour(asker): Neighbour,
    Input(step): Input<PeerMigration>,
) -> Answer<PeerMigrated> {
    if let (Some(node), Some(user), PeerMigration::Prepare(prepare)) = (node, asker.user(), &step) {
        node.cluster().own(prepare.first.family.id, user.into());
    }
    // Spawned: a host that goes away must not leave half a VM.
    Ok(Json(
        spawned(async move { host.receive(step).await }).await?,
    ))
}

/// Take a snapshot of a volume that comes with a VM: the body is a stream as `forkyard-blockd
/// send` writes it. In a cluster its nodes alone may ask.
#[utoipa::path(put, path = "/v1/peer/migrations/{migration}/volume", tag = "peers",
    params(("migration" = ForkId, Path, description = "The migration"), SentVolume),
    request_body(content = Raw, content_type = "application/octet-stream"),
    responses((status = 200, body = PeerMigrated, description = "All of it is there, durably"), Refusal))]
pub async fn volume(
    State(host): State<Arc<Host>>,
    _: Neighbour,
    Path(migration): Path<ForkId>,
    Query(sent): Query<SentVolume>,
    body: Body,
) -> Answer<PeerMigrated> {
    // Not spawned: dropped with the connection, nothing is taken of it.
    let incoming = host.receive_volume(migration, sent)?;
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| {
            tracing::info!(%error, %migration, "a volume broke off");
            Refusal::new(ErrorKind::Invalid, "the volume did not come in whole")
        })?;
        if !incoming.push(piece).await {
            break;
        }
    }
    Ok(Json(incoming.finish().await?))
}

/// Follow the commands in a VM that has come to this host, whose clients are those of the host that
/// asks: the one that it came from.
///
/// The request has `Connection: Upgrade` and `Upgrade: tcp`. After the answer, 101, the connection
/// carries frames of the link between host and agent. In a cluster its nodes alone may ask.
#[utoipa::path(get, path = "/v1/peer/migrations/{migration}/commands", operation_id = "follow_commands", tag = "peers",
    params(("migration" = ForkId, Path, description = "The migration")),
    responses((status = 101, description = "Connected"),
        (status = 426, body = ApiError, description = "The request asks for no upgrade to `tcp`"), Refusal))]
pub async fn commands(
    State(host): State<Arc<Host>>,
    _: Neighbour,
    Path(migration): Path<ForkId>,
    mut request: Request,
) -> Result<Response, Refusal> {
    if !upgrade::asks_for_tcp(request.headers()) {
        return Ok(ports::not_asked_for());
    }
    let carrier = request.extensions().get::<Carrier>().cloned();
    let upgrade = hyper::upgrade::on(&mut request);
    let commands = host.commands(migration)?;
    tokio::spawn(async move {
        // Counted until its end.
        let _carrier = carrier;
        match upgrade.await {
            Ok(there) => commands.carry(TokioIo::new(there)).await,
            Err(error) => tracing::info!(%error, "a host went away as it was to follow commands"),
        }
    });
    Ok(upgrade::switching())
}

/// Fetch blocks that a volume lacks from the host that asks, where it came from.
///
/// The request has `Connection: Upgrade` and `Upgrade: tcp`. After the answer, 101, the connection
/// carries questions for blocks, and what the host that asked answers them by. In a cluster its nodes
/// alone may ask.
#[utoipa::path(get, path = "/v1/peer/volumes/{volume}/supply", tag = "peers",
    params(("volume" = String, Path, description = "Name of the volume"), PeerSupply),
    responses((status = 101, description = "Connected"),
        (status = 404, body = ApiError, description = "Nothing of it is lacking, durably"),
        (status = 426, body = ApiError, description = "The request asks for no upgrade to `tcp`"), Refusal))]
pub async fn supply(
    State(host): State<Arc<Host>>,
    _: Neighbour,
    Path(volume): Path<String>,
    Query(wanted): Query<PeerSupply>,
    mut request: Request,
) -> Result<Response, Refusal> {
    if !upgrade::asks_for_tcp(request.headers()) {
        return Ok(ports::not_asked_for());
    }
    let carrier = request.extensions().get::<Carrier>().cloned();
    let upgrade = hyper::upgrade::on(&mut request);
    let line = host.supplied(&volume, wanted).await?;
    tokio::spawn(async move {
        // Counted until its end.
        let _carrier = carrier;
        let carried = match upgrade.await {
            Ok(there) => line.carry(TokioIo::new(there)).await,
            Err(error) => Err(std::io::Error::other(error)),
        };
        if let Err(error) = carried {
            tracing::debug!(%error, volume, "a line to a host that supplies blocks ended");
        }
    });
    Ok(upgrade::switching())
}

/// Take a step of a volume's way from host to host. In a cluster its nodes alone may ask.
#[utoipa::path(post, path = "/v1/peer/volumes", operation_id = "volume_step", tag = "peers", request_body = PeerVolumeStep,
    responses((status = 200, body = PeerVolumeAnswer, description = "Stage of the move"), Refusal))]
pub async fn volumes(
    State(host): State<Arc<Host>>,
    Neighbour(asker): Neighbour,
    Input(mut step): Input<PeerVolumeStep>,
) -> Answer<PeerVolumeAnswer> {
    // A node is known by its certificate, whatever it says. Any other host that asks is looked for among
    // those that are known here.
    let node = match &asker {
        Asker::Node(node, _) => Some(node.to_string()),
        Asker::Host | Asker::User(_) | Asker::Guest => None,
    };
    match (&mut step, node) {
        (PeerVolumeStep::Give(give), node) => give.to = node,
        (PeerVolumeStep::Prepare(prepare), Some(node)) => prepare.from = node,
        (
            PeerVolumeStep::Prepare(_)
            | PeerVolumeStep::Land(_)
            | PeerVolumeStep::End(_)
            | PeerVolumeStep::Awaits(_),
            _,
        ) => {}
    }
    // Spawned: a host that goes away must not leave half a move.
    Ok(Json(
        spawned(async move { host.take_volume_step(step).await }).await?,
    ))
}

/// Hold a copy of a volume of the host that asks, flush by flush.
///
/// The request has `Connection: Upgrade` and `Upgrade: tcp`. After the answer, 101, the connection
/// carries snapshots one way, and which of them are durable here the other way. In a cluster its nodes
/// alone may ask.
#[utoipa::path(get, path = "/v1/peer/volumes/{volume}/hold", operation_id = "hold_volume", tag = "peers",
    params(("volume" = String, Path, description = "Name of the volume"), PeerHold),
    responses((status = 101, description = "Connected"),
        (status = 426, body = ApiError, description = "The request asks for no upgrade to `tcp`"), Refusal))]
pub async fn hold(
    State(host): State<Arc<Host>>,
    Neighbour(asker): Neighbour,
    Path(volume): Path<String>,
    Query(mut wanted): Query<PeerHold>,
    mut request: Request,
) -> Result<Response, Refusal> {
    if !upgrade::asks_for_tcp(request.headers()) {
        return Ok(ports::not_asked_for());
    }
    let carrier = request.extensions().get::<Carrier>().cloned();
    let upgrade = hyper::upgrade::on(&mut request);
    // A node is known by its certificate, whatever it calls itself: it has its own copies alone.
    if let Asker::Node(node, _) = asker {
        wanted.from = node.to_string();
    }
    // Not spawned: the next line goes on with the copy.
    let line = host.hold_copy(&volume, wanted).await?;
    tokio::spawn(async move {
        // Counted until its end.
        let _carrier = carrier;
        let carried = match upgrade.await {
            Ok(there) => line.carry(TokioIo::new(there)).await,
            Err(error) => Err(std::io::Error::other(error)),
        };
        if let Err(error) = carried {
            tracing::debug!(%error, volume, "a line of a host whose volume is held here ended");
        }
    });
    Ok(upgrade::switching())
}

/// Hear where the places of families are that this host was lent some of, and say how
/// it stands to them. Asked again and again, by the host that lent them; in a cluster,
/// by its nodes alone.
#[utoipa::path(post, path = "/v1/peer/families", tag = "peers", request_body = PeerFamiliesRequest,
    responses((status = 200, body = PeerFamiliesResponse, description = "One entry a family"), Refusal))]
pub async fn families(
    State(host): State<Arc<Host>>,
    _: Neighbour,
    Input(request): Input<PeerFamiliesRequest>,
) -> Answer<PeerFamiliesResponse> {
    // Spawned: what is begun of a network is to be ended.
    Ok(Json(
        spawned(async move { host.update_families(request).await }).await?,
    ))
}

/// Say how clones of another host's ticket ended that were made here, and wait for it.
/// Asked until all of them have; in a cluster, by its nodes alone.
#[utoipa::path(post, path = "/v1/peer/ticket", tag = "peers", request_body = PeerTicketRequest,
    responses((status = 200, body = PeerTicketResponse, description = "Those that have ended"), Refusal))]
pub async fn ticket(
    State(host): State<Arc<Host>>,
    _: Neighbour,
    Input(request): Input<PeerTicketRequest>,
) -> Answer<PeerTicketResponse> {
    Ok(Json(host.tell_of_ticket(request).await))
}
