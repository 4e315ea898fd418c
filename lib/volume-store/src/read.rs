//! Reads.

use crate::{Store, StoreError, heat::Access};
use forkyard_volume::{
    BLOCK_BYTES, BlockNo, ChangeRefusal, Content, Geometry, SegmentPlace, Sequence, SlotIndex,
    Version, View,
};
use rustix::io::{ReadWriteFlags, preadv2};
use std::{
    fs::File,
    io::{self, IoSliceMut},
    os::unix::fs::FileExt,
    sync::Arc,
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Slots of one read at most.
const MOST: usize = 64;

/// Room for reads, to be used again.
#[derive(Debug, Default)]
pub struct Scratch {
    slots: Vec<u8>,
    runs: Vec<Run>,
    versions: Vec<Version>,
    /// Blocks that are at another site.
    absent: Vec<(BlockNo, Version)>,
    /// For what a branch lies over.
    below: Option<Box<Scratch>>,
}

/// Blocks in a row whose slots are in a row.
#[derive(Debug)]
struct Run {
    first: BlockNo,
    count: usize,
    at: Source,
}

/// Place of blocks.
#[derive(Debug)]
enum Source {
    /// Nowhere: they are zero.
    Zero,
    /// In the snapshot that the branch lies over.
    Below,
    /// In slots of the log.
    Slots(At),
}

#[derive(Debug)]
struct At {
    file: Arc<File>,
    sequence: Sequence,
    place: SegmentPlace,
    index: SlotIndex,
    /// Index of the versions in [`Scratch::versions`].
    versions: usize,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing is stored for any of it.
    Zeroes,
    /// Content.
    Data,
}

/// Time that a read may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Fail with [`StoreError::NotCached`] rather than wait for a disk.
    Now,
    /// Fail with [`StoreError::Absent`] rather than wait for another site.
    Disk,
    /// As long as it takes, or until a site does not answer.
    Wait,
}

impl Store {
    /// Reads bytes of the volume or a snapshot.
    pub fn read(
        &self,
        view: View,
        offset: u64,
        out: &mut [u8],
        scratch: &mut Scratch,
        patience: Patience,
    ) -> Result<Found, StoreError> {
        let mut lost = false;
        loop {
            self.locate(view, offset, out.len() as u64, scratch)?;
            if scratch.absent.is_empty() {
                break;
            }
            if !self.away.knows(&scratch.absent)? {
                // What has all come is forgotten: it is here if it is looked for once more.
                match std::mem::replace(&mut lost, true) {
                    true => return Err(StoreError::Orphan(self.name.clone())),
                    false => continue,
                }
            }
            let absent = self.away.absent(std::mem::take(&mut scratch.absent));
            match patience {
                Patience::Now => return Err(StoreError::NotCached),
                Patience::Disk => {
                    self.counters.wait();
                    return Err(StoreError::Absent(absent));
                }
                Patience::Wait => {
                    self.counters.wait();
                    absent.wait()?;
                }
            }
        }
        let Scratch {
            slots,
            runs,
            versions,
            absent: _,
            below,
        } = scratch;
        self.counters.read(out.len() as u64);
        if view == View::Current {
            self.heat.touch(Access::Read, offset, out.len() as u64);
        }
        let mut found = Found::Zeroes;
        let layout = self.state().volume.slots().clone();
        let slot_bytes = layout.geometry().slot_bytes();
        for run in runs.drain(..) {
            let (start, _, end) = overlap(offset, out.len(), run.first, run.count);
            let at = match (run.at, &self.base) {
                (Source::Slots(at), _) => at,
                (Source::Below, Some(base)) => {
                    let (from, part) = (offset + start as u64, &mut out[start..end]);
                    if base.read(from, part, below.get_or_insert_default(), patience)?
                        == Found::Data
                    {
                        found = Found::Data;
                    }
                    continue;
                }
                (Source::Zero | Source::Below, _) => {
                    out[start..end].fill(0);
                    continue;
                }
            };
            found = Found::Data;
            for done in (0..run.count).step_by(MOST) {
                let count = MOST.min(run.count - done);
                slots.resize(count * slot_bytes, 0);
                at.fill(slots, (layout.geometry(), done), patience, self)?;
                for (number, slot) in slots.chunks_mut(slot_bytes).enumerate() {
                    let number = done + number;
                    let block = BlockNo(run.first.0 + number as u64);
                    let expected = (block, versions[at.versions + number]);
                    let index = at.index(number);
                    let data = layout.read(slot, at.sequence, (at.place, index), expected)?;
                    let (start, within, end) = overlap(offset, out.len(), block, 1);
                    out[start..end].copy_from_slice(&data[within..][..end - start]);
                }
            }
        }
        Ok(found)
    }

