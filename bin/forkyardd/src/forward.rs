//! A request may come to any node: what is about a VM of another is passed on
//! to it, and its answer back, as they come.
//!
//! ```text
//! /v1/vms/VM…  VM is here --------------------------> handled here
//!              not here, and another node has told of it --> passed on to that
//!              not known to any node ---------------------> handled here: not found
//! ```
//!
//! A VM that is just being handed over is waited for. What comes from a node is never passed on:
//! there are no loops. If the VM has left meanwhile, that node is told so (421), and looks again.

mod volumes;

use crate::{
    gate::Asker,
    http::Shared,
    reply::Refusal,
    upgrade::{self, Carrier},
};
use axum::{
    body::Body,
    extract::{Extension, Request, State},
    http::{Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use forkyard_api_client::{Client, ClientError, Upgrade};
use forkyard_cluster::{Cluster, ClusterError};
use forkyard_node::{ACTIVATIONS, CLONES, MIGRATIONS};
use forkyard_service::{changes, replay::Replay, strip, websocket};
use forkyard_types::{ErrorKind, NodeName};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tokio::{io::copy_bidirectional, time::sleep};

/// Tries to find a VM that moves while it is asked for, and the time between them.
const TRIES: usize = 50;
const AGAIN: Duration = Duration::from_millis(20);

/// Handles a request here or passes it on.
pub async fn route(
    State(shared): State<Shared>,
    Extension(asker): Extension<Asker>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let vm = path.strip_prefix("/v1/vms/").map(|rest| {
        let (vm, what) = rest.split_once('/').unwrap_or((rest, ""));
        (vm.to_owned(), what.to_owned())
    });
    // Asked for itself, a VM is shown as moving.
    if let Some((vm, what)) = &vm
        && !what.is_empty()
    {
        shared.host.settled(vm).await;
        if asker.is_node()
            && let Some(to) = is_at(&shared, vm)
        {
            return misdirected(vm, &to);
        }
    }
    let Some(node) = &shared.cluster else {
        return next.run(request).await;
    };
    let request = match volumes::to_its_node(&shared, node.cluster(), &asker, request).await {
        Passed::Answered(response) => return response,
        Passed::Here(request) => request,
    };
    let request = match &vm {
        Some((vm, _)) if !asker.is_node() => {
            match to_its_node(&shared, node.cluster(), &asker, vm, request).await {
                Passed::Answered(response) => return response,
                Passed::Here(request) => request,
            }
        }
        Some(_) | None => request,
    };
    let what = vm.as_ref().map(|(_, what)| what.as_str());
    let new_work = request.method() == Method::POST
        && ([ACTIVATIONS, CLONES, MIGRATIONS].contains(&request.uri().path())
            || matches!(what, Some("fork" | "checkpoint" | "migrate")));
    if new_work && let Err(error) = node.cluster().may_act() {
        return Refusal::from(error).into_response();
    }
    let changes = changes(request.method(), request.uri().path());
    let response = next.run(request).await;
    if changes && response.status().is_success() {
        // So that a client that asks another node next finds it as it is now.
        node.report(&shared.host).await;
    }
    response
}

/// Outcome of looking for the node of a VM or of a volume.
pub(super) enum Passed {
    Answered(Response),
    /// Here, or nowhere.
    Here(Request),
}

/// Passes a request about a VM on to its node; again if the VM has left that node meanwhile and
/// little of the request's body had come.
async fn to_its_node(
    shared: &Shared,
    cluster: &Cluster,
    asker: &Asker,
    vm: &str,
    request: Request,
) -> Passed {
    let is_here = || shared.host.find(vm).is_ok_and(|vm| vm.host.is_none());
    if is_here() {
        return Passed::Here(request);
    }
    let (head, body) = request.into_parts();
    let (body, mut tries) = (Replay::new(body), TRIES);
    loop {
        let Some(sending) = body.send() else {
            let why = format!("{vm} moved while the request for it was sent");
            let refusal = Refusal::new(ErrorKind::Conflict, &why).hinting("send it again");
            return Passed::Answered(refusal.into_response());
        };
        let request = Request::from_parts(head.clone(), Body::new(sending));
        if is_here() {
            return Passed::Here(request);
        }
        // Where it went from here is known here before the cluster is told.
        let known = is_at(shared, vm).and_then(|host| host.parse().ok());
        let (name, client) = match elsewhere(cluster, vm, known).await {
            Ok(Some(found)) => found,
            Ok(None) => return Passed::Here(request),
            Err(error) => return Passed::Answered(Refusal::from(error).into_response()),
        };
        match pass_on(&client, asker, request).await {
            Ok(answer) if answer.status() == StatusCode::MISDIRECTED_REQUEST && tries > 0 => {
                tries -= 1;
                sleep(AGAIN).await;
            }
            Ok(answer) => return Passed::Answered(answer),
            Err(error) => return Passed::Answered(not_reached(&name, &error).into_response()),
        }
    }
}

/// The other host that a VM of this one is at, as far as is known here.
fn is_at(shared: &Shared, vm: &str) -> Option<String> {
    shared.host.find(vm).ok()?.host
}

/// Tells a node that a VM has left this one (RFC 9110, 15.5.20): its request is for the VM's host.
fn misdirected(vm: &str, host: &str) -> Response {
    let why = format!("{vm} runs on host {host}");
    let refusal = Refusal::new(ErrorKind::Conflict, &why).hinting("ask the daemon there");
    let mut response = refusal.into_response();
    *response.status_mut() = StatusCode::MISDIRECTED_REQUEST;
    response
}

async fn elsewhere(
    cluster: &Cluster,
    vm: &str,
    known: Option<NodeName>,
) -> Result<Option<(NodeName, Client)>, ClusterError> {
    let found = cluster.find(vm).await?.map(|found| found.node);
    let node = found.filter(|node| node != cluster.name()).or(known);
    let client = node.map(|node| Ok((node.clone(), cluster.client(&node)?)));
    client.transpose()
}

/// Passes a request on to another node on behalf of its asker.
pub async fn pass_on(
    client: &Client,
    asker: &Asker,
    request: Request,
) -> Result<Response, ClientError> {
    let headers = request.headers();
    let upgraded = upgrade::asks_for_tcp(headers) || websocket::is_asked_for(headers);
    if upgraded && request.method() == Method::GET {
        return connect(client, asker, request).await;
    }
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut passed = hyper::Request::builder().method(head.method).uri(path);
    for name in [header::CONTENT_TYPE, header::CONTENT_LENGTH, header::ACCEPT] {
        if let Some(value) = head.headers.get(&name) {
            passed = passed.header(name, value);
        }
    }
    let response = on_behalf_of(client, asker).pass_on(passed, body).await?;
    Ok(answered(response))
}

fn answered(response: hyper::Response<Incoming>) -> Response {
    let (mut head, body) = response.into_parts();
    strip(&mut head.headers);
    Response::from_parts(head, Body::new(body))
}

fn on_behalf_of(client: &Client, asker: &Asker) -> Client {
    match asker.user() {
        Some(user) => client.clone().on_behalf_of(user),
        None => client.clone(),
    }
}

/// Connects to a port or a command of a guest on another node, and passes bytes on until both
/// directions have ended, or one has broken.
async fn connect(
    client: &Client,
    asker: &Asker,
    mut request: Request,
) -> Result<Response, ClientError> {
    let carrier = request.extensions().get::<Carrier>().cloned();
    let upgrade = hyper::upgrade::on(&mut request);
    let path = request.uri().path_and_query();
    let path = path.map_or("/", |path| path.as_str()).to_owned();
    let wanted = websocket::asked_elsewhere(request.headers());
    let (headers, mut there) = match on_behalf_of(client, asker).upgrade(&path, wanted).await? {
        Upgrade::Taken(headers, there) => (headers, there),
        Upgrade::Refused(refused) => return Ok(answered(refused)),
    };
    tokio::spawn(async move {
        // Counted until its end.
        let _carrier = carrier;
        let Ok(here) = upgrade.await else { return };
        let mut here = TokioIo::new(here);
        if let Err(error) = copy_bidirectional(&mut here, &mut there).await {
            tracing::debug!(%error, "a connection to a guest on another node broke");
        }
    });
    let mut response = upgrade::switching();
    *response.headers_mut() = headers;
    Ok(response)
}

/// The node that has it does not answer, though it holds its lease.
pub fn not_reached(node: &NodeName, error: &ClientError) -> Refusal {
    tracing::warn!(%node, error = error as &dyn std::error::Error, "not passed on");
    let text = format!("node {node} has it, and was not reached: {error}");
    Refusal::new(ErrorKind::Timeout, &text)
        .hinting("try again; `forkyard node ls` tells whether it is lost")
}
