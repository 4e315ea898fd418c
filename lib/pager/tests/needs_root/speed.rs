//! Measurements: `cargo test --release -p forkyard-pager -- --ignored --nocapture speed`

use crate::harness::{Fixture, byte, filling};
use forkyard_sys_host::mapping::Mapping;
use forkyard_types::PAGE_SIZE;
use std::os::unix::fs::FileExt;
use std::time::Instant;

const PAGES: u64 = 32_768;

fn touch_all(view: &Mapping) -> f64 {
    let begin = Instant::now();
    for page in 0..PAGES {
        let offset = usize::try_from(page).expect("fits") * PAGE_SIZE;
        view.read(offset, &mut [0]).expect("inside");
    }
    begin.elapsed().as_secs_f64()
}

#[test]
#[ignore = "a measurement"]
fn speed_of_128_mib() {
    let pager = Fixture::start();
    let per_page = |seconds: f64| seconds * 1e6 / PAGES as f64;
    let image = pager.publish(PAGES, filling);
    let (first, second) = (pager.view(image, PAGES), pager.view(image, PAGES));
    let cold = touch_all(&first);
    println!(
        "mapped, in order: {:.2} us a page, {:.0} MB/s",
        per_page(cold),
        134.2 / cold
    );
    println!(
        "mapped, by the next clone: {:.2} us a page",
        per_page(touch_all(&second))
    );
    let requests = pager.stats(image).requests;
    println!("pages a request: {}", PAGES / requests);
    let late = pager.view(image, PAGES);
    println!(
        "again, after a late mapping: {:.2} us a page",
        per_page(touch_all(&late))
    );

    let file = pager.open(image).expect("opens");
    let begin = Instant::now();
    for i in 0..10_000 {
        let page = (i * 7919) % PAGES;
        file.read_exact_at(&mut [0; PAGE_SIZE], page * PAGE_SIZE as u64)
            .expect("reads");
    }
    println!(
        "read(2) of single pages at random: {:.2} us",
        begin.elapsed().as_secs_f64() * 1e2
    );

    let image = pager.publish(PAGES, filling);
    let view = pager.view(image, PAGES);
    let begin = Instant::now();
    for i in 0..1000 {
        byte(&view, (i * 7919) % PAGES);
    }
    let seconds = begin.elapsed().as_secs_f64();
    let served = pager.stats(image).pages_served;
    println!(
        "mapped, at random: {:.1} us a touch, {served} read for 1000",
        seconds * 1e3
    );
}
