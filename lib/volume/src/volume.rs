//! State of a volume: its blocks, its snapshots, its writer, and the end of its log.

use crate::{
    ChangeRefusal, Damage,
    batch::Staged,
    map::{Content, Map, MapEntry},
    record::{Record, Stamp},
    seal::Cipher,
    segment::SegmentHeader,
    slot::Slots,
    units::{
        BlockNo, Blocks, Geometry, LogSlot, Lsn, SegmentPlace, Sequence, SlotIndex, SnapshotId,
        Version, VolumeId, WriterEpoch,
    },
};
use std::collections::BTreeMap;

/// Volume, as its log says. Changes are staged by a [`crate::Batch`], written by the caller, and
/// committed here.
#[derive(Clone, Debug)]
pub struct Volume {
    pub(crate) slots: Slots,
    pub(crate) disk: Disk,
    pub(crate) log: Log,
}

/// Blocks, snapshots and the writer.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    pub current: Map,
    pub snapshots: BTreeMap<SnapshotId, BlockSnapshot>,
    /// Greatest number that a snapshot had.
    pub last_snapshot: u32,
    /// Number of the greatest version; 0 before the first write.
    pub last_version: u64,
    pub epoch: WriterEpoch,
    pub opening: Opening,
}

/// End of the log, and the segments it has.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub next: Lsn,
    /// Records before this one are durable.
    pub flushed: Lsn,
    pub segments: BTreeMap<SegmentPlace, Sequence>,
    /// Position of the next record; `None` before the first segment.
    pub position: Option<Position>,
}

/// Place of the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Place of the segment.
    pub place: SegmentPlace,
    /// Segment.
    pub sequence: Sequence,
    /// Slot in it; as many as it has slots if it is full.
    pub next: SlotIndex,
}

/// Blocks as they were at one instant.
#[derive(Clone, Debug)]
pub struct BlockSnapshot {
    /// Name given to it.
    pub name: String,
    /// Blocks.
    pub map: Map,
}

/// State of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Nothing may write.
    Closed,
    /// The writer of the current epoch may.
    Open,
}

/// Permission to replace a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// Refuse if there is a writer.
    Refused,
    /// Fence it.
    Allowed,
}

/// Blocks to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum View {
    /// Those of the volume.
    Current,
    /// Those of a snapshot.
    Snapshot(SnapshotId),
}

impl Position {
    /// Offset of the slot in the segment's file, in bytes.
    pub fn offset(self, geometry: Geometry) -> u64 {
        geometry.offset(self.next)
    }
}

impl Volume {
    /// Makes a volume of zeroes. Its checkpoint is to be stored before anything is written.
    pub fn create(id: VolumeId, blocks: Blocks, geometry: Geometry) -> Self {
        let disk = Disk {
            current: Map::new(blocks),
            snapshots: BTreeMap::new(),
            last_snapshot: 0,
            last_version: 0,
            epoch: WriterEpoch(0),
            opening: Opening::Closed,
        };
        let log = Log {
            next: Lsn(1),
            flushed: Lsn(1),
            segments: BTreeMap::new(),
            position: None,
        };
        Self {
            slots: Slots::new(id, geometry),
            disk,
            log,
        }
    }

    /// Identity.
    pub fn id(&self) -> VolumeId {
        self.slots.volume()
    }

    /// Slots of a segment, and how they are numbered.
    pub fn geometry(&self) -> Geometry {
        self.slots.geometry()
    }

    /// Layout of its slots, and the cipher if it has been told.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Tells the cipher of a volume whose blocks are encrypted: they cannot be read or written before.
    pub fn unlock(&mut self, cipher: Cipher) {
        self.slots.unlock(cipher);
    }

    /// Size.
    pub fn blocks(&self) -> Blocks {
        self.disk.current.blocks()
    }

    /// Epoch of the writer, or of the last one.
    pub fn epoch(&self) -> WriterEpoch {
        self.disk.epoch
    }

    /// State of the writer.
    pub fn opening(&self) -> Opening {
        self.disk.opening
    }

