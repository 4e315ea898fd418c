//! Pagers die, or make way, and no process that maps their files notices.

use crate::harness::{Fixture, Settings, byte, eventually, filling, kill_9, layer, memory_files};
use crate::puppet::{Order, Puppet};
use forkyard_image::Lineage;
use forkyard_pager::{PagerRefusal, Shutdown, is_mounted};
use forkyard_types::{ImageId, PageCount};
use nix::mount::{MntFlags, umount2};
use std::os::unix::process::ExitStatusExt;
use std::thread;
use std::time::Duration;

const PAGES: u64 = 20_000;

fn kept() -> Fixture {
    let pager = Fixture::with(Settings {
        kept: true,
        ..Settings::default()
    });
    eventually("it has a keeper", || pager.keeper().is_some());
    pager
}

fn alone() -> Lineage {
    Lineage {
        image: ImageId::random(),
        parent: None,
    }
}

/// Kills the pager and waits until another answers.
fn crash(pager: &Fixture) {
    let before = pager.client.pid().expect("answers");
    kill_9(before);
    eventually("another answers", || {
        pager.client.pid().is_ok_and(|pid| pid != before)
    });
}

#[test]
fn killed_pager_is_replaced_under_mappings_that_live_on() {
    let pager = kept();
    let root = pager.publish(PAGES, filling);
    let child = Lineage {
        image: ImageId::random(),
        parent: Some(root),
    };
    let changed = |n: u64| if n.is_multiple_of(100) { 251 } else { 0 };
    let file = layer(child, PAGES, changed);
    pager.client.publish(child, file).expect("publishes");
    let right = |n: u64| {
        if n.is_multiple_of(100) {
            251
        } else {
            filling(n)
        }
    };
    let mut clone = Puppet::start(PAGES, Some(&pager.path(child.image)));
    let view = pager.view(child.image, PAGES);
    for round in 0..3 {
        crash(&pager);
        let page = round * 6_000 + 300;
        // Not in the kernel's cache: comes from the new pager.
        assert_eq!(clone.tell(Order::Read(page + 1)), Some(right(page + 1)));
        assert_eq!(byte(&view, page + 2_000), right(page + 2_000));
    }
    // What was open is counted as open, once, and closed as well.
    assert_eq!(pager.stats(child.image).users, 2);
    pager.client.retire(root).expect("still known");
    pager.client.retire(child.image).expect("still known");
    crash(&pager);
    assert_eq!(clone.tell(Order::Read(19_999)), Some(right(19_999)));
    let gone = pager.client.stats(child.image).expect_err("has no name");
    assert!(matches!(
        gone.refusal(),
        Some(PagerRefusal::UnknownImage { .. })
    ));
    assert!(pager.open(child.image).is_err());
    clone.kill();
    drop(view);
    eventually("no file is open", || {
        pager.client.shutdown(Shutdown::WhenUnused).is_ok()
    });
    eventually("both halves have gone", || pager.halves().is_empty());
}

#[test]
fn reads_that_wait_wait_on_with_the_next_pager() {
    let pager = kept();
    let lineage = alone();
    pager
        .client
        .promise(lineage.image, PageCount(PAGES))
        .expect("new");
    let path = pager.path(lineage.image);
    let mut clones: Vec<Puppet> = (0..20).map(|_| Puppet::start(PAGES, Some(&path))).collect();
    for (clone, page) in clones.iter_mut().zip((0..).step_by(900)) {
        clone.send(Order::Read(page));
    }
    pager.wait_asked(clones.iter().map(Puppet::pid));
    crash(&pager);
    crash(&pager);
    let file = layer(lineage, PAGES, filling);
    pager.client.publish(lineage, file).expect("publishes");
    for (clone, page) in clones.iter_mut().zip((0..).step_by(900)) {
        assert_eq!(clone.hear(), Some(u64::from(filling(page))));
    }
    assert_eq!(pager.stats(lineage.image).users, 20);
    drop(clones);
    eventually("all are closed", || pager.stats(lineage.image).users == 0);
}

