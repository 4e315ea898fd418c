//! Clones of an instant of a VM on another host.

use super::{
    alike::{check_reporting, check_version},
    incoming_images::{Origin, Whose},
    keys::key_of,
};
use crate::{
    Host, HostError, accel_of,
    boot::{MEMORY_MIB, VCPUS},
    clone::{Asked, Origin as CloneOrigin},
    fork::{Assigned, MOST_CLONES, Wanted},
    micros, network_of,
    quota::{Asker, Places},
    remote::Far,
    telemetry::Counted,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use forkyard_network::Subnet;
use forkyard_pager::{Fetching, Run};
use forkyard_records::{FamilyNo, FamilyRecord, RecordsError};
use forkyard_snapshot::{Disk, Layout, Original, Snapshot};
use forkyard_types::{
    CloneResult, FamilyId, ForkMode, ForkPhase, ForkReport, GuestCpu, Handout, HandoutFamily,
    ImageId, Member, NetworkPolicy, PageCount, PageOrder, PageRun, PeerForkRequest,
    PeerForkResponse, PeerTicket, RemotePages, VmPart, VmView,
};
use forkyard_vm::UnderWay;
use forkyard_vmm::{Accel, check_memory};
use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Instant,
};
use tracing::{Instrument as _, Span, debug_span, instrument};

/// Largest state of devices that is taken; usual is 170 KiB.
const MOST_DEVICES: usize = 16 << 20;
/// Most stretches of pages that are told of.
const MOST_TOUCHED: usize = 4096;
/// Largest disk that is taken: 4 TiB.
const MOST_PAGES: PageCount = PageCount(1 << 30);

impl Host {
    /// Makes clones of an instant of another host's VM. Their pages come as they
    /// are touched. Not cancel-safe: run it on a task of its own.
    #[instrument(name = "take", skip_all, fields(fork, parent = %request.handout.parent.name, clones = request.count))]
    pub async fn clone_from_peer(
        &self,
        request: PeerForkRequest,
    ) -> Result<PeerForkResponse, HostError> {
        let begun = Instant::now();
        let PeerForkRequest {
            handout,
            count,
            first,
            scrub,
            settle,
            ticket,
        } = request;
        Span::current().record("fork", tracing::field::display(handout.fork));
        self.check(&handout)?;
        if !(1..=MOST_CLONES).contains(&count) {
            return Err(HostError::Invalid(format!(
                "count is {count}: wanted 1 to {MOST_CLONES}"
            )));
        }
        if ticket
            .as_ref()
            .is_some_and(|it| it.clones.len() != usize::from(count))
        {
            return Err(HostError::Invalid(format!(
                "count is {count}, and its ticket promises other clones"
            )));
        }
        super::check_hosts(&handout.family.hosts)?;
        crate::secrets::check(&handout.parent.secrets)?;
        // Its own and those of the fork, each list as long as it may be.
        scrub
            .chunks(crate::secrets::MOST)
            .try_for_each(crate::secrets::check)?;
        let devices = unpacked(&handout.devices, &[])?;
        let Some(disk) = handout.disk else {
            return Err(HostError::Invalid("its descriptor has no disk".into()));
        };
        let images = [handout.memory.image, disk.image];
        // From here on, until its clones are recorded: one that fails must not take
        // the images away from the others.
        let hold = self.hold(images)?;
        self.join_family(&handout.family)?;
        let going = self.forks.progress.begin_taken(&handout, count);
        let mut opened = false;
        let taken = async {
            self.fetch(&handout, settle)
                .instrument(debug_span!("fetch"))
                .await?;
            let snapshot = received(&handout, devices)?;
            let family = handout.family.id;
            let mut places = self.places(family, count, Asker::Outside)?;
            let wanted = match &ticket {
                None => Wanted::without_ticket(first, self.take_members(family, &mut places)?),
                Some(ticket) => {
                    let wanted = self.take_promised(family, &mut places, ticket)?;
                    opened = true;
                    wanted
                }
            };
            let counted = Counted::begin(wanted.len());
            let mut report = ForkReport::default();
            self.need_network(&snapshot.layout).await?;
            let folder = self.parts.folders.all_disks().join(handout.fork.as_str());
            fs::create_dir_all(&folder).map_err(HostError::io("create", &folder))?;
            let template = folder.join("template");
            going.reach(ForkPhase::Starting);
            let shells = self
                .shells_over(&snapshot.layout, &template, &wanted)
                .instrument(debug_span!("shells"))
                .await;
            // Another taking of the same fork may be at it, too.
            let _ = fs::remove_dir(&folder);
            report.shells_us = micros(begun.elapsed());
            let shells = self.once_settled(&handout, shells?).await?;
            let asked = Asked {
                fork: handout.fork,
                request: ticket.as_ref().and_then(|ticket| ticket.request),
                watch: None,
                mode: ForkMode::Fast,
                scrub: scrub.clone(),
                home: ticket.as_ref().map(|ticket| ticket.home),
                far: Far::default(),
            };
            let origin = CloneOrigin {
                fork: handout.fork,
                asked: &asked,
                begun,
                going: &going,
            };
            let clones = self
                .instantiate_here(&snapshot, shells, origin, &mut report)
                .await;
            counted.done(&report, &clones);
            let refused = (places.count()..count).filter_map(|_| places.refusal());
            let refused = refused
                .map(|error| Err(error.into()))
                .inspect(|refused| going.made(None, refused));
            let made = clones.into_iter().map(|(_, made)| made);
            let clones: Vec<CloneResult> = made.chain(refused).map(told).collect();
            let touched = self.touched(handout.memory).await;
            Ok::<_, HostError>(PeerForkResponse {
                clones,
                report,
                touched,
            })
        };
        let taken = taken.await;
        going.over(&taken);
        drop(hold);
        if let (true, Err(_), Some(ticket)) = (opened, &taken, &ticket) {
            self.tickets(|tickets| tickets.close(ticket.id));
        }
        // As far as nothing came of it.
        let origin = origin(&handout);
        for image in images {
            // Never one that was here before, of others.
            if self.peers.incoming_images.came_from(image, origin) {
                self.snapshots.retire(image).await;
            }
        }
        self.end_family_if_empty(handout.family.id).await;
        if let Ok(taken) = &taken {
            tracing::info!(parent = %handout.parent.name, fork = %handout.fork, clones = taken.clones.len(), report = ?taken.report, "taken");
        }
        taken
    }

