//! Writing a layer whose data was put into its slots already.

use crate::format::{Chunk, Content, Extent, Header, Packed};
use crate::index::{Bounds, Index, Place};
use crate::{Checksum, Flaw, ImageError, Lineage, Slot};
use forkyard_types::{PageCount, PageNo};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Collects what is in which slot, then completes the file.
///
/// Data goes to [`Slot::offset`] of the same file before
/// [`LayerBuilder::finish`]; in which order, and by which threads, is the
/// caller's choice: several may collect for themselves and be
/// [appended](LayerBuilder::append). Slots may stay unused, pages may be
/// reported in any order, but each once.
#[derive(Debug)]
pub struct LayerBuilder {
    lineage: Lineage,
    pages: PageCount,
    data: Vec<Filled>,
    /// Zero and borrowed pages.
    other: Vec<Extent>,
    packing: Packing,
}

/// State that only a layer that is written anew has.
#[derive(Debug, Default)]
struct Packing {
    /// Slots in front of the chunks, used or not.
    reserved: u64,
    chunks: Vec<Chunk>,
    bytes: u64,
    dropped: u64,
}

/// A page of data: flat, because it is noted while a VM stands still.
#[derive(Clone, Copy, Debug)]
struct Filled {
    page: PageNo,
    place: Place,
    checksum: Checksum,
}

impl LayerBuilder {
    /// A layer that says nothing yet about an image of so many pages.
    pub fn new(lineage: Lineage, pages: PageCount) -> Self {
        Self {
            lineage,
            pages,
            data: Vec::new(),
            other: Vec::new(),
            packing: Packing::default(),
        }
    }

    /// `page` is in `slot` and has this checksum.
    pub fn data(&mut self, page: PageNo, slot: Slot, checksum: Checksum) {
        self.at(page, Place::Slot(slot), checksum);
    }

    /// `page` is zero, whatever the parent has. Without a parent this says
    /// nothing and is left out of the file.
    pub fn zero(&mut self, page: PageNo) {
        if self.lineage.parent.is_some() {
            self.other(page, Content::Zero);
        }
    }

    /// Adds what another builder for the same layer has collected.
    pub fn append(&mut self, mut other: Self) {
        self.data.append(&mut other.data);
        self.other.append(&mut other.other);
    }

    /// `page` is where another may be as well.
    pub(crate) fn at(&mut self, page: PageNo, place: Place, checksum: Checksum) {
        self.data.push(Filled {
            page,
            place,
            checksum,
        });
    }

    /// `page` is what the parent has at `from`.
    pub(crate) fn borrowed(&mut self, page: PageNo, from: PageNo) {
        self.other(page, Content::Borrowed(from));
    }

    /// A page is what the parent has there and is left out.
    pub(crate) fn dropped(&mut self, pages: PageCount) {
        self.packing.dropped += pages.0;
    }

    /// Chunks start after so many slots.
    pub(crate) fn reserve(&mut self, slots: PageCount) {
        self.packing.reserved = slots.0;
    }

    /// Number of the next chunk.
    pub(crate) fn next_chunk(&self) -> Option<u32> {
        u32::try_from(self.packing.chunks.len()).ok()
    }

    /// A chunk of so many bytes and pages comes next; answers where in the file
    /// it has to be.
    pub(crate) fn chunk(&mut self, bytes: u32, pages: u32) -> Option<u64> {
        let offset = self.packing.bytes;
        self.packing.chunks.push(Chunk {
            offset,
            bytes,
            pages,
        });
        self.packing.bytes += u64::from(bytes);
        Slot(self.packing.reserved).offset()?.checked_add(offset)
    }

    fn other(&mut self, page: PageNo, content: Content) {
        let one = Extent {
            first: page,
            pages: PageCount(1),
            content,
        };
        extend(&mut self.other, one);
    }

    /// Writes index and header: `file` is a layer afterwards. Answers its pages
    /// of data. [`ImageError::Format`] if what was reported makes no layer.
    pub fn finish(mut self, file: &File) -> Result<PageCount, ImageError> {
        // Stable, because that sort is fast on what is nearly in order.
        self.data.sort_by_key(|filled| filled.page);
        let used = self.data.iter().map(|filled| match filled.place {
            Place::Slot(slot) => slot.0.saturating_add(1),
            Place::Packed(_) => 0,
        });
        let (used, reserved) = (used.max().unwrap_or(0), self.packing.reserved);
        if used > reserved && !self.packing.chunks.is_empty() {
            // The first chunks are where the last slots are.
            return Err(Flaw::Field("slots").into());
        }
        let slots = used.max(reserved);
        let mut extents = Vec::new();
        for filled in &self.data {
            let content = match filled.place {
                Place::Slot(slot) => Content::Data(slot),
                Place::Packed(at) => Content::Packed(at),
            };
            extend(
                &mut extents,
                Extent {
                    first: filled.page,
                    pages: PageCount(1),
                    content,
                },
            );
        }
        extents.append(&mut self.other);
        extents.sort_by_key(|extent| extent.first);
        let checksums = self.data.iter().map(|filled| filled.checksum).collect();
        let Packing {
            chunks,
            bytes,
            dropped,
            ..
        } = self.packing;
        let bounds = Bounds {
            pages: self.pages,
            slots,
            packed_bytes: bytes,
            has_parent: self.lineage.parent.is_some(),
        };
        let index = Index::new(extents, checksums, chunks, bounds)?;
        let raw = index.encode();
        let header = Header {
            lineage: self.lineage,
            pages: self.pages,
            slots,
            extents: index.extents().len() as u64,
            data_pages: index.data_pages().0,
            index: Checksum::of(&raw),
            chunks: index.chunks(),
            packed_bytes: bytes,
            borrowed: index.borrowed().0,
            dropped,
        };
        header.check()?;
        // The header last: until it is there, the file is no layer.
        let failed = |source| ImageError::Write { source };
        file.set_len(header.file_bytes()).map_err(failed)?;
        file.write_all_at(&raw, header.index_offset())
            .map_err(failed)?;
        file.write_all_at(&header.encode(), 0).map_err(failed)?;
        Ok(index.data_pages())
    }
}

/// Adds `next`, to the last extent if it goes on where that one stops, in pages
/// and in places.
fn extend(extents: &mut Vec<Extent>, next: Extent) {
    match extents.last_mut() {
        Some(last) if continues(last, &next) => last.pages.0 += next.pages.0,
        Some(_) | None => extents.push(next),
    }
}

fn continues(last: &Extent, next: &Extent) -> bool {
    last.end() == Some(next.first) && after(last.content, last.pages) == Some(next.content)
}

/// Returns the content `pages` after the start of `content`.
fn after(content: Content, pages: PageCount) -> Option<Content> {
    match content {
        Content::Data(slot) => slot.checked_add(pages).map(Content::Data),
        Content::Packed(at) => {
            let index = u64::from(at.index).checked_add(pages.0)?;
            let index = u8::try_from(index).ok()?;
            Some(Content::Packed(Packed { index, ..at }))
        }
        Content::Borrowed(page) => page.checked_add(pages).map(Content::Borrowed),
        Content::Zero => Some(Content::Zero),
        Content::Unknown(_) => None,
    }
}
