//! Images against a slow model of them.

use super::{Says, image, lineage, read_all, write};
use crate::{Image, ImageError};
use forkyard_types::{PAGE_SIZE, PageCount, PageNo};
use proptest::prelude::*;
use std::collections::HashMap;

/// Model of an image, as plain as possible: its bytes, page by page.
#[derive(Clone, Debug, Default)]
struct Model(HashMap<u64, u8>);

impl Model {
    fn over(parent: &Self, layer: &[Says]) -> Self {
        let page = |(says, number): (&Says, u64)| match says {
            Says::Nothing => (number, parent.byte(number)),
            Says::Zero => (number, 0),
            Says::Data(byte) => (number, *byte),
        };
        Self(layer.iter().zip(0..).map(page).collect())
    }

    fn byte(&self, page: u64) -> u8 {
        self.0.get(&page).copied().unwrap_or(0)
    }
}

fn says() -> impl Strategy<Value = Says> {
    prop_oneof![
        3 => Just(Says::Nothing),
        1 => Just(Says::Zero),
        3 => (0..4u8).prop_map(Says::Data),
    ]
}

/// Layers of various sizes, and for each how its slots lie: a factor to
/// shuffle them by, and how many to leave unused in front.
fn chain() -> impl Strategy<Value = Vec<(Vec<Says>, u64, u64)>> {
    let layer = (prop::collection::vec(says(), 0..48), 0..5usize, 0..3u64);
    let layer = layer.prop_map(|(pages, by, skip)| (pages, [1, 5, 7, 11, 46][by], skip));
    prop::collection::vec(layer, 1..5)
}

/// Different slots for all pages of data: 47 is prime.
fn slot(n: u64, factor: u64, skip: u64) -> u64 {
    skip + n / 47 * 47 + n % 47 * factor % 47
}

proptest! {
    #[test]
    fn image_reads_as_its_model(layers in chain(), reads in prop::collection::vec((0..48u64, 0..48u64), 8)) {
        let (mut top, mut model): (Option<Image>, _) = (None, Model::default());
        for ((pages, factor, skip), id) in layers.iter().zip(1..) {
            let lineage = lineage(id, (id > 1).then(|| id - 1));
            let file = write(lineage, pages, |n| slot(n, *factor, *skip));
            top = Some(image(file, top.as_ref()).expect("an image"));
            model = Model::over(&model, pages);
        }
        let top = top.expect("at least one layer");
        let size = top.pages().0;
        prop_assert_eq!(size, layers.last().expect("one").0.len() as u64);
        for (first, count) in reads {
            let mut out = vec![0xee; usize::try_from(count).expect("small") * PAGE_SIZE];
            let result = top.read(PageNo(first), &mut out);
            if first + count > size {
                let refused = matches!(result, Err(ImageError::OutOfRange { .. }));
                prop_assert!(refused);
                continue;
            }
            prop_assert!(result.is_ok(), "{result:?}");
            for (page, number) in out.chunks(PAGE_SIZE).zip(first..) {
                prop_assert!(page.iter().all(|byte| *byte == model.byte(number)), "page {number}");
            }
            let data = out.chunks(PAGE_SIZE).filter(|page| page.iter().any(|byte| *byte != 0));
            let among = top.data_among(PageNo(first), PageCount(count)).0;
            // A page of data may be zero all the same.
            prop_assert!((data.count() as u64..=count).contains(&among));
            prop_assert_eq!(top.data_among(PageNo(0), PageCount(u64::MAX)), top.data_pages());
        }
    }
}

#[test]
fn zero_hides_the_parent_and_absence_does_not() {
    let parent = image(write(lineage(1, None), &[Says::Data(7); 3], |n| n), None);
    let parent = parent.expect("an image");
    let pages = [Says::Nothing, Says::Zero, Says::Data(8)];
    let child = image(write(lineage(2, Some(1)), &pages, |n| n), Some(&parent));
    let read = read_all(&child.expect("an image")).expect("reads");
    assert_eq!([read[0], read[PAGE_SIZE], read[2 * PAGE_SIZE]], [7, 0, 8]);
}

#[test]
fn what_a_smaller_layer_cut_off_does_not_come_back() {
    let mut top = image(write(lineage(1, None), &[Says::Data(7); 3], |n| n), None);
    for (id, pages) in [(2, 1), (3, 3)] {
        let file = write(
            lineage(id, Some(id - 1)),
            &vec![Says::Nothing; pages],
            |n| n,
        );
        top = image(file, top.ok().as_ref());
    }
    let read = read_all(&top.expect("an image")).expect("reads");
    assert_eq!([read[0], read[PAGE_SIZE], read[2 * PAGE_SIZE]], [7, 0, 0]);
}

#[test]
fn layer_fits_over_its_own_parent_only() {
    let a = image(write(lineage(1, None), &[], |n| n), None).expect("an image");
    let orphan = || write(lineage(3, Some(2)), &[], |n| n);
    let root = write(lineage(4, None), &[], |n| n);
    for result in [
        image(orphan(), Some(&a)),
        image(orphan(), None),
        image(root, Some(&a)),
    ] {
        assert!(
            matches!(result, Err(ImageError::WrongParent { .. })),
            "{result:?}"
        );
    }
}

#[test]
fn image_may_have_any_number_of_layers() {
    let mut top = image(write(lineage(0, None), &[Says::Data(5)], |n| n), None).expect("an image");
    for id in 1..3000u128 {
        let file = write(lineage(id, Some(id - 1)), &[Says::Nothing], |n| n);
        top = image(file, Some(&top)).expect("an image");
    }
    assert_eq!(read_all(&top).expect("reads")[0], 5);
}

#[test]
fn buffer_of_part_of_a_page_is_refused() {
    let image = image(write(lineage(1, None), &[Says::Data(7)], |n| n), None).expect("an image");
    let result = image.read(PageNo(0), &mut [0; 100]);
    assert!(
        matches!(result, Err(ImageError::NotPages { bytes: 100 })),
        "{result:?}"
    );
    assert_eq!(image.own_pages(), PageCount(1));
}
