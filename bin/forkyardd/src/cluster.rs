//! This daemon as a node of a cluster: what the command line says of it, and
//! what goes on in the background for it.
//!
//! ```text
//! report   tells the cluster of this host's VMs: after each change, and now and then
//! fence    while the lease is lost, holds VMs still, if the operator wants that
//! closed   keeps guests from etcd and the nodes' ports
//! tenants  ends VMs whose allocation has ended, and allocations whose VMs have
//! ```

mod news;
mod places;

use crate::tenants;
use anyhow::{Context, bail};
use clap::{ArgAction, Args, ValueEnum};
use forkyard_cluster::{
    Allocation, Claim, Cluster, ClusterError, Endpoint, PlainEtcd, Reach, Settings, Standing, Token,
};
use forkyard_events::Selection;
use forkyard_fork::{Host, HostError};
use forkyard_tls::{Certificate, Trust};
use forkyard_types::{ByteCount, EventKind, NodeName, Room, RunRequest, VmId, VmState, VmView};
use std::{
    collections::BTreeSet,
    error::Error,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::timeout};

/// How often the cluster is told of VMs that changed by themselves.
const REPORT: Duration = Duration::from_secs(1);
/// How long an answer waits for the cluster to have been told.
const TOLD: Duration = Duration::from_secs(3);
/// How often a fenced node looks for VMs to hold still.
const LOOK: Duration = Duration::from_secs(1);
/// vCPUs that are offered for each processor: most of them wait.
const VCPUS_EACH: u32 = 16;
/// Times the host's memory is offered: clones share most of theirs.
const MEMORY_TIMES: u64 = 4;
/// Which VMs a fence holds still, in the cluster's folder.
const HELD: &str = "held-still.json";

/// What a node does with its VMs while it has lost its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fence {
    /// They run on; the node takes no new work.
    Work,
    /// They stand still until the lease is back; the node takes no new work.
    Pause,
}

/// Who hands out room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Allocate {
    /// The nodes themselves, by a ledger in etcd.
    Ledger,
    /// Slurm: a VM lives in an allocation, and ends with it.
    Slurm,
}

/// The cluster on the command line.
#[derive(Debug, Args)]
#[command(next_help_heading = "Cluster: see docs/cluster.md")]
pub struct ClusterArgs {
    /// The cluster's etcd, several by commas. The first node that comes to an
    /// empty one founds the cluster.
    #[arg(
        long,
        env = "FORKYARD_CLUSTER",
        value_name = "URL",
        value_delimiter = ',',
        requires = "node"
    )]
    cluster: Vec<Endpoint>,
    /// Become a node of the cluster, by an invitation from `forkyard node invite`.
    /// Not needed, and not used, once this host is one.
    #[arg(
        long,
        env = "FORKYARD_JOIN",
        value_name = "TOKEN",
        hide_env_values = true,
        requires = "node"
    )]
    join: Option<Token>,
    /// What this node is called.
    #[arg(
        long,
        env = "FORKYARD_NODE",
        value_name = "NAME",
        requires = "advertise"
    )]
    node: Option<NodeName>,
    /// The address other nodes reach this one at. The API is served there, unless
    /// --listen says otherwise.
    #[arg(long, env = "FORKYARD_ADVERTISE", value_name = "IP", requires = "node")]
    advertise: Option<Ipv4Addr>,
    /// UDP port on which this node's pager offers page images to others.
    #[arg(
        long,
        env = "FORKYARD_PAGES_PORT",
        value_name = "PORT",
        default_value_t = 7434
    )]
    pages_port: u16,
    /// Seconds after which a node that does not reach etcd is lost to the others.
    #[arg(long, env = "FORKYARD_LEASE", value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(3..=3600))]
    lease: u64,
    /// What this node does with its VMs while it has lost its lease.
    #[arg(long, env = "FORKYARD_FENCE", value_enum, default_value = "work")]
    fence: Fence,
    /// vCPUs that VMs may have here in all; 16 for each processor if absent.
    #[arg(long, env = "FORKYARD_OFFER_VCPUS", value_name = "N")]
    offer_vcpus: Option<u32>,
    /// Memory that VMs may have here in all, in MiB; four times the host's if
    /// absent.
    #[arg(long, env = "FORKYARD_OFFER_MEMORY", value_name = "MIB")]
    offer_memory: Option<u64>,
    /// Who hands out the cluster's room: the same on every node.
    #[arg(
        long,
        env = "FORKYARD_ALLOCATE",
        value_enum,
        default_value = "ledger",
        value_name = "WHO"
    )]
    allocate: Allocate,
    /// Partition in which Slurm allocates; its default one if absent.
    #[arg(long, env = "FORKYARD_SLURM_PARTITION", value_name = "NAME")]
    slurm_partition: Option<String>,
    /// Found a cluster also if its etcd is spoken to in the clear (http://) over the
    /// network. Only nodes must reach it: whatever does can become one.
    #[arg(long, env = "FORKYARD_ETCD_INSECURE", value_name = "BOOL", action = ArgAction::Set, default_value_t = false, default_missing_value = "true", num_args = 0..=1)]
    etcd_insecure: bool,
    /// What an etcd with an https:// address is held to: sha256:FINGERPRINT, or a
    /// file in PEM. Without, what this host trusts.
    #[arg(long, env = "FORKYARD_ETCD_CA", value_name = "CERTIFICATE")]
    etcd_ca: Option<Trust>,
    /// Certificate that etcd is shown, in PEM.
    #[arg(long, env = "FORKYARD_ETCD_CERT", requires = "etcd_key")]
    etcd_cert: Option<PathBuf>,
    /// Its key, in PEM.
    #[arg(long, env = "FORKYARD_ETCD_KEY", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
}

