//! Activation: a substrate becomes VMs, each the founder of a family of its own.

use super::{
    Substrate,
    leads::{self, Founder, Leads},
    open::Opened,
    sizes::Size,
    standby::Standby,
};
use crate::{
    Host, HostError,
    clone::{Asked as AskedOfClones, Origin},
    fork::{Assigned, Wanted, assign, members},
    micros, network_of,
    progress::Going,
    quota::Places,
    remote::{Dealt, Far},
    terms::NewTerms,
};
use forkyard_network::Subnet;
use forkyard_records::FamilyRecord;
use forkyard_snapshot::{Layout, Snapshot, WarmShell};
use forkyard_substrate::access::Act;
use forkyard_types::{
    ActivateRequest, ActivateResponse, ByteCount, CloneResult, EventVm, ForkId, ForkMode,
    ForkReport, Member, NetworkPolicy, RequestId, VmId, VmName, VmView,
};
use futures::{StreamExt as _, stream};
use std::{collections::BTreeSet, net::Ipv4Addr, path::PathBuf, time::Instant};
use tracing::instrument;

/// VMs made at once: starts of QEMU are short and bound by processors.
const AT_ONCE: usize = 4;
/// VMs of one request.
const MOST: u16 = 256;

/// Machine of a VM that is about to be made.
enum Vessel {
    /// One that waits for its identity.
    Ready(Box<WarmShell>),
    /// A new one, of this id.
    New(VmId),
}

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
    /// Id by which observers follow them while they are made.
    pub watch: Option<RequestId>,
}

/// VMs that one request asks for, and what each of them is given.
pub(super) struct Asked {
    pub founders: Founders,
    terms: NewTerms,
    independent: bool,
}

impl Asked {
    /// Refuses what cannot be had, whatever the substrate is.
    pub fn check(request: &ActivateRequest) -> Result<Self, HostError> {
        if !(1..=MOST).contains(&request.count) {
            return Err(HostError::Invalid(format!(
                "count is {}: wanted 1 to {MOST}",
                request.count
            )));
        }
        let network = &request.network;
        crate::egress::check(network.out, &network.allow, &network.deny)?;
        leads::check(&network.publish, request.count)?;
        if request.join.is_some() {
            crate::joining::check(network, request.max_clones)?;
            if !request.to.is_empty() || request.spread {
                return Err(HostError::Invalid(
                    "VMs that join a family are on the host of its first VM: name no other".into(),
                ));
            }
        }
        crate::secrets::check(&request.secrets)?;
        Ok(Self {
            terms: NewTerms::of_founders(request)?,
            founders: Founders {
                count: request.count,
                size: None,
                name: request.name.clone(),
                network: request.network.clone(),
                max_clones: request.max_clones,
                join: request.join.clone(),
                warm: request.warm,
                secrets: request.secrets.clone(),
                watch: request.watch,
            },
            independent: request.independent,
        })
    }
}

impl Host {
    /// Makes VMs of a substrate, here and on the hosts that are named. `taken`: names that are not to be
    /// given, beside those of VMs that this host knows. Not cancel-safe: run it on a task of its own.
    #[instrument(skip_all, fields(name, count = request.count))]
    pub async fn activate(
        &self,
        name: &str,
        request: ActivateRequest,
        (asker, taken): (Option<&str>, BTreeSet<String>),
    ) -> Result<ActivateResponse, HostError> {
        let mut asked = Asked::check(&request)?;
        let dealt = Dealt::of(request.count, &request.to, request.spread)?;
        let (substrate, size) = self.sized_substrate(name, &request, asker).await?;
        asked.founders.size = Some(size);
        let mut answer = match dealt.far() {
            0 => self.activate_as(&substrate, &asked.founders).await?,
            _ => {
                self.activate_across(&substrate, &asked.founders, request, (dealt, asker, taken))
                    .await?
            }
        };
        self.give_to_founders(&asked, &mut answer).await?;
        Ok(answer)
    }

    /// vCPUs and memory that each VM of an activation will have. Cancel-safe.
    pub async fn size_of_activation(
        &self,
        name: &str,
        request: &ActivateRequest,
        asker: Option<&str>,
    ) -> Result<(u8, ByteCount), HostError> {
        Asked::check(request)?;
        let (_, size) = self.sized_substrate(name, request, asker).await?;
        Ok((size.vcpus, size.memory))
    }

