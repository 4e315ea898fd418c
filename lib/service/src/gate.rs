//! No request comes in over the network without a token, but those of the nodes of this
//! one's cluster, by their certificates, and hosts that were invited to become
//! nodes, by their invitations. A request is judged by its head: the body of
//! one that is refused is thrown away.
//!
//! Credentials that hold are never refused for what their address sent before. Answers to
//! others come late, once their address has failed too often.

use crate::{
    counts,
    doors::{Party, Visit},
    reply::Refusal,
    websocket,
};
use axum::{
    extract::{Extension, Request, State},
    http::{HeaderName, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use forkyard_api_client::USER;
use forkyard_auth::Access;
use forkyard_cluster::Cluster;
use forkyard_tls::Fingerprint;
use forkyard_types::{ErrorKind, NodeName};
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Path at which a host that was invited asks to be let in.
pub const JOIN: &str = "/v1/join";

/// Time after which a client may find a place again.
const FULL: Duration = Duration::from_secs(1);

/// Peer of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionPeer {
    /// Address of the peer.
    pub address: SocketAddr,
    /// The certificate it has shown, if any: one that this node's cluster's
    /// authority has signed.
    pub certificate: Option<Fingerprint>,
}

/// Origin of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Root on this host.
    Host,
    /// User with the token of this name.
    User(String),
    /// Another node, on behalf of a user of that name, or of its root.
    Node(NodeName, Option<String>),
    /// A host with an invitation, which may join and nothing else.
    Guest,
}

impl Asker {
    /// Tells whether a node has passed the request on.
    pub fn is_node(&self) -> bool {
        matches!(self, Self::Node(..))
    }

    /// Returns the user whose quota the request counts against.
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::User(user) | Self::Node(_, Some(user)) => Some(user),
            Self::Host | Self::Node(_, None) | Self::Guest => None,
        }
    }
}

/// A user's name as [`USER`] bears it.
fn read(text: &str) -> Option<String> {
    let pairs = text.as_bytes().chunks(2);
    let bytes = pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}

/// Data that the decision on a request needs.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The tokens.
    pub access: Arc<Access>,
    /// The cluster, if there is one.
    pub cluster: Option<Cluster>,
}

/// Passes on what may come in, and answers the rest.
pub async fn judge(
    State(gate): State<Gate>,
    Extension(peer): Extension<ConnectionPeer>,
    Extension(visit): Extension<Arc<Visit>>,
    mut request: Request,
    next: Next,
) -> Response {
    let (path, address) = (request.uri().path(), peer.address.ip());
    // Of failures before this one.
    let delay = gate.access.delay(address, Instant::now());
    let asker = match gate.asker(peer, path, &request) {
        Ok(asker) => asker,
        Err(refusal) => {
            sleep(delay).await;
            return refusal.into_response();
        }
    };
    tracing::debug!(peer = %peer.address, ?asker, path, "request");
    let admitted = match &asker {
        Asker::User(name) => visit.admit(Party::Token(name.clone())),
        Asker::Node(..) => visit.admit(Party::Node),
        Asker::Guest | Asker::Host => Ok(()),
    };
    if let Err(full) = admitted {
        return Refusal::new(ErrorKind::Exhausted, &full.to_string())
            .hinting("end other requests first: `logs --follow`, say")
            .retrying(FULL)
            .into_response();
    }
    let invited = asker == Asker::Guest;
    request.extensions_mut().insert(asker);
    if !invited {
        return next.run(request).await;
    }
    // Each costs a question to etcd: it is put late, but put.
    sleep(delay).await;
    let response = next.run(request).await;
    if !response.status().is_success() {
        gate.access.charge(address, Instant::now());
    }
    response
}

impl Gate {
    fn asker(&self, peer: ConnectionPeer, path: &str, request: &Request) -> Result<Asker, Refusal> {
        let header = |name| request.headers().get(name)?.to_str().ok();
        if let Some(certificate) = &peer.certificate {
            let known = self.cluster.as_ref();
            let node = known.and_then(|cluster| cluster.who(certificate));
            return match node {
                Some(node) => Ok(Asker::Node(
                    node,
                    header(HeaderName::from_static(USER)).and_then(read),
                )),
                None => Err(Refusal::new(
                    ErrorKind::Forbidden,
                    "this certificate is of no node of the cluster, or of one that was removed",
                )),
            };
        }
        let address = peer.address.ip();
        if path == JOIN && self.cluster.is_some() {
            return Ok(Asker::Guest);
        }
        let token = header(header::AUTHORIZATION).and_then(forkyard_auth::bearer);
        let token = token.or_else(|| websocket::offered_token(request.headers()));
        match self
            .access
            .admit(address, token, crate::now(), Instant::now())
        {
            Ok(token) => Ok(Asker::User(token.name)),
            Err(refused) => {
                tracing::info!(peer = %peer.address, error = &refused as &dyn std::error::Error, "not let in");
                counts::not_let_in(&refused);
                Err(refused.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_name_is_read_from_a_header() {
        for (text, name) in [
            ("6369", "ci"),
            ("", ""),
            ("c3a42f20f09fa680", "ä/ \u{1F980}"),
        ] {
            assert_eq!(read(text).as_deref(), Some(name));
        }
        for wrong in ["zz", "ff"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