impl ClusterArgs {
    /// Whether this host is to be a node.
    pub fn wanted(&self) -> bool {
        self.node.is_some()
    }

    /// Where the API is served if nothing else is said.
    pub fn listen(&self, port: u16) -> Option<SocketAddr> {
        let address = self.advertise?;
        Some(SocketAddr::new(IpAddr::V4(address), port))
    }

    /// Goes on as a node, or becomes one. The API will be served at `port`.
    pub async fn start(&self, state: &Path, port: u16) -> anyhow::Result<Node> {
        let (Some(name), Some(advertise)) = (self.node.clone(), self.advertise) else {
            bail!("a node has a name and an address: --node NAME --advertise IP");
        };
        if advertise.is_unspecified() {
            bail!("{advertise} is no address that others reach: --advertise one of this host's");
        }
        let own = match self.etcd_cert.as_deref().zip(self.etcd_key.as_deref()) {
            Some((certificate, key)) => Some(Certificate::load(certificate, key)?),
            None => None,
        };
        let trust = self.etcd_ca.clone().unwrap_or(Trust::System);
        let etcd_tls = match self.cluster.iter().any(Endpoint::is_secure) || self.etcd_ca.is_some()
        {
            true => Some(trust.client_as(own)?),
            false => None,
        };
        let folder = state.join("cluster");
        let cluster = Cluster::start(Settings {
            etcd: self.cluster.clone(),
            etcd_tls,
            plain_etcd: match self.etcd_insecure {
                true => PlainEtcd::Anywhere,
                false => PlainEtcd::Loopback,
            },
            name,
            reach: Reach {
                api: (advertise, port).into(),
                pages: (advertise, self.pages_port).into(),
                tunnel: advertise,
            },
            offers: Room {
                vcpus: self.offer_vcpus.unwrap_or_else(vcpus),
                memory: match self.offer_memory {
                    Some(mib) => ByteCount::from_mib(mib).context("--offer-memory is too much")?,
                    None => memory()?,
                },
            },
            lease: Duration::from_secs(self.lease),
            folder: folder.clone(),
            invitation: self.join.clone(),
            allocation: match self.allocate {
                Allocate::Ledger => Allocation::Ledger,
                Allocate::Slurm => Allocation::Slurm {
                    partition: self.slurm_partition.clone(),
                },
            },
        });
        let cluster = cluster.await.map_err(|error| {
            let said = error.to_api();
            let hint = said
                .hint
                .map_or(String::new(), |hint| format!("\n  {hint}"));
            anyhow::anyhow!("{}{hint}", said.message)
        })?;
        tracing::info!(node = %cluster.name(), "a node of the cluster");
        Ok(Node(Arc::new(Inner {
            cluster,
            fence: self.fence,
            held: folder.join(HELD),
            changed: Notify::new(),
            turn: tokio::sync::Mutex::default(),
            failing: Mutex::new(false),
        })))
    }
}

fn vcpus() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cores)
        .unwrap_or(u32::MAX)
        .saturating_mul(VCPUS_EACH)
}

fn memory() -> anyhow::Result<ByteCount> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot tell the host's memory")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let bytes = kib.and_then(|kib| kib.checked_mul(1024 * MEMORY_TIMES));
    bytes
        .map(ByteCount)
        .context("cannot tell the host's memory")
}

/// This daemon's part in its cluster.
#[derive(Clone, Debug)]
pub struct Node(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    cluster: Cluster,
    fence: Fence,
    held: PathBuf,
    changed: Notify,
    /// Of reports: one at a time.
    turn: tokio::sync::Mutex<()>,
    /// Whether the last report failed: said once.
    failing: Mutex<bool>,
}

/// What a VM about to be made has here, until dropped.
#[derive(Debug)]
pub struct Ready {
    _claim: Option<Claim>,
}

impl Node {
    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    /// Does what goes on in the background, for ever. Cancel-safe: what it does to
    /// VMs is done on tasks of their own.
    pub async fn run(&self, host: &Arc<Host>) {
        tokio::join!(
            self.keep_reporting(host),
            self.keep_fence(host),
            crate::closed::keep_cluster(self, host),
            tenants::keep(self.cluster(), host),
            news::tell(self.cluster(), host)
        );
    }

    /// This host's own VMs: those that others made for it are theirs to tell of.
    pub fn own(&self, host: &Host) -> Vec<VmView> {
        let all = host.list().into_iter();
        all.filter(|vm| vm.host.is_none()).collect()
    }

