//! Activation: a substrate becomes VMs, each the founder of a family of its own.

use super::{DEVICES, Substrate, SubstrateError};
use crate::{
    Host, HostError,
    blocking::blocking,
    clone::{Asked, Origin},
    fork::{Wanted, micros},
    remote::Far,
    snapshot::{Disk, Layout, Original, Snapshot},
    under_way::UnderWay,
    vm::network_of,
};
use forkyard_network::Subnet;
use forkyard_store::FamilyRecord;
use forkyard_substrate::access::Act;
use forkyard_types::{
    ActivateRequest, ActivateResponse, CloneResult, EventVm, ForkId, ForkMode, ForkReport, Member,
    NetworkPolicy, SubstrateParts, VmId, VmName, VmView,
};
use futures::{StreamExt as _, stream};
use std::{collections::BTreeSet, fs, time::Instant};
use tracing::instrument;

/// VMs made at once: starts of QEMU are short and bound by processors.
const AT_ONCE: usize = 4;
/// VMs of one request.
const MOST: u16 = 256;

/// Data that all VMs of one activation share.
struct Source<'a> {
    substrate: &'a Substrate,
    parts: &'a SubstrateParts,
    devices: Vec<u8>,
    founders: &'a Founders,
    begun: Instant,
}

/// Properties wanted of the VMs of one activation.
#[derive(Clone, Debug, Default)]
pub(super) struct Founders {
    pub count: u16,
    /// Name of one, or the beginning of the names of several.
    pub name: Option<VmName>,
    pub network: NetworkPolicy,
    pub max_clones: Option<u16>,
    pub warm: u16,
    pub secrets: Vec<String>,
}

impl Host {
    /// Makes VMs of a substrate. Not cancel-safe: run it on a task of its own.
    #[instrument(skip_all, fields(name, count = request.count))]
    pub async fn activate(
        &self,
        name: &str,
        request: ActivateRequest,
        asker: Option<&str>,
    ) -> Result<ActivateResponse, HostError> {
        if !(1..=MOST).contains(&request.count) {
            return Err(HostError::Invalid(format!(
                "count is {}: wanted 1 to {MOST}",
                request.count
            )));
        }
        let network = &request.network;
        crate::egress::check(network.out, &network.allow, &network.deny)?;
        if request.count > 1 && !network.publish.is_empty() {
            return Err(HostError::Invalid(
                "a port of the host leads to one VM: activate one, or publish none".into(),
            ));
        }
        let substrate = self.substrate(name, Act::Open, asker)?;
        let founders = Founders {
            count: request.count,
            name: request.name,
            network: request.network,
            ..Founders::default()
        };
        self.activate_as(&substrate, &founders).await
    }

    /// Makes VMs of a substrate. Not cancel-safe.
    pub(super) async fn activate_as(
        &self,
        substrate: &Substrate,
        founders: &Founders,
    ) -> Result<ActivateResponse, HostError> {
        let begun = Instant::now();
        let _under_way = self.forks.begin().ok_or(HostError::Closing)?;
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
        let parts = substrate.parts()?;
        let folder = self.folders.substrate(parts.memory.image);
        let images = [parts.memory.image, parts.disk.image].map(|it| self.folders.page_image(it));
        let (devices, served) = blocking(move || {
            let path = folder.join(DEVICES);
            let devices = fs::read(&path).map_err(HostError::io("read", &path))?;
            Ok::<_, HostError>((devices, images.iter().all(|image| image.exists())))
        })
        .await?;
        if !served {
            self.serve_parts(parts).await?;
        }
        self.note_use(substrate)?;
        let source = Source {
            substrate,
            parts,
            devices,
            founders,
            begun,
        };
        let names = self.names_for(&source)?;
        let made: Vec<_> = stream::iter(names)
            .map(|name| self.activate_one(&source, name))
            .buffered(AT_ONCE)
            .collect()
            .await;
        let mut answer = ActivateResponse {
            vms: Vec::new(),
            running_us: 0,
            ready_us: 0,
        };
        for one in made {
            answer.vms.push(match one {
                Ok((vm, report)) => {
                    answer.running_us = answer.running_us.max(report.running_us);
                    answer.ready_us = answer.ready_us.max(report.ready_us);
                    CloneResult::Vm(Box::new(vm))
                }
                Err(error) => CloneResult::Error(error.to_api()),
            });
        }
        Ok(answer)
    }

