//! Estimates of how little of a VM's memory the next image must copy.
//!
//! Once the kernel notes which of a VM's pages are written, each image of it
//! goes over the one before and holds what was written in between: a fork soon
//! after another copies little, and any fork can copy ahead, while the parent
//! runs, and pause it for what is written meanwhile.
//!
//! What a guest gave up in between (it reports what is free) is not written: it
//! stays in the images below, and would take memory, and be sent to other hosts, for
//! ever. Once that is much, all is copied anew.

use crate::{SnapshotError, Snapshots};
use forkyard_capture::{CaptureCounts, Captured, HostAddr, MemoryRegion, Pages, capture, count};
use forkyard_host::{blocking, micros};
use forkyard_image::Lineage;
use forkyard_types::{ForkMode, ForkReport, ImageId, PageCount};
use forkyard_vm::{RunningVm, Vm, lock};
use std::{
    num::NonZeroUsize,
    sync::Mutex,
    time::{Duration, Instant},
};

/// Pages that may be left to copy in the pause: a millisecond or two of it.
const ENOUGH: PageCount = PageCount(512);
/// Fewer are not worth a round of its own: an image more costs as much as
/// copying these.
const WORTH_A_ROUND: PageCount = PageCount(2048);
/// Rounds of copying ahead. A guest that writes everything all the time would
/// keep this up for ever; each round leaves what was written during the last.
const ROUNDS: u8 = 6;

/// Amount that is copied before the parent pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// One round with all cores, if it is worth it: the clones wait for it.
    Once,
    /// Rounds on one core until little is left: the parent hardly notices.
    Until,
}

impl Ahead {
    pub fn of(mode: ForkMode) -> Self {
        match mode {
            ForkMode::Fast => Self::Once,
            ForkMode::Live => Self::Until,
        }
    }

    fn rounds(self) -> u8 {
        match self {
            Self::Once => 1,
            Self::Until => ROUNDS,
        }
    }

    fn threads(self) -> NonZeroUsize {
        match self {
            Self::Once => all(),
            Self::Until => NonZeroUsize::MIN,
        }
    }
}

/// Validity of the kernel's notes on a VM's memory.
#[derive(Clone, Copy, Debug, Default)]
struct DirtyTracking {
    /// Image since which writes were noted, kept for the next to go over.
    base: Option<ImageId>,
    /// The next image must not go over the base: notes were read, and what they said is in no image
    /// yet, or much of the base was given up.
    stale: bool,
    /// Most pages that the VM had for itself at any fork since all were copied: its images have as
    /// many, or more.
    most_private: PageCount,
}

impl DirtyTracking {
    /// Returns the image that the next one may go over.
    pub fn usable_base(&self) -> Option<ImageId> {
        self.base.filter(|_| !self.stale)
    }

    /// Returns the image that is kept for the sake of the next.
    pub fn kept_base(&self) -> Option<ImageId> {
        self.base
    }

    /// Notes that the kernel's notes are being read.
    pub fn invalidate(&mut self) {
        self.stale = true;
    }

    /// Notes that all pages that the VM has for itself are being copied.
    pub fn all_copied(&mut self, pages: PageCount) {
        self.most_private = pages;
    }

    /// Notes how many pages the VM has for itself now. If its images have a quarter more, then the
    /// next goes over none of them.
    pub fn private_pages(&mut self, pages: PageCount) {
        let given_up = self.most_private.0.saturating_sub(pages.0);
        if given_up >= WORTH_A_ROUND.0.max(self.most_private.0 / 4) {
            self.invalidate();
        }
        self.most_private = self.most_private.max(pages);
    }

    /// Has the notes count from this image on; returns the base so far.
    pub fn rebase(&mut self, image: Option<ImageId>) -> Option<ImageId> {
        self.stale = false;
        std::mem::replace(&mut self.base, image)
    }
}

/// Does this with the tracking of a VM's memory.
fn tracked<T>(vm: &Vm, work: impl FnOnce(&mut DirtyTracking) -> T) -> T {
    work(&mut lock(&vm.attached::<Mutex<DirtyTracking>>()))
}

/// Returns the image of a VM that is kept for the sake of the next.
pub fn kept_image(vm: &Vm) -> Option<ImageId> {
    tracked(vm, |tracking| tracking.kept_base())
}

/// Lets a VM's notes count for nothing; gives the image that was kept for them.
pub fn forget_image(vm: &Vm) -> Option<ImageId> {
    tracked(vm, |tracking| tracking.rebase(None))
}

/// Plan for taking an image of a VM.
#[derive(Clone, Copy, Debug)]
pub struct Take {
    pid: u32,
    region: MemoryRegion,
    pages: Pages,
    lineage: Lineage,
}

impl Snapshots {
    /// Plans how to take `image` of a VM now. Cancel-safe.
    pub async fn plan(
        &self,
        vm: &Vm,
        body: &RunningVm,
        image: ImageId,
    ) -> Result<Take, SnapshotError> {
        let ram = body.machine.ram().await?;
        let region = MemoryRegion {
            start: HostAddr(ram.hva),
            pages: ram.len.pages(),
        };
        let (pages, over) = match (
            body.is_noted(region),
            tracked(vm, |tracking| tracking.usable_base()),
        ) {
            (true, Some(last)) => (Pages::Dirty, Some(last)),
            (true, None) => (Pages::PrivateAndTrack, vm.record().memory_image),
            (false, _) => (Pages::Private, vm.record().memory_image),
        };
        Ok(Take {
            pid: body.machine.record().process.pid,
            region,
            pages,
            lineage: Lineage {
                image,
                parent: over,
            },
        })
    }

