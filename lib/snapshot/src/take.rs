//! Taking a snapshot of a VM that runs, or is paused: what is saved and copied while it
//! stands still, and that it goes on whatever becomes of it.
//!
//! | fails | then |
//! |---|---|
//! | before it stands still | the overlay is closed, the guest told to go on |
//! | while it does | it goes on; the record says again which slice it writes to |
//! | `cont` itself | it is let go on later, as one that stopped by itself (`stuck`) |
//! | after it goes on | the image is retired |

use crate::{
    Disjoint, Layout, Next, Rest, Snapshot, SnapshotError, Snapshots, TRACES,
    dirty_tracking::{Ahead, CopyStats, Take, all},
};
use forkyard_host::micros;
use forkyard_types::{ByteCount, ForkId, ForkMode, ForkReport, ImageId, Member, VmId};
use forkyard_vm::{RunningVm, Vm};
use forkyard_vmm::{Machine, VmmError};
use std::{path::Path, time::Instant};
use tracing::{Instrument as _, debug_span, instrument};

/// A snapshot that was taken.
#[must_use = "the image that is no longer needed is to be retired"]
#[derive(Debug)]
pub struct Taken {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// An image that was kept until now, to be retired when there is time.
    pub former: Option<ImageId>,
}

/// State that was saved and copied while the parent stood still.
struct Still {
    devices: Vec<u8>,
    copied: CopyStats,
}

impl Snapshots {
    /// Takes a snapshot and has the pager serve its memory. A parent that runs goes on,
    /// whatever happens, and one that is paused stays so; the generation is used up. The
    /// caller holds the parent's turn. Not cancel-safe.
    pub async fn take(
        &self,
        parent: &Vm,
        body: &RunningVm,
        (fork, mode): (ForkId, ForkMode),
        rest: Rest,
        members: &[(VmId, Member)],
        report: &mut ForkReport,
    ) -> Result<Taken, SnapshotError> {
        let Rest {
            image,
            next,
            template,
        } = rest;
        // Told nothing: what is said to one that does not read is in the way of what follows.
        if let Err(error) = parent.forkable() {
            next.discard(parent, &*body.machine).await;
            return Err(error.into());
        }
        let overlay_path = next.overlay_path().map(Path::to_owned);
        let layout = Layout::of(parent, image);
        let ready = async {
            self.admit(&layout, members).await?;
            if !parent.is_paused() {
                self.copy_ahead(parent, body, Ahead::of(mode), report)
                    .instrument(debug_span!(target: TRACES, "ahead"))
                    .await?;
            }
            let take = self.plan(parent, body, image).await?;
            // Not before: what is copied ahead must not disturb the guest.
            let first = self.priority.raise();
            let asked = Instant::now();
            if !parent.is_paused() {
                let still = body
                    .guest
                    .quiesce(fork, self.parts.options.to_hold_still())
                    .instrument(debug_span!(target: TRACES, "quiesce"))
                    .await;
                report.quiesce_us = micros(asked.elapsed());
                if let Err(error) = still {
                    let why = parent.stopped_by_itself(body).await;
                    return Err(why.map_or_else(|| error.into(), SnapshotError::from));
                }
            }
            Ok::<_, SnapshotError>((take, first))
        };
        let taken = match ready.await {
            Ok((take, first)) => self
                .capture_paused(parent, body, (next, &layout), take, report)
                .await
                .map(|taken| (take, taken, first)),
            Err(error) => {
                next.discard(parent, &*body.machine).await;
                Err(error)
            }
        };
        // Said even if the guest did not hold still: it may have heard late.
        let resumed = match parent.is_paused() {
            true => Ok(()),
            false => body.guest.resume().await,
        };
        let published = async {
            let (take, taken, _first) = taken?;
            resumed?;
            let former = self
                .publish(parent, take, taken.copied.captured)
                .instrument(debug_span!(target: TRACES, "publish"))
                .await?;
            let snapshot = Snapshot {
                layout: layout.clone(),
                devices: taken.devices,
                disjoint: Disjoint::of(parent),
            };
            Ok(Taken { snapshot, former })
        };
        let published = published.await;
        if published.is_err() {
            self.retire(image).await;
            match overlay_path {
                Some(path) if parent.record().chain.first() != Some(&path) => {
                    self.parts.remove_files(&[path]);
                }
                Some(_) => {}
                None => {
                    if let Some(at) = layout.disk.volume() {
                        self.disks.drop_unused(at).await;
                    }
                }
            }
            self.disks.drop_data(&layout.data).await;
        }
        self.parts.remove_files(&[template]);
        published
    }

