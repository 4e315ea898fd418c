//! Parts of a VM that moves, as the host that it leaves sends them.

use super::{leave::Leaving, volume::LeavingVolume, way_back::Below};
use crate::{Host, HostError, remote::page_run};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use forkyard_image::Lineage;
use forkyard_pager::{Offering, PagerClient, Push, Run};
use forkyard_snapshot::{Disk, Snapshot, Taken};
use forkyard_types::{
    Delta, HandoutVm, ImageId, MigrationReport, PackedRuns, PageCount, PageOrder, PeerLand,
    PeerMigrated, PeerMigration, PeerPrepare, RemotePages,
};
use forkyard_vm::lock;
use std::path::Path;

impl Host {
    pub(super) async fn describe_move(
        &self,
        leaving: &Leaving<'_>,
        snapshot: &Snapshot,
        over: Vec<Delta>,
    ) -> Result<PeerPrepare, HostError> {
        let record = leaving.vm.record();
        let remote = |image, pages| RemotePages {
            image,
            pages,
            order: PageOrder::SettleFirst,
        };
        let memory = remote(leaving.sent.memory, record.memory.pages());
        let disk = match leaving.sent.disk {
            Some(disk) => {
                let arrival = self
                    .parts
                    .pager_call(move |pager| pager.arrival(disk))
                    .await?;
                Some(remote(disk, arrival.pages))
            }
            None => None,
        };
        let place = (leaving.pager, leaving.key);
        let mut first = self.describe(
            &snapshot.layout.of,
            leaving.id,
            (memory, disk),
            &leaving.share,
            place,
        )?;
        first.devices = pack(&snapshot.devices, &[])?;
        self.acquaint(&mut first.family, leaving.peer().name())?;
        Ok(PeerPrepare {
            first,
            over,
            vm: HandoutVm {
                epoch: record.epoch,
                parent: record.birth.map(|birth| birth.parent),
                fork: record.birth.and_then(|birth| birth.fork),
                created: record.created,
                warm: record.warm,
                notes: record.notes,
                terms: lock(&leaving.vm.terms).clone(),
                publish: record.publish,
                is_paused: leaving.vm.is_paused(),
            },
            memory: leaving.last.memory,
            disk: leaving.last.disk,
            volume: leaving.volumes.iter().find_map(LeavingVolume::root),
            data: { leaving.volumes.iter() }
                .filter_map(LeavingVolume::data)
                .collect(),
        })
    }

    /// Offers a first copy: all of it, or what differs from what that host still has. Returns how
    /// many pages that is.
    pub(super) async fn offer_first(
        &self,
        leaving: &mut Leaving<'_>,
        below: Below,
        report: &mut MigrationReport,
    ) -> Result<(PageCount, Vec<Delta>), HostError> {
        let (mut pages, mut over) = (PageCount(0), Vec::new());
        let memory = [(leaving.sent.memory, below.memory)].into_iter();
        let disk = leaving.sent.disk.map(|disk| (disk, below.disk));
        for (image, below) in memory.chain(disk) {
            let used = self
                .parts
                .pager_call(move |pager| pager.stats(image))
                .await?;
            let below = match below {
                Some(below)
                    if self.are_as_large(image, below).await?
                        && self.differences(image, below).await? < used.data =>
                {
                    Some(below)
                }
                // More than all of it may differ: pages that are zero here alone do.
                Some(_) | None => None,
            };
            let Some(below) = below else {
                self.offer_to(leaving, image, None).await?;
                pages.0 += used.data.0;
                continue;
            };
            let (delta, changed) = self.delta(leaving, image, below).await?;
            report.pages_there.0 += used.data.0.saturating_sub(changed.0);
            pages.0 += changed.0;
            over.push(delta);
        }
        Ok((pages, over))
    }

    async fn differences(&self, one: ImageId, other: ImageId) -> Result<PageCount, HostError> {
        let changed = self
            .parts
            .pager_call(move |pager| pager.changes(one, other));
        Ok(PageCount(
            changed.await?.iter().map(|run| run.pages.0).sum(),
        ))
    }

    async fn are_as_large(&self, one: ImageId, other: ImageId) -> Result<bool, HostError> {
        let sizes = self
            .parts
            .pager_call(move |pager| Ok((pager.arrival(one)?.pages, pager.arrival(other)?.pages)));
        let (one, other) = sizes.await?;
        Ok(one == other)
    }

