//! Differences between two images.

use crate::image::Image;
use crate::table::Entry;
use forkyard_types::{PAGE_SIZE, PageNo};
use std::sync::Arc;

impl Image {
    /// Returns the pages that read otherwise than `other`'s, in order; those past the end of
    /// either are zero. Pages are compared byte by byte where both images keep a copy of their own
    /// and the checksums agree; a page that cannot be read counts as changed.
    pub fn changes_since(&self, other: &Self) -> impl Iterator<Item = PageNo> {
        let candidates = self.table().differing(other.table());
        candidates
            .take_while(|page| page.0 < self.pages().0)
            .filter(|page| !self.reads_as(other, *page))
    }

    fn reads_as(&self, other: &Self, page: PageNo) -> bool {
        let (ours, theirs) = (self.table().get(page), other.table().get(page));
        let (Some(our), Some(their)) = (self.place(ours), other.place(theirs)) else {
            // Zero, on one side at least.
            return ours == theirs;
        };
        if our == their {
            return true;
        }
        if self.checksum(page) != other.checksum(page) {
            return false;
        }
        let (mut one, mut two) = ([0; PAGE_SIZE], [1; PAGE_SIZE]);
        let read = self.read(page, &mut one).and(other.read(page, &mut two));
        read.is_ok() && one == two
    }

    /// Returns the place of a page of data: the layer, and its number there.
    fn place(&self, entry: Entry) -> Option<(*const (), u32)> {
        match entry {
            Entry::Zero => None,
            Entry::Data { layer, nth } => {
                let layer = self.layer(layer)?;
                Some((Arc::as_ptr(layer).cast(), nth))
            }
        }
    }
}
