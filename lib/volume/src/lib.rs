//! Disk of versioned blocks in an append-only log: format, map, recovery, compaction.
//!
//! ```text
//!             stage                    commit
//! Change --> Batch --bytes--> log file ------> Volume (map: block -> version, slot)
//!                                |                ^  |
//!                                |  crash         |  | checkpoint
//!                                +--> Recovery ---+<-+
//! ```
//!
//! The log is a row of segments; a segment is a header and a fixed number of slots; a slot holds
//! one record with its checksum. A block is found by its slot, never changed in place. Whatever
//! becomes of a process or a machine, what is left of the log is a prefix of what was written,
//! and every flushed record is in it. A record that is missing although a later one says that it
//! was flushed is damage: recovery refuses rather than goes back.
//!
//! - [`Volume`]: what has been written, the permitted writer, and what the next record looks like.
//! - [`Recovery`]: a volume from a checkpoint and the log behind it.
//! - [`Cipher`]: of a volume whose blocks are encrypted.
//! - [`plan`]: segments worth emptying.
//!
//! Does no I/O and reads no clock. The caller appends in order, one batch after the other, and
//! tells what has become durable. `docs/volumes.md` follows a block through its life.

mod batch;
mod checkpoint;
mod codec;
mod compaction;
mod error;
mod map;
mod record;
mod recovery;
mod seal;
mod segment;
mod slot;
mod units;
mod volume;

pub use batch::{Batch, Change, Range, Staged};
pub use compaction::{CompactionPlan, CompactionPolicy, Victim, plan};
pub use error::{ChangeRefusal, Damage};
pub use map::{Content, Map, MapEntry};
pub use record::BlockData;
pub use recovery::{Recovered, Recovery, SegmentNeed, Tail};
pub use seal::{Cipher, KEY_BYTES};
pub use segment::{SEGMENT_HEADER, SegmentHeader};
pub use slot::Slots;
pub use units::{
    BLOCK_BYTES, BlockNo, Blocks, Geometry, LogSlot, Lsn, SegmentPlace, Sequence, SlotIndex,
    SnapshotId, Version, VolumeId, WriterEpoch,
};
pub use volume::{BlockSnapshot, Opening, Position, Takeover, View, Volume};
