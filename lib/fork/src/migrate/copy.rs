//! A checkpoint of the instant at which a VM left, kept on the host that it leaves.
//!
//! The copy is recorded once the VM goes on elsewhere and before anything of it is ended here, for it lies
//! over its slices; its memory is written to disk after that. A daemon that dies meanwhile leaves
//! a record that the next one erases.

use crate::{Host, HostError, checkpoint::Keeping};
use forkyard_records::{RecordsError, VmRecord};
use forkyard_snapshot::Snapshot;
use forkyard_types::{ForkId, VmName};

/// A checkpoint that is to be kept.
#[derive(Debug)]
pub(super) struct Copy {
    keeping: Keeping,
    /// The instant, once it was taken.
    snapshot: Option<Snapshot>,
}

/// One that is recorded.
pub(super) struct Begun {
    snapshot: Snapshot,
    begun: (VmRecord, Result<(), HostError>),
}

impl Copy {
    /// Notes the instant that is to be kept.
    pub fn take(&mut self, snapshot: Snapshot) {
        self.snapshot = Some(snapshot);
    }
}

impl Host {
    /// Reserves what a copy of a VM will be recorded by.
    pub(super) fn plan_copy(&self, of: &forkyard_vm::Vm, name: VmName) -> Result<Copy, HostError> {
        if self.parts.registry().find(name.as_str()).is_ok() {
            let name = name.to_string();
            return Err(RecordsError::NameTaken { name }.into());
        }
        Ok(Copy {
            keeping: self.keeping(of, Some(name))?,
            snapshot: None,
        })
    }

    /// Records a copy of a VM that goes on elsewhere.
    pub(super) fn begin_copy(
        &self,
        copy: Copy,
        (of, migration): (VmRecord, ForkId),
    ) -> Option<Begun> {
        let snapshot = copy.snapshot?;
        let begun = self.begin_keeping(copy.keeping, (of, migration), &snapshot, None);
        Some(Begun { snapshot, begun })
    }

    /// Keeps it. Its images are held by the caller meanwhile.
    pub(super) async fn keep_copy(&self, copy: Begun) -> Result<(), HostError> {
        let kept = self.keep(&copy.snapshot, copy.begun).await;
        if kept.is_err() {
            self.drop_copy(copy.snapshot).await;
        }
        kept.map(drop)
    }

    /// Drops what an instant took of volumes, for the VM stays, or no copy of it could be kept.
    pub(super) async fn drop_copy(&self, snapshot: Snapshot) {
        if let Some(at) = snapshot.layout.disk.volume() {
            self.volumes.disks.drop_unused(at).await;
        }
        self.volumes.disks.drop_data(&snapshot.layout.data).await;
    }

    /// The VM stays here: nothing is kept.
    pub(super) async fn give_copy_up(&self, copy: Option<Copy>) {
        if let Some(snapshot) = copy.and_then(|copy| copy.snapshot) {
            self.drop_copy(snapshot).await;
        }
    }
}
