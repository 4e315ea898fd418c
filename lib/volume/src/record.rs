//! Records, and the slots that hold them.
//!
//! ```text
//! 0     magic, kind      8  block     24  record number      40  payload     4136  checksum
//! 4     epoch           16  version   32  flushed up to                      4144
//! ```
//!
//! Of a volume whose blocks are encrypted, the payload of a block is its sealed content, and
//! 16 bytes of tag stand before the checksum. Other records are not sealed.

use crate::{
    ChangeRefusal,
    codec::{Fields, checksum, count, put_text},
    segment::seed,
    slot::Slots,
    units::{BLOCK_BYTES, BlockNo, Blocks, Lsn, Sequence, SnapshotId, Version, WriterEpoch},
};

/// Content of a block.
pub type BlockData = [u8; BLOCK_BYTES];

/// Bytes before the payload.
pub(crate) const HEADER: usize = 40;
/// Bytes up to the payload's end.
pub(crate) const END: usize = HEADER + BLOCK_BYTES;
/// Bytes of a checksum.
pub(crate) const SUM: usize = 8;
/// Bytes of a slot of a volume that is not encrypted.
pub(crate) const PLAIN_SLOT_BYTES: usize = END + SUM;
const MAGIC: u16 = 0x5956;
/// Ranges that one record holds.
pub(crate) const MOST_RANGES: usize = 256;

/// One change, as it is in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// Block written; its content is in the slot.
    Write { block: BlockNo, version: Version },
    /// Content of a version copied to this slot.
    Moved { block: BlockNo, version: Version },
    /// Blocks are zero.
    Zero {
        version: Version,
        ranges: Vec<(BlockNo, u64)>,
    },
    /// A writer begins.
    Opened,
    /// The writer has ended.
    Closed,
    /// Everything as it is kept under a name.
    Snapshot { id: SnapshotId, name: String },
    /// Snapshot removed.
    Dropped { id: SnapshotId },
    /// Size changed.
    Resized { blocks: Blocks },
    /// The content of blocks is at another site.
    Away {
        version: Version,
        ranges: Vec<(BlockNo, u64)>,
    },
}

/// Content of a slot beside its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub epoch: WriterEpoch,
    pub lsn: Lsn,
    /// Records before this one were durable when it was written.
    pub flushed: Lsn,
}

impl Record {
    fn kind(&self) -> u8 {
        match self {
            Self::Write { .. } => 1,
            Self::Moved { .. } => 2,
            Self::Zero { .. } => 3,
            Self::Opened => 4,
            Self::Closed => 5,
            Self::Snapshot { .. } => 6,
            Self::Dropped { .. } => 7,
            Self::Resized { .. } => 8,
            Self::Away { .. } => 9,
        }
    }

    /// Block and version fields.
    fn numbers(&self) -> (u64, u64) {
        match self {
            Self::Write { block, version } | Self::Moved { block, version } => {
                (block.0, version.number())
            }
            Self::Zero { version, .. } | Self::Away { version, .. } => (0, version.number()),
            Self::Opened | Self::Closed => (0, 0),
            Self::Snapshot { id, .. } | Self::Dropped { id } => (u64::from(id.0), 0),
            Self::Resized { blocks } => (blocks.0, 0),
        }
    }

    /// Appends a slot of a segment. `data` is the content of a written or moved block. Refused,
    /// and nothing appended, if that is to be encrypted and the cipher is not known.
    pub fn encode(
        &self,
        stamp: Stamp,
        (slots, sequence): (&Slots, Sequence),
        data: Option<&BlockData>,
        out: &mut Vec<u8>,
    ) -> Result<(), ChangeRefusal> {
        let start = out.len();
        let (block, version) = self.numbers();
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&[self.kind(), 0]);
        out.extend_from_slice(&stamp.epoch.0.to_le_bytes());
        for number in [block, version, stamp.lsn.0, stamp.flushed.0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        match (self, data) {
            (_, Some(data)) => out.extend_from_slice(data),
            (Self::Zero { ranges, .. } | Self::Away { ranges, .. }, None) => {
                out.extend_from_slice(&count(ranges.len()));
                for (block, count) in ranges {
                    out.extend_from_slice(&block.0.to_le_bytes());
                    out.extend_from_slice(&count.to_le_bytes()[..7]);
                }
            }
            (Self::Snapshot { name, .. }, None) => put_text(out, name),
            (
                Self::Write { .. }
                | Self::Moved { .. }
                | Self::Opened
                | Self::Closed
                | Self::Dropped { .. }
                | Self::Resized { .. },
                None,
            ) => {}
        }
        out.resize(start + END, 0);
        match slots.seal(self, &mut out[start + HEADER..]) {
            Ok(Some(tag)) => out.extend_from_slice(&tag),
            Ok(None) => {}
            Err(refusal) => {
                out.truncate(start);
                return Err(refusal);
            }
        }
        // Records without content have no tag.
        out.resize(start + slots.geometry().slot_bytes() - SUM, 0);
        let sum = checksum(seed(slots.volume(), sequence), &out[start..]);
        out.extend_from_slice(&sum);
        Ok(())
    }

    /// Reads a slot; `None` if it is torn, changed, or of another segment.
    pub fn decode(bytes: &[u8], slots: &Slots, sequence: Sequence) -> Option<(Stamp, Self)> {
        let bytes = bytes.get(..slots.geometry().slot_bytes())?;
        let (covered, sum) = bytes.split_last_chunk::<SUM>()?;
        if checksum(seed(slots.volume(), sequence), covered) != *sum {
            return None;
        }
        let mut fields = Fields(&bytes[..END]);
        if fields.u16()? != MAGIC {
            return None;
        }
        let kind = fields.u8()?;
        fields.u8()?;
        let epoch = WriterEpoch(fields.u32()?);
        let (number, version) = (fields.u64()?, Version::new(fields.u64()?));
        let stamp = Stamp {
            epoch,
            lsn: Lsn(fields.u64()?),
            flushed: Lsn(fields.u64()?),
        };
        let id = || u32::try_from(number).ok().map(SnapshotId);
        let block = BlockNo(number);
        let record = match kind {
            1 => Self::Write {
                block,
                version: version?,
            },
            2 => Self::Moved {
                block,
                version: version?,
            },
            3 | 9 => {
                let mut ranges = Vec::new();
                for _ in 0..fields.count(15)? {
                    let block = BlockNo(fields.u64()?);
                    let mut count = [0; 8];
                    count[..7].copy_from_slice(fields.bytes(7)?);
                    ranges.push((block, u64::from_le_bytes(count)));
                }
                let version = version?;
                match kind {
                    3 => Self::Zero { version, ranges },
                    _ => Self::Away { version, ranges },
                }
            }
            4 => Self::Opened,
            5 => Self::Closed,
            6 => Self::Snapshot {
                id: id()?,
                name: fields.text()?.to_owned(),
            },
            7 => Self::Dropped { id: id()? },
            8 => Self::Resized {
                blocks: Blocks(number),
            },
            _ => return None,
        };
        Some((stamp, record))
    }
}
