//! Changes on their way into the log.

use crate::{
    ChangeRefusal,
    record::{BlockData, MOST_RANGES, Record, Stamp},
    units::{BlockNo, Blocks, Lsn, SnapshotId, Version, WriterEpoch},
    volume::{Opening, Position, Takeover, Volume},
};

/// Change to a volume.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Writes a block.
    Write {
        /// Epoch of the writer.
        epoch: WriterEpoch,
        /// Block.
        block: BlockNo,
        /// Content.
        data: &'a BlockData,
    },
    /// Has blocks read as zero.
    Zero {
        /// Epoch of the writer.
        epoch: WriterEpoch,
        /// Blocks.
        ranges: &'a [Range],
    },
    /// Notes that the content of blocks is at another site.
    Away {
        /// Epoch of the writer.
        epoch: WriterEpoch,
        /// Version that they had here before; a new one if there is none.
        version: Option<Version>,
        /// Blocks.
        ranges: &'a [Range],
    },
    /// Copies a version of a block to the end of the log, from there or from another site.
    Move {
        /// Block.
        block: BlockNo,
        /// Version that is copied.
        version: Version,
        /// Content.
        data: &'a BlockData,
    },
    /// Begins a writer.
    Open {
        /// Epoch of the writer, greater than all before it.
        epoch: WriterEpoch,
        /// Permission to fence the one there is.
        takeover: Takeover,
    },
    /// Ends the writer.
    Close {
        /// Epoch of the writer.
        epoch: WriterEpoch,
    },
    /// Keeps everything as it is.
    Snapshot {
        /// Name to keep it under.
        name: &'a str,
    },
    /// Removes a snapshot.
    Drop {
        /// Snapshot.
        id: SnapshotId,
    },
    /// Changes the size.
    Resize {
        /// New size.
        blocks: Blocks,
    },
}

/// Run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First block.
    pub first: BlockNo,
    /// Number of blocks.
    pub count: u64,
}

/// Records to append in one write, all in one segment.
///
/// Everything but writes, zeroes, moves and notes of what is away stands alone in its batch.
#[derive(Debug)]
pub struct Batch<'a> {
    volume: &'a Volume,
    bytes: Vec<u8>,
    records: Vec<(Stamp, Record)>,
    last_version: u64,
    alone: bool,
}

/// Batch ready to be written.
#[derive(Debug)]
pub struct Staged {
    pub(crate) bytes: Vec<u8>,
    pub(crate) at: Position,
    pub(crate) records: Vec<(Stamp, Record)>,
}

impl Staged {
    /// Bytes to write at the volume's position, before anything else.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Segment and offset to write them at.
    pub fn position(&self) -> Position {
        self.at
    }
}

