//! Differences between images.

use crate::{Checksum, Image, Layer, LayerBuilder, Lineage, Slot};
use forkyard_types::{ImageId, PAGE_SIZE, PageCount, PageNo};
use proptest::prelude::*;
use std::{collections::BTreeMap, os::unix::fs::FileExt, sync::Arc};

proptest! {
    /// Images over each other, and one of its own that holds what it likes.
    #[test]
    fn changes_are_the_pages_that_read_otherwise(
        below in prop::collection::vec(0..4u8, 1..300),
        above in prop::collection::vec((0..300u64, 0..4u8), 0..40),
        apart in prop::collection::vec(0..4u8, 1..300),
    ) {
        let base = image(None, &(0..).zip(below).collect::<Vec<_>>(), 300);
        let over = image(Some(&base), &above, 300);
        let apart = image(None, &(0..).zip(apart).collect::<Vec<_>>(), 300);
        for (one, other) in [(&base, &over), (&over, &base), (&base, &apart), (&over, &over)] {
            let read = |image: &Image, page| {
                let mut bytes = [9; PAGE_SIZE];
                image.read(PageNo(page), &mut bytes).expect("inside");
                bytes
            };
            let wanted = (0..300).filter(|page| read(one, *page) != read(other, *page));
            let told = one.changes_since(other).map(|page| page.0);
            prop_assert!(told.eq(wanted));
        }
    }
}

/// Pages of one byte each; 0 is a page that hides what is below.
fn image(parent: Option<&Image>, pages: &[(u64, u8)], size: u64) -> Image {
    let lineage = Lineage {
        image: ImageId::random(),
        parent: parent.map(|parent| parent.lineage().image),
    };
    let file = tempfile::tempfile().expect("file");
    let mut builder = LayerBuilder::new(lineage, PageCount(size));
    let last: BTreeMap<_, _> = pages.iter().copied().collect();
    for (slot, (page, byte)) in (0..).map(Slot).zip(last) {
        let bytes = [byte; PAGE_SIZE];
        match byte {
            0 => builder.zero(PageNo(page)),
            _ => {
                let at = slot.offset().expect("small");
                file.write_all_at(&bytes, at).expect("written");
                builder.data(PageNo(page), slot, Checksum::of(&bytes));
            }
        }
    }
    builder.finish(&file).expect("a layer");
    let layer = Layer::open(file).expect("whole");
    Image::new(Arc::new(layer), parent).expect("an image")
}
