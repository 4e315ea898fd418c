//! Places of a layer's pages: sorted extents, a checksum a page of data,
//! and the chunks that packed pages are in.
//!
//! The one place that says what a valid index is; both the writer and the
//! reader go through [`Index::new`]. Touches no file.

use crate::format::{
    CHECKSUM_BYTES, CHUNK_BYTES, CHUNK_PAGES, Chunk, Content, EXTENT_BYTES, Extent, Packed,
};
use crate::{Checksum, Flaw, Slot};
use forkyard_types::{PageCount, PageNo};

/// Number of one of a layer's pages of data, counted in the order of their pages.
pub(crate) type Nth = u32;

/// Place of a page of data in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// In a slot of its own.
    Slot(Slot),
    /// In a chunk.
    Packed(Packed),
}

/// Limits that an index must keep within.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub pages: PageCount,
    pub slots: u64,
    pub packed_bytes: u64,
    pub has_parent: bool,
}

/// A valid index.
#[derive(Debug)]
pub(crate) struct Index {
    extents: Vec<Extent>,
    /// For each extent, the place in `checksums` of its first page's.
    starts: Vec<Nth>,
    checksums: Vec<Checksum>,
    chunks: Vec<Chunk>,
}

impl Index {
    /// Checks that `extents` are sorted, apart, and inside their bounds, and
    /// that there is a checksum for each page of data.
    pub fn new(
        extents: Vec<Extent>,
        checksums: Vec<Checksum>,
        chunks: Vec<Chunk>,
        bounds: Bounds,
    ) -> Result<Self, Flaw> {
        for (chunk, number) in chunks.iter().zip(0..) {
            let end = chunk.offset.checked_add(u64::from(chunk.bytes));
            let inside = end.is_some_and(|end| end <= bounds.packed_bytes);
            let pages = usize::try_from(chunk.pages).unwrap_or(usize::MAX);
            if !inside || chunk.bytes == 0 || !(1..=CHUNK_PAGES).contains(&pages) {
                return Err(Flaw::Chunk { number });
            }
        }
        let mut starts = Vec::with_capacity(extents.len());
        let (mut free, mut data) = (PageNo(0), 0u64);
        for extent in &extents {
            let first = extent.first;
            let misplaced = Flaw::Extent { first };
            let end = extent.end().ok_or(misplaced)?;
            if extent.pages.0 == 0 || first < free || end.0 > bounds.pages.0 {
                return Err(misplaced);
            }
            check_content(extent, &chunks, bounds)?;
            starts.push(Nth::try_from(data).map_err(|_| misplaced)?);
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
            chunks,
        })
    }

    /// Reads an index of so many extents and checksums; what follows them are
    /// chunks.
    pub fn decode(
        raw: &[u8],
        extents: usize,
        checksums: usize,
        bounds: Bounds,
    ) -> Result<Self, Flaw> {
        let split = extents.saturating_mul(EXTENT_BYTES).min(raw.len());
        let (head, tail) = raw.split_at(split);
        let split = checksums.saturating_mul(CHECKSUM_BYTES).min(tail.len());
        let (sums, tail) = tail.split_at(split);
        let extents = head.as_chunks().0.iter().map(Extent::decode).collect();
        let checksum = |bytes: &[u8; CHECKSUM_BYTES]| Checksum(u64::from_le_bytes(*bytes));
        let checksums = sums.as_chunks().0.iter().map(checksum).collect();
        let chunks = tail.as_chunks::<CHUNK_BYTES>().0.iter();
        Self::new(
            extents,
            checksums,
            chunks.map(Chunk::decode).collect(),
            bounds,
        )
    }

    pub fn encode(&self) -> Vec<u8> {
        let extents = self.extents.iter().flat_map(Extent::encode);
        let checksums = self.checksums.iter().flat_map(|sum| sum.0.to_le_bytes());
        let chunks = self.chunks.iter().flat_map(Chunk::encode);
        extents.chain(checksums).chain(chunks).collect()
    }

    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    pub fn data_pages(&self) -> PageCount {
        PageCount(self.checksums.len() as u64)
    }

    pub fn chunks(&self) -> u64 {
        self.chunks.len() as u64
    }

    pub fn chunk(&self, number: u32) -> Option<Chunk> {
        self.chunks.get(usize::try_from(number).ok()?).copied()
    }

    /// Each extent, with the number of its first page of data.
    pub fn numbered(&self) -> impl Iterator<Item = (&Extent, Nth)> {
        self.extents.iter().zip(self.starts.iter().copied())
    }

    pub fn checksum(&self, nth: Nth) -> Option<Checksum> {
        self.checksums.get(usize::try_from(nth).ok()?).copied()
    }

    /// Returns where the nth page of data is, and how many follow it there, itself
    /// among them.
    pub fn place(&self, nth: Nth) -> Option<(Place, u64)> {
        // Extents without data start where the next one does: the last that
        // starts here is the one that has it.
        let after = self.starts.partition_point(|start| *start <= nth);
        let number = after.checked_sub(1)?;
        let (extent, start) = (self.extents.get(number)?, self.starts.get(number)?);
        let inside = nth - start;
        let left = extent.data_pages().checked_sub(u64::from(inside))?;
        let place = match extent.content {
            Content::Data(slot) => Place::Slot(slot.checked_add(PageCount(u64::from(inside)))?),
            Content::Packed(at) => {
                let index = u8::try_from(u32::from(at.index) + inside).ok()?;
                Place::Packed(Packed { index, ..at })
            }
            Content::Borrowed(_) | Content::Zero | Content::Unknown(_) => return None,
        };
        (left > 0).then_some((place, left))
    }

    /// Every place that has a page of data, in order; one that has several
    /// pages is there once.
    pub fn places(&self) -> Vec<Place> {
        let count = Nth::try_from(self.checksums.len()).unwrap_or(Nth::MAX);
        let places = (0..count).filter_map(|nth| Some(self.place(nth)?.0));
        let mut places: Vec<_> = places.collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// Pages borrowed from the parent.
    pub fn borrowed(&self) -> PageCount {
        let borrowed = self.extents.iter().filter(|extent| match extent.content {
            Content::Borrowed(_) => true,
            Content::Data(_) | Content::Packed(_) | Content::Zero | Content::Unknown(_) => false,
        });
        PageCount(borrowed.map(|extent| extent.pages.0).sum())
    }
}

/// Checks that the place an extent names exists.
fn check_content(extent: &Extent, chunks: &[Chunk], bounds: Bounds) -> Result<(), Flaw> {
    let first = extent.first;
    match extent.content {
        Content::Zero => Ok(()),
        Content::Data(slot) => {
            let end = slot.checked_add(extent.pages);
            match end.is_some_and(|end| end.0 <= bounds.slots) {
                true => Ok(()),
                false => Err(Flaw::Slot { first, slot }),
            }
        }
        Content::Packed(at) => {
            let chunk = usize::try_from(at.chunk).ok().and_then(|n| chunks.get(n));
            let end = u64::from(at.index).checked_add(extent.pages.0);
            let inside = |chunk: &Chunk| end.is_some_and(|end| end <= u64::from(chunk.pages));
            match chunk.is_some_and(inside) {
                true => Ok(()),
                false => Err(Flaw::Packed { first }),
            }
        }
        // Whether the parent is so large is seen when it is there.
        Content::Borrowed(_) if bounds.has_parent => Ok(()),
        Content::Borrowed(_) => Err(Flaw::Borrowed { first }),
        Content::Unknown(_) => Err(Flaw::Place { first }),
    }
}
