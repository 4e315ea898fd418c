//! The daemon's command line.

use crate::cluster;
use anyhow::Context;
use clap::{ArgAction, Parser};
use forkyard_fork::{
    AccelChoice, Folders, GuestBounds, Options, Push, SettleFirst, StoreAddress, Stores,
};
use forkyard_types::ByteCount;
use std::{net::SocketAddr, num::NonZeroUsize, path::PathBuf, time::Duration};

/// The daemon of a Forkyard host.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  forkyardd\n  forkyardd --listen 0.0.0.0:7433\n  forkyardd --e2b 127.0.0.1:3000\n  forkyardd --cluster https://10.0.0.1:2379 --etcd-ca CA.pem --node a --advertise 10.0.0.1\n  forkyardd --join TOKEN --node b --advertise 10.0.0.2\n\nThe `forkyard` command starts one by itself if none runs."
)]
pub struct Args {
    /// Folder of what outlives a restart of the host: records and disks.
    #[arg(long, env = "FORKYARD_STATE_DIR", default_value = "/var/lib/forkyard")]
    pub state_dir: PathBuf,
    /// Folder of what lives only while the host runs: sockets and the pager's mount.
    #[arg(long, env = "FORKYARD_RUN_DIR", default_value = "/run/forkyard")]
    pub run_dir: PathBuf,
    /// Kernels and guest images, which can be made again unless they were imported.
    #[arg(
        long,
        env = "FORKYARD_CACHE_DIR",
        default_value = "/var/cache/forkyard"
    )]
    pub cache_dir: PathBuf,
    /// Recipes and the guest's programs; beside the programs if absent.
    #[arg(long, env = "FORKYARD_SHARE_DIR")]
    pub share_dir: Option<PathBuf>,
    /// Accelerator: auto proves hardware virtualization before it is used.
    #[arg(long, env = "FORKYARD_ACCEL", default_value = "auto")]
    pub accel: AccelChoice,
    /// Open the API's socket to the members of this group: they may do what the holders of tokens may
    /// do, and so read the memory and the disk of each VM. Without it the socket is root's alone.
    #[arg(long, env = "FORKYARD_GROUP", value_name = "GROUP")]
    pub group: Option<String>,
    /// Serve the API over the network, too: to those with a token alone, by
    /// TLS alone.
    #[arg(long, env = "FORKYARD_LISTEN", value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Serve clients of E2B, too: to those with a token alone, and by TLS unless the address is of
    /// the loopback.
    #[arg(
        long,
        env = "FORKYARD_E2B",
        value_name = "ADDRESS:PORT",
        conflicts_with = "node"
    )]
    pub e2b: Option<SocketAddr>,
    /// Image or checkpoint that clients of E2B mean by `base`, their default template.
    #[arg(
        long,
        env = "FORKYARD_E2B_BASE",
        value_name = "TEMPLATE",
        default_value = "debian"
    )]
    pub e2b_base: String,
    /// MiB of memory of a VM that boots for a client of E2B.
    #[arg(
        long,
        env = "FORKYARD_E2B_MEMORY",
        value_name = "MIB",
        default_value_t = 512
    )]
    pub e2b_memory: u64,
    /// Domain under which clients of E2B find ports of sandboxes, as PORT-SANDBOX.DOMAIN; if absent
    /// localhost, and the port.
    #[arg(long, env = "FORKYARD_E2B_DOMAIN", value_name = "DOMAIN[:PORT]")]
    pub e2b_domain: Option<String>,
    /// Certificate for it, and what vouches for that, in PEM; without one the
    /// daemon makes its own.
    #[arg(
        long,
        env = "FORKYARD_TLS_CERT",
        requires = "tls_key",
        conflicts_with = "node"
    )]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key, in PEM.
    #[arg(long, env = "FORKYARD_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Other hosts that VMs can be forked to: a TOML file of `[peer.NAME]`, each with
    /// `url`, `token` and `trust`.
    #[arg(
        long,
        env = "FORKYARD_PEERS",
        value_name = "FILE",
        conflicts_with = "node"
    )]
    pub peers: Option<PathBuf>,
    /// Address at which other hosts get pages of this one's VMs (UDP); needed to fork to them.
    #[arg(
        long,
        env = "FORKYARD_PAGES",
        value_name = "ADDRESS:PORT",
        requires = "peers"
    )]
    pub pages: Option<SocketAddr>,
    /// Most clones of a family, alive or reserved, at which its guests get no more
    /// by their own calls.
    #[arg(long, env = "FORKYARD_GUEST_CLONES", value_name = "N", default_value_t = GuestBounds::default().clones)]
    pub guest_clones: u16,
    /// Most forks between a VM and the one its family began with, for its guest to
    /// be allowed another.
    #[arg(long, env = "FORKYARD_GUEST_GENERATIONS", value_name = "N", default_value_t = GuestBounds::default().generations)]
    pub guest_generations: u16,
    /// Most forks within a minute that the guests of a family get, most tickets
    /// and most checkpoints.
    #[arg(long, env = "FORKYARD_GUEST_FORKS", value_name = "N", default_value_t = GuestBounds::default().forks_a_minute)]
    pub guest_forks: u16,
    /// Most checkpoints that the guests of a family keep; each takes disk as their
    /// memory does.
    #[arg(long, env = "FORKYARD_GUEST_CHECKPOINTS", value_name = "N", default_value_t = GuestBounds::default().checkpoints)]
    pub guest_checkpoints: u16,
    /// Have guests say which of their pages are free: those take no memory and are in
    /// no image.
    #[arg(long, env = "FORKYARD_PAGE_REPORTING", value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    pub page_reporting: bool,
    /// Have guests' kernels guard themselves against their own programs that listen at
    /// the CPU (Spectre and the like), at the cost that has.
    #[arg(long, env = "FORKYARD_GUEST_MITIGATIONS", value_name = "BOOL", action = ArgAction::Set, default_value_t = false)]
    pub guest_mitigations: bool,
    /// Send what several other hosts want to all of them at once, where IP multicast
    /// passes. Without it, each is sent its own.
    #[arg(long, env = "FORKYARD_MULTICAST", value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    pub multicast: bool,
    /// Pages of a fork that other hosts are sent before they ask: working-set, what clones
    /// of such an image have wanted before; everything, what lies behind what they ask for,
    /// too, for jobs that need most of their memory; nothing.
    #[arg(
        long,
        env = "FORKYARD_PUSH",
        value_name = "WHAT",
        default_value = "working-set"
    )]
    pub push: Push,
    /// Have all pages of a fork come before its clones on other hosts are let go: auto, where
    /// the measured round trip makes that sooner than asking page by page; always; never.
    #[arg(
        long,
        env = "FORKYARD_SETTLE_FIRST",
        value_name = "WHEN",
        default_value = "auto"
    )]
    pub settle_first: SettleFirst,
    /// Give clones what others of their image have wanted, before they ask. Heeded
    /// when the pager starts.
    #[arg(long, env = "FORKYARD_PREFETCH", value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    pub prefetch: bool,
    /// Keep a first boot of each image and size as a substrate, and wake later VMs from it
    /// instead of booting them. Not in a cluster.
    #[arg(long, env = "FORKYARD_KEEP_BOOTS", value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    pub keep_boots: bool,
    /// MiB that substrates may take on disk. What the host keeps by itself goes when another needs
    /// the room; what users docked stays, and one more is refused.
    #[arg(
        long,
        env = "FORKYARD_SUBSTRATE_POOL",
        value_name = "MIB",
        default_value_t = 8192
    )]
    pub substrate_pool: u64,
    /// File with endpoints and keys of object stores that substrates are pushed to and pulled from, for
    /// its owner alone: docs/substrates.md. What it does not name is reached by AWS_… variables.
    #[arg(long, env = "FORKYARD_OBJECT_STORES", value_name = "FILE")]
    pub object_stores: Option<PathBuf>,
    /// Object store that substrates are copied to in the background: file:///FOLDER or
    /// s3://BUCKET/PREFIX, which is to be of this host alone.
    #[arg(long, env = "FORKYARD_SUBSTRATE_BACKUP", value_name = "STORE")]
    pub substrate_backup: Option<StoreAddress>,
    /// Seconds for which the memory of a VM that has moved to another host is kept: if it comes back,
    /// what has not changed is not sent again. 0: not at all.
    #[arg(
        long,
        env = "FORKYARD_KEEP_MOVED",
        value_name = "SECONDS",
        default_value_t = 3600
    )]
    pub keep_moved: u64,
    /// MiB that this may take; the oldest goes first.
    #[arg(
        long,
        env = "FORKYARD_KEEP_MOVED_POOL",
        value_name = "MIB",
        default_value_t = 1024
    )]
    pub keep_moved_pool: u64,
    /// Seconds after which a QEMU, the pager or an agent that does not answer has
    /// failed; an agent has twice as long to apply a clone's identity, and no
    /// more than ten seconds to hold a guest still.
    #[arg(long, env = "FORKYARD_PATIENCE", value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub patience: u64,
    /// Events that are kept for readers that are slow, or that resume.
    #[arg(
        long,
        env = "FORKYARD_EVENTS",
        value_name = "N",
        default_value = "4096"
    )]
    pub events: NonZeroUsize,
    /// Write the description of the API (OpenAPI) and end.
    #[arg(long)]
    pub openapi: bool,
    /// Become a session of its own, so that no terminal takes it along.
    #[arg(long)]
    pub detach: bool,
    /// End with the last VM, or when there was none and nothing is asked.
    #[arg(long, conflicts_with = "node")]
    pub exit_when_idle: bool,
    /// The cluster.
    #[command(flatten)]
    pub cluster: cluster::ClusterArgs,
}

