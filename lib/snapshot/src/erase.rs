//! Whatever there is of a recorded VM or shell goes, also what a crash left of it.
//!
//! | fails | then |
//! |---|---|
//! | its process does not end | the record stays, as one that is ending: it is tried again, by the next daemon, too |
//! | the record cannot be removed | it is tried again; by the next daemon, too, if that the VM is ending could be recorded |
//! | anything else | it is logged and left for the doctor; the rest goes all the same |

use crate::{SnapshotError, Snapshots};
use forkyard_records::VmRecord;
use forkyard_types::{VmState, VolumeUse};
use forkyard_vmm::MachineRecord;
use std::{error::Error, fs, io, path::Path, time::Duration};

/// Between attempts to end a QEMU that does not end.
const AGAIN: Duration = Duration::from_secs(10);

impl Snapshots {
    /// Records that a VM is being removed: a daemon that takes over removes the rest of it.
    pub fn note_ending(&self, record: &VmRecord) {
        let ending = VmRecord {
            state: VmState::Ending,
            ..record.clone()
        };
        note(record, "record", self.parts.store.put_vm(&ending));
    }

    /// Ends a recorded process without a word, if there is one. Cancel-safe: call it again.
    pub async fn discard_process(&self, record: &VmRecord) {
        let Some(machine) = &record.machine else {
            return;
        };
        let discarded = match serde_json::from_str::<MachineRecord>(machine) {
            Ok(machine) => {
                let discarded = self.parts.engine.discard(&machine).await;
                discarded.map_err(SnapshotError::from)
            }
            Err(error) => Err(SnapshotError::Broken(format!(
                "the record of its process cannot be parsed: {error}"
            ))),
        };
        note(record, "process", discarded);
    }

    /// Removes whatever there is of a recorded VM or shell: its process,
    /// network, files and at last its record. What cannot be removed is logged
    /// and left for the doctor; the rest goes all the same. The record, and with it
    /// the user its QEMU runs as, stays until that QEMU is proven gone. Not cancel-safe; a second
    /// call, or the next daemon, goes on with what one left.
    pub async fn erase(&self, record: &VmRecord) {
        self.discard_process(record).await;
        // One that was started and not yet recorded is found by the engine.
        let ended = self.parts.engine.end_processes(record.id).await;
        let is_gone = ended.is_ok();
        note(record, "processes", ended);
        let forgotten = self.parts.network.forget(record.id).await;
        note(record, "network port", forgotten);
        let slices = self.parts.registry().vacate(record);
        self.parts.remove_files(&slices);
        for slice in &slices {
            // A relative's folder stays as long as one of its slices is used.
            let _ = slice.parent().map(fs::remove_dir);
        }
        let sockets = self.parts.folders.sockets(record.id);
        note(record, "folder", remove_folder(&sockets));
        let disks = self.parts.folders.disks(record.id);
        self.parts.remove_files(&crate::files(&disks));
        let _ = fs::remove_dir(disks);
        if !is_gone {
            self.note_ending(record);
            return self.erase_later(record.clone());
        }
        match self.parts.store.remove_vm(record.id) {
            Ok(()) => self.parts.registry().give_back_uid(record.uid),
            Err(error) => {
                note(record, "record", Err(error));
                self.erase_later(record.clone());
            }
        }
        for image in record.memory_image.into_iter().chain(record.disk_image) {
            self.retire(image).await;
        }
        match &record.volume {
            Some(VolumeUse::Below(at)) => self.disks.drop_unused(at).await,
            // Of a VM whose QEMU an earlier daemon ended, or that did not come up.
            Some(VolumeUse::Written { .. }) => self.disks.end_writer(record).await,
            None => {}
        }
        self.disks.end_data(record).await;
        self.disks.drop_data(&record.data).await;
        if let Some(above) = self.above() {
            above.erased(record.family).await;
        }
    }

    /// Tries again what did not succeed.
    fn erase_later(&self, record: VmRecord) {
        let snapshots = self.handle();
        tokio::spawn(async move {
            tokio::time::sleep(AGAIN).await;
            if let Some(snapshots) = snapshots.upgrade() {
                Box::pin(snapshots.erase(&record)).await;
            }
        });
    }
}

fn remove_folder(folder: &Path) -> Result<(), SnapshotError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(SnapshotError::io("remove", folder)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn note<E: Error + 'static>(record: &VmRecord, what: &str, outcome: Result<(), E>) {
    if let Err(error) = outcome {
        tracing::warn!(vm = %record.id, what, error = &error as &dyn Error, "not removed");
    }
}
