//! Machines of VMs and shells, as the engine is asked for them.

use crate::{SnapshotError, Snapshots};
use forkyard_host::accel_of;
use forkyard_records::VmRecord;
use forkyard_types::{ByteCount, Mac};
use forkyard_vmm::{Limits, MachineSpec, Nic, Owner};
use forkyard_volume_disks::has_volume;
use std::num::NonZeroU8;

impl Snapshots {
    /// Returns the machine of a VM with this record, and makes its tap. Cancel-safe: what is made
    /// goes with the record ([`erase`](Self::erase)).
    pub async fn machine_spec(
        &self,
        record: &VmRecord,
        mac: Mac,
    ) -> Result<MachineSpec, SnapshotError> {
        let tap = self.parts.network.create_tap(record.id)?;
        Ok(MachineSpec {
            id: record.id,
            dir: self.parts.folders.sockets(record.id),
            owner: Owner {
                uid: record.uid,
                gid: self.parts.gid_of(record.family)?,
            },
            vcpus: NonZeroU8::new(record.vcpus).unwrap_or(NonZeroU8::MIN),
            memory: record.memory,
            booted: record.booted,
            accel: accel_of(&record.accel),
            withheld: self.withheld(record)?,
            disk: Some(self.disks.root_disk(record).await?),
            data: self.disks.data_drives(record).await?,
            volumes: has_volume(record).then(|| self.parts.folders.sockets_of_volumes()),
            nic: Some(Nic { tap, mac }),
            limits: limits(record),
            page_reporting: self.parts.options.page_reporting,
        })
    }

    /// Names what a VM's CPU lacks of what this host gives, as the engine does.
    fn withheld(&self, record: &VmRecord) -> Result<Vec<String>, SnapshotError> {
        match &record.cpu {
            Some(cpu) => Ok(self.parts.engine.withhold(accel_of(&record.accel), cpu)?),
            None => Ok(Vec::new()),
        }
    }
}

/// Computes the limits of a QEMU: its guest's memory, and the memory QEMU needs
/// itself, of which the cache of translated code is most; a thread for each vCPU,
/// and those that do I/O.
fn limits(record: &VmRecord) -> Limits {
    const BESIDE: u64 = 1536 << 20;
    const THREADS: u32 = 128;
    Limits {
        memory: Some(ByteCount(record.memory.0 + record.memory.0 / 8 + BESIDE)),
        pids: Some(u32::from(record.vcpus) + THREADS),
    }
}
