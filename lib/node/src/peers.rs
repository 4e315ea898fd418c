//! Other hosts that VMs can be forked to: nodes of the cluster, or those that an
//! operator names in a file (`forkyardd --peers`):
//!
//! ```toml
//! [peer.b]
//! url = "https://10.0.0.2:7433"
//! token = "fy_…"            # of `forkyard token create` there
//! trust = "sha256:…"        # or a file of certificates; the system's if absent
//! pages = "10.0.0.2:7434"   # its `--pages`, which guests are not to reach; may be absent
//! ```
//!
//! It is read whenever a peer is needed, so that it can be changed at any time; what is
//! made of it, TLS above all, is kept until it has changed. It
//! holds secrets, and is refused if others than its owner may read it.

mod nodes;

use crate::{ACTIVATIONS, CLONES, MIGRATIONS};
use forkyard_api_client::{Client, ClientError, Line, Place, Trust, UploadError};
use forkyard_cluster::Cluster;
use forkyard_fork::{Duplex, FamilyNo, Granted, HERE, Lot, Neighbours, Peer, Room};
use forkyard_sys_host::tcp::round_trip;
use forkyard_types::{
    ActivateResponse, ApiError, ErrorKind, FamilyId, ForkId, ForkProgress, PeerActivateRequest,
    PeerFamiliesRequest, PeerFamiliesResponse, PeerForkRequest, PeerForkResponse, PeerHold,
    PeerMigrated, PeerMigration, PeerSupply, PeerTicketRequest, PeerTicketResponse, SentVolume,
    TokenSecret, VmId, VmName, VmView,
};
use futures::future::{BoxFuture, FutureExt, ready};
use hyper::Method;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    net::{IpAddr, SocketAddr},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    net::{TcpStream, UnixStream, lookup_host},
    time::timeout,
};

/// Looks at a round trip, of which the shortest counts: the first may have to find the way.
const TRIPS: usize = 2;
/// Longest that one is waited for.
const LONGEST_TRIP: Duration = Duration::from_secs(2);

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

/// The other nodes of a cluster.
#[derive(Debug)]
pub struct Nodes(pub Cluster);

/// A peer whose daemon is asked over the network.
#[derive(Debug)]
struct Daemon {
    name: String,
    client: Client,
    /// Cluster, which knows whose a family is.
    cluster: Option<Cluster>,
    /// On which steps of migrations go, one after the other.
    line: tokio::sync::Mutex<Line>,
}