    /// Describes the last copy sent, as the host that has it needs it to let the VM go on.
    pub(super) async fn last_of(
        &self,
        leaving: &mut Leaving<'_>,
        taken: &Taken,
        report: &mut MigrationReport,
    ) -> Result<PeerLand, HostError> {
        let (sent, last) = (leaving.sent, leaving.last);
        let snapshot = &taken.snapshot;
        let disks = last.disk.zip(sent.disk);
        if let Some(disks) = disks {
            self.last_slice(&snapshot.layout.disk, disks).await?;
        }
        let (memory, pages) = self.delta(leaving, last.memory, sent.memory).await?;
        report.pages_last.0 += pages.0;
        let disk = match disks {
            Some((last, sent)) => {
                let (disk, blocks) = self.delta(leaving, last, sent).await?;
                report.pages_last.0 += blocks.0;
                Some(disk)
            }
            None => None,
        };
        Ok(PeerLand {
            migration: leaving.id,
            devices: pack(&snapshot.devices, &leaving.devices)?,
            memory,
            disk,
            snapshots: { leaving.volumes.iter() }
                .filter_map(LeavingVolume::last)
                .collect(),
            // It holds still: no other will be known there, and none of these ends until then.
            commands: leaving
                .body
                .guest
                .sessions()
                .iter()
                .map(|session| session.0)
                .collect(),
        })
    }

    /// Makes an image of what the upper slice of a disk changed of one that was sent.
    async fn last_slice(
        &self,
        disk: &Disk,
        (image, sent): (ImageId, ImageId),
    ) -> Result<(), HostError> {
        let lineage = Lineage {
            image,
            parent: Some(sent),
        };
        let upper = self.upper_slice(disk, lineage).await?;
        let publish = move |pager: &PagerClient| pager.publish(upper.lineage, upper.layer);
        Ok(self.parts.pager_call(publish).await?)
    }

    /// Offers an image by what it differs in from one that is there.
    pub(super) async fn delta(
        &self,
        leaving: &mut Leaving<'_>,
        image: ImageId,
        over: ImageId,
    ) -> Result<(Delta, PageCount), HostError> {
        let changed = self
            .parts
            .pager_call(move |pager| pager.changes(image, over))
            .await?;
        let pages = changed.iter().map(|run| run.pages.0).sum();
        let runs: Vec<_> = changed.iter().map(page_run).collect();
        self.offer_to(leaving, image, Some(changed)).await?;
        let delta = Delta {
            image,
            over,
            changed: PackedRuns::pack(&runs),
        };
        Ok((delta, PageCount(pages)))
    }

    pub(super) async fn offer_to(
        &self,
        leaving: &mut Leaving<'_>,
        image: ImageId,
        changed: Option<Vec<Run>>,
    ) -> Result<(), HostError> {
        let offering = Offering {
            key: leaving.key,
            group: None,
            hosts: 1,
            push: Push::Everything,
            disjoint: Vec::new(),
            last: changed.is_none().then(Vec::new),
            changed,
        };
        self.parts
            .pager_call(move |pager| pager.offer(image, offering))
            .await?;
        leaving.offered.push(image);
        leaving.hold.iter_mut().for_each(|hold| hold.add(image));
        Ok(())
    }

    /// Has the other host take a step, and waits for as long as it makes progress.
    pub(super) async fn step(
        &self,
        leaving: &Leaving<'_>,
        step: PeerMigration,
    ) -> Result<PeerMigrated, HostError> {
        let answer = self.patiently(leaving.peer(), leaving.peer().migration(step));
        answer.await.map_err(|source| HostError::Peer {
            peer: leaving.peer().name().to_owned(),
            source,
        })
    }
}

/// Packs the state of devices, by what it has in common with an earlier one: over a long link each
/// packet more than the first ten may wait for a round trip.
fn pack(devices: &[u8], earlier: &[u8]) -> Result<String, HostError> {
    let packed = zstd::bulk::Compressor::with_dictionary(zstd::DEFAULT_COMPRESSION_LEVEL, earlier)
        .and_then(|mut packer| packer.compress(devices));
    let packed = packed.map_err(HostError::io("pack", Path::new("the state of devices")))?;
    Ok(BASE64_STANDARD.encode(packed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::unpacked;

    #[test]
    fn devices_that_hardly_changed_are_a_few_hundred_bytes_and_come_back() {
        let mut seed = 1u32;
        let mut byte = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed.to_be_bytes()[0]
        };
        let first: Vec<u8> = (0..170_000).map(|_| byte()).collect();
        let mut later = first.clone();
        for at in [17, 40_000, 169_000] {
            later[at] ^= 1;
        }
        let whole = pack(&first, &[]).expect("packed");
        assert_eq!(unpacked(&whole, &[]).expect("unpacked"), first);
        let packed = pack(&later, &first).expect("packed");
        assert!(packed.len() < 1000, "{}", packed.len());
        assert_eq!(unpacked(&packed, &first).expect("unpacked"), later);
        assert!(unpacked(&packed, &[]).is_err(), "without the first");
    }
}
