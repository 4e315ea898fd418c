//! Other hosts that VMs can be forked to: nodes of the cluster, or those that an
//! operator names in a file (`forkyardd --peers`):
//!
//! ```toml
//! [peer.b]
//! url = "https://10.0.0.2:7433"
//! token = "fy_…"            # of `forkyard token create` there
//! trust = "sha256:…"        # or a file of certificates; the system's if absent
//! pages = "10.0.0.2:7434"   # its `--pages`, which guests are not to reach; if absent, port 7434 where its API is
//! ```
//!
//! It is read whenever a peer is needed, so that it can be changed at any time; what is
//! made of it, TLS above all, is kept until it has changed. It
//! holds secrets, and is refused if others than its owner may read it.

mod daemon;

use crate::tenants;
use daemon::Daemon;
use forkyard_api_client::{Client, ClientError, Place, Trust};
use forkyard_cluster::Cluster;
use forkyard_fork::{CloneRoom, FamilyNo, Granted, HERE, Homes, Lot, Neighbours, Peer};
use forkyard_types::{ApiError, ErrorKind, FamilyId, TokenSecret, VmView};
use futures::future::{BoxFuture, FutureExt, ready};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The peers of a file.
#[derive(Clone, Debug)]
pub struct PeersFile {
    path: PathBuf,
    known: Arc<Mutex<Known>>,
}

/// Peers read from the file.
#[derive(Debug, Default)]
struct Known {
    /// Of this text.
    text: String,
    listing: Listing,
    peers: BTreeMap<String, Kept>,
}

/// A peer that was needed.
#[derive(Debug)]
struct Kept {
    /// Content of the file of its certificates, if there is one.
    authorities: Option<Vec<u8>>,
    daemon: Arc<Daemon>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listing {
    #[serde(default)]
    peer: BTreeMap<String, Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    url: String,
    token: TokenSecret,
    #[serde(default)]
    trust: Option<String>,
    /// Address at which it serves pages, for guests not to reach.
    #[serde(default)]
    pages: Option<SocketAddr>,
}

/// Ports of a peer that guests are not to reach.
#[derive(Clone, Debug)]
pub struct PeerPorts {
    /// Name or address of the peer.
    pub host: String,
    /// TCP port of its API.
    pub api: u16,
    /// Address at which it serves pages, by UDP, as far as the file says.
    pub pages: Option<SocketAddr>,
}

/// The other nodes of a cluster.
#[derive(Debug)]
pub struct Nodes(pub Cluster);

impl PeersFile {
    /// The peers of the file at `path`, which need not be there yet.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            known: Arc::default(),
        }
    }

    /// Ports of all peers that guests are not to reach.
    pub fn doors(&self) -> Result<Vec<PeerPorts>, ApiError> {
        let known = self.read()?;
        let peers = known.listing.peer.values();
        let doors = peers.filter_map(|entry| match entry.url.parse::<Place>() {
            Ok(Place::Network { host, port }) => Some(PeerPorts {
                host,
                api: port,
                pages: entry.pages,
            }),
            Ok(Place::Socket(_)) | Err(_) => None,
        });
        Ok(doors.collect())
    }

    /// Reads the file, again only if its text has changed.
    fn read(&self) -> Result<MutexGuard<'_, Known>, ApiError> {
        let path = self.path.display();
        let failed = |error: &dyn Error| broken(format!("{path}: {error}"));
        let facts = fs::metadata(&self.path).map_err(|error| failed(&error))?;
        if facts.permissions().mode() & 0o077 != 0 {
            return Err(ApiError {
                hint: Some(format!("`chmod 600 {path}`")),
                ..broken(format!("{path} holds tokens, and others may read it"))
            });
        }
        let text = fs::read_to_string(&self.path).map_err(|error| failed(&error))?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.text == text {
            return Ok(known);
        }
        let listing: Listing = toml::from_str(&text).map_err(|error| failed(&error))?;
        match listing.peer.contains_key(HERE) {
            true => Err(broken(format!(
                "{path} names a peer {HERE:?}, which means the host itself"
            ))),
            false => {
                *known = Known {
                    text,
                    listing,
                    peers: BTreeMap::new(),
                };
                Ok(known)
            }
        }
    }
}

impl Neighbours for PeersFile {
    fn names(&self) -> Result<Vec<String>, ApiError> {
        Ok(self.read()?.listing.peer.keys().cloned().collect())
    }