    /// Names that no VM has: the one wanted, or as many as are wanted that begin with it.
    fn names_for(&self, source: &Source<'_>) -> Result<Vec<VmName>, HostError> {
        let wanted = &source.founders.name;
        if let (Some(name), 1) = (wanted, source.founders.count) {
            return Ok(vec![name.clone()]);
        }
        let all = self.registry().all();
        let taken: BTreeSet<String> = all.iter().map(|vm| vm.name().to_string()).collect();
        let stem = wanted.as_ref().unwrap_or(&source.substrate.name).as_str();
        let stem = stem.get(..stem.len().min(VmName::MAX - 6)).unwrap_or(stem);
        let names = (1u32..).map(|number| format!("{stem}-{number}"));
        let free = names.filter(|name| !taken.contains(name));
        let chosen = free.take(source.founders.count.into());
        let no_name = |name: String| HostError::Invalid(format!("{name} is no name: give one"));
        chosen
            .map(|name| name.parse().map_err(|_| no_name(name)))
            .collect()
    }

    async fn activate_one(
        &self,
        source: &Source<'_>,
        name: VmName,
    ) -> Result<(VmView, ForkReport), HostError> {
        let family = self.found_family(source.founders.max_clones).await?;
        let made = self.found_from(source, &family, name).await;
        if made.is_err() {
            // With all that was recorded of it.
            self.end_family_if_empty(family.id).await;
        }
        made
    }

    async fn found_from(
        &self,
        source: &Source<'_>,
        family: &FamilyRecord,
        name: VmName,
    ) -> Result<(VmView, ForkReport), HostError> {
        let policy = &source.founders.network;
        // Ports are the VM's own.
        let of_family = NetworkPolicy {
            publish: Vec::new(),
            ..policy.clone()
        };
        self.store.put_network(family.id, &of_family)?;
        let subnet = network_of(family.number)?;
        let ports = self.network.take_ports(&policy.publish)?;
        let members = self
            .store
            .take_members(family.id, 1, Subnet::MEMBERS, &BTreeSet::new())?;
        self.network
            .create_family(family.id, subnet, policy, Some(ports))
            .await?;
        let snapshot = Snapshot {
            layout: source.layout(family, name, subnet),
            devices: source.devices.clone(),
            disjoint: Vec::new(),
        };
        let fork = ForkId::random();
        let template = self
            .folders
            .all_substrates()
            .join(format!("{fork}.template"));
        let asked = Asked {
            fork,
            request: None,
            watch: None,
            mode: ForkMode::Fast,
            scrub: Vec::new(),
            home: None,
            far: Far::default(),
        };
        // Programs in it are a founder's, which has no number among clones.
        let wanted = Wanted::without_ticket(0, members);
        let of = &snapshot.layout.of;
        let subject = EventVm {
            id: of.id,
            name: of.name.clone(),
            family: Some(of.family),
        };
        let going = self.progress.begin_of(subject, wanted.len(), &asked);
        let mut report = ForkReport::default();
        let shells = self
            .shells_over(&snapshot.layout, &template, &wanted)
            .await?;
        report.shells_us = micros(source.begun.elapsed());
        let origin = Origin {
            fork,
            asked: &asked,
            begun: source.begun,
            going: &going,
        };
        let made = self
            .instantiate_here(&snapshot, shells, origin, &mut report)
            .await;
        let one = made.into_iter().next();
        let (_, vm) = one.ok_or_else(|| HostError::Invalid("no VM was made".into()))?;
        let vm = vm?;
        if !policy.publish.is_empty() {
            let vm = self.vm(vm.id.as_str())?;
            vm.change(&self.store, |record| {
                record.publish.clone_from(&policy.publish)
            })?;
        }
        if source.founders.warm > 0 {
            let vm = self.vm(vm.id.as_str())?;
            vm.change(&self.store, |record| record.warm = source.founders.warm)?;
            self.keep_warm(&vm, Vec::new());
        }
        Ok((vm, report))
    }
}

impl Source<'_> {
    /// Lays out the files that shells of one VM are made over.
    fn layout(&self, family: &FamilyRecord, name: VmName, network: Subnet) -> Layout {
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
                vcpus: entry.vcpus,
                memory: entry.memory,
                accel: entry.accel.clone(),
                secrets: self.founders.secrets.clone(),
                forks: UnderWay::default(),
            },
            memory: self.parts.memory.image,
            disk: Disk::Slices {
                slices: Vec::new(),
                base: Some(self.parts.disk.image),
            },
            data: Vec::new(),
        }
    }
}
