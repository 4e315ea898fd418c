//! Reasons why a change is refused, or a log not believed.

use crate::units::{BlockNo, Blocks, Lsn, SegmentPlace, Sequence, SnapshotId, WriterEpoch};

/// Change that cannot be made. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeRefusal {
    /// The writer has been replaced, or has closed the volume.
    #[error("writer of {given} is fenced: the volume is at {current} (open it again)")]
    Fenced {
        /// Epoch of the writer.
        given: WriterEpoch,
        /// Epoch of the volume.
        current: WriterEpoch,
    },
    /// The volume has a writer.
    #[error("volume is open for writing in {0} (close it there, or take it over)")]
    Open(WriterEpoch),
    /// An epoch that is not greater than all before it.
    #[error("{given} is not after {current} (ask for a new one)")]
    StaleEpoch {
        /// Epoch given.
        given: WriterEpoch,
        /// Epoch of the volume.
        current: WriterEpoch,
    },
    /// Block beyond the end.
    #[error("{block} is beyond the end of the volume, which has {} blocks", blocks.0)]
    BeyondEnd {
        /// Block, or the first behind a range.
        block: BlockNo,
        /// Size of the volume.
        blocks: Blocks,
    },
    /// Name in use.
    #[error("a snapshot is called {0} already (choose another name)")]
    NameTaken(String),
    /// Name that cannot be.
    #[error("{0:?} is no name for a snapshot: it takes 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'")]
    Name(String),
    /// No such snapshot.
    #[error("there is no {0}")]
    NoSnapshot(SnapshotId),
    /// More ranges in one change than a record holds.
    #[error("{0} ranges do not fit into one record")]
    TooManyRanges(usize),
    /// The segment is full; the next one is to be begun.
    #[error("segment is full (begin the next)")]
    SegmentFull,
    /// No slots are left.
    #[error("log has no room for another segment (remove snapshots, then compact)")]
    LogFull,
    /// The blocks are encrypted, and the key is not known.
    #[error("volume is encrypted, and its key is not known (open it with the key)")]
    Locked,
    /// Versions or epochs are used up.
    #[error("volume has used up its {0} (export it into a new one)")]
    Exhausted(&'static str),
}

/// Log or checkpoint that cannot be what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// Checkpoint that is torn, changed, or of another volume or format.
    #[error("checkpoint is damaged: {0} (restore the volume, or heal it from another copy)")]
    Checkpoint(&'static str),
    /// Record lost although it was flushed.
    #[error(
        "{lost} in {segment} is damaged although it was flushed, as {witness} says (restore the volume)"
    )]
    FlushedRecord {
        /// Record that is missing.
        lost: Lsn,
        /// Segment where it should be.
        segment: Sequence,
        /// Later record that knows of the flush.
        witness: Lsn,
    },
    /// Record that cannot follow those before it.
    #[error("{lsn} in {segment} contradicts what is before it: {why} (restore the volume)")]
    Contradiction {
        /// Record.
        lsn: Lsn,
        /// Segment.
        segment: Sequence,
        /// Reason.
        why: &'static str,
    },
    /// Segment that the checkpoint refers to, and that is not there or is another.
    #[error("{0} is missing although blocks are in it (restore the volume)")]
    MissingSegment(Sequence),
    /// Block that is not in the slot where it was written.
    #[error("{block} in slot {} of place {} is damaged (restore it from a snapshot or another copy)", index.0, place.0)]
    Block {
        /// Block.
        block: BlockNo,
        /// Segment's place.
        place: SegmentPlace,
        /// Slot in the segment.
        index: crate::units::SlotIndex,
    },
}