    /// Finds the slots of a range.
    fn locate(
        &self,
        view: View,
        offset: u64,
        length: u64,
        scratch: &mut Scratch,
    ) -> Result<(), StoreError> {
        scratch.runs.clear();
        scratch.versions.clear();
        scratch.absent.clear();
        let state = self.state();
        let map = state.volume.map(view).ok_or_else(|| gone(view))?;
        let end = offset.saturating_add(length).div_ceil(BLOCK);
        if end > map.blocks().0 {
            return Err(ChangeRefusal::BeyondEnd {
                block: BlockNo(end),
                blocks: map.blocks(),
            }
            .into());
        }
        for block in (offset / BLOCK..end).map(BlockNo) {
            let entry = map.get(block);
            let slot = entry.and_then(|entry| match entry.content {
                Content::Zero => None,
                Content::Slot(slot) => Some((slot, entry.version)),
                Content::Away => {
                    scratch.absent.push((block, entry.version));
                    None
                }
            });
            let Some((slot, version)) = slot else {
                let is_below = entry.is_none() && self.base.is_some();
                match scratch.runs.last_mut().map(|run| (&run.at, &mut run.count)) {
                    Some((Source::Below, count)) if is_below => *count += 1,
                    Some((Source::Zero, count)) if !is_below => *count += 1,
                    Some(_) | None => scratch.runs.push(Run {
                        first: block,
                        count: 1,
                        at: match is_below {
                            true => Source::Below,
                            false => Source::Zero,
                        },
                    }),
                }
                continue;
            };
            let (place, index) = state.volume.geometry().split(slot);
            scratch.versions.push(version);
            if let Some(run) = scratch.runs.last_mut()
                && let Source::Slots(at) = &run.at
                && at.place == place
                && at.index(run.count) == index
            {
                run.count += 1;
                continue;
            }
            let sequence = state.volume.segment(place);
            let file = sequence.and_then(|it| Some((it, state.files.get(&it)?)));
            let (sequence, file) = file.ok_or(forkyard_volume::Damage::Block {
                block,
                place,
                index,
            })?;
            let at = At {
                file: Arc::clone(file),
                sequence,
                place,
                index,
                versions: scratch.versions.len() - 1,
            };
            scratch.runs.push(Run {
                first: block,
                count: 1,
                at: Source::Slots(at),
            });
        }
        Ok(())
    }

    /// Runs of blocks that are stored, or not, from an offset on: lengths in bytes, and true for
    /// those that are not. As many as cover `length` bytes, or `most` of them.
    pub fn extents(
        &self,
        view: View,
        offset: u64,
        length: u64,
        most: usize,
    ) -> Result<Vec<(u64, bool)>, StoreError> {
        let state = self.state();
        let map = state.volume.map(view).ok_or_else(|| gone(view))?;
        let end = offset.saturating_add(length);
        let mut found: Vec<(u64, bool)> = Vec::new();
        let mut at = offset;
        while at < end {
            let block = at / BLOCK;
            let next = ((block + 1) * BLOCK).min(end);
            let entry = map.get(BlockNo(block));
            // What lies below is not looked at.
            let hole = match entry {
                Some(entry) => entry.content == Content::Zero,
                None => self.base.is_none(),
            };
            let full = found.len() == most;
            match found.last_mut() {
                Some(last) if last.1 == hole => last.0 += next - at,
                Some(_) if full => break,
                Some(_) | None => found.push((next - at, hole)),
            }
            at = next;
        }
        Ok(found)
    }
}

fn gone(view: View) -> StoreError {
    match view {
        View::Snapshot(id) => ChangeRefusal::NoSnapshot(id).into(),
        View::Current => StoreError::Failed,
    }
}

/// Part of a buffer of `length` bytes from `offset` on that blocks fill: start in the buffer,
/// start in the blocks, end in the buffer.
fn overlap(offset: u64, length: usize, first: BlockNo, count: usize) -> (usize, usize, usize) {
    let begin = first.0 * BLOCK;
    let fit = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let start = fit(begin.saturating_sub(offset));
    let within = fit(offset.saturating_sub(begin));
    let end = fit(begin + count as u64 * BLOCK - offset).min(length);
    (start, within, end)
}

impl At {
    fn index(&self, number: usize) -> SlotIndex {
        SlotIndex(self.index.0 + u32::try_from(number).unwrap_or(u32::MAX))
    }

    fn fill(
        &self,
        slots: &mut [u8],
        (geometry, first): (Geometry, usize),
        patience: Patience,
        store: &Store,
    ) -> Result<(), StoreError> {
        let offset = geometry.offset(self.index(first));
        let read = match patience {
            Patience::Disk | Patience::Wait => self.file.read_exact_at(slots, offset),
            Patience::Now => {
                let wanted = slots.len();
                let parts = &mut [IoSliceMut::new(slots)];
                match preadv2(&self.file, parts, offset, ReadWriteFlags::NOWAIT) {
                    Ok(count) if count == wanted => Ok(()),
                    Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::OPNOTSUPP) => {
                        return Err(StoreError::NotCached);
                    }
                    Err(errno) => Err(io::Error::from(errno)),
                }
            }
        };
        let torn = |e: &io::Error| e.kind() == io::ErrorKind::UnexpectedEof;
        match read {
            // What is missing is found out by the checksum.
            Err(e) if torn(&e) => {
                slots.fill(0);
                Ok(())
            }
            read => {
                read.map_err(|e| StoreError::io("read", store.folder.segment(self.sequence), e))
            }
        }
    }
}