    /// Makes sure that a VM may be made here, by this name if one is given.
    pub async fn ready(&self, request: &RunRequest) -> Result<Ready, ClusterError> {
        self.cluster().may_act()?;
        let claim = match &request.name {
            Some(name) => Some(self.cluster().claim(name).await?),
            None => None,
        };
        Ok(Ready { _claim: claim })
    }

    /// Tells the cluster of this host's VMs; waits for it, but not for long.
    pub async fn report(&self, host: &Host) {
        if timeout(TOLD, self.try_report(host)).await.is_err() {
            tracing::warn!("the cluster was not told in time");
        }
        // What was not told now is told soon.
        self.0.changed.notify_one();
    }

    async fn try_report(&self, host: &Host) {
        let _turn = self.0.turn.lock().await;
        // In this order: what leaves in between is told of as it was before.
        let leaving = match host.leaving() {
            Ok(leaving) => leaving,
            Err(error) => {
                tracing::warn!(error = &error as &dyn Error, "the cluster is told later");
                return;
            }
        };
        let outcome = self.cluster().report(&self.own(host), &leaving).await;
        let mut failing = self
            .0
            .failing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = &outcome
            && !*failing
        {
            tracing::warn!(
                error = error as &dyn Error,
                "the cluster does not hear of VMs"
            );
        }
        *failing = outcome.is_err();
    }

    async fn keep_reporting(&self, host: &Host) {
        let kinds = [EventKind::Vm, EventKind::Checkpoint].into();
        let selection = Selection {
            kinds,
            ..Selection::default()
        };
        let mut vms = host.events().subscribe(selection, None);
        loop {
            self.try_report(host).await;
            let changed = async {
                tokio::select! {
                    () = self.0.changed.notified() => {}
                    _ = vms.next() => {}
                }
            };
            let _ = timeout(REPORT, changed).await;
            // Many changes at once are told of together.
            tokio::time::sleep(REPORT / 10).await;
        }
    }

    /// Says when the lease is lost and when it is back; and holds VMs still in
    /// between, if that is wanted.
    async fn keep_fence(&self, host: &Arc<Host>) {
        let holds = |standing| matches!(standing, Standing::Holding { .. });
        loop {
            let standing = self.cluster().standing();
            if holds(standing) {
                self.let_go(host).await;
                self.cluster().wait(|standing| !holds(standing)).await;
                continue;
            }
            tracing::error!(?standing, fence = ?self.0.fence, "fenced: no new work is taken");
            while !holds(self.cluster().standing()) {
                if self.0.fence == Fence::Pause {
                    self.hold_still(host).await;
                }
                let _ = timeout(LOOK, self.cluster().wait(holds)).await;
            }
            tracing::warn!("no longer fenced");
        }
    }

    /// Has every VM that runs stand still, and notes it.
    async fn hold_still(&self, host: &Arc<Host>) {
        let running = |vm: &VmView| vm.state == VmState::Running && vm.silence.is_none();
        for vm in self.own(host).into_iter().filter(running) {
            // Noted first: one that is held and not noted would never go on.
            let mut held = self.noted();
            held.insert(vm.id);
            self.note(&held);
            let id = vm.id;
            let pause = |host: Arc<Host>| async move { host.pause(id.as_str()).await };
            if let Err(error) = to_its_end(host, pause).await {
                tracing::warn!(vm = %vm.name, error = &error as &dyn Error, "not held still");
            }
        }
    }

    /// Lets go on what a fence has held still, also an earlier daemon's.
    async fn let_go(&self, host: &Arc<Host>) {
        let mut held = self.noted();
        for id in held.clone() {
            let resume = |host: Arc<Host>| async move { host.resume(id.as_str()).await };
            match to_its_end(host, resume).await {
                Ok(_) | Err(HostError::NoSuchVm { .. } | HostError::NotRunning { .. }) => {
                    held.remove(&id);
                    self.note(&held);
                }
                Err(error) => {
                    tracing::warn!(vm = %id, error = &error as &dyn Error, "it stands still");
                }
            }
        }
    }

    fn noted(&self) -> BTreeSet<VmId> {
        let text = fs::read(&self.0.held).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn note(&self, held: &BTreeSet<VmId>) {
        let written = match held.is_empty() {
            true => fs::remove_file(&self.0.held),
            false => serde_json::to_vec(held)
                .map_err(std::io::Error::other)
                .and_then(|text| fs::write(&self.0.held, text)),
        };
        if let Err(error) = written {
            tracing::warn!(%error, "what the fence holds is not noted");
        }
    }
}

/// Does something to a VM on a task of its own: it ends in good order whatever becomes
/// of who waits for it. Cancel-safe.
pub async fn to_its_end<F>(
    host: &Arc<Host>,
    work: impl FnOnce(Arc<Host>) -> F,
) -> Result<VmView, HostError>
where
    F: Future<Output = Result<VmView, HostError>> + Send + 'static,
{
    let done = tokio::spawn(work(host.clone())).await;
    done.unwrap_or(Err(HostError::Closing))
}
