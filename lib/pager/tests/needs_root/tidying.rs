//! Tests of pagers' background work on layers, which readers do not notice.

use crate::harness::{Fixture, Settings, byte, eventually, filling, layer};
use forkyard_image::{Checksum, LayerBuilder, Lineage, Slot};
use forkyard_sys_host::mapping::Mapping;
use forkyard_sys_host::memory::anonymous_file;
use forkyard_types::{ByteCount, ImageId, PAGE_SIZE, PageCount, PageNo};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn over(parent: ImageId) -> Lineage {
    Lineage {
        image: ImageId::random(),
        parent: Some(parent),
    }
}

#[test]
fn generations_of_clones_keep_memory_and_files_in_proportion() {
    const PAGES: u64 = 3000;
    const CHANGED: u64 = 100;
    let pager = Fixture::start();
    let mut top = pager.publish(PAGES, filling);
    let root_bytes = pager.memory();
    // Each generation changes the same pages, and lives on alone.
    for generation in 0..60u64 {
        let lineage = over(top);
        let changed = |n| match n < CHANGED {
            true => filling(n + generation + 1),
            false => 0,
        };
        let file = layer(lineage, PAGES, changed);
        pager.client.publish(lineage, file).expect("publishes");
        pager.client.retire(top).expect("known");
        top = lineage.image;
    }
    let view = pager.view(top, PAGES);
    let right = |n: u64| match n < CHANGED {
        true => filling(n + 60),
        false => filling(n),
    };
    for page in (0..PAGES).step_by(17) {
        assert_eq!(byte(&view, page), right(page));
    }
    eventually("layers are folded", || pager.layers_open() <= 3);
    let late = pager.view(top, PAGES);
    (0..PAGES).for_each(|page| assert_eq!(byte(&late, page), right(page)));
    let bytes = pager.memory();
    assert!(
        bytes < root_bytes * 5 / 4,
        "{bytes} bytes, {root_bytes} at first"
    );
}

#[test]
fn second_fork_of_a_vm_is_stored_as_what_it_changed() {
    const PAGES: u64 = 3000;
    let pager = Fixture::start();
    let first = pager.publish(PAGES, filling);
    // Most pages are as before, some have moved, some are new.
    let changed = |n: u64| match n % 100 {
        0 => filling(n + 1),
        1 => 251,
        _ => filling(n),
    };
    let second = pager.publish(PAGES, changed);
    eventually("it has been compared", || {
        pager.stats(second).deduplicated.0 > 0
    });
    let usage = pager.stats(second);
    assert_eq!(usage.pages, PageCount(PAGES));
    // One page is new, and it is there once.
    assert_eq!(
        (usage.plain, usage.deduplicated),
        (PageCount(1), PageCount(PAGES - 1))
    );
    let view = pager.view(second, PAGES);
    (0..PAGES).for_each(|page| assert_eq!(byte(&view, page), changed(page)));
    // It outlives the one it was compared with.
    pager.client.retire(first).expect("known");
    let late = pager.view(second, PAGES);
    (0..PAGES).for_each(|page| assert_eq!(byte(&late, page), changed(page)));
}

#[test]
fn what_nobody_reads_is_compressed_and_what_was_read_is_not() {
    const PAGES: u64 = 4000;
    let pager = Fixture::with(Settings {
        cold_after: Some(Duration::from_secs(1)),
        ..Settings::default()
    });
    let lineage = Lineage {
        image: ImageId::random(),
        parent: None,
    };
    let file = numbered(lineage, PAGES);
    pager.client.publish(lineage, file).expect("publishes");
    let image = lineage.image;
    let view = pager.view(image, PAGES);
    assert_eq!(number(&view, 0), 0);
    let touched = pager.stats(image).touched;
    eventually("it is compressed", || pager.stats(image).packed.0 > 0);
    let usage = pager.stats(image);
    assert_eq!((usage.plain, usage.packed.0), (touched, PAGES - touched.0));
    assert!(usage.packed_bytes.0 < usage.packed.0 * 1024, "{usage:?}");
    (0..PAGES).for_each(|page| assert_eq!(number(&view, page), page));
}

/// A layer whose pages all differ, each full of its own number.
fn numbered(lineage: Lineage, pages: u64) -> File {
    let file = anonymous_file("layer", ByteCount(0)).expect("memfd");
    let mut builder = LayerBuilder::new(lineage, PageCount(pages));
    for page in 0..pages {
        let bytes = (page + 1).to_le_bytes().repeat(PAGE_SIZE / 8);
        let offset = Slot(page).offset().expect("fits");
        file.write_all_at(&bytes, offset).expect("writes");
        builder.data(PageNo(page), Slot(page), Checksum::of(&bytes));
    }
    builder.finish(&file).expect("a layer");
    file
}

fn number(view: &Mapping, page: u64) -> u64 {
    let start = usize::try_from(page).expect("fits") * PAGE_SIZE;
    let (mut first, mut last) = ([0; 8], [0; 8]);
    view.read(start, &mut first).expect("inside");
    view.read(start + PAGE_SIZE - 8, &mut last).expect("inside");
    assert_eq!(first, last, "page {page} is torn");
    u64::from_le_bytes(first) - 1
}

#[test]
fn readers_never_notice_that_layers_are_replaced() {
    const PAGES: u64 = 2048;
    let pager = Fixture::with(Settings {
        cold_after: Some(Duration::from_millis(300)),
        ..Settings::default()
    });
    let mut top = pager.publish(PAGES, filling);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for generation in 1..=20u64 {
            let lineage = over(top);
            let changed = move |n: u64| if n % 20 == generation { 77 } else { 0 };
            let file = layer(lineage, PAGES, changed);
            pager.client.publish(lineage, file).expect("publishes");
            // Those that are read keep their names.
            if generation % 5 != 1 {
                pager.client.retire(top).expect("known");
            }
            top = lineage.image;
            let (pager, stop, image) = (&pager, &stop, top);
            if generation % 5 == 0 {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        // Each view makes the kernel read all of it again.
                        let view = pager.view(image, PAGES);
                        for page in 0..PAGES {
                            let new = (1..=generation).contains(&(page % 20));
                            let right = if new { 77 } else { filling(page) };
                            assert_eq!(byte(&view, page), right, "page {page}");
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(Duration::from_secs(3));
        stop.store(true, Ordering::Relaxed);
    });
}
