//! The cluster as a node's daemon uses it: its parts, wired.

use crate::{
    ClusterError, Endpoint, NodeAddresses, Standing, Token,
    keeper::Keeper,
    membership::{self, from_json},
    news::NodeStates,
    records::{Member, Placed},
    report::Report,
    roll::Roll,
    tenancy::{self, Kept},
};
use forkyard_api_client::Client;
use forkyard_etcd::{Etcd, EtcdError};
use forkyard_placement::{Book, Ledger, Offer, Rooms, Slurm};
use forkyard_tls::{ClientConfig, Fingerprint, NodeIdentity, ServerConfig};
use forkyard_types::{
    FamilyId, ListedVm, NodeName, NodeState, NodeView, Room, TicketId, VmId, VmView,
};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

/// Settings that a node needs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The cluster's etcd; if none, the one that this host was told of.
    pub etcd: Vec<Endpoint>,
    /// Permission to found a cluster whose etcd is spoken to in the clear.
    pub plain_etcd: PlainEtcd,
    /// TLS settings for it.
    pub etcd_tls: Option<Arc<ClientConfig>>,
    /// This node's name.
    pub name: NodeName,
    /// Addresses.
    pub reach: NodeAddresses,
    /// Room that the node offers.
    pub offers: Room,
    /// Duration of its lease.
    pub lease: Duration,
    /// Folder of its identity.
    pub folder: PathBuf,
    /// An invitation, for a host that is no node yet.
    pub invitation: Option<Token>,
    /// Source of grants of room: the same on every node.
    pub allocation: Allocation,
}

/// Permission to found a cluster whose etcd is spoken to in the clear. Whatever reaches
/// such an etcd can write to it, and so become a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlainEtcd {
    /// On this host alone.
    #[default]
    Loopback,
    /// Anywhere: the operator says that only nodes reach it.
    Anywhere,
}

/// Source of grants of room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// The nodes themselves, by a ledger in etcd.
    #[default]
    Ledger,
    /// Slurm.
    Slurm {
        /// Partition; Slurm's default one if none is named.
        partition: Option<String>,
    },
}

/// The cluster, and this node's part in it. Dropped, nothing is renewed any
/// more, and the others will find the node lost.
#[derive(Clone, Debug)]
pub struct Cluster(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    /// End with this.
    _tasks: JoinSet<()>,
}

/// State that every part of a node needs.
#[derive(Debug)]
pub(crate) struct Shared {
    pub etcd: Etcd,
    pub book: Book,
    pub name: NodeName,
    pub folder: PathBuf,
    pub reach: NodeAddresses,
    pub identity: NodeIdentity,
    client: Arc<ClientConfig>,
    pub roll: Roll,
    pub keeper: Keeper,
    report: Report,
    allocation: Allocation,
    taken: Mutex<Taken>,
    /// Told when a reservation was dropped.
    pub dropped: Notify,
}

/// Grant that this node received.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Reservations that live.
    pub held: BTreeSet<TicketId>,
    /// Those that were dropped, and are to be given back.
    pub spent: BTreeSet<TicketId>,
    /// Those that VMs live on.
    pub kept: Kept,
}

