//! Pages of a substrate on their way to other hosts, and VMs that these make of it.
//!
//! ```text
//! here                                      there
//! images offered, the VMs noted
//! request ---------- Peer::activate ------> images fetched, VMs made, each with a family of its own
//!         <--------- one answer a VM ------
//! pages   ========== all of them in the background, those that are touched first ====>
//! ```
//!
//! Failure paths: a host that does not answer, or that this daemon does not live to hear, has its VMs
//! ended as soon as it is seen to have them. A host that fails half-way gives up its own.

use super::{
    Share,
    hand_out::of_peer,
    incoming_images::{Origin, Whose},
    keys::{draw, key_of, secret_of},
    order::Orders,
    remote_share::RemoteShare,
    take::{page_run, run, way_to},
};
use crate::{Host, HostError, progress::Going};
use forkyard_pager::{Fetching, Offering, Over, PeerKey, Push};
use forkyard_types::{
    ActivateResponse, ApiError, CloneResult, ErrorKind, ImageId, PageCount, PageOrder,
    PeerActivateRequest, PeerOver, RemotePages, VmName, VmPart, VmView,
};
use futures::future::join_all;
use std::net::SocketAddr;

/// Stretches of pages that differ which a host is told of; a disk with more is sent as a whole.
const MOST_RUNS: usize = 1 << 16;

/// Images of a substrate that are offered to other hosts.
#[derive(Debug)]
pub(crate) struct Offered {
    pub pager: SocketAddr,
    pub key: PeerKey,
    pub memory: RemotePages,
    pub disk: RemotePages,
    pub over: Option<PeerOver>,
    orders: Vec<Orders>,
}

impl Offered {
    /// Images in the order in which one of the hosts is to get them.
    pub fn ordered(&self, host: usize) -> (RemotePages, RemotePages) {
        let orders = self.orders.get(host);
        let of = |pages: RemotePages, order: fn(&Orders) -> PageOrder| RemotePages {
            order: orders.map(order).unwrap_or_default(),
            ..pages
        };
        (of(self.memory, |it| it.memory), of(self.disk, |it| it.disk))
    }

    /// The key, as it is told to a host.
    pub fn secret(&self) -> forkyard_types::PageSecret {
        secret_of(self.key)
    }
}

impl Host {
    /// Offers memory and disk of a substrate to the hosts of these shares. `base` is the guest image
    /// below the disk.
    pub(crate) async fn offer_substrate(
        &self,
        (memory, memory_pages): (ImageId, PageCount),
        (disk, disk_pages): (ImageId, PageCount),
        base: Option<ImageId>,
        shares: &[Share],
    ) -> Result<Offered, HostError> {
        let pager = self.listen_to_peers().await?;
        let orders = self.orders(memory, disk, shares).await;
        let over = match base {
            Some(base) => self.difference(disk, base).await,
            None => None,
        };
        let key = draw()?;
        // One host alone is no group.
        let several = self.parts.options.multicast && shares.len() > 1;
        let group = several.then_some(pager.port());
        let changed = over.as_ref().map(|it| it.changed.iter().map(run).collect());
        for (image, changed) in [(memory, None), (disk, changed)] {
            let offering = Offering {
                key,
                group,
                hosts: shares.len(),
                // All of them fetch everything that they have not.
                push: Push::Everything,
                last: changed.is_none().then(Vec::new),
                changed,
                disjoint: Vec::new(),
            };
            let offered = self
                .parts
                .pager_call(move |pager| pager.offer(image, offering));
            if let Err(error) = offered.await {
                self.withdraw(&[memory, disk], key).await;
                return Err(error.into());
            }
        }
        let remote = |image, pages| RemotePages {
            image,
            pages,
            order: PageOrder::OnDemand,
        };
        Ok(Offered {
            pager,
            key,
            memory: remote(memory, memory_pages),
            disk: remote(disk, disk_pages),
            over,
            orders,
        })
    }

