//! Capture of processes that really have the memory.

mod puppet;

use forkyard_capture::{CaptureError, Captured, HostAddr, MemoryRegion, Pages, capture, count};
use forkyard_image::{Image, Layer, Lineage};
use forkyard_sys_host::memory::anonymous_file;
use forkyard_types::{ByteCount, ImageId, PAGE_SIZE, PageCount, PageNo};
use puppet::{Order, Puppet, pattern};
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

const PAGES: u64 = 5000;

fn alone() -> Lineage {
    Lineage {
        image: ImageId::random(),
        parent: None,
    }
}

fn copy(puppet: &Puppet, lineage: Lineage, threads: usize) -> Captured {
    let threads = NonZeroUsize::new(threads).expect("some");
    capture(
        puppet.pid(),
        puppet.region(),
        lineage,
        Pages::Private,
        threads,
    )
    .expect("captures")
}

/// Returns the byte that a page is filled with in these tests; never 0.
fn filling(page: u64) -> u8 {
    u8::try_from(page % 200 + 1).expect("a byte")
}

fn image(file: File, parent: Option<&Image>) -> Image {
    Image::new(Arc::new(Layer::open(file).expect("a layer")), parent).expect("an image")
}

fn page(image: &Image, number: u64) -> [u8; PAGE_SIZE] {
    let mut out = [0xee; PAGE_SIZE];
    image.read(PageNo(number), &mut out).expect("reads");
    out
}

/// A file of `PAGES` pages, each filled from its number, and a name for it that
/// other processes of ours can open.
fn numbered_file() -> (File, PathBuf) {
    let file = anonymous_file("test", ByteCount(PAGES * PAGE_SIZE as u64)).expect("memfd");
    for number in 0..PAGES {
        file.write_all_at(&pattern(filling(number)), number * PAGE_SIZE as u64)
            .expect("writes");
    }
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    (file, path.into())
}

#[test]
fn anonymous_memory_is_captured_as_it_is() {
    let mut puppet = Puppet::start(PAGES, None);
    // At the edges of units and batches, alone and in runs.
    let touched: Vec<u64> = [0, 1, 63, 64, 65, 1023, 1024, 2047, 3000, PAGES - 1]
        .into_iter()
        .chain(3100..3300)
        .collect();
    for number in &touched {
        puppet
            .tell(Order::Fill(*number, filling(*number)))
            .expect("does");
    }
    puppet.tell(Order::Fill(2000, 9)).expect("does");
    puppet.tell(Order::Fill(2000, 0)).expect("does");
    for threads in [1, 2, 7] {
        let captured = copy(&puppet, alone(), threads);
        let counts = captured.counts();
        assert_eq!(counts.captured, PageCount(touched.len() as u64));
        assert_eq!(
            (counts.zero, counts.scanned.0),
            (PageCount(1), counts.captured.0 + 1)
        );
        let image = image(captured.finish().expect("a layer"), None);
        assert_eq!(image.own_pages(), counts.captured);
        for number in 0..PAGES {
            let byte = if touched.contains(&number) {
                filling(number)
            } else {
                0
            };
            assert_eq!(page(&image, number), pattern(byte), "page {number}");
        }
    }
}

#[test]
fn clone_is_captured_as_what_it_changed() {
    let (file, path) = numbered_file();
    let parent_id = ImageId::random();
    let parent_file = tempfile();
    let lineage = Lineage {
        image: parent_id,
        parent: None,
    };
    forkyard_image::write_file(&file, lineage, &parent_file).expect("writes");
    let parent = image(parent_file, None);

    let mut puppet = Puppet::start(PAGES, Some(&path));
    for number in 0..40 {
        // Read only: stays the parent's.
        puppet.tell(Order::Read(number)).expect("does");
    }
    puppet.tell(Order::Fill(7, 77)).expect("does");
    puppet.tell(Order::Fill(4000, 99)).expect("does");
    puppet.tell(Order::Fill(8, 0)).expect("does");
    puppet.tell(Order::Fill(9, 55)).expect("does");
    puppet.tell(Order::Discard(9)).expect("does");
    assert_eq!(
        count(puppet.pid(), puppet.region(), Pages::Private).expect("counts"),
        PageCount(3)
    );

    let lineage = Lineage {
        image: ImageId::random(),
        parent: Some(parent_id),
    };
    let captured = copy(&puppet, lineage, 2);
    assert_eq!(captured.counts().captured, PageCount(2));
    let child = image(captured.finish().expect("a layer"), Some(&parent));
    for number in 0..PAGES {
        let want = match number {
            7 => pattern(77),
            4000 => pattern(99),
            // A zero the clone wrote hides what the parent has there.
            8 => pattern(0),
            _ => page(&parent, number),
        };
        assert_eq!(page(&child, number), want, "page {number}");
    }
}

