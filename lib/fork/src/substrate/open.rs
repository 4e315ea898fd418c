//! Opening a substrate: what must hold before anything starts, and what its VMs are made over.

use super::{
    DEVICES, Substrate, SubstrateError, activate::Founders, sizes::Size, standby::Kept, sum_of,
};
use crate::{Host, HostError, blocking};
use forkyard_agent_link::{Growth, VERSION};
use forkyard_network::Subnet;
use forkyard_records::FamilyRecord;
use forkyard_snapshot::{Disk, Layout, Original};
use forkyard_types::{ImageId, Member, SubstrateParts, VmId, VmName};
use forkyard_vm::UnderWay;
use std::fs;

/// A substrate that the pager serves, made by the program that runs here.
pub(super) struct Opened<'a> {
    pub substrate: &'a Substrate,
    parts: &'a SubstrateParts,
    pub devices: Vec<u8>,
    /// Size of the VMs that are made of it.
    pub size: Size,
    /// Memory of a VM of that size.
    memory: ImageId,
}

impl Host {
    /// Has the pager serve a substrate, and reads what a VM of it is made of.
    pub(super) async fn open_substrate<'a>(
        &self,
        substrate: &'a Substrate,
        size: Size,
    ) -> Result<Opened<'a>, HostError> {
        self.check_runs_here(substrate).await?;
        let parts = substrate.parts()?;
        let devices = self.devices_of(parts).await?;
        if let Some(sum) = &substrate.entry.devices_sum
            && *sum != sum_of(&devices)
        {
            return Err(SubstrateError::Damaged {
                name: substrate.name.clone(),
                path: self
                    .parts
                    .folders
                    .substrate(parts.memory.image)
                    .join(DEVICES),
            }
            .into());
        }
        let images =
            [parts.memory.image, parts.disk.image].map(|it| self.parts.folders.page_image(it));
        let served = blocking(move || Ok::<_, HostError>(images.iter().all(|it| it.exists())));
        let served = served.await?;
        if !served {
            self.serve_parts(parts).await?;
        }
        let docked = parts.memory.image;
        let memory = match size.memory == substrate.entry.memory {
            true => docked,
            false => self.memory_of_size(docked, size.memory).await?,
        };
        Ok(Opened {
            substrate,
            parts,
            devices,
            size,
            memory,
        })
    }

    /// Refuses a substrate whose state the programs of this host do not read.
    pub(super) async fn check_runs_here(&self, substrate: &Substrate) -> Result<(), HostError> {
        let here = self.engine_version().await?;
        let entry = &substrate.entry;
        if !entry.engine.is_empty() && entry.engine != here {
            return Err(SubstrateError::OtherEngine {
                name: substrate.name.clone(),
                of: entry.engine.clone(),
                here,
            }
            .into());
        }
        self.check_cpu(crate::accel_of(&entry.accel), entry.cpu.as_ref())
            .map_err(|source| SubstrateError::OtherCpu {
                name: substrate.name.clone(),
                source: Box::new(source),
            })?;
        if let Some(agent) = entry.agent
            && agent != VERSION
        {
            let name = substrate.name.clone();
            return Err(SubstrateError::OtherAgent { name, agent }.into());
        }
        Ok(())
    }

    /// Reads the state of CPUs and devices of a substrate.
    pub(super) async fn devices_of(&self, parts: &SubstrateParts) -> Result<Vec<u8>, HostError> {
        let path = self
            .parts
            .folders
            .substrate(parts.memory.image)
            .join(DEVICES);
        blocking(move || fs::read(&path).map_err(HostError::io("read", &path))).await
    }
}

impl<'a> Opened<'a> {
    /// One that came from another host, which serves its pages; `memory` is that of a VM of this size.
    pub(super) fn received(
        substrate: &'a Substrate,
        devices: Vec<u8>,
        (size, memory): (Size, ImageId),
    ) -> Result<Self, HostError> {
        Ok(Self {
            substrate,
            parts: substrate.parts()?,
            devices,
            size,
            memory,
        })
    }

    /// Memory of its VMs.
    pub(super) fn memory(&self) -> ImageId {
        self.memory
    }

    /// Disk below those of its VMs.
    pub(super) fn disk(&self) -> ImageId {
        self.parts.disk.image
    }

    /// Place of those that are kept ready of this size.
    pub(super) fn shelf(&self) -> Kept {
        Kept {
            of: self.substrate.name.clone(),
            size: self.size,
        }
    }

    /// Memory and vCPUs that its VMs have beyond the one that was docked.
    pub(super) fn growth(&self) -> Option<Growth> {
        self.size.beyond(self.substrate.docked())
    }

    /// Layers that shells of one VM are made over.
    pub(super) fn layout(
        &self,
        family: &FamilyRecord,
        name: VmName,
        network: Subnet,
        founders: &Founders,
    ) -> Layout {
        let entry = &self.substrate.entry;
        Layout {
            of: Original {
                // Of no VM: nothing is recorded of it.
                id: VmId::random(),
                name,
                family: family.id,
                network,
                member: Member(0),
                is_clone: false,
                founds: true,
                generation: 0,
                granted: None,
                image: entry.image.clone(),
                vcpus: self.size.vcpus,
                saved_vcpus: entry.vcpus,
                memory: self.size.memory,
                booted: self.substrate.booted(),
                growth: self.growth(),
                accel: entry.accel.clone(),
                cpu: None,
                secrets: founders.secrets.clone(),
                forks: UnderWay::default(),
            },
            memory: self.memory,
            disk: Disk::Slices {
                slices: Vec::new(),
                base: Some(self.parts.disk.image),
            },
            data: Vec::new(),
        }
    }
}
