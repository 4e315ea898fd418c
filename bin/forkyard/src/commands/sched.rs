//! `sched`: policies in the simulator, and live.

mod live;

use crate::{args::Format, output};
use anyhow::Context;
use clap::{Args as ClapArgs, Subcommand};
use forkyard_api_client::Client;
use forkyard_sched_sim::{Scenario, plots, run, table};
use std::{fs, path::PathBuf, process::ExitCode};

/// `sched`
#[derive(Debug, Subcommand)]
pub enum Sched {
    /// Run a scenario in the simulator: policies, side by side. Takes no daemon.
    #[command(
        after_help = "Examples:\n  forkyard sched simulate bench/sched/fig-4.6.toml --plots /tmp/plots\n  forkyard sched simulate bench/sched/table-4.2.toml --seeds 3 -o json"
    )]
    Simulate(Simulate),
    /// Have a VM's vCPUs scheduled by a policy.
    #[command(
        after_help = "Examples:\n  forkyard sched set p --policy sbco --parallel\n  forkyard sched set --pid 4711 --policy credit --weight 512 --cap 50\n  forkyard sched set --pid 4711 --threads 4713,4714 --policy procco\n  forkyard sched set p --policy sedf --level place --slice 20000 --period 50000"
    )]
    Set(live::Set),
    /// Let a VM's vCPUs go, as if they had never been scheduled.
    #[command(
        after_help = "Examples:\n  forkyard sched release p\n  forkyard sched release --pid 4711 -o json"
    )]
    Release(live::Which),
    /// Show which vCPUs run and wait, shares and speeds.
    #[command(
        after_help = "Example: forkyard sched show -o json; of another node of a cluster: forkyard sched show web"
    )]
    Show(live::Whose),
    /// Show the state, live.
    #[command(after_help = "Example: forkyard sched top, or forkyard sched top --once -o json")]
    Top(live::Top),
    /// Print the state in Prometheus' format, for the node exporter's folder of
    /// texts.
    #[command(
        after_help = "Example: forkyard sched metrics >/var/lib/node_exporter/forkyard_sched.prom\nWith -o json: as forkyard sched show."
    )]
    Metrics(live::Whose),
}

/// Carries out what needs no daemon; None of what does.
pub fn alone(format: Format, sched: &Sched) -> Option<anyhow::Result<ExitCode>> {
    match sched {
        Sched::Simulate(wanted) => Some(simulate(format, wanted)),
        Sched::Set(_) | Sched::Release(_) | Sched::Show(_) | Sched::Top(_) | Sched::Metrics(_) => {
            None
        }
    }
}

/// Carries it out.
pub async fn sched(client: &Client, format: Format, sched: Sched) -> anyhow::Result<ExitCode> {
    match sched {
        Sched::Simulate(wanted) => simulate(format, &wanted),
        Sched::Set(set) => live::set(client, format, set).await,
        Sched::Release(which) => live::release(client, format, which).await,
        Sched::Show(whose) => live::show(client, format, &whose).await,
        Sched::Top(options) => live::top(client, format, options).await,
        Sched::Metrics(whose) => live::metrics(client, format, &whose).await,
    }
}

/// `sched simulate`
#[derive(Debug, ClapArgs)]
pub struct Simulate {
    /// The scenario, in TOML.
    pub file: PathBuf,
    /// Folder for plots, as SVG; none are drawn without.
    #[arg(long)]
    pub plots: Option<PathBuf>,
    /// Seeds to run each case with, in place of the scenario's.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub seeds: Option<u64>,
}

/// Runs a scenario, and prints what came of it.
fn simulate(format: Format, wanted: &Simulate) -> anyhow::Result<ExitCode> {
    let file = wanted.file.display();
    let text = fs::read_to_string(&wanted.file).with_context(|| format!("cannot read {file}"))?;
    let mut scenario = Scenario::parse(&text).with_context(|| file.to_string())?;
    if let Some(seeds) = wanted.seeds {
        scenario.seeds = seeds;
    }
    let results = run(&scenario, |what| tell!("sched: {what}"))?;
    match format {
        Format::Json => output::json(&results)?,
        Format::Text => say_piece!("{}", table(&results)),
    }
    if let Some(folder) = &wanted.plots {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let name = wanted.file.file_stem().unwrap_or_default();
        for path in plots(&results, &name.to_string_lossy(), folder)? {
            tell!("sched: drew {}", path.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}
