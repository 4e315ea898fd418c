//! Forks, measured beside what QEMU can do by itself.
//!
//! Contenders take turns within one run, in another order each round, for a
//! machine is never as fast as it was a minute ago; so only their ratios are
//! claims. Each sample ends what it started, also when it fails.
//!
//! | contender | clones by |
//! |---|---|
//! | `fork, warm` | `forkyard fork`, shells kept warm |
//! | `fork, cold` | `forkyard fork`, shells started by the request |
//! | `migrate` | QEMU: stop, migrate to a file in memory, go on; as many restores from it |
//! | `boot` | as many cold boots |
//!
//! *Running*: from the request until the last clone's vCPUs run. *First
//! command*: from the request until `hostname` has ended in every clone.

mod forked;
mod machine;
mod monitor;
mod plain;
mod report;

pub use report::{Sample, table};

use anyhow::{Context, Result};
use forked::Forkyard;
use forkyard_client::Client;
use plain::Plain;
use serde::Serialize;
use std::path::PathBuf;

/// What to measure.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// Numbers of clones.
    pub clones: Vec<u16>,
    /// Rounds.
    pub rounds: u32,
    /// Memory of the guest, in MiB.
    pub memory_mib: u64,
    /// vCPUs of the guest.
    pub vcpus: u8,
    /// Random bytes put into the guest's memory beside what it has, in MiB.
    pub fill_mib: u64,
}

/// Where the parts of the baseline come from.
#[derive(Clone, Debug)]
pub struct Places {
    /// Guest images and kernels.
    pub cache: PathBuf,
    /// Recipes and the guest's programs.
    pub share: PathBuf,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// What was asked for.
    pub options: Options,
    /// The machine it ran on.
    pub machine: machine::Facts,
    /// Every sample, in the order they were taken.
    pub samples: Vec<Sample>,
}

/// Measures. `tell` hears what is being done.
pub async fn run(
    client: &Client,
    places: &Places,
    options: Options,
    tell: impl Fn(&str),
) -> Result<Results> {
    let mut machine = machine::facts();
    let most = options.clones.iter().copied().max().unwrap_or(1);
    tell("booting the parents");
    let warm = Forkyard::boot(client, "bench-warm", &options, most).await?;
    let cold = Forkyard::boot(client, "bench-cold", &options, 0).await?;
    let plain = Plain::boot(places, &options)
        .await
        .context("the baseline's parent")?;
    let resident = cold.private_pages().await?;
    machine.private_mib = (resident * 4096) >> 20;
    let mut samples = Vec::new();
    for round in 0..options.rounds {
        for clones in options.clones.iter().copied() {
            for turn in 0..4 {
                let contender = (turn + round) % 4;
                let sample = match contender {
                    0 => warm.sample("fork, warm", clones).await,
                    1 => cold.sample("fork, cold", clones).await,
                    2 => plain.migrate(clones).await,
                    _ => plain.boots(clones).await,
                };
                let sample =
                    sample.with_context(|| format!("contender {contender}, {clones} clones"))?;
                tell(&format!(
                    "round {} of {}: {} x {clones}: running {:.0} ms, first command {:.0} ms",
                    round + 1,
                    options.rounds,
                    sample.contender,
                    sample.running_ms,
                    sample.first_command_ms
                ));
                samples.push(sample);
            }
        }
    }
    warm.end().await?;
    cold.end().await?;
    Ok(Results {
        options,
        machine,
        samples,
    })
}