    async fn sized_substrate(
        &self,
        name: &str,
        request: &ActivateRequest,
        asker: Option<&str>,
    ) -> Result<(Substrate, Size), HostError> {
        let substrate = self.substrate(name, Act::Open, asker)?;
        let size = substrate.size(request.memory, request.vcpus)?;
        let size = self.size_with_disk(&substrate, size, request.disk).await?;
        Ok((substrate, size))
    }

    /// Gives VMs that were made here the terms that were asked for.
    pub(super) async fn give_to_founders(
        &self,
        asked: &Asked,
        answer: &mut ActivateResponse,
    ) -> Result<(), HostError> {
        for made in &mut answer.vms {
            if let CloneResult::Vm(view) = made
                && view.host.is_none()
            {
                let vm = self.vm(view.id.as_str())?;
                self.give_terms(&vm, &asked.terms)?;
                if asked.independent {
                    self.want_independence(&vm).await?;
                }
                **view = self.view_of(&vm);
            }
        }
        Ok(())
    }

    /// Makes VMs of a substrate. Not cancel-safe.
    pub(super) async fn activate_as(
        &self,
        substrate: &Substrate,
        founders: &Founders,
    ) -> Result<ActivateResponse, HostError> {
        let begun = Instant::now();
        let _under_way = self.forks.under_way.begin().ok_or(HostError::Closing)?;
        self.check_leads(&founders.network.publish).await?;
        let size = founders.size.unwrap_or_else(|| substrate.docked());
        let of = self.open_substrate(substrate, size).await?;
        self.note_use(substrate)?;
        let (names, _promised) = self.names_for(substrate, founders, &BTreeSet::new())?;
        let going = self.watched(substrate, founders, (names.len(), Far::default()));
        let wanted = Leads::of(founders).founders(names.into_iter().map(|name| (name, None)));
        let of = (of, founders, begun);
        Ok(self.make_founders(of, wanted, going.as_ref()).await)
    }

    /// Has an activation that is watched be followed: so many VMs here, and others elsewhere.
    pub(super) fn watched(
        &self,
        substrate: &Substrate,
        founders: &Founders,
        (here, far): (usize, Far),
    ) -> Option<Going> {
        founders.watch?;
        let subject = EventVm {
            // Of no VM.
            id: VmId::random(),
            name: substrate.name.clone(),
            family: None,
        };
        let asked = AskedOfClones {
            fork: ForkId::random(),
            request: None,
            watch: founders.watch,
            mode: ForkMode::Fast,
            scrub: Vec::new(),
            home: None,
            far,
        };
        Some(self.forks.progress.begin_of(subject, here, &asked))
    }

