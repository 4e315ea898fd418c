//! Leftovers of a dock: removed when it is done, or by the next daemon.

use super::{DISK, Leaving, MEMORY, Substrate, bundle::PASSING, gone};
use crate::{Host, HostError, blocking};
use forkyard_image::Lineage;
use forkyard_pager::{PagerError, PagerRefusal};
use forkyard_snapshot::SnapshotError;
use forkyard_types::{ImageId, SubstratePart, SubstrateParts, VmState};
use std::{collections::BTreeSet, ffi::OsString, fs, fs::File, time::Duration};

/// Age of a folder in the cache that no host writes to any more.
const LEFT: Duration = Duration::from_secs(3600);

impl Host {
    /// Finishes what an earlier daemon began, has the pager serve what is kept, and removes
    /// files of substrates that are not recorded. Called once, when VMs are known.
    pub(crate) async fn settle_substrates(&self) -> Result<(), HostError> {
        for mut substrate in self.all_substrates()? {
            let Some(parts) = substrate.entry.parts.clone() else {
                self.undock(&substrate).await;
                continue;
            };
            if let Err(error) = self.serve_parts(&parts).await {
                tracing::error!(name = %substrate.name, error = &error as &dyn std::error::Error, "this substrate cannot be activated");
            }
            if substrate.entry.leaving.is_some() {
                self.leave(&mut substrate).await?;
            }
        }
        self.sweep_substrates().await
    }

    /// Undoes a dock that was not kept.
    pub(super) async fn undock(&self, substrate: &Substrate) {
        if let Some(leaving) = &substrate.entry.leaving {
            self.end_leaving(leaving).await;
        }
        if let Err(error) = self.parts.store.remove_substrate(&substrate.name) {
            tracing::warn!(name = %substrate.name, error = &error as &dyn std::error::Error, "substrate still recorded");
        }
        if let Some(parts) = &substrate.entry.parts {
            self.discard_parts(parts).await;
        }
    }

    /// Removes what a substrate that is kept was made of.
    pub(super) async fn leave(&self, substrate: &mut Substrate) -> Result<(), HostError> {
        if let Some(leaving) = substrate.entry.leaving.take() {
            self.end_leaving(&leaving).await;
        }
        Ok(self.parts.store.update_substrate(&substrate.record()?)?)
    }

    async fn end_leaving(&self, leaving: &Leaving) {
        let all = self.parts.registry().all();
        for vm in all {
            let record = vm.record();
            let is_checkpoint =
                record.state == VmState::Checkpoint && record.name == leaving.checkpoint;
            let fork = record.birth.and_then(|birth| birth.fork);
            let is_clone = leaving.fork.is_some() && fork == leaving.fork;
            if is_checkpoint || is_clone || leaving.vm == Some(vm.id) {
                vm.forks.close();
                vm.forks.over().await;
                self.end(&vm, None).await;
            }
        }
    }

    /// Has the pager serve a substrate's images. No error if it does.
    pub(super) async fn serve_parts(&self, parts: &SubstrateParts) -> Result<(), HostError> {
        self.parts.bases().serve_built().await?;
        let folder = self.parts.folders.substrate(parts.memory.image);
        let images = [(MEMORY, parts.memory), (DISK, parts.disk)];
        for (
            name,
            SubstratePart {
                image,
                over: parent,
                ..
            },
        ) in images
        {
            self.serve_lower(parent).await?;
            let path = folder.join(name);
            let layer = File::open(&path).map_err(HostError::io("read", &path))?;
            let lineage = Lineage { image, parent };
            let served = self
                .parts
                .pager_call(move |pager| Ok(pager.publish(lineage, layer)));
            match served.await? {
                Ok(()) | Err(PagerError::Refused(PagerRefusal::AlreadyExists { .. })) => {}
                Err(source @ PagerError::Refused(_)) => {
                    return Err(SnapshotError::Damaged { path, source }.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Has the pager serve the substrate whose image this is, if it is one's.
    async fn serve_lower(&self, image: Option<ImageId>) -> Result<(), HostError> {
        let Some(image) = image.filter(|it| !self.parts.folders.page_image(*it).exists()) else {
            return Ok(());
        };
        let all = self.all_substrates()?.into_iter();
        let mut parts = all.filter_map(|it| it.entry.parts);
        let lower = parts.find(|it| [it.memory.image, it.disk.image].contains(&image));
        match lower {
            Some(lower) => Box::pin(self.serve_parts(&lower)).await,
            None => Ok(()),
        }
    }

    async fn sweep_substrates(&self) -> Result<(), HostError> {
        let all = self.all_substrates()?.into_iter();
        let known: BTreeSet<OsString> = all
            .filter_map(|it| it.entry.parts)
            .map(|parts| parts.memory.image.to_string().into())
            .collect();
        let folder = self.parts.folders.all_substrates();
        let cached = self.boots();
        blocking(move || {
            for entry in fs::read_dir(&cached).into_iter().flatten().flatten() {
                let name = entry.file_name();
                // Other hosts may be putting one there now.
                let age = entry.metadata().and_then(|it| it.modified());
                let age = age.ok().and_then(|it| it.elapsed().ok());
                if name.as_encoded_bytes().starts_with(PASSING.as_bytes())
                    && age.is_some_and(|age| age > LEFT)
                {
                    gone(fs::remove_dir_all(entry.path()), &entry.path())?;
                }
            }
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() && !known.contains(&entry.file_name()) {
                    gone(fs::remove_dir_all(&path), &path)?;
                } else if !path.is_dir() {
                    // A template of slices, of an activation that was cut short.
                    gone(fs::remove_file(&path), &path)?;
                }
            }
            Ok::<_, HostError>(())
        })
        .await
    }
}
