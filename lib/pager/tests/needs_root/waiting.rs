//! Images that are promised: reads wait, and only they.

use crate::harness::{Fixture, byte, eventually, filling, layer};
use crate::puppet::{Order, Puppet};
use forkyard_image::Lineage;
use forkyard_pager::PagerRefusal;
use forkyard_types::{ImageId, PageCount};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::mpsc;
use std::thread;

const SIGBUS: i32 = nix::libc::SIGBUS;

fn alone() -> Lineage {
    Lineage {
        image: ImageId::random(),
        parent: None,
    }
}

#[test]
fn read_waits_for_the_image_and_then_sees_it() {
    let pager = Fixture::start();
    let lineage = alone();
    pager
        .client
        .promise(lineage.image, PageCount(64))
        .expect("new");
    let path = pager.path(lineage.image);
    assert_eq!(path.metadata().expect("exists already").len(), 64 * 4096);
    thread::scope(|scope| {
        let (pid, starts) = mpsc::channel();
        let (said, hears) = mpsc::channel();
        scope.spawn(move || {
            let mut clone = Puppet::start(64, Some(&path));
            pid.send(clone.pid()).expect("listens");
            said.send(clone.tell(Order::Read(9))).expect("listens");
        });
        // One that did not wait would never be seen to.
        pager.wait_asked([starts.recv().expect("starts")]);
        assert!(hears.try_recv().is_err(), "did not wait");
        pager
            .client
            .publish(lineage, layer(lineage, 64, filling))
            .expect("publishes");
        assert_eq!(hears.recv(), Ok(Some(10)));
    });
}

#[test]
fn many_that_wait_keep_no_one_else_waiting() {
    let pager = Fixture::start();
    let (promised, there) = (alone(), pager.publish(64, |_| 7));
    pager
        .client
        .promise(promised.image, PageCount(1 << 20))
        .expect("new");
    let path = pager.path(promised.image);
    // More than the pager has threads, and than the kernel by itself would
    // leave open; far apart, so that each is a request of its own.
    let mut waiting: Vec<Puppet> = (0..40)
        .map(|_| Puppet::start(1 << 20, Some(&path)))
        .collect();
    for (clone, page) in waiting.iter_mut().zip((0..).step_by(10_000)) {
        clone.send(Order::Read(page));
    }
    pager.wait_asked(waiting.iter().map(Puppet::pid));
    let mut other = Puppet::start(64, Some(&pager.path(there)));
    assert_eq!(other.tell(Order::Read(3)), Some(7));
    pager.client.ping().expect("answers");
    let file = layer(promised, 1 << 20, |n| if n % 10_000 == 0 { 9 } else { 0 });
    pager.client.publish(promised, file).expect("publishes");
    for clone in &mut waiting {
        assert_eq!(clone.hear(), Some(9));
    }
}

#[test]
fn failed_image_is_a_bus_error_and_not_a_hang() {
    let pager = Fixture::start();
    let image = alone().image;
    pager.client.promise(image, PageCount(64)).expect("new");
    let mut before = Puppet::start(64, Some(&pager.path(image)));
    let mut after = Puppet::start(64, Some(&pager.path(image)));
    before.send(Order::Read(1));
    pager.wait_asked([before.pid()]);
    pager.client.fail(image, "test").expect("promised");
    assert_eq!(before.hear(), None);
    assert_eq!(before.wait().signal(), Some(SIGBUS));
    assert_eq!(after.tell(Order::Read(1)), None);
    assert_eq!(after.wait().signal(), Some(SIGBUS));
    assert!(
        pager
            .open(image)
            .expect("opens")
            .read_at(&mut [0], 0)
            .is_err()
    );
    let lineage = Lineage {
        image,
        parent: None,
    };
    let late = pager.client.publish(lineage, layer(lineage, 64, |_| 1));
    let late = late.expect_err("too late");
    assert_eq!(late.refusal(), Some(&PagerRefusal::HasFailed { image }));
}

#[test]
fn retiring_a_promise_lets_go_of_those_who_wait() {
    let pager = Fixture::start();
    let image = alone().image;
    pager.client.promise(image, PageCount(64)).expect("new");
    let mut clone = Puppet::start(64, Some(&pager.path(image)));
    clone.send(Order::Read(1));
    pager.wait_asked([clone.pid()]);
    pager.client.retire(image).expect("known");
    assert_eq!(clone.hear(), None);
    assert_eq!(clone.wait().signal(), Some(SIGBUS));
}

#[test]
fn process_that_waits_can_be_killed() {
    let pager = Fixture::start();
    let lineage = alone();
    pager
        .client
        .promise(lineage.image, PageCount(64))
        .expect("new");
    let mut clone = Puppet::start(64, Some(&pager.path(lineage.image)));
    clone.send(Order::Read(1));
    pager.wait_asked([clone.pid()]);
    // Returns only once the process is gone, and nothing is published yet.
    assert_eq!(clone.kill().signal(), Some(nix::libc::SIGKILL));
    pager
        .client
        .publish(lineage, layer(lineage, 64, |_| 5))
        .expect("publishes");
    assert_eq!(byte(&pager.view(lineage.image, 64), 1), 5);
    eventually("its file is closed", || {
        pager.stats(lineage.image).users == 0
    });
}

#[test]
fn pager_that_dies_lets_go_of_those_who_wait() {
    let mut pager = Fixture::start();
    let image = alone().image;
    pager.client.promise(image, PageCount(64)).expect("new");
    let mut clone = Puppet::start(64, Some(&pager.path(image)));
    clone.send(Order::Read(1));
    pager.wait_asked([clone.pid()]);
    pager.kill();
    assert_eq!(clone.hear(), None);
    assert_eq!(clone.wait().signal(), Some(SIGBUS));
}
