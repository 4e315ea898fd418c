//! Page images that come from other hosts: how far they are, and what becomes of
//! their VMs if the rest never comes.
//!
//! A VM that needs a page which is lost cannot go on, and would find out at any
//! time. So it is ended as soon as that is known, and its record says why.

use super::order::is_nearly_here;
use crate::{Host, HostError, events};
use forkyard_pager::{Arrival, PagerError};
use forkyard_records::VmRecord;
use forkyard_types::{Awaited, FamilyId, ImageId, PageCount, PageNo, TransferOver, VmName, VmPart};
use forkyard_vm::{Vm, lock};
use forkyard_vmm::Cause;
use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::sleep;

/// Between two looks at images that are on their way.
const LOOK: Duration = Duration::from_millis(500);
/// Interval of looking while something waits for an arrival.
const SOON: Duration = Duration::from_millis(50);

/// Images on their way.
#[derive(Debug, Default)]
pub(crate) struct IncomingImages {
    /// Progress of the images when last looked at.
    known: Mutex<BTreeMap<ImageId, Known>>,
    /// Origins of those that were fetched since this daemon began.
    origins: Mutex<BTreeMap<ImageId, Origin>>,
    /// Those that clones are being made of, and how many are at it.
    held: Mutex<BTreeMap<ImageId, u32>>,
}

/// Source of an image, and the VM it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// VMs that it is for.
    pub whose: Whose,
    /// The host that offers it.
    pub server: IpAddr,
}

/// VMs that an image from another host is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Clones in this family.
    Family(FamilyId),
    /// VMs of a substrate, each in a family of its own.
    Substrate,
}

/// An image of that name came from elsewhere, or for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Foreign;

/// Known progress of an image on its way.
#[derive(Clone, Debug)]
enum Known {
    /// Not looked at yet: holds the size, if the sender has given it.
    Expected(Option<PageCount>),
    /// Progress when last looked at.
    Seen(Arrival),
}

impl Known {
    /// Computes the size in pages, and the pages missing, for a VM that has so
    /// much memory.
    fn pages(&self, part: VmPart, memory: PageCount) -> (PageCount, PageCount) {
        let all = match (self, part) {
            (Self::Seen(arrival), _) => return (arrival.pages, arrival.away),
            (Self::Expected(Some(pages)), _) => *pages,
            (Self::Expected(None), VmPart::Memory) => memory,
            // Only that some of it may be needed is known for sure.
            (Self::Expected(None), VmPart::Disk) => PageCount(1),
        };
        (all, all)
    }
}

/// Images that are not retired as long as this lives, whatever else uses them.
#[derive(Debug)]
pub(crate) struct Hold {
    host: Arc<Host>,
    images: Vec<ImageId>,
}

impl Hold {
    /// Keeps another.
    pub fn add(&mut self, image: ImageId) {
        *lock(&self.host.peers.incoming_images.held)
            .entry(image)
            .or_insert(0) += 1;
        self.images.push(image);
    }

    /// Keeps one no longer.
    pub fn let_go(&mut self, image: ImageId) {
        if let Some(at) = self.images.iter().position(|held| *held == image) {
            self.images.swap_remove(at);
            self.host.peers.incoming_images.unhold(image);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        for image in self.images.drain(..) {
            self.host.peers.incoming_images.unhold(image);
        }
    }
}

impl IncomingImages {
    /// Clones are being made of it.
    pub fn is_held(&self, image: ImageId) -> bool {
        lock(&self.held).contains_key(&image)
    }

    fn unhold(&self, image: ImageId) {
        let mut held = lock(&self.held);
        if let Some(count) = held.get_mut(&image) {
            *count -= 1;
            if *count == 0 {
                held.remove(&image);
            }
        }
    }

    /// An image is on its way, as far as is known, and of this size.
    pub fn expect(&self, image: ImageId, pages: Option<PageCount>) {
        let expected = Known::Expected(pages);
        lock(&self.known).entry(image).or_insert(expected);
    }

    /// Notes where an image comes from; true if that is known already. An image of one
    /// name is of one family, and of one host.
    pub(super) fn comes_from(&self, image: ImageId, origin: Origin) -> Result<bool, Foreign> {
        match lock(&self.origins).entry(image) {
            Entry::Occupied(known) if *known.get() == origin => Ok(true),
            Entry::Occupied(_) => Err(Foreign),
            Entry::Vacant(new) => {
                new.insert(origin);
                Ok(false)
            }
        }
    }

    /// True if an image is known to have come from there.
    pub(super) fn came_from(&self, image: ImageId, origin: Origin) -> bool {
        lock(&self.origins).get(&image) == Some(&origin)
    }

    /// True if an image is known to have come from this host.
    pub(super) fn came_from_host(&self, image: ImageId, server: IpAddr) -> bool {
        let origins = lock(&self.origins);
        origins.get(&image).is_some_and(|it| it.server == server)
    }

    /// Forgets where an image came from: it is gone, or did not come.
    pub(crate) fn forget_origin(&self, image: ImageId) {
        lock(&self.origins).remove(&image);
    }

