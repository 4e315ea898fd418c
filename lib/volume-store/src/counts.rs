//! Counters of an open volume, since it was opened.

use crate::Store;
use forkyard_replicate::Purpose;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a volume. Those of branches count what they hold; what they read from below is
/// counted there.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: AtomicU64,
    bytes_read: AtomicU64,
    writes: AtomicU64,
    bytes_written: AtomicU64,
    flushes: AtomicU64,
    waits: AtomicU64,
    bytes_demanded: AtomicU64,
    bytes_filled: AtomicU64,
}

/// Counts of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Volume.
    pub name: String,
    /// True for a branch.
    pub is_branch: bool,
    /// Reads since it was opened.
    pub reads: u64,
    /// Bytes of these.
    pub bytes_read: u64,
    /// Writes since it was opened, and what was zeroed or discarded.
    pub writes: u64,
    /// Bytes of these.
    pub bytes_written: u64,
    /// Flushes since it was opened that had something to flush.
    pub flushes: u64,
    /// Reads since it was opened that waited for blocks of another host.
    #[serde(default)]
    pub remote_reads: u64,
    /// Bytes that were fetched from other hosts because a read waited for them, or for a neighbour.
    #[serde(default)]
    pub bytes_demanded: u64,
    /// Bytes that were fetched from other hosts so that all of it is here.
    #[serde(default)]
    pub bytes_filled: u64,
    /// Writes that a host which is to hold every flush does not hold: of the one that is most behind.
    #[serde(default)]
    pub unheld_writes: u64,
    /// Bytes of its log.
    pub log_bytes: u64,
    /// Bytes of the log that are newer than the stored map: a restart reads them again.
    pub bytes_since_map: u64,
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn read(&self, bytes: u64) {
        add(&self.reads, 1);
        add(&self.bytes_read, bytes);
    }

    pub(crate) fn write(&self, bytes: u64) {
        add(&self.writes, 1);
        add(&self.bytes_written, bytes);
    }

    pub(crate) fn wait(&self) {
        add(&self.waits, 1);
    }

    pub(crate) fn fetched(&self, purpose: Purpose, bytes: u64) {
        match purpose {
            Purpose::Demand => add(&self.bytes_demanded, bytes),
            Purpose::Fill => add(&self.bytes_filled, bytes),
        }
    }

    pub(crate) fn flush(&self) {
        add(&self.flushes, 1);
    }
}

impl Store {
    /// Tells what was counted. Looks at the length of each segment's file.
    pub fn counts(&self) -> Counts {
        let files: Vec<_> = self.state().files.values().cloned().collect();
        let lengths = files
            .iter()
            .map(|it| it.metadata().map_or(0, |it| it.len()));
        let behind = self.mirrors().into_iter().map(|it| it.behind);
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            name: self.name.clone(),
            is_branch: self.base.is_some(),
            reads: of(&self.counters.reads),
            bytes_read: of(&self.counters.bytes_read),
            writes: of(&self.counters.writes),
            bytes_written: of(&self.counters.bytes_written),
            flushes: of(&self.counters.flushes),
            remote_reads: of(&self.counters.waits),
            bytes_demanded: of(&self.counters.bytes_demanded),
            bytes_filled: of(&self.counters.bytes_filled),
            unheld_writes: behind.max().unwrap_or(0),
            log_bytes: lengths.sum(),
            bytes_since_map: self.appender().since_checkpoint,
        }
    }
}
