//! Samples, and what they come to.

use crate::{
    Contender, CrowdSample, Experiment, PageSample, Results, Sample, SilenceSample, Spared,
    goals::goals, pauses::Way, rows::RowSample,
};
use forkyard_types::ByteCount;
use std::fmt::Write;

/// Formats the results for people: medians with the least and the most, and how
/// many times as long the migration of the same run took.
pub fn table(results: &Results) -> String {
    let mut text = heading(results);
    for experiment in &results.options.experiments {
        match experiment {
            Experiment::Race => race(results, &mut text),
            Experiment::Pauses => pauses(results, &mut text),
            Experiment::Rows => rows(results, &mut text),
            Experiment::Pages => pages(results, &mut text),
            Experiment::Crowd => crowds(results, &mut text),
        }
    }
    let goals = goals(results);
    if !goals.is_empty() {
        text.push_str("\n| goal | wanted | measured | met |\n|---|---|---|---|\n");
    }
    for goal in goals {
        let met = if goal.met { "yes" } else { "no" };
        row(
            &mut text,
            &[
                goal.what.into(),
                goal.wanted.into(),
                goal.measured,
                met.into(),
            ],
        );
    }
    text
}

fn pages(results: &Results, text: &mut String) {
    text.push_str(
        "\nPages of 4 KiB, of a parent that has freed most of what it had, and of its 8 clones, which write over that:\n\n\
         | spared by | copied | read by the clones | of them data | requests | jobs done, ms |\n|---|---|---|---|---|---|\n",
    );
    for spared in Spared::ALL {
        let of = |what: fn(&PageSample) -> f64| {
            let same = results.pages.iter().filter(|s| s.spared == spared);
            shown_whole(Spread::of(same.map(what).collect()))
        };
        let cells = [
            spared.to_string(),
            of(|s| s.copied.into()),
            of(|s| s.read.into()),
            of(|s| s.data.into()),
            of(|s| s.requests.into()),
            of(|s| s.done_ms),
        ];
        row(text, &cells);
    }
}

fn crowds(results: &Results, text: &mut String) {
    text.push_str(
        "\nOne fork into many clones of 1 vCPU and 128 MiB, none of them warm:\n\n\
         | clones | running, ms | first command, ms | pause, ms | settled, MiB each | taken of the host, MiB |\n|---|---|---|---|---|---|\n",
    );
    for clones in results.options.crowd.iter().copied() {
        let of = |what: fn(&CrowdSample) -> f64| {
            let same = results.crowds.iter().filter(|s| s.clones == clones);
            shown(Spread::of(same.map(what).collect()))
        };
        let cells = [
            clones.to_string(),
            of(|s| s.running_ms),
            of(|s| s.first_command_ms),
            of(|s| s.pause_ms),
            of(|s| s.settled_mib),
            of(|s| s.taken_mib),
        ];
        row(text, &cells);
    }
}

fn shown_whole(spread: Option<Spread>) -> String {
    spread.map_or("-".to_owned(), |s| {
        format!("{:.0} ({:.0} to {:.0})", s.median, s.least, s.most)
    })
}

fn race(results: &Results, text: &mut String) {
    text.push_str(
        "| clones | contender | running, ms | times faster | first command, ms | times faster | CPU a clone, ms | private a clone, MiB | settled, MiB | pause, ms | copied, MiB |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
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
                shown(of(contender, |s| Some(s.private_mib))),
                shown(of(contender, |s| Some(s.settled_mib))),
                shown(of(contender, |s| s.pause_ms)),
                shown(of(contender, |s| s.copied_mib)),
            ];
            row(text, &cells);
        }
    }
    text.push_str(
        "\nThe parent as its user hears it, by a program that speaks every millisecond or so, around a fork into one clone:\n\n\
         | contender | silence, ms | usual, ms | pause, ms |\n|---|---|---|---|\n",
    );
    for contender in [Contender::Warm, Contender::Live, Contender::Migrate] {
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
        row(text, &cells);
    }
}

