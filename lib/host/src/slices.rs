//! Slices of VMs' disks: which a VM writes, and which users may read and write them.

use crate::{Parts, PartsError};
use forkyard_disk::{SliceAccess, seal, set_access};
use forkyard_records::VmRecord;
use forkyard_types::{ByteCount, DiskSlice, VmState};
use forkyard_vm::Vm;
use forkyard_vmm::Machine;
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::{
        ffi::OsStringExt,
        fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

impl Parts {
    /// Has a VM write to another slice from here on, over its former one.
    pub fn lengthen_chain(&self, vm: &Vm, slice: PathBuf) -> Result<(), PartsError> {
        vm.change(&self.store, |record| record.chain.insert(0, slice))?;
        self.registry().occupy(&vm.record());
        Ok(())
    }

    /// Has the record say what the machine does. A record is ahead of its
    /// machine while a freeze is under way, never behind. Cancel-safe: nothing is changed before the machine
    /// has answered.
    pub async fn settle_chain(&self, vm: &Vm, machine: &dyn Machine) -> Result<(), PartsError> {
        let Some(active) = machine.active_slice().await? else {
            return Ok(());
        };
        let mut chain = vm.record().chain;
        let Some(place) = chain.iter().position(|slice| *slice == active) else {
            return Err(PartsError::Broken(format!(
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
    pub fn access(&self, record: &VmRecord) -> Result<SliceAccess, PartsError> {
        Ok(SliceAccess {
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

/// The file that a slice says it lies over; none: it has all of its disk. Blocks for two small reads.
pub fn backing_of(slice: &Path) -> io::Result<Option<PathBuf>> {
    let file = File::open(slice)?;
    let mut header = [0; 20];
    file.read_exact_at(&mut header, 0)?;
    let [_, _, high, low, length] = [0, 4, 8, 12, 16].map(|at| {
        let bytes = header[at..].first_chunk::<4>();
        bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
    });
    if (high, low) == (0, 0) {
        return Ok(None);
    }
    // QEMU allows no longer ones.
    let mut name = vec![0; usize::try_from(length).unwrap_or(0).min(1023)];
    file.read_exact_at(&mut name, u64::from(high) << 32 | u64::from(low))?;
    Ok(Some(OsString::from_vec(name).into()))
}

/// Size of the disk in a slice. Blocks for a small read.
pub(crate) fn size_of(slice: &Path) -> io::Result<u64> {
    let mut size = [0; 8];
    File::open(slice)?.read_exact_at(&mut size, 24)?;
    Ok(u64::from_be_bytes(size))
}

/// Bytes a file takes on disk.
pub fn allocated(path: &Path) -> Result<ByteCount, PartsError> {
    let facts = fs::metadata(path).map_err(PartsError::io("look at", path))?;
    Ok(ByteCount(facts.blocks() * 512))
}

/// Returns the slices of a VM's disk, the one that it writes first. One that has been folded since the record was
/// read is no part of it any more.
pub fn slices_of(record: &VmRecord) -> Result<Vec<DiskSlice>, PartsError> {
    let mut slices = Vec::new();
    for path in &record.chain {
        match allocated(path) {
            Ok(allocated) => slices.push(DiskSlice {
                path: path.display().to_string(),
                allocated,
            }),
            Err(error) if !slices.is_empty() && error.is_io(ErrorKind::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(slices)
}
