//! Descriptions of volumes, as they are answered.

use forkyard_volume::Opening;
use forkyard_volume_store::{Facts, Held, MirrorFacts, Need, WhenAway};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Description of a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Name.
    pub name: String,
    /// Identity, the same wherever it was sent: 32 hexadecimal digits.
    pub id: String,
    /// Size in bytes.
    pub size: u64,
    /// Bytes stored for its blocks.
    pub written: u64,
    /// Segments of its log.
    pub segments: usize,
    /// Number of its last write.
    pub last_version: u64,
    /// Epoch of the writer, or of the last one.
    pub epoch: u32,
    /// State of the writer.
    pub writer: Writer,
    /// Snapshots, oldest first.
    pub snapshots: Vec<SnapshotStatus>,
    /// Key file, if its blocks are encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Snapshot that it lies over, VOLUME@SNAPSHOT, if it is a branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Weight of the ratio of reads to writes, in the law by which blocks are sent ahead.
    pub k: f64,
    /// Least ratio at which a block is worth sending.
    pub s: f64,
    /// Amounts of it that are at other hosts, and are fetched from there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacking: Vec<LackingStatus>,
    /// Hosts that fetch blocks of it from here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<Need>,
    /// Hosts that every flush waits for, and what they hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<MirrorFacts>,
    /// Action of flushes while one of them is away.
    #[serde(default)]
    pub when_away: WhenAway,
    /// Part that it has for another host.
    #[serde(default)]
    pub held: Held,
}

/// Amount of a volume that is at another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LackingStatus {
    /// Host, as it calls itself.
    pub host: String,
    /// Snapshot of the volume there.
    pub snapshot: String,
    /// Blocks, of 4096 bytes.
    pub blocks: u64,
}

/// State of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Writer {
    /// There is none.
    None,
    /// There is one.
    Open,
}

/// Description of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotStatus {
    /// Name.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
}

impl From<Facts> for Status {
    fn from(facts: Facts) -> Self {
        let id = facts.id_text();
        let snapshots = facts.snapshots.into_iter().map(|it| SnapshotStatus {
            name: it.name,
            size: it.size,
        });
        Self {
            id,
            name: facts.name,
            size: facts.size,
            written: facts.written,
            segments: facts.segments,
            last_version: facts.last_version,
            epoch: facts.epoch.0,
            writer: match facts.opening {
                Opening::Closed => Writer::None,
                Opening::Open => Writer::Open,
            },
            snapshots: snapshots.collect(),
            key: facts.key,
            base: facts
                .base
                .map(|it| format!("{}@{}", it.volume, it.snapshot)),
            k: facts.knobs.k,
            s: facts.knobs.s,
            lacking: { facts.lacking.into_iter() }
                .map(|it| LackingStatus {
                    host: it.host,
                    snapshot: it.snapshot,
                    blocks: it.blocks,
                })
                .collect(),
            needs: facts.needs,
            mirrors: facts.mirrors,
            when_away: facts.when_away,
            held: facts.held,
        }
    }
}
