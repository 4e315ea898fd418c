//! Sizes of VMs that are made of a substrate: as it was docked, or more.
//!
//! ```text
//! docked image  |------256 MiB------|
//! larger image  |------256 MiB------|......zeros......|   an empty layer over it, one for each size
//! ```
//!
//! A larger image takes no room. It is served from the first VM of its size until the substrate is
//! removed or the daemon ends, and then for as long as a VM's memory is a view of it.

use super::{DISK, Substrate, SubstrateError, standby::host_memory};
use crate::{
    Host, HostError, blocking,
    boot::{MEMORY_MIB, VCPUS},
};
use forkyard_agent_link::Growth;
use forkyard_image::{Layer, LayerBuilder, Lineage};
use forkyard_pager::{PagerError, PagerRefusal};
use forkyard_sys_host::memory::{anonymous_file, seal};
use forkyard_types::{ByteCount, ImageId, PAGE_SIZE, SubstrateSizes};
use forkyard_vm::lock;
use forkyard_vmm::{
    BLOCK, MOST_DISK, check_disk, check_memory, check_vcpus, most_memory, most_vcpus,
};
use serde::{Deserialize, Serialize};
use std::{fs::File, num::NonZeroU8};

/// Size of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Size {
    pub memory: ByteCount,
    pub vcpus: u8,
    /// Root disk; 0: as large as it was docked.
    #[serde(default, skip_serializing_if = "is_none")]
    pub disk: ByteCount,
}

fn is_none(size: &ByteCount) -> bool {
    size.0 == 0
}

impl Size {
    /// Memory and vCPUs that a VM of this size has beyond one of another; none if that is nothing.
    pub fn beyond(self, docked: Self) -> Option<Growth> {
        (self != docked).then_some(Growth {
            memory: ByteCount(self.memory.0.saturating_sub(docked.memory.0)),
            vcpus: self.vcpus,
            disk: self.disk,
        })
    }
}

impl Substrate {
    /// Size of the VM that was docked.
    pub fn docked(&self) -> Size {
        Size {
            memory: self.entry.memory,
            vcpus: self.entry.vcpus,
            disk: ByteCount(0),
        }
    }

    /// Memory that the guest found when it booted.
    pub fn booted(&self) -> ByteCount {
        self.entry.booted.unwrap_or(self.entry.memory)
    }

    /// Sizes that VMs of it can be given.
    pub fn sizes(&self, disk: ByteCount) -> SubstrateSizes {
        let docked = self.docked();
        SubstrateSizes {
            booted: self.booted(),
            most_memory: most_memory(self.booted(), docked.memory),
            block: BLOCK,
            most_vcpus: most_vcpus(count(docked.vcpus)),
            disk,
            most_disk: MOST_DISK.max(disk),
        }
    }

    /// A size with this root disk, of VMs whose disk was docked with another one.
    pub fn with_disk(
        &self,
        size: Size,
        docked: ByteCount,
        wanted: ByteCount,
    ) -> Result<Size, HostError> {
        check_disk(docked, wanted).map_err(|source| SubstrateError::Size {
            name: self.name.clone(),
            source,
        })?;
        let disk = match wanted == docked {
            true => ByteCount(0),
            false => wanted,
        };
        Ok(Size { disk, ..size })
    }

    /// The size that is wanted, if its VMs can have that.
    pub fn size(&self, memory: Option<ByteCount>, vcpus: Option<u8>) -> Result<Size, HostError> {
        let docked = self.docked();
        let wanted = Size {
            memory: memory.unwrap_or(docked.memory),
            vcpus: vcpus.unwrap_or(docked.vcpus),
            ..docked
        };
        if wanted == docked {
            return Ok(docked);
        }
        let (least, most) = MEMORY_MIB.into_inner();
        let mib = wanted.memory.0 >> 20;
        if !wanted.memory.0.is_multiple_of(1 << 20) || !MEMORY_MIB.contains(&mib) {
            return Err(HostError::Invalid(format!(
                "memory is {} bytes: wanted whole MiB, {least} to {most}",
                wanted.memory.0
            )));
        }
        if !VCPUS.contains(&wanted.vcpus) {
            return Err(HostError::Invalid(format!(
                "vcpus is {}: wanted 1 to {}",
                wanted.vcpus,
                VCPUS.end()
            )));
        }
        let fits = check_memory(self.booted(), docked.memory, wanted.memory)
            .and_then(|()| check_vcpus(count(docked.vcpus), count(wanted.vcpus)));
        fits.map_err(|source| SubstrateError::Size {
            name: self.name.clone(),
            source,
        })?;
        // Larger than the host is none that it could ever fill.
        match host_memory() {
            Some(host) if wanted.memory.0 > host.total && wanted.memory > docked.memory => {
                Err(SubstrateError::HostTooSmall {
                    wanted: wanted.memory,
                    has: ByteCount(host.total),
                }
                .into())
            }
            Some(_) | None => Ok(wanted),
        }
    }
}

