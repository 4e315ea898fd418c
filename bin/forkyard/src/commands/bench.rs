//! `bench`.

use crate::{args::Format, daemon, output};
use anyhow::Context;
use clap::{Args, ValueEnum};
use forkyard_api_client::Client;
use forkyard_measure::{
    BaselineSources, Experiment, MeasureOptions, PageSample, Spared, plots, table,
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Memory that a parent once had whose clones' pages are counted, in MiB.
const PAGES_FILL: u64 = 192;

/// Experiments of `bench`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Wanted {
    /// Forks against QEMU's own means, by the number of clones.
    Race,
    /// The parent's pause, by what it has in memory.
    Pauses,
    /// Forks in a row, and of clones of clones.
    Rows,
    /// Pages copied and read, with and without what spares them.
    Pages,
    /// As many clones as the machine holds.
    Crowd,
}

/// `bench`
#[derive(Debug, Args)]
pub struct Bench {
    /// Experiments to do.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "race,pauses,rows,pages,crowd"
    )]
    pub only: Vec<Wanted>,
    /// Numbers of clones to measure; beyond 16, forks alone.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    pub clones: Vec<u16>,
    /// Rounds; the contenders take turns in each.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Memory of the guest in MiB.
    #[arg(long, default_value_t = 512)]
    pub memory: u64,
    /// vCPUs of the guest.
    #[arg(long, default_value_t = 2)]
    pub vcpus: u8,
    /// Random bytes to put into its memory, in MiB: what it has to copy.
    #[arg(long, default_value_t = 40)]
    pub fill: u64,
    /// MiB of parents whose pauses are measured.
    #[arg(long, value_delimiter = ',', default_value = "64,128,256,512,1024")]
    pub sizes: Vec<u64>,
    /// Clones of the crowd: of 1 vCPU and 128 MiB.
    #[arg(long, value_delimiter = ',', default_value = "64,200")]
    pub crowd: Vec<u16>,
    /// Folder for the results.
    #[arg(long, default_value = "bench/out")]
    pub out: PathBuf,
}

/// Measures, and writes what came of it as JSON, as tables and as plots.
pub async fn bench(
    client: &Client,
    run_dir: &Path,
    format: Format,
    bench: Bench,
) -> anyhow::Result<ExitCode> {
    let beside = env::current_exe()?
        .parent()
        .map(|bin| bin.join("../share/forkyard"));
    let folder = |name: &str| env::var_os(name).map(PathBuf::from);
    let places = BaselineSources {
        cache: folder("FORKYARD_CACHE_DIR").unwrap_or_else(|| "/var/cache/forkyard".into()),
        share: folder("FORKYARD_SHARE_DIR")
            .or(beside)
            .context("where are the recipes?")?,
    };
    let experiments = bench.only.into_iter().map(|one| match one {
        Wanted::Race => Experiment::Race,
        Wanted::Pauses => Experiment::Pauses,
        Wanted::Rows => Experiment::Rows,
        Wanted::Pages => Experiment::Pages,
        Wanted::Crowd => Experiment::Crowd,
    });
    let options = MeasureOptions {
        experiments: experiments.collect(),
        clones: bench.clones,
        rounds: bench.rounds,
        memory_mib: bench.memory,
        vcpus: bench.vcpus,
        fill_mib: bench.fill,
        sizes_mib: bench.sizes,
        crowd: bench.crowd,
    };
    let spared = options.experiments.contains(&Experiment::Pages);
    let measured = forkyard_measure::run(client, &places, options, tell).await;
    daemon::gone(client, run_dir).await;
    let mut results = measured?;
    if spared {
        results.pages = pages(run_dir, &results.options).await?;
    }
    fs::create_dir_all(&bench.out)
        .with_context(|| format!("cannot create {}", bench.out.display()))?;
    let text = table(&results);
    for (name, content) in [
        ("fork.json", serde_json::to_string_pretty(&results)?),
        ("fork.md", text.clone()),
    ] {
        let path = bench.out.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    plots(&results, &bench.out)?;
    match format {
        Format::Json => output::json(&results)?,
        Format::Text => say_piece!("{text}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(what: &str) {
    tell!("bench: {what}");
}

/// Pages copied and read, each way by a daemon that does so, with folders of its
/// own.
async fn pages(run_dir: &Path, options: &MeasureOptions) -> anyhow::Result<Vec<PageSample>> {
    let mut samples = Vec::new();
    for round in 0..options.rounds {
        for spared in Spared::ALL {
            let place = run_dir.join(format!("pages-{round}-{spared}").replace(' ', "-"));
            let on = |on: bool| if on { "true" } else { "false" };
            let variables = [
                ("FORKYARD_PAGE_REPORTING", on(spared.avoidance).into()),
                ("FORKYARD_PREFETCH", on(spared.prefetch).into()),
                ("FORKYARD_STATE_DIR", place.join("state").into_os_string()),
            ];
            let client = daemon::ensure_with(&place, &variables).await?;
            let size = (options.memory_mib, PAGES_FILL.min(options.memory_mib / 2));
            let sample = forkyard_measure::pages(&client, spared, size, tell).await;
            daemon::gone(&client, &place).await;
            samples.push(sample?);
        }
    }
    Ok(samples)
}
