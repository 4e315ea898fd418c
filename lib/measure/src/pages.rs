//! Pages copied by a fork and read by its clones, by what is done to spare them
//! (SnowFlock, section 4.3: its avoidance and its prefetch).
//!
//! The parent had more in memory once than it has: files are made and removed.
//! Each clone then makes a file as large as what was removed, so that it writes
//! over what was free, and reads one that was kept.
//!
//! - *Avoidance*: the guest says which pages are free (free page reporting), so
//!   they are in no image and no clone asks for them.
//! - *Prefetch*: a clone is given pages that others of its image have wanted.

use crate::{
    BenchError,
    forked::{self, Forkyard, Label, Parent, ms},
};
use forkyard_api_client::Client;
use forkyard_types::ForkMode;
use futures::future::try_join_all;
use serde::Serialize;
use std::{fmt, time::Duration};
use tokio::time::sleep;

/// Clones of each fork.
const CLONES: u16 = 8;
/// A guest reports what is free a few seconds after it is.
const REPORTED: Duration = Duration::from_secs(6);
/// Of the files that the parent is filled with, all but the first go.
const REMOVE: &str = "cd /fill && for f in *; do [ $f = 0 ] || rm $f; done; sync";

/// Means that spare pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Spared {
    /// Free pages are in no image.
    pub avoidance: bool,
    /// Pages are given before they are asked for.
    pub prefetch: bool,
}

/// One fork.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PageSample {
    /// Means that spared pages.
    pub spared: Spared,
    /// Clones made.
    pub clones: u16,
    /// Pages copied by the fork.
    pub copied: u32,
    /// Pages of the image, zero or not, that clones had read when their job was done.
    pub read: u32,
    /// Pages of these that hold data: what a clone elsewhere would have had sent.
    pub data: u32,
    /// Requests that took: each stopped a clone for a while.
    pub requests: u32,
    /// From the fork's request until the last job was done, in ms.
    pub done_ms: f64,
}

impl Spared {
    /// Every way.
    pub const ALL: [Self; 4] = [
        Self::new(true, true),
        Self::new(true, false),
        Self::new(false, true),
        Self::new(false, false),
    ];

    const fn new(avoidance: bool, prefetch: bool) -> Self {
        Self {
            avoidance,
            prefetch,
        }
    }
}

impl fmt::Display for Spared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.avoidance, self.prefetch) {
            (true, true) => "both",
            (true, false) => "avoidance alone",
            (false, true) => "prefetch alone",
            (false, false) => "neither",
        })
    }
}

/// Measures one way, with a daemon that does so and has no other VMs; `fill_mib`
/// is what the parent once had. An interrupt is the caller's to heed. Nothing it
/// started is left, whatever happens, but for an interrupt.
pub async fn pages(
    client: &Client,
    spared: Spared,
    (memory_mib, fill_mib): (u64, u64),
    tell: impl Fn(&str),
) -> Result<PageSample, BenchError> {
    let label = Label::random();
    let measured = one(client, label, spared, (memory_mib, fill_mib)).await;
    forked::end_all(client, label).await?;
    if let Ok(sample) = &measured {
        tell(&format!(
            "pages, {spared}: {} copied, {} read, {} of them data, in {} requests",
            sample.copied, sample.read, sample.data, sample.requests
        ));
    }
    measured
}

async fn one(
    client: &Client,
    label: Label,
    spared: Spared,
    (memory_mib, fill_mib): (u64, u64),
) -> Result<PageSample, BenchError> {
    let parent = Parent {
        name: format!("{label}-pages"),
        memory_mib,
        vcpus: 1,
        fill_mib,
        warm: 0,
    };
    let parent = Forkyard::boot(client, parent).await?;
    parent.exec(parent.name(), &["sh", "-c", REMOVE]).await?;
    sleep(REPORTED).await;
    let forked = parent.fork(CLONES, ForkMode::Fast).await?;
    let job = format!(
        "dd if=/dev/zero of=/fill/new bs=1M count={} 2>/dev/null && md5sum /fill/0 >/dev/null",
        fill_mib / 2
    );
    let script = ["sh", "-c", job.as_str()];
    let jobs = forked.clones.iter();
    try_join_all(jobs.map(|clone| parent.exec(clone.name.as_str(), &script))).await?;
    let done = forked.begun.elapsed();
    let used = match forked.clones.first() {
        Some(clone) => parent.of_clone(clone).inspect().await?.memory_image,
        None => None,
    };
    let used = used.unwrap_or_default();
    let report = forked.report;
    Ok(PageSample {
        spared,
        clones: CLONES,
        copied: count(report.pages_captured.0 + report.pages_ahead.0),
        read: count(used.pages_served.0),
        data: count(used.data_served.0),
        requests: count(used.requests),
        done_ms: ms(done),
    })
}

/// No guest here has more than 2^32 pages.
fn count(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
