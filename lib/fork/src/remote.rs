//! Forks across hosts: the instant of a VM here, clones of it elsewhere.
//!
//! ```text
//! here                                     there
//! instant taken, its images offered
//! handout ---------- Peer::clones -------> images fetched, shells, load, identity
//!         <--------- one answer a clone ---
//! pages   ========== as they are touched, or all of them in the background ====>
//!                    over a long link all of them before the load (`order`)
//! ```
//!
//! A clone there is made as a clone of a checkpoint is here: of an image, a disk
//! and the state of devices, if it has these. How hosts reach each other, and why
//! they believe each other, is nothing to this crate: see [`Neighbours`].

mod alike;
mod coming;
mod deal;
mod disk;
mod fetch;
mod follow;
mod founding;
mod hand_out;
mod hosts;
mod incoming_images;
mod keys;
mod moved;
mod order;
mod remote_clones;
mod remote_share;
mod sites;
mod span;
mod take;

pub(crate) use alike::{check_reporting, check_version};
pub(crate) use coming::Coming;
pub use deal::HERE;
pub(crate) use deal::{Dealt, Far, Share};
pub(crate) use founding::Offered;
pub use founding::Trusted;
pub(crate) use hand_out::PeerRequests;
pub(crate) use hosts::check as check_hosts;
pub(crate) use incoming_images::{Hold, IncomingImages};
pub(crate) use keys::draw;
pub(crate) use remote_clones::{RemoteClones, late, no_answer, order, untold};
pub(crate) use sites::Sites;
pub(crate) use take::{page_run, received, run, unpacked};

use crate::{CloneRoom, Granted, Homes, Host, HostError, Lot};
use forkyard_agent_link::Duplex;
use forkyard_network::Subnet;
use forkyard_records::{FamilyNo, FamilyRecord};
use forkyard_types::{
    ActivateResponse, ApiError, FamilyId, ForkId, ForkProgress, PeerActivateRequest,
    PeerFamiliesRequest, PeerFamiliesResponse, PeerForkRequest, PeerForkResponse, PeerHold,
    PeerMigrated, PeerMigration, PeerSupply, PeerTicketRequest, PeerTicketResponse,
    PeerVolumeAnswer, PeerVolumeStep, SentVolume, VmId, VmName, VmView,
};
use futures::future::BoxFuture;
use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};
use tokio::net::UnixStream;

/// Pages, clones and addresses that this host has of others, and others of it.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// Other hosts, once they are known.
    pub peering: OnceLock<Peering>,
    /// Pages and VMs that arrive from other hosts.
    pub incoming_images: IncomingImages,
    /// Clones that other hosts made for this one.
    pub remote_clones: RemoteClones,
    /// Clones of theirs that are being ended, because they are no longer awaited.
    pub pending_removal: Mutex<BTreeSet<VmId>>,
    /// Families whose network could not be joined with other hosts', to be tried again.
    /// Held while one is joined, or ended: what was heard last must be what is done
    /// last.
    pub pending_joins: tokio::sync::Mutex<BTreeSet<FamilyId>>,
    /// Sites of families' members that have moved.
    pub sites: Sites,
}

/// Another host, as this one reaches it. Errors are its own, or say why it could
/// not be asked.
pub trait Peer: fmt::Debug + Send + Sync {
    /// Returns the host's name here.
    fn name(&self) -> &str;

    /// Returns the host's address, if it is known by one: that of its pager,
    /// too.
    fn address(&self) -> Option<IpAddr>;

    /// Measures the time that a packet takes there and back; none if it cannot be told.
    /// Cancel-safe.
    fn round_trip(&self) -> BoxFuture<'_, Option<Duration>>;

    /// Has it make clones. If cancelled, it makes them all the same.
    fn clones(&self, request: PeerForkRequest)
    -> BoxFuture<'_, Result<PeerForkResponse, ApiError>>;

    /// Has it make VMs of a substrate, for a user of this host's cluster if one asks. If cancelled, it makes
    /// them all the same.
    fn activate(
        &self,
        request: PeerActivateRequest,
        user: Option<String>,
    ) -> BoxFuture<'_, Result<ActivateResponse, ApiError>>;

    /// Has it take a step of a VM's way there. If cancelled, it takes it all the same.
    fn migration(&self, step: PeerMigration) -> BoxFuture<'_, Result<PeerMigrated, ApiError>>;

    /// Sends it a snapshot of a volume that it expects by a migration. If cancelled, it takes
    /// nothing of it.
    fn volume(
        &self,
        migration: ForkId,
        sent: SentVolume,
        stream: UnixStream,
    ) -> BoxFuture<'_, Result<PeerMigrated, ApiError>>;

    /// Connects to the commands in a VM that has moved there, as frames of the link to its guest.
    /// Cancel-safe.
    fn commands(&self, migration: ForkId) -> BoxFuture<'_, Result<Box<dyn Duplex>, ApiError>>;

    /// Connects to its server of volumes, which asks for blocks of a volume that it lacks. `NotFound` if it
    /// lacks none. Cancel-safe.
    fn supply(
        &self,
        volume: &VmName,
        wanted: PeerSupply,
    ) -> BoxFuture<'_, Result<Box<dyn Duplex>, ApiError>>;

    /// Has it take a step of a volume's way. If cancelled, it takes it all the same.
    fn volume_step(
        &self,
        step: PeerVolumeStep,
    ) -> BoxFuture<'_, Result<PeerVolumeAnswer, ApiError>>;