impl Cluster {
    /// Goes on as the node that this host is, or has it become one: see
    /// [`Settings::invitation`]. The first to come to an empty etcd founds the
    /// cluster. A host that is a node already starts also if etcd cannot be
    /// reached, and is fenced until it can.
    pub async fn start(settings: Settings) -> Result<Self, ClusterError> {
        let Settings { folder, name, .. } = &settings;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|source| ClusterError::Io {
                what: "create",
                path: folder.clone(),
                source,
            })?;
        let mut endpoints = match settings.etcd.is_empty() {
            false => settings.etcd.clone(),
            true => membership::kept_endpoints(folder).unwrap_or_default(),
        };
        let book = Book::default();
        let client =
            |endpoints: &[Endpoint]| Etcd::new(endpoints.into(), settings.etcd_tls.clone());
        let known = NodeIdentity::kept_in(folder)?.is_some();
        match &settings.invitation {
            Some(token) if !known || !is_member(&client(&endpoints), &book, name, folder).await => {
                endpoints = membership::join(token, folder, name, settings.reach).await?;
            }
            Some(_) => tracing::info!(node = %name, "a node already: the invitation is not needed"),
            None if known => {}
            None if endpoints.is_empty() => return Err(ClusterError::NoEtcd),
            None => {
                let etcd = client(&endpoints);
                if settings.plain_etcd == PlainEtcd::Loopback
                    && let Some(open) = endpoints.iter().find(|it| it.is_open())
                    && membership::founded(&etcd, &book).await?.is_none()
                {
                    return Err(ClusterError::PlainEtcd {
                        endpoint: open.to_string(),
                    });
                }
                membership::found(&etcd, &book, folder, name, settings.reach).await?;
            }
        }
        if endpoints.is_empty() {
            return Err(ClusterError::NoEtcd);
        }
        membership::keep_endpoints(folder, &endpoints)?;
        let identity = NodeIdentity::kept_in(folder)?.ok_or(ClusterError::NoEtcd)?;
        Self::run(client(&endpoints), book, settings, identity).await
    }

    async fn run(
        etcd: Etcd,
        book: Book,
        settings: Settings,
        identity: NodeIdentity,
    ) -> Result<Self, ClusterError> {
        let name = settings.name;
        let offer = Offer {
            offers: settings.offers,
            ..Offer::default()
        };
        let who = (
            name.clone(),
            settings.reach,
            identity.fingerprint().to_string(),
        );
        let shared = Arc::new(Shared {
            client: identity.client()?,
            roll: Roll::new(etcd.clone(), book.clone()),
            keeper: Keeper::new(etcd.clone(), book.clone(), who, settings.lease, offer),
            report: Report::new(etcd.clone(), book.clone(), name.clone()),
            etcd,
            book,
            name,
            reach: settings.reach,
            identity,
            taken: Mutex::new(Taken {
                kept: tenancy::read(&settings.folder),
                ..Taken::default()
            }),
            allocation: settings.allocation,
            folder: settings.folder,
            dropped: Notify::new(),
        });
        shared.keeper.turn().await;
        if let Err(error) = shared.roll.refresh().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "fenced from the start"
            );
        }
        let mut tasks = JoinSet::new();
        let (keeper, follower, tidier, watcher) = (
            shared.clone(),
            shared.clone(),
            shared.clone(),
            shared.clone(),
        );
        tasks.spawn(async move { keeper.keeper.keep().await });
        tasks.spawn(async move { follower.roll.follow().await });
        tasks.spawn(async move { tidier.tidy().await });
        tasks.spawn(async move { watcher.watch_own_record().await });
        Ok(Self(Arc::new(Inner {
            shared,
            _tasks: tasks,
        })))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// This node's name.
    pub fn name(&self) -> &NodeName {
        &self.shared().name
    }

    /// Returns its addresses.
    pub fn reach(&self) -> NodeAddresses {
        self.shared().reach
    }

    /// Returns the standing of this node at this moment.
    pub fn standing(&self) -> Standing {
        self.shared().keeper.standing()
    }

    /// An error unless this node may act for the cluster at this moment.
    pub fn may_act(&self) -> Result<(), ClusterError> {
        let node = self.name().clone();
        match self.standing() {
            Standing::Holding { .. } => Ok(()),
            Standing::Fenced => Err(ClusterError::Fenced { node }),
            Standing::Removed => Err(ClusterError::Removed { node }),
        }
    }

    /// Returns once this node stands so that `wanted` holds. Cancel-safe.
    pub async fn wait(&self, wanted: impl Fn(Standing) -> bool) {
        self.shared().keeper.wait(wanted).await;
    }

    /// Returns the TLS configuration of the node's API: nodes are known by
    /// their certificates.
    pub fn server(&self) -> Result<Arc<ServerConfig>, ClusterError> {
        Ok(self.shared().identity.server()?)
    }

    /// The certificate that its API shows.
    pub fn fingerprint(&self) -> Fingerprint {
        self.shared().identity.fingerprint()
    }

    /// The node that shows this certificate, if it is one of the cluster's.
    pub fn who(&self, certificate: &Fingerprint) -> Option<NodeName> {
        let fingerprint = certificate.to_string();
        self.shared()
            .roll
            .with(|nodes| nodes.who(&fingerprint).cloned())
    }

    /// Every node as it was last heard of, by name.
    pub async fn nodes(&self) -> Result<Vec<NodeView>, ClusterError> {
        let shared = self.shared();
        shared.roll.refresh().await?;
        let picture = shared.rooms().picture().await?;
        let nodes = shared.roll.nodes();
        let view = |(name, member): (&NodeName, &Member)| {
            let said = nodes.offers.get(name).cloned().unwrap_or_default();
            let offer = picture.offers.get(name).unwrap_or(&said);
            Some(NodeView {
                name: name.clone(),
                state: nodes.state(name)?,
                here: *name == shared.name,
                api: member.reach.api,
                pages: member.reach.pages,
                tunnel: member.reach.tunnel,
                offers: offer.offers,
                taken: picture.taken(name),
                vms: offer.vms,
                joined: member.joined,
            })
        };
        Ok(nodes.members.iter().filter_map(view).collect())
    }

    /// Returns the nodes that are neither lost nor this one.
    pub fn other_nodes(&self) -> Vec<NodeName> {
        let shared = self.shared();
        shared.roll.with(|nodes| {
            let others = nodes
                .members
                .keys()
                .filter(|node| **node != shared.name && nodes.state(node) != Some(NodeState::Lost));
            others.cloned().collect()
        })
    }

    /// A client of a node's API, which knows this node by its certificate.
    pub fn client(&self, node: &NodeName) -> Result<Client, ClusterError> {
        let shared = self.shared();
        let found = shared.roll.with(|nodes| {
            let member = nodes.members.get(node)?;
            Some((member.reach.api, nodes.state(node)?))
        });
        let no_such = || ClusterError::NoSuchNode { node: node.clone() };
        match found.ok_or_else(no_such)? {
            (_, NodeState::Lost) => Err(ClusterError::Lost { node: node.clone() }),
            (api, NodeState::Active | NodeState::Draining) => {
                Ok(Client::node(api, node.as_str(), shared.client.clone()))
            }
        }
    }

    /// The cluster's etcd: names or addresses, and ports.
    pub fn etcd(&self) -> Vec<(String, u16)> {
        let endpoints = self.shared().etcd.endpoints().iter();
        let places = endpoints.map(Endpoint::place);
        places.map(|(host, port)| (host.to_owned(), port)).collect()
    }

    /// Returns all places at which the cluster's etcd says that it is reached, by its members, too.
    /// Cancel-safe.
    pub async fn etcd_members(&self) -> Result<Vec<(String, u16)>, EtcdError> {
        self.shared().etcd.members().await
    }

    /// Returns the addresses of nodes, this one included, as far as they are known.
    pub fn reaches(&self) -> Vec<NodeAddresses> {
        let shared = self.shared();
        shared.roll.with(|nodes| {
            let others = nodes.members.values().map(|member| member.reach);
            others.chain([shared.reach]).collect()
        })
    }

    /// Returns how each node stands, as far as is known.
    pub fn states(&self) -> NodeStates {
        self.shared().roll.with(|nodes| {
            let names = nodes.members.keys();
            let states = names.filter_map(|name| Some((name.clone(), nodes.state(name)?)));
            states.collect()
        })
    }

    /// Marks each moment in which something of the nodes may have changed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared().roll.changes()
    }

    /// Waits until something of the nodes has changed. Cancel-safe, but what changes
    /// between two calls is not told.
    pub async fn changed(&self) {
        // It ends with this.
        let _ = self.shared().roll.changes().changed().await;
    }

    /// Tells whether the node of this name was removed. A node that was removed
    /// itself, or has lost its lease, cannot say.
    pub fn was_removed(&self, node: &NodeName) -> bool {
        let shared = self.shared();
        let is_listed = |name| shared.roll.with(|nodes| nodes.members.contains_key(name));
        self.may_act().is_ok() && is_listed(&shared.name) && !is_listed(node)
    }

    /// Tells whether a node has lost its lease, or was removed. One that has lost its
    /// own cannot say.
    pub fn is_lost(&self, node: &NodeName) -> bool {
        let state = self.shared().roll.with(|nodes| nodes.state(node));
        let is_lost = matches!(state, Some(NodeState::Lost) | None);
        is_lost && self.may_act().is_ok()
    }

    /// Tells the others which VMs this node has, and what they take.
    pub async fn report(
        &self,
        vms: &[VmView],
        leaving: &BTreeSet<VmId>,
    ) -> Result<(), ClusterError> {
        self.may_act()?;
        let shared = self.shared();
        shared.report.tell(vms, leaving).await?;
        shared.keeper.say(|offer| shared.report.sum(vms, offer));
        shared.keeper.tell().await
    }

    /// A family, and all that will come of it, counts against this user.
    pub fn own(&self, family: FamilyId, user: String) {
        self.shared().report.own(family, user);
    }

    /// Returns the user a family on this node counts against.
    pub fn owner(&self, family: FamilyId) -> Option<String> {
        self.shared().report.owner(family)
    }

    /// The VMs of the other nodes, as they last told of them.
    pub async fn others_vms(&self) -> Result<Vec<ListedVm>, ClusterError> {
        let shared = self.shared();
        let range = shared.etcd.range(&shared.book.all("vms")).await?;
        let nodes = shared.roll.nodes();
        let mut vms = Vec::new();
        for entry in &range.entries {
            let placed: Placed = from_json(entry)?;
            if placed.node == shared.name {
                continue;
            }
            let lost = match nodes.state(&placed.node) {
                Some(NodeState::Active | NodeState::Draining) => false,
                Some(NodeState::Lost) | None => true,
            };
            let mut vm = placed.vm;
            if lost {
                vm.silence = Some(format!("its node, {}, is lost", placed.node));
            }
            vms.push(ListedVm {
                vm,
                node: Some(placed.node),
                lost,
            });
        }
        vms.sort_by_key(|it| (it.vm.created, it.vm.family, it.vm.member));
        Ok(vms)
    }
}

