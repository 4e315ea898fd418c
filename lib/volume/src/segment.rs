//! Header of a segment.

use crate::{
    codec::{Fields, checksum},
    units::{Lsn, SegmentPlace, Sequence, VolumeId},
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a segment's header. Slots follow.
pub const SEGMENT_HEADER: usize = 64;
const MAGIC: &[u8; 8] = b"FYVSEG\x01\n";

/// Beginning of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Volume.
    pub volume: VolumeId,
    /// Place among slots.
    pub place: SegmentPlace,
    /// Age.
    pub sequence: Sequence,
    /// First record.
    pub first: Lsn,
}

/// Seed of the checksums in a segment: slots of other segments and volumes are not believed.
pub(crate) fn seed(volume: VolumeId, sequence: Sequence) -> u64 {
    xxh3_64_with_seed(&volume.0, sequence.0)
}

impl SegmentHeader {
    /// Bytes of the header.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER] {
        let mut bytes = [0; SEGMENT_HEADER];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..24].copy_from_slice(&self.volume.0);
        bytes[24..32].copy_from_slice(&self.sequence.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.place.0.to_le_bytes());
        let sum = checksum(0, &bytes[..56]);
        bytes[56..].copy_from_slice(&sum);
        bytes
    }

    /// Reads a header; `None` if it is torn or no header.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<SEGMENT_HEADER>()?;
        if checksum(0, &bytes[..56]) != bytes[56..] {
            return None;
        }
        let mut fields = Fields(bytes);
        if fields.bytes(8)? != MAGIC {
            return None;
        }
        let volume = VolumeId(fields.array()?);
        let sequence = Sequence(fields.u64()?);
        let first = Lsn(fields.u64()?);
        let place = SegmentPlace(fields.u32()?);
        Some(Self {
            volume,
            place,
            sequence,
            first,
        })
    }
}
