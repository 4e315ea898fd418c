//! Bringing a snapshot to life: a shell over it becomes a VM that runs.
//!
//! Whatever fails, the record is the caller's to erase, and its process goes with that ([`Snapshots::erase`]).

use crate::{Snapshot, SnapshotError, Snapshots, TRACES, Vessel};
use forkyard_agent_link::{Guest, Identify};
use forkyard_vm::RunningVm;
use tracing::{Instrument as _, debug_span};

impl Snapshots {
    /// Has a shell over a snapshot run as a VM. Its record is written by then. Its guest applies the
    /// identity as it wakes; until the caller has seen it through that, opened its port and
    /// released it, its user code stands still. Not cancel-safe.
    pub async fn instantiate(
        &self,
        snapshot: &Snapshot,
        (shell, guest): (Vessel, &Guest),
        told: Identify,
    ) -> Result<RunningVm, SnapshotError> {
        let growth = match &shell {
            Vessel::Shell(_) => snapshot.layout.of.growth,
            // It has grown already.
            Vessel::Woken(_) => None,
        };
        let _first = self.priority.raise();
        // Waits on the link for the agent, which hears it as it wakes.
        guest.identify(Identify { growth, ..told }).await?;
        let machine = shell
            .load(&snapshot.devices, growth)
            .instrument(debug_span!(target: TRACES, "load"))
            .await?;
        Ok(RunningVm::new(machine, guest.clone()))
    }
}
