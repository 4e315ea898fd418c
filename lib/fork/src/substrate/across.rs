//! Activation on several hosts: what this one asks others for, and what it makes for others.

use super::{
    DISK, Entry, Substrate,
    activate::{Asked, Founders},
    leads::Leads,
    open::Opened,
    sizes::Size,
    sum_of,
};
use crate::{
    Host, HostError,
    boot::{MEMORY_MIB, VCPUS},
    remote::{Dealt, Offered, Share, Trusted, check_reporting, check_version, run, unpacked},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use forkyard_pager::Over;
use forkyard_types::{
    ActivateRequest, ActivateResponse, ByteCount, ForkId, ImageId, NetworkPolicy, PAGE_SIZE,
    PageCount, PeerActivateRequest, PeerFounder, PeerSubstrate, SubstrateKind, SubstratePart,
    SubstrateParts, VmId, VmName,
};
use forkyard_vmm::check_memory;
use std::{collections::BTreeSet, path::Path, time::Instant};
use tracing::instrument;

/// Largest disk that is taken: 4 TiB.
const MOST_PAGES: u64 = 1 << 30;

impl Host {
    /// Makes VMs of a substrate here and on other hosts, at once. One of these that fails costs its own
    /// VMs. Not cancel-safe.
    pub(super) async fn activate_across(
        &self,
        substrate: &Substrate,
        founders: &Founders,
        request: ActivateRequest,
        (dealt, user, taken): (Dealt, Option<&str>, BTreeSet<String>),
    ) -> Result<ActivateResponse, HostError> {
        let begun = Instant::now();
        let _under_way = self.forks.under_way.begin().ok_or(HostError::Closing)?;
        let far = self.far(&dealt, dealt.here, true)?;
        let size = founders.size.unwrap_or_else(|| substrate.docked());
        let of = self.open_substrate(substrate, size).await?;
        self.note_use(substrate)?;
        let (names, _promised) = self.names_for(substrate, founders, &taken)?;
        let (own, rest) = names.split_at(usize::from(dealt.here).min(names.len()));
        let going = self.watched(substrate, founders, (own.len(), far.clone()));
        if !own.is_empty() {
            let leads = Leads::of(founders).of_several(0, own.len());
            self.check_leads(&leads).await?;
        }
        let leads = (Leads::of(founders), own.len());
        let requests = self
            .requests(&of, (far.shares, rest), (leads, request))
            .await?;
        let own = own.iter().map(|name| (name.clone(), None));
        let own = Leads::of(founders).founders(own);
        let (mut answer, there) = tokio::join!(
            self.make_founders((of, founders, begun), own, going.as_ref()),
            self.have_founded(requests, user, going.as_ref())
        );
        for there in there {
            answer.vms.extend(there.vms);
            answer.running_us = answer.running_us.max(there.running_us);
            answer.ready_us = answer.ready_us.max(there.ready_us);
        }
        Ok(answer)
    }

    /// Offers a substrate to other hosts, and says what each of them must know.
    async fn requests(
        &self,
        of: &Opened<'_>,
        (shares, names): (Vec<Share>, &[VmName]),
        ((leads, mut begun), request): ((Leads<'_>, usize), ActivateRequest),
    ) -> Result<Vec<(Share, PeerActivateRequest)>, HostError> {
        let Entry {
            image,
            vcpus,
            memory,
            accel,
            cpu,
            engine,
            agent,
            ..
        } = of.substrate.entry.clone();
        let parts = of.substrate.parts()?;
        let disk = self.docked_disk(of.substrate).await?.pages();
        let (_, base) = self.layers_of(parts.disk.image, DISK)?;
        // One that was made larger lies over no image of its size.
        let same_size = |base: &ImageId| self.stack(*base).is_ok_and(|base| base.pages() == disk);
        let base = base.filter(same_size);
        let devices = zstd::bulk::compress(&of.devices, 0);
        let devices = devices.map_err(HostError::io("pack", Path::new("the state of devices")))?;
        let devices = BASE64_STANDARD.encode(devices);
        let offered = self
            .offer_substrate(
                (of.memory(), of.size.memory.pages()),
                (of.disk(), disk),
                base,
                &shares,
            )
            .await?;
        let described = PeerSubstrate {
            name: of.substrate.name.clone(),
            docked: parts.memory.image,
            image,
            vcpus,
            memory,
            booted: of.substrate.booted(),
            accel,
            cpu,
            engine,
            agent,
            page_reporting: self.parts.options.page_reporting,
        };
        let activation = ForkId::random();
        let mut names = names.iter();
        let each = shares.into_iter().enumerate().map(|(host, share)| {
            let own = names.by_ref().take(share.count.into());
            let vms: Vec<_> = own
                .map(|name| PeerFounder {
                    id: VmId::random(),
                    name: name.clone(),
                })
                .collect();
            let publish = leads.of_several(begun, vms.len());
            begun += vms.len();
            let network = NetworkPolicy {
                publish,
                ..request.network.clone()
            };
            let (memory, disk) = offered.ordered(host);
            let Offered { pager, over, .. } = &offered;
            let request = PeerActivateRequest {
                version: PeerActivateRequest::VERSION,
                activation,
                substrate: described.clone(),
                devices: devices.clone(),
                memory,
                disk,
                over: over.clone(),
                pager: *pager,
                key: offered.secret(),
                request: ActivateRequest {
                    count: share.count,
                    name: None,
                    to: Vec::new(),
                    watch: None,
                    network,
                    ..request.clone()
                },
                vms,
            };
            (share, request)
        });
        Ok(each.collect())
    }

    /// Makes VMs of a substrate of another host, over its pages as they come. What this host has of them
    /// does not come: the substrate itself, if it was brought here; its guest image; and what came
    /// for VMs that are still here. Not cancel-safe: run it on a task of its own.
    #[instrument(skip_all, fields(activation = %request.activation, name = %request.substrate.name, count = request.vms.len()))]
    pub async fn activate_from_peer(
        &self,
        request: PeerActivateRequest,
        is_trusted: Trusted,
    ) -> Result<ActivateResponse, HostError> {
        let begun = Instant::now();
        let mut asked = Asked::check(&request.request)?;
        check(&request, self.parts.options.page_reporting)?;
        self.check_leads(&request.request.network.publish).await?;
        let _under_way = self.forks.under_way.begin().ok_or(HostError::Closing)?;
        let wanted = { request.vms.iter() }.map(|vm| (vm.name.clone(), Some(vm.id)));
        let wanted = Leads::of(&asked.founders).founders(wanted);
        let docked = request.substrate.docked;
        let own = self.all_substrates()?.into_iter().find(|it| {
            let parts = it.entry.parts.as_ref();
            // Which image it is is all that a host with a token has to show.
            let opens = is_trusted == Trusted::Yes || it.entry.kind != SubstrateKind::Private;
            opens && parts.is_some_and(|parts| parts.memory.image == docked)
        });
        let mut answer = match own {
            Some(own) => {
                let size = received_size(&own, &request)?;
                let of = self.open_substrate(&own, size).await?;
                self.note_use(&own)?;
                self.make_founders((of, &asked.founders, begun), wanted, None)
                    .await
            }
            None => {
                let devices = unpacked(&request.devices, &[])?;
                let (substrate, over) = self.received(&request, &devices)?;
                let size = received_size(&substrate, &request)?;
                asked.founders.size = Some(size);
                self.check_runs_here(&substrate).await?;
                // Until its VMs are recorded.
                let hold = self.hold([request.memory.image, request.disk.image])?;
                let made = async {
                    if over.is_some() {
                        // The guest image that its disk lies over.
                        self.parts.bases().serve_built().await?;
                    }
                    self.fetch_substrate(&request, over, is_trusted).await?;
                    let of = (size, request.memory.image);
                    let of = Opened::received(&substrate, devices, of)?;
                    let of = (of, &asked.founders, begun);
                    Ok::<_, HostError>(self.make_founders(of, wanted, None).await)
                };
                let made = made.await;
                drop(hold);
                self.drop_fetched(&request).await;
                made?
            }
        };
        self.give_to_founders(&asked, &mut answer).await?;
        Ok(answer)
    }

    /// Describes a substrate of another host as one of this host's, and what its disk lies over here.
    fn received(
        &self,
        request: &PeerActivateRequest,
        devices: &[u8],
    ) -> Result<(Substrate, Option<Over>), HostError> {
        let of = &request.substrate;
        let base = request.over.as_ref();
        let base = base.and_then(|over| Some((over, self.parts.bases().name_of(over.image).ok()?)));
        let part = |image| SubstratePart {
            image,
            over: None,
            raw: ByteCount(0),
            own: ByteCount(0),
            file: ByteCount(0),
        };
        let substrate = Substrate {
            name: of.name.clone(),
            entry: Entry {
                kind: SubstrateKind::Restricted,
                owner: None,
                boot: false,
                from: of.name.clone(),
                // By the name that it has here.
                image: { base.as_ref() }.map_or_else(|| of.image.clone(), |(_, name)| name.clone()),
                vcpus: of.vcpus,
                memory: of.memory,
                booted: Some(of.booted),
                accel: of.accel.clone(),
                cpu: of.cpu.clone(),
                engine: of.engine.clone(),
                agent: of.agent,
                created: crate::now(),
                used: 0,
                parts: Some(SubstrateParts {
                    memory: part(of.docked),
                    disk: part(request.disk.image),
                    devices: ByteCount(devices.len() as u64),
                }),
                devices_sum: Some(sum_of(devices)),
                guest: None,
                backup: None,
                leaving: None,
            },
        };
        let over = base.map(|(over, _)| Over {
            image: over.image,
            changed: over.changed.iter().map(run).collect(),
        });
        Ok((substrate, over))
    }
}

/// Refuses what makes no machine, or cannot be read here.
fn check(request: &PeerActivateRequest, page_reporting: bool) -> Result<(), HostError> {
    let refuse = |why: String| Err(HostError::Invalid(why));
    let of = &request.substrate;
    check_version(request.version, PeerActivateRequest::VERSION)?;
    check_reporting(of.page_reporting, page_reporting)?;
    let (memory, disk) = (request.memory, request.disk);
    let sized = (1..=MOST_PAGES).contains(&memory.pages.0)
        && (1..=MOST_PAGES).contains(&disk.pages.0)
        && memory.image != disk.image;
    let larger = request.request.memory.unwrap_or(of.memory);
    let memory_is = larger.is_page_aligned() && memory.pages == larger.pages();
    if !sized
        || !memory_is
        || !of.memory.is_page_aligned()
        || check_memory(of.booted, of.booted, of.memory).is_err()
        || !VCPUS.contains(&of.vcpus)
        || !MEMORY_MIB.contains(&(of.memory.0 >> 20))
    {
        return refuse("its descriptor makes no machine".into());
    }
    if request.request.join.is_some() {
        return refuse("VMs that join a family are made where its first VM is".into());
    }
    if usize::from(request.request.count) != request.vms.len() {
        return refuse(format!(
            "count is {}, and {} VMs are described",
            request.request.count,
            request.vms.len()
        ));
    }
    Ok(())
}

/// Size of the VMs that are asked for, of a substrate that is here or comes.
fn received_size(substrate: &Substrate, request: &PeerActivateRequest) -> Result<Size, HostError> {
    let wanted = &request.request;
    let size = substrate.size(wanted.memory, wanted.vcpus)?;
    let docked = |pages: PageCount| ByteCount(pages.0.saturating_mul(PAGE_SIZE as u64));
    match wanted.disk {
        Some(disk) => substrate.with_disk(size, docked(request.disk.pages), disk),
        None => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::{PageOrder, PageSecret, RemotePages};

    fn request() -> PeerActivateRequest {
        let memory = ByteCount(256 << 20);
        let pages = |pages| RemotePages {
            image: ImageId::random(),
            pages,
            order: PageOrder::OnDemand,
        };
        PeerActivateRequest {
            version: PeerActivateRequest::VERSION,
            activation: ForkId::random(),
            substrate: PeerSubstrate {
                name: "s".parse().expect("a name"),
                docked: ImageId::random(),
                image: "tiny".into(),
                vcpus: 1,
                memory,
                booted: memory,
                accel: "tcg".into(),
                cpu: None,
                engine: "QEMU".into(),
                agent: None,
                page_reporting: true,
            },
            devices: String::new(),
            memory: pages(memory.pages()),
            disk: pages(PageCount(1000)),
            over: None,
            pager: ([192, 0, 2, 1], 7434).into(),
            key: PageSecret(String::new()),
            vms: vec![PeerFounder {
                id: VmId::random(),
                name: "s-1".parse().expect("a name"),
            }],
            request: serde_json::from_str("{}").expect("all of it has a default"),
        }
    }

    #[test]
    fn a_request_of_another_host_that_makes_no_machine_is_refused() {
        check(&request(), true).expect("makes sense");
        type Spoil = fn(&mut PeerActivateRequest);
        let faults: [(&str, Spoil); 10] = [
            ("version", |it| it.version += 1),
            ("reporting", |it| it.substrate.page_reporting = false),
            ("vcpus", |it| it.substrate.vcpus = 0),
            ("memory", |it| it.substrate.memory = ByteCount(4096)),
            ("booted", |it| it.substrate.booted = ByteCount(1 << 40)),
            ("pages of memory", |it| it.memory.pages.0 += 1),
            ("pages of larger memory", |it| {
                it.request.memory = Some(ByteCount(512 << 20));
            }),
            ("pages of the disk", |it| it.disk.pages = PageCount(0)),
            ("one image", |it| it.disk.image = it.memory.image),
            ("count", |it| it.request.count = 2),
        ];
        for (what, spoil) in faults {
            let mut bad = request();
            spoil(&mut bad);
            assert!(check(&bad, true).is_err(), "{what}");
        }
        let mut joins = request();
        joins.request.join = Some("p".into());
        check(&joins, true).expect_err("a family is on one host");
    }
}