#[test]
fn readers_survive_a_pager_that_is_killed_again_and_again() {
    let pager = kept();
    let image = pager.publish(PAGES, filling);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..3u64)
            .map(|n| {
                let path = pager.path(image);
                scope.spawn(move || {
                    let mut clone = Puppet::start(PAGES, Some(&path));
                    for step in 0..400 {
                        let page = (step * 7_919 + n * 131) % PAGES;
                        assert_eq!(clone.tell(Order::Read(page)), Some(filling(page)));
                        thread::sleep(Duration::from_millis(1));
                    }
                })
            })
            .collect();
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(60));
            crash(&pager);
        }
        readers
            .into_iter()
            .for_each(|reader| reader.join().expect("unharmed"));
    });
    eventually("all are closed", || pager.stats(image).users == 0);
}

#[test]
fn killed_keeper_is_replaced_and_the_pager_can_die_after_it() {
    let pager = kept();
    let image = pager.publish(PAGES, filling);
    let mut clone = Puppet::start(PAGES, Some(&pager.path(image)));
    for round in 0..3 {
        let keeper = pager.keeper().expect("is there");
        kill_9(keeper);
        // It says nothing of what it has been given: the journal and, last of all, the layer.
        eventually("another has all there is", || {
            let next = pager.keeper().filter(|pid| *pid != keeper);
            next.is_some_and(|pid| memory_files(pid).is_ok_and(|files| files == 2))
        });
        crash(&pager);
        assert_eq!(
            clone.tell(Order::Read(round * 5_000)),
            Some(filling(round * 5_000))
        );
    }
    assert_eq!(clone.tell(Order::Read(19_999)), Some(filling(19_999)));
}

#[test]
fn pager_makes_way_for_another_program() {
    let pager = kept();
    let image = pager.publish(PAGES, filling);
    let mut clone = Puppet::start(PAGES, Some(&pager.path(image)));
    assert_eq!(clone.tell(Order::Read(1)), Some(filling(1)));
    let (before, keeper) = (pager.client.pid().expect("answers"), pager.keeper());
    let program = std::env::current_exe().expect("we are a program");
    pager.client.replace(&program).expect("replaced");
    assert_ne!(pager.client.pid().expect("answers"), before);
    eventually("it brings its own keeper", || {
        pager.keeper().is_some_and(|pid| Some(pid) != keeper)
    });
    assert_eq!(clone.tell(Order::Read(15_000)), Some(filling(15_000)));
    let nothing = pager.client.replace("/no/such/program".as_ref());
    assert!(matches!(
        nothing.expect_err("refused").refusal(),
        Some(PagerRefusal::Host { .. })
    ));
    assert_eq!(clone.tell(Order::Read(10_000)), Some(filling(10_000)));
}

#[test]
fn pager_whose_mount_has_gone_makes_way_for_none() {
    let pager = kept();
    let image = pager.publish(PAGES, filling);
    let mut clone = Puppet::start(PAGES, Some(&pager.path(image)));
    let mount = pager.path(image).parent().expect("a folder").to_owned();
    assert!(is_mounted(&mount));
    // As one that is ending, and waits for its last file to be closed.
    umount2(&mount, MntFlags::MNT_DETACH).expect("taken away");
    assert!(!is_mounted(&mount));
    let program = std::env::current_exe().expect("we are a program");
    let refused = pager.client.replace(&program).expect_err("refused");
    assert!(matches!(refused.refusal(), Some(PagerRefusal::NoSuccessor)));
    assert_eq!(clone.tell(Order::Read(1)), Some(filling(1)));
}

#[test]
fn both_halves_killed_at_once_are_an_error_and_not_a_hang() {
    let pager = kept();
    let image = alone().image;
    pager.client.promise(image, PageCount(64)).expect("new");
    let mut clone = Puppet::start(64, Some(&pager.path(image)));
    clone.send(Order::Read(1));
    pager.wait_asked([clone.pid()]);
    // Stopped first, so that neither can replace the other.
    let halves = pager.halves();
    for (pid, _) in &halves {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(*pid).expect("a pid"));
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).expect("ours");
    }
    halves.iter().for_each(|(pid, _)| kill_9(*pid));
    assert_eq!(clone.hear(), None);
    assert_eq!(clone.wait().signal(), Some(nix::libc::SIGBUS));
}
