//! Measurements: `cargo test --release -p forkyard-image -- --ignored --nocapture speed`

use super::{Says, image, lineage, write};
use crate::{Image, Temper, rewrite};
use forkyard_types::{PAGE_SIZE, PageNo};
use std::time::Instant;

const PAGES: usize = 32_768;
const OWN: usize = 64;

/// 128 MiB, and over it layers of some pages each, spread over all of it.
fn chain(depth: usize) -> Image {
    let whole: Vec<Says> = (0..PAGES).map(|n| Says::Data(n.to_le_bytes()[0])).collect();
    let mut top = image(write(lineage(1, None), &whole, |n| n), None).expect("an image");
    for level in 1..depth {
        let mut says = vec![Says::Nothing; PAGES];
        for n in 0..OWN {
            says[(n * 509 + level * 7919) % PAGES] = Says::Data(level.to_le_bytes()[0]);
        }
        let id = level as u128 + 1;
        top = image(write(lineage(id, Some(id - 1)), &says, |n| n), Some(&top)).expect("an image");
    }
    top
}

#[test]
#[ignore = "a measurement"]
fn speed_of_lookup_by_depth() {
    for depth in [1, 10, 100, 1000] {
        let top = chain(depth);
        let mut page = [0; PAGE_SIZE];
        let begin = Instant::now();
        for n in 0..100_000u64 {
            let found = top.checksum(PageNo(n * 7919 % PAGES as u64));
            assert!(found.is_some());
        }
        let lookup = begin.elapsed() / 100_000;
        let begin = Instant::now();
        for n in 0..20_000u64 {
            top.read(PageNo(n * 7919 % PAGES as u64), &mut page)
                .expect("reads");
        }
        let read = begin.elapsed() / 20_000;
        let says = vec![Says::Data(3); OWN];
        let id = depth as u128;
        let file = write(lineage(id + 1, Some(id)), &says, |n| n);
        let begin = Instant::now();
        let over = image(file, Some(&top)).expect("an image");
        println!(
            "depth {depth:4}: lookup {lookup:?}, read of a page {read:?}, one more image {:?} ({} layers)",
            begin.elapsed(),
            over.layers().len()
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn speed_of_writing_anew() {
    let top = chain(10);
    for (what, temper) in [("folded", Temper::Hot), ("packed", Temper::Cold)] {
        let dest = tempfile::tempfile().expect("temporary file");
        let begin = Instant::now();
        rewrite(&top, None, |_| temper, &dest).expect("rewrites");
        let bytes = dest.metadata().expect("has").len() >> 10;
        println!("{what}: 128 MiB in {:?}, {bytes} KiB", begin.elapsed());
    }
}
