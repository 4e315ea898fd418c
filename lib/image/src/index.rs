//! Where each page of a layer is: sorted extents and a checksum a page.
//!
//! The one place that says what a valid index is; both the writer and the
//! reader go through [`Index::new`]. Touches no file.

use crate::format::{CHECKSUM_BYTES, Content, EXTENT_BYTES, Extent};
use crate::{Checksum, Flaw, Slot};
use forkyard_types::{PageCount, PageNo};

/// A layer's answer for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// Data from this slot on, with one checksum a page for the whole run.
    Data {
        slot: Slot,
        checksums: &'a [Checksum],
    },
    /// Zero, whatever the parent has.
    Zero,
    /// What the parent has.
    Absent,
}

/// A valid index.
#[derive(Debug)]
pub(crate) struct Index {
    extents: Vec<Extent>,
    /// For each extent, the place in `checksums` of its first page's.
    starts: Vec<usize>,
    checksums: Vec<Checksum>,
}

impl Index {
    /// Checks that `extents` are sorted, apart, inside `pages`, their data
    /// inside `slots`, and that there is a checksum for each page of data.
    pub fn new(
        extents: Vec<Extent>,
        checksums: Vec<Checksum>,
        pages: PageCount,
        slots: u64,
    ) -> Result<Self, Flaw> {
        let mut starts = Vec::with_capacity(extents.len());
        let (mut free, mut data) = (PageNo(0), 0u64);
        for extent in &extents {
            let first = extent.first;
            let misplaced = Flaw::Extent { first };
            let end = extent.end().ok_or(misplaced)?;
            if extent.pages.0 == 0 || first < free || end.0 > pages.0 {
                return Err(misplaced);
            }
            if let Content::Data(slot) = extent.content {
                let last = slot.checked_add(extent.pages);
                if last.is_none_or(|last| last.0 > slots) {
                    return Err(Flaw::Slot { first, slot });
                }
            }
            starts.push(usize::try_from(data).unwrap_or(usize::MAX));
            // The extents are apart and inside `pages`, so this cannot overflow.
            data += extent.data_pages();
            free = end;
        }
        if data != checksums.len() as u64 {
            let want = PageCount(checksums.len() as u64);
            return Err(Flaw::DataPages {
                have: PageCount(data),
                want,
            });
        }
        Ok(Self {
            extents,
            starts,
            checksums,
        })
    }

    /// Reads an index of so many extents; what follows them are checksums.
    pub fn decode(raw: &[u8], extents: usize, pages: PageCount, slots: u64) -> Result<Self, Flaw> {
        let split = extents.saturating_mul(EXTENT_BYTES).min(raw.len());
        let (head, tail) = raw.split_at(split);
        let extents = head.as_chunks().0.iter().map(Extent::decode).collect();
        let checksum = |bytes: &[u8; CHECKSUM_BYTES]| Checksum(u64::from_le_bytes(*bytes));
        let checksums = tail.as_chunks().0.iter().map(checksum).collect();
        Self::new(extents, checksums, pages, slots)
    }

    pub fn encode(&self) -> Vec<u8> {
        let extents = self.extents.iter().flat_map(Extent::encode);
        let checksums = self.checksums.iter().flat_map(|sum| sum.0.to_le_bytes());
        extents.chain(checksums).collect()
    }

    pub fn extents(&self) -> u64 {
        self.extents.len() as u64
    }

    pub fn data_pages(&self) -> PageCount {
        PageCount(self.checksums.len() as u64)
    }

    /// The answer for `page`, and for how many pages from it on it is the
    /// same; at most `max`, which must not be 0.
    pub fn answer(&self, page: PageNo, max: PageCount) -> (Answer<'_>, PageCount) {
        let next = self.extents.partition_point(|extent| extent.first <= page);
        let own = next.checked_sub(1).and_then(|i| {
            let extent = self.extents.get(i)?;
            let inside = page.0 - extent.first.0;
            let left = extent
                .pages
                .0
                .checked_sub(inside)
                .filter(|left| *left > 0)?;
            Some((extent, *self.starts.get(i)?, inside, left.min(max.0)))
        });
        let Some((extent, start, inside, run)) = own else {
            let free = self
                .extents
                .get(next)
                .map_or(u64::MAX, |after| after.first.0 - page.0);
            return (Answer::Absent, PageCount(free.min(max.0)));
        };
        let answer = match extent.content {
            Content::Zero => Answer::Zero,
            Content::Data(first) => {
                let slot = Slot(first.0 + inside);
                // Both fit: a `Vec` with one element for each exists.
                let from = start + usize::try_from(inside).unwrap_or(usize::MAX);
                let to = from + usize::try_from(run).unwrap_or(usize::MAX);
                Answer::Data {
                    slot,
                    checksums: &self.checksums[from..to],
                }
            }
        };
        (answer, PageCount(run))
    }
}
