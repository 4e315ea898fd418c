//! Tests that a pager's knowledge of one image helps the next.

use crate::harness::{Fixture, Settings, byte, eventually, filling, layer};
use forkyard_image::Lineage;
use forkyard_pager::Prefetch;
use forkyard_sys_host::mapping::Mapping;
use forkyard_types::{ImageId, PageCount};

const PAGES: u64 = 16_384;

fn pager(prefetch: Prefetch) -> Fixture {
    Fixture::with(Settings {
        prefetch,
        ..Settings::default()
    })
}

/// Lists the pages a clone of such an image touches first.
fn working_set() -> impl Iterator<Item = u64> {
    (0..40).map(|n| n * 397 % PAGES)
}

fn touch(view: &Mapping, right: impl Fn(u64) -> u8) {
    working_set().for_each(|page| assert_eq!(byte(view, page), right(page)));
}

/// A fork as it goes: promised, mapped, published.
fn forked(pager: &Fixture, filled: impl Fn(u64) -> u8) -> (ImageId, Mapping) {
    let lineage = Lineage {
        image: ImageId::random(),
        parent: None,
    };
    let (image, pages) = (lineage.image, PageCount(PAGES));
    pager.client.promise(image, pages).expect("new");
    let view = pager.view(image, PAGES);
    let file = layer(lineage, PAGES, filled);
    pager.client.publish(lineage, file).expect("publishes");
    (image, view)
}

/// The next generation: a few pages differ.
fn later(page: u64) -> u8 {
    if page.is_multiple_of(50) {
        251
    } else {
        filling(page)
    }
}

#[test]
fn next_generation_is_there_before_it_is_asked_for() {
    let pager = pager(Prefetch::Yes);
    let (first, view) = forked(&pager, filling);
    touch(&view, filling);
    let learnt = pager.stats(first);
    assert!(learnt.requests > 10, "{learnt:?}");
    let (second, view) = forked(&pager, later);
    eventually("it is pushed", || {
        pager.stats(second).prefetched >= learnt.touched
    });
    touch(&view, later);
    assert_eq!(pager.stats(second).requests, 0);
    // And what was pushed is right to the last page.
    (0..PAGES).for_each(|page| assert_eq!(byte(&view, page), later(page)));
}

#[test]
fn what_was_learnt_outlives_its_image() {
    let pager = pager(Prefetch::Yes);
    let (first, view) = forked(&pager, filling);
    touch(&view, filling);
    let touched = pager.stats(first).touched;
    pager.client.retire(first).expect("known");
    drop(view);
    eventually("it is gone", || pager.layers_open() == 0);
    let (second, view) = forked(&pager, later);
    eventually("it is pushed", || pager.stats(second).prefetched >= touched);
    touch(&view, later);
    assert_eq!(pager.stats(second).requests, 0);
}

#[test]
fn clone_that_comes_late_is_served_ahead() {
    let pager = pager(Prefetch::Yes);
    let (image, view) = forked(&pager, filling);
    touch(&view, filling);
    let before = pager.stats(image);
    // Mapping the file makes the kernel drop what it has of it.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let late = pager.view(image, PAGES);
    byte(&late, 397);
    eventually("the rest is pushed", || {
        pager.stats(image).prefetched.0 > before.touched.0 / 2
    });
    let asked = pager.stats(image).requests;
    touch(&late, filling);
    let more = pager.stats(image).requests - asked;
    assert!(
        more < before.requests / 2,
        "{more} requests, {} at first",
        before.requests
    );
}

#[test]
fn image_like_none_is_not_guessed_at() {
    let pager = pager(Prefetch::Yes);
    let (_, view) = forked(&pager, filling);
    touch(&view, filling);
    let (other, view) = forked(&pager, |page| filling(page + 1));
    touch(&view, |page| filling(page + 1));
    assert_eq!(pager.stats(other).prefetched, PageCount(0));
}

#[test]
fn who_reads_page_after_page_is_read_ahead_of() {
    let requests = |prefetch| {
        let pager = pager(prefetch);
        let (image, view) = forked(&pager, filling);
        (0..2000).for_each(|page| assert_eq!(byte(&view, page), filling(page)));
        let stats = pager.stats(image);
        assert!(stats.touched.0 <= 2000 + 64, "{stats:?}");
        stats.requests
    };
    let alone = requests(Prefetch::No);
    assert_eq!(alone, 2000);
    // The kernel may ask again before it has been given a page, and does so often while the
    // thread that gives waits for a CPU: of twenty readers one must be seen to be read ahead of.
    let mut ahead = (0..20).map(|_| requests(Prefetch::Yes));
    assert!(ahead.any(|few| few < alone / 4), "nobody is");
}

#[test]
fn who_reads_here_and_there_is_given_what_it_touches() {
    let pager = pager(Prefetch::Yes);
    let (image, view) = forked(&pager, filling);
    touch(&view, filling);
    let stats = pager.stats(image);
    let touched = PageCount(working_set().count() as u64);
    assert_eq!(
        (stats.pages_served, stats.prefetched),
        (touched, PageCount(0))
    );
}

#[test]
fn pager_told_not_to_does_not() {
    let pager = pager(Prefetch::No);
    let (first, view) = forked(&pager, filling);
    touch(&view, filling);
    let (second, view) = forked(&pager, later);
    touch(&view, later);
    let (first, second) = (pager.stats(first), pager.stats(second));
    assert_eq!(second.prefetched, PageCount(0));
    assert_eq!(second.requests, first.requests);
}
