//! `forkyardd`: one daemon per host. It may die at any moment: VMs run on,
//! and the next one takes them over.

mod audit;
mod closed;
mod cluster;
mod doors;
mod forward;
mod gate;
mod http;
mod idle;
mod listen;
mod log;
mod metrics;
mod peers;
mod remote;
mod reply;
mod tenants;

use anyhow::Context;
use clap::{ArgAction, Parser};
use cluster::Node;
use forkyard_access::Access;
use forkyard_fork::{AccelChoice, Folders, GuestBounds, Options, Push};
use forkyard_types::RemoteView;
use idle::Idle;
use peers::{Nodes, PeersFile};
use remote::Remote;
use std::{
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// The daemon of a Forkyard host.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  forkyardd\n  forkyardd --listen 0.0.0.0:7433\n  forkyardd --cluster https://10.0.0.1:2379 --etcd-ca CA.pem --node a --advertise 10.0.0.1\n  forkyardd --join TOKEN --node b --advertise 10.0.0.2\n\nThe `forkyard` command starts one by itself if none runs."
)]
struct Args {
    /// What outlives a restart of the host: records and disks.
    #[arg(long, env = "FORKYARD_STATE_DIR", default_value = "/var/lib/forkyard")]
    state_dir: PathBuf,
    /// What lives only while the host runs: sockets and the pager's mount.
    #[arg(long, env = "FORKYARD_RUN_DIR", default_value = "/run/forkyard")]
    run_dir: PathBuf,
    /// Kernels and guest images, which can be made again unless they were imported.
    #[arg(
        long,
        env = "FORKYARD_CACHE_DIR",
        default_value = "/var/cache/forkyard"
    )]
    cache_dir: PathBuf,
    /// Recipes and the guest's programs; beside the programs if absent.
    #[arg(long, env = "FORKYARD_SHARE_DIR")]
    share_dir: Option<PathBuf>,
    /// Accelerator: auto proves hardware virtualization before it is used.
    #[arg(long, env = "FORKYARD_ACCEL", default_value = "auto")]
    accel: AccelChoice,
    /// Serve the API over the network, too: to those with a token alone, by
    /// TLS alone.
    #[arg(long, env = "FORKYARD_LISTEN", value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Certificate for it, and what vouches for that, in PEM; without one the
    /// daemon makes its own.
    #[arg(
        long,
        env = "FORKYARD_TLS_CERT",
        requires = "tls_key",
        conflicts_with = "node"
    )]
    tls_cert: Option<PathBuf>,
    /// The certificate's key, in PEM.
    #[arg(long, env = "FORKYARD_TLS_KEY", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Other hosts that VMs can be forked to: a TOML file of `[peer.NAME]`, each with
    /// `url`, `token` and `trust`.
    #[arg(
        long,
        env = "FORKYARD_PEERS",
        value_name = "FILE",
        conflicts_with = "node"
    )]
    peers: Option<PathBuf>,
    /// Where other hosts get pages of this one's VMs (UDP); needed to fork to them.
    #[arg(
        long,
        env = "FORKYARD_PAGES",
        value_name = "ADDRESS:PORT",
        requires = "peers"
    )]
    pages: Option<SocketAddr>,
    /// Most clones of a family, alive or promised, at which its guests get no more
    /// by their own calls.
    #[arg(long, env = "FORKYARD_GUEST_CLONES", value_name = "N", default_value_t = GuestBounds::default().clones)]
    guest_clones: u16,
    /// Most forks between a VM and the one its family began with, for its guest to
    /// be allowed another.
    #[arg(long, env = "FORKYARD_GUEST_GENERATIONS", value_name = "N", default_value_t = GuestBounds::default().generations)]
    guest_generations: u16,
    /// Most forks within a minute that the guests of a family get, most tickets
    /// and most checkpoints.
    #[arg(long, env = "FORKYARD_GUEST_FORKS", value_name = "N", default_value_t = GuestBounds::default().forks_a_minute)]
    guest_forks: u16,
    /// Most checkpoints that the guests of a family keep; each takes disk as their
    /// memory does.
    #[arg(long, env = "FORKYARD_GUEST_CHECKPOINTS", value_name = "N", default_value_t = GuestBounds::default().checkpoints)]
    guest_checkpoints: u16,
    /// Have guests say which of their pages are free: those take no memory and are in
    /// no image.
    #[arg(long, env = "FORKYARD_PAGE_REPORTING", value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    page_reporting: bool,
    /// Have guests' kernels guard themselves against their own programs that listen at
    /// the CPU (Spectre and the like), at the cost that has.
    #[arg(long, env = "FORKYARD_GUEST_MITIGATIONS", value_name = "BOOL", action = ArgAction::Set, default_value_t = false)]
    guest_mitigations: bool,
    /// Send what several other hosts want to all of them at once, where IP multicast
    /// passes. Without it, each is sent its own.
    #[arg(long, env = "FORKYARD_MULTICAST", value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    multicast: bool,
    /// What other hosts are sent of a fork before they ask: working-set, what clones
    /// of such an image have wanted before; everything, what lies behind what they ask for,
    /// too, for jobs that need most of their memory; nothing.
    #[arg(
        long,
        env = "FORKYARD_PUSH",
        value_name = "WHAT",
        default_value = "working-set"
    )]
    push: Push,
    /// Give clones what others of their image have wanted, before they ask. Heeded
    /// when the pager starts.
    #[arg(long, env = "FORKYARD_PREFETCH", value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    prefetch: bool,
    /// Seconds after which a QEMU, the pager or an agent that does not answer has
    /// failed; an agent has twice as long to make a clone somebody else, and no
    /// more than ten seconds to hold a guest still.
    #[arg(long, env = "FORKYARD_PATIENCE", value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
    /// Write the description of the API (OpenAPI) and end.
    #[arg(long)]
    openapi: bool,
    /// Become a session of its own, so that no terminal takes it along.
    #[arg(long)]
    detach: bool,
    /// End with the last VM, or when there was none and nothing is asked.
    #[arg(long, conflicts_with = "node")]
    exit_when_idle: bool,
    /// The cluster.
    #[command(flatten)]
    cluster: cluster::ClusterArgs,
}