    /// Makes these VMs of a substrate. Not cancel-safe.
    pub(super) async fn make_founders(
        &self,
        (of, founders, begun): (Opened<'_>, &Founders, Instant),
        wanted: Vec<Founder>,
        going: Option<&Going>,
    ) -> ActivateResponse {
        let source = Source {
            of,
            founders,
            begun,
        };
        let made: Vec<_> = stream::iter(wanted)
            .map(|founder| async {
                let made = self.activate_one(&source, founder).await;
                if let Some(going) = going {
                    going.made(None, &made);
                }
                made
            })
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
        answer
    }

    async fn activate_one(
        &self,
        source: &Source<'_>,
        founder: Founder,
    ) -> Result<(VmView, ForkReport), HostError> {
        let Founder { name, id, .. } = &founder;
        if let Some(member) = &source.founders.join {
            let family = self.family_to_join(member)?;
            let vessel = Vessel::New(VmId::random());
            return self.found_from(source, &family, &founder, vessel).await;
        }
        // A name that is taken is refused below, and costs none. One that is ready has its id already.
        let is_free = id.is_none() && self.parts.registry().find(name.as_str()).is_err();
        if is_free && let Some(standby) = self.take_standby(&source.of.shelf()).await {
            match self.found_from_standby(source, standby, &founder).await {
                Ok(made) => return Ok(made),
                // As without one: what is wrong with the request is said there.
                Err(error) => {
                    tracing::warn!(%name, error = &error as &dyn std::error::Error, "the VM that was ready could not be used");
                }
            }
        }
        let family = self.found_family(source.founders.max_clones).await?;
        let vessel = Vessel::New(id.unwrap_or_else(VmId::random));
        let made = self.found_from(source, &family, &founder, vessel).await;
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
        founder: &Founder,
    ) -> Result<(VmView, ForkReport), HostError> {
        let made = async {
            self.parts
                .store
                .bound_family(family.id, source.founders.max_clones)?;
            let vessel = Vessel::Ready(Box::new(shell));
            self.found_from(source, &family, founder, vessel).await
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
        founder: &Founder,
        vessel: Vessel,
    ) -> Result<(VmView, ForkReport), HostError> {
        let subnet = network_of(family.number)?;
        let of = (source.founders, founder);
        let (member, _place) = match self.connect_founder(of, family, subnet).await {
            Ok(place) => place,
            Err(error) => {
                if let Vessel::Ready(shell) = vessel {
                    self.snapshots.end_shells(vec![*shell]).await;
                }
                return Err(error);
            }
        };
        let made = self
            .found_at(source, (family, subnet, member), founder, vessel)
            .await;
        if made.is_err() && source.founders.join.is_some() {
            let to = ip_of(subnet, member);
            if let Err(error) = self.parts.network.unpublish(family.id, to, &[]).await {
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
        founder: &Founder,
        vessel: Vessel,
    ) -> Result<(VmView, ForkReport), HostError> {
        let to = ip_of(subnet, member);
        let snapshot = Snapshot {
            layout: source
                .of
                .layout(family, founder.name.clone(), subnet, source.founders),
            devices: source.of.devices.clone(),
            disjoint: Vec::new(),
        };
        let fork = ForkId::random();
        let asked = AskedOfClones {
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
        let going = self.forks.progress.begin_of(subject, wanted.len(), &asked);
        let mut report = ForkReport::default();
        let shells = match vessel {
            Vessel::Ready(shell) => {
                self.assign_standby(&snapshot.layout, *shell, &wanted)
                    .await?
            }
            Vessel::New(id) => {
                let template = self.template_of(fork);
                let shell = self
                    .snapshots
                    .shell_over(&snapshot.layout, &template, (id, member))
                    .await?;
                (assign(&wanted, vec![shell]), Vec::new())
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
        let (_, vm) = one.ok_or_else(|| HostError::Broken("no VM was made of the shell".into()))?;
        let vm = vm?;
        if !founder.leads.is_empty() {
            let vm = self.vm(vm.id.as_str())?;
            vm.change(&self.parts.store, |record| {
                record.publish.clone_from(&founder.leads)
            })?;
        }
        if source.founders.warm > 0 {
            let vm = self.vm(vm.id.as_str())?;
            vm.change(&self.parts.store, |record| {
                record.warm = source.founders.warm
            })?;
            self.keep_warm(&vm, Vec::new());
        }
        Ok((vm, report))
    }

    /// Makes the network of a founder as it was asked for, or opens the ports of one that joins, and
    /// gives it its place there.
    async fn connect_founder(
        &self,
        (founders, founder): (&Founders, &Founder),
        family: &FamilyRecord,
        subnet: Subnet,
    ) -> Result<(Member, Places), HostError> {
        let ports = self.parts.network.take_ports(&founder.leads)?;
        let (member, place) = self.take_place(family.id)?;
        if founders.join.is_some() {
            let to = ip_of(subnet, member);
            self.open_ports(family.id, to, &founder.leads, ports)
                .await?;
            return Ok((member, place));
        }
        // Ports are the VM's own.
        let mut policy = NetworkPolicy {
            publish: Vec::new(),
            ..founders.network.clone()
        };
        self.parts.store.put_network(family.id, &policy)?;
        policy.publish.clone_from(&founder.leads);
        self.parts
            .network
            .create_family(family.id, subnet, &policy, Some(ports))
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
        if let Err(error) = self.snapshots.admit(layout, &members(&assigned)).await {
            let left = assigned.into_iter().filter_map(|(_, shell)| shell);
            self.snapshots.end_shells(left.collect()).await;
            return Err(error.into());
        }
        tracing::debug!(vm = %id, "taken ready");
        Ok((assigned, Vec::new()))
    }

    /// Returns the path at which an empty slice over a substrate's disk may be for a moment.
    pub(super) fn template_of(&self, fork: ForkId) -> PathBuf {
        let folder = self.parts.folders.all_disks();
        folder.join(format!("{fork}.template"))
    }
}

/// Address of a place on a family's network.
fn ip_of(subnet: Subnet, member: Member) -> Ipv4Addr {
    let address = subnet.address(member);
    address.unwrap_or_else(|| subnet.founder()).ip
}
