//! Slices of VMs' disks: which a VM writes, and which users may read and write them.

use crate::{Parts, PartsError};
use forkyard_disk::{Access, seal, set_access};
use forkyard_records::VmRecord;
use forkyard_types::VmState;
use forkyard_vm::Vm;
use forkyard_vmm::Machine;
use std::path::PathBuf;

impl Parts {
    /// Has a VM write to another slice from here on, over its former one.
    pub fn lengthen_chain(&self, vm: &Vm, slice: PathBuf) -> Result<(), PartsError> {
        vm.change(&self.store, |record| record.chain.insert(0, slice))?;
        self.registry().occupy(&vm.record());
        Ok(())
    }

    /// Has the record say what the machine does. A record is ahead of its
    /// machine while a freeze is under way, never behind.
    pub async fn settle_chain(&self, vm: &Vm, machine: &dyn Machine) -> Result<(), PartsError> {
        let Some(active) = machine.active_slice().await? else {
            return Ok(());
        };
        let mut chain = vm.record().chain;
        let Some(place) = chain.iter().position(|slice| *slice == active) else {
            return Err(PartsError::Invalid(format!(
                "{} writes to {}, which is none of its slices",
                vm.name(),
                active.display()
            )));
        };
        if place == 0 {
            return Ok(());
        }
        chain.drain(..place);
        vm.change(&self.store, |record| record.chain = chain)?;
        let unused = self.registry().move_to(vm.id, &active);
        self.remove_files(&unused);
        Ok(())
    }

    /// Returns the access to files of a VM's disk: its QEMU, which may
    /// write, and its family's, which may read.
    pub fn access(&self, record: &VmRecord) -> Result<Access, PartsError> {
        Ok(Access {
            uid: record.uid,
            gid: self.gid_of(record.family)?,
        })
    }

    /// Makes sure that only its family can read a slice.
    pub fn own_slice(&self, record: &VmRecord) -> Result<(), PartsError> {
        Ok(set_access(&record.chain[0], self.access(record)?)?)
    }

    /// Makes sure that no VM can write the slices that a VM's active one lies over. One that cannot be
    /// sealed now is when the VM is taken over or forked again.
    pub fn seal_frozen(&self, record: &VmRecord) {
        // Nothing writes a checkpoint.
        let written = usize::from(record.state != VmState::Checkpoint);
        for slice in record.chain.iter().skip(written) {
            if let Err(error) = seal(slice) {
                tracing::warn!(slice = %slice.display(), error = &error as &dyn std::error::Error, "not sealed");
            }
        }
    }
}
