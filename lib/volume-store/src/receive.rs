//! Snapshots in, from streams.
//!
//! A volume that is not here yet has its name once all of the stream has come. Of one that is here,
//! the snapshot that the stream lies over is restored first: whatever was left there by a stream
//! that broke off, or by a writer whose host died before it was durable, is not in the way.

use crate::{
    Library, Patience, Scratch, Store, StoreError,
    store::bytes,
    stream::{self, Frame, StreamHeader},
};
use forkyard_volume::{
    BLOCK_BYTES, BlockNo, Blocks, Change, Content, Range, Takeover, Version, View, WriterEpoch,
};
use std::io::BufRead;

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Library {
    /// Takes a snapshot from a stream: the volume is as it was then, and has it as a snapshot of
    /// the same name, durably. Written by the writer of this epoch, or by one of its own if the
    /// volume has none. If it fails, the volume is to be sent again before it is used; one that
    /// was not here is not then, either.
    pub fn receive(
        &self,
        name: &str,
        epoch: Option<WriterEpoch>,
        input: &mut dyn BufRead,
    ) -> Result<(), StoreError> {
        let header = StreamHeader::read(input)?;
        let id = header.volume()?;
        let store = match self.open(name) {
            Ok(store) => store,
            Err(StoreError::Unknown(_)) if header.since.is_none() => {
                let what = (id, bytes(header.blocks()));
                let at_rest = header.at_rest();
                return self.make(name, what, &at_rest, |store| {
                    store.take(&header, None, input)
                });
            }
            Err(error) => return Err(error),
        };
        store.refuse_branch("received")?;
        if header.encrypted && !store.is_encrypted() {
            return Err(StoreError::NotEncrypted(name.to_owned()));
        }
        match store.facts().id == id {
            true => store.take(&header, epoch, input),
            false => Err(StoreError::OtherVolume(name.to_owned())),
        }
    }
}

impl Store {
    pub(crate) fn take(
        &self,
        header: &StreamHeader,
        epoch: Option<WriterEpoch>,
        input: &mut dyn BufRead,
    ) -> Result<(), StoreError> {
        if self.snapshot_called(&header.snapshot).is_ok() {
            return Err(StoreError::Stream("its snapshot is here already"));
        }
        // Before anything is changed.
        if let Some(since) = &header.since {
            self.snapshot_called(since)?;
        }
        let size = bytes(header.blocks());
        if self.size(View::Current) != Some(size) {
            self.resize(size)?;
        }
        let writer = match epoch {
            Some(epoch) => epoch,
            None => self.open_writer(Takeover::Refused)?,
        };
        let taken = self
            .restore(writer, header.since.as_deref())
            .and_then(|()| {
                if let Some(from) = &header.from {
                    self.begin_origin(from, &header.snapshot)?;
                }
                let applied = self.apply(writer, header, input);
                let kept = applied.and_then(|()| self.snapshot(&header.snapshot));
                self.end_origin();
                kept
            });
        match epoch {
            Some(_) => taken,
            None => taken.and(self.close_writer(writer)),
        }
    }

    /// Has the volume be as a snapshot is, or all zero.
    pub(crate) fn restore(
        &self,
        writer: WriterEpoch,
        snapshot: Option<&str>,
    ) -> Result<(), StoreError> {
        let was = snapshot.map(|name| self.frozen(name)).transpose()?;
        let Some(current) = self.state().volume.map(View::Current).cloned() else {
            return Ok(());
        };
        let Some((_, id, was)) = was else {
            return match current.entries().next() {
                Some(_) => self.zero(writer, 0, bytes(current.blocks())),
                None => Ok(()),
            };
        };
        let mut scratch = Scratch::default();
        for (block, content) in was.differences(Some(&current)) {
            if block.0 >= current.blocks().0 {
                break;
            }
            let at = block.0 * BLOCK;
            match content {
                Content::Zero => {
                    self.zero(writer, at, BLOCK)?;
                    continue;
                }
                // As it was: it is fetched for both at once.
                Content::Away => {
                    let version = was.get(block).map(|it| it.version);
                    self.leave_away(writer, version, (block, Blocks(1)))?;
                    continue;
                }
                Content::Slot(_) => {}
            }
            let mut data = [0; BLOCK_BYTES];
            self.read(
                View::Snapshot(id),
                at,
                &mut data,
                &mut scratch,
                Patience::Wait,
            )?;
            self.write(writer, at, &data)?;
        }
        Ok(())
    }

    /// Notes that blocks are at another site.
    fn leave_away(
        &self,
        epoch: WriterEpoch,
        version: Option<Version>,
        (first, count): (BlockNo, Blocks),
    ) -> Result<(), StoreError> {
        let ranges = &[Range {
            first,
            count: count.0,
        }];
        let away = Change::Away {
            epoch,
            version,
            ranges,
        };
        self.append(&mut self.appender(), &[away])
    }

    fn apply(
        &self,
        writer: WriterEpoch,
        header: &StreamHeader,
        input: &mut dyn BufRead,
    ) -> Result<(), StoreError> {
        let place = |block: BlockNo| {
            let at = block.0.checked_mul(BLOCK);
            at.ok_or(StoreError::Stream("a part of it lies beyond the end"))
        };
        for read in 0.. {
            match stream::next(&mut *input, read)? {
                Frame::Data(first, data) => self.write(writer, place(first)?, &data)?,
                Frame::Zeroes(first, count) => self.zero(writer, place(first)?, bytes(count))?,
                Frame::Away(first, count) if header.from.is_some() => {
                    self.leave_away(writer, None, (first, count))?;
                }
                Frame::Away(..) => {
                    let why = "it leaves blocks behind and does not say where";
                    return Err(StoreError::Stream(why));
                }
                Frame::End => break,
            }
        }
        Ok(())
    }
}
