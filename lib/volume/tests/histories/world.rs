//! A log in memory that crashes, beside a single copy that does not.

use fastrand::Rng;
use forkyard_volume::{
    BLOCK_BYTES, Batch, BlockNo, Blocks, Change, ChangeRefusal, Cipher, CompactionPlan,
    CompactionPolicy, Content, Damage, Geometry, KEY_BYTES, Lsn, Map, Opening, Range, Recovery,
    SegmentNeed, Sequence, SlotIndex, Tail, Takeover, Version, View, Volume, VolumeId, WriterEpoch,
    plan,
};
use std::collections::BTreeMap;

pub const BLOCKS: u64 = 40;

/// Content of a block: a number, repeated. Zero if it is zero.
pub type Value = u64;

/// Everything that a volume should say after a record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Truth {
    pub blocks: Vec<Value>,
    pub snapshots: BTreeMap<String, Vec<Value>>,
    pub epoch: u32,
    pub open: bool,
}

#[derive(Debug)]
pub struct World {
    pub rng: Rng,
    /// Key, if its blocks are encrypted.
    pub key: Option<[u8; KEY_BYTES]>,
    pub volume: Volume,
    pub files: BTreeMap<Sequence, Vec<u8>>,
    pub checkpoint: Vec<u8>,
    /// Bytes of each file that no crash takes.
    pub durable: BTreeMap<Sequence, usize>,
    pub truth: Truth,
    /// Contents at another site, by the versions that they have here.
    pub elsewhere: BTreeMap<(u64, Version), Value>,
    /// Contents that were fetched.
    pub fetched: u32,
    /// Truth before each record.
    pub past: BTreeMap<Lsn, Truth>,
    buffer: Vec<u8>,
    value: Value,
}

