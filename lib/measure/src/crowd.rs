//! As many clones of one parent as a machine holds, by one fork: what they cost
//! in time and in memory.

use crate::{
    Bench, BenchError,
    forked::{Forkyard, Parent, SETTLE, ms},
    machine::{available_mib, private_mib},
};
use forkyard_types::ForkMode;
use serde::Serialize;
use std::{fmt, time::Duration};
use tokio::time::sleep;

/// Memory of each, in MiB, and vCPUs: a crowd is one of small VMs.
const MEMORY_MIB: u64 = 128;

/// One fork of many.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CrowdSample {
    /// Clones that were wanted, all of which came.
    pub clones: u16,
    /// From the request until the last one's vCPUs ran, in ms. No shell was warm.
    pub running_ms: f64,
    /// From the request until a command had ended in every one, in ms.
    pub first_command_ms: f64,
    /// The parent's pause, in ms.
    pub pause_ms: f64,
    /// Memory of one's QEMU that it shares with no process, once settled, in MiB: the
    /// mean.
    pub settled_mib: f64,
    /// By how much the host's available memory is less, in MiB.
    pub taken_mib: f64,
}

impl fmt::Display for CrowdSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            clones,
            running_ms,
            first_command_ms,
            taken_mib,
            ..
        } = self;
        write!(
            f,
            "{clones} clones: running {running_ms:.0} ms, first command {first_command_ms:.0} ms, {taken_mib:.0} MiB in all"
        )
    }
}

/// Measures, round by round.
pub async fn run(bench: &Bench<'_>) -> Result<Vec<CrowdSample>, BenchError> {
    let mut samples = Vec::new();
    for round in 0..bench.options.rounds {
        for clones in bench.options.crowd.iter().copied() {
            let parent = Parent {
                name: format!("{}-crowd-{clones}-{round}", bench.label),
                memory_mib: MEMORY_MIB,
                vcpus: 1,
                fill_mib: 0,
                warm: 0,
            };
            let parent = Forkyard::boot(bench.client, parent).await?;
            let before = available_mib();
            let forked = parent.fork(clones, ForkMode::Fast).await?;
            let first_command = parent.first_command(&forked).await?;
            sleep(SETTLE).await;
            let sample = CrowdSample {
                clones,
                running_ms: ms(forked.running),
                first_command_ms: ms(first_command),
                pause_ms: ms(Duration::from_micros(forked.report.pause_us)),
                settled_mib: private_mib(forked.clones.iter().filter_map(|clone| clone.pid)),
                taken_mib: before - available_mib(),
            };
            (bench.tell)(&format!("crowd, round {}: {sample}", round + 1));
            samples.push(sample);
            parent.end(&forked.clones).await?;
            parent.remove().await?;
        }
    }
    Ok(samples)
}
