//! Another host's daemon, asked over the network.

use super::{invalid, told};
use crate::{ACTIVATIONS, MIGRATIONS};
use forkyard_api_client::{Client, Line, Place, UploadError};
use forkyard_cluster::Cluster;
use forkyard_fork::{Duplex, Peer};
use forkyard_sys_host::tcp::round_trip;
use forkyard_types::{
    ActivateResponse, ApiError, FamilyId, ForkId, ForkProgress, PeerActivateRequest,
    PeerFamiliesRequest, PeerFamiliesResponse, PeerForkRequest, PeerForkResponse, PeerHold,
    PeerMigrated, PeerMigration, PeerSupply, PeerTicketRequest, PeerTicketResponse,
    PeerVolumeAnswer, PeerVolumeStep, SentVolume, VmId, VmName, VmView,
};
use futures::future::{BoxFuture, FutureExt, ready};
use hyper::Method;
use std::{net::IpAddr, time::Duration};
use tokio::{
    net::{TcpStream, UnixStream, lookup_host},
    time::timeout,
};

/// Looks at a round trip, of which the shortest counts: the first may have to find the way.
const TRIPS: usize = 2;
/// Longest that one is waited for.
const LONGEST_TRIP: Duration = Duration::from_secs(2);

/// A peer whose daemon is asked over the network.
#[derive(Debug)]
pub(super) struct Daemon {
    pub name: String,
    pub client: Client,
    /// Cluster, which knows whose a family is.
    pub cluster: Option<Cluster>,
    /// On which steps of migrations go, one after the other.
    pub line: tokio::sync::Mutex<Line>,
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
        let asked = async move { client.post(crate::CLONES, &request).await };
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

    fn volume_step(
        &self,
        step: PeerVolumeStep,
    ) -> BoxFuture<'_, Result<PeerVolumeAnswer, ApiError>> {
        let asked = async move { self.client.post("/v1/peer/volumes", &step).await };
        asked.map(|answer| answer.map_err(|e| told(&e))).boxed()
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
