//! Writing a layer whose data somebody has put into its slots already.

use crate::format::{Content, Extent, Header};
use crate::index::Index;
use crate::{Checksum, ImageError, Lineage, Slot};
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
    zero: Vec<Extent>,
}

/// A page of data: flat, because it is noted while a VM stands still.
#[derive(Clone, Copy, Debug)]
struct Filled {
    page: PageNo,
    slot: Slot,
    checksum: Checksum,
}

impl LayerBuilder {
    /// A layer that says nothing yet about an image of so many pages.
    pub fn new(lineage: Lineage, pages: PageCount) -> Self {
        Self {
            lineage,
            pages,
            data: Vec::new(),
            zero: Vec::new(),
        }
    }

    /// `page` is in `slot` and has this checksum.
    pub fn data(&mut self, page: PageNo, slot: Slot, checksum: Checksum) {
        self.data.push(Filled {
            page,
            slot,
            checksum,
        });
    }

    /// `page` is zero, whatever the parent has. Without a parent this says
    /// nothing and is left out of the file.
    pub fn zero(&mut self, page: PageNo) {
        if self.lineage.parent.is_some() {
            let one = Extent {
                first: page,
                pages: PageCount(1),
                content: Content::Zero,
            };
            extend(&mut self.zero, one);
        }
    }

    /// Adds what another builder for the same layer has collected.
    pub fn append(&mut self, mut other: Self) {
        self.data.append(&mut other.data);
        self.zero.append(&mut other.zero);
    }

    /// Writes index and header: `file` is a layer afterwards. Answers its pages
    /// of data. [`ImageError::Format`] if what was reported makes no layer.
    pub fn finish(mut self, file: &File) -> Result<PageCount, ImageError> {
        // Stable, because that sort is fast on what is nearly in order.
        self.data.sort_by_key(|filled| filled.page);
        let slots = self
            .data
            .iter()
            .map(|filled| filled.slot.0.saturating_add(1))
            .max();
        let slots = slots.unwrap_or(0);
        let mut extents = Vec::new();
        for filled in &self.data {
            let content = Content::Data(filled.slot);
            extend(
                &mut extents,
                Extent {
                    first: filled.page,
                    pages: PageCount(1),
                    content,
                },
            );
        }
        extents.append(&mut self.zero);
        extents.sort_by_key(|extent| extent.first);
        let checksums = self.data.iter().map(|filled| filled.checksum).collect();
        let index = Index::new(extents, checksums, self.pages, slots)?;
        let raw = index.encode();
        let header = Header {
            lineage: self.lineage,
            pages: self.pages,
            slots,
            extents: index.extents(),
            data_pages: index.data_pages().0,
            index: Checksum::of(&raw),
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
/// and in slots.
fn extend(extents: &mut Vec<Extent>, next: Extent) {
    match extents.last_mut() {
        Some(last) if continues(last, &next) => last.pages.0 += next.pages.0,
        Some(_) | None => extents.push(next),
    }
}

fn continues(last: &Extent, next: &Extent) -> bool {
    let adjoins = last.end() == Some(next.first);
    adjoins
        && match (last.content, next.content) {
            (Content::Zero, Content::Zero) => true,
            (Content::Data(a), Content::Data(b)) => a.checked_add(last.pages) == Some(b),
            (Content::Zero, Content::Data(_)) | (Content::Data(_), Content::Zero) => false,
        }
}