    /// Lists the pages that a VM still lacks, as last seen.
    pub fn awaited(&self, record: &VmRecord) -> Vec<Awaited> {
        let known = lock(&self.known);
        let parts = parts(record).into_iter();
        let awaited = parts.filter_map(|(part, image)| {
            let known = known.get(&image)?;
            let (pages, away) = known.pages(part, record.memory.pages());
            Some(Awaited {
                image,
                part,
                pages,
                away,
            })
        });
        awaited.collect()
    }
}

/// The images of a VM that can have come from another host.
fn parts(record: &VmRecord) -> Vec<(VmPart, ImageId)> {
    let Some(disk) = record.disk_image else {
        return Vec::new();
    };
    let memory = record.memory_image.map(|image| (VmPart::Memory, image));
    memory.into_iter().chain([(VmPart::Disk, disk)]).collect()
}

impl Host {
    /// Keeps images from being retired.
    pub(crate) fn hold(
        &self,
        images: impl IntoIterator<Item = ImageId>,
    ) -> Result<Hold, HostError> {
        let host = self.handle().upgrade().ok_or(HostError::Closing)?;
        let mut hold = Hold {
            host,
            images: Vec::new(),
        };
        images.into_iter().for_each(|image| hold.add(image));
        Ok(hold)
    }

    /// Follows images on their way, for as long as this host lives.
    pub(crate) fn watch_arrivals(&self) {
        let host = self.handle();
        let records = self.parts.registry().all();
        for vm in records {
            for (_, image) in parts(&vm.record()) {
                self.peers.incoming_images.expect(image, None);
            }
        }
        tokio::spawn(async move {
            loop {
                let Some(host) = host.upgrade() else { return };
                let images: Vec<_> = lock(&host.peers.incoming_images.known)
                    .keys()
                    .copied()
                    .collect();
                for image in images {
                    host.look_for(image).await;
                }
                drop(host);
                sleep(LOOK).await;
            }
        });
    }

    /// Looks how far an image is.
    async fn look_for(&self, image: ImageId) {
        let found = self
            .parts
            .pager_call(move |pager| Ok(pager.arrival(image)))
            .await;
        let arrival = match found {
            Ok(Ok(arrival)) => arrival,
            Ok(Err(PagerError::Refused(_))) => {
                // Retired: no host has it, or will.
                lock(&self.peers.incoming_images.known).remove(&image);
                return;
            }
            // It may answer the next time.
            Ok(Err(_)) | Err(_) => return,
        };
        let settled = arrival.settled;
        let why = (!arrival.alive && !settled).then(|| lost(&arrival));
        let (pages, lost) = (arrival.pages, arrival.away);
        let before = match settled {
            true => lock(&self.peers.incoming_images.known).remove(&image),
            false => lock(&self.peers.incoming_images.known).insert(image, Known::Seen(arrival)),
        };
        let was_over = match before {
            Some(Known::Seen(before)) => !before.alive,
            Some(Known::Expected(_)) => false,
            None => true,
        };
        if (settled || why.is_some()) && !was_over {
            events::transfer(&self.parts.events, image, TransferOver { pages, lost });
        }
        let Some(why) = why else { return };
        let vms = self.parts.registry().all();
        for vm in vms {
            let part = parts(&vm.record()).into_iter().find(|(_, id)| *id == image);
            if let Some((part, _)) = part
                && vm.is_running()
            {
                self.fail(&vm, format!("{why} of its {part}")).await;
            }
        }
    }

    /// Ends a VM for a reason that its owner is to see.
    async fn fail(&self, vm: &Arc<Vm>, why: String) {
        tracing::error!(vm = %vm.name(), why, "it cannot go on");
        self.note_failure(vm, why);
        self.has_ended(vm, Cause::Told).await;
    }

    pub(crate) fn note_failure(&self, vm: &Vm, why: String) {
        if vm.record().failure.is_some() {
            return;
        }
        if let Err(error) = vm.change(&self.parts.store, |record| record.failure = Some(why)) {
            tracing::error!(vm = %vm.name(), error = &error as &dyn std::error::Error, "not recorded");
        }
    }

    /// A VM's QEMU ended by itself: notes it if that was for want of pages.
    pub(crate) async fn note_loss(&self, vm: &Vm) {
        for (part, image) in parts(&vm.record()) {
            let found = self
                .parts
                .pager_call(move |pager| pager.arrival(image))
                .await;
            if let Ok(arrival) = found
                && !arrival.alive
                && !arrival.settled
            {
                self.note_failure(vm, format!("{} of its {part}", lost(&arrival)));
            }
        }
    }

    /// Lists the pages that a VM still lacks, as of now.
    pub(crate) async fn awaited(&self, record: &VmRecord) -> Result<Vec<Awaited>, HostError> {
        let mut awaited = Vec::new();
        for (part, image) in parts(record) {
            let arrival = self
                .parts
                .pager_call(move |pager| pager.arrival(image))
                .await?;
            if !arrival.settled {
                awaited.push(Awaited {
                    image,
                    part,
                    pages: arrival.pages,
                    away: arrival.away,
                });
            }
        }
        Ok(awaited)
    }

