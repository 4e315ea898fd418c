//! `bench`.

use crate::{
    args::{self, Bench, Format},
    daemon, output,
};
use anyhow::Context;
use forkyard_bench::{Experiment, Options, Places, plots, table};
use forkyard_client::Client;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

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
    let places = Places {
        cache: folder("FORKYARD_CACHE_DIR").unwrap_or_else(|| "/var/cache/forkyard".into()),
        share: folder("FORKYARD_SHARE_DIR")
            .or(beside)
            .context("where are the recipes?")?,
    };
    let experiments = bench.only.into_iter().map(|one| match one {
        args::Experiment::Race => Experiment::Race,
        args::Experiment::Pauses => Experiment::Pauses,
        args::Experiment::Rows => Experiment::Rows,
    });
    let options = Options {
        experiments: experiments.collect(),
        clones: bench.clones,
        rounds: bench.rounds,
        memory_mib: bench.memory,
        vcpus: bench.vcpus,
        fill_mib: bench.fill,
        sizes_mib: bench.sizes,
    };
    let measured =
        forkyard_bench::run(client, &places, options, |what| eprintln!("bench: {what}")).await;
    daemon::gone(client, run_dir).await;
    let results = measured?;
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
        Format::Text => print!("{text}"),
    }
    Ok(ExitCode::SUCCESS)
}
