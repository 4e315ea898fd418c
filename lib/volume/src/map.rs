//! Map of blocks to versions and slots, nine bytes a block.
//!
//! Chunks of 512 blocks are shared by copies until one of them changes: a snapshot costs a
//! pointer a chunk. Chunks nothing was written to take no room.

use crate::units::{BlockNo, Blocks, LogSlot, Version};
use std::sync::Arc;

/// Blocks of a chunk.
pub(crate) const CHUNK: usize = 512;
/// Bytes of an entry: five of the version, four of the slot.
const ENTRY: usize = 9;
/// Bytes of a chunk.
pub(crate) const CHUNK_BYTES: usize = CHUNK * ENTRY;
/// Number of no slot: the block is zero.
const ZERO: u32 = u32::MAX;
/// Number of no slot: the content is at another site. Neither is the number of a slot.
const AWAY: u32 = u32::MAX - 1;

pub(crate) type Chunk = [u8; CHUNK_BYTES];

/// Knowledge of a block that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// Version of the content.
    pub version: Version,
    /// Place of the content.
    pub content: Content,
}

/// Place of a block's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// No place: the block is zero.
    Zero,
    /// A slot.
    Slot(LogSlot),
    /// Another site: it has not been fetched.
    Away,
}

/// Map of a volume or of a snapshot. Cloning it copies pointers.
#[derive(Clone, Debug)]
pub struct Map {
    blocks: Blocks,
    chunks: Vec<Option<Arc<Chunk>>>,
}

fn split(block: u64) -> (usize, usize) {
    let chunk = usize::try_from(block / CHUNK as u64).unwrap_or(usize::MAX);
    let index = usize::try_from(block % CHUNK as u64).unwrap_or(0);
    (chunk, index)
}

fn chunks_of(blocks: Blocks) -> usize {
    usize::try_from(blocks.0.div_ceil(CHUNK as u64)).unwrap_or(usize::MAX)
}

fn read(chunk: &Chunk, index: usize) -> Option<MapEntry> {
    let bytes = &chunk[index * ENTRY..][..ENTRY];
    let mut version = [0; 8];
    version[..5].copy_from_slice(&bytes[..5]);
    let mut slot = [0; 4];
    slot.copy_from_slice(&bytes[5..]);
    let content = match u32::from_le_bytes(slot) {
        ZERO => Content::Zero,
        AWAY => Content::Away,
        slot => Content::Slot(LogSlot(slot)),
    };
    let version = Version::new(u64::from_le_bytes(version))?;
    Some(MapEntry { version, content })
}

fn write(chunk: &mut Chunk, index: usize, entry: MapEntry) {
    let bytes = &mut chunk[index * ENTRY..][..ENTRY];
    bytes[..5].copy_from_slice(&entry.version.number().to_le_bytes()[..5]);
    let slot = match entry.content {
        Content::Zero => ZERO,
        Content::Slot(slot) => slot.0,
        Content::Away => AWAY,
    };
    bytes[5..].copy_from_slice(&slot.to_le_bytes());
}

/// Content of a block that a map does not have.
#[derive(Clone, Copy)]
enum Beneath {
    /// Zero.
    Nothing,
    /// Anything.
    Something,
}

impl Map {
    /// Makes the map of a volume nothing was written to.
    pub fn new(blocks: Blocks) -> Self {
        let chunks = vec![None; chunks_of(blocks)];
        Self { blocks, chunks }
    }

    /// Size of the volume.
    pub fn blocks(&self) -> Blocks {
        self.blocks
    }

    /// Looks a block up; `None` if it was never written, and is zero.
    pub fn get(&self, block: BlockNo) -> Option<MapEntry> {
        let (chunk, index) = split(block.0);
        read(self.chunks.get(chunk)?.as_deref()?, index)
    }

    /// Notes a write. Blocks beyond the end are left out.
    pub(crate) fn set(&mut self, block: BlockNo, entry: MapEntry) {
        let (chunk, index) = split(block.0);
        if let Some(place) = self.chunks.get_mut(chunk) {
            let chunk = place.get_or_insert_with(|| Arc::new([0; CHUNK_BYTES]));
            write(Arc::make_mut(chunk), index, entry);
        }
    }

    /// Notes that blocks are zero from a version on. Those never written are so already.
    pub(crate) fn zero(&mut self, first: BlockNo, count: u64, version: Version) {
        let end = first.0.saturating_add(count).min(self.blocks.0);
        let mut block = first.0;
        while block < end {
            let (chunk, index) = split(block);
            let here = ((CHUNK - index) as u64).min(end - block);
            if let Some(Some(chunk)) = self.chunks.get_mut(chunk) {
                let chunk = Arc::make_mut(chunk);
                for index in (index..CHUNK).zip(0..here).map(|(index, _)| index) {
                    if read(chunk, index).is_some() {
                        let content = Content::Zero;
                        write(chunk, index, MapEntry { version, content });
                    }
                }
            }
            block += here;
        }
    }

    /// Notes that the content of blocks is at another site. Blocks beyond the end are left out.
    pub(crate) fn away(&mut self, first: BlockNo, count: u64, version: Version) {
        let end = first.0.saturating_add(count).min(self.blocks.0);
        let content = Content::Away;
        for block in first.0..end {
            self.set(BlockNo(block), MapEntry { version, content });
        }
    }

