//! Counters of the server of volumes for each of them, from its start. Branches of clones are left
//! out: what they read of a volume counts there.

use forkyard_fork::VolumeCounts;
use metrics::{describe_gauge, gauge};

/// Count of a volume, its name and its description.
struct Count {
    name: &'static str,
    what: &'static str,
    of: fn(&VolumeCounts) -> u64,
}

const COUNTS: [Count; 11] = [
    Count {
        name: "forkyard_volume_reads",
        what: "Reads of a volume and of what clones lie over of it, since its server began",
        of: |it| it.reads,
    },
    Count {
        name: "forkyard_volume_read_bytes",
        what: "Bytes of these",
        of: |it| it.bytes_read,
    },
    Count {
        name: "forkyard_volume_writes",
        what: "Writes of a volume since its server began, zeroed and discarded stretches included",
        of: |it| it.writes,
    },
    Count {
        name: "forkyard_volume_written_bytes",
        what: "Bytes of these",
        of: |it| it.bytes_written,
    },
    Count {
        name: "forkyard_volume_flushes",
        what: "Flushes of a volume since its server began",
        of: |it| it.flushes,
    },
    Count {
        name: "forkyard_volume_remote_reads",
        what: "Reads of a volume that waited for blocks of another host, since its server began",
        of: |it| it.remote_reads,
    },
    Count {
        name: "forkyard_volume_demanded_bytes",
        what: "Bytes fetched from other hosts because a read waited for them or for a neighbour",
        of: |it| it.bytes_demanded,
    },
    Count {
        name: "forkyard_volume_filled_bytes",
        what: "Bytes fetched from other hosts so that all of a volume is here",
        of: |it| it.bytes_filled,
    },
    Count {
        name: "forkyard_volume_unheld_writes",
        what: "Writes of a volume that a host which is to hold every flush of it does not hold yet",
        of: |it| it.unheld_writes,
    },
    Count {
        name: "forkyard_volume_log_bytes",
        what: "Bytes of a volume's log",
        of: |it| it.log_bytes,
    },
    Count {
        name: "forkyard_volume_bytes_since_map",
        what: "Bytes of the log that are newer than the stored map: a restart reads them again",
        of: |it| it.bytes_since_map,
    },
];

pub(super) fn describe() {
    for count in COUNTS {
        describe_gauge!(count.name, count.what);
    }
}

#[allow(clippy::cast_precision_loss)] // 2^53 bytes are 8 PiB
pub(super) fn tell(all: &[VolumeCounts]) {
    for volume in all.iter().filter(|it| !it.is_branch) {
        for count in COUNTS {
            gauge!(count.name, "volume" => volume.name.clone()).set((count.of)(volume) as f64);
        }
    }
}
