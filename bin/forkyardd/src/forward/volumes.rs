//! Requests about a volume that is at home at another node.
//!
//! Passed on to that node, but for those that are about what is here: to bring it here, to promote or remove
//! the copy that is here, or to make a file of this host's.

use super::{Passed, not_reached, pass_on};
use crate::{gate::Asker, http::Shared, reply::Refusal};
use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use forkyard_cluster::Cluster;
use forkyard_service::volume_way::VolumeWay;
use forkyard_types::{ErrorKind, NodeName};

/// Passes a request about a volume on to its node.
pub(super) async fn to_its_node(
    shared: &Shared,
    cluster: &Cluster,
    asker: &Asker,
    request: Request,
) -> Passed {
    let rest = request.uri().path().strip_prefix("/v1/volumes/");
    let (Some(rest), Asker::Host) = (rest, asker) else {
        return Passed::Here(request);
    };
    let (name, what) = rest.split_once('/').unwrap_or((rest, ""));
    let has_copy = shared.host.has_copy(name).unwrap_or(false);
    let way = VolumeWay::of(request.method(), what, has_copy);
    if way == VolumeWay::Here {
        return Passed::Here(request);
    }
    let node = match shared.host.volume_elsewhere(name).await {
        Ok(Some(node)) => node,
        Ok(None) => return Passed::Here(request),
        Err(_) if way == VolumeWay::ThereOrCopy => return Passed::Here(request),
        Err(error) => return Passed::Answered(Refusal::from(error).into_response()),
    };
    if way == VolumeWay::Nowhere {
        let text = format!("volume {name} is at home at node {node}: the file would be made there");
        let refusal = Refusal::new(ErrorKind::Conflict, &text)
            .hinting("`forkyard volume bring` moves it here; or export it on that node");
        return Passed::Answered(refusal.into_response());
    }
    let client = match node.parse::<NodeName>() {
        Ok(node) => cluster.client(&node).map(|client| (node, client)),
        Err(_) => return Passed::Here(request),
    };
    match client {
        Ok((node, client)) => {
            // What is asked of a copy has no body: it can be asked here as well.
            let again = way == VolumeWay::ThereOrCopy;
            let (head, body) = request.into_parts();
            let here = again.then(|| Request::from_parts(head.clone(), Body::empty()));
            let request = Request::from_parts(head, body);
            match (pass_on(&client, asker, request).await, here) {
                (Ok(answer), _) => Passed::Answered(answer),
                (Err(_), Some(here)) => Passed::Here(here),
                (Err(error), None) => Passed::Answered(unreached(&node, &error)),
            }
        }
        Err(_) if way == VolumeWay::ThereOrCopy => Passed::Here(request),
        Err(error) => Passed::Answered(Refusal::from(error).into_response()),
    }
}

fn unreached(node: &NodeName, error: &forkyard_api_client::ClientError) -> Response {
    not_reached(node, error).into_response()
}
