//! Files that are no layers, or no longer the ones they were.

use super::{Says, bytes_of, file_of, image, lineage, read_all, write};
use crate::format::{Content, Extent, Header};
use crate::{Checksum, Flaw, ImageError, Layer, LayerBuilder, Slot};
use forkyard_types::{PAGE_SIZE, PageCount, PageNo};
use proptest::prelude::*;
use std::os::unix::fs::FileExt;

const PAGES: [Says; 6] = [
    Says::Data(1),
    Says::Data(2),
    Says::Zero,
    Says::Nothing,
    Says::Data(3),
    Says::Nothing,
];

/// A layer with an unused slot between its data.
fn sample() -> Vec<u8> {
    bytes_of(&write(lineage(9, Some(8)), &PAGES, |n| n * 2))
}

fn flaw(bytes: &[u8]) -> Flaw {
    let error = Layer::open(file_of(bytes)).expect_err("no layer");
    let ImageError::Format(flaw) = error else {
        panic!("{error:?}")
    };
    flaw
}

/// The sample with its header changed, and the header's checksum right again.
fn with_header(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = sample();
    change(&mut bytes[..PAGE_SIZE]);
    let sum = Checksum::of(&bytes[..PAGE_SIZE - 8]);
    bytes[PAGE_SIZE - 8..PAGE_SIZE].copy_from_slice(&sum.0.to_le_bytes());
    bytes
}

