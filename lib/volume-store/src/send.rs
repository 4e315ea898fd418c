//! Snapshots out, as streams.

use crate::{
    Found, Patience, Scratch, Store, StoreError,
    stream::{Frame, Frames, MOST, StreamHeader},
};
use forkyard_volume::{BLOCK_BYTES, BlockNo, Blocks, Content, Map, SnapshotId, View, VolumeId};
use std::io::Write;

/// Blocks in a row that are all stored, or all zero.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: BlockNo,
    count: u32,
    is_zero: bool,
}

impl Store {
    /// Counts the blocks that were written since a snapshot.
    pub fn changed(&self, since: &str) -> Result<Blocks, StoreError> {
        let (_, _, since) = self.frozen(since)?;
        let current = self.state().volume.map(View::Current).cloned();
        let changed = current.map_or(0, |map| map.differences(Some(&since)).count());
        Ok(Blocks(changed as u64))
    }

    /// Writes a snapshot to a stream: all of it, or what differs from an earlier one. Of a branch,
    /// all of it is what it reads as. Returns the blocks that took. Reads and writes of the volume go on beside it.
    pub fn send(
        &self,
        snapshot: &str,
        since: Option<&str>,
        out: &mut dyn Write,
    ) -> Result<Blocks, StoreError> {
        let failed = |error| StoreError::io("write", "the stream", error);
        let (volume, id, map) = self.frozen(snapshot)?;
        let before = since.map(|since| self.frozen(since)).transpose()?;
        let before = before.map(|(_, _, map)| map);
        let header = StreamHeader::new(volume, map.blocks(), snapshot, since);
        header.write(out).map_err(failed)?;
        let (mut frames, mut scratch) = (Frames::new(out), Scratch::default());
        if self.base.is_some() && before.is_none() {
            let sent = self.send_flat(id, map.blocks(), &mut frames)?;
            frames.write(&Frame::End).map_err(failed)?;
            return Ok(sent);
        }
        let mut sent = 0;
        let mut run: Option<Run> = None;
        // One that was zeroed since hides what lies below a branch.
        let differs: Box<dyn Iterator<Item = _>> = match self.base {
            Some(_) => Box::new(map.differences_over(before.as_ref())),
            None => Box::new(map.differences(before.as_ref())),
        };
        for (block, content) in differs {
            // What was cut off since the earlier one.
            if block.0 >= map.blocks().0 {
                break;
            }
            sent += 1;
            let is_zero = content == Content::Zero;
            match &mut run {
                Some(run) if run.takes(block, is_zero) => run.count += 1,
                _ => {
                    let next = Run {
                        first: block,
                        count: 1,
                        is_zero,
                    };
                    if let Some(full) = run.replace(next) {
                        let frame = self.frame(id, full, &mut scratch)?;
                        frames.write(&frame).map_err(failed)?;
                    }
                }
            }
        }
        if let Some(last) = run {
            let frame = self.frame(id, last, &mut scratch)?;
            frames.write(&frame).map_err(failed)?;
        }
        frames.write(&Frame::End).map_err(failed)?;
        Ok(Blocks(sent))
    }

    /// Writes all that a snapshot of a branch reads as, what lies below included: where it comes it
    /// lies over nothing.
    fn send_flat(
        &self,
        id: SnapshotId,
        blocks: Blocks,
        frames: &mut Frames<&mut dyn Write>,
    ) -> Result<Blocks, StoreError> {
        let mut scratch = Scratch::default();
        let mut data = vec![0; MOST as usize * BLOCK_BYTES];
        let mut sent = 0;
        for first in (0..blocks.0).step_by(MOST as usize) {
            let count = u64::from(MOST).min(blocks.0 - first);
            let part = &mut data[..usize::try_from(count).unwrap_or(0) * BLOCK_BYTES];
            let at = first * BLOCK_BYTES as u64;
            let found = self.read(View::Snapshot(id), at, part, &mut scratch, Patience::Wait)?;
            if found == Found::Zeroes {
                continue;
            }
            let mut block = first;
            let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
            for run in part
                .chunks(BLOCK_BYTES)
                .collect::<Vec<_>>()
                .chunk_by(|one, other| is_zero(one) == is_zero(other))
            {
                let count = run.len() as u64;
                if !is_zero(run[0]) {
                    let frame = Frame::Data(BlockNo(block), run.concat());
                    let failed = |error| StoreError::io("write", "the stream", error);
                    frames.write(&frame).map_err(failed)?;
                    sent += count;
                }
                block += count;
            }
        }
        Ok(Blocks(sent))
    }

    fn frame(&self, id: SnapshotId, run: Run, scratch: &mut Scratch) -> Result<Frame, StoreError> {
        if run.is_zero {
            return Ok(Frame::Zeroes(run.first, Blocks(run.count.into())));
        }
        let mut data = vec![0; run.count as usize * BLOCK_BYTES];
        let at = run.first.0 * BLOCK_BYTES as u64;
        self.read(View::Snapshot(id), at, &mut data, scratch, Patience::Wait)?;
        Ok(Frame::Data(run.first, data))
    }

    /// Map of a snapshot, which shares its chunks.
    pub(crate) fn frozen(&self, name: &str) -> Result<(VolumeId, SnapshotId, Map), StoreError> {
        let id = self.snapshot_called(name)?;
        let state = self.state();
        let map = state.volume.map(View::Snapshot(id)).cloned();
        let map = map.ok_or(forkyard_volume::Refusal::NoSnapshot(id))?;
        Ok((state.volume.id(), id, map))
    }
}

impl Run {
    fn takes(&self, block: BlockNo, is_zero: bool) -> bool {
        let most = if is_zero { u32::MAX } else { MOST };
        self.is_zero == is_zero
            && self.count < most
            && self.first.0 + u64::from(self.count) == block.0
    }
}
