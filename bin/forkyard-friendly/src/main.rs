//! `forkyard-friendly`: makes a guest, a container or any control group ask for
//! less when its host is congested, and for more when it is not.
//!
//! It is two processes: the agent, and a guard that undoes all that the agent did
//! when the agent ends, however it ends.

mod agent;
mod census;
mod events;
mod exempt;
mod gate;
mod group;
mod guard;
mod kernel;
mod life;
mod limits;
mod place;
mod settings;
mod standstill;
mod status;
mod stopper;
mod tasks;
mod ticker;
mod wake;

use anyhow::Context;
use clap::{Parser, Subcommand};
use std::{path::PathBuf, process::ExitCode};

/// Have a control group adapt its demand to its host.
#[derive(Debug, Parser)]
#[command(
    name = "forkyard-friendly",
    version,
    after_help = "Example: forkyard-friendly run --cgroup /jobs, and then forkyard-friendly show"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Adapt a group until told to end; then everything is as it was.
    Run(agent::Run),
    /// Start one in the background, unless it runs: returns once it does.
    Start(agent::Run),
    /// End one that runs: returns once everything is as it was.
    Stop {
        /// File in which it says what it does.
        #[arg(long, default_value = status::PLACE)]
        status: PathBuf,
    },
    /// Show what a running one sees and does, as JSON. Exits with 3 if none runs.
    Show {
        /// File in which it says so.
        #[arg(long, default_value = status::PLACE)]
        status: PathBuf,
    },
    /// Change constants in a configuration; a running one follows within a
    /// period.
    #[command(after_help = "Example: forkyard-friendly set monitor.threshold=2 threads.patience=3")]
    Set {
        /// The configuration; made if missing.
        #[arg(long, default_value = settings::PLACE)]
        config: PathBuf,
        /// Begin with what standard input says, in place of what the
        /// configuration said so far.
        #[arg(long)]
        from_stdin: bool,
        /// Changes: KEY=VALUE, as TOML has them.
        #[arg(required_unless_present = "from_stdin", value_name = "KEY=VALUE")]
        changes: Vec<String>,
    },
    /// Say whether a configuration is fine, and what it comes to.
    Check {
        /// The configuration.
        #[arg(default_value = settings::PLACE)]
        config: PathBuf,
    },
    /// Say which build this is: a digest of the program.
    #[command(hide = true)]
    Digest,
    /// Undo, when standard input ends, what was told there.
    #[command(hide = true)]
    Guard,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run(run) => agent::run(&run),
        Command::Start(run) => life::start(&run),
        Command::Stop { status } => life::stop(&status),
        Command::Show { status } => match status::show(&status) {
            Ok(false) => return ExitCode::from(status::NONE_RUNS),
            shown => shown.map(drop),
        },
        Command::Set {
            config,
            from_stdin,
            changes,
        } => settings::base(&config, from_stdin)
            .and_then(|base| settings::set(&config, &base, &changes)),
        Command::Check { config } => settings::check(&config),
        Command::Digest => digest(),
        Command::Guard => guard::stand(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forkyard-friendly: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the digest that `forkyard` compares with that of the program that it
/// would bring.
fn digest() -> anyhow::Result<()> {
    let program = std::fs::read("/proc/self/exe").context("cannot read this program")?;
    println!("{:032x}", xxhash_rust::xxh3::xxh3_128(&program));
    Ok(())
}
