//! An image is the same for all its users, whatever any of them does.

use crate::harness::{Fixture, byte, filling, layer, size};
use crate::puppet::{Order, Puppet, pattern};
use forkyard_image::Lineage;
use forkyard_sys_host::mapping::Mapping;
use forkyard_types::{ImageId, PAGE_SIZE, PageCount, VM_UIDS};
use nix::fcntl::{FallocateFlags, fallocate};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::Barrier;

#[test]
fn clones_see_the_image_and_not_each_other() {
    let pager = Fixture::start();
    let image = pager.publish(300, filling);
    let path = pager.path(image);
    let (mut a, mut b) = (
        Puppet::start(300, Some(&path)),
        Puppet::start(300, Some(&path)),
    );
    assert_eq!(a.tell(Order::Read(5)), Some(6));
    a.tell(Order::Fill(5, 100)).expect("lives");
    b.tell(Order::Fill(6, 200)).expect("lives");
    assert_eq!(
        (a.tell(Order::Read(5)), b.tell(Order::Read(5))),
        (Some(100), Some(6))
    );
    assert_eq!(
        (a.tell(Order::Read(6)), b.tell(Order::Read(6))),
        (Some(7), Some(200))
    );
    let view = pager.view(image, 300);
    (0..300).for_each(|page| assert_eq!(byte(&view, page), filling(page)));
}

#[test]
fn child_image_shows_its_own_pages_over_its_parents() {
    let pager = Fixture::start();
    let parent = pager.publish(10, filling);
    let mut clone = Puppet::start(10, Some(&pager.path(parent)));
    clone.tell(Order::Fill(3, 33)).expect("lives");
    clone.tell(Order::Fill(4, 0)).expect("lives");
    let lineage = Lineage {
        image: ImageId::random(),
        parent: Some(parent),
    };
    let threads = std::num::NonZeroUsize::MIN;
    let captured = forkyard_capture::capture(
        clone.pid(),
        clone.region(),
        lineage,
        forkyard_capture::Pages::Private,
        threads,
    );
    let file = captured.expect("captures").finish().expect("a layer");
    pager.client.publish(lineage, file).expect("publishes");

    let view = pager.view(lineage.image, 10);
    let mut third = [0; PAGE_SIZE];
    view.read(3 * PAGE_SIZE, &mut third).expect("inside");
    assert_eq!(third, pattern(33));
    let others = (0..10).filter(|page| *page != 3);
    others
        .for_each(|page| assert_eq!(byte(&view, page), if page == 4 { 0 } else { filling(page) }));
    assert_eq!(pager.stats(lineage.image).pages, PageCount(1));
    assert_eq!(pager.stats(lineage.image).layers, 2);
}

/// Tries the attacks of a hostile user of a file; each must leave others' views
/// alone.
fn attack(file: &File) {
    assert!(
        file.write_all_at(&[0xff; 4096], 0).is_err(),
        "write was not refused"
    );
    assert!(
        Mapping::shared(file, size(4)).is_err(),
        "shared mapping was not refused"
    );
    assert!(file.set_len(0).is_err() && file.set_len(1 << 20).is_err());
    assert!(
        file.set_len(4 * 4096).is_ok(),
        "keeping the size is no change"
    );
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file, punch, 0, 8192).expect("a balloon may say what it gave up");
    let zero = FallocateFlags::FALLOC_FL_ZERO_RANGE;
    assert!(fallocate(file, zero, 0, 4096).is_err());
    assert!(fallocate(file, FallocateFlags::empty(), 0, 1 << 20).is_err());
}

#[test]
fn no_user_can_change_what_others_see() {
    let pager = Fixture::start();
    let image = pager.publish(4, filling);
    let before = pager.view(image, 4);
    (0..4).for_each(|page| assert_eq!(byte(&before, page), filling(page)));
    before
        .write(3 * PAGE_SIZE, &[99; PAGE_SIZE])
        .expect("inside");
    attack(&pager.open(image).expect("opens"));
    let truncated = File::options()
        .write(true)
        .truncate(true)
        .open(pager.path(image));
    assert!(truncated.is_err());
    let view = pager.view(image, 4);
    (0..4).for_each(|page| assert_eq!(byte(&view, page), filling(page)));
    (0..3).for_each(|page| assert_eq!(byte(&before, page), filling(page)));
    // What a process wrote for itself survives a hole beside and under it.
    assert_eq!(byte(&before, 3), 99);
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(pager.open(image).expect("opens"), punch, 0, 4 * 4096).expect("allowed");
    assert_eq!((byte(&before, 2), byte(&before, 3)), (3, 99));
}