    /// Returns how many pages of a VM are still on another host.
    pub(crate) async fn away(&self, vm: &Vm) -> Result<PageCount, HostError> {
        let awaited = self.awaited(&vm.record()).await?;
        Ok(PageCount(awaited.iter().map(|part| part.away.0).sum()))
    }

    /// Waits until an image that is fetched as a whole is nearly here: as long as pages
    /// come. `of` is the VM that the image is of, which may be elsewhere. Cancel-safe.
    pub(super) async fn nearly_here(
        &self,
        of: &VmName,
        (part, image): (VmPart, ImageId),
    ) -> Result<(), HostError> {
        loop {
            let arrival = self
                .parts
                .pager_call(move |pager| pager.arrival(image))
                .await?;
            if is_nearly_here(arrival.first_of, arrival.first) {
                return Ok(());
            }
            if !arrival.alive {
                return Err(HostError::Lost {
                    vm: of.clone(),
                    why: format!("{} of its {part}", lost(&arrival)),
                });
            }
            sleep(SOON).await;
        }
    }

    /// Has all of a VM come, as far as it is on another host: an image that lies
    /// over another needs all of that. Waits as long as it comes.
    pub(crate) async fn bring_home(&self, vm: &Vm) -> Result<(), HostError> {
        for (part, image) in parts(&vm.record()) {
            let mut asked = false;
            loop {
                let arrival = self
                    .parts
                    .pager_call(move |pager| pager.arrival(image))
                    .await?;
                if arrival.settled {
                    break;
                }
                if !arrival.alive {
                    return Err(HostError::Lost {
                        vm: vm.name(),
                        why: format!("{} of its {part}", lost(&arrival)),
                    });
                }
                if !asked {
                    self.parts
                        .pager_call(move |pager| pager.settle(image))
                        .await?;
                    asked = true;
                }
                sleep(SOON).await;
            }
        }
        Ok(())
    }
}

/// Describes the pages that will not come, and their source.
fn lost(arrival: &Arrival) -> String {
    let stretch = |(first, pages): &(PageNo, PageCount)| match pages.0 {
        1 => first.0.to_string(),
        more => format!("{} to {}", first.0, first.0 + more - 1),
    };
    let mut stretches: Vec<_> = arrival.lost.iter().map(stretch).collect();
    let told: u64 = arrival.lost.iter().map(|(_, pages)| pages.0).sum();
    if told < arrival.away.0 {
        stretches.push("…".into());
    }
    let from = match arrival.from {
        Some(from) => format!("with the host at {from}"),
        None => "with this host's pager, which ended while they came".into(),
    };
    format!(
        "{} are lost {from}: numbers {}",
        arrival.away,
        stretches.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_not_said_to_be_as_large_as_memory_before_it_is_looked_at() {
        let memory = PageCount(65_536);
        let said = |known: Known, part| known.pages(part, memory).0;
        let sent = Known::Expected(Some(PageCount(9_000)));
        assert_eq!(said(sent, VmPart::Disk), PageCount(9_000));
        assert_eq!(said(Known::Expected(None), VmPart::Memory), memory);
        // It may be needed, so it is away; it is unknown how much of it.
        let (pages, away) = Known::Expected(None).pages(VmPart::Disk, memory);
        assert_eq!((pages, away), (PageCount(1), PageCount(1)));
    }

    #[test]
    fn an_image_is_of_one_family_and_of_one_host() {
        let incoming_images = IncomingImages::default();
        let origin = |last| Origin {
            whose: Whose::Family(FamilyId::random()),
            server: [192, 0, 2, last].into(),
        };
        let (image, ours) = (ImageId::random(), origin(1));
        assert_eq!(incoming_images.comes_from(image, ours), Ok(false));
        assert_eq!(incoming_images.comes_from(image, ours), Ok(true));
        let elsewhere = Origin {
            server: [192, 0, 2, 2].into(),
            ..ours
        };
        for other in [origin(1), elsewhere] {
            assert_eq!(incoming_images.comes_from(image, other), Err(Foreign));
            assert!(!incoming_images.came_from(image, other));
        }
        incoming_images.forget_origin(image);
        assert_eq!(incoming_images.comes_from(image, elsewhere), Ok(false));
    }

    #[test]
    fn what_is_lost_is_named() {
        let arrival = Arrival {
            pages: PageCount(900),
            away: PageCount(4),
            first: PageCount(4),
            first_of: PageCount(900),
            alive: false,
            settled: false,
            from: "192.0.2.1:7".parse().ok(),
            lost: vec![(PageNo(3), PageCount(1)), (PageNo(8), PageCount(3))],
        };
        assert_eq!(
            lost(&arrival),
            "4 pages are lost with the host at 192.0.2.1:7: numbers 3, 8 to 10"
        );
        let more = Arrival {
            away: PageCount(5),
            from: None,
            ..arrival
        };
        assert!(lost(&more).ends_with("8 to 10, …"), "{}", lost(&more));
    }
}
