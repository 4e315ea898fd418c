//! Snapshots on disk: written, served again after a restart, opened.

use crate::{Layout, Snapshot, SnapshotError, Snapshots};
use forkyard_agent_link::VERSION;
use forkyard_host::blocking;
use forkyard_image::{Lineage, write_file};
use forkyard_pager::{PagerError, PagerRefusal};
use forkyard_records::VmRecord;
use forkyard_sys_host::private;
use forkyard_types::{ImageId, VmState};
use forkyard_vm::Vm;
use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File},
    io::Write,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// Memory, as a layer.
const MEMORY: &str = "memory.pages";
/// CPUs and devices, as the engine saved them.
const DEVICES: &str = "devices";

/// Returns the files that a snapshot on disk has beside its slices.
pub fn files(folder: &Path) -> [PathBuf; 2] {
    [folder.join(MEMORY), folder.join(DEVICES)]
}

impl Snapshots {
    /// Writes a snapshot to disk, and records it as a checkpoint. If that fails, what there
    /// is of it is the caller's to erase. Not cancel-safe.
    pub async fn persist(
        &self,
        snapshot: &Snapshot,
        mut record: VmRecord,
    ) -> Result<VmRecord, SnapshotError> {
        let folder = self.parts.folders.disks(record.id);
        let seen = self.parts.folders.page_image(snapshot.layout.memory);
        let devices = snapshot.devices.clone();
        let lineage = Lineage {
            image: ImageId::random(),
            parent: None,
        };
        let slices = record.chain.clone();
        let memory = blocking(move || {
            // It holds all of a guest's memory.
            DirBuilder::new()
                .mode(0o700)
                .create(&folder)
                .map_err(SnapshotError::io("create", &folder))?;
            let path = folder.join(DEVICES);
            let written = private::create_new(&path).and_then(|mut file| {
                file.write_all(&devices)?;
                file.sync_all()
            });
            written.map_err(SnapshotError::io("write", &path))?;
            let memory = folder.join(MEMORY);
            let source = File::open(&seen).map_err(SnapshotError::io("read", &seen))?;
            let file =
                private::create_new(&memory).map_err(SnapshotError::io("create", &memory))?;
            write_file(&source, lineage, &file)?;
            file.sync_all()
                .map_err(SnapshotError::io("write", &memory))?;
            // The guest flushed its disk, and QEMU it to the host's cache.
            for slice in &slices {
                File::open(slice)
                    .and_then(|slice| slice.sync_all())
                    .map_err(SnapshotError::io("write", slice))?;
            }
            // And the names, of slices that other VMs made as well.
            let parents = slices.iter().filter_map(|slice| slice.parent());
            let folders: BTreeSet<&Path> = [folder.as_path()]
                .into_iter()
                .chain(folder.parent())
                .chain(parents)
                .collect();
            for folder in folders {
                File::open(folder)
                    .and_then(|folder| folder.sync_all())
                    .map_err(SnapshotError::io("write", folder))?;
            }
            Ok::<_, SnapshotError>(file)
        })
        .await?;
        self.parts
            .pager_call(move |pager| pager.publish(lineage, memory))
            .await?;
        if let Some(at) = snapshot.layout.disk.volume() {
            self.disks.flush_volume(at).await?;
        }
        for at in snapshot.layout.data.iter().flat_map(|disk| disk.below()) {
            self.disks.flush_volume(at).await?;
        }
        record.memory_image = Some(lineage.image);
        record.state = VmState::Checkpoint;
        self.parts.store.put_vm(&record)?;
        self.parts.store.put_agent(record.id, VERSION)?;
        self.parts.store.flush()?;
        Ok(record)
    }

    /// Has the pager serve what a checkpoint needs, after a restart of it. Cancel-safe.
    pub async fn serve_checkpoint(&self, record: &VmRecord) -> Result<(), SnapshotError> {
        self.parts.bases().serve_built().await?;
        let Some(image) = record.memory_image else {
            return Ok(());
        };
        let path = self.parts.folders.disks(record.id).join(MEMORY);
        let lineage = Lineage {
            image,
            parent: None,
        };
        let layer = File::open(&path).map_err(SnapshotError::io("read", &path))?;
        let served = self
            .parts
            .pager_call(move |pager| Ok(pager.publish(lineage, layer)));
        match served.await? {
            Ok(()) | Err(PagerError::Refused(PagerRefusal::AlreadyExists { .. })) => Ok(()),
            Err(source @ PagerError::Refused(_)) => Err(SnapshotError::Damaged { path, source }),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the snapshot that a checkpoint is the record of. Its memory is served by then:
    /// where it cannot be, that is the error, rather than of an engine that finds none. Cancel-safe.
    pub async fn open(&self, asleep: &Vm, record: &VmRecord) -> Result<Snapshot, SnapshotError> {
        let Some(image) = record.memory_image else {
            return Err(SnapshotError::Broken(format!(
                "the record of {} has no memory",
                record.name
            )));
        };
        // Its clones would not understand a word, and be waited for in vain.
        if let Some(agent) = self.parts.store.agent(record.id)?
            && agent != VERSION
        {
            let vm = record.name.clone();
            return Err(SnapshotError::OtherAgent { vm, agent });
        }
        let devices = self.parts.folders.disks(record.id).join(DEVICES);
        let devices = fs::read(&devices).map_err(SnapshotError::io("read", &devices))?;
        let memory = self.parts.folders.page_image(image);
        if !blocking(move || Ok::<_, SnapshotError>(memory.exists())).await? {
            self.serve_checkpoint(record).await?;
        }
        Ok(Snapshot {
            layout: Layout::of(asleep, image),
            devices,
            disjoint: Vec::new(),
        })
    }
}