impl Args {
    /// Returns the paths of everything of the host.
    pub fn folders(&self) -> anyhow::Result<Folders> {
        let bin = std::env::current_exe()?
            .parent()
            .map(PathBuf::from)
            .context("this program is nowhere")?;
        let beside = bin.join("../share/forkyard");
        let share = self.share_dir.clone().unwrap_or(beside);
        if self.share_dir.is_some() && !share.join("images").is_dir() {
            anyhow::bail!(
                "--share-dir {} (FORKYARD_SHARE_DIR) has no folder images: name the share/forkyard of an installation",
                share.display()
            );
        }
        Ok(Folders {
            share,
            bin,
            state: self.state_dir.clone(),
            run: self.run_dir.clone(),
            cache: self.cache_dir.clone(),
        })
    }

    /// Object stores that the operator chose.
    pub fn stores(&self) -> anyhow::Result<Stores> {
        // Read by processes that may be elsewhere.
        let settings = self.object_stores.as_ref().map(std::path::absolute);
        Ok(Stores {
            settings: settings.transpose()?,
            backup: self.substrate_backup.clone(),
        })
    }

    /// Options that the operator chose.
    pub fn options(&self) -> Options {
        Options {
            accel: self.accel,
            guests: GuestBounds {
                clones: self.guest_clones,
                generations: self.guest_generations,
                forks_a_minute: self.guest_forks,
                checkpoints: self.guest_checkpoints,
            },
            page_reporting: self.page_reporting,
            guest_mitigations: self.guest_mitigations,
            prefetch: self.prefetch,
            multicast: self.multicast,
            push: self.push,
            settle_first: self.settle_first,
            // In a cluster nothing reserves room for a VM that boots for keeps.
            keep_boots: self.keep_boots && !self.cluster.wanted(),
            substrate_pool: ByteCount::from_mib(self.substrate_pool).unwrap_or(ByteCount(u64::MAX)),
            keep_moved: Duration::from_secs(self.keep_moved),
            keep_moved_bytes: ByteCount::from_mib(self.keep_moved_pool)
                .unwrap_or(ByteCount(u64::MAX)),
            patience: Duration::from_secs(self.patience),
            events: self.events,
        }
    }
}
