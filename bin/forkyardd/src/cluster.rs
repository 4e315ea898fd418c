//! A cluster on the command line of the daemon.

use anyhow::{Context, bail};
use clap::{ArgAction, Args, ValueEnum};
use forkyard_cluster::{Allocation, Cluster, Endpoint, NodeAddresses, PlainEtcd, Settings, Token};
use forkyard_node::{Fence, Node};
use forkyard_tls::{Certificate, Trust};
use forkyard_types::{ByteCount, NodeName, Room};
use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

/// vCPUs that are offered for each processor: most of them wait.
const VCPUS_EACH: u32 = 16;
/// Times the host's memory is offered: clones share most of theirs.
const MEMORY_TIMES: u64 = 4;

/// Treatment of a node's VMs while it has lost its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fenced {
    /// They run on; the node takes no new work.
    Work,
    /// They stand still until the lease is back; the node takes no new work.
    Pause,
}

/// Source of grants of room.
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
    /// Name of this node.
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
        default_value_t = forkyard_node::closed::PAGES
    )]
    pages_port: u16,
    /// Seconds after which a node that does not reach etcd is lost to the others.
    #[arg(long, env = "FORKYARD_LEASE", value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(3..=3600))]
    lease: u64,
    /// Action on this node's VMs while it has lost its lease.
    #[arg(long, env = "FORKYARD_FENCE", value_enum, default_value = "work")]
    fence: Fenced,
    /// vCPUs that VMs may have here in all; 16 for each processor if absent.
    #[arg(long, env = "FORKYARD_OFFER_VCPUS", value_name = "N")]
    offer_vcpus: Option<u32>,
    /// Memory that VMs may have here in all, in MiB; four times the host's if
    /// absent.
    #[arg(long, env = "FORKYARD_OFFER_MEMORY", value_name = "MIB")]
    offer_memory: Option<u64>,
    /// Source of grants of the cluster's room: the same on every node.
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
    /// Certificate that an etcd with an https:// address has to present:
    /// sha256:FINGERPRINT, or a file in PEM. Without, what this host trusts.
    #[arg(long, env = "FORKYARD_ETCD_CA", value_name = "CERTIFICATE")]
    etcd_ca: Option<Trust>,
    /// Certificate that etcd is shown, in PEM.
    #[arg(long, env = "FORKYARD_ETCD_CERT", requires = "etcd_key")]
    etcd_cert: Option<PathBuf>,
    /// Key of that certificate, in PEM.
    #[arg(long, env = "FORKYARD_ETCD_KEY", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
}

impl ClusterArgs {
    /// Refuses to have a node's host to itself: the daemon would open to guests what the node
    /// closes, and stand in the way of the node's own.
    pub fn check_standing(&self, state: &Path) -> anyhow::Result<()> {
        let folder = folder(state);
        if !self.wanted() && forkyard_cluster::is_of_node(&folder) {
            bail!(
                "this host is a node of a cluster: start the node's daemon (systemctl start forkyardd, or forkyardd \
                 --cluster … or --join …). If it is to be a host of its own again: `forkyard node rm` it on another \
                 node, and remove {}",
                folder.display()
            );
        }
        Ok(())
    }

    /// Tells whether this host is to be a node.
    pub fn wanted(&self) -> bool {
        self.node.is_some()
    }

    /// Returns the address at which the API is served if nothing else is said.
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
        let folder = folder(state);
        let cluster = Cluster::start(Settings {
            etcd: self.cluster.clone(),
            etcd_tls,
            plain_etcd: match self.etcd_insecure {
                true => PlainEtcd::Anywhere,
                false => PlainEtcd::Loopback,
            },
            name,
            reach: NodeAddresses {
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
        let fence = match self.fence {
            Fenced::Work => Fence::Work,
            Fenced::Pause => Fence::Pause,
        };
        Ok(Node::new(cluster, fence, &folder))
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

/// Folder of what a node keeps.
fn folder(state: &Path) -> PathBuf {
    state.join("cluster")
}
