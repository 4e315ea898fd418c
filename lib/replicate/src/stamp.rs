//! Versions across sites, and the map of them.

use forkyard_volume::{BlockNo, Version, WriterEpoch};
use std::collections::BTreeMap;

/// Site: a place with a store of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(u8);

impl SiteId {
    /// Site of a number below 32.
    pub fn new(number: u8) -> Option<Self> {
        (number < 32).then_some(Self(number))
    }

    /// Returns its number.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Set of sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sites(u32);

impl Sites {
    /// Set of one.
    pub fn only(site: SiteId) -> Self {
        Self(1 << site.0)
    }

    /// Adds a site.
    pub fn insert(&mut self, site: SiteId) {
        self.0 |= 1 << site.0;
    }

    /// True if the site is in the set.
    pub fn contains(self, site: SiteId) -> bool {
        self.0 & 1 << site.0 != 0
    }

    /// Sites of the set.
    pub fn iter(self) -> impl Iterator<Item = SiteId> {
        (0..32).map(SiteId).filter(move |it| self.contains(*it))
    }
}

/// Identity of one content of a block.
///
/// A writer that is replaced and its successor count versions from the same one on; the epoch
/// tells theirs apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stamp {
    /// Epoch of the writer.
    pub epoch: WriterEpoch,
    /// Version.
    pub version: Version,
}

/// Latest content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEntry {
    /// Identity of it.
    pub stamp: Stamp,
    /// Sites that have it.
    pub holders: Sites,
}

/// Latest contents of all written blocks, as of a close.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GlobalMap {
    entries: BTreeMap<BlockNo, BlockEntry>,
    /// Number of the greatest version; 0 before the first write.
    last: u64,
}

impl GlobalMap {
    /// Looks a block up; `None` if it was never written.
    pub fn get(&self, block: BlockNo) -> Option<BlockEntry> {
        self.entries.get(&block).copied()
    }

    /// Notes a content.
    pub fn set(&mut self, block: BlockNo, entry: BlockEntry) {
        self.last = self.last.max(entry.stamp.version.number());
        self.entries.insert(block, entry);
    }

    /// Puts back what was before a content that is lost.
    pub(crate) fn put_back(&mut self, block: BlockNo, entry: Option<BlockEntry>, last: u64) {
        match entry {
            Some(entry) => self.entries.insert(block, entry),
            None => self.entries.remove(&block),
        };
        self.last = last;
    }

    pub(crate) fn add_holder(&mut self, block: BlockNo, stamp: Stamp, site: SiteId) {
        if let Some(entry) = self.entries.get_mut(&block)
            && entry.stamp == stamp
        {
            entry.holders.insert(site);
        }
    }

    /// Number of the greatest version.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Written blocks, in order.
    pub fn iter(&self) -> impl Iterator<Item = (BlockNo, BlockEntry)> + '_ {
        self.entries.iter().map(|(block, entry)| (*block, *entry))
    }

    /// Entries that were written after an epoch: what a site lacks that knows the map of then.
    pub fn since(&self, epoch: WriterEpoch) -> Vec<(BlockNo, BlockEntry)> {
        self.iter().filter(|it| it.1.stamp.epoch > epoch).collect()
    }
}

/// Number of an opening, which a site uses once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpeningId(pub u64);
