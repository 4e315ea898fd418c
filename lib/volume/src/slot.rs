//! Slots of one volume: their length, and the content of blocks in them.

use crate::{
    ChangeRefusal, Damage,
    codec::{Fields, checksum},
    record::{BlockData, END, HEADER, Record, SUM},
    seal::{Cipher, Sealed, TAG_BYTES},
    segment::seed,
    units::{BLOCK_BYTES, BlockNo, Geometry, SegmentPlace, Sequence, SlotIndex, Version, VolumeId},
};
use std::sync::Arc;

/// Layout of a volume's slots, and the cipher of one whose blocks are encrypted.
#[derive(Clone, Debug)]
pub struct Slots {
    volume: VolumeId,
    geometry: Geometry,
    cipher: Option<Arc<Cipher>>,
}

impl Slots {
    pub(crate) fn new(volume: VolumeId, geometry: Geometry) -> Self {
        Self {
            volume,
            geometry,
            cipher: None,
        }
    }

    pub(crate) fn unlock(&mut self, cipher: Cipher) {
        self.cipher = Some(Arc::new(cipher));
    }

    /// Volume that they are of.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Number and length of slots.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Encrypts the content of a record in place, and returns the tag; `None` if it has no content
    /// or the volume is not encrypted.
    pub(crate) fn seal(
        &self,
        record: &Record,
        payload: &mut [u8],
    ) -> Result<Option<[u8; TAG_BYTES]>, ChangeRefusal> {
        let (Record::Write { block, version } | Record::Moved { block, version }) = record else {
            return Ok(None);
        };
        if !self.geometry.is_sealed() {
            return Ok(None);
        }
        let cipher = self.cipher.as_ref().ok_or(ChangeRefusal::Locked)?;
        let data = payload.first_chunk_mut().ok_or(ChangeRefusal::Locked)?;
        let tag = cipher.seal(self.at(*block, *version), data);
        tag.ok_or(ChangeRefusal::Locked).map(Some)
    }

    fn at(&self, block: BlockNo, version: Version) -> Sealed {
        Sealed {
            volume: self.volume,
            block,
            version,
        }
    }

    /// Checks that a slot holds a version of a block, and returns the content, which is decrypted
    /// in its place.
    ///
    /// `at` is where the slot is, for the error alone.
    pub fn read<'a>(
        &self,
        bytes: &'a mut [u8],
        sequence: Sequence,
        at: (SegmentPlace, SlotIndex),
        expected: (BlockNo, Version),
    ) -> Result<&'a BlockData, Damage> {
        let found = self.content(bytes, sequence, expected);
        found.ok_or(Damage::Block {
            block: expected.0,
            place: at.0,
            index: at.1,
        })
    }

    fn content<'a>(
        &self,
        bytes: &'a mut [u8],
        sequence: Sequence,
        (block, version): (BlockNo, Version),
    ) -> Option<&'a BlockData> {
        let bytes = bytes.get_mut(..self.geometry.slot_bytes())?;
        let (covered, sum) = bytes.split_last_chunk_mut::<SUM>()?;
        let numbers = [block.0.to_le_bytes(), version.number().to_le_bytes()];
        let is_content = matches!(covered[2], 1 | 2);
        if !is_content
            || covered[8..24] != *numbers.as_flattened()
            || checksum(seed(self.volume, sequence), covered) != *sum
        {
            return None;
        }
        let (payload, tag) = covered.split_at_mut(END);
        let data = payload[HEADER..].first_chunk_mut::<BLOCK_BYTES>()?;
        if self.geometry.is_sealed() {
            let tag = *tag.first_chunk()?;
            let cipher = self.cipher.as_ref()?;
            cipher.open(self.at(block, version), data, tag)?;
        }
        Some(data)
    }

    /// Checks that a slot holds a block, and returns which, and the content. For readers of the
    /// log and not a block of it.
    pub fn block<'a>(
        &self,
        bytes: &'a mut [u8],
        sequence: Sequence,
        at: (SegmentPlace, SlotIndex),
    ) -> Result<(BlockNo, Version, &'a BlockData), Damage> {
        let mut fields = Fields(bytes.get(8..24).unwrap_or_default());
        let block = BlockNo(fields.u64().unwrap_or(0));
        let version = fields.u64().and_then(Version::new);
        let version = version.ok_or(Damage::Block {
            block,
            place: at.0,
            index: at.1,
        })?;
        let data = self.read(bytes, sequence, at, (block, version))?;
        Ok((block, version, data))
    }
}