    /// Blocks whose content is at another site, in order, with their versions.
    pub fn absent(&self) -> impl Iterator<Item = (BlockNo, Version)> + '_ {
        let away = |(block, entry): (BlockNo, MapEntry)| {
            (entry.content == Content::Away).then_some((block, entry.version))
        };
        self.entries().filter_map(away)
    }

    /// Changes the size. What is cut off is forgotten.
    pub(crate) fn resize(&mut self, blocks: Blocks) {
        self.chunks.resize(chunks_of(blocks), None);
        let (_, kept) = split(blocks.0);
        if blocks < self.blocks
            && kept > 0
            && let Some(Some(last)) = self.chunks.last_mut()
        {
            Arc::make_mut(last)[kept * ENTRY..].fill(0);
        }
        self.blocks = blocks;
    }

    /// Notes in each of the maps that a version of a block is in another slot now, or has been fetched. Chunks that
    /// the maps share stay shared.
    pub(crate) fn moved<'a>(
        maps: impl Iterator<Item = &'a mut Self>,
        block: BlockNo,
        entry: MapEntry,
    ) {
        let (at, index) = split(block.0);
        let mut done: Vec<(Arc<Chunk>, Arc<Chunk>)> = Vec::new();
        for map in maps {
            let Some(Some(chunk)) = map.chunks.get_mut(at) else {
                continue;
            };
            if let Some((_, new)) = done.iter().find(|(old, _)| Arc::ptr_eq(old, chunk)) {
                *chunk = Arc::clone(new);
                continue;
            }
            let known = read(chunk, index);
            if known.is_some_and(|it| it.version == entry.version && it.content != Content::Zero) {
                let old = Arc::clone(chunk);
                write(Arc::make_mut(chunk), index, entry);
                done.push((old, Arc::clone(chunk)));
            }
        }
    }

    /// Written blocks, in order.
    pub fn entries(&self) -> impl Iterator<Item = (BlockNo, MapEntry)> + '_ {
        let chunks = self.chunks.iter().zip(0u64..);
        chunks
            .filter_map(|(chunk, number)| Some((chunk.as_deref()?, number)))
            .flat_map(|(chunk, number)| {
                (0..CHUNK).filter_map(move |index| {
                    let block = number * CHUNK as u64 + index as u64;
                    Some((BlockNo(block), read(chunk, index)?))
                })
            })
    }

    /// Blocks that differ from those of another map of the same volume, in order, with what this
    /// one has. Those that are not in it any more are zero.
    pub fn differences<'a>(
        &'a self,
        other: Option<&'a Self>,
    ) -> impl Iterator<Item = (BlockNo, Content)> + 'a {
        self.compared(other, Beneath::Nothing)
    }

    /// Finds the blocks that differ from another map, where both lie over something else: a block that
    /// is zero differs from one that is not there.
    pub fn differences_over<'a>(
        &'a self,
        other: Option<&'a Self>,
    ) -> impl Iterator<Item = (BlockNo, Content)> + 'a {
        self.compared(other, Beneath::Something)
    }

    fn compared<'a>(
        &'a self,
        other: Option<&'a Self>,
        beneath: Beneath,
    ) -> impl Iterator<Item = (BlockNo, Content)> + 'a {
        let theirs = move |number: usize| other.and_then(|map| map.chunks.get(number)?.as_ref());
        let most = self
            .chunks
            .len()
            .max(other.map_or(0, |map| map.chunks.len()));
        (0..most)
            .map(move |number| {
                (
                    number,
                    self.chunks.get(number).and_then(Option::as_ref),
                    theirs(number),
                )
            })
            .filter(|(_, ours, theirs)| match (ours, theirs) {
                (Some(ours), Some(theirs)) => !Arc::ptr_eq(ours, theirs),
                (ours, theirs) => ours.is_some() || theirs.is_some(),
            })
            .flat_map(move |(number, ours, theirs)| {
                (0..CHUNK).filter_map(move |index| {
                    let entry = |chunk: Option<&Arc<Chunk>>| read(chunk?, index);
                    let (ours, theirs) = (entry(ours), entry(theirs));
                    let version = |entry: Option<MapEntry>| entry.map(|it| it.version);
                    let content = ours.map_or(Content::Zero, |it| it.content);
                    let differs = version(ours) != version(theirs);
                    // Of nothing, too, zeroes are no difference.
                    let is_new = match beneath {
                        Beneath::Nothing => theirs.is_some() || content != Content::Zero,
                        Beneath::Something => true,
                    };
                    let block = number as u64 * CHUNK as u64 + index as u64;
                    (differs && is_new).then_some((BlockNo(block), content))
                })
            })
    }

    /// Bytes that this map keeps in memory, those it shares included.
    pub fn resident_bytes(&self) -> usize {
        let chunk = size_of::<Chunk>() + 2 * size_of::<usize>();
        self.chunks.capacity() * size_of::<Option<Arc<Chunk>>>()
            + self.chunks.iter().flatten().count() * chunk
    }

    pub(crate) fn chunks(&self) -> &[Option<Arc<Chunk>>] {
        &self.chunks
    }

    pub(crate) fn chunk_count(blocks: Blocks) -> usize {
        chunks_of(blocks)
    }

    pub(crate) fn from_chunks(blocks: Blocks, chunks: Vec<Option<Arc<Chunk>>>) -> Option<Self> {
        (chunks.len() == chunks_of(blocks)).then_some(Self { blocks, chunks })
    }
}

/// Slots that the entries of a chunk refer to.
pub(crate) fn slots(chunk: &Chunk) -> impl Iterator<Item = LogSlot> + '_ {
    (0..CHUNK).filter_map(|index| match read(chunk, index)?.content {
        Content::Zero | Content::Away => None,
        Content::Slot(slot) => Some(slot),
    })
}
