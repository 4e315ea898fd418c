//! Segments worth emptying.
//!
//! The caller appends [`crate::Change::Move`] for every live slot of the victims, flushes, stores
//! a checkpoint without them, retires them and removes their files. A crash before the checkpoint
//! leaves both copies, and one after it files that nothing refers to.

use crate::{
    map::{Map, slots},
    units::{LogSlot, SegmentPlace, Sequence, SlotIndex},
    volume::Volume,
};
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

/// Limits on what is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionPolicy {
    /// Least share of the whole log that must be dead, in percent, for live slots to be moved.
    pub dead_percent: u32,
    /// Most segments that are emptied at once. Those without live slots do not count.
    pub most: usize,
}

impl CompactionPolicy {
    /// Nothing is moved: segments without live slots alone.
    pub const UNUSED: Self = Self {
        dead_percent: 0,
        most: 0,
    };
    /// Half of the log may be dead; a quarter of a gibibyte is looked at in one go.
    pub const USUAL: Self = Self {
        dead_percent: 50,
        most: 4,
    };
}

/// Segments to empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionPlan {
    /// Segments.
    pub victims: Vec<Victim>,
}

/// Segment to empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Place among slots.
    pub place: SegmentPlace,
    /// Segment.
    pub sequence: Sequence,
    /// Slots that are needed.
    pub live: Vec<SlotIndex>,
}

/// Plans a compaction. The segment being written is left alone.
pub fn plan(volume: &Volume, policy: CompactionPolicy) -> CompactionPlan {
    let live = live_slots(volume);
    let slots = u64::from(volume.geometry().slots());
    let current = volume.log.position.map(|it| it.place);
    let sealed = volume.segments().filter(|it| Some(it.0) != current);
    let mut victims: Vec<_> = sealed
        .map(|(place, sequence)| Victim {
            place,
            sequence,
            live: live.get(&place).cloned().unwrap_or_default(),
        })
        .collect();
    victims.sort_by_key(|it| it.live.len());
    let whole = victims.len() as u64 * slots;
    let needed: u64 = victims.iter().map(|it| it.live.len() as u64).sum();
    let dead = whole - needed.min(whole);
    let worth = dead * 100 >= whole * u64::from(policy.dead_percent);
    let empty = victims.iter().take_while(|it| it.live.is_empty()).count();
    let fullest = volume.geometry().slots() / 4 * 3;
    let partly = victims[empty..]
        .iter()
        .take_while(|it| it.live.len() as u64 <= u64::from(fullest))
        .count();
    let moved = if worth { partly.min(policy.most) } else { 0 };
    victims.truncate(empty + moved);
    CompactionPlan { victims }
}

fn live_slots(volume: &Volume) -> BTreeMap<SegmentPlace, Vec<SlotIndex>> {
    let snapshots = volume.disk.snapshots.values().map(|it| &it.map);
    let maps = std::iter::once(&volume.disk.current).chain(snapshots);
    let mut seen = HashSet::new();
    let mut found: Vec<LogSlot> = Vec::new();
    for chunk in maps.flat_map(Map::chunks).flatten() {
        if seen.insert(Arc::as_ptr(chunk)) {
            found.extend(slots(chunk));
        }
    }
    found.sort_unstable();
    found.dedup();
    let mut live: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for slot in found {
        let (place, index) = volume.geometry().split(slot);
        live.entry(place).or_default().push(index);
    }
    live
}
