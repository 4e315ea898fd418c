//! Samples, and what they come to.

use crate::Results;
use serde::Serialize;
use std::fmt::Write;

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Who.
    pub contender: String,
    /// Clones made.
    pub clones: u16,
    /// From the request until the last clone's vCPUs ran, in ms.
    pub running_ms: f64,
    /// From the request until a command had ended in every clone, in ms.
    pub first_command_ms: f64,
    /// The parent's vCPUs stood still for so long, in ms.
    pub pause_ms: Option<f64>,
}

/// The same, for people: medians, and how much longer each took than the
/// migration of the same run.
pub fn table(results: &Results) -> String {
    let machine = &results.machine;
    let mut text = format!(
        "# Forks beside QEMU's own means\n\n\
         {} cores ({}), Linux {}, {}, TCG. Guest: {} vCPUs, {} MiB, {} MiB of it private when measuring began. \
         {} rounds, interleaved; medians. Only the ratios to `migrate` of the same run are claims.\n\n\
         | clones | contender | running ms | first command ms | pause ms | running, times faster | first command, times faster |\n\
         |---|---|---|---|---|---|---|\n",
        machine.cores,
        machine.processor,
        machine.kernel,
        machine.qemu,
        results.options.vcpus,
        results.options.memory_mib,
        machine.private_mib,
        results.options.rounds,
    );
    for clones in &results.options.clones {
        let of = |contender: &str, what: fn(&Sample) -> Option<f64>| {
            let mine = results
                .samples
                .iter()
                .filter(|s| s.clones == *clones && s.contender == contender);
            median(mine.filter_map(what).collect())
        };
        let running = |contender: &str| of(contender, |s| Some(s.running_ms));
        let command = |contender: &str| of(contender, |s| Some(s.first_command_ms));
        for contender in ["fork, warm", "fork, cold", "migrate", "boot"] {
            let _ = writeln!(
                text,
                "| {clones} | {contender} | {} | {} | {} | {} | {} |",
                shown(running(contender), 1),
                shown(command(contender), 1),
                shown(of(contender, |s| s.pause_ms), 1),
                shown(ratio(running("migrate"), running(contender)), 2),
                shown(ratio(command("migrate"), command(contender)), 2),
            );
        }
    }
    text
}

fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    Some(a? / b?)
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len().checked_sub(1)? / 2;
    match values.len() % 2 {
        0 => Some((values[middle] + values[middle + 1]) / 2.0),
        _ => Some(values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
