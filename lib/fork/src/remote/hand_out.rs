//! Giving an instant of a VM to other hosts, and having them make clones of it.

use super::{
    Peer, Share,
    keys::{draw, secret_of},
    order::{Data, Orders, is_enough, orders},
    remote_share::RemoteShare,
    take::{page_run, run},
};
use crate::{
    Host, HostError,
    clone::{Asked, Origin},
    instantiate::Clones,
    micros,
    progress::Going,
    volumes::VolumeError,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use forkyard_network::Subnet;
use forkyard_pager::{CountedLink, Offering, PeerKey, Push, Run};
use forkyard_snapshot::{Layout, Original, Snapshot};
use forkyard_types::{
    ApiError, CloneResult, ErrorKind, FamilyId, ForkId, ForkReport, Handout, HandoutFamily,
    HandoutMachine, HandoutParent, ImageId, Member, PageCount, PageOrder, PeerForkRequest,
    PeerForkResponse, PeerTicket, RemotePages, VmView,
};
use futures::future::join_all;
use std::{
    net::{Ipv4Addr, SocketAddr},
    ops::Range,
    path::Path,
    pin::pin,
};
use tokio::time::timeout;
use tracing::{Instrument as _, debug_span};

/// Places of a family that are lent to another host.
const PLACES: u16 = 128;
/// A host makes many clones, and fetches what they need first, before it answers.
const PATIENCE: u32 = 4;

/// Requests that are to be sent to other hosts.
pub(crate) type PeerRequests = Vec<(Share, PeerForkRequest)>;

impl Host {
    /// Offers an instant's pages to other hosts, and says what each must know.
    /// The slices must not be written to, nor removed, until this returns.
    async fn hand_out(
        &self,
        snapshot: &Snapshot,
        asked: &Asked,
    ) -> Result<PeerRequests, HostError> {
        let Asked {
            fork, scrub, far, ..
        } = asked;
        let fork = *fork;
        let pager = self.listen_to_peers().await?;
        let Layout {
            of,
            memory,
            disk,
            data,
        } = &snapshot.layout;
        if let Some(disk) = data.first() {
            return Err(VolumeError::NotYet {
                vm: of.name.clone(),
                volume: disk.name.clone(),
                what: "its clones need that data disk, which is on this host",
            }
            .into());
        }
        let disk = self
            .disk_image(disk)
            .instrument(debug_span!("disk image"))
            .await?;
        let memory = RemotePages {
            image: *memory,
            pages: of.memory.pages(),
            order: PageOrder::OnDemand,
        };
        let orders = self.orders(memory.image, disk.image, &far.shares).await;
        let settles = |order: fn(&Orders) -> PageOrder| {
            orders.iter().any(|it| order(it) == PageOrder::SettleFirst)
        };
        let all_of_memory = settles(|it| it.memory);
        let (first, last) = match all_of_memory {
            true => self.ends_of(memory.image).await,
            false => Default::default(),
        };
        let all = [
            all_of_memory.then(|| last.clone()),
            settles(|it| it.disk).then(Vec::new),
        ];
        // Its packets are waited for before the first page can come.
        let devices = zstd::bulk::compress(&snapshot.devices, 0);
        let devices = devices.map_err(HostError::io("pack", Path::new("the state of devices")))?;
        let devices = BASE64_STANDARD.encode(devices);
        let key = draw()?;
        // One host alone is no group.
        let several = self.parts.options.multicast && far.shares.len() > 1;
        let group = several.then_some(pager.port());
        let images = [memory.image, disk.image];
        let peer_requests = async {
            for (image, all) in images.into_iter().zip(all) {
                let offering = Offering {
                    key,
                    group,
                    hosts: far.shares.len(),
                    // Otherwise a host that fetches all of it waits a round trip for each window.
                    push: match all.is_some() {
                        true => Push::Everything,
                        false => self.parts.options.push,
                    },
                    last: all,
                    changed: None,
                    disjoint: match image == memory.image {
                        true => snapshot.disjoint.clone(),
                        false => Vec::new(),
                    },
                };
                self.parts
                    .pager_call(move |pager| pager.offer(image, offering))
                    .await?;
            }
            let mut peer_requests = Vec::new();
            for (share, orders) in far.shares.iter().zip(&orders) {
                let ordered = |pages: RemotePages, order| RemotePages { order, ..pages };
                let images = (
                    ordered(memory, orders.memory),
                    Some(ordered(disk, orders.disk)),
                );
                let handout = Handout {
                    devices: devices.clone(),
                    first: first.iter().map(page_run).collect(),
                    last: last.iter().map(page_run).collect(),
                    ..self.describe(of, fork, images, share, (pager, key))?
                };
                let ticket = far.ticket.map(|(id, owner)| PeerTicket {
                    id,
                    owner,
                    request: asked.request,
                    home: asked.home.unwrap_or(Ipv4Addr::UNSPECIFIED),
                    clones: share.promised.clone(),
                });
                let request = PeerForkRequest {
                    handout,
                    count: share.count,
                    first: share.first,
                    scrub: scrub.clone(),
                    settle: far.settle,
                    ticket,
                };
                // Before it is sent: whatever becomes of it is then looked after.
                let away = RemoteShare::sent(&request);
                self.note_remote_clones((fork, share.peer.name()), away)?;
                peer_requests.push((share.clone(), request));
            }
            Ok::<_, HostError>(peer_requests)
        };
        let peer_requests = peer_requests.await;
        // It is kept for as long as it is offered.
        if let Err(error) = self.snapshots.drop_image(disk.image).await {
            tracing::warn!(image = %disk.image, error = &error as &dyn std::error::Error, "page image not retired");
        }
        if peer_requests.is_err() {
            self.withdraw(&images, key).await;
            for share in &far.shares {
                self.forget_remote_clones((fork, share.peer.name()));
            }
        }
        peer_requests
    }

    /// Describes a VM at one instant to another host that gets these images of it, without the
    /// state of its devices.
    pub(crate) fn describe(
        &self,
        of: &Original,
        fork: ForkId,
        (memory, disk): (RemotePages, Option<RemotePages>),
        share: &Share,
        (pager, key): (SocketAddr, PeerKey),
    ) -> Result<Handout, HostError> {
        Ok(Handout {
            version: Handout::VERSION,
            fork,
            parent: HandoutParent {
                id: of.id,
                name: of.name.clone(),
                member: of.member,
                is_clone: of.is_clone,
                generation: of.generation,
                secrets: of.secrets.clone(),
            },
            family: self.lend(of.family, share)?,
            machine: HandoutMachine {
                image: of.image.clone(),
                vcpus: of.vcpus,
                granted: of.granted,
                memory: of.memory,
                booted: of.booted,
                accel: of.accel.clone(),
                page_reporting: self.parts.options.page_reporting,
                cpu: Some(self.cpu_of(&of.accel, of.cpu.as_ref())?),
                is_baseline: of.cpu.is_some(),
            },
            devices: String::new(),
            memory,
            disk,
            first: Vec::new(),
            last: Vec::new(),
            pager,
            key: secret_of(key),
        })
    }

    /// Finds which pages of an image go first, as far as clones have shown it, and which go
    /// last, for no clone is likely to need them at once.
    async fn ends_of(&self, image: ImageId) -> (Vec<Run>, Vec<Run>) {
        let ends = self
            .parts
            .pager_call(move |pager| Ok((pager.expected(image)?, pager.noise(image)?)));
        let ends = ends.instrument(debug_span!("ends")).await;
        let (mut first, last) = ends.unwrap_or_else(|error| {
            tracing::warn!(%image, error = &error as &dyn std::error::Error, "its pages go in order");
            Default::default()
        });
        let pages = first.iter().map(|run| run.pages.0).sum();
        if !is_enough(PageCount(pages)) {
            first.clear();
        }
        (first, last)
    }

    /// Decides for each host in which order it gets the images of an instant.
    pub(super) async fn orders(
        &self,
        memory: ImageId,
        disk: ImageId,
        shares: &[Share],
    ) -> Vec<Orders> {
        let data = |image| async move {
            let used = self.parts.pager_call(move |pager| pager.stats(image)).await;
            // What cannot be told is taken for more than can be waited for.
            used.map_or(PageCount(u64::MAX), |used| used.data)
        };
        let data = Data {
            memory: data(memory).await,
            disk: data(disk).await,
        };
        let trips = join_all(shares.iter().map(|share| share.round_trip.clone())).await;
        let each = shares.iter().zip(trips).map(|(share, round_trip)| {
            let orders = orders(self.parts.options.settle_first, round_trip, data);
            let peer = share.peer.name();
            tracing::debug!(peer, ?round_trip, ?data, ?orders, "order of pages");
            orders
        });
        each.collect()
    }

    /// Builds the requests for other hosts of an instant, if any have a share
    /// in it.
    pub(crate) async fn peer_requests(
        &self,
        snapshot: &Snapshot,
        asked: &Asked,
    ) -> Result<PeerRequests, HostError> {
        match asked.far.shares.is_empty() {
            true => Ok(Vec::new()),
            false => {
                self.hand_out(snapshot, asked)
                    .instrument(debug_span!("hand out"))
                    .await
            }
        }
    }

    /// Has other hosts make clones. Of each what became of them, in order of their
    /// numbers, and when, from the request for the fork on.
    pub(crate) async fn send(
        &self,
        peer_requests: Result<PeerRequests, HostError>,
        origin: Origin<'_>,
    ) -> Vec<(ForkReport, Clones)> {
        let Origin {
            asked: Asked { far, .. },
            going,
            begun,
            ..
        } = origin;
        let nobody = |share: &Share, error: &ApiError| {
            let made = told(going, share, failed(share, error));
            (ForkReport::default(), made)
        };
        let mut peer_requests = match peer_requests {
            Ok(peer_requests) => peer_requests,
            Err(error) => {
                let error = error.to_api();
                let fail = |share: &Share| nobody(share, &error);
                return far.shares.iter().map(fail).collect();
            }
        };
        if let Err(error) = self.announce_hosts(&mut peer_requests).await {
            let error = error.to_api();
            let unsent = peer_requests.iter().map(|(share, request)| {
                self.answered((request.handout.fork, share.peer.name()), Vec::new());
                nobody(share, &error)
            });
            return unsent.collect();
        }
        let sent = peer_requests
            .into_iter()
            .map(|(share, request)| async move {
                let sent_at = micros(begun.elapsed());
                match self.send_one(&share, request).await {
                    Ok((report, made)) => (report.later_by(sent_at), told(going, &share, made)),
                    Err(error) => nobody(&share, &error),
                }
            });
        join_all(sent).await
    }

    async fn send_one(
        &self,
        share: &Share,
        request: PeerForkRequest,
    ) -> Result<(ForkReport, Clones), ApiError> {
        let key = (request.handout.fork, share.peer.name());
        let memory = request.handout.memory.image;
        let asked = share.peer.clones(request);
        let asked = asked.instrument(debug_span!("peer"));
        let answer = self.patiently(&*share.peer, asked).await;
        let PeerForkResponse {
            clones,
            report,
            touched,
        } = answer.inspect_err(|_| self.answered(key, Vec::new()))?;
        if !touched.is_empty() {
            let runs = touched.iter().map(run).collect();
            let told = self
                .parts
                .pager_call(move |pager| pager.touched_elsewhere(memory, runs));
            if let Err(error) = told.await {
                tracing::debug!(image = %memory, error = &error as &dyn std::error::Error, "not learned");
            }
        }
        let mut made = Vec::new();
        let numbered = by_number(share.numbers(), clones)
            .into_iter()
            .map(|(number, result)| match result {
                CloneResult::Vm(vm) => {
                    let vm = VmView {
                        host: Some(share.peer.name().to_owned()),
                        ..*vm
                    };
                    made.push(vm.clone());
                    (number, Ok(vm))
                }
                CloneResult::Error(error) => (number, Err(of_peer(share, error))),
            });
        let numbered: Vec<_> = numbered.collect();
        self.answered(key, made);
        Ok((report, numbered))
    }

    /// Waits for a host's answer as long as it gets pages.
    pub(crate) async fn patiently<T>(
        &self,
        peer: &dyn Peer,
        asked: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let patience = self.parts.options.to_identify() * PATIENCE;
        let mut asked = pin!(asked);
        let mut passed = self.passed_to(peer).await;
        loop {
            if let Ok(answer) = timeout(patience, &mut asked).await {
                return answer;
            }
            let before = std::mem::replace(&mut passed, self.passed_to(peer).await);
            if passed <= before {
                return Err(ApiError {
                    kind: ErrorKind::Timeout,
                    message: format!(
                        "no answer and no page asked for within {} s",
                        patience.as_secs()
                    ),
                    hint: Some("what it does all the same is listed when it is seen".into()),
                });
            }
        }
    }

    /// Counts the pages that a host has asked for and was sent: it makes progress while they
    /// grow. None if they cannot be told.
    async fn passed_to(&self, peer: &dyn Peer) -> Option<u64> {
        let link = CountedLink::Host(peer.address()?);
        let links = self.parts.pager_call(|pager| pager.links()).await.ok()?;
        let passed = links.into_iter().filter(|it| it.link == link);
        Some(passed.map(|it| it.sent.asked + it.sent.pages).sum())
    }

    /// The address at which other hosts get pages of this one.
    pub(crate) async fn listen_to_peers(&self) -> Result<SocketAddr, HostError> {
        let peering = self.peers.peering.get().ok_or(HostError::NoPeers)?;
        let at = peering.pages.ok_or(HostError::NoPages)?;
        Ok(self.parts.pager_call(move |pager| pager.listen(at)).await?)
    }

    /// Lets a peer into a family.
    fn lend(&self, id: FamilyId, share: &Share) -> Result<HandoutFamily, HostError> {
        let family = self.parts.store.family(id)?;
        let family =
            family.ok_or_else(|| HostError::Broken("the VM's family is not on record".into()))?;
        let places = self.lent_to(id, share.peer.name())?;
        Ok(HandoutFamily {
            id,
            number: family.number.0,
            max_clones: family.max_clones,
            network: self.parts.network.policy(id),
            first: Member(places.start),
            places: places.end - places.start,
            // Known once all these hosts have been asked: see `introduce`.
            tunnel: None,
            hosts: Vec::new(),
            key: None,
        })
    }

    /// The places of a family that a peer was lent, from now on at the latest.
    pub(crate) fn lent_to(&self, family: FamilyId, peer: &str) -> Result<Range<u16>, HostError> {
        Ok(self
            .parts
            .store
            .lend_members(family, peer, PLACES, Subnet::MEMBERS)?)
    }

    /// Other hosts get no more of these.
    pub(crate) async fn withdraw(&self, images: &[ImageId], key: PeerKey) {
        for image in images.iter().copied() {
            let done = self
                .parts
                .pager_call(move |pager| pager.withdraw(image, key));
            if let Err(error) = done.await {
                tracing::warn!(%image, error = &error as &dyn std::error::Error, "still offered");
            }
        }
    }
}

/// Sorts the results of the clones that a host was asked for by their numbers. One
/// of which its answer says nothing has failed; what it says beyond these is nothing
/// to this host.
fn by_number(numbers: Vec<u16>, clones: Vec<CloneResult>) -> Vec<(u16, CloneResult)> {
    let (asked, told) = (numbers.len(), clones.len());
    let untold = ApiError {
        kind: ErrorKind::Host,
        message: format!("it told of {told} of {asked} clones"),
        hint: Some("clones it made all the same are listed when they are seen".into()),
    };
    let rest = std::iter::repeat_with(|| CloneResult::Error(untold.clone()));
    let clones = clones.into_iter().chain(rest);
    numbers.into_iter().zip(clones).collect()
}

/// All of a host's clones failed for one reason.
fn failed(share: &Share, error: &ApiError) -> Clones {
    let numbers = share.numbers().into_iter();
    numbers
        .map(|number| (number, Err(of_peer(share, error.clone()))))
        .collect()
}

/// Reports the clones to the observers of their fork, and passes them on.
fn told(going: &Going, share: &Share, made: Clones) -> Clones {
    for (_, made) in &made {
        going.made(Some(share.peer.name()), made);
    }
    made
}

pub(super) fn of_peer(share: &Share, source: ApiError) -> HostError {
    HostError::Peer {
        peer: share.peer.name().to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
