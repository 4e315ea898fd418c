//! Snapshots out, as streams.

use crate::{
    Patience, Scratch, Store, StoreError,
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

    /// Writes a snapshot to a stream: all of it, or what differs from an earlier one. Returns the
    /// blocks that took. Reads and writes of the volume go on beside it.
    pub fn send(
        &self,
        snapshot: &str,
        since: Option<&str>,
        out: &mut dyn Write,
    ) -> Result<Blocks, StoreError> {
        self.refuse_branch("sent")?;
        let failed = |error| StoreError::io("write", "the stream", error);
        let (volume, id, map) = self.frozen(snapshot)?;
        let before = since.map(|since| self.frozen(since)).transpose()?;
        let before = before.map(|(_, _, map)| map);
        let header = StreamHeader::new(volume, map.blocks(), snapshot, since);
        header.write(out).map_err(failed)?;
        let (mut frames, mut scratch) = (Frames::new(out), Scratch::default());
        let mut sent = 0;
        let mut run: Option<Run> = None;
        for (block, content) in map.differences(before.as_ref()) {
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