impl Host {
    /// The size that is wanted, with a root disk that its VMs can have.
    pub(super) async fn size_with_disk(
        &self,
        substrate: &Substrate,
        size: Size,
        disk: Option<ByteCount>,
    ) -> Result<Size, HostError> {
        let Some(wanted) = disk else {
            return Ok(size);
        };
        if !wanted.0.is_multiple_of(1 << 20) {
            return Err(HostError::Invalid(format!(
                "disk is {} bytes: wanted whole MiB",
                wanted.0
            )));
        }
        substrate.with_disk(size, self.docked_disk(substrate).await?, wanted)
    }

    /// Root disk that a substrate was docked with.
    pub(super) async fn docked_disk(&self, substrate: &Substrate) -> Result<ByteCount, HostError> {
        let parts = substrate.parts()?;
        let path = self.parts.folders.substrate(parts.memory.image).join(DISK);
        blocking(move || {
            let file = File::open(&path).map_err(HostError::io("read", &path))?;
            let pages = Layer::open(file)?.pages();
            Ok::<_, HostError>(ByteCount(pages.0.saturating_mul(PAGE_SIZE as u64)))
        })
        .await
    }

    /// Has the pager serve a substrate's memory, which it serves already, as that of a larger VM; and
    /// names it.
    pub(super) async fn memory_of_size(
        &self,
        image: ImageId,
        size: ByteCount,
    ) -> Result<ImageId, HostError> {
        let pages = size.pages();
        let larger = image.resized(pages);
        // First, or one that ends would take it away.
        lock(&self.substrates.larger).insert(larger, image);
        let seen = self.parts.folders.page_image(larger);
        let layer = blocking(move || {
            if seen.exists() {
                return Ok(None);
            }
            let lineage = Lineage {
                image: larger,
                parent: Some(image),
            };
            let made = anonymous_file("forkyard-image", ByteCount(0));
            let file = made.map_err(HostError::io("make", &seen))?;
            LayerBuilder::new(lineage, pages).finish(&file)?;
            seal(&file).map_err(HostError::io("seal", &seen))?;
            Ok::<_, HostError>(Some((lineage, file)))
        });
        let Some((lineage, layer)) = layer.await? else {
            return Ok(larger);
        };
        let served = self
            .parts
            .pager_call(move |pager| Ok(pager.publish(lineage, layer)));
        match served.await? {
            Ok(()) | Err(PagerError::Refused(PagerRefusal::AlreadyExists { .. })) => Ok(larger),
            Err(error) => Err(error.into()),
        }
    }

    /// Has memory of larger VMs of a substrate that is removed go with the last of them.
    pub(super) async fn release_larger(&self, image: ImageId) {
        let larger: Vec<_> = {
            let mut all = lock(&self.substrates.larger);
            let gone = all.extract_if(.., |_, of| *of == image);
            gone.map(|(larger, _)| larger).collect()
        };
        for image in larger {
            self.snapshots.retire(image).await;
        }
    }

    /// Names the image of the substrate that an image is a larger view of.
    pub(super) fn smaller(&self, image: ImageId) -> Option<ImageId> {
        lock(&self.substrates.larger).get(&image).copied()
    }
}

fn count(vcpus: u8) -> NonZeroU8 {
    NonZeroU8::new(vcpus).unwrap_or(NonZeroU8::MIN)
}
