//! Checkpoint: a volume as it was after some record, in one file.
//!
//! Chunks that maps share are stored once. The file is complete or it is not believed.

use crate::{
    Damage,
    codec::{Fields, checksum, count, put_text},
    map::{CHUNK_BYTES, Chunk, Map},
    slot::Slots,
    units::{
        Blocks, Geometry, Lsn, SegmentPlace, Sequence, SlotIndex, SnapshotId, VolumeId, WriterEpoch,
    },
    volume::{BlockSnapshot, Disk, Log, Opening, Position, Volume},
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

const MAGIC: &[u8; 8] = b"FYVCHK\x01\n";
/// Number of a chunk that there is not.
const NONE: u32 = u32::MAX;

/// Chunks in the order of their numbers.
#[derive(Default)]
struct Chunks<'a> {
    numbers: HashMap<*const Chunk, u32>,
    order: Vec<&'a Arc<Chunk>>,
}

impl<'a> Chunks<'a> {
    fn number(&mut self, chunk: &'a Arc<Chunk>) -> u32 {
        *self.numbers.entry(Arc::as_ptr(chunk)).or_insert_with(|| {
            self.order.push(chunk);
            u32::try_from(self.order.len() - 1).unwrap_or(NONE)
        })
    }

    fn put(&mut self, out: &mut Vec<u8>, map: &'a Map) {
        out.extend_from_slice(&map.blocks().0.to_le_bytes());
        for chunk in map.chunks() {
            let number = chunk.as_ref().map_or(NONE, |chunk| self.number(chunk));
            out.extend_from_slice(&number.to_le_bytes());
        }
    }
}

impl Volume {
    /// Encodes a checkpoint that does without some segments, in which nothing may be needed.
    ///
    /// Every record so far must be durable before it takes the former one's place.
    pub fn checkpoint(&self, without: &[SegmentPlace]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.id().0);
        let (disk, log) = (&self.disk, &self.log);
        let open = u8::from(disk.opening == Opening::Open);
        out.extend_from_slice(&[self.geometry().code(), open]);
        out.extend_from_slice(&disk.epoch.0.to_le_bytes());
        out.extend_from_slice(&disk.last_snapshot.to_le_bytes());
        out.extend_from_slice(&disk.last_version.to_le_bytes());
        out.extend_from_slice(&log.next.0.to_le_bytes());
        out.push(u8::from(log.position.is_some()));
        if let Some(at) = log.position {
            out.extend_from_slice(&at.place.0.to_le_bytes());
            out.extend_from_slice(&at.sequence.0.to_le_bytes());
            out.extend_from_slice(&at.next.0.to_le_bytes());
        }
        let kept = || log.segments.iter().filter(|it| !without.contains(it.0));
        out.extend_from_slice(&count(kept().count()));
        for (place, sequence) in kept() {
            out.extend_from_slice(&place.0.to_le_bytes());
            out.extend_from_slice(&sequence.0.to_le_bytes());
        }
        let mut chunks = Chunks::default();
        let mut maps = Vec::new();
        chunks.put(&mut maps, &disk.current);
        maps.extend_from_slice(&count(disk.snapshots.len()));
        for (id, snapshot) in &disk.snapshots {
            maps.extend_from_slice(&id.0.to_le_bytes());
            put_text(&mut maps, &snapshot.name);
            chunks.put(&mut maps, &snapshot.map);
        }
        out.reserve(maps.len() + chunks.order.len() * CHUNK_BYTES + 16);
        out.extend_from_slice(&count(chunks.order.len()));
        for chunk in chunks.order {
            out.extend_from_slice(&chunk[..]);
        }
        out.extend_from_slice(&maps);
        let sum = checksum(0, &out);
        out.extend_from_slice(&sum);
        out
    }

    /// Reads a checkpoint.
    pub(crate) fn from_checkpoint(bytes: &[u8]) -> Result<Self, Damage> {
        let (covered, sum) = bytes
            .split_last_chunk::<8>()
            .ok_or(Damage::Checkpoint("it is cut off"))?;
        if !covered.starts_with(MAGIC) {
            return Err(Damage::Checkpoint("it is none, or of another format"));
        }
        if checksum(0, covered) != *sum {
            return Err(Damage::Checkpoint("its checksum is wrong"));
        }
        read(&mut Fields(covered)).ok_or(Damage::Checkpoint("its fields make no sense"))
    }
}

fn read(fields: &mut Fields<'_>) -> Option<Volume> {
    fields.bytes(MAGIC.len())?;
    let id = VolumeId(fields.array()?);
    let geometry = Geometry::of_code(fields.u8()?)?;
    let opening = match fields.u8()? {
        0 => Opening::Closed,
        _ => Opening::Open,
    };
    let epoch = WriterEpoch(fields.u32()?);
    let last_snapshot = fields.u32()?;
    let last_version = fields.u64()?;
    let next = Lsn(fields.u64()?);
    let position = match fields.u8()? {
        0 => None,
        _ => Some(Position {
            place: SegmentPlace(fields.u32()?),
            sequence: Sequence(fields.u64()?),
            next: SlotIndex(fields.u32()?),
        }),
    };
    let mut segments = BTreeMap::new();
    for _ in 0..fields.count(12)? {
        segments.insert(SegmentPlace(fields.u32()?), Sequence(fields.u64()?));
    }
    let mut chunks = Vec::new();
    for _ in 0..fields.count(CHUNK_BYTES)? {
        chunks.push(Arc::new(fields.array::<CHUNK_BYTES>()?));
    }
    let current = map(fields, &chunks)?;
    let mut snapshots = BTreeMap::new();
    for _ in 0..fields.count(13)? {
        let id = SnapshotId(fields.u32()?);
        let name = fields.text()?.to_owned();
        let map = map(fields, &chunks)?;
        snapshots.insert(id, BlockSnapshot { name, map });
    }
    let disk = Disk {
        current,
        snapshots,
        last_snapshot,
        last_version,
        epoch,
        opening,
    };
    let log = Log {
        next,
        flushed: next,
        segments,
        position,
    };
    fields.0.is_empty().then_some(Volume {
        slots: Slots::new(id, geometry),
        disk,
        log,
    })
}

fn map(fields: &mut Fields<'_>, chunks: &[Arc<Chunk>]) -> Option<Map> {
    let blocks = Blocks(fields.u64()?);
    let count = Map::chunk_count(blocks);
    let numbers = fields.bytes(count.checked_mul(4)?)?;
    let (numbers, _) = numbers.as_chunks::<4>();
    let find = |number: &[u8; 4]| match u32::from_le_bytes(*number) {
        NONE => Some(None),
        number => {
            let number = usize::try_from(number).ok()?;
            Some(Some(Arc::clone(chunks.get(number)?)))
        }
    };
    let chunks = numbers.iter().map(find).collect::<Option<Vec<_>>>()?;
    Map::from_chunks(blocks, chunks)
}