impl PeersFile {
    /// The peers of the file at `path`, which need not be there yet.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            known: Arc::default(),
        }
    }

    /// Names or addresses of all peers, and their ports.
    pub fn places(&self) -> Result<Vec<(String, u16)>, ApiError> {
        let known = self.read()?;
        let places = known.listing.peer.values();
        let places = places.filter_map(|entry| match entry.url.parse::<Place>() {
            Ok(Place::Network { host, port }) => Some((host, port)),
            Ok(Place::Socket(_)) | Err(_) => None,
        });
        Ok(places.collect())
    }

    /// Returns the addresses at which peers serve pages, as far as the file says so.
    pub fn pages(&self) -> Result<Vec<SocketAddr>, ApiError> {
        let known = self.read()?;
        let pages = known.listing.peer.values().filter_map(|entry| entry.pages);
        Ok(pages.collect())
    }

    /// Reads the file, again only if its text has changed.
    fn read(&self) -> Result<MutexGuard<'_, Known>, ApiError> {
        let path = self.path.display();
        let failed = |error: &dyn Error| invalid(format!("{path}: {error}"));
        let facts = fs::metadata(&self.path).map_err(|error| failed(&error))?;
        if facts.permissions().mode() & 0o077 != 0 {
            return Err(ApiError {
                hint: Some(format!("`chmod 600 {path}`")),
                ..invalid(format!("{path} holds tokens, and others may read it"))
            });
        }
        let text = fs::read_to_string(&self.path).map_err(|error| failed(&error))?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.text == text {
            return Ok(known);
        }
        let listing: Listing = toml::from_str(&text).map_err(|error| failed(&error))?;
        match listing.peer.contains_key(HERE) {
            true => Err(invalid(format!(
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
        let entry = listing.peer.get(name).ok_or_else(|| {
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
            .map_err(|error| invalid(format!("peer {name}: {error}")))?;
        let trust = entry.trust.as_ref().map(|text| text.parse::<Trust>());
        let trust = trust.transpose();
        let trust = trust.map_err(|error| invalid(format!("peer {name}: {error}")))?;
        let trust = trust.unwrap_or(Trust::System);
        let authorities = match &trust {
            // One that cannot be read is told of below.
            Trust::Authorities(path) => fs::read(path).ok(),
            Trust::Pinned(_) | Trust::System => None,
        };
        if let Some(kept) = known.peers.get(name)
            && kept.authorities == authorities
        {
            return Ok(kept.daemon.clone());
        }
        let token = entry.token.clone();
        let client = Client::at(place, Some(token), &trust).map_err(|e| told(&e))?;
        let daemon = Arc::new(Daemon {
            name: name.to_owned(),
            line: client.line().into(),
            client,
            cluster: None,
        });
        let kept = Kept {
            authorities,
            daemon: daemon.clone(),
        };
        known.peers.insert(name.to_owned(), kept);
        Ok(daemon)
    }

    /// One that the file names no more may be named again.
    fn is_gone(&self, _: &str) -> bool {
        false
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
    ) -> BoxFuture<'_, Result<Option<Box<dyn Room>>, ApiError>> {
        ready(Ok(None)).boxed()
    }

    fn room_at(
        &self,
        _: VmView,
        _: Vec<Granted>,
    ) -> BoxFuture<'_, Result<Option<Box<dyn Room>>, ApiError>> {
        ready(Ok(None)).boxed()
    }
}

impl Daemon {
    /// The client of it that asks for a family's owner, if it has one.
    fn for_owner(&self, family: Option<FamilyId>) -> Client {
        let cluster = self.cluster.as_ref();
        match cluster.and_then(|it| it.owner(family?)) {
            Some(user) => self.client.clone().on_behalf_of(&user),
            None => self.client.clone(),
        }
    }

    /// Connects to what a path leads to, by an upgraded request.
    fn upgraded(&self, path: String) -> BoxFuture<'_, Result<Box<dyn Duplex>, ApiError>> {
        let asked = async move { self.client.upgraded(&path).await };
        asked
            .map(|answer| match answer {
                Ok(stream) => Ok(Box::new(stream) as Box<dyn Duplex>),
                Err(error) => Err(told(&error)),
            })
            .boxed()
    }
}

impl Peer for Daemon {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> Option<IpAddr> {
        match self.client.place() {
            Place::Network { host, .. } => host.parse().ok(),
            Place::Socket(_) => None,
        }
    }

    /// Measured by the kernels, and so the same on a busy host.
    fn round_trip(&self) -> BoxFuture<'_, Option<Duration>> {
        let Place::Network { host, port } = self.client.place() else {
            return ready(None).boxed();
        };
        let measured = async move {
            let at = lookup_host((host, port)).await.ok()?.next()?;
            let mut least: Option<Duration> = None;
            for _ in 0..TRIPS {
                let connected = timeout(LONGEST_TRIP, TcpStream::connect(at)).await;
                let took = round_trip(&connected.ok()?.ok()?).ok()?;
                least = Some(least.map_or(took, |least| least.min(took)));
            }
            least
        };
        measured.boxed()
    }

    fn clones(
        &self,
        request: PeerForkRequest,
    ) -> BoxFuture<'_, Result<PeerForkResponse, ApiError>> {
        let client = self.for_owner(Some(request.handout.family.id));
        let asked = async move { client.post(CLONES, &request).await };
        asked.map(|answer| answer.map_err(|e| told(&e))).boxed()
    }

    fn activate(
        &self,
        request: PeerActivateRequest,
        user: Option<String>,
    ) -> BoxFuture<'_, Result<ActivateResponse, ApiError>> {
        let user = user.filter(|_| self.cluster.is_some());
        let client = match user {
            Some(user) => self.client.clone().on_behalf_of(&user),
            None => self.client.clone(),
        };
        let asked = async move { client.post(ACTIVATIONS, &request).await };
        asked.map(|answer| answer.map_err(|e| told(&e))).boxed()
    }

    fn migration(&self, step: PeerMigration) -> BoxFuture<'_, Result<PeerMigrated, ApiError>> {
        let family = match &step {
            PeerMigration::Prepare(prepare) => Some(prepare.first.family.id),
            PeerMigration::Volume(_)
            | PeerMigration::Cpu(_)
            | PeerMigration::Kept(_)
            | PeerMigration::Round(_)
            | PeerMigration::Expect(_)
            | PeerMigration::Land(_)
            | PeerMigration::LandTogether(_)
            | PeerMigration::End(_) => None,
        };
        let cluster = self.cluster.as_ref();
        let user = cluster.and_then(|it| it.owner(family?));
        let asked = async move {
            // One that is busy with another VM is not waited for.
            let Ok(mut line) = self.line.try_lock() else {
                return self.for_owner(family).post(MIGRATIONS, &step).await;
            };
            line.on_behalf_of(user.as_deref());
            line.post(MIGRATIONS, &step).await
        };
        asked.map(|answer| answer.map_err(|e| told(&e))).boxed()
    }

    fn volume(
        &self,
        migration: ForkId,
        SentVolume { volume, snapshot }: SentVolume,
        stream: UnixStream,
    ) -> BoxFuture<'_, Result<PeerMigrated, ApiError>> {
        let path = format!("{MIGRATIONS}/{migration}/volume?volume={volume}&snapshot={snapshot}");
        let sent = async move { self.client.upload(&path, None, stream, |_| ()).await };
        sent.map(|answer| {
            answer.map_err(|error| match error {
                UploadError::Client(error) => told(&error),
                UploadError::Source(_) | _ => invalid("the volume cannot be read".into()),
            })
        })
        .boxed()
    }

    fn commands(&self, migration: ForkId) -> BoxFuture<'_, Result<Box<dyn Duplex>, ApiError>> {
        let path = format!("{MIGRATIONS}/{migration}/commands");
        self.upgraded(path)
    }

    fn supply(
        &self,
        volume: &VmName,
        PeerSupply { id, snapshot, fill }: PeerSupply,
    ) -> BoxFuture<'_, Result<Box<dyn Duplex>, ApiError>> {
        let path =
            format!("/v1/peer/volumes/{volume}/supply?id={id}&snapshot={snapshot}&fill={fill}");
        self.upgraded(path)
    }

    fn hold(
        &self,
        volume: &VmName,
        PeerHold { id, from }: PeerHold,
    ) -> BoxFuture<'_, Result<Box<dyn Duplex>, ApiError>> {
        let from = forkyard_api_client::escaped(&from);
        let path = format!("/v1/peer/volumes/{volume}/hold?id={id}&from={from}");
        self.upgraded(path)
    }

    fn families(
        &self,
        request: PeerFamiliesRequest,
    ) -> BoxFuture<'_, Result<PeerFamiliesResponse, ApiError>> {
        let asked = async move { self.client.post("/v1/peer/families", &request).await };
        asked.map(|answer| answer.map_err(|e| told(&e))).boxed()
    }

    fn ticket(
        &self,
        request: PeerTicketRequest,
    ) -> BoxFuture<'_, Result<PeerTicketResponse, ApiError>> {
        let asked = async move { self.client.post("/v1/peer/ticket", &request).await };
        asked.map(|answer| answer.map_err(|e| told(&e))).boxed()
    }

    fn forks(&self, parent: VmId) -> BoxFuture<'_, Result<Vec<ForkProgress>, ApiError>> {
        let asked = async move {
            let path = format!("/v1/vms/{parent}/forks");
            self.client.call(Method::GET, &path).await
        };
        asked.map(|answer| answer.map_err(|e| told(&e))).boxed()
    }

    fn vms(&self) -> BoxFuture<'_, Result<Vec<VmView>, ApiError>> {
        let asked = self.client.call(Method::GET, "/v1/vms");
        asked.map(|answer| answer.map_err(|e| told(&e))).boxed()
    }

    fn remove(&self, vm: VmId) -> BoxFuture<'_, Result<VmView, ApiError>> {
        let asked = async move {
            let path = format!("/v1/vms/{vm}");
            self.client.call(Method::DELETE, &path).await
        };
        asked.map(|answer| answer.map_err(|e| told(&e))).boxed()
    }
}

fn invalid(message: String) -> ApiError {
    ApiError {
        kind: ErrorKind::Invalid,
        message,
        hint: None,
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