impl Shared {
    /// Returns the source of grants of room.
    pub fn rooms(&self) -> Rooms {
        let ledger = Ledger::new(self.etcd.clone(), self.book.clone(), self.keeper.lease());
        match &self.allocation {
            Allocation::Ledger => Rooms::Ledger(ledger),
            Allocation::Slurm { partition } => Rooms::Slurm(Slurm::new(ledger, partition.clone())),
        }
    }

    pub fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks, whenever this node's record is not there, whether it was removed.
    async fn watch_own_record(&self) {
        let mut changes = self.roll.changes();
        // The sender lives as long as this.
        while changes.changed().await.is_ok() {
            let own = self.identity.fingerprint().to_string();
            if self.roll.with(|nodes| nodes.who(&own) != Some(&self.name)) {
                self.keeper.check().await;
            }
        }
    }
}

/// Tells whether this host's identity is that of the node of this name. What
/// cannot be asked is taken for granted.
async fn is_member(etcd: &Etcd, book: &Book, name: &NodeName, folder: &Path) -> bool {
    let Ok(Some(identity)) = NodeIdentity::kept_in(folder) else {
        return false;
    };
    match etcd.get(&book.key("nodes", name.as_str())).await {
        Ok(Some(entry)) => from_json::<Member>(&entry)
            .is_ok_and(|member| member.fingerprint == identity.fingerprint().to_string()),
        Ok(None) => false,
        Err(_) => true,
    }
}