    /// Connects to its server of volumes, which holds a copy of a volume from here. Cancel-safe.
    fn hold(
        &self,
        volume: &VmName,
        wanted: PeerHold,
    ) -> BoxFuture<'_, Result<Box<dyn Duplex>, ApiError>>;

    /// Tells it where places of families are that it was lent some of, and asks how it
    /// stands to them. Cancel-safe.
    fn families(
        &self,
        request: PeerFamiliesRequest,
    ) -> BoxFuture<'_, Result<PeerFamiliesResponse, ApiError>>;

    /// Asks how clones of a ticket ended that it made, and waits for it. Cancel-safe.
    fn ticket(
        &self,
        request: PeerTicketRequest,
    ) -> BoxFuture<'_, Result<PeerTicketResponse, ApiError>>;

    /// The forks of a VM that it makes, or lately made, clones of. Cancel-safe.
    fn forks(&self, parent: VmId) -> BoxFuture<'_, Result<Vec<ForkProgress>, ApiError>>;

    /// The VMs that are there. Cancel-safe.
    fn vms(&self) -> BoxFuture<'_, Result<Vec<VmView>, ApiError>>;

    /// Ends a VM there. If cancelled, it is ended all the same.
    fn remove(&self, vm: VmId) -> BoxFuture<'_, Result<VmView, ApiError>>;
}

/// The other hosts there are.
pub trait Neighbours: fmt::Debug + Send + Sync {
    /// Names of all hosts that are known and not lost. May read a file.
    fn names(&self) -> Result<Vec<String>, ApiError>;

    /// One by the name it is called here, or why there is none. May read a file.
    fn find(&self, name: &str) -> Result<Arc<dyn Peer>, ApiError>;

    /// Tells whether the host of this name is gone for good, with all it had.
    fn is_gone(&self, name: &str) -> bool;

    /// Takes a number for a family that is founded here: its network's, on every
    /// host. False: a family of another host's has it. Cancel-safe.
    fn claim(&self, number: FamilyNo, family: FamilyId) -> BoxFuture<'_, Result<bool, ApiError>>;

    /// Tells whether the host of this name has died or was cut off, as far as all others
    /// can tell; or is gone.
    fn is_lost(&self, name: &str) -> bool;

    /// Authority that says where volumes are at home; none where there is none.
    fn homes(&self) -> Option<&dyn Homes>;

    /// Room for as many clones of a VM as there is, here first; none where no scheduler
    /// hands it out. Cancel-safe.
    fn room(
        &self,
        vm: VmView,
        lots: Vec<Lot>,
    ) -> BoxFuture<'_, Result<Option<Box<dyn CloneRoom>>, ApiError>>;

    /// Finds room on these hosts and no others. Cancel-safe.
    fn room_at(
        &self,
        vm: VmView,
        places: Vec<Granted>,
    ) -> BoxFuture<'_, Result<Option<Box<dyn CloneRoom>>, ApiError>>;
}

/// The other hosts, and where this one serves them pages.
#[derive(Debug)]
pub(crate) struct Peering {
    pages: Option<SocketAddr>,
    neighbours: Box<dyn Neighbours>,
}

impl Host {
    /// Makes other hosts known to this one, which gives them pages at `pages`;
    /// none: it takes clones of theirs and sends none. Once in the life of a host.
    pub fn set_peers(&self, pages: Option<SocketAddr>, neighbours: Box<dyn Neighbours>) {
        if self
            .peers
            .peering
            .set(Peering { pages, neighbours })
            .is_ok()
        {
            self.watch_remote_clones();
            self.watch_news();
        }
    }

    /// Founds a family, under a number that none of the other hosts' has.
    pub(crate) async fn found_family(
        &self,
        max_clones: Option<u16>,
    ) -> Result<FamilyRecord, HostError> {
        let id = FamilyId::random();
        let Some(peering) = self.peers.peering.get() else {
            return Ok(self
                .parts
                .store
                .found_family(id, Subnet::FAMILIES, max_clones)?);
        };
        // Hosts that do not tell each other are not likely to draw the same.
        let drawn = uuid::Uuid::new_v4().as_u128() % u128::from(Subnet::FAMILIES);
        let mut from = u16::try_from(drawn).unwrap_or(0);
        for _ in 0..Subnet::FAMILIES {
            let family =
                self.parts
                    .store
                    .found_family_from(from, id, Subnet::FAMILIES, max_clones)?;
            let claimed = peering.neighbours.claim(family.number, id).await;
            if matches!(claimed, Ok(true)) {
                return Ok(family);
            }
            self.parts.store.remove_family_if_empty(id)?;
            claimed.map_err(HostError::Number)?;
            from = (family.number.0 + 1) % Subnet::FAMILIES;
        }
        Err(forkyard_records::RecordsError::Exhausted {
            what: "family number",
            limit: Subnet::FAMILIES.into(),
        }
        .into())
    }

    pub(crate) fn neighbours(&self) -> Option<&dyn Neighbours> {
        let peering = self.peers.peering.get()?;
        Some(&*peering.neighbours)
    }

    fn is_gone(&self, name: &str) -> bool {
        let peering = self.peers.peering.get();
        peering.is_some_and(|peering| peering.neighbours.is_gone(name))
    }

    pub(crate) fn peer(&self, name: &str) -> Result<Arc<dyn Peer>, HostError> {
        let found = match self.peers.peering.get() {
            Some(peering) => peering.neighbours.find(name),
            None => return Err(HostError::NoPeers),
        };
        found.map_err(|source| HostError::Peer {
            peer: name.to_owned(),
            source,
        })
    }
}
