//! Admission of a host as a node: it founds the cluster, or a node that keeps
//! the authority lets it in.
//!
//! ```text
//! identity kept, and still a member --> go on as that node
//! an invitation                     --> ask the node that gave it, keep what it signed
//! nothing, and etcd is empty        --> found a cluster, and be its first node
//! nothing, and there is a cluster   --> refused
//! ```

use crate::{
    ClusterError, NodeAddresses, Token,
    records::{Founded, Invited, Member},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use forkyard_api_client::Client;
use forkyard_etcd::{Compare, Endpoint, Etcd, KeyEntry, Keys, Op, Txn};
use forkyard_placement::Book;
use forkyard_tls::{Authority, NodeIdentity, NodeKey, Trust};
use forkyard_types::{JoinRequest, Joined, NodeName, TicketId};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// File in which a node keeps the etcd that it was told of.
const ETCD: &str = "etcd.json";

pub(crate) fn to_json(key: &str, value: &impl Serialize) -> Result<Vec<u8>, ClusterError> {
    serde_json::to_vec(value).map_err(|source| ClusterError::Record {
        key: key.to_owned(),
        source,
    })
}

pub(crate) fn from_json<T: DeserializeOwned>(entry: &KeyEntry) -> Result<T, ClusterError> {
    serde_json::from_slice(&entry.value).map_err(|source| ClusterError::Record {
        key: entry.key.clone(),
        source,
    })
}

pub(crate) fn authority_key(book: &Book) -> String {
    book.key("authority", "founded")
}

/// Tells whether a host that has this folder is, or was, a node of a cluster.
pub fn is_of_node(folder: &Path) -> bool {
    folder.join(ETCD).exists()
}

/// The etcd that a node was told of when it joined.
pub(crate) fn kept_endpoints(folder: &Path) -> Option<Vec<Endpoint>> {
    let text = fs::read(folder.join(ETCD)).ok()?;
    let words: Vec<String> = serde_json::from_slice(&text).ok()?;
    words.iter().map(|word| word.parse().ok()).collect()
}

pub(crate) fn keep_endpoints(folder: &Path, endpoints: &[Endpoint]) -> Result<(), ClusterError> {
    let words: Vec<_> = endpoints.iter().map(ToString::to_string).collect();
    let path = folder.join(ETCD);
    fs::write(&path, to_json(ETCD, &words)?).map_err(|source| ClusterError::Io {
        what: "write",
        path,
        source,
    })
}

pub(crate) async fn founded(etcd: &Etcd, book: &Book) -> Result<Option<Founded>, ClusterError> {
    let entry = etcd.get(&authority_key(book)).await?;
    entry.as_ref().map(from_json).transpose()
}

/// Founds the cluster with this host as its first node, or finds that there is
/// one.
pub(crate) async fn found(
    etcd: &Etcd,
    book: &Book,
    folder: &Path,
    name: &NodeName,
    reach: NodeAddresses,
) -> Result<(), ClusterError> {
    if let Some(there) = founded(etcd, book).await? {
        return Err(ClusterError::NotInvited {
            keeper: there.keeper,
        });
    }
    let authority = Authority::found(folder)?;
    let key = NodeIdentity::key(folder)?;
    let (certificate, fingerprint) = authority.sign(&key, name.as_str(), reach.api.ip())?;
    let founded_ = Founded {
        authority: authority.certificate().to_owned(),
        keeper: name.clone(),
    };
    let member = Member {
        fingerprint: fingerprint.to_string(),
        reach,
        joined: now(),
    };
    let (root, node) = (authority_key(book), book.key("nodes", name.as_str()));
    let outcome = etcd.txn(Txn {
        when: vec![Compare::Absent(Keys::One(root.clone()))],
        then: vec![
            Op::Put(root.clone(), to_json(&root, &founded_)?, None),
            Op::Put(node.clone(), to_json(&node, &member)?, None),
        ],
        otherwise: Vec::new(),
    });
    if !outcome.await?.held {
        Authority::forget(folder)?;
        let there = founded(etcd, book).await?;
        let keeper = there.map_or_else(|| name.clone(), |there| there.keeper);
        return Err(ClusterError::NotInvited { keeper });
    }
    NodeIdentity::keep(folder, &certificate, authority.certificate())?;
    tracing::info!(node = %name, "cluster founded");
    Ok(())
}

/// Asks the node that gave an invitation to let this host in, and keeps what
/// it gets. The cluster's etcd.
pub(crate) async fn join(
    token: &Token,
    folder: &Path,
    name: &NodeName,
    reach: NodeAddresses,
) -> Result<Vec<Endpoint>, ClusterError> {
    let key = NodeIdentity::key(folder)?;
    let request = JoinRequest {
        invitation: token.id.clone(),
        secret: token.secret.clone(),
        name: name.clone(),
        api: reach.api,
        pages: reach.pages,
        tunnel: reach.tunnel,
        key: BASE64_STANDARD.encode(key.point()),
    };
    let pinned = Trust::Pinned(token.certificate).client()?;
    // The host that presents that certificate is the one; no name is looked at.
    let keeper = Client::node(token.api, name.as_str(), pinned);
    let joined: Joined = keeper
        .post("/v1/join", &request)
        .await
        .map_err(ClusterError::Join)?;
    let etcd: Result<Vec<Endpoint>, _> = joined.etcd.iter().map(|word| word.parse()).collect();
    let etcd = etcd.map_err(|_| ClusterError::NoEtcd)?;
    Authority::forget(folder)?;
    keep_endpoints(folder, &etcd)?;
    NodeIdentity::keep(folder, &joined.certificate, &joined.authority)?;
    tracing::info!(node = %name, "joined the cluster");
    Ok(etcd)
}

/// Writes down an invitation.
pub(crate) async fn invite(
    etcd: &Etcd,
    book: &Book,
    length: Duration,
) -> Result<(String, String), ClusterError> {
    let (id, secret) = (TicketId::random().to_string(), Token::secret()?);
    let key = book.key("invitations", &id);
    let invited = Invited {
        hash: Token::hash(&secret).to_hex().to_string(),
    };
    let lease = etcd.grant(length).await?;
    etcd.put(&key, to_json(&key, &invited)?, Some(lease))
        .await?;
    Ok((id, secret))
}

/// Lets in a host that was invited: its invitation is used up, and its record
/// written, at once.
pub(crate) async fn admit(
    etcd: &Etcd,
    book: &Book,
    authority: &Authority,
    request: JoinRequest,
) -> Result<Joined, ClusterError> {
    let key = book.key("invitations", &request.invitation);
    let entry = etcd.get(&key).await?.ok_or(ClusterError::NotKnown)?;
    let invited: Invited = from_json(&entry)?;
    // blake3 compares its hashes in constant time.
    let kept = blake3::Hash::from_hex(&invited.hash).map_err(|_| ClusterError::NotKnown)?;
    if Token::hash(&request.secret) != kept {
        return Err(ClusterError::NotKnown);
    }
    let point = BASE64_STANDARD.decode(&request.key).unwrap_or_default();
    let public = NodeKey::new(point)?;
    let name = request.name;
    let (certificate, fingerprint) = authority.sign(&public, name.as_str(), request.api.ip())?;
    let member = Member {
        fingerprint: fingerprint.to_string(),
        reach: NodeAddresses {
            api: request.api,
            pages: request.pages,
            tunnel: request.tunnel,
        },
        joined: now(),
    };
    let node = book.key("nodes", name.as_str());
    let outcome = etcd.txn(Txn {
        when: vec![
            Compare::Unchanged(key.clone(), entry.changed),
            Compare::Absent(Keys::One(node.clone())),
        ],
        then: vec![
            Op::Delete(Keys::One(key)),
            Op::Put(node.clone(), to_json(&node, &member)?, None),
        ],
        otherwise: vec![Op::Get(Keys::One(node))],
    });
    let outcome = outcome.await?;
    if !outcome.held {
        return Err(match outcome.found().concat().is_empty() {
            true => ClusterError::NotKnown,
            false => ClusterError::NameTaken { node: name },
        });
    }
    tracing::info!(node = %name, "let in");
    Ok(Joined {
        authority: authority.certificate().to_owned(),
        certificate,
        etcd: etcd.endpoints().iter().map(ToString::to_string).collect(),
    })
}

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
