//! All contenders against each other, by the number of clones.

use crate::{
    Bench, BenchError, Results,
    forked::{Forkyard, Parent, ms},
    plain::Plain,
    silence::Silence,
};
use forkyard_types::ForkReport;
use serde::Serialize;
use std::{fmt, time::Duration};

/// Beyond so many clones the baselines would take minutes, and more memory
/// than small machines have.
const BASELINE_MOST: u16 = 16;

/// Contender in a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Contender {
    /// A fork into shells kept warm.
    Warm,
    /// A fork that starts its shells.
    Cold,
    /// A live fork into shells kept warm.
    Live,
    /// QEMU's migration to a file, and restores from it.
    Migrate,
    /// QEMU's snapshots in the disk's file.
    Savevm,
    /// Cold boots.
    Boot,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Contender that was measured.
    pub contender: Contender,
    /// Clones made.
    pub clones: u16,
    /// From the request until the last clone's vCPUs ran, in ms.
    pub running_ms: Option<f64>,
    /// From the request until a command had ended in every clone, in ms.
    pub first_command_ms: f64,
    /// CPU time that each clone's QEMU had used by then, in ms: the mean. What
    /// it took to keep it warm is part of it.
    pub cpu_ms: f64,
    /// Memory of a clone's QEMU that it shares with no process, in MiB: the mean.
    pub private_mib: f64,
    /// Private memory once it has had time to settle, in MiB.
    pub settled_mib: f64,
    /// The parent's vCPUs stood still for so long, in ms.
    pub pause_ms: Option<f64>,
    /// Memory saved, and with it what little there is of devices, in MiB.
    pub copied_mib: Option<f64>,
    /// Account of a fork's time.
    pub report: Option<ForkReport>,
}

/// One measurement of a parent's silence.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SilenceSample {
    /// Contender that was measured.
    pub contender: Contender,
    /// The longest time between two of the parent's words, less the usual, in ms.
    pub silence_ms: f64,
    /// The usual time between two words, in ms.
    pub usual_ms: f64,
    /// The pause as the contender itself measured it, in ms.
    pub pause_ms: f64,
}

impl Contender {
    /// Every one of them.
    pub const ALL: [Self; 6] = [
        Self::Warm,
        Self::Cold,
        Self::Live,
        Self::Migrate,
        Self::Savevm,
        Self::Boot,
    ];
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warm => "fork, warm",
            Self::Cold => "fork, cold",
            Self::Live => "fork, live",
            Self::Migrate => "migrate",
            Self::Savevm => "savevm",
            Self::Boot => "boot",
        })
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}: ", self.contender, self.clones)?;
        if let Some(running) = self.running_ms {
            write!(f, "running {running:.0} ms, ")?;
        }
        write!(f, "first command {:.0} ms", self.first_command_ms)
    }
}

impl SilenceSample {
    pub(crate) fn new(contender: Contender, silence: Silence, pause: Duration) -> Self {
        Self {
            contender,
            silence_ms: ms(silence.longest.saturating_sub(silence.usual)),
            usual_ms: ms(silence.usual),
            pause_ms: ms(pause),
        }
    }
}

impl fmt::Display for SilenceSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (who, silence, usual) = (self.contender, self.silence_ms, self.usual_ms);
        write!(
            f,
            "{who}: silent for {silence:.0} ms beyond the usual {usual:.1} ms"
        )
    }
}

/// Measures all of them, round by round.
pub async fn run(bench: &Bench<'_>, results: &mut Results) -> Result<(), BenchError> {
    let options = bench.options;
    let most = options.clones.iter().copied().max().unwrap_or(1);
    (bench.tell)("booting the parents");
    let parent = |warm| Parent {
        name: format!("{}-w{warm}", bench.label),
        memory_mib: options.memory_mib,
        vcpus: options.vcpus,
        fill_mib: options.fill_mib,
        warm,
    };
    let warm = Forkyard::boot(bench.client, parent(most)).await?;
    let cold = Forkyard::boot(bench.client, parent(0)).await?;
    let mut plain = Plain::boot(
        bench.places,
        bench.accel,
        options.vcpus,
        options.memory_mib,
        options.fill_mib,
    )
    .await?;
    results.machine.private_pages = cold.private_pages().await?;
    for round in 0..options.rounds {
        let said = |what: &str| {
            let (round, rounds) = (round + 1, options.rounds);
            (bench.tell)(&format!("round {round} of {rounds}: {what}"));
        };
        for clones in options.clones.iter().copied() {
            for contender in turns(round) {
                let sample = match contender {
                    Contender::Warm => warm.sample(contender, clones).await?,
                    Contender::Cold => cold.sample(contender, clones).await?,
                    Contender::Live => warm.sample(contender, clones).await?,
                    Contender::Migrate | Contender::Savevm | Contender::Boot
                        if clones > BASELINE_MOST =>
                    {
                        continue;
                    }
                    Contender::Migrate => plain.migrations(clones).await?,
                    Contender::Savevm => plain.loadvms(clones).await?,
                    Contender::Boot => plain.boots(clones).await?,
                };
                said(&sample.to_string());
                results.samples.push(sample);
            }
        }
        for contender in turns(round) {
            let silence = match contender {
                Contender::Warm | Contender::Live => warm.silence(contender).await?,
                Contender::Migrate => plain.silence().await?,
                Contender::Cold | Contender::Savevm | Contender::Boot => continue,
            };
            said(&silence.to_string());
            results.silences.push(silence);
        }
    }
    warm.remove().await?;
    cold.remove().await
}

/// Each contender is first, second, third and last in turn.
fn turns(round: u32) -> impl Iterator<Item = Contender> {
    let first = usize::try_from(round).unwrap_or_default() % Contender::ALL.len();
    let all = Contender::ALL.into_iter();
    all.cycle().skip(first).take(Contender::ALL.len())
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
