//! Writes and flushes.

use crate::{Found, Patience, Scratch, Store, StoreError, heat::Access};
use forkyard_volume::{
    BLOCK_BYTES, Batch, BlockData, BlockNo, Change, ChangeRefusal, Position, Sequence, View,
    WriterEpoch,
};
use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::{Arc, PoisonError, atomic::Ordering},
};

/// Records of one write at most.
pub(crate) const MOST: usize = 256;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// End of the log, in files.
#[derive(Debug, Default)]
pub(crate) struct Appender {
    /// Segment being written, once one is.
    pub active: Option<(Sequence, Arc<File>)>,
    /// Files with bytes that may not be durable.
    pub dirty: Vec<Arc<File>>,
    /// True if files were made that may not be durable.
    pub made: bool,
    /// Bytes appended since the last checkpoint.
    pub since_checkpoint: u64,
    /// Bytes of the last checkpoint.
    pub checkpoint_bytes: u64,
    buffer: Vec<u8>,
    scratch: Scratch,
}

impl Appender {
    fn touch(&mut self, at: Position) -> Result<Arc<File>, StoreError> {
        let active = self.active.as_ref().filter(|it| it.0 == at.sequence);
        let (_, file) = active.ok_or(StoreError::Failed)?;
        if !self.dirty.iter().any(|it| Arc::ptr_eq(it, file)) {
            self.dirty.push(Arc::clone(file));
        }
        Ok(Arc::clone(file))
    }
}

