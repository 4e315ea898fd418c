//! `forkyard-frontend`: public addresses that lead to a VM wherever it is and goes.
//!
//! ```text
//! client --TCP, HTTP(S)--> front-end --the API of the host that has the VM--> agent --> server in the guest
//!                             |
//!                             +--updates (RFC 2136)--> name server: the name leads to the nearest front-end
//! ```
//!
//! A client of the daemons like others: it keeps nothing, may be killed, and runs near its users.

mod config;
mod counts;
mod dns;
mod hosts;
mod http;
mod lead;
mod probe;
mod serve;
mod service;
mod target;
mod tcp;

use anyhow::Context;
use clap::Parser;
use config::Config;
use std::{io::IsTerminal, path::PathBuf, process::ExitCode};

/// Public addresses that lead to a VM wherever it is.
///
/// TCP and HTTP at addresses of this machine are carried to a port of a VM, through the daemon of the
/// host that has it. New connections and requests wait while the VM moves. With several front-ends the one
/// that is nearest to the VM is active: the DNS is kept at its addresses, and the others forward what still
/// comes to them.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = concat!(
        "Examples:\n  forkyard-frontend --config /etc/forkyard/frontend.toml\n  forkyard-frontend --config frontend.toml --check\n\n\
         SIGTERM takes nothing new, lets open connections end (bounds.drain_s), and a second one ends at once.\n\n\
         A configuration:\n\n",
        include_str!("../frontend.toml")
    )
)]
struct Arguments {
    /// File of the configuration.
    #[arg(
        long,
        value_name = "FILE",
        env = "FORKYARD_FRONTEND_CONFIG",
        default_value = "/etc/forkyard/frontend.toml"
    )]
    config: PathBuf,
    /// Read the configuration, say if it makes sense, and end.
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forkyard-frontend: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let config = Config::load(&arguments.config)?;
    if arguments.check {
        println!("{} makes sense", arguments.config.display());
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let served = runtime.block_on(serve::serve(config));
    // Connections that are left are cut.
    runtime.shutdown_background();
    served
}