    /// Publishes an image that was taken. The VM's next one goes over it, if its writes are noted;
    /// gives the image that was kept for that so far. To retire it is the caller's, when there is
    /// time: it takes as long as it is large. Not cancel-safe: dropped halfway, the next image
    /// copies all that the VM has for itself, and this one may stay until the next daemon retires
    /// it.
    pub async fn publish(
        &self,
        vm: &Vm,
        take: Take,
        captured: Captured,
    ) -> Result<Option<ImageId>, SnapshotError> {
        let layer = blocking(move || captured.finish()).await?;
        self.parts
            .pager_call(move |pager| pager.publish(take.lineage, layer))
            .await?;
        let image = match take.pages {
            Pages::Private => None,
            Pages::PrivateAndTrack | Pages::Dirty => Some(take.lineage.image),
        };
        Ok(tracked(vm, |tracking| tracking.rebase(image)))
    }

    /// Copies what there is while the VM runs. Where the kernel notes no writes
    /// nothing can be, and only a live fork is an error then.
    pub(crate) async fn copy_ahead(
        &self,
        vm: &Vm,
        body: &RunningVm,
        ahead: Ahead,
        report: &mut ForkReport,
    ) -> Result<(), SnapshotError> {
        let begun = Instant::now();
        let next = self.plan(vm, body, ImageId::random()).await?;
        if next.pages == Pages::Dirty {
            let pages = Pages::PrivateAndTrack;
            let private = Take { pages, ..next }.count().await?;
            tracked(vm, |tracking| tracking.private_pages(private));
        }
        let mut before = PageCount(u64::MAX);
        for _ in 0..ahead.rounds() {
            let take = self.plan(vm, body, ImageId::random()).await?;
            let worth_it = match (ahead, take.pages) {
                (Ahead::Until, Pages::Private) => return Err(SnapshotError::NotNoted),
                (Ahead::Once, Pages::Private) => false,
                (Ahead::Until, Pages::PrivateAndTrack | Pages::Dirty) => true,
                (Ahead::Once, Pages::PrivateAndTrack | Pages::Dirty) => {
                    take.count().await? >= WORTH_A_ROUND
                }
            };
            if !worth_it {
                return Ok(());
            }
            let copied = take.copy(vm, ahead.threads()).await?;
            let counts = copied.counts;
            if let Some(former) = self.publish(vm, take, copied.captured).await? {
                self.retire(former).await;
            }
            report.ahead_rounds += 1;
            report.pages_ahead.0 += counts.captured.0;
            // Copying on would leave no less.
            if counts.scanned <= ENOUGH || counts.scanned.0 > before.0 / 4 * 3 {
                break;
            }
            before = counts.scanned;
        }
        report.ahead_us = micros(begun.elapsed());
        Ok(())
    }
}

/// As many threads as there are cores: the shortest pause.
pub(crate) fn all() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Amount that was copied, and the time that took.
#[derive(Debug)]
pub struct CopyStats {
    /// Pages, to be published.
    pub captured: Captured,
    /// Pages that were looked at and copied.
    pub counts: CaptureCounts,
    /// Time that it took.
    pub took: Duration,
}

impl Take {
    /// Returns true if the kernel notes what is written.
    pub fn is_noted(self) -> bool {
        self.pages != Pages::Private
    }

    /// The image that it makes.
    pub fn image(self) -> ImageId {
        self.lineage.image
    }

    /// Counts the pages that a copy would look at now. Cancel-safe.
    pub async fn count(self) -> Result<PageCount, SnapshotError> {
        let Self {
            pid, region, pages, ..
        } = self;
        Ok(blocking(move || count(pid, region, pages)).await?)
    }

    /// Copies. What was noted is used up by this: until the copy is published, there is no image
    /// the next could go over. If cancelled, there is none either: the next copies all that the VM
    /// has for itself.
    pub async fn copy(self, vm: &Vm, threads: NonZeroUsize) -> Result<CopyStats, SnapshotError> {
        let Self {
            pid,
            region,
            pages,
            lineage,
        } = self;
        tracked(vm, DirtyTracking::invalidate);
        let copied = blocking(move || {
            let begun = Instant::now();
            capture(pid, region, lineage, pages, threads)
                .map(|captured| (captured, begun.elapsed()))
        });
        let (captured, took) = copied.await?;
        let counts = captured.counts();
        if pages == Pages::PrivateAndTrack {
            tracked(vm, |tracking| tracking.all_copied(counts.scanned));
        }
        Ok(CopyStats {
            captured,
            counts,
            took,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_gone_over_until_much_of_them_was_given_up() {
        let image = ImageId::random();
        let mut tracking = DirtyTracking::default();
        tracking.all_copied(PageCount(40_000));
        tracking.rebase(Some(image));
        // It has more, then less again.
        for private in [50_000, 38_000] {
            tracking.private_pages(PageCount(private));
            assert_eq!(tracking.usable_base(), Some(image), "{private}");
        }
        tracking.private_pages(PageCount(37_500));
        assert_eq!(
            (tracking.usable_base(), tracking.kept_base()),
            (None, Some(image))
        );
        tracking.all_copied(PageCount(37_500));
        tracking.rebase(Some(image));
        tracking.private_pages(PageCount(37_000));
        assert_eq!(tracking.usable_base(), Some(image));
    }

    #[test]
    fn little_is_never_much() {
        let image = ImageId::random();
        let mut tracking = DirtyTracking::default();
        tracking.all_copied(PageCount(2000));
        tracking.rebase(Some(image));
        tracking.private_pages(PageCount(0));
        assert_eq!(tracking.usable_base(), Some(image));
    }
}