impl Store {
    /// Appends changes, and begins segments as it takes. If it fails, the first of them may have
    /// been made.
    pub(crate) fn append(
        &self,
        appender: &mut Appender,
        mut changes: &[Change<'_>],
    ) -> Result<(), StoreError> {
        self.check()?;
        while !changes.is_empty() {
            let state = self.state();
            let mut batch = Batch::begin(&state.volume, std::mem::take(&mut appender.buffer));
            let fits = batch.room().min(MOST).min(changes.len());
            for change in &changes[..fits] {
                batch.push(*change)?;
            }
            let Some(staged) = batch.finish() else {
                let header = state.volume.next_segment()?;
                drop(state);
                let file = self.folder.create(header.sequence, &header.encode())?;
                appender.made = true;
                appender.active = Some((header.sequence, Arc::clone(&file)));
                appender.dirty.push(Arc::clone(&file));
                let mut state = self.state_mut();
                state.files.insert(header.sequence, file);
                state.volume.begin_segment(&header);
                continue;
            };
            let at = staged.position();
            let offset = at.offset(state.volume.geometry());
            drop(state);
            let file = appender.touch(at)?;
            if let Err(error) = file.write_all_at(staged.bytes(), offset) {
                self.cut(&file, offset);
                return Err(StoreError::io(
                    "write",
                    self.folder.segment(at.sequence),
                    error,
                ));
            }
            appender.since_checkpoint += staged.bytes().len() as u64;
            appender.buffer = self.state_mut().volume.commit(staged)?;
            changes = &changes[fits..];
        }
        Ok(())
    }

    /// Removes what a failed write has left. Whole records of it would be taken for the
    /// successors of the next record.
    fn cut(&self, file: &File, offset: u64) {
        let cut = file.set_len(offset).and_then(|()| file.sync_all());
        if cut.is_err() {
            self.failed.store(true, Ordering::Release);
        }
    }

    /// Writes bytes anywhere in the volume, for the writer of an epoch.
    pub fn write(&self, epoch: WriterEpoch, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        self.write_if(epoch, offset, data, Patience::Wait)
    }

    /// Writes bytes, unless that takes longer: of a block that is written in part, the rest may be at
    /// another site. Nothing is changed then.
    pub fn write_if(
        &self,
        epoch: WriterEpoch,
        offset: u64,
        data: &[u8],
        patience: Patience,
    ) -> Result<(), StoreError> {
        self.have_edges(offset, data.len() as u64, patience)?;
        self.heat.touch(Access::Write, offset, data.len() as u64);
        self.counters.write(data.len() as u64);
        let mut appender = self.appender();
        let mut block = BlockNo(offset / BLOCK);
        let within = usize::try_from(offset % BLOCK).unwrap_or(0);
        let head = (BLOCK_BYTES - within) % BLOCK_BYTES;
        let (head, rest) = data.split_at(head.min(data.len()));
        if !head.is_empty() {
            self.patch(&mut appender, epoch, block, within, head)?;
            block.0 += 1;
        }
        let (blocks, tail) = rest.as_chunks::<BLOCK_BYTES>();
        for blocks in blocks.chunks(MOST) {
            if let [data] = blocks {
                self.append(&mut appender, &[Change::Write { epoch, block, data }])?;
            } else {
                let changes = blocks
                    .iter()
                    .zip(block.0..)
                    .map(|(data, block)| Change::Write {
                        epoch,
                        block: BlockNo(block),
                        data,
                    });
                self.append(&mut appender, &changes.collect::<Vec<_>>())?;
            }
            block.0 += blocks.len() as u64;
        }
        if !tail.is_empty() {
            self.patch(&mut appender, epoch, block, 0, tail)?;
        }
        Ok(())
    }

    /// Has those blocks here that a range covers in part, before anything holds others up.
    pub(crate) fn have_edges(
        &self,
        offset: u64,
        length: u64,
        patience: Patience,
    ) -> Result<(), StoreError> {
        if !self.is_lacking() {
            return Ok(());
        }
        let end = offset.saturating_add(length);
        let (mut data, mut scratch) = ([0; BLOCK_BYTES], Scratch::default());
        for edge in [offset, end] {
            let inside = edge / BLOCK * BLOCK;
            if edge % BLOCK != 0 && self.size(View::Current).is_some_and(|size| inside < size) {
                self.read(View::Current, inside, &mut data, &mut scratch, patience)?;
            }
        }
        Ok(())
    }

    /// Writes a part of a block.
    fn patch(
        &self,
        appender: &mut Appender,
        epoch: WriterEpoch,
        block: BlockNo,
        within: usize,
        part: &[u8],
    ) -> Result<(), StoreError> {
        let mut data: BlockData = [0; BLOCK_BYTES];
        let offset = block.0 * BLOCK;
        let mut scratch = std::mem::take(&mut appender.scratch);
        let read = self.read(
            View::Current,
            offset,
            &mut data,
            &mut scratch,
            Patience::Disk,
        );
        appender.scratch = scratch;
        read?;
        data[within..][..part.len()].copy_from_slice(part);
        let data = &data;
        self.append(appender, &[Change::Write { epoch, block, data }])
    }

    /// Has bytes read as zero, for the writer of an epoch.
    pub fn zero(&self, epoch: WriterEpoch, offset: u64, length: u64) -> Result<(), StoreError> {
        self.zero_if(epoch, offset, length, Patience::Wait)
    }

    /// Has bytes read as zero, unless that takes longer.
    pub fn zero_if(
        &self,
        epoch: WriterEpoch,
        offset: u64,
        length: u64,
        patience: Patience,
    ) -> Result<(), StoreError> {
        self.have_edges(offset, length, patience)?;
        self.counters.write(length);
        let end = offset.saturating_add(length);
        let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
        let mut appender = self.appender();
        if first > last || length == 0 {
            // Within one block.
            return self.zero_part(&mut appender, epoch, offset, end);
        }
        self.zero_part(&mut appender, epoch, offset, first * BLOCK)?;
        if last > first {
            self.cover(&mut appender, epoch, first, last)?;
            self.zero_blocks(&mut appender, epoch, first, last)?;
        }
        self.zero_part(&mut appender, epoch, last * BLOCK, end)
    }

    /// Zeroes a part of a block, unless the block is zero.
    fn zero_part(
        &self,
        appender: &mut Appender,
        epoch: WriterEpoch,
        start: u64,
        end: u64,
    ) -> Result<(), StoreError> {
        if start >= end {
            return Ok(());
        }
        let block = BlockNo(start / BLOCK);
        let within = usize::try_from(start % BLOCK).unwrap_or(0);
        let count = usize::try_from(end - start).unwrap_or(0);
        let (mut data, mut scratch) = ([0; BLOCK_BYTES], Scratch::default());
        let offset = block.0 * BLOCK;
        let found = self.read(
            View::Current,
            offset,
            &mut data,
            &mut scratch,
            Patience::Disk,
        )?;
        match found {
            Found::Zeroes => Ok(()),
            Found::Data => self.patch(appender, epoch, block, within, &[0; BLOCK_BYTES][..count]),
        }
    }

    /// Makes durable every write that has returned.
    pub fn flush(&self) -> Result<(), StoreError> {
        let target = self.state().volume.next_lsn();
        let _flushing = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        if self.state().volume.flushed() >= target {
            return Ok(());
        }
        let mut appender = self.appender();
        let lsn = self.state().volume.next_lsn();
        let dirty = std::mem::take(&mut appender.dirty);
        let made = std::mem::take(&mut appender.made);
        drop(appender);
        let sync = || {
            for file in &dirty {
                let synced = file.sync_data();
                synced.map_err(|e| StoreError::io("flush", &self.folder.0, e))?;
            }
            if made { self.folder.sync() } else { Ok(()) }
        };
        if let Err(error) = sync() {
            // The kernel may have dropped what it could not write.
            self.failed.store(true, Ordering::Release);
            return Err(error);
        }
        self.state_mut().volume.mark_flushed(lsn);
        self.counters.flush();
        Ok(())
    }

    /// Checks that the writer of an epoch may write.
    pub fn admit(&self, epoch: WriterEpoch) -> Result<(), StoreError> {
        let (current, opening) = self.writer();
        match epoch == current && opening == forkyard_volume::Opening::Open {
            true => Ok(()),
            false => Err(ChangeRefusal::Fenced {
                given: epoch,
                current,
            }
            .into()),
        }
    }
}
