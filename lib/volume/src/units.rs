//! Ids and units.

use crate::{record::PLAIN_SLOT_BYTES, seal::TAG_BYTES, segment::SEGMENT_HEADER};
use std::fmt;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;

/// Identity of a volume, mixed into every checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId(pub [u8; 16]);

/// Index of a block in a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockNo(pub u64);

/// Number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Blocks(pub u64);

/// Version of a block: the position of its write among all writes of the volume.
///
/// Starts at 1 and fits into 40 bits, which is four pebibytes written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(u64);

/// Generation of the writer. Each opening for writing has one of its own; those of lower ones
/// are fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriterEpoch(pub u32);

/// Position of a record in the log of one store. Consecutive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lsn(pub u64);

/// Age of a segment: greater is younger. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sequence(pub u64);

/// Segment's place in the numbering of slots. Used again after the segment is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentPlace(pub u32);

/// Index of a slot in its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotIndex(pub u32);

/// Slot of the log: place and index in one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogSlot(pub(crate) u32);

/// Identity of a snapshot in its volume. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId(pub u32);

/// Layout of segments: the number of slots, a power of two, and their length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry(u8);

/// Bit of a geometry whose slots have room for a tag.
const SEALED: u8 = 0x80;

impl Version {
    /// Greatest version.
    pub const MAX: Self = Self((1 << 40) - 1);
    /// First version.
    pub const FIRST: Self = Self(1);

    /// Makes a version of its number.
    pub fn new(number: u64) -> Option<Self> {
        (1..=Self::MAX.0).contains(&number).then_some(Self(number))
    }

    /// Number of the version.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Version after this one, unless this is the last.
    pub fn next(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }
}

impl Lsn {
    /// Position after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl WriterEpoch {
    /// Epoch after this one, unless this is the last.
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

impl Geometry {
    /// Segments of 64 MiB of data.
    pub const USUAL: Self = Self(14);

    /// Geometry of segments with two to the power of so many slots: 1 to 20.
    pub fn new(bits: u8) -> Option<Self> {
        (1..=20).contains(&bits).then_some(Self(bits))
    }

    /// Geometry of a volume whose blocks are encrypted.
    #[must_use]
    pub fn sealed(self) -> Self {
        Self(self.0 | SEALED)
    }

    /// True if blocks are encrypted.
    pub fn is_sealed(self) -> bool {
        self.0 & SEALED != 0
    }

    /// Geometry of its code in a checkpoint.
    pub(crate) fn of_code(code: u8) -> Option<Self> {
        let plain = Self::new(code & !SEALED)?;
        Some(Self(plain.0 | code & SEALED))
    }

    pub(crate) fn code(self) -> u8 {
        self.0
    }

    fn bits(self) -> u8 {
        self.0 & !SEALED
    }

    /// Slots of a segment.
    pub fn slots(self) -> u32 {
        1 << self.bits()
    }

    /// Bytes of a slot.
    pub fn slot_bytes(self) -> usize {
        match self.is_sealed() {
            true => PLAIN_SLOT_BYTES + TAG_BYTES,
            false => PLAIN_SLOT_BYTES,
        }
    }

    /// Offset of a slot in its segment's file, in bytes.
    pub fn offset(self, index: SlotIndex) -> u64 {
        SEGMENT_HEADER as u64 + u64::from(index.0) * self.slot_bytes() as u64
    }

    /// Places that there are. The last slot's number means zero, so that its place is left out.
    pub(crate) fn places(self) -> u32 {
        u32::MAX >> self.bits()
    }

    pub(crate) fn slot(self, place: SegmentPlace, index: SlotIndex) -> LogSlot {
        LogSlot(place.0 << self.bits() | index.0)
    }

    /// Place and index of a slot.
    pub fn split(self, slot: LogSlot) -> (SegmentPlace, SlotIndex) {
        let index = slot.0 & (self.slots() - 1);
        (SegmentPlace(slot.0 >> self.bits()), SlotIndex(index))
    }
}

macro_rules! display {
    ($($name:ident: $text:literal),* $(,)?) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $text, self.0)
            }
        }
    )*};
}

display! {
    BlockNo: "block {}",
    Version: "version {}",
    WriterEpoch: "epoch {}",
    Lsn: "record {}",
    Sequence: "segment {}",
    SnapshotId: "snapshot {}",
}
