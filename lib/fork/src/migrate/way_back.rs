//! Images of VMs that have left, kept for a while: one that comes back is sent by what differs from
//! them.
//!
//! ```text
//! VM goes on elsewhere --> its last images are kept --+--> it comes back over them
//!                                                     +--> time is up, or others need the room
//! ```
//!
//! The host that it went to has the same images, for its memory and disk lie over them there. What is
//! kept is known to this daemon alone: the next one drops it, and all is sent then.

use super::{Images, leave::Leaving};
use crate::{Host, HostError, remote::Hold};
use forkyard_types::{Handout, ImageId, PageCount, PeerKept, PeerMigrated, PeerMigration, VmId};
use forkyard_vm::lock;
use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Images that a host was told are here stay for so long.
const PROMISED: Duration = Duration::from_secs(600);

/// Images of VMs that have left.
#[derive(Debug, Default)]
pub(crate) struct Former(Mutex<BTreeMap<VmId, FormerImages>>);

#[derive(Debug)]
struct FormerImages {
    images: Images,
    pages: PageCount,
    since: Instant,
    until: Instant,
    /// Keeps them from being retired.
    hold: Hold,
}

/// The images that a VM lies over and its former host has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Below {
    pub memory: Option<ImageId>,
    pub disk: Option<ImageId>,
}

impl Former {
    /// This image of a VM is kept here.
    pub(super) fn has(&self, vm: VmId, image: ImageId) -> bool {
        let kept = lock(&self.0);
        kept.get(&vm)
            .is_some_and(|kept| kept.images.all().any(|it| it == image))
    }

    /// Takes those out of which the time is up.
    fn take_late(&self, now: Instant) -> Vec<FormerImages> {
        let mut kept = lock(&self.0);
        let late = kept.iter().filter(|(_, it)| it.until <= now);
        let late: Vec<_> = late.map(|(vm, _)| *vm).collect();
        late.iter().filter_map(|vm| kept.remove(vm)).collect()
    }

    /// Takes the oldest out until the others have no more than so many pages.
    fn take_beyond(&self, most: PageCount) -> Vec<FormerImages> {
        let mut kept = lock(&self.0);
        let mut ages: Vec<_> = kept
            .iter()
            .map(|(vm, it)| (it.since, *vm, it.pages))
            .collect();
        ages.sort();
        let all: u64 = ages.iter().map(|(_, _, pages)| pages.0).sum();
        let mut beyond = all.saturating_sub(most.0);
        let mut taken = Vec::new();
        for (_, vm, pages) in ages {
            if beyond == 0 {
                break;
            }
            beyond = beyond.saturating_sub(pages.0);
            taken.extend(kept.remove(&vm));
        }
        taken
    }
}

impl Below {
    /// These where they are known, else others.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            memory: self.memory.or(other.memory),
            disk: self.disk.or(other.disk),
        }
    }
}

impl Host {
    /// Keeps the images of a VM that has left, which are held by `hold`.
    pub(super) async fn keep_former(&self, vm: VmId, images: Images, hold: Hold) {
        let memory = images.memory;
        let used = self
            .parts
            .pager_call(move |pager| pager.stats(memory))
            .await;
        let (now, time) = (Instant::now(), self.parts.options.keep_moved);
        let (Ok(used), false) = (used, time.is_zero()) else {
            return self.drop_former_images(images, hold).await;
        };
        let kept = FormerImages {
            images,
            pages: used.data,
            since: now,
            until: now + time,
            hold,
        };
        let before = lock(&self.incoming.former.0).insert(vm, kept);
        let most = self.parts.options.keep_moved_bytes.pages();
        let beyond = self.incoming.former.take_beyond(most);
        for it in before.into_iter().chain(beyond) {
            self.drop_former_images(it.images, it.hold).await;
        }
        let host = self.handle();
        tokio::spawn(async move {
            let mut until = now + time;
            loop {
                sleep(until.saturating_duration_since(Instant::now())).await;
                let Some(host) = host.upgrade() else { return };
                for it in host.incoming.former.take_late(Instant::now()) {
                    host.drop_former_images(it.images, it.hold).await;
                }
                match lock(&host.incoming.former.0).get(&vm) {
                    Some(later) if later.since == now => until = later.until,
                    Some(_) | None => return,
                }
            }
        });
    }

    async fn drop_former_images(&self, images: Images, hold: Hold) {
        drop(hold);
        for image in images.all() {
            self.snapshots.retire(image).await;
        }
    }

    /// Drops what is kept of a VM: it is here, or nothing more of it comes.
    pub(super) async fn forget_former(&self, vm: VmId) {
        let kept = lock(&self.incoming.former.0).remove(&vm);
        if let Some(it) = kept {
            self.drop_former_images(it.images, it.hold).await;
        }
    }

    /// Drops all of it: the daemon ends.
    pub(super) async fn forget_all_former(&self) {
        let all = std::mem::take(&mut *lock(&self.incoming.former.0));
        for it in all.into_values() {
            self.drop_former_images(it.images, it.hold).await;
        }
    }

    /// Answers which of these images of a VM are kept here. They stay for ten minutes.
    pub(super) fn kept_of(&self, asked: &PeerKept) -> PeerMigrated {
        let mut kept = lock(&self.incoming.former.0);
        let Some(kept) = kept.get_mut(&asked.vm) else {
            return PeerMigrated::Kept(Vec::new());
        };
        kept.until = kept.until.max(Instant::now() + PROMISED);
        let has = |image: &ImageId| kept.images.all().any(|it| it == *image);
        PeerMigrated::Kept(asked.images.iter().copied().filter(has).collect())
    }

    /// Asks the other host which images it still has of those that a VM lies over. All is sent if it
    /// does not say.
    pub(super) async fn ask_kept(&self, leaving: &Leaving<'_>) -> Below {
        let record = leaving.vm.record();
        let over = [record.memory_image, record.disk_image];
        let images: Vec<_> = over.into_iter().flatten().collect();
        if images.is_empty() {
            return Below::default();
        }
        let asked = PeerKept {
            vm: leaving.vm.id,
            images,
        };
        let has = match self.step(leaving, PeerMigration::Kept(asked)).await {
            Ok(PeerMigrated::Kept(has)) => has,
            Ok(_) => Vec::new(),
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "all is sent");
                Vec::new()
            }
        };
        let kept = |image: Option<ImageId>| image.filter(|it| has.contains(it));
        Below {
            memory: kept(record.memory_image),
            disk: kept(record.disk_image),
        }
    }

    /// Refuses an image that is to come over one which is neither kept here of this VM nor came from
    /// the same host, of a VM that moves with it.
    pub(super) fn check_below(&self, first: &Handout, over: ImageId) -> Result<(), HostError> {
        let is_kept = self.incoming.former.has(first.parent.id, over);
        match is_kept || self.is_from(over, first) {
            true => Ok(()),
            false => Err(HostError::Conflict(format!(
                "image {over} of the VM is not here any more: migrate it again"
            ))),
        }
    }
}