    /// The clones that a ticket promised: with the places in the family that were.
    fn take_promised(
        &self,
        family: FamilyId,
        places: &mut Places,
        ticket: &PeerTicket,
    ) -> Result<Vec<Wanted>, HostError> {
        // Fewer, if the family may have no more.
        let promised = &ticket.clones[..ticket.clones.len().min(places.count().into())];
        let members: Vec<Member> = promised.iter().map(|clone| clone.member).collect();
        let distinct: BTreeSet<_> = members.iter().collect();
        places.choose(|_, taken| {
            let free = self
                .parts
                .store
                .are_free(family, &members, Subnet::MEMBERS, taken)?;
            match free && distinct.len() == members.len() {
                true => Ok(members.clone()),
                false => Err(HostError::Conflict(
                    "places in the family that were promised are not free here".into(),
                )),
            }
        })?;
        if !self.tickets(|tickets| tickets.open(ticket, crate::now())) {
            return Err(HostError::Conflict(format!(
                "clones of ticket {} are being made here, or have been",
                ticket.id
            )));
        }
        let wanted = promised.iter().map(|clone| Wanted {
            number: clone.number,
            member: clone.member,
            ticket: Some(ticket.id),
            processes: clone.processes,
            vcpus: Some(clone.vcpus),
        });
        Ok(wanted.collect())
    }