#[test]
fn page_given_up_is_left_out_and_reads_as_in_the_process() {
    // A VM that booted: what it gives up is zero from then on.
    let mut booted = Puppet::start(PAGES, None);
    for number in 0..10 {
        booted
            .tell(Order::Fill(number, filling(number)))
            .expect("does");
    }
    (3..6).for_each(|number| {
        booted.tell(Order::Discard(number)).expect("does");
    });
    let captured = copy(&booted, alone(), 2);
    assert_eq!(captured.counts().scanned, PageCount(7));
    let parent_id = ImageId::random();
    let lineage = Lineage {
        image: parent_id,
        parent: None,
    };
    let whole = copy(&booted, lineage, 2).finish().expect("a layer");
    let parent = image(whole, None);
    assert_eq!(page(&parent, 4), pattern(0));

    // A clone: what it gives up is the image's again, in it and in its clones.
    let (_file, path) = numbered_file();
    let mut clone = Puppet::start(PAGES, Some(&path));
    for number in 0..10 {
        clone
            .tell(Order::Fill(number, filling(number + 1)))
            .expect("does");
    }
    clone.tell(Order::Discard(4)).expect("does");
    assert_eq!(clone.tell(Order::Read(4)), Some(pattern(filling(4))[0]));
    let lineage = Lineage {
        image: ImageId::random(),
        parent: Some(parent_id),
    };
    let captured = copy(&clone, lineage, 2);
    assert_eq!(captured.counts().captured, PageCount(9));
    let child = image(captured.finish().expect("a layer"), Some(&parent));
    assert_eq!(page(&child, 4), page(&parent, 4));
    assert_eq!(page(&child, 5), pattern(filling(6)));
}

#[test]
fn page_given_up_while_it_is_captured_is_whole_or_left_out() {
    let mut puppet = Puppet::start(PAGES, None);
    for number in 0..PAGES {
        puppet.send(Order::Fill(number, filling(number)));
        assert!(puppet.hear().is_some());
    }
    let (pid, region) = (puppet.pid(), puppet.region());
    let captured = std::thread::scope(|scope| {
        let two = NonZeroUsize::new(2).expect("some");
        let captured = scope.spawn(move || capture(pid, region, alone(), Pages::Private, two));
        for number in (0..PAGES).step_by(2) {
            puppet.tell(Order::Discard(number)).expect("does");
        }
        captured.join().expect("no panic").expect("captures")
    });
    let image = image(captured.finish().expect("a layer"), None);
    for number in 0..PAGES {
        let found = page(&image, number);
        let given_up = number.is_multiple_of(2) && found == pattern(0);
        assert!(
            given_up || found == pattern(filling(number)),
            "page {number}"
        );
    }
}

#[test]
fn zero_pages_take_no_memory() {
    let mut puppet = Puppet::start(PAGES, None);
    for number in 0..500 {
        puppet
            .tell(Order::Fill(number, if number % 2 == 0 { 5 } else { 0 }))
            .expect("does");
    }
    let file = copy(&puppet, alone(), 2).finish().expect("a layer");
    let pages = file.metadata().expect("has").blocks() * 512 / PAGE_SIZE as u64;
    // The data, the header, and an index of some thousand bytes.
    assert!((251..260).contains(&pages), "{pages} pages in the file");
}

#[test]
fn finished_layer_can_be_changed_by_no_one() {
    let mut puppet = Puppet::start(10, None);
    puppet.tell(Order::Fill(3, 3)).expect("does");
    let file = copy(&puppet, alone(), 1).finish().expect("a layer");
    assert!(file.write_all_at(b"x", 4096).is_err());
    assert!(file.set_len(0).is_err());
}

