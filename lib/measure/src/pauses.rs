//! The parent's pause, by what it has in memory.
//!
//! The first fork of a VM finds nothing noted and has everything to copy; those
//! after it, what was written since. A parent is forked twice, and again while a
//! program in it writes without end; another one's first fork is while it writes.
//! The same with live forks; QEMU's own means beside them, each first in turn.

use crate::{
    Bench, BenchError,
    forked::{Forkyard, Parent, ms},
    plain::Plain,
    report::mib,
};
use forkyard_types::{ForkMode, PageCount};
use futures::StreamExt;
use serde::Serialize;
use std::{fmt, time::Duration};
use tokio::time::sleep;

/// Memory that a guest needs beside what it is filled with, in MiB.
const ROOM: u64 = 256;
/// Writes 8 MiB of memory after 8 MiB, and says so.
const WRITE: &str = "while cat /fill/0 >/fill/written; do echo; done";
/// Time it writes before the first fork.
const LEAD: Duration = Duration::from_millis(500);

/// Operation that paused the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// The first fork.
    First,
    /// A fork after another.
    Again,
    /// The first fork, live.
    FirstLive,
    /// A live fork after another.
    Live,
    /// QEMU's migration to a file.
    Migrate,
    /// QEMU's snapshot in the disk's file.
    Savevm,
}

/// One pause.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PauseSample {
    /// Memory that the parent was filled with, in MiB.
    pub size_mib: u64,
    /// True if a program in it wrote all the time.
    pub writing: bool,
    /// Operation that paused it.
    pub way: Way,
    /// The pause, in ms.
    pub pause_ms: f64,
    /// Memory copied during the pause and before it, in MiB.
    pub copied_mib: Option<f64>,
}

impl Way {
    /// Every one of them.
    pub const ALL: [Self; 6] = [
        Self::First,
        Self::Again,
        Self::FirstLive,
        Self::Live,
        Self::Migrate,
        Self::Savevm,
    ];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "first fork",
            Self::Again => "fork again",
            Self::FirstLive => "first fork, live",
            Self::Live => "live fork again",
            Self::Migrate => "migrate",
            Self::Savevm => "savevm",
        })
    }
}

/// Measures, round by round and size by size.
pub async fn run(bench: &Bench<'_>) -> Result<Vec<PauseSample>, BenchError> {
    let mut samples = Vec::new();
    for round in 0..bench.options.rounds {
        for size in bench.options.sizes_mib.iter().copied() {
            let of_size = of_size(bench, round, size).await?;
            for sample in &of_size {
                (bench.tell)(&format!(
                    "pauses, round {}: {} MiB{}, {}: {:.1} ms",
                    round + 1,
                    sample.size_mib,
                    if sample.writing { ", writing" } else { "" },
                    sample.way,
                    sample.pause_ms
                ));
            }
            samples.extend(of_size);
        }
    }
    Ok(samples)
}

async fn of_size(bench: &Bench<'_>, round: u32, size: u64) -> Result<Vec<PauseSample>, BenchError> {
    let turns = [Turn::Fast, Turn::Live, Turn::Plain];
    let first = usize::try_from(round).unwrap_or_default() % turns.len();
    let mut samples = Vec::new();
    for turn in turns.into_iter().cycle().skip(first).take(turns.len()) {
        samples.extend(match turn {
            Turn::Fast => ours(bench, (round, size), "fast", Way::First, Way::Again).await?,
            Turn::Live => ours(bench, (round, size), "live", Way::FirstLive, Way::Live).await?,
            Turn::Plain => plain(bench, size).await?,
        });
    }
    Ok(samples)
}

/// Next measurement.
#[derive(Clone, Copy)]
enum Turn {
    Fast,
    Live,
    Plain,
}

async fn ours(
    bench: &Bench<'_>,
    (round, size): (u32, u64),
    name: &str,
    first: Way,
    again: Way,
) -> Result<Vec<PauseSample>, BenchError> {
    let parent = async |kind| {
        let parent = Parent {
            name: format!("{}-{name}{kind}-{size}-{round}", bench.label),
            memory_mib: size + ROOM,
            vcpus: bench.options.vcpus,
            fill_mib: size,
            warm: 0,
        };
        Forkyard::boot(bench.client, parent).await
    };
    let mut samples = Vec::new();
    let still = parent("").await?;
    samples.push(forked(&still, size, false, first).await?);
    samples.push(forked(&still, size, false, again).await?);
    samples.push(while_it_writes(&still, size, again).await?);
    still.remove().await?;
    let writing = parent("-writing").await?;
    samples.push(while_it_writes(&writing, size, first).await?);
    writing.remove().await?;
    Ok(samples)
}

async fn while_it_writes(
    parent: &Forkyard,
    size: u64,
    way: Way,
) -> Result<PauseSample, BenchError> {
    let mut written = Box::pin(parent.listen(WRITE).await?);
    // Nothing is heard of it once it is dropped, which ends it.
    written.next().await;
    sleep(LEAD).await;
    forked(parent, size, true, way).await
}

async fn plain(bench: &Bench<'_>, size: u64) -> Result<Vec<PauseSample>, BenchError> {
    let (vcpus, memory) = (bench.options.vcpus, size + ROOM);
    let mut plain = Plain::boot(bench.places, bench.accel, vcpus, memory, size).await?;
    let mut samples = Vec::new();
    for writing in [false, true] {
        let written = match writing {
            true => {
                let mut written = plain.script(WRITE).await?;
                written.next().await;
                sleep(LEAD).await;
                Some(written)
            }
            false => None,
        };
        for way in [Way::Migrate, Way::Savevm] {
            let pause = match way {
                Way::Savevm => plain.snapshot_pause().await?,
                Way::Migrate | Way::First | Way::Again | Way::FirstLive | Way::Live => {
                    plain.pause().await?
                }
            };
            samples.push(PauseSample {
                size_mib: size,
                writing,
                way,
                pause_ms: ms(pause),
                copied_mib: None,
            });
        }
        drop(written);
    }
    Ok(samples)
}

async fn forked(
    parent: &Forkyard,
    size_mib: u64,
    writing: bool,
    way: Way,
) -> Result<PauseSample, BenchError> {
    let mode = match way {
        Way::First | Way::Again | Way::Migrate | Way::Savevm => ForkMode::Fast,
        Way::FirstLive | Way::Live => ForkMode::Live,
    };
    let forked = parent.fork(1, mode).await?;
    parent.end(&forked.clones).await?;
    let report = forked.report;
    let copied = report.pages_captured.0 + report.pages_ahead.0;
    Ok(PauseSample {
        size_mib,
        writing,
        way,
        pause_ms: ms(Duration::from_micros(report.pause_us)),
        copied_mib: PageCount(copied).bytes().map(mib),
    })
}