#[test]
fn file_looks_as_qemu_expects() {
    let pager = Fixture::start();
    let (a, b) = (pager.publish(8, filling), pager.publish(9, filling));
    let (stat_a, stat_b) = (pager.path(a).metadata(), pager.path(b).metadata());
    let (stat_a, stat_b) = (stat_a.expect("exists"), stat_b.expect("exists"));
    assert_eq!((stat_a.len(), stat_b.len()), (8 * 4096, 9 * 4096));
    assert_ne!(stat_a.ino(), stat_b.ino());
    assert_eq!(stat_a.permissions().mode() & 0o777, 0o600);
    assert!(fs::set_permissions(pager.path(a), Permissions::from_mode(0o666)).is_err());
}

#[test]
fn directory_tells_no_names_and_takes_only_the_true_ones() {
    let pager = Fixture::start();
    let image = pager.publish(8, filling);
    assert_eq!(fs::read_dir(pager.mount()).expect("lists").count(), 0);
    let upper = pager.mount().join(image.to_string().to_uppercase());
    let hyphens = pager.mount().join(image.0.hyphenated().to_string());
    assert!(pager.path(image).exists());
    assert!(!upper.exists() && !hyphens.exists() && !pager.path(ImageId::random()).exists());
    assert!(File::create(pager.mount().join("new")).is_err());
    assert!(fs::remove_file(pager.path(image)).is_err());
}

#[test]
fn cache_is_shared_by_clones_that_map_before_the_image_comes() {
    let pager = Fixture::start();
    let lineage = Lineage {
        image: ImageId::random(),
        parent: None,
    };
    pager
        .client
        .promise(lineage.image, PageCount(512))
        .expect("new");
    let views: Vec<Mapping> = (0..4).map(|_| pager.view(lineage.image, 512)).collect();
    pager
        .client
        .publish(lineage, layer(lineage, 512, filling))
        .expect("publishes");
    for view in &views {
        (0..512).for_each(|page| assert_eq!(byte(view, page), filling(page)));
    }
    // Once for all, not once for each.
    assert_eq!(pager.stats(lineage.image).pages_served, PageCount(512));
}

#[test]
fn cache_is_kept_when_nobody_has_the_file_open() {
    let pager = Fixture::start();
    let image = pager.publish(512, filling);
    for _ in 0..3 {
        let read = fs::read(pager.path(image)).expect("reads");
        let pages = read.chunks(PAGE_SIZE).zip(0..);
        pages.for_each(|(page, number)| assert!(page.iter().all(|b| *b == filling(number))));
    }
    assert_eq!(pager.stats(image).pages_served, PageCount(512));
}

#[test]
fn reads_need_not_be_of_whole_pages() {
    let pager = Fixture::start();
    let image = pager.publish(3, filling);
    let file = pager.open(image).expect("opens");
    let mut out = [0; 5000];
    let got = file.read_at(&mut out, 4000).expect("reads");
    assert_eq!(got, 5000);
    let want = |i: usize| filling((4000 + i as u64) / 4096);
    assert!(out.iter().enumerate().all(|(i, byte)| *byte == want(i)));
    assert_eq!(file.read_at(&mut out, 3 * 4096 - 10).expect("reads"), 10);
    assert_eq!(file.read_at(&mut out, 3 * 4096).expect("reads"), 0);
}

#[test]
fn readers_at_once_all_see_the_truth() {
    const PAGES: u64 = 4096;
    let pager = Fixture::start();
    let image = pager.publish(PAGES, filling);
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (pager, start) = (&pager, &start);
            scope.spawn(move || {
                let view = pager.view(image, PAGES);
                start.wait();
                for i in 0..PAGES {
                    let page = (i * 1_103 + thread * 517) % PAGES;
                    assert_eq!(byte(&view, page), filling(page));
                }
            });
        }
    });
}

#[test]
fn users_of_the_host_open_no_image_and_users_of_vms_do() {
    let pager = Fixture::start();
    let path = pager.path(pager.publish(3, filling));
    // The kernel checks by these, which are each thread's own.
    let open_as = |uid: u32| {
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| {
                nix::unistd::setfsuid(uid.into());
                File::open(&path).map(drop).map_err(|error| error.kind())
            });
            opening.join().expect("no panic")
        })
    };
    let denied = Err(std::io::ErrorKind::PermissionDenied);
    for stranger in [1, 1000, 65_534, VM_UIDS.start - 1, VM_UIDS.end] {
        assert_eq!(open_as(stranger), denied, "user {stranger}");
    }
    for user in [0, VM_UIDS.start, VM_UIDS.end - 1] {
        assert_eq!(open_as(user), Ok(()), "user {user}");
    }
}
