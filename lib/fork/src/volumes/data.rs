//! Data disks: volumes beside the root disk.
//!
//! ```text
//! VM writes --> volume d --snapshot--> d@fork-A <-- branch that a clone writes
//!                                                     --snapshot--> ...@fork-B <-- its clone's branch
//! VMs that share it read d@fork-C, or d@monday
//! ```
//!
//! Each is an export of the server of volumes, of the same kind for a VM and its clones, and nothing
//! but a snapshot freezes it. A branch is named after the VM that writes it. It stays as long as a
//! record lies over a snapshot of it, and snapshots that forks made as long as a record names them.
//!
//! A VM that moves takes a branch along as all that it reads as, and what it shares as a copy: over there
//! either is a volume of its own, under the name of a branch, and ends as one.

use super::NewVolume;
use crate::{Host, HostError};
use forkyard_blockd::Encrypt;
use forkyard_records::VmRecord;
use forkyard_types::{DataDisk, DataRole, DataVolume, RunRequest};
use std::collections::BTreeSet;

impl Host {
    /// Refuses data disks that cannot be.
    pub(super) fn refuse_data(&self, wanted: &DataVolume) -> Result<(), HostError> {
        let name = &wanted.name;
        if name.as_str().len() > DataDisk::NAME_MAX {
            let most = DataDisk::NAME_MAX;
            let text =
                format!("{name} has more than {most} characters: a guest knows no more of a disk");
            return Err(HostError::Invalid(text));
        }
        if wanted.size.is_some() && (wanted.read_only || wanted.snapshot.is_some()) {
            let text = format!("{name} is to be read alone: a size is for one that is made");
            return Err(HostError::Invalid(text));
        }
        self.refuse_copy(name)?;
        match wanted.read_only || wanted.snapshot.is_some() {
            true => Ok(()),
            false => Ok(self.volumes.disks.refuse_in_use(name)?),
        }
    }

    /// Refuses a request whose data disks cannot be.
    pub(crate) fn check_data(&self, request: &RunRequest) -> Result<(), HostError> {
        if request.data.len() > DataDisk::MOST {
            let most = DataDisk::MOST;
            let text = format!("{} data disks: {most} at most", request.data.len());
            return Err(HostError::Invalid(text));
        }
        let mut names: BTreeSet<_> = request.volume.iter().map(|it| &it.name).collect();
        for wanted in &request.data {
            if !names.insert(&wanted.name) {
                let text = format!("volume {} is to be two disks of the VM", wanted.name);
                return Err(HostError::Invalid(text));
            }
            self.refuse_data(wanted)?;
        }
        Ok(())
    }

    /// Makes the volumes that a VM is to boot with as far as there are none, and the snapshots that
    /// it is to read.
    pub(crate) async fn furnish_data(
        &self,
        wanted: &[DataVolume],
        record: &VmRecord,
    ) -> Result<(), HostError> {
        for (wanted, disk) in wanted.iter().zip(&record.data) {
            let seen = match self.volume(wanted.name.as_str()).await {
                Ok(seen) => seen,
                Err(HostError::Volume(error)) if error.is_missing() && wanted.size.is_some() => {
                    let made = NewVolume {
                        size: wanted.size,
                        source: None,
                        encrypt: wanted.encrypted.then(Encrypt::default),
                    };
                    self.make_volume(&wanted.name, made).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            Self::refuse_plain(&seen, wanted.encrypted)?;
            let DataRole::Shared { at } = &disk.role else {
                continue;
            };
            match &wanted.snapshot {
                Some(named) if !seen.snapshots.iter().any(|it| it.name == *named) => {
                    let text = format!("volume {} has no snapshot called {named}", wanted.name);
                    return Err(HostError::Invalid(text));
                }
                Some(_) => {}
                None => {
                    self.volumes.disks.freeze_volume(at).await?;
                    self.volumes.disks.flush_volume(at).await?;
                }
            }
        }
        Ok(())
    }
}