    /// Refuses what this host cannot make a clone of.
    pub(crate) fn check(&self, handout: &Handout) -> Result<(), HostError> {
        let refuse = |why: String| Err(HostError::Invalid(why));
        let machine = &handout.machine;
        check_version(handout.version, Handout::VERSION)?;
        check_reporting(machine.page_reporting, self.parts.options.page_reporting)?;
        let sized = handout.memory.pages == machine.memory.pages()
            && machine.memory.is_page_aligned()
            && (1..=MOST_PAGES.0).contains(&handout.memory.pages.0)
            && handout.disk.is_none_or(|disk| {
                (1..=MOST_PAGES.0).contains(&disk.pages.0) && disk.image != handout.memory.image
            });
        let grown = check_memory(machine.booted, machine.booted, machine.memory).is_ok();
        let (vcpus, mib) = (machine.vcpus, machine.memory.0 >> 20);
        if !sized || !grown || !VCPUS.contains(&vcpus) || !MEMORY_MIB.contains(&mib) {
            return refuse("its descriptor makes no machine".into());
        }
        let accel = accel_of(&machine.accel);
        if accel == Accel::Kvm && self.parts.options.accel == crate::AccelChoice::Tcg {
            let why = "it runs by KVM, and this host's VMs may not";
            return Err(HostError::Conflict(why.into()));
        }
        self.check_cpu(accel, machine.cpu.as_ref())
    }

    /// Refuses a guest whose CPU this host has not.
    pub(crate) fn check_cpu(&self, accel: Accel, cpu: Option<&GuestCpu>) -> Result<(), HostError> {
        let Some(cpu) = cpu else { return Ok(()) };
        let ours = self.parts.engine.cpu(accel)?;
        let suits = ours.suits(cpu);
        suits.map_err(|unlike| HostError::Conflict(unlike.to_string()))
    }

    /// Lets its family in.
    pub(crate) fn join_family(&self, family: &HandoutFamily) -> Result<(), HostError> {
        let number = FamilyNo(family.number);
        network_of(number).map_err(|error| HostError::Invalid(error.to_string()))?;
        let record = FamilyRecord {
            id: family.id,
            number,
            max_clones: family.max_clones,
        };
        // What leads in leads to its first VM, which is elsewhere.
        let policy = NetworkPolicy {
            publish: Vec::new(),
            ..family.network.clone()
        };
        let places = family.first.0..family.first.0.saturating_add(family.places);
        match self.parts.store.join_family(record, places, &policy) {
            Err(RecordsError::NumberTaken { .. }) => {
                let network = network_of(number)?.network();
                return Err(HostError::NetworkTaken { network });
            }
            other => other?,
        }
        match family.tunnel {
            Some(lender) => {
                let key = family.key.as_ref();
                self.update_from(lender, family.id, &family.hosts, key)
            }
            None => Ok(()),
        }
    }

    /// Has the pager fetch its images.
    pub(crate) async fn fetch(&self, handout: &Handout, settle: bool) -> Result<(), HostError> {
        let key = key_of(&handout.key)?;
        let local = way_to(handout.pager)?;
        let origin = origin(handout);
        for RemotePages {
            image,
            pages,
            order,
        } in [handout.memory].into_iter().chain(handout.disk)
        {
            let settle = settle || order == PageOrder::SettleFirst;
            let of_memory = |runs: &[PageRun]| match image == handout.memory.image {
                true => runs.iter().map(run).collect(),
                false => Vec::new(),
            };
            let fetching = Fetching {
                pages,
                key,
                server: handout.pager,
                local,
                settle,
                first: of_memory(&handout.first),
                last: of_memory(&handout.last),
                over: None,
            };
            let is_own = || self.is_of(image, handout.family.id);
            self.fetch_image(image, fetching, origin, is_own).await?;
        }
        Ok(())
    }

    /// Asks for the pages that clones have touched of memory that did not come on demand: its
    /// host learns it from nothing else.
    async fn touched(&self, memory: RemotePages) -> Vec<PageRun> {
        let RemotePages { image, order, .. } = memory;
        if order == PageOrder::OnDemand {
            return Vec::new();
        }
        let touched = self
            .parts
            .pager_call(move |pager| pager.touched(image))
            .await;
        // It costs a later fork time, no more.
        let touched = touched.unwrap_or_default();
        touched.iter().take(MOST_TOUCHED).map(page_run).collect()
    }