    /// Greatest version; `None` before the first write.
    pub fn last_version(&self) -> Option<Version> {
        Version::new(self.disk.last_version)
    }

    /// Snapshots, oldest first.
    pub fn snapshots(&self) -> impl Iterator<Item = (SnapshotId, &BlockSnapshot)> {
        self.disk.snapshots.iter().map(|(id, it)| (*id, it))
    }

    /// Map of the volume or a snapshot.
    pub fn map(&self, view: View) -> Option<&Map> {
        match view {
            View::Current => Some(&self.disk.current),
            View::Snapshot(id) => self.disk.snapshots.get(&id).map(|it| &it.map),
        }
    }

    /// Maps of the volume and of its snapshots.
    pub fn maps(&self) -> impl Iterator<Item = &Map> {
        let snapshots = self.disk.snapshots.values().map(|it| &it.map);
        std::iter::once(&self.disk.current).chain(snapshots)
    }

    /// Versions of a block whose content is at another site, in the volume or in a snapshot.
    pub fn absent(&self, block: BlockNo) -> impl Iterator<Item = Version> + '_ {
        let entries = self.maps().filter_map(move |map| map.get(block));
        entries.filter_map(|entry| (entry.content == Content::Away).then_some(entry.version))
    }

    /// Position of the next record in the log.
    pub fn next_lsn(&self) -> Lsn {
        self.log.next
    }

    /// First record that may not be durable.
    pub fn flushed(&self) -> Lsn {
        self.log.flushed
    }

    /// Notes that records before this one are durable.
    pub fn mark_flushed(&mut self, before: Lsn) {
        self.log.flushed = self.log.flushed.max(before.min(self.log.next));
    }

    /// Position of the next record; `None` before the first segment.
    pub fn position(&self) -> Option<Position> {
        self.log.position
    }

    /// Segments with blocks that may be needed, and the one being written.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentPlace, Sequence)> + '_ {
        self.log.segments.iter().map(|(place, it)| (*place, *it))
    }

    /// Segment at a place.
    pub fn segment(&self, place: SegmentPlace) -> Option<Sequence> {
        self.log.segments.get(&place).copied()
    }

    /// Plans the segment after the one being written. The caller writes its header, then calls
    /// [`Self::begin_segment`].
    pub fn next_segment(&self) -> Result<SegmentHeader, ChangeRefusal> {
        let taken = self.log.segments.keys().map(|place| place.0);
        let free = (0..self.geometry().places())
            .zip(taken.map(Some).chain(std::iter::repeat(None)))
            .find(|(place, taken)| Some(*place) != *taken);
        let (place, _) = free.ok_or(ChangeRefusal::LogFull)?;
        let last = self.log.position.map_or(0, |it| it.sequence.0);
        Ok(SegmentHeader {
            volume: self.id(),
            place: SegmentPlace(place),
            sequence: Sequence(last + 1),
            first: self.log.next,
        })
    }

    /// Goes on in a segment whose header is written.
    pub fn begin_segment(&mut self, header: &SegmentHeader) {
        self.log.segments.insert(header.place, header.sequence);
        self.log.position = Some(Position {
            place: header.place,
            sequence: header.sequence,
            next: SlotIndex(0),
        });
    }

    /// Applies a batch whose bytes are written, and returns its buffer.
    ///
    /// Batches are committed in the order in which they were staged, one before the next is
    /// staged. Fails only if they were not, and changes nothing then.
    pub fn commit(&mut self, staged: Staged) -> Result<Vec<u8>, Damage> {
        let Staged { bytes, at, records } = staged;
        let stale = |lsn| Damage::Contradiction {
            lsn,
            segment: at.sequence,
            why: "another batch was committed in between",
        };
        if self.log.position != Some(at)
            || records.first().is_some_and(|it| it.0.lsn != self.log.next)
        {
            return Err(stale(self.log.next));
        }
        for (stamp, record) in records {
            self.apply(stamp, record)?;
        }
        Ok(bytes)
    }

    /// Applies a record that is in the slot at the log's position.
    pub(crate) fn apply(&mut self, stamp: Stamp, record: Record) -> Result<(), Damage> {
        let Some(position) = &mut self.log.position else {
            return Err(Damage::MissingSegment(Sequence(0)));
        };
        let contradiction = |why| Damage::Contradiction {
            lsn: stamp.lsn,
            segment: position.sequence,
            why,
        };
        if stamp.lsn != self.log.next {
            return Err(contradiction("it is not the next record"));
        }
        let slot = self.slots.geometry().slot(position.place, position.next);
        self.disk
            .apply(stamp.epoch, record, slot)
            .map_err(contradiction)?;
        position.next.0 += 1;
        self.log.next = self.log.next.next();
        Ok(())
    }

    /// Forgets segments that a stored checkpoint does without. Their files may be removed once
    /// no read is under way in them.
    pub fn retire(&mut self, places: &[SegmentPlace]) {
        for place in places {
            self.log.segments.remove(place);
        }
    }
}