fn set(header: &mut [u8], at: usize, value: u64) {
    header[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// A file whose index says this, all checksums right.
fn with_extents(extents: &[Extent], checksums: u64) -> Vec<u8> {
    let mut index: Vec<u8> = extents.iter().flat_map(Extent::encode).collect();
    index.resize(
        index.len() + usize::try_from(checksums).expect("small") * 8,
        0,
    );
    let header = Header {
        lineage: lineage(1, None),
        pages: PageCount(10),
        slots: 4,
        extents: extents.len() as u64,
        data_pages: checksums,
        index: Checksum::of(&index),
        chunks: 0,
        packed_bytes: 0,
        borrowed: 0,
        dropped: 0,
    };
    let mut bytes = header.encode().to_vec();
    bytes.resize(5 * PAGE_SIZE, 0);
    bytes.extend(index);
    bytes
}

fn data(first: u64, pages: u64, slot: u64) -> Extent {
    let content = Content::Data(Slot(slot));
    Extent {
        first: PageNo(first),
        pages: PageCount(pages),
        content,
    }
}

#[test]
fn each_bad_header_field_is_refused_by_its_name() {
    assert_eq!(flaw(&with_header(|h| h[0] = b'X')), Flaw::Magic);
    assert_eq!(flaw(&with_header(|h| h[8] = 3)), Flaw::Version(3));
    // Says what only version 2 can say, or says less than it claims to.
    for change in [|h: &mut [u8]| h[8] = 2, |h: &mut [u8]| set(h, 104, 1)] {
        assert_eq!(flaw(&with_header(change)), Flaw::Field("version"));
    }
    assert_eq!(flaw(&with_header(|h| h[12] = 2)), Flaw::Field("flags"));
    assert_eq!(flaw(&with_header(|h| h[12] = 0)), Flaw::Field("parent"));
    let absurd = (1 << 32) + 1;
    assert_eq!(
        flaw(&with_header(|h| set(h, 48, absurd))),
        Flaw::Field("pages")
    );
    assert_eq!(
        flaw(&with_header(|h| set(h, 56, absurd))),
        Flaw::Field("slots")
    );
    assert_eq!(
        flaw(&with_header(|h| set(h, 64, 7))),
        Flaw::Field("extents")
    );
    assert_eq!(
        flaw(&with_header(|h| set(h, 72, 7))),
        Flaw::Field("data pages")
    );
    let huge = |h: &mut [u8]| [48, 64, 72].into_iter().for_each(|at| set(h, at, 1 << 30));
    assert_eq!(flaw(&with_header(huge)), Flaw::Field("index"));
    assert!(matches!(
        flaw(&with_header(|h| set(h, 56, 1 << 32))),
        Flaw::Truncated { .. }
    ));
    assert!(matches!(
        flaw(&with_header(|h| set(h, 80, 1))),
        Flaw::Index { .. }
    ));
    let mut bytes = sample();
    bytes[100] ^= 1;
    assert_eq!(flaw(&bytes), Flaw::Header);
}

#[test]
fn each_bad_extent_is_refused() {
    let extent = |first| Flaw::Extent {
        first: PageNo(first),
    };
    assert_eq!(flaw(&with_extents(&[data(3, 0, 0)], 0)), extent(3));
    assert_eq!(
        flaw(&with_extents(&[data(3, 2, 0), data(4, 1, 3)], 3)),
        extent(4)
    );
    assert_eq!(
        flaw(&with_extents(&[data(5, 1, 0), data(4, 1, 1)], 2)),
        extent(4)
    );
    assert_eq!(flaw(&with_extents(&[data(8, 3, 0)], 3)), extent(8));
    assert_eq!(
        flaw(&with_extents(&[data(u64::MAX, 3, 0)], 3)),
        extent(u64::MAX)
    );
    let slot = |slot| Flaw::Slot {
        first: PageNo(0),
        slot: Slot(slot),
    };
    assert_eq!(flaw(&with_extents(&[data(0, 2, 3)], 2)), slot(3));
    let far = (1 << 56) - 1;
    assert_eq!(flaw(&with_extents(&[data(0, 2, far)], 2)), slot(far));
    let first = PageNo(0);
    assert_eq!(
        flaw(&with_extents(&[data(0, 2, u64::MAX - 1)], 2)),
        Flaw::Place { first }
    );
    assert_eq!(
        flaw(&with_extents(&[data(0, 2, 1 << 56)], 2)),
        Flaw::Packed { first }
    );
    assert_eq!(
        flaw(&with_extents(&[data(0, 2, 2 << 56)], 0)),
        Flaw::Borrowed { first }
    );
    let (have, want) = (PageCount(2), PageCount(1));
    assert_eq!(
        flaw(&with_extents(&[data(0, 2, 0)], 1)),
        Flaw::DataPages { have, want }
    );
    assert!(Layer::open(file_of(&with_extents(&[data(0, 2, 0), data(2, 1, 0)], 3))).is_ok());
}

#[test]
fn builder_makes_no_layer_of_pages_reported_twice_or_outside() {
    let build = |pages: &[u64]| {
        let mut builder = LayerBuilder::new(lineage(1, None), PageCount(4));
        let sum = Checksum::of(&[]);
        pages
            .iter()
            .zip(0..)
            .for_each(|(page, n)| builder.data(PageNo(*page), Slot(n), sum));
        builder.finish(&file_of(&[]))
    };
    assert!(build(&[3, 1, 2, 0]).is_ok());
    assert!(matches!(
        build(&[1, 2, 1]),
        Err(ImageError::Format(Flaw::Extent { .. }))
    ));
    assert!(matches!(
        build(&[4]),
        Err(ImageError::Format(Flaw::Extent { .. }))
    ));
}

#[test]
fn file_cut_anywhere_is_refused() {
    let bytes = sample();
    for length in (0..bytes.len())
        .step_by(97)
        .chain(bytes.len() - 40..bytes.len())
    {
        assert!(
            matches!(flaw(&bytes[..length]), Flaw::Truncated { .. }),
            "{length} bytes"
        );
    }
}

#[test]
fn file_cut_after_it_was_opened_is_an_error_and_not_a_signal() {
    let file = file_of(&sample());
    let parent = image(write(lineage(8, None), &[], |n| n), None).expect("an image");
    let image = image(file.try_clone().expect("clones"), Some(&parent)).expect("an image");
    file.set_len(PAGE_SIZE as u64 * 2).expect("cuts");
    assert!(matches!(read_all(&image), Err(ImageError::Read { .. })));
}

#[test]
fn bit_flipped_anywhere_is_found_or_does_no_harm() {
    let bytes = sample();
    let parent = image(write(lineage(8, None), &[Says::Data(9); 6], |n| n), None);
    let parent = parent.expect("an image");
    let intact = read_all(&image(file_of(&bytes), Some(&parent)).expect("intact")).expect("intact");
    let file = file_of(&bytes);
    let (mut found, mut harmless) = (0, 0);
    for (at, byte) in bytes.iter().enumerate() {
        let flipped = byte ^ (1 << (at % 8));
        file.write_all_at(&[flipped], at as u64).expect("writes");
        let read = image(file.try_clone().expect("clones"), Some(&parent));
        match read.and_then(|image| read_all(&image)) {
            Ok(read) => {
                assert!(read == intact, "byte {at}");
                harmless += 1;
            }
            Err(ImageError::Damaged { .. } | ImageError::Format(_)) => found += 1,
            Err(other) => panic!("byte {at}: {other:?}"),
        }
        file.write_all_at(&[*byte], at as u64).expect("writes");
    }
    // Only the two unused slots may be damaged unnoticed.
    assert_eq!(
        (harmless, found),
        (2 * PAGE_SIZE, bytes.len() - 2 * PAGE_SIZE)
    );
}

#[test]
fn damage_is_reported_at_its_page() {
    let mut bytes = sample();
    // The third page of data is page 4, in slot 4.
    bytes[5 * PAGE_SIZE + 5] ^= 1;
    let parent = image(write(lineage(8, None), &[], |n| n), None).expect("an image");
    let image = image(file_of(&bytes), Some(&parent)).expect("opens");
    let error = read_all(&image).expect_err("damaged");
    assert!(
        matches!(
            error,
            ImageError::Damaged {
                page: PageNo(4),
                ..
            }
        ),
        "{error:?}"
    );
    assert!(image.read(PageNo(0), &mut [0; 4 * PAGE_SIZE]).is_ok());
}

proptest! {
    /// Whatever a header says, its checksum right: an error or a layer that can
    /// be read, but no panic and no allocation of what is not there.
    #[test]
    fn no_header_makes_us_panic(values in prop::collection::vec((0..12usize, any::<u64>(), 0..64u32), 0..4)) {
        let bytes = with_header(|header| {
            values.iter().for_each(|(field, value, shift)| set(header, field * 8, value >> shift));
        });
        if let Ok(layer) = Layer::open(file_of(&bytes)) {
            prop_assert!(layer.data_pages().0 <= layer.pages().0);
        }
    }

    #[test]
    fn no_index_makes_us_panic(extents in prop::collection::vec((0..12u64, 0..6u64, 0..6u64), 0..5), sums in 0..12u64) {
        let extents: Vec<Extent> = extents.into_iter().map(|(first, n, slot)| data(first, n, slot)).collect();
        if let Ok(image) = image(file_of(&with_extents(&extents, sums)), None) {
            let _ = read_all(&image);
        }
    }
}