fn pauses(results: &Results, text: &mut String) {
    let ways = Way::ALL.map(|way| way.to_string()).join(", ms | ");
    let _ = writeln!(
        text,
        "\nThe parent's pause by what it was filled with (it has some 25 MiB beside that):\n\n\
         | filled, MiB | in it | {ways}, ms |\n|---|---|{}",
        "---|".repeat(Way::ALL.len())
    );
    for size in results.options.sizes_mib.iter().copied() {
        for writing in [false, true] {
            let of = |way| {
                let all = results.pauses.iter();
                let same = all.filter(|s| (s.size_mib, s.writing, s.way) == (size, writing, way));
                shown(Spread::of(same.map(|s| s.pause_ms).collect()))
            };
            let what = if writing {
                "a program writes"
            } else {
                "nothing runs"
            };
            let mut cells = vec![size.to_string(), what.to_owned()];
            cells.extend(Way::ALL.map(of));
            row(text, &cells);
        }
    }
}

fn rows(results: &Results, text: &mut String) {
    text.push_str(
        "\nForks into 4 clones in a row, then of a clone, of its clone, and so on:\n\n\
         | forks before | generations above | running, ms | first command, ms | pause, ms | pages copied | pages read |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let mut kinds: Vec<_> = results.rows.iter().map(kind).collect();
    kinds.sort();
    kinds.dedup();
    for (depth, forks_before) in kinds {
        let spread = |what: fn(&RowSample) -> f64| {
            let same = results.rows.iter();
            let same = same.filter(|s| kind(s) == (depth, forks_before));
            Spread::of(same.map(what).collect())
        };
        let of = |what| shown(spread(what));
        let whole = |what| spread(what).map_or("-".to_owned(), |s| format!("{:.0}", s.median));
        let cells = [
            forks_before.to_string(),
            depth.to_string(),
            of(|s| s.running_ms),
            of(|s| s.first_command_ms),
            of(|s| s.pause_ms),
            whole(|s| f64::from(s.pages_captured)),
            whole(|s| f64::from(s.pages_fetched)),
        ];
        row(text, &cells);
    }
}

fn kind(sample: &RowSample) -> (u16, u16) {
    (sample.depth, sample.forks_before)
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

/// Distribution of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
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
    use crate::{MachineFacts, MeasureOptions};

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
            private_mib: 9.0,
            settled_mib: 10.0,
            pause_ms: None,
            copied_mib: None,
            report: None,
        };
        let results = Results {
            options: MeasureOptions {
                clones: vec![1, 4],
                rounds: 1,
                memory_mib: 512,
                vcpus: 2,
                fill_mib: 0,
                sizes_mib: Vec::new(),
                crowd: Vec::new(),
                experiments: vec![Experiment::Race],
            },
            machine: MachineFacts::default(),
            samples: vec![
                sample(Contender::Warm, 1, 10.0),
                sample(Contender::Migrate, 1, 30.0),
                sample(Contender::Warm, 4, 20.0),
                sample(Contender::Migrate, 4, 100.0),
            ],
            silences: Vec::new(),
            pauses: Vec::new(),
            rows: Vec::new(),
            pages: Vec::new(),
            crowds: Vec::new(),
        };
        let table = table(&results);
        for line in [
            "| 1 | fork, warm | 10.0 (10.0 to 10.0) | 3.00 | 100.0 (100.0 to 100.0) | 1.00 | 8.0 (8.0 to 8.0) | 9.0 (9.0 to 9.0) | 10.0 (10.0 to 10.0) | - | - |",
            "| 4 | fork, warm | 20.0 (20.0 to 20.0) | 5.00 | 100.0 (100.0 to 100.0) | 1.00 | 8.0 (8.0 to 8.0) | 9.0 (9.0 to 9.0) | 10.0 (10.0 to 10.0) | - | - |",
            "| 4 | boot | - | - | - | - | - | - | - | - | - |",
        ] {
            assert!(table.contains(line), "{line} is not in\n{table}");
        }
    }
}