/// Port of the API, where none is said.
const PORT: u16 = 7433;

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forkyardd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    if args.openapi {
        print!("{}", http::description()?);
        return Ok(());
    }
    forkyard_client::check_run_dir(&args.run_dir)?;
    log::install()?;
    // Whatever the user's is: QEMUs and images' builders read much of what is made here. What they
    // must not read says so.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    if args.detach {
        nix::unistd::setsid().context("cannot become a session of its own")?;
    }
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let bin = std::env::current_exe()?
        .parent()
        .map(PathBuf::from)
        .context("this program is nowhere")?;
    let folders = Folders {
        share: args
            .share_dir
            .clone()
            .unwrap_or_else(|| bin.join("../share/forkyard")),
        bin,
        state: args.state_dir.clone(),
        run: args.run_dir.clone(),
        cache: args.cache_dir.clone(),
    };
    let options = Options {
        accel: args.accel,
        guests: GuestBounds {
            clones: args.guest_clones,
            generations: args.guest_generations,
            forks_a_minute: args.guest_forks,
            checkpoints: args.guest_checkpoints,
        },
        page_reporting: args.page_reporting,
        guest_mitigations: args.guest_mitigations,
        prefetch: args.prefetch,
        multicast: args.multicast,
        push: args.push,
        patience: Duration::from_secs(args.patience),
    };
    let database = folders.database();
    let metrics = metrics::Metrics::install()?;
    if let Some(pages) = args.pages.filter(|at| at.ip().is_unspecified()) {
        anyhow::bail!("--pages {pages}: others must be told an address of this host's");
    }
    let host = listen::host(folders, options).await?;
    let (remote, view, node) = match network(&args).await {
        Ok(network) => network,
        Err(error) => {
            host.close().await;
            return Err(error);
        }
    };
    let peers = args.peers.clone().map(PeersFile::new);
    match (&node, &peers) {
        (Some(node), _) => {
            let cluster = node.cluster().clone();
            host.meet(Some(cluster.reach().pages), Box::new(Nodes(cluster)));
            closed::of_cluster(node, &host).await;
        }
        (None, Some(file)) => host.meet(args.pages, Box::new(file.clone())),
        (None, None) => {}
    }
    let opened = listen::socket(&args.run_dir)
        .and_then(|(socket, listener)| Ok((socket, listener, Access::open(&database)?)));
    let (socket, listener, access) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            host.close().await;
            return Err(error);
        }
    };
    let shared = http::Shared {
        host: host.clone(),
        access: Arc::new(access),
        remote: view,
        metrics,
        idle: Idle::new(),
        cluster: node.clone(),
        bodies: http::Bodies::default(),
    };
    let (stop, stopped) = watch::channel(false);
    let ended = |mut stopped: watch::Receiver<bool>| async move {
        // The sender lives until everything has ended.
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let end = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = idle::close_when_idle(&shared.idle, &host, socket.path()), if args.exit_when_idle => {}
        }
        // New commands must find no daemon rather than one about to end.
        drop(socket);
        stop.send_replace(true);
    };
    let network = async {
        if let Some(remote) = remote {
            let router = http::remote(&shared);
            remote.serve(router, ended(stopped.clone())).await;
        }
    };
    let local =
        axum::serve(listener, http::local(&shared)).with_graceful_shutdown(ended(stopped.clone()));
    // A client that follows a log would keep it for ever.
    let farewell = async {
        ended(stopped.clone()).await;
        tokio::time::sleep(remote::FAREWELL).await;
    };
    let local = async {
        tokio::select! {
            served = local.into_future() => served,
            () = farewell => {
                tracing::info!("requests under way were cut off");
                Ok(())
            }
        }
    };
    let background = async {
        let kept = async {
            match (&node, &peers) {
                (Some(node), _) => node.run(&host).await,
                (None, Some(peers)) => closed::keep_peers(peers, &host).await,
                (None, None) => {}
            }
        };
        tokio::select! {
            () = kept => {}
            () = ended(stopped.clone()) => {}
        }
    };
    let (served, (), (), ()) = tokio::join!(local, network, end, background);
    served?;
    host.close().await;
    Ok(())
}

/// Listens on the network, and becomes a node, if either is wanted.
async fn network(
    args: &Args,
) -> anyhow::Result<(Option<Remote>, Option<RemoteView>, Option<Node>)> {
    let address = args.listen.or_else(|| args.cluster.listen(PORT));
    let Some(address) = address else {
        return Ok((None, None, None));
    };
    let listener = listen::bind(address).await?;
    let listens = listener.local_addr()?;
    let (tls, fingerprint, node) = match args.cluster.wanted() {
        true => {
            let node = args.cluster.start(&args.state_dir, listens.port()).await?;
            let tls = node.cluster().server()?;
            (tls, node.cluster().fingerprint(), Some(node))
        }
        false => {
            let given = args.tls_cert.as_deref().zip(args.tls_key.as_deref());
            let certificate = listen::certificate(address, given, &args.state_dir)?;
            let fingerprint = certificate.fingerprint();
            (certificate.server()?, fingerprint, None)
        }
    };
    let view = RemoteView {
        listen: listens.to_string(),
        fingerprint: fingerprint.to_string(),
    };
    tracing::info!(listen = %view.listen, fingerprint = %view.fingerprint, "listening");
    Ok((Some(Remote { listener, tls }), Some(view), node))
}

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
