//! A volume from its checkpoint and the log behind it.
//!
//! ```text
//! Replaying --torn or missing record--> Cut --later record knows it was flushed--> Damage
//!     |                                  |
//!     +--finish--> whole log             +--finish--> log up to the cut
//! ```
//!
//! Segments are given in the order of their sequence, slots in theirs. After a cut the rest is
//! read all the same, for a witness that what is missing had been flushed. A log cut at a record
//! that was flushed, with nothing behind it, cannot be told from one that ended there: what
//! reads of blocks find is checked slot by slot.

use crate::{
    Damage,
    record::Record,
    segment::SegmentHeader,
    units::{Lsn, Sequence, SlotIndex},
    volume::{Position, Volume},
};

/// Recovery under way.
#[derive(Debug)]
pub struct Recovery {
    volume: Volume,
    /// Segment that slots are read of.
    reading: Option<Sequence>,
    cut: Option<Cut>,
}

#[derive(Clone, Copy, Debug)]
struct Cut {
    lost: Lsn,
    segment: Sequence,
}

/// Need of recovery for a segment's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentNeed {
    /// Nothing: the checkpoint knows its blocks. It must be kept.
    Kept,
    /// Nothing: no block is in it. It may be removed once recovery has ended.
    Stray,
    /// Header and slots, from this one on.
    From(SlotIndex),
}

/// Outcome of a recovery.
#[derive(Debug)]
pub struct Recovered {
    /// Volume.
    pub volume: Volume,
    /// Tail to cut off.
    pub tail: Tail,
}

/// Tail of the log that is to be cut off before anything is appended to it.
///
/// The cut must be durable before the next record is written, or records that were cut could
/// come back behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// No segment holds a record: segments after this one are to be removed.
    Segments(Sequence),
    /// The segment is to end at the volume's position, and segments after it are to be removed.
    At(Position),
}

impl Recovery {
    /// Begins with a checkpoint.
    pub fn begin(checkpoint: &[u8]) -> Result<Self, Damage> {
        Ok(Self {
            volume: Volume::from_checkpoint(checkpoint)?,
            reading: None,
            cut: None,
        })
    }

    /// Volume as far as it is known.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Says what is wanted of a segment. Asked for each in turn, oldest first.
    pub fn wants(&self, sequence: Sequence) -> SegmentNeed {
        let position = self.volume.log.position;
        match position {
            Some(at) if sequence == at.sequence => SegmentNeed::From(at.next),
            Some(at) if sequence < at.sequence => {
                match self.volume.segments().any(|it| it.1 == sequence) {
                    true => SegmentNeed::Kept,
                    false => SegmentNeed::Stray,
                }
            }
            Some(_) | None => SegmentNeed::From(SlotIndex(0)),
        }
    }

    /// Takes the header of a segment whose slots follow. Shorter bytes are a torn header.
    pub fn segment(&mut self, sequence: Sequence, bytes: &[u8]) -> Result<(), Damage> {
        self.reading = Some(sequence);
        let header = SegmentHeader::decode(bytes)
            .filter(|it| it.volume == self.volume.id() && it.sequence == sequence);
        let known = self.volume.log.position;
        if let Some(at) = known.filter(|at| at.sequence == sequence) {
            // Its blocks are in the checkpoint.
            let same = header.is_some_and(|it| it.place == at.place);
            return same.then_some(()).ok_or(Damage::MissingSegment(sequence));
        }
        if self.cut.is_some() {
            return Ok(());
        }
        let full = known.is_none_or(|at| at.next.0 == self.volume.geometry().slots());
        let next = full
            && sequence.0 == known.map_or(0, |at| at.sequence.0) + 1
            && header.is_some_and(|it| it.first == self.volume.log.next);
        match header {
            Some(header) if next && self.volume.segment(header.place).is_none() => {
                self.volume.begin_segment(&header);
            }
            Some(_) | None => self.cut(sequence),
        }
        Ok(())
    }

    fn cut(&mut self, segment: Sequence) {
        let lost = self.volume.log.next;
        self.cut.get_or_insert(Cut { lost, segment });
    }

    /// Takes the next slot of the segment. Shorter bytes are a torn slot.
    pub fn slot(&mut self, bytes: &[u8]) -> Result<(), Damage> {
        let Some(sequence) = self.reading else {
            return Ok(());
        };
        let read = Record::decode(bytes, &self.volume.slots, sequence);
        match (self.cut, read) {
            (None, None) => self.cut(sequence),
            (None, Some((stamp, record))) => self.volume.apply(stamp, record)?,
            (Some(_), None) => {}
            (Some(cut), Some((stamp, _))) if stamp.flushed > cut.lost => {
                return Err(Damage::FlushedRecord {
                    lost: cut.lost,
                    segment: cut.segment,
                    witness: stamp.lsn,
                });
            }
            (Some(_), Some(_)) => {}
        }
        Ok(())
    }

    /// Ends recovery. `present` tells whether there is a file for a segment that was not read.
    pub fn finish(self, present: impl Fn(Sequence) -> bool) -> Result<Recovered, Damage> {
        for (_, sequence) in self.volume.segments() {
            if !present(sequence) {
                return Err(Damage::MissingSegment(sequence));
            }
        }
        let tail = match self.volume.log.position {
            None => Tail::Segments(Sequence(0)),
            Some(at) => Tail::At(at),
        };
        let volume = self.volume;
        Ok(Recovered { volume, tail })
    }
}
