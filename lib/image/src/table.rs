//! Layers of an image by page: looked up at once, however many layers
//! there are.
//!
//! A tree of fixed depth over the page numbers, shared between an image and the
//! images over it: a new image copies the leaves in which its own layer says
//! something and points to the others.
//!
//! ```text
//! root: a pointer for each 16 MiB --> node: 64 pointers --> leaf: 64 entries, 256 KiB
//! ```

use crate::index::Nth;
use forkyard_types::{PageCount, PageNo};
use std::sync::Arc;

/// Entries in a leaf, and leaves under a node.
const FAN: usize = 64;

/// Entry of a page in an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Zeros.
    #[default]
    Zero,
    /// The nth page of data of the layer with this number, counted from the
    /// bottom.
    Data { layer: u32, nth: Nth },
}

type Leaf = [Raw; FAN];
type Node = [Option<Arc<Leaf>>; FAN];

/// An entry in eight bytes: the layer's number in the upper half, all ones for
/// zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Raw(u64);

impl Raw {
    const ZERO: Self = Self(u64::MAX);
}

impl From<Entry> for Raw {
    fn from(entry: Entry) -> Self {
        match entry {
            Entry::Zero => Self::ZERO,
            Entry::Data { layer, nth } => Self(u64::from(layer) << 32 | u64::from(nth)),
        }
    }
}

impl From<Raw> for Entry {
    fn from(raw: Raw) -> Self {
        if raw == Raw::ZERO {
            return Self::Zero;
        }
        let bytes = raw.0.to_le_bytes();
        let half = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Self::Data {
            layer: half(4),
            nth: half(0),
        }
    }
}

/// The entries of an image. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    root: Vec<Option<Arc<Node>>>,
}

impl Table {
    pub fn get(&self, page: PageNo) -> Entry {
        let (root, node, leaf) = split(page);
        let node = self
            .root
            .get(root)
            .and_then(Option::as_ref)
            .and_then(|found| found[node].as_ref());
        node.map_or(Entry::Zero, |found| found[leaf].into())
    }

    pub fn set(&mut self, page: PageNo, entry: Entry) {
        let (root, node, leaf) = split(page);
        if self.root.len() <= root {
            if entry == Entry::Zero {
                return;
            }
            self.root.resize(root + 1, None);
        }
        let found = self.root[root].get_or_insert_with(|| Arc::new(std::array::from_fn(|_| None)));
        let found = Arc::make_mut(found)[node].get_or_insert_with(|| Arc::new([Raw::ZERO; FAN]));
        Arc::make_mut(found)[leaf] = entry.into();
    }

    /// Forgets what lies past the end of an image of this size.
    pub fn truncate(&mut self, size: PageCount) {
        let roots = size.0.div_ceil((FAN * FAN) as u64);
        self.root
            .truncate(usize::try_from(roots).unwrap_or(usize::MAX));
        let end = (self.root.len() * FAN * FAN) as u64;
        for page in size.0..end {
            if self.get(PageNo(page)) != Entry::Zero {
                self.set(PageNo(page), Entry::Zero);
            }
        }
    }

    /// The pages that are not zero, in order.
    pub fn data(&self) -> impl Iterator<Item = (PageNo, Entry)> {
        let nodes = self.root.iter().zip(0u64..);
        let nodes = nodes.filter_map(|(node, n)| Some((node.as_ref()?, n * (FAN * FAN) as u64)));
        let leaves = nodes.flat_map(|(node, start)| {
            let leaves = node.iter().zip(0u64..);
            leaves.filter_map(move |(leaf, n)| Some((leaf.as_ref()?, start + n * FAN as u64)))
        });
        leaves.flat_map(|(leaf, start)| {
            let entries = leaf.iter().zip(start..);
            entries.filter_map(|(raw, page)| match Entry::from(*raw) {
                Entry::Zero => None,
                entry @ Entry::Data { .. } => Some((PageNo(page), entry)),
            })
        })
    }

    /// Pages whose entries may differ, in order: those under leaves that the tables do not share.
    pub fn differing(&self, other: &Self) -> impl Iterator<Item = PageNo> {
        let roots = self.root.len().max(other.root.len());
        let nodes = (0..roots).filter_map(|root| {
            let node = |table: &Self| table.root.get(root).cloned().flatten();
            let (ours, theirs) = (node(self), node(other));
            (!same(ours.as_ref(), theirs.as_ref())).then_some((root, ours, theirs))
        });
        let leaves = nodes.flat_map(|(root, ours, theirs)| {
            (0..FAN).filter_map(move |leaf| {
                let of = |node: &Option<Arc<Node>>| node.as_ref().and_then(|it| it[leaf].clone());
                let differ = !same(of(&ours).as_ref(), of(&theirs).as_ref());
                differ.then_some((root * FAN + leaf) * FAN)
            })
        });
        leaves.flat_map(|first| (first..first + FAN).map(|page| PageNo(page as u64)))
    }

    /// Leaves that are this table's alone, for the tests of sharing.
    #[cfg(test)]
    pub fn own_leaves(&self) -> usize {
        let nodes = self.root.iter().flatten();
        nodes
            .map(|node| {
                let shared = Arc::strong_count(node) > 1;
                let leaves = node.iter().flatten();
                leaves
                    .filter(|leaf| !shared && Arc::strong_count(leaf) == 1)
                    .count()
            })
            .sum()
    }
}

fn same<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (Some(_), None) | (None, Some(_)) => false,
    }
}

fn split(page: PageNo) -> (usize, usize, usize) {
    // An image has at most 2³² pages, and so do all callers; more would not fit
    // into memory anyway.
    let page = usize::try_from(page.0).unwrap_or(usize::MAX);
    (page / (FAN * FAN), page / FAN % FAN, page % FAN)
}