    /// Stops the parent, saves its devices and copies its memory, and lets it go on.
    #[instrument(target = TRACES, name = "pause", level = "debug", skip_all)]
    async fn capture_paused(
        &self,
        parent: &Vm,
        body: &RunningVm,
        (next, layout): (Next, &Layout),
        take: Take,
        report: &mut ForkReport,
    ) -> Result<Still, SnapshotError> {
        let machine = &*body.machine;
        // Recorded first: a daemon that takes over in the middle of this must
        // not take the frozen slice for the one that is written to.
        if let Some(path) = next.overlay_path()
            && let Err(error) = self.parts.lengthen_chain(parent, path.to_owned())
        {
            next.discard(parent, machine).await;
            return Err(error.into());
        }
        // Until the end of this: all that is done now is waited for.
        let _precedence = machine.precedence();
        let stopped = Instant::now();
        if let Err(error) = machine.stop().await {
            // It may have stopped all the same, and only its answer was late.
            let _ = continued(parent, machine).await;
            next.discard(parent, machine).await;
            self.parts.settle_chain(parent, machine).await?;
            return Err(error.into());
        }
        // Once it has stopped no device touches memory: what is saved here
        // and what is copied there are of the same instant.
        let devices = async {
            let begun = Instant::now();
            let freeze = async {
                match next {
                    Next::Overlay { overlay, .. } => machine.freeze_disk(overlay).await?,
                    Next::Volume(at) => self.disks.freeze_volume(&at).await?,
                }
                Ok::<_, SnapshotError>(())
            };
            freeze
                .instrument(debug_span!(target: TRACES, "disk"))
                .await?;
            self.disks.freeze_data(&layout.data, layout.memory).await?;
            let frozen = begun.elapsed();
            let descriptor = machine
                .save_descriptor()
                .instrument(debug_span!(target: TRACES, "descriptor"))
                .await?;
            Ok::<_, SnapshotError>((descriptor, frozen, begun.elapsed() - frozen))
        };
        let copy = take
            .copy(parent, all())
            .instrument(debug_span!(target: TRACES, "capture"));
        let (copied, saved) = tokio::join!(copy, devices);
        let going_on = continued(parent, machine).await;
        report.pause_us = micros(stopped.elapsed());
        if saved.is_err() {
            // The disk may have been frozen all the same.
            self.parts.settle_chain(parent, machine).await?;
        }
        going_on?;
        self.parts.seal_frozen(&parent.record());
        let (copied, (descriptor, frozen, saving)) = (copied?, saved?);
        report.disk_us = micros(frozen);
        report.descriptor_us = micros(saving);
        report.capture_us = micros(copied.took);
        report.descriptor = ByteCount(descriptor.len() as u64);
        report.pages_scanned = copied.counts.scanned;
        report.pages_captured = copied.counts.captured;
        Ok(Still {
            devices: descriptor,
            copied,
        })
    }
}

/// Lets the vCPUs go on, unless the user wants them still. If QEMU refuses now,
/// the VM is let go on later, as one that stopped by itself is.
async fn continued(parent: &Vm, machine: &dyn Machine) -> Result<(), VmmError> {
    match parent.is_paused() {
        true => Ok(()),
        false => machine.cont().await,
    }
}