    fn find(&self, name: &str) -> Result<Arc<dyn Peer>, ApiError> {
        let mut known = self.read()?;
        let listing = &known.listing;
        // By its name, or by its address.
        let is_at = |(_, entry): &(&String, &Entry)| match entry.url.parse::<Place>() {
            Ok(Place::Network { host, port }) => name == host || name == format!("{host}:{port}"),
            Ok(Place::Socket(_)) | Err(_) => false,
        };
        let named = listing.peer.get_key_value(name);
        let named = named.or_else(|| listing.peer.iter().find(is_at));
        let (name, entry) = named
            .map(|(name, entry)| (name.clone(), entry))
            .ok_or_else(|| {
                let known: Vec<_> = listing.peer.keys().map(String::as_str).collect();
                ApiError {
                    kind: ErrorKind::NotFound,
                    message: format!("no such peer is in {}", self.path.display()),
                    hint: Some(format!("it names: {}", known.join(", "))),
                }
            })?;
        let place = entry
            .url
            .parse::<Place>()
            .map_err(|error| broken(format!("peer {name}: {error}")))?;
        let trust = entry.trust.as_ref().map(|text| text.parse::<Trust>());
        let trust = trust.transpose();
        let trust = trust.map_err(|error| broken(format!("peer {name}: {error}")))?;
        let trust = trust.unwrap_or(Trust::System);
        let authorities = match &trust {
            // One that cannot be read is told of below.
            Trust::Authorities(path) => fs::read(path).ok(),
            Trust::Pinned(_) | Trust::System => None,
        };
        if let Some(kept) = known.peers.get(&name)
            && kept.authorities == authorities
        {
            return Ok(kept.daemon.clone());
        }
        let token = entry.token.clone();
        let client = Client::at(place, Some(token), &trust).map_err(|e| told(&e))?;
        let daemon = Arc::new(Daemon {
            name: name.clone(),
            line: client.line().into(),
            client,
            cluster: None,
        });
        let kept = Kept {
            authorities,
            daemon: daemon.clone(),
        };
        known.peers.insert(name, kept);
        Ok(daemon)
    }

    /// One that the file names no more may be named again.
    fn is_gone(&self, _: &str) -> bool {
        false
    }

    /// Each host's own records decide.
    fn homes(&self) -> Option<&dyn Homes> {
        None
    }

    /// They do not tell each other which numbers they have given.
    fn claim(&self, _: FamilyNo, _: FamilyId) -> BoxFuture<'_, Result<bool, ApiError>> {
        ready(Ok(true)).boxed()
    }

    /// Nor are they watched over.
    fn is_lost(&self, _: &str) -> bool {
        false
    }

    fn room(
        &self,
        _: VmView,
        _: Vec<Lot>,
    ) -> BoxFuture<'_, Result<Option<Box<dyn CloneRoom>>, ApiError>> {
        ready(Ok(None)).boxed()
    }

    fn room_at(
        &self,
        _: VmView,
        _: Vec<Granted>,
    ) -> BoxFuture<'_, Result<Option<Box<dyn CloneRoom>>, ApiError>> {
        ready(Ok(None)).boxed()
    }
}

impl Neighbours for Nodes {
    fn names(&self) -> Result<Vec<String>, ApiError> {
        let names = self.0.other_nodes().into_iter();
        Ok(names.map(|name| name.to_string()).collect())
    }

    fn find(&self, name: &str) -> Result<Arc<dyn Peer>, ApiError> {
        let node = match self.0.node_at(name) {
            Some(node) => node,
            None => name
                .parse()
                .map_err(|error| invalid(format!("{name:?} is no node: {error}")))?,
        };
        let client = self.0.client(&node).map_err(|error| error.to_api())?;
        Ok(Arc::new(Daemon {
            name: node.to_string(),
            line: client.line().into(),
            client,
            cluster: Some(self.0.clone()),
        }))
    }

    fn is_gone(&self, name: &str) -> bool {
        name.parse().is_ok_and(|node| self.0.was_removed(&node))
    }

    fn is_lost(&self, name: &str) -> bool {
        name.parse().is_ok_and(|node| self.0.is_lost(&node))
    }

    fn homes(&self) -> Option<&dyn Homes> {
        Some(self)
    }

    fn claim(&self, number: FamilyNo, family: FamilyId) -> BoxFuture<'_, Result<bool, ApiError>> {
        let asked = self.0.number(number.0, family);
        asked
            .map(|answer| answer.map_err(|error| error.to_api()))
            .boxed()
    }

    fn room(
        &self,
        vm: VmView,
        lots: Vec<Lot>,
    ) -> BoxFuture<'_, Result<Option<Box<dyn CloneRoom>>, ApiError>> {
        let asked = tenants::room(&self.0, vm, lots);
        asked
            .map(|answer| answer.map(Some).map_err(|error| error.to_api()))
            .boxed()
    }

    fn room_at(
        &self,
        vm: VmView,
        places: Vec<Granted>,
    ) -> BoxFuture<'_, Result<Option<Box<dyn CloneRoom>>, ApiError>> {
        let asked = tenants::room_at(&self.0, vm, places);
        asked
            .map(|answer| answer.map(Some).map_err(|error| error.to_api()))
            .boxed()
    }
}

fn invalid(message: String) -> ApiError {
    ApiError {
        kind: ErrorKind::Invalid,
        message,
        hint: None,
    }
}

/// The file of peers is not as it should be, which is not the asker's doing.
fn broken(message: String) -> ApiError {
    ApiError {
        kind: ErrorKind::Host,
        ..invalid(message)
    }
}

/// Converts the peer's error, or the reason why it could not be asked, causes
/// and all.
fn told(error: &ClientError) -> ApiError {
    if let ClientError::Refused(refused) = error {
        return refused.clone();
    }
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    ApiError {
        kind: ErrorKind::Host,
        message,
        hint: None,
    }
}

#[cfg(test)]
mod tests;
