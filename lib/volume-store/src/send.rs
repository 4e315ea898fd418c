//! Snapshots out, as streams.

use crate::{
    Found, Patience, Scratch, Store, StoreError,
    stream::{Frame, Frames, MOST, StreamHeader},
    why::Transfer,
};
use forkyard_replicate::{BlockRun as Blocked, Purpose, TransferVerdict};
use forkyard_volume::{BLOCK_BYTES, BlockNo, Blocks, Content, Map, SnapshotId, View, VolumeId};
use std::{collections::BTreeSet, io::Write};

/// Blocks in a row that are all stored, or all zero.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: BlockNo,
    count: u32,
    kind: Kind,
}

/// Part of a stream that blocks make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Zero,
    Stored,
    /// Not sent.
    Left,
}

/// Blocks that are sent ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// All that differ.
    All,
    /// Those that were read or written of late, up to so many; the rest is to be fetched from this
    /// host, which is called so.
    Hot {
        /// Most blocks that are sent.
        most: usize,
        /// Host, as it calls itself.
        from: String,
    },
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
        ahead: &Ahead,
        out: &mut dyn Write,
    ) -> Result<Blocks, StoreError> {
        self.send_to(None, (snapshot, since), ahead, out)
    }

    /// Writes a snapshot to a stream for a host of this name: of what goes and what is left the
    /// reasons are kept.
    pub fn send_to(
        &self,
        host: Option<&str>,
        (snapshot, since): (&str, Option<&str>),
        ahead: &Ahead,
        out: &mut dyn Write,
    ) -> Result<Blocks, StoreError> {
        let mut transfer = Transfer::new(host, snapshot, self.knobs());
        let sent = self.send_noted(&mut transfer, (snapshot, since), ahead, out);
        self.transfers.keep(transfer);
        sent
    }

    fn send_noted(
        &self,
        transfer: &mut Transfer,
        (snapshot, since): (&str, Option<&str>),
        ahead: &Ahead,
        out: &mut dyn Write,
    ) -> Result<Blocks, StoreError> {
        let failed = |error| StoreError::io("write", "the stream", error);
        let (volume, id, map) = self.frozen(snapshot)?;
        let before = since.map(|since| self.frozen(since)).transpose()?;
        let before = before.map(|(_, _, map)| map);
        let mut header = StreamHeader::new(volume, map.blocks(), snapshot, since);
        header.encrypted = self.is_encrypted();
        let (mut goes, mut stays) = (TransferVerdict::All, TransferVerdict::All);
        let hot: Option<BTreeSet<BlockNo>> = match ahead {
            Ahead::All => None,
            Ahead::Hot { most, from } => {
                header.from = Some(from.clone());
                let ranked = self.heat.ranked(self.knobs());
                transfer.decide(ranked.iter().map(|it| (it.block, it.reads, it.writes)));
                let worth = ranked.iter().take_while(|it| it.priority > 0.0);
                let worth: Vec<_> = worth.take(*most).collect();
                let last = worth.last().map(|it| it.priority);
                let most = *most as u64;
                (goes, stays) = (
                    TransferVerdict::Hot { most },
                    TransferVerdict::Cold { most, last },
                );
                Some(worth.into_iter().map(|it| it.block).collect())
            }
        };
        header.write(out).map_err(failed)?;
        let (mut frames, mut scratch) = (Frames::new(out), Scratch::default());
        if self.base.is_some() && before.is_none() {
            let all = Blocked {
                first: BlockNo(0),
                count: map.blocks().0,
            };
            transfer.note(all, TransferVerdict::All);
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
            let is_sent = hot.as_ref().is_none_or(|hot| hot.contains(&block));
            let kind = match content {
                Content::Zero => Kind::Zero,
                Content::Slot(_) if is_sent => Kind::Stored,
                // It is fetched on its way, from where it is.
                Content::Away if hot.is_none() => Kind::Stored,
                Content::Slot(_) | Content::Away => Kind::Left,
            };
            sent += u64::from(kind != Kind::Left);
            match &mut run {
                Some(run) if run.takes(block, kind) => run.count += 1,
                _ => {
                    let next = Run {
                        first: block,
                        count: 1,
                        kind,
                    };
                    if let Some(full) = run.replace(next) {
                        full.note(transfer, (goes, stays));
                        let frame = self.frame(id, full, &mut scratch)?;
                        frames.write(&frame).map_err(failed)?;
                    }
                }
            }
        }
        if let Some(last) = run {
            last.note(transfer, (goes, stays));
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
        match run.kind {
            Kind::Zero => return Ok(Frame::Zeroes(run.first, Blocks(run.count.into()))),
            Kind::Left => return Ok(Frame::Away(run.first, Blocks(run.count.into()))),
            Kind::Stored => {}
        }
        let mut data = vec![0; run.count as usize * BLOCK_BYTES];
        let at = run.first.0 * BLOCK_BYTES as u64;
        self.read(View::Snapshot(id), at, &mut data, scratch, Patience::Wait)?;
        Ok(Frame::Data(run.first, data))
    }

    /// Writes blocks of a snapshot to a stream that another host asked for. The stream has no header.
    pub fn send_blocks(
        &self,
        snapshot: &str,
        blocks: &[Blocked],
        (host, purpose): (Option<&str>, Purpose),
        out: &mut dyn Write,
    ) -> Result<(), StoreError> {
        let failed = |error| StoreError::io("write", "the stream", error);
        let id = self.snapshot_called(snapshot)?;
        let (mut frames, mut scratch) = (Frames::new(out), Scratch::default());
        for run in blocks {
            let asked = TransferVerdict::Asked(purpose);
            self.transfers.note((host, snapshot), *run, asked);
            for first in (0..run.count).step_by(MOST as usize) {
                let count = u64::from(MOST).min(run.count - first);
                let run = Run {
                    first: BlockNo(run.first.0 + first),
                    count: u32::try_from(count).unwrap_or(MOST),
                    kind: Kind::Stored,
                };
                let frame = self.frame(id, run, &mut scratch)?;
                frames.write(&frame).map_err(failed)?;
            }
        }
        frames.write(&Frame::End).map_err(failed)
    }

    /// Map of a snapshot, which shares its chunks.
    pub(crate) fn frozen(&self, name: &str) -> Result<(VolumeId, SnapshotId, Map), StoreError> {
        let id = self.snapshot_called(name)?;
        let state = self.state();
        let map = state.volume.map(View::Snapshot(id)).cloned();
        let map = map.ok_or(forkyard_volume::ChangeRefusal::NoSnapshot(id))?;
        Ok((state.volume.id(), id, map))
    }
}

impl Run {
    /// Notes that it goes, or stays.
    fn note(self, transfer: &mut Transfer, (goes, stays): (TransferVerdict, TransferVerdict)) {
        let run = Blocked {
            first: self.first,
            count: self.count.into(),
        };
        let verdict = match self.kind {
            // That it is zero goes in any case.
            Kind::Zero => TransferVerdict::All,
            Kind::Stored => goes,
            Kind::Left => stays,
        };
        transfer.note(run, verdict);
    }

    fn takes(&self, block: BlockNo, kind: Kind) -> bool {
        let most = match kind {
            Kind::Zero | Kind::Left => u32::MAX,
            Kind::Stored => MOST,
        };
        self.kind == kind && self.count < most && self.first.0 + u64::from(self.count) == block.0
    }
}