    /// Keeps shells until those pages have come that come first. If they do not, the shells
    /// are ended.
    async fn once_settled(
        &self,
        handout: &Handout,
        shells: Assigned,
    ) -> Result<Assigned, HostError> {
        let of = &handout.parent.name;
        let disk = handout.disk.map(|disk| (VmPart::Disk, disk));
        let parts = [(VmPart::Memory, handout.memory)].into_iter().chain(disk);
        let come = async {
            for (part, RemotePages { image, order, .. }) in parts {
                if order == PageOrder::SettleFirst {
                    self.nearly_here(of, (part, image)).await?;
                }
            }
            Ok(())
        };
        match come.instrument(debug_span!("settle first")).await {
            Ok(()) => Ok(shells),
            Err(error) => {
                let (assigned, _) = shells;
                let shells = assigned.into_iter().filter_map(|(_, shell)| shell);
                self.snapshots.end_shells(shells.collect()).await;
                Err(error)
            }
        }
    }

    /// True if VMs here have an image, and all of them are of this family: an earlier
    /// daemon fetched it.
    fn is_of(&self, image: ImageId, family: FamilyId) -> Result<bool, HostError> {
        Ok(self.parts.store.families_of_image(image)? == BTreeSet::from([family]))
    }
}

/// The snapshot of another host's VM that a handout describes. Its images are fetched by
/// the task that makes clones of it.
pub(crate) fn received(handout: &Handout, devices: Vec<u8>) -> Result<Snapshot, HostError> {
    let Handout {
        parent,
        family,
        machine,
        ..
    } = handout;
    Ok(Snapshot {
        layout: Layout {
            of: Original {
                id: parent.id,
                name: parent.name.clone(),
                family: family.id,
                network: network_of(FamilyNo(family.number))?,
                member: parent.member,
                is_clone: parent.is_clone,
                founds: false,
                generation: parent.generation,
                granted: machine.granted,
                image: machine.image.clone(),
                vcpus: machine.vcpus,
                saved_vcpus: machine.vcpus,
                memory: machine.memory,
                booted: machine.booted,
                growth: None,
                accel: machine.accel.clone(),
                cpu: machine.cpu.clone().filter(|_| machine.is_baseline),
                secrets: parent.secrets.clone(),
                // It is removed elsewhere.
                forks: UnderWay::default(),
            },
            memory: handout.memory.image,
            disk: Disk::Slices {
                slices: Vec::new(),
                base: handout.disk.map(|disk| disk.image),
            },
            data: Vec::new(),
        },
        devices,
        disjoint: Vec::new(),
    })
}

pub(crate) fn page_run(run: &Run) -> PageRun {
    PageRun {
        first: run.first,
        pages: run.pages,
    }
}

pub(crate) fn run(run: &PageRun) -> Run {
    Run {
        first: run.first,
        pages: run.pages,
    }
}

/// The state of devices as it was sent.
///
/// `earlier` is what it was packed by the difference from, if by any.
pub(crate) fn unpacked(devices: &str, earlier: &[u8]) -> Result<Vec<u8>, HostError> {
    let packed = BASE64_STANDARD.decode(devices).ok();
    let state = packed.and_then(|packed| {
        let mut unpacker = zstd::bulk::Decompressor::with_dictionary(earlier).ok()?;
        unpacker.decompress(&packed, MOST_DEVICES).ok()
    });
    state.ok_or_else(|| HostError::Invalid("the state of its devices cannot be read".into()))
}

pub(super) fn origin(handout: &Handout) -> Origin {
    Origin {
        whose: Whose::Family(handout.family.id),
        server: handout.pager.ip(),
    }
}

fn told(made: Result<VmView, HostError>) -> CloneResult {
    match made {
        Ok(vm) => CloneResult::Vm(Box::new(vm)),
        Err(error) => CloneResult::Error(error.to_api()),
    }
}

/// Our address on the way to another host. Sends nothing.
pub(super) fn way_to(server: SocketAddr) -> Result<IpAddr, HostError> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let found = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(server)?;
        socket.local_addr()
    });
    let failed =
        |error| HostError::Broken(format!("no way leads to its pages at {server}: {error}"));
    Ok(found.map_err(failed)?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_oneself_is_the_loopback() {
        let here = way_to(([127, 0, 0, 1], 9).into()).expect("a way");
        assert!(here.is_loopback());
    }
}
