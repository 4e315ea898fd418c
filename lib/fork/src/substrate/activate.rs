//! Activation: a substrate becomes VMs, each the founder of a family of its own.

use super::{Substrate, open::Opened, sizes::Size, standby::Standby};
use crate::{
    Host, HostError,
    clone::{Asked, Origin},
    fork::{Wanted, assign, micros},
    network_of,
    quota::Places,
    remote::Far,
    snapshot::{Assigned, Layout, Snapshot, WarmShell},
    terms::NewTerms,
};
use forkyard_network::Subnet;
use forkyard_records::FamilyRecord;
use forkyard_substrate::access::Act;
use forkyard_types::{
    ActivateRequest, ActivateResponse, CloneResult, EventVm, ForkId, ForkMode, ForkReport, Member,
    NetworkPolicy, VmName, VmView,
};
use futures::{StreamExt as _, stream};
use std::{net::Ipv4Addr, path::PathBuf, time::Instant};
use tracing::instrument;

/// VMs made at once: starts of QEMU are short and bound by processors.
const AT_ONCE: usize = 4;
/// VMs of one request.
const MOST: u16 = 256;

/// Data that all VMs of one activation share.
struct Source<'a> {
    of: Opened<'a>,
    founders: &'a Founders,
    begun: Instant,
}

