//! Resources of the next fork of a VM, made before it is requested: a page
//! image that does not exist yet, the overlay the parent will write to after
//! it, and warm shells over both.
//!
//! A generation serves one fork. Shells it made that no clone became are
//! ended with it: their disk lies over the instant that has passed.

use crate::{Disk, Layout, SnapshotError, Snapshots, WarmShell};
use forkyard_disk::copy_template;
use forkyard_types::{ImageId, VolumeAt};
use forkyard_vm::{RunningVm, Vm};
use forkyard_vmm::{Machine, Overlay};
use std::path::{Path, PathBuf};

/// Way to freeze the parent's disk at the next fork, and the disk that it writes afterwards.
#[derive(Debug)]
pub enum Next {
    /// A slice over the one that it writes to now.
    Overlay {
        /// The slice, as the machine has it open.
        overlay: Overlay,
        /// File of the slice.
        path: PathBuf,
    },
    /// The VM's volume, as before.
    Volume(VolumeAt),
}

/// Resources of the next fork of a VM.
#[derive(Debug)]
pub struct Generation {
    /// The parent's memory at the fork. Reads of it wait until then.
    pub image: ImageId,
    /// Freezes its disk.
    pub next: Next,
    /// An empty slice over the parent's disk, to be copied for each clone.
    template: PathBuf,
    /// Shells over it.
    pub shells: Vec<WarmShell>,
}

impl Snapshots {
    /// Prepares the parent's next fork: what it takes without any shells. All that the parent came from is
    /// here by then, for what is taken next lies over it. The caller holds the parent's
    /// turn. If it fails, nothing is left of it. Not cancel-safe.
    pub async fn prepare(
        &self,
        parent: &Vm,
        body: &RunningVm,
    ) -> Result<Generation, SnapshotError> {
        self.fold_deepest(parent, body).await;
        let record = parent.record();
        let image = ImageId::random();
        let folder = self.parts.folders.disks(parent.id);
        let template = folder.join(format!("{image}.template"));
        let overlay_path = folder.join(format!("{image}.qcow2"));
        let disk = Disk::of(&record, image);
        let access = self.parts.access(&record)?;
        let made = async {
            self.slice_over(&disk, &template).await?;
            let next = match disk.volume_below() {
                Some(at) => Next::Volume(at.clone()),
                None => {
                    copy_template(&template, &overlay_path, access)?;
                    Next::Overlay {
                        overlay: body.machine.prepare_overlay(&overlay_path).await?,
                        path: overlay_path.clone(),
                    }
                }
            };
            let promised = self
                .parts
                .pager_call(move |pager| pager.promise(image, record.memory.pages()));
            match promised.await {
                Ok(()) => Ok(next),
                Err(error) => {
                    next.discard(parent, &*body.machine).await;
                    Err(SnapshotError::from(error))
                }
            }
        };
        match made.await {
            Ok(next) => Ok(Generation {
                image,
                next,
                template,
                shells: Vec::new(),
            }),
            Err(error) => {
                self.parts.remove_files(&[template, overlay_path]);
                if error.is_timeout() {
                    self.retire_later(image);
                }
                Err(error)
            }
        }
    }

    /// Makes as many shells as are missing; an error for each that failed. Not cancel-safe.
    pub async fn fill(
        &self,
        parent: &Vm,
        generation: &mut Generation,
        want: usize,
    ) -> Vec<SnapshotError> {
        let missing = want.saturating_sub(generation.shells.len());
        let layout = Layout::of(parent, generation.image);
        let (made, failed) = self
            .make_shells(&layout, &generation.template, missing)
            .await;
        generation.shells.extend(made);
        failed
    }

    /// Ends a generation that will not be used. Not cancel-safe.
    pub async fn discard(&self, parent: &Vm, generation: Generation) {
        self.parts.remove_files(&generation.files());
        if let Ok(body) = parent.running() {
            generation.next.discard(parent, &*body.machine).await;
        }
        self.end_shells(generation.shells).await;
        self.retire(generation.image).await;
    }
}

/// Counts the clones that are kept warm for a VM's next fork; none to be seen while one is under way.
pub fn warm_shells(vm: &Vm) -> u16 {
    let Some(turn) = vm.try_turn() else {
        return 0;
    };
    let shells = turn
        .left::<Generation>()
        .map_or(0, |next| next.shells.len());
    u16::try_from(shells).unwrap_or(u16::MAX)
}

impl Generation {
    /// Returns the files that it has beside its shells'.
    pub fn files(&self) -> Vec<PathBuf> {
        let overlay = self.next.overlay_path().map(Path::to_owned);
        overlay.into_iter().chain([self.template.clone()]).collect()
    }

    /// Takes it apart: the shells to use, those to spare, and the rest.
    pub fn split(mut self, wanted: usize) -> (Vec<WarmShell>, Vec<WarmShell>, Rest) {
        let spare = self.shells.split_off(wanted.min(self.shells.len()));
        let rest = Rest {
            image: self.image,
            next: self.next,
            template: self.template,
        };
        (self.shells, spare, rest)
    }
}

impl Next {
    /// Returns the file of the slice that the parent goes on with.
    pub fn overlay_path(&self) -> Option<&Path> {
        match self {
            Self::Overlay { path, .. } => Some(path),
            Self::Volume(_) => None,
        }
    }

    /// Closes what was not put to use.
    pub(crate) async fn discard(self, parent: &Vm, machine: &dyn Machine) {
        if let Self::Overlay { overlay, .. } = self
            && let Err(error) = machine.discard_overlay(overlay).await
        {
            tracing::warn!(vm = %parent.name(), error = &error as &dyn std::error::Error, "overlay kept open");
        }
    }
}

/// A generation without its shells.
#[derive(Debug)]
pub struct Rest {
    pub(crate) image: ImageId,
    pub(crate) next: Next,
    pub(crate) template: PathBuf,
}