impl<'a> Batch<'a> {
    /// Begins a batch in a buffer, which is emptied.
    pub fn begin(volume: &'a Volume, mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        Self {
            volume,
            bytes: buffer,
            records: Vec::new(),
            last_version: volume.disk.last_version,
            alone: false,
        }
    }

    /// Number of records that fit in still.
    pub fn room(&self) -> usize {
        let slots = self.volume.geometry().slots();
        let next = self.volume.log.position.map_or(slots, |it| it.next.0);
        let free = usize::try_from(slots - next).unwrap_or(0);
        if self.alone {
            0
        } else {
            free - self.records.len()
        }
    }

    /// Adds a change. Refused with [`ChangeRefusal::SegmentFull`] if there is no room.
    pub fn push(&mut self, change: Change<'_>) -> Result<(), ChangeRefusal> {
        let disk = &self.volume.disk;
        let (epoch, record, data) = match change {
            Change::Write { epoch, block, data } => {
                disk.admit(epoch, BlockNo(block.0.saturating_add(1)))?;
                let version = self.version()?;
                (epoch, Record::Write { block, version }, Some(data))
            }
            Change::Zero { epoch, ranges } => {
                if ranges.len() > MOST_RANGES {
                    return Err(ChangeRefusal::TooManyRanges(ranges.len()));
                }
                for range in ranges {
                    disk.admit(epoch, BlockNo(range.first.0.saturating_add(range.count)))?;
                }
                let ranges = ranges.iter().map(|it| (it.first, it.count)).collect();
                let version = self.version()?;
                (epoch, Record::Zero { version, ranges }, None)
            }
            Change::Away {
                epoch,
                version,
                ranges,
            } => {
                if ranges.len() > MOST_RANGES {
                    return Err(ChangeRefusal::TooManyRanges(ranges.len()));
                }
                for range in ranges {
                    disk.admit(epoch, BlockNo(range.first.0.saturating_add(range.count)))?;
                }
                let ranges = ranges.iter().map(|it| (it.first, it.count)).collect();
                let version = match version {
                    Some(version) => version,
                    None => self.version()?,
                };
                (epoch, Record::Away { version, ranges }, None)
            }
            Change::Move {
                block,
                version,
                data,
            } => (disk.epoch, Record::Moved { block, version }, Some(data)),
            Change::Open { .. }
            | Change::Close { .. }
            | Change::Snapshot { .. }
            | Change::Drop { .. }
            | Change::Resize { .. } => return self.push_alone(change),
        };
        self.append(epoch, record, data)
    }

    fn push_alone(&mut self, change: Change<'_>) -> Result<(), ChangeRefusal> {
        if !self.records.is_empty() {
            return Err(ChangeRefusal::SegmentFull);
        }
        let disk = &self.volume.disk;
        let current = disk.epoch;
        let (epoch, record) = match change {
            Change::Open { epoch, takeover } => {
                match (disk.opening, takeover) {
                    (Opening::Open, Takeover::Refused) => return Err(ChangeRefusal::Open(current)),
                    (Opening::Closed, _) | (Opening::Open, Takeover::Allowed) => {}
                }
                let given = epoch;
                if given <= current {
                    return Err(ChangeRefusal::StaleEpoch { given, current });
                }
                (epoch, Record::Opened)
            }
            Change::Close { epoch } => {
                disk.admit(epoch, BlockNo(0))?;
                (epoch, Record::Closed)
            }
            Change::Snapshot { name } => {
                check_name(name)?;
                if disk.snapshots.values().any(|it| it.name == name) {
                    return Err(ChangeRefusal::NameTaken(name.to_owned()));
                }
                let number = disk.last_snapshot.checked_add(1);
                let id = SnapshotId(number.ok_or(ChangeRefusal::Exhausted("snapshot numbers"))?);
                let name = name.to_owned();
                (current, Record::Snapshot { id, name })
            }
            Change::Drop { id } => {
                if !disk.snapshots.contains_key(&id) {
                    return Err(ChangeRefusal::NoSnapshot(id));
                }
                (current, Record::Dropped { id })
            }
            Change::Resize { blocks } => {
                let shrinks = blocks < disk.current.blocks();
                if shrinks && disk.opening == Opening::Open {
                    return Err(ChangeRefusal::Open(current));
                }
                (current, Record::Resized { blocks })
            }
            Change::Write { .. }
            | Change::Zero { .. }
            | Change::Away { .. }
            | Change::Move { .. } => {
                return self.push(change);
            }
        };
        self.append(epoch, record, None)?;
        self.alone = true;
        Ok(())
    }

    /// Next version. Counted by [`Self::append`].
    fn version(&self) -> Result<Version, ChangeRefusal> {
        Version::new(self.last_version + 1).ok_or(ChangeRefusal::Exhausted("versions"))
    }

    fn append(
        &mut self,
        epoch: WriterEpoch,
        record: Record,
        data: Option<&BlockData>,
    ) -> Result<(), ChangeRefusal> {
        let Some(position) = self.volume.log.position.filter(|_| self.room() > 0) else {
            return Err(ChangeRefusal::SegmentFull);
        };
        if let Record::Write { version, .. }
        | Record::Zero { version, .. }
        | Record::Away { version, .. } = &record
        {
            self.last_version = self.last_version.max(version.number());
        }
        let log = &self.volume.log;
        let stamp = Stamp {
            epoch,
            lsn: Lsn(log.next.0 + self.records.len() as u64),
            flushed: log.flushed,
        };
        let (slots, sequence) = (&self.volume.slots, position.sequence);
        self.bytes.reserve(slots.geometry().slot_bytes());
        record.encode(stamp, (slots, sequence), data, &mut self.bytes)?;
        self.records.push((stamp, record));
        Ok(())
    }

    /// Ends the batch; `None` if it is empty.
    pub fn finish(self) -> Option<Staged> {
        let at = self.volume.log.position?;
        (!self.records.is_empty()).then_some(Staged {
            bytes: self.bytes,
            at,
            records: self.records,
        })
    }
}

fn check_name(name: &str) -> Result<(), ChangeRefusal> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match (1..=64).contains(&name.len()) && name.chars().all(fine) {
        true => Ok(()),
        false => Err(ChangeRefusal::Name(name.to_owned())),
    }
}