impl Disk {
    fn apply(
        &mut self,
        epoch: WriterEpoch,
        record: Record,
        slot: LogSlot,
    ) -> Result<(), &'static str> {
        let blocks = self.current.blocks();
        match record {
            Record::Write { block, version } => {
                self.writes(epoch, version)?;
                if block.0 >= blocks.0 {
                    return Err("its block is beyond the end");
                }
                let content = Content::Slot(slot);
                self.current.set(block, MapEntry { version, content });
            }
            Record::Zero { version, ranges } => {
                self.writes(epoch, version)?;
                for (first, count) in ranges {
                    self.current.zero(first, count, version);
                }
            }
            Record::Away { version, ranges } => {
                self.admit_epoch(epoch)?;
                self.last_version = self.last_version.max(version.number());
                for (first, count) in ranges {
                    self.current.away(first, count, version);
                }
            }
            Record::Moved { block, version } => {
                let content = Content::Slot(slot);
                let snapshots = self.snapshots.values_mut().map(|it| &mut it.map);
                let maps = std::iter::once(&mut self.current).chain(snapshots);
                Map::moved(maps, block, MapEntry { version, content });
            }
            Record::Opened if epoch > self.epoch => {
                self.epoch = epoch;
                self.opening = Opening::Open;
            }
            Record::Opened => return Err("its epoch is not new"),
            Record::Closed if epoch == self.epoch => self.opening = Opening::Closed,
            Record::Closed => return Err("its writer is fenced"),
            Record::Snapshot { id, name } => {
                if id.0 <= self.last_snapshot {
                    return Err("its number is not new");
                }
                self.last_snapshot = id.0;
                let map = self.current.clone();
                self.snapshots.insert(id, BlockSnapshot { name, map });
            }
            Record::Dropped { id } => {
                let removed = self.snapshots.remove(&id);
                removed.ok_or("there is no such snapshot")?;
            }
            Record::Resized { blocks } => self.current.resize(blocks),
        }
        Ok(())
    }

    fn admit_epoch(&self, epoch: WriterEpoch) -> Result<(), &'static str> {
        match epoch == self.epoch && self.opening == Opening::Open {
            true => Ok(()),
            false => Err("its writer is fenced"),
        }
    }

    fn writes(&mut self, epoch: WriterEpoch, version: Version) -> Result<(), &'static str> {
        self.admit_epoch(epoch)?;
        if version.number() <= self.last_version {
            return Err("its version is not new");
        }
        self.last_version = version.number();
        Ok(())
    }

    /// Checks that a writer may write up to a block.
    pub(crate) fn admit(&self, epoch: WriterEpoch, end: BlockNo) -> Result<(), ChangeRefusal> {
        if epoch != self.epoch || self.opening != Opening::Open {
            return Err(ChangeRefusal::Fenced {
                given: epoch,
                current: self.epoch,
            });
        }
        let blocks: Blocks = self.current.blocks();
        match end.0 <= blocks.0 {
            true => Ok(()),
            false => Err(ChangeRefusal::BeyondEnd { block: end, blocks }),
        }
    }
}
