//! Counters of a host: one call for each fork. The names are an interface: they
//! are listed in docs/operations.md.

use crate::HostError;
use forkyard_types::{ForkReport, PageCount};
pub use forkyard_volume_disks::SENT_BYTES;
use metrics::{counter, histogram};

/// Lengths of the phases of a fork, by phase.
pub const PHASE_SECONDS: &str = "forkyard_fork_phase_seconds";
/// Forks, by outcome.
pub const FORKS: &str = "forkyard_forks_total";
/// Clones asked for, by outcome.
pub const CLONES: &str = "forkyard_clones_total";
/// Private pages looked at while their VM stood still.
pub const PAGES_SCANNED: &str = "forkyard_pages_scanned_total";
/// Pages that went into images.
pub const PAGES_CAPTURED: &str = "forkyard_pages_captured_total";
/// Pages of images read until the clones that needed them were ready.
pub const PAGES_FETCHED: &str = "forkyard_pages_fetched_total";

/// A fork under way. Dropped before it is `done`, it has failed.
pub(crate) struct Counted {
    wanted: usize,
    done: bool,
}

impl Counted {
    pub fn begin(wanted: usize) -> Self {
        Self {
            wanted,
            done: false,
        }
    }

    /// The parent was forked, and these are its clones.
    pub fn done<T>(mut self, report: &ForkReport, clones: &[(u16, Result<T, HostError>)]) {
        self.done = true;
        let made = clones.iter().filter(|(_, made)| made.is_ok()).count();
        counter!(FORKS, "outcome" => "done").increment(1);
        counter!(CLONES, "outcome" => "made").increment(made as u64);
        counter!(CLONES, "outcome" => "failed").increment((clones.len() - made) as u64);
        let phases = [
            ("shells", report.shells_us),
            ("ahead", report.ahead_us),
            ("quiesce", report.quiesce_us),
            ("pause", report.pause_us),
            ("disk", report.disk_us),
            ("descriptor", report.descriptor_us),
            ("capture", report.capture_us),
            ("load", report.load_us),
            ("running", report.running_us),
            ("ready", report.ready_us),
        ];
        // Not every fork has every phase.
        for (phase, us) in phases.into_iter().filter(|(_, us)| *us > 0) {
            #[allow(clippy::cast_precision_loss)] // 285 years fit
            histogram!(PHASE_SECONDS, "phase" => phase).record(us as f64 / 1e6);
        }
        let pages = |name, PageCount(pages)| counter!(name).increment(pages);
        pages(PAGES_SCANNED, report.pages_scanned);
        pages(PAGES_CAPTURED, report.pages_captured);
        pages(PAGES_FETCHED, report.pages_fetched);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if !self.done {
            counter!(FORKS, "outcome" => "failed").increment(1);
            counter!(CLONES, "outcome" => "failed").increment(self.wanted as u64);
        }
    }
}
