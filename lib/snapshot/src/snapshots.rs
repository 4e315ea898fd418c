//! Snapshots of one host's VMs: what their steps work with.

use crate::{Above, SnapshotError, fork_priority::ForkPriority, snapshot::Disk};
use forkyard_host::Parts;
use forkyard_types::ImageId;
use forkyard_volume_disks::VolumeDisks;
use std::{
    path::Path,
    sync::{Arc, Weak},
};

/// Takes snapshots of the VMs of one host, and makes VMs of them.
#[derive(Debug)]
pub struct Snapshots {
    pub(crate) parts: Arc<Parts>,
    pub(crate) disks: VolumeDisks,
    pub(crate) priority: ForkPriority,
    above: Weak<dyn Above>,
    me: Weak<Self>,
}

impl Snapshots {
    /// Returns the snapshots of a host with these parts, under this layer.
    pub fn new(parts: Arc<Parts>, disks: VolumeDisks, above: Weak<dyn Above>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            parts,
            disks,
            priority: ForkPriority::default(),
            above,
            me: me.clone(),
        })
    }

    /// For tasks that go on for as long as this lives.
    pub(crate) fn handle(&self) -> Weak<Self> {
        self.me.clone()
    }

    /// The layer above; none while the host is being let go of.
    pub(crate) fn above(&self) -> Option<Arc<dyn Above>> {
        self.above.upgrade()
    }

    /// Tells whether an image has a use that only the layer above knows of.
    pub(crate) fn is_needed_above(&self, image: ImageId) -> bool {
        // A daemon that ends takes nothing away: the next one does.
        self.above().is_none_or(|above| above.needs(image))
    }

    /// Makes an empty slice over the disk of a snapshot. If that fails, or is cancelled, a file may
    /// be there, which is the caller's to remove.
    pub async fn slice_over(&self, disk: &Disk, path: &Path) -> Result<(), SnapshotError> {
        let Some(at) = disk.volume_below() else {
            let backing = disk.backing(&self.parts.folders)?;
            return Ok(self.parts.images.create_slice(path, &backing, None).await?);
        };
        let (below, size) = self.disks.reader(at).await?;
        Ok(self
            .parts
            .images
            .create_slice_over(path, (&below, size))
            .await?)
    }
}
