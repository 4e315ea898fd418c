//! `forkyardd`: one daemon per host. It may die at any moment: VMs run on,
//! and the next one takes them over.

mod http;
mod idle;
mod reply;

use anyhow::Context;
use clap::Parser;
use forkyard_fork::{AccelChoice, Folders, Host, Options};
use idle::Idle;
use std::{fs, io, os::unix::fs::PermissionsExt, path::PathBuf, process::ExitCode};
use tokio::{
    net::UnixListener,
    signal::unix::{SignalKind, signal},
};
use tracing_subscriber::EnvFilter;

/// The daemon of a Forkyard host.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example: forkyardd\n\nThe `forkyard` command starts one by itself if none runs."
)]
struct Args {
    /// What outlives a restart of the host: records and disks.
    #[arg(long, env = "FORKYARD_STATE_DIR", default_value = "/var/lib/forkyard")]
    state_dir: PathBuf,
    /// What lives only while the host runs: sockets and the pager's mount.
    #[arg(long, env = "FORKYARD_RUN_DIR", default_value = "/run/forkyard")]
    run_dir: PathBuf,
    /// Guest images and kernels, which can always be made again.
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
    /// Become a session of its own, so that no terminal takes it along.
    #[arg(long)]
    detach: bool,
    /// End with the last VM, or when there was none and nothing is asked.
    #[arg(long)]
    exit_when_idle: bool,
}

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
    let filter = EnvFilter::try_from_env("FORKYARD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
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
            .unwrap_or_else(|| bin.join("../share/forkyard")),
        bin,
        state: args.state_dir,
        run: args.run_dir.clone(),
        cache: args.cache_dir,
    };
    let host = Host::open(folders, Options { accel: args.accel }).await?;
    let socket = args.run_dir.join("api.sock");
    // The host holds the folder's lock: a socket found here is a dead daemon's.
    match fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).context("cannot remove the old socket");
        }
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&socket)
        .with_context(|| format!("cannot listen on {}", socket.display()))?;
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600))?;
    let idle = Idle::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let end = {
        let (host, idle) = (host.clone(), idle.clone());
        async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = idle::close_when_idle(&idle, &host, &socket), if args.exit_when_idle => {}
            }
            // New commands must find no daemon rather than one about to end.
            let _ = fs::remove_file(&socket);
        }
    };
    tracing::info!(socket = %args.run_dir.join("api.sock").display(), "listening");
    axum::serve(listener, http::routes(host.clone(), idle))
        .with_graceful_shutdown(end)
        .await?;
    host.close().await;
    Ok(())
}