fn block(value: Value) -> [u8; BLOCK_BYTES] {
    let mut bytes = [0; BLOCK_BYTES];
    for word in bytes.as_chunks_mut::<8>().0 {
        *word = value.to_le_bytes();
    }
    bytes
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let id = VolumeId(rng.u128(..).to_le_bytes());
        let geometry = Geometry::new(3).expect("eight slots");
        let (geometry, key) = match seed % 2 {
            0 => (geometry, None),
            _ => (geometry.sealed(), Some([7; KEY_BYTES])),
        };
        let mut volume = Volume::create(id, Blocks(BLOCKS), geometry);
        if let Some(key) = &key {
            volume.unlock(Cipher::new(key));
        }
        let checkpoint = volume.checkpoint(&[]);
        let blocks = usize::try_from(BLOCKS).expect("few");
        Self {
            rng,
            key,
            volume,
            files: BTreeMap::new(),
            checkpoint,
            durable: BTreeMap::new(),
            truth: Truth {
                blocks: vec![0; blocks],
                ..Truth::default()
            },
            elsewhere: BTreeMap::new(),
            fetched: 0,
            past: BTreeMap::new(),
            buffer: Vec::new(),
            value: 0,
        }
    }

    /// Makes some changes in one batch, and tells the truth about them.
    pub fn change(
        &mut self,
        changes: &[Change<'_>],
        mut tell: impl FnMut(&mut Truth, usize),
    ) -> Result<(), ChangeRefusal> {
        for (number, change) in changes.iter().enumerate() {
            let mut batch = Batch::begin(&self.volume, std::mem::take(&mut self.buffer));
            match batch.push(*change) {
                Err(ChangeRefusal::SegmentFull) => {
                    let header = self.volume.next_segment()?;
                    self.files.insert(header.sequence, header.encode().to_vec());
                    self.volume.begin_segment(&header);
                    let mut again = Batch::begin(&self.volume, Vec::new());
                    again.push(*change)?;
                    self.write(again.finish().expect("one record"));
                }
                outcome => {
                    outcome?;
                    let staged = batch.finish().expect("one record");
                    self.write(staged);
                }
            }
            let before = Lsn(self.volume.next_lsn().0 - 1);
            self.past.insert(before, self.truth.clone());
            tell(&mut self.truth, number);
        }
        Ok(())
    }

    fn write(&mut self, staged: forkyard_volume::Staged) {
        let at = staged.position();
        let file = self.files.get_mut(&at.sequence).expect("its segment");
        let end = at.offset(self.volume.geometry());
        assert_eq!(file.len() as u64, end, "nothing but appends");
        file.extend_from_slice(staged.bytes());
        self.buffer = self.volume.commit(staged).expect("in order");
    }

    pub fn flush(&mut self) {
        for (sequence, bytes) in &self.files {
            self.durable.insert(*sequence, bytes.len());
        }
        self.volume.mark_flushed(self.volume.next_lsn());
    }

    pub fn store_checkpoint(&mut self, without: &CompactionPlan) {
        self.flush();
        let places: Vec<_> = without.victims.iter().map(|it| it.place).collect();
        self.checkpoint = self.volume.checkpoint(&places);
        self.volume.retire(&places);
        for victim in &without.victims {
            // A crash may come before the file is removed.
            if self.rng.bool() {
                self.files.remove(&victim.sequence);
                self.durable.remove(&victim.sequence);
            }
        }
    }

    pub fn compact(&mut self) {
        let policy = CompactionPolicy {
            dead_percent: self.rng.u32(0..60),
            most: 3,
        };
        let plan = plan(&self.volume, policy);
        for victim in &plan.victims {
            for index in &victim.live {
                let mut slot = self.slot(victim.sequence, *index);
                let (slots, at) = (self.volume.slots().clone(), (victim.place, *index));
                let found = slots.block(&mut slot, victim.sequence, at);
                let (block, version, data) = found.expect("whole");
                let change = Change::Move {
                    block,
                    version,
                    data,
                };
                self.change(&[change], |_, _| {}).expect("room");
            }
        }
        if self.rng.u8(..10) > 0 {
            self.store_checkpoint(&plan);
        }
    }

    /// Blocks are written elsewhere, and are not sent here.
    fn leave_away(&mut self, epoch: WriterEpoch, open: bool) {
        let count = self.rng.u64(1..12);
        let first = self.rng.u64(0..BLOCKS - count);
        let values: Vec<_> = (1..=count).map(|it| self.value + it).collect();
        let ranges = &[Range {
            first: BlockNo(first),
            count,
        }];
        let version = Version::new(self.volume.last_version().map_or(0, Version::number) + 1);
        let change = Change::Away {
            epoch,
            version: None,
            ranges,
        };
        let left = self.change(&[change], |truth, _| {
            let first = usize::try_from(first).expect("few");
            truth.blocks[first..][..values.len()].copy_from_slice(&values);
        });
        assert_eq!(left.is_ok(), open, "{left:?}");
        if left.is_ok() {
            self.value += count;
            let version = version.expect("few");
            let away = (first..)
                .zip(values)
                .map(|(it, value)| ((it, version), value));
            self.elsewhere.extend(away);
        }
    }

    /// Fetches some of the blocks that are elsewhere, of the volume and of snapshots.
    fn fetch(&mut self) {
        let absent: Vec<_> = self.volume.maps().flat_map(Map::absent).collect();
        for _ in 0..self.rng.u32(1..6) {
            let Some((at, version)) = self.rng.choice(absent.iter().copied()) else {
                return;
            };
            let data = &block(self.elsewhere[&(at.0, version)]);
            let change = Change::Move {
                block: at,
                version,
                data,
            };
            self.change(&[change], |_, _| {}).expect("room");
            assert!(self.volume.absent(at).all(|it| it != version), "{at} came");
            self.fetched += 1;
        }
    }

    /// Anything that users do.
    pub fn something(&mut self) {
        let epoch = self.volume.epoch();
        let open = self.volume.opening() == Opening::Open;
        match self.rng.u8(0..100) {
            0..50 => {
                let count = self.rng.u64(1..6);
                let first = self.rng.u64(0..BLOCKS - count);
                let values: Vec<_> = (1..=count).map(|it| self.value + it).collect();
                self.value += count;
                let data: Vec<_> = values.iter().map(|value| block(*value)).collect();
                let changes: Vec<_> = (first..)
                    .zip(&data)
                    .map(|(block, data)| Change::Write {
                        epoch,
                        block: BlockNo(block),
                        data,
                    })
                    .collect();
                let written = self.change(&changes, |truth, number| {
                    truth.blocks[usize::try_from(first).expect("few") + number] = values[number];
                });
                assert_eq!(written.is_ok(), open, "{written:?}");
            }
            50..60 => {
                let count = self.rng.u64(1..12);
                let first = self.rng.u64(0..BLOCKS - count);
                let range = Range {
                    first: BlockNo(first),
                    count,
                };
                let ranges = &[range];
                let zeroed = self.change(&[Change::Zero { epoch, ranges }], |truth, _| {
                    let first = usize::try_from(first).expect("few");
                    truth.blocks[first..][..usize::try_from(count).expect("few")].fill(0);
                });
                assert_eq!(zeroed.is_ok(), open);
            }
            60..64 => self.flush(),
            64..67 => self.leave_away(epoch, open),
            67..70 => self.fetch(),
            70..76 => {
                let next = WriterEpoch(epoch.0 + self.rng.u32(1..3));
                let takeover = match self.rng.bool() {
                    true => Takeover::Allowed,
                    false => Takeover::Refused,
                };
                let change = Change::Open {
                    epoch: next,
                    takeover,
                };
                let opened = self.change(&[change], |truth, _| {
                    (truth.epoch, truth.open) = (next.0, true);
                });
                assert_eq!(opened.is_ok(), !open || takeover == Takeover::Allowed);
                // The former writer is fenced, whatever it tries.
                let data = &block(7);
                let late = Change::Write {
                    epoch,
                    block: BlockNo(0),
                    data,
                };
                if opened.is_ok() {
                    let refused = self.change(&[late], |_, _| {});
                    assert!(matches!(refused, Err(ChangeRefusal::Fenced { .. })));
                }
            }
            76..78 => {
                let closed = self.change(&[Change::Close { epoch }], |truth, _| truth.open = false);
                assert_eq!(closed.is_ok(), open);
            }
            78..84 => {
                let name = format!("s{}", self.rng.u8(0..4));
                let taken = self.truth.snapshots.contains_key(&name);
                let kept = self.change(&[Change::Snapshot { name: &name }], |truth, _| {
                    truth.snapshots.insert(name.clone(), truth.blocks.clone());
                });
                assert_eq!(kept.is_ok(), !taken);
            }
            84..88 => {
                let known = self.volume.snapshots();
                let known: Vec<_> = known.map(|(id, it)| (id, it.name.clone())).collect();
                if let Some((id, name)) = self.rng.choice(known) {
                    let change = Change::Drop { id };
                    self.change(&[change], |truth, _| {
                        truth.snapshots.remove(&name);
                    })
                    .expect("it is there");
                }
            }
            88..92 => self.store_checkpoint(&CompactionPlan::default()),
            _ => self.compact(),
        }
    }

    /// Bytes of a slot, as many as there are.
    fn slot(&self, sequence: Sequence, index: SlotIndex) -> Vec<u8> {
        let (file, geometry) = (&self.files[&sequence], self.volume.geometry());
        let start = usize::try_from(geometry.offset(index)).expect("small");
        let start = start.min(file.len());
        let end = (start + geometry.slot_bytes()).min(file.len());
        file[start..end].to_vec()
    }

    /// Content of a block, read and checked.
    pub fn read(&self, map: &Map, block: BlockNo) -> Result<Value, Damage> {
        let Some(entry) = map.get(block) else {
            return Ok(0);
        };
        match entry.content {
            Content::Slot(_) => {}
            Content::Zero => return Ok(0),
            Content::Away => return Ok(self.elsewhere[&(block.0, entry.version)]),
        }
        let data = self.content(map, block)?;
        let value = u64::from_le_bytes(*data.first_chunk().expect("long enough"));
        assert_eq!(data, self::block(value), "bytes of two writes");
        Ok(value)
    }

    /// Bytes of a block that is in a slot.
    pub fn content(&self, map: &Map, block: BlockNo) -> Result<Vec<u8>, Damage> {
        let entry = map.get(block).expect("written");
        let Content::Slot(slot) = entry.content else {
            panic!("{block} is in no slot");
        };
        let (place, index) = self.volume.geometry().split(slot);
        let sequence = self
            .volume
            .segment(place)
            .expect("segments of slots are known");
        let mut slot = self.slot(sequence, index);
        let expected = (block, entry.version);
        let slots = self.volume.slots();
        let data = slots.read(&mut slot, sequence, (place, index), expected)?;
        Ok(data.to_vec())
    }

    fn read_all(&self, map: &Map) -> Result<Vec<Value>, Damage> {
        (0..BLOCKS).map(|it| self.read(map, BlockNo(it))).collect()
    }

    /// Reads the volume's content from its files.
    pub fn told(&self) -> Result<Truth, Damage> {
        let mut snapshots = BTreeMap::new();
        for (_, snapshot) in self.volume.snapshots() {
            snapshots.insert(snapshot.name.clone(), self.read_all(&snapshot.map)?);
        }
        let current = self.volume.map(View::Current).expect("always there");
        Ok(Truth {
            blocks: self.read_all(current)?,
            snapshots,
            epoch: self.volume.epoch().0,
            open: self.volume.opening() == Opening::Open,
        })
    }

    /// Starts anew from what is in the files.
    pub fn recover(&mut self) -> Result<(), Damage> {
        let mut recovery = Recovery::begin(&self.checkpoint)?;
        let mut strays = Vec::new();
        for (sequence, bytes) in &self.files {
            let index = match recovery.wants(*sequence) {
                SegmentNeed::Kept => continue,
                SegmentNeed::Stray => {
                    strays.push(*sequence);
                    continue;
                }
                SegmentNeed::From(index) => index,
            };
            recovery.segment(*sequence, bytes)?;
            let geometry = self.volume.geometry();
            let start = usize::try_from(geometry.offset(index)).expect("small");
            let start = start.min(bytes.len());
            for slot in bytes[start..].chunks(geometry.slot_bytes()) {
                recovery.slot(slot)?;
            }
        }
        let recovered = recovery.finish(|sequence| self.files.contains_key(&sequence))?;
        self.volume = recovered.volume;
        if let Some(key) = &self.key {
            self.volume.unlock(Cipher::new(key));
        }
        self.files.retain(|it, _| !strays.contains(it));
        match recovered.tail {
            Tail::Segments(last) => self.files.retain(|it, _| *it <= last),
            Tail::At(at) => {
                self.files.retain(|it, _| *it <= at.sequence);
                let file = self.files.get_mut(&at.sequence).expect("present");
                let geometry = self.volume.geometry();
                file.truncate(usize::try_from(at.offset(geometry)).expect("small"));
            }
        }
        self.durable.clear();
        self.flush();
        let next = self.volume.next_lsn();
        if let Some(then) = self.past.get(&next) {
            self.truth = then.clone();
        }
        self.past.retain(|it, _| *it < next);
        Ok(())
    }
}
