//! Forks one after the other, and clones of clones: whether a fork costs what
//! the one before it did.

use crate::{
    Bench, BenchError,
    forked::{Forked, Forkyard, Parent, ms},
};
use forkyard_types::{ForkMode, PageCount};
use serde::Serialize;
use std::{fmt, time::Duration};

/// Forks of one parent.
const IN_A_ROW: u16 = 10;
/// Clones of each.
const CLONES: u16 = 4;
/// Generations.
const DEEP: u16 = 3;

/// One fork.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RowSample {
    /// Number of forks the VM had before; none of a clone of a clone.
    pub forks_before: u16,
    /// Number of generations above the VM: 0 for one that booted.
    pub depth: u16,
    /// Clones made.
    pub clones: u16,
    /// From the request until the last clone's vCPUs ran, in ms.
    pub running_ms: f64,
    /// From the request until a command had ended in every clone, in ms.
    pub first_command_ms: f64,
    /// The VM's pause, in ms.
    pub pause_ms: f64,
    /// Pages copied.
    pub pages_captured: u32,
    /// Pages of the image read until the clones were ready.
    pub pages_fetched: u32,
}

impl fmt::Display for RowSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            forks_before,
            depth,
            running_ms,
            first_command_ms,
            pause_ms,
            ..
        } = self;
        write!(
            f,
            "after {forks_before} forks, depth {depth}: running {running_ms:.0} ms, first command {first_command_ms:.0} ms, pause {pause_ms:.1} ms"
        )
    }
}

/// Measures, round by round.
pub async fn run(bench: &Bench<'_>) -> Result<Vec<RowSample>, BenchError> {
    let mut samples = Vec::new();
    for round in 0..bench.options.rounds {
        let mut keep = |sample: RowSample| {
            (bench.tell)(&format!("rows, round {}: {sample}", round + 1));
            samples.push(sample);
        };
        let options = bench.options;
        let parent = Parent {
            name: format!("{}-row-{round}", bench.label),
            memory_mib: options.memory_mib,
            vcpus: options.vcpus,
            fill_mib: options.fill_mib,
            warm: 0,
        };
        let mut vm = Forkyard::boot(bench.client, parent).await?;
        for forks_before in 0..IN_A_ROW {
            let (sample, forked) = one(&vm, forks_before, 0).await?;
            keep(sample);
            vm.end(&forked.clones).await?;
        }
        let mut above = Vec::new();
        for depth in 0..=DEEP {
            let before = if depth == 0 { IN_A_ROW } else { 0 };
            let (sample, forked) = one(&vm, before, depth).await?;
            keep(sample);
            let Some((first, rest)) = forked.clones.split_first() else {
                break;
            };
            vm.end(rest).await?;
            let next = vm.of_clone(first);
            above.push(std::mem::replace(&mut vm, next));
        }
        vm.remove().await?;
        for vm in above.into_iter().rev() {
            vm.remove().await?;
        }
    }
    Ok(samples)
}

async fn one(
    vm: &Forkyard,
    forks_before: u16,
    depth: u16,
) -> Result<(RowSample, Forked), BenchError> {
    let forked = vm.fork(CLONES, ForkMode::Fast).await?;
    let first_command = vm.first_command(&forked).await?;
    let sample = RowSample {
        forks_before,
        depth,
        clones: CLONES,
        running_ms: ms(forked.running),
        first_command_ms: ms(first_command),
        pause_ms: ms(Duration::from_micros(forked.report.pause_us)),
        pages_captured: count(forked.report.pages_captured),
        pages_fetched: count(forked.report.pages_fetched),
    };
    Ok((sample, forked))
}

/// No guest here has more than 2^32 pages.
fn count(pages: PageCount) -> u32 {
    u32::try_from(pages.0).unwrap_or(u32::MAX)
}
