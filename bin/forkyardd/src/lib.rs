//! The daemon of a Forkyard host: the HTTP API over a host, and the access checks of its routes.
//!
//! A library, so that the daemon can be run on another engine than QEMU; the program
//! `forkyardd` is this one on stock QEMU.

mod args;
mod cluster;
mod e2b;
mod forward;
mod http;
mod idle;
mod listen;
mod log;
mod metrics;
mod police;
mod serve;

use anyhow::Context;
use args::Args;
use clap::Parser;
use forkyard_fork::{HostError, MakeEngine};
use forkyard_service::{audit, counts, doors, gate, lines, now, page, remote, reply, upgrade};
use std::process::ExitCode;

/// Runs the daemon as its arguments say, on this engine, until it ends.
pub fn main(engine: MakeEngine) -> ExitCode {
    match run(Args::parse(), engine) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forkyardd: {error:#}");
            let hint = error.downcast_ref::<HostError>();
            if let Some(hint) = hint.and_then(|error| error.to_api().hint) {
                eprintln!("  {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args, engine: MakeEngine) -> anyhow::Result<()> {
    if args.openapi {
        let text = http::description()?;
        let told = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
        return told.context("the description cannot be written");
    }
    forkyard_api_client::check_run_dir(&args.run_dir)?;
    for folder in [&args.run_dir, &args.state_dir, &args.cache_dir] {
        forkyard_sys_host::private::check_owner(folder)?;
    }
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
        .block_on(serve::serve(args, engine))
}
