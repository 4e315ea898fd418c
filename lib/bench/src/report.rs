//! Samples, and what they come to.

use crate::{Results, forked::ms, silence::Silence};
use forkyard_types::{ByteCount, ForkReport};
use serde::Serialize;
use std::{
    fmt::{self, Write},
    time::Duration,
};

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Contender {
    /// A fork into shells kept warm.
    Warm,
    /// A fork that starts its shells.
    Cold,
    /// QEMU's migration to a file, and restores from it.
    Migrate,
    /// Cold boots.
    Boot,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Who.
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
    /// The parent's vCPUs stood still for so long, in ms.
    pub pause_ms: Option<f64>,
    /// Memory saved, and with it what little there is of devices, in MiB.
    pub copied_mib: Option<f64>,
    /// Where a fork's time went.
    pub report: Option<ForkReport>,
}

/// One measurement of a parent's silence.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SilenceSample {
    /// Who.
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
    pub const ALL: [Self; 4] = [Self::Warm, Self::Cold, Self::Migrate, Self::Boot];
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warm => "fork, warm",
            Self::Cold => "fork, cold",
            Self::Migrate => "migrate",
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

/// The same, for people: medians with the least and the most, and how many
/// times as long the migration of the same run took.
pub fn table(results: &Results) -> String {
    let mut text = heading(results);
    text.push_str(
        "| clones | contender | running, ms | times faster | first command, ms | times faster | CPU a clone, ms | pause, ms | copied, MiB |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for clones in results.options.clones.iter().copied() {
        let of = |contender: Contender, what: fn(&Sample) -> Option<f64>| {
            let samples = results.samples.iter();
            let same = samples.filter(|s| s.clones == clones && s.contender == contender);
            Spread::of(same.filter_map(what).collect())
        };
        for contender in Contender::ALL {
            let running = |contender| of(contender, |s| s.running_ms);
            let command = |contender| of(contender, |s| Some(s.first_command_ms));
            let cells = [
                clones.to_string(),
                contender.to_string(),
                shown(running(contender)),
                times(running(Contender::Migrate), running(contender)),
                shown(command(contender)),
                times(command(Contender::Migrate), command(contender)),
                shown(of(contender, |s| Some(s.cpu_ms))),
                shown(of(contender, |s| s.pause_ms)),
                shown(of(contender, |s| s.copied_mib)),
            ];
            row(&mut text, &cells);
        }
    }
    text.push_str(
        "\nThe parent as its user hears it, by a program that speaks every millisecond or so, around a fork into one clone:\n\n\
         | contender | silence, ms | usual, ms | pause, ms |\n|---|---|---|---|\n",
    );
    for contender in [Contender::Warm, Contender::Migrate] {
        let of = |what: fn(&SilenceSample) -> f64| {
            let same = results.silences.iter().filter(|s| s.contender == contender);
            shown(Spread::of(same.map(what).collect()))
        };
        let cells = [
            contender.to_string(),
            of(|s| s.silence_ms),
            of(|s| s.usual_ms),
            of(|s| s.pause_ms),
        ];
        row(&mut text, &cells);
    }
    text
}

fn heading(results: &Results) -> String {
    let (machine, options) = (&results.machine, &results.options);
    let private = machine.private_pages.bytes().map(mib).unwrap_or_default();
    format!(
        "# Forks beside QEMU's own means\n\n\
         {} cores ({}), Linux {}, {}, {}; load averages before: {}. \
         Guest: {} vCPUs, {} MiB, {private:.0} MiB of it private when measuring began.\n\n\
         {} rounds, contenders interleaved: median (least to most). Only the ratios to `migrate` of the same run are claims.\n\n",
        machine.cores,
        machine.processor,
        machine.kernel,
        machine.qemu,
        machine.accel,
        machine.load,
        options.vcpus,
        options.memory_mib,
        options.rounds,
    )
}

fn row(text: &mut String, cells: &[String]) {
    // A string takes all that is written to it.
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

/// How values are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
        Some(Self {
            least,
            median: (values[low] + values[high]) / 2.0,
            most,
        })
    }
}

fn shown(spread: Option<Spread>) -> String {
    spread.map_or(
        "-".to_owned(),
        |Spread {
             least,
             median,
             most,
         }| { format!("{median:.1} ({least:.1} to {most:.1})") },
    )
}

fn times(slow: Option<Spread>, fast: Option<Spread>) -> String {
    match (slow, fast) {
        (Some(slow), Some(fast)) => format!("{:.2}", slow.median / fast.median),
        (Some(_) | None, None) | (None, Some(_)) => "-".to_owned(),
    }
}

/// In MiB.
pub(crate) fn mib(size: ByteCount) -> f64 {
    const KIB: u64 = 1 << 10;
    // Exact: no memory has 2^32 KiB.
    f64::from(u32::try_from(size.0 / KIB).unwrap_or(u32::MAX)) / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Facts, Options};

    fn spread(values: &[f64]) -> Option<(f64, f64, f64)> {
        let Spread {
            least,
            median,
            most,
        } = Spread::of(values.to_vec())?;
        Some((least, median, most))
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[7.0]), Some((7.0, 7.0, 7.0)));
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((1.0, 2.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((1.0, 2.5, 4.0)));
    }

    #[test]
    fn a_ratio_is_to_the_migration_of_as_many_clones() {
        let sample = |contender, clones, running_ms| Sample {
            contender,
            clones,
            running_ms: Some(running_ms),
            first_command_ms: 100.0,
            cpu_ms: 8.0,
            pause_ms: None,
            copied_mib: None,
            report: None,
        };
        let results = Results {
            options: Options {
                clones: vec![1, 4],
                rounds: 1,
                memory_mib: 512,
                vcpus: 2,
                fill_mib: 0,
            },
            machine: Facts::default(),
            samples: vec![
                sample(Contender::Warm, 1, 10.0),
                sample(Contender::Migrate, 1, 30.0),
                sample(Contender::Warm, 4, 20.0),
                sample(Contender::Migrate, 4, 100.0),
            ],
            silences: Vec::new(),
        };
        let table = table(&results);
        for line in [
            "| 1 | fork, warm | 10.0 (10.0 to 10.0) | 3.00 | 100.0 (100.0 to 100.0) | 1.00 | 8.0 (8.0 to 8.0) | - | - |",
            "| 4 | fork, warm | 20.0 (20.0 to 20.0) | 5.00 | 100.0 (100.0 to 100.0) | 1.00 | 8.0 (8.0 to 8.0) | - | - |",
            "| 4 | boot | - | - | - | - | - | - | - |",
        ] {
            assert!(table.contains(line), "{line} is not in\n{table}");
        }
    }
}
