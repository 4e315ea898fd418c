//! Raw disks made into layers.

use super::{image, lineage, read_all};
use crate::{Image, WriteSummary, write_file};
use forkyard_types::{PAGE_SIZE, PageCount};
use proptest::prelude::*;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

fn import(source: &File) -> (Image, WriteSummary, File) {
    let dest = tempfile::tempfile().expect("temporary file");
    let written = write_file(source, lineage(1, None), &dest).expect("imports");
    let image = image(dest.try_clone().expect("clones"), None).expect("an image");
    (image, written, dest)
}

fn disk(size: u64, pieces: &[(u64, &[u8])]) -> File {
    let file = tempfile::tempfile().expect("temporary file");
    file.set_len(size).expect("sizes");
    pieces
        .iter()
        .for_each(|(at, bytes)| file.write_all_at(bytes, *at).expect("writes"));
    file
}

proptest! {
    #[test]
    fn layer_reads_as_the_disk(size in 0..900_000u64, pieces in prop::collection::vec((0..900_000u64, 1..300_000usize, 0..3u8), 0..5)) {
        let file = disk(size, &[]);
        for (at, length, byte) in pieces {
            let end = size.min(at + length as u64);
            if let Some(fits) = end.checked_sub(at) {
                let bytes = vec![byte; usize::try_from(fits).expect("small")];
                file.write_all_at(&bytes, at).expect("writes");
            }
        }
        let mut want = vec![0; usize::try_from(size).expect("small")];
        file.read_exact_at(&mut want, 0).expect("reads");
        want.resize(want.len().next_multiple_of(PAGE_SIZE), 0);
        let (image, written, _) = import(&file);
        prop_assert_eq!(written.pages.0 * PAGE_SIZE as u64, want.len() as u64);
        let data = want.chunks(PAGE_SIZE).filter(|page| page.iter().any(|byte| *byte != 0)).count();
        prop_assert_eq!(written.data, PageCount(data as u64));
        prop_assert!(read_all(&image).expect("reads") == want);
    }
}

#[test]
fn holes_and_zeros_take_no_space() {
    let zeros = vec![0; 4 << 20];
    let source = disk(
        1 << 40,
        &[(0, b"first"), (1 << 30, &zeros), ((1 << 40) - 4, b"last")],
    );
    let (image, written, dest) = import(&source);
    assert_eq!(
        written,
        WriteSummary {
            pages: PageCount(1 << 28),
            data: PageCount(2)
        }
    );
    let mut page = [0; PAGE_SIZE];
    image
        .read(forkyard_types::PageNo((1 << 28) - 1), &mut page)
        .expect("reads");
    assert_eq!(&page[PAGE_SIZE - 4..], b"last");
    assert!(dest.metadata().expect("has").blocks() * 512 <= 64 << 10);
}

#[test]
fn source_without_holes_is_copied_whole() {
    let source = disk(3 * PAGE_SIZE as u64 + 1, &[(0, &[7; 3 * PAGE_SIZE + 1])]);
    let (image, written, _) = import(&source);
    assert_eq!(
        written,
        WriteSummary {
            pages: PageCount(4),
            data: PageCount(4)
        }
    );
    let read = read_all(&image).expect("reads");
    assert!(read[..3 * PAGE_SIZE + 1].iter().all(|byte| *byte == 7));
    assert!(read[3 * PAGE_SIZE + 1..].iter().all(|byte| *byte == 0));
}
