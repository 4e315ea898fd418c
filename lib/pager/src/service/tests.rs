//! Spans of reads, and what a publication costs.

use super::*;

#[test]
fn read_is_widened_to_pages_and_cut_at_the_end() {
    let span = |offset, bytes| {
        let span = Span::of(ByteOff(offset), bytes, PageCount(3))?;
        Some((span.first.0, span.pages, span.skip, span.bytes))
    };
    assert_eq!(span(4096, 4096), Some((1, 1, 0, 4096)));
    assert_eq!(span(4095, 2), Some((0, 2, 4095, 2)));
    assert_eq!(span(8192, 1 << 20), Some((2, 1, 0, 4096)));
    assert_eq!(span(3 * 4096, 1), None);
    assert_eq!(span(u64::MAX, 1), None);
    assert_eq!(span(0, 0), None);
}

/// Prints how long faults wait for the catalog while an image of 4 GiB is published.
#[test]
#[ignore = "prints figures"]
fn what_a_publication_costs_those_who_fault() {
    use forkyard_image::{Checksum, LayerBuilder, Lineage, Slot};
    use std::sync::atomic::{AtomicBool, Ordering};
    let pages = 1 << 20;
    let layer = |image| {
        let file = forkyard_sys_host::memory::anonymous_file("test", forkyard_types::ByteCount(0));
        let file = file.expect("memfd");
        let parent = None;
        let mut builder = LayerBuilder::new(Lineage { image, parent }, PageCount(pages));
        for page in 0..pages {
            builder.data(PageNo(page), Slot(page), Checksum::of(&page.to_le_bytes()));
        }
        builder.finish(&file).expect("a layer");
        Layer::open(file).expect("a layer")
    };
    let past = Recovered {
        catalog: Catalog::new(),
        successor_state: None,
        answered: Answered::default(),
    };
    let service = Service::start(PagerOptions::default(), past).expect("starts");
    let first = ImageId::random();
    service.publish(layer(first)).expect("publishes");
    let (node, _) = service.catalog().find(first).expect("known");
    let layers: Vec<_> = (0..4).map(|_| layer(ImageId::random())).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let faults = scope.spawn(|| {
            let mut waits = Vec::new();
            for page in (0..pages).cycle() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let begun = Instant::now();
                let pages = PageCount(1);
                let run = Run {
                    first: PageNo(page),
                    pages,
                };
                service.catalog().served(node, run, begun);
                waits.push(begun.elapsed());
                thread::sleep(Duration::from_micros(100));
            }
            waits
        });
        let begun = Instant::now();
        for layer in layers {
            service.publish(layer).expect("publishes");
        }
        let took = begun.elapsed();
        done.store(true, Ordering::Relaxed);
        let mut waits = faults.join().expect("no panic");
        waits.sort();
        let at = |part: usize| waits[(waits.len() - 1) * part / 1000];
        println!(
            "{} faults in {took:?}: p50 {:?}, p99 {:?}, most {:?}",
            waits.len(),
            at(500),
            at(990),
            at(1000)
        );
    });
}