#[test]
fn process_goes_on_while_its_copy_is_finished() {
    let mut puppet = Puppet::start(10, None);
    puppet.tell(Order::Fill(3, 3)).expect("does");
    let captured = copy(&puppet, alone(), 2);
    puppet.tell(Order::Fill(3, 4)).expect("does");
    puppet.kill();
    let image = image(captured.finish().expect("needs the process no more"), None);
    assert_eq!(page(&image, 3), pattern(3));
}

#[test]
fn dead_process_is_reported_as_gone() {
    let mut puppet = Puppet::start(10, None);
    let (pid, region) = (puppet.pid(), puppet.region());
    puppet.kill();
    let result = capture(pid, region, alone(), Pages::Private, NonZeroUsize::MIN);
    assert!(
        matches!(result, Err(CaptureError::Gone { .. })),
        "{result:?}"
    );
    assert!(matches!(
        count(pid, region, Pages::Private),
        Err(CaptureError::Gone { .. })
    ));
}

#[test]
fn process_killed_midway_is_reported_as_gone_or_was_captured_before() {
    // Killed at various points: which is a matter of luck, but none may hang,
    // panic or yield another error.
    for delay in 0..20 {
        let mut puppet = Puppet::start(PAGES, None);
        (0..PAGES)
            .step_by(3)
            .for_each(|number| puppet.send(Order::Fill(number, 1)));
        (0..PAGES)
            .step_by(3)
            .for_each(|_| assert!(puppet.hear().is_some()));
        let (pid, region) = (puppet.pid(), puppet.region());
        let captured = std::thread::scope(|scope| {
            let two = NonZeroUsize::new(2).expect("some");
            let captured = scope.spawn(move || capture(pid, region, alone(), Pages::Private, two));
            std::thread::sleep(std::time::Duration::from_micros(delay * 100));
            puppet.kill();
            captured.join().expect("no panic")
        });
        match captured {
            Ok(captured) => assert_eq!(captured.counts().captured, PageCount(PAGES.div_ceil(3))),
            Err(error) => assert!(matches!(error, CaptureError::Gone { .. }), "{error:?}"),
        }
    }
}

#[test]
fn memory_that_is_not_there_is_an_error_and_not_zeros() {
    let puppet = Puppet::start(10, None);
    let odd = MemoryRegion {
        start: HostAddr(puppet.region().start.0 + 1),
        pages: PageCount(1),
    };
    let huge = MemoryRegion {
        start: puppet.region().start,
        pages: PageCount(u64::MAX / 2),
    };
    for region in [odd, huge] {
        let result = capture(
            puppet.pid(),
            region,
            alone(),
            Pages::Private,
            NonZeroUsize::MIN,
        );
        assert!(
            matches!(result, Err(CaptureError::Region { .. })),
            "{result:?}"
        );
    }
}

fn tempfile() -> File {
    anonymous_file("test", ByteCount(0)).expect("memfd")
}

/// `cargo test --release -p forkyard-capture -- --ignored --nocapture speed`
#[test]
#[ignore = "a measurement"]
fn speed_of_128_mib_in_512() {
    const REGION: u64 = (512 << 20) / PAGE_SIZE as u64;
    let mut puppet = Puppet::start(REGION, None);
    let (mut touched, mut number) = (0u64, 0);
    while touched < REGION / 4 {
        let run = 1 + (number * 7919) % 64;
        for page in number..number + run {
            puppet.send(Order::Fill(
                page,
                if page % 5 == 0 { 0 } else { filling(page) },
            ));
            assert!(puppet.hear().is_some());
        }
        touched += run;
        number += run + (number * 104_729) % 150;
        if number + 64 > REGION {
            break;
        }
    }
    for threads in [1, 2, 3] {
        for _ in 0..5 {
            let captured = copy(&puppet, alone(), threads);
            let counts = captured.counts();
            let begin = std::time::Instant::now();
            let file = captured.finish().expect("a layer");
            let finish = begin.elapsed();
            // Giving the memory back takes longer than either.
            drop(file);
            println!(
                "{threads} threads: {} scanned, {} data: copied in {:?}, finished in {finish:?}",
                counts.scanned, counts.captured, counts.elapsed
            );
        }
    }
}
