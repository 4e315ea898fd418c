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
//! | `boot` | as many cold boots |
//!
//! *Running*: from the request until the last clone's vCPUs run. *First
//! command*: from the request until `hostname` has ended in every clone.
//! *Pause*: how long the parent's vCPUs stood still. *Silence*: how long its
//! user heard nothing of a program that speaks all the time.

mod error;
mod forked;
mod machine;
mod monitor;
mod plain;
mod qemu;
mod report;
mod silence;

pub use error::BenchError;
pub use machine::Facts;
pub use report::{Contender, Sample, SilenceSample, table};

use forked::{Forkyard, Label};
use forkyard_client::Client;
use plain::Plain;
use serde::Serialize;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};

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
    pub machine: Facts,
    /// Every sample, in the order they were taken.
    pub samples: Vec<Sample>,
    /// Every silence, likewise.
    pub silences: Vec<SilenceSample>,
}

/// Measures; `tell` hears what is being done. An interrupt or a request to
/// terminate ends it as an error. Nothing it started is left, whatever happens.
pub async fn run(
    client: &Client,
    places: &Places,
    options: Options,
    tell: impl Fn(&str),
) -> Result<Results, BenchError> {
    let label = Label::random();
    let measured = tokio::select! {
        measured = measure(client, places, options, label, tell) => measured,
        stopped = told_to_stop() => Err(stopped),
    };
    // QEMUs of the baseline have gone with what was dropped above.
    let ended = forked::end_all(client, label).await;
    let results = measured?;
    ended.map(|()| results)
}

async fn measure(
    client: &Client,
    places: &Places,
    options: Options,
    label: Label,
    tell: impl Fn(&str),
) -> Result<Results, BenchError> {
    let mut machine = machine::facts();
    let most = options.clones.iter().copied().max().unwrap_or(1);
    tell("booting the parents");
    let warm = Forkyard::boot(client, Contender::Warm, label, &options, most).await?;
    let cold = Forkyard::boot(client, Contender::Cold, label, &options, 0).await?;
    let mut plain = Plain::boot(places, &options).await?;
    machine.private_pages = cold.private_pages().await?;
    let mut samples = Vec::new();
    let mut silences = Vec::new();
    for round in 0..options.rounds {
        let said = |what: &str| {
            tell(&format!(
                "round {} of {}: {what}",
                round + 1,
                options.rounds
            ))
        };
        for clones in options.clones.iter().copied() {
            for contender in turns(round) {
                let sample = match contender {
                    Contender::Warm => warm.sample(clones).await?,
                    Contender::Cold => cold.sample(clones).await?,
                    Contender::Migrate => plain.migrations(clones).await?,
                    Contender::Boot => plain.boots(clones).await?,
                };
                said(&sample.to_string());
                samples.push(sample);
            }
        }
        for contender in turns(round) {
            let silence = match contender {
                Contender::Warm => warm.silence().await?,
                Contender::Migrate => plain.silence().await?,
                Contender::Cold | Contender::Boot => continue,
            };
            said(&silence.to_string());
            silences.push(silence);
        }
    }
    Ok(Results {
        options,
        machine,
        samples,
        silences,
    })
}

/// Everyone is first, second, third and last in turn.
fn turns(round: u32) -> impl Iterator<Item = Contender> {
    let first = usize::try_from(round).unwrap_or_default() % Contender::ALL.len();
    let all = Contender::ALL.into_iter();
    all.cycle().skip(first).take(Contender::ALL.len())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_as_many_rounds_as_there_are_contenders_each_has_been_first() {
        let rounds = 0..u32::try_from(Contender::ALL.len()).expect("few");
        let mut first: Vec<_> = rounds.filter_map(|round| turns(round).next()).collect();
        first.sort();
        assert_eq!(first, Contender::ALL);
    }

    #[test]
    fn everyone_has_one_turn_a_round() {
        for round in 0..9 {
            let mut all: Vec<_> = turns(round).collect();
            all.sort();
            assert_eq!(all, Contender::ALL);
        }
    }
}