    /// Finds the pages by which a disk differs from its guest image; none if that cannot be told in short.
    async fn difference(&self, disk: ImageId, base: ImageId) -> Option<PeerOver> {
        match self
            .parts
            .pager_call(move |pager| pager.changes(disk, base))
            .await
        {
            Ok(runs) if runs.len() <= MOST_RUNS => Some(PeerOver {
                image: base,
                changed: runs.iter().map(page_run).collect(),
            }),
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(image = %disk, error = &error as &dyn std::error::Error, "sent as a whole");
                None
            }
        }
    }

    /// Has other hosts make VMs of a substrate, all at once: of each the VMs, in the order in which they
    /// were asked for, and when they ran and were ready.
    pub(crate) async fn have_founded(
        &self,
        requests: Vec<(Share, PeerActivateRequest)>,
        user: Option<&str>,
        going: Option<&Going>,
    ) -> Vec<ActivateResponse> {
        let asked = requests.into_iter().map(|(share, request)| async move {
            let wanted: Vec<VmName> = request.vms.iter().map(|vm| vm.name.clone()).collect();
            let key = (request.activation, share.peer.name());
            let answer = async {
                // Before it is sent: whatever becomes of it is then looked after.
                let founding = RemoteShare::founding(&request);
                if let Err(error) = self.note_remote_clones(key, founding.clone()) {
                    self.release(&founding).await;
                    return Err(error.to_api());
                }
                let asked = share.peer.activate(request, user.map(str::to_owned));
                self.patiently(&*share.peer, asked).await
            };
            let answer = match answer.await {
                Ok(answer) => self.founded(&share, key, &wanted, answer),
                Err(error) => {
                    self.answered(key, Vec::new());
                    let error = CloneResult::Error(of_peer(&share, error).to_api());
                    ActivateResponse {
                        vms: vec![error; wanted.len()],
                        running_us: 0,
                        ready_us: 0,
                    }
                }
            };
            for made in &answer.vms {
                let made = match made {
                    CloneResult::Vm(_) => Ok(()),
                    CloneResult::Error(error) => Err(of_peer(&share, error.clone())),
                };
                if let Some(going) = going {
                    going.made(Some(share.peer.name()), &made);
                }
            }
            answer
        });
        join_all(asked).await
    }

    /// Takes a host's answer: as many VMs as were wanted, whatever it says.
    fn founded(
        &self,
        share: &Share,
        key: (forkyard_types::ForkId, &str),
        wanted: &[VmName],
        answer: ActivateResponse,
    ) -> ActivateResponse {
        let mut told = answer.vms.into_iter();
        let mut made = Vec::new();
        let vms = wanted.iter().map(|name| match told.next() {
            Some(CloneResult::Vm(vm)) => {
                let vm = VmView {
                    host: Some(share.peer.name().to_owned()),
                    ..*vm
                };
                made.push(vm.clone());
                CloneResult::Vm(Box::new(vm))
            }
            Some(CloneResult::Error(error)) => CloneResult::Error(of_peer(share, error).to_api()),
            None => {
                let untold = ApiError {
                    kind: ErrorKind::Host,
                    message: format!("it did not tell of {name}"),
                    hint: Some("a VM that it made all the same is listed when it is seen".into()),
                };
                CloneResult::Error(of_peer(share, untold).to_api())
            }
        });
        let vms = vms.collect();
        self.answered(key, made);
        ActivateResponse { vms, ..answer }
    }

    /// Has the pager fetch memory and disk of another host's substrate, and waits for what comes before
    /// its VMs. The caller holds the images.
    pub(crate) async fn fetch_substrate(
        &self,
        request: &PeerActivateRequest,
        over: Option<Over>,
        is_trusted: Trusted,
    ) -> Result<(), HostError> {
        let key = key_of(&request.key)?;
        let local = way_to(request.pager)?;
        let origin = origin_of(request);
        for (pages, over) in [(request.memory, None), (request.disk, over)] {
            let fetching = Fetching {
                pages: pages.pages,
                key,
                server: request.pager,
                local,
                settle: true,
                first: Vec::new(),
                last: Vec::new(),
                over,
            };
            // By its name alone it could be an image of others.
            let is_own = || Ok(is_trusted == Trusted::Yes);
            self.fetch_image(pages.image, fetching, origin, is_own)
                .await?;
        }
        let parts = [
            (VmPart::Memory, request.memory),
            (VmPart::Disk, request.disk),
        ];
        for (part, pages) in parts {
            if pages.order == PageOrder::SettleFirst {
                self.nearly_here(&request.substrate.name, (part, pages.image))
                    .await?;
            }
        }
        Ok(())
    }

    /// Drops what came for VMs of a substrate, as far as none of them lies over it.
    pub(crate) async fn drop_fetched(&self, request: &PeerActivateRequest) {
        for image in [request.memory.image, request.disk.image] {
            // Never one that was here before, of others.
            if self
                .peers
                .incoming_images
                .came_from(image, origin_of(request))
            {
                self.snapshots.retire(image).await;
            }
        }
    }
}

/// Tells whether a host is a node of one's own cluster, whose word is good for what an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trusted {
    /// A node of the cluster.
    Yes,
    /// A host with a token.
    No,
}

fn origin_of(request: &PeerActivateRequest) -> Origin {
    Origin {
        whose: Whose::Substrate,
        server: request.pager.ip(),
    }
}
