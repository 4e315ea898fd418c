//! Forks, measured beside what QEMU can do by itself.
//!
//! Contenders take turns within one run, in another order each round, for a
//! machine is never as fast as it was a minute ago; so only their ratios are
//! claims. Each sample ends what it started, also when it fails or is
//! interrupted.
//!
//! | contender | clones by |
//! |---|---|
//! | `fork, warm` | `forkyard fork`, shells kept warm |
//! | `fork, cold` | `forkyard fork`, shells started by the request |
//! | `migrate` | QEMU: stop, migrate to a file in memory, go on; as many restores from it |
//! | `savevm` | QEMU: savevm in its qcow2 file, in memory; a copy of it for each clone, loadvm |
//! | `boot` | as many cold boots |
//!
//! *Running*: from the request until the last clone's vCPUs run. *First
//! command*: from the request until `hostname` has ended in every clone.
//! *Pause*: how long the parent's vCPUs stood still. *Silence*: how long its
//! user heard nothing of a program that speaks all the time. *Private*: memory
//! of a clone's QEMU that it shares with no process, after the first command.
//!
//! | experiment | what |
//! |---|---|
//! | [`race`](Experiment::Race) | all contenders, by the number of clones |
//! | [`pauses`](Experiment::Pauses) | the parent's pause by what it has in memory, at rest and writing |
//! | [`rows`](Experiment::Rows) | forks of one parent in a row, and of clones of clones |
//! | [`pages`](Experiment::Pages) | pages copied and read, by what is done to spare them |
//! | [`crowd`](Experiment::Crowd) | as many clones as the machine holds, all at once |

mod crowd;
mod error;
mod forked;
mod goals;
mod machine;
mod monitor;
mod pages;
mod pauses;
mod plain;
mod plot;
mod qemu;
mod race;
mod report;
mod rows;
mod silence;

pub use crowd::CrowdSample;
pub use error::BenchError;
pub use machine::{Accel, MachineFacts};
pub use pages::{PageSample, Spared, pages};
pub use pauses::{PauseSample, Way};
pub use plain::{Plain, Saved};
pub use plot::plots;
pub use race::{Contender, Sample, SilenceSample};
pub use report::table;
pub use rows::RowSample;

use forked::Label;
use forkyard_api_client::Client;
use serde::Serialize;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};

/// One question, and the measurements that answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Experiment {
    /// Comparison of the speed of forks with other means.
    Race,
    /// Dependence of the parent's pause on its memory.
    Pauses,
    /// Comparison of a fork's cost with that of the one before it.
    Rows,
    /// Pages copied and read, by the means that spare them. Each way takes a
    /// daemon of its own: see [`pages()`].
    Pages,
    /// Number of clones that a machine holds.
    Crowd,
}

/// Options of a run.
#[derive(Clone, Debug, Serialize)]
pub struct MeasureOptions {
    /// Experiments.
    pub experiments: Vec<Experiment>,
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
    /// Clones of the crowd.
    pub crowd: Vec<u16>,
    /// Memory of the parents whose pauses are measured, in MiB.
    pub sizes_mib: Vec<u64>,
}

/// Sources of the parts of the baseline.
#[derive(Clone, Debug)]
pub struct BaselineSources {
    /// Guest images and kernels.
    pub cache: PathBuf,
    /// Recipes and the guest's programs.
    pub share: PathBuf,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Options of the run.
    pub options: MeasureOptions,
    /// The machine it ran on.
    pub machine: MachineFacts,
    /// Every sample, in the order they were taken.
    pub samples: Vec<Sample>,
    /// Every silence, likewise.
    pub silences: Vec<SilenceSample>,
    /// Every pause, likewise.
    pub pauses: Vec<PauseSample>,
    /// Every fork in a row, likewise.
    pub rows: Vec<RowSample>,
    /// Pages copied and read, likewise.
    pub pages: Vec<PageSample>,
    /// Every crowd, likewise.
    pub crowds: Vec<CrowdSample>,
}

/// Means of an experiment.
struct Bench<'a> {
    client: &'a Client,
    places: &'a BaselineSources,
    /// Accelerator that the daemon gives its guests: the baseline has the same.
    accel: Accel,
    options: &'a MeasureOptions,
    label: Label,
    tell: &'a dyn Fn(&str),
}

/// Measures; `tell` hears what is being done. An interrupt or a request to
/// terminate ends it as an error. Nothing it started is left, whatever happens.
pub async fn run(
    client: &Client,
    places: &BaselineSources,
    options: MeasureOptions,
    tell: impl Fn(&str),
) -> Result<Results, BenchError> {
    let label = Label::random();
    let mut results = Results {
        options: options.clone(),
        machine: machine::facts(),
        samples: Vec::new(),
        silences: Vec::new(),
        pauses: Vec::new(),
        rows: Vec::new(),
        pages: Vec::new(),
        crowds: Vec::new(),
    };
    let measured = async {
        // A daemon that was started for VMs goes with the last of them.
        let accel = forked::anchor(client, label).await?;
        results.machine.accel = accel;
        let bench = Bench {
            client,
            places,
            accel,
            options: &options,
            label,
            tell: &tell,
        };
        measure(&bench, &mut results).await
    };
    let measured = tokio::select! {
        measured = measured => measured,
        stopped = told_to_stop() => Err(stopped),
    };
    // QEMUs of the baseline have gone with what was dropped above.
    let ended = forked::end_all(client, label).await;
    measured?;
    ended.map(|()| results)
}

async fn measure(bench: &Bench<'_>, results: &mut Results) -> Result<(), BenchError> {
    for experiment in &bench.options.experiments {
        match experiment {
            Experiment::Race => race::run(bench, results).await?,
            Experiment::Pauses => results.pauses = pauses::run(bench).await?,
            Experiment::Rows => results.rows = rows::run(bench).await?,
            Experiment::Crowd => results.crowds = crowd::run(bench).await?,
            // By daemons of their own.
            Experiment::Pages => {}
        }
    }
    Ok(())
}

async fn told_to_stop() -> BenchError {
    let listening = signal(SignalKind::interrupt())
        .and_then(|interrupt| Ok((interrupt, signal(SignalKind::terminate())?)));
    match listening {
        Ok((mut interrupt, mut terminate)) => {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            BenchError::Interrupted
        }
        Err(error) => BenchError::host("listen for signals")(error),
    }
}