/// Properties wanted of the VMs of one activation.
#[derive(Clone, Debug, Default)]
pub(super) struct Founders {
    pub count: u16,
    /// Size of each; none: that of the VM that was docked.
    pub size: Option<Size>,
    /// Name of one, or the beginning of the names of several.
    pub name: Option<VmName>,
    pub network: NetworkPolicy,
    pub max_clones: Option<u16>,
    /// VM whose family they join.
    pub join: Option<String>,
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
        if request.join.is_some() {
            crate::joining::check(network, request.max_clones)?;
        }
        crate::secrets::check(&request.secrets)?;
        let terms = NewTerms::of_founders(&request)?;
        let substrate = self.substrate(name, Act::Open, asker)?;
        let size = substrate.size(request.memory, request.vcpus)?;
        let size = self.size_with_disk(&substrate, size, request.disk).await?;
        let founders = Founders {
            count: request.count,
            size: Some(size),
            name: request.name,
            network: request.network,
            max_clones: request.max_clones,
            join: request.join,
            warm: request.warm,
            secrets: request.secrets,
        };
        let mut answer = self.activate_as(&substrate, &founders).await?;
        for made in &mut answer.vms {
            if let CloneResult::Vm(view) = made {
                let vm = self.vm(view.id.as_str())?;
                self.give_terms(&vm, &terms)?;
                if request.independent {
                    self.want_independence(&vm).await?;
                }
                **view = self.view_of(&vm);
            }
        }
        Ok(answer)
    }

    /// Makes VMs of a substrate. Not cancel-safe.
    pub(super) async fn activate_as(
        &self,
        substrate: &Substrate,
        founders: &Founders,
    ) -> Result<ActivateResponse, HostError> {
        let begun = Instant::now();
        let _under_way = self.forks.begin().ok_or(HostError::Closing)?;
        let size = founders.size.unwrap_or_else(|| substrate.docked());
        let of = self.open_substrate(substrate, size).await?;
        self.note_use(substrate)?;
        let source = Source {
            of,
            founders,
            begun,
        };
        let (names, _promised) = self.names_for(substrate, founders)?;
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

    async fn activate_one(
        &self,
        source: &Source<'_>,
        name: VmName,
    ) -> Result<(VmView, ForkReport), HostError> {
        if let Some(member) = &source.founders.join {
            let family = self.family_to_join(member)?;
            return self.found_from(source, &family, name, None).await;
        }
        // A name that is taken is refused below, and costs none.
        let is_free = self.registry().find(name.as_str()).is_err();
        if is_free && let Some(standby) = self.take_standby(&source.of.shelf()).await {
            match self.found_from_standby(source, standby, name.clone()).await {
                Ok(made) => return Ok(made),
                // As without one: what is wrong with the request is said there.
                Err(error) => {
                    tracing::warn!(%name, error = &error as &dyn std::error::Error, "the VM that was ready could not be used");
                }
            }
        }
        let family = self.found_family(source.founders.max_clones).await?;
        let made = self.found_from(source, &family, name, None).await;
        if made.is_err() {
            // With all that was recorded of it.
            self.end_family_if_empty(family.id).await;
        }
        made
    }

    async fn found_from_standby(
        &self,
        source: &Source<'_>,
        Standby { family, shell }: Standby,
        name: VmName,
    ) -> Result<(VmView, ForkReport), HostError> {
        let made = async {
            self.store
                .bound_family(family.id, source.founders.max_clones)?;
            self.found_from(source, &family, name, Some(shell)).await
        };
        let made = made.await;
        if made.is_err() {
            self.end_family_if_empty(family.id).await;
        }
        made
    }

    /// Makes the first VM of a family, of a shell if there is one already, or one that joins it.
    async fn found_from(
        &self,
        source: &Source<'_>,
        family: &FamilyRecord,
        name: VmName,
        shell: Option<WarmShell>,
    ) -> Result<(VmView, ForkReport), HostError> {
        let subnet = network_of(family.number)?;
        let (member, _place) = match self.connect_founder(source.founders, family, subnet).await {
            Ok(place) => place,
            Err(error) => {
                self.end_shells(shell.into_iter().collect()).await;
                return Err(error);
            }
        };
        let made = self
            .found_at(source, (family, subnet, member), name, shell)
            .await;
        if made.is_err() && source.founders.join.is_some() {
            let to = ip_of(subnet, member);
            if let Err(error) = self.network.unpublish(family.id, to, &[]).await {
                tracing::warn!(error = &error as &dyn std::error::Error, "ports not closed");
            }
        }
        made
    }

    /// Makes a VM at its place in a family, whose network is there.
    async fn found_at(
        &self,
        source: &Source<'_>,
        (family, subnet, member): (&FamilyRecord, Subnet, Member),
        name: VmName,
        shell: Option<WarmShell>,
    ) -> Result<(VmView, ForkReport), HostError> {
        let to = ip_of(subnet, member);
        let snapshot = Snapshot {
            layout: source.of.layout(family, name, subnet, source.founders),
            devices: source.of.devices.clone(),
            disjoint: Vec::new(),
        };
        let fork = ForkId::random();
        let asked = Asked {
            fork,
            request: None,
            watch: None,
            mode: ForkMode::Fast,
            scrub: Vec::new(),
            home: Some(to),
            far: Far::default(),
        };
        // Programs in it are a founder's, which has no number among clones.
        let wanted = Wanted::without_ticket(0, vec![member]);
        let of = &snapshot.layout.of;
        let subject = EventVm {
            id: of.id,
            name: of.name.clone(),
            family: Some(of.family),
        };
        let going = self.progress.begin_of(subject, wanted.len(), &asked);
        let mut report = ForkReport::default();
        let shells = match shell {
            Some(shell) => {
                self.assign_standby(&snapshot.layout, shell, &wanted)
                    .await?
            }
            None => {
                let template = self.template_of(fork);
                self.shells_over(&snapshot.layout, &template, &wanted)
                    .await?
            }
        };
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
        let policy = &source.founders.network;
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

    /// Makes the network of a founder as it was asked for, or opens the ports of one that joins, and
    /// gives it its place there.
    async fn connect_founder(
        &self,
        founders: &Founders,
        family: &FamilyRecord,
        subnet: Subnet,
    ) -> Result<(Member, Places), HostError> {
        let policy = &founders.network;
        let ports = self.network.take_ports(&policy.publish)?;
        let (member, place) = self.take_place(family.id)?;
        if founders.join.is_some() {
            let to = ip_of(subnet, member);
            self.open_ports(family.id, to, &policy.publish, ports)
                .await?;
            return Ok((member, place));
        }
        // Ports are the VM's own.
        let of_family = NetworkPolicy {
            publish: Vec::new(),
            ..policy.clone()
        };
        self.store.put_network(family.id, &of_family)?;
        self.network
            .create_family(family.id, subnet, policy, Some(ports))
            .await?;
        Ok((member, place))
    }

    /// Gives a VM that was ready what its record says of those that are made now.
    async fn assign_standby(
        &self,
        layout: &Layout,
        mut shell: WarmShell,
        wanted: &[Wanted],
    ) -> Result<Assigned, HostError> {
        shell.record.created = crate::now();
        shell.record.secrets.clone_from(&layout.of.secrets);
        let id = shell.record.id;
        let assigned = assign(wanted, vec![shell]);
        if let Err(error) = self.admit(layout, &assigned).await {
            let left = assigned.into_iter().filter_map(|(_, shell)| shell);
            self.end_shells(left.collect()).await;
            return Err(error);
        }
        tracing::debug!(vm = %id, "taken ready");
        Ok((assigned, Vec::new()))
    }

    /// Returns the path at which an empty slice over a substrate's disk may be for a moment.
    pub(super) fn template_of(&self, fork: ForkId) -> PathBuf {
        let folder = self.folders.all_substrates();
        folder.join(format!("{fork}.template"))
    }
}

/// Address of a place on a family's network.
fn ip_of(subnet: Subnet, member: Member) -> Ipv4Addr {
    let address = subnet.address(member);
    address.unwrap_or_else(|| subnet.founder()).ip
}
