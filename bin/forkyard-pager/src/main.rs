//! Serves page images as files until told to end.
//!
//! It is two processes: the pager, and a keeper that holds the pager's files and
//! starts another should it die. Either may be killed at any time.
//!
//! SIGTERM and SIGINT: make room for another pager at once, serve the files
//! that are open until they are closed, end. A second one: end now.

use anyhow::Context;
use clap::Parser;
use forkyard_pager::{
    Pager, PagerOptions, PagerSetup, Prefetch, ProgramRole, Programs, keep, other_half,
};
use nix::sys::signal::{SigSet, Signal};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Serves page images as files to the virtual machines of this host.
#[derive(Debug, Parser)]
#[command(name = "forkyard-pager", version)]
struct Arguments {
    /// Directory to mount at; made if missing
    #[arg(long, value_name = "DIR")]
    mount: PathBuf,
    /// Control socket
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Give the kernel nothing it has not asked for
    #[arg(long)]
    no_prefetch: bool,
    /// Compress pages that were not read for so long; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    cold_after: u64,
}

impl Arguments {
    fn setup(&self) -> anyhow::Result<PagerSetup> {
        Ok(PagerSetup {
            mount: self.mount.clone(),
            socket: self.socket.clone(),
            options: self.options(),
            programs: Some(self.programs()?),
        })
    }

    /// Returns the commands by which this program was started, and will be
    /// again.
    fn programs(&self) -> anyhow::Result<Programs> {
        Ok(Programs {
            program: std::env::current_exe().context("this program has no name")?,
            arguments: std::env::args_os().skip(1).collect(),
        })
    }

    fn options(&self) -> PagerOptions {
        PagerOptions {
            prefetch: match self.no_prefetch {
                true => Prefetch::No,
                false => Prefetch::Yes,
            },
            cold_after: match self.cold_after {
                0 => None,
                seconds => Some(Duration::from_secs(seconds)),
            },
        }
    }
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,fuser=error"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    if ProgramRole::given() != ProgramRole::Keeper {
        // Before any thread exists, so that none takes the signal instead.
        signals.thread_block().context("cannot block signals")?;
    }
    let setup = arguments.setup()?;
    let pager = match ProgramRole::given() {
        ProgramRole::Keeper => {
            return keep(other_half()?, arguments.programs()?).context("gave up");
        }
        ProgramRole::Successor => Pager::succeed(setup, other_half()?)?,
        ProgramRole::First => {
            // Fails where a dead pager's mount is, which will be replaced; and if
            // there is no directory afterwards, mounting says so.
            let _ = std::fs::create_dir_all(&arguments.mount);
            Pager::start(setup)?
        }
    };
    let ender = pager.ender();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if signals.wait().is_ok()
                && let Err(error) = ender.withdraw()
            {
                tracing::warn!(%error, "cannot unmount");
            }
            if signals.wait().is_ok() {
                tracing::warn!("told to end twice: ending while files are open");
                ender.part();
                std::process::exit(1);
            }
        })?;
    // The parent process may have stopped listening.
    let _ = writeln!(std::io::stdout(), "ready");
    pager.wait().context("file system failed")
}
