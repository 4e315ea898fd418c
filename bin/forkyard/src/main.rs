//! `forkyard`: the command line, a client of the daemon's API. It starts the
//! daemon if none runs.
//!
//! Exit codes: 0 done; 1 the request failed; 2 the command line is wrong;
//! 3 some of several things asked for failed; 4 no daemon could be reached;
//! `exec` exits as the guest's command did.

mod args;
mod client;
mod commands;
mod daemon;
mod output;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = args::Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(commands::run(args)),
        Err(source) => Err(anyhow::Error::new(source).context("cannot start")),
    };
    outcome.unwrap_or_else(|error| {
        output::complain(&error);
        match error.downcast_ref::<client::NoDaemon>() {
            Some(_) => ExitCode::from(4),
            None => ExitCode::FAILURE,
        }
    })
}
