//! Tests of the start and end of images and pagers.

use crate::harness::{Fixture, byte, eventually, filling, layer};
use crate::puppet::{Order, Puppet};
use forkyard_image::Lineage;
use forkyard_pager::{PagerError, PagerRefusal, Shutdown};
use forkyard_sys_host::memory::anonymous_file;
use forkyard_types::{ByteCount, ImageId, PageCount};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

fn refusal(result: Result<(), PagerError>) -> PagerRefusal {
    result
        .expect_err("refused")
        .refusal()
        .expect("by the pager")
        .clone()
}

fn lineage(parent: Option<ImageId>) -> Lineage {
    Lineage {
        image: ImageId::random(),
        parent,
    }
}

#[test]
fn retired_image_serves_whoever_has_it_open() {
    let pager = Fixture::start();
    let image = pager.publish(600, filling);
    let mut clone = Puppet::start(600, Some(&pager.path(image)));
    assert!(pager.path(image).exists());
    pager.client.retire(image).expect("known");
    assert!(!pager.path(image).exists(), "the name is still there");
    assert!(pager.open(image).is_err());
    assert_eq!(clone.tell(Order::Read(599)), Some(filling(599)));
    assert_eq!(
        refusal(pager.client.stats(image).map(|_| ())),
        PagerRefusal::UnknownImage { image }
    );
    assert_eq!(pager.layers_open(), 1);
    clone.kill();
    eventually("its memory is free", || pager.layers_open() == 0);
}

#[test]
fn layer_lives_as_long_as_any_image_over_it() {
    // So many that they are not copied into a layer of one page, however long this takes.
    const PAGES: u64 = 600;
    let pager = Fixture::start();
    let root = pager.publish(PAGES, |_| 1);
    let (child, sibling) = (lineage(Some(root)), lineage(Some(root)));
    for lineage in [child, sibling] {
        let file = layer(lineage, PAGES, |n| if n == 3 { 3 } else { 0 });
        pager.client.publish(lineage, file).expect("publishes");
    }
    pager.client.retire(root).expect("known");
    assert_eq!(pager.layers_open(), 3);
    let view = pager.view(child.image, PAGES);
    assert_eq!((byte(&view, 2), byte(&view, 3)), (1, 3));
    pager.client.retire(sibling.image).expect("known");
    eventually("sibling's layer is gone", || pager.layers_open() == 2);
    pager.client.retire(child.image).expect("known");
    assert_eq!((byte(&view, 4), pager.layers_open()), (1, 2));
    drop(view);
    eventually("all layers are gone", || pager.layers_open() == 0);
    assert!(pager.client.list().expect("lists").is_empty());
}

#[test]
fn users_are_counted_until_their_last_mapping_is_gone() {
    let pager = Fixture::start();
    let image = pager.publish(20, |_| 1);
    assert_eq!(pager.stats(image).users, 0);
    let (a, b) = (pager.view(image, 20), pager.view(image, 20));
    assert_eq!(pager.stats(image).users, 2);
    drop(a);
    eventually("one is left", || pager.stats(image).users == 1);
    drop(b);
    eventually("none is left", || pager.stats(image).users == 0);
}

#[test]
fn requests_that_make_no_sense_are_refused_by_their_reason() {
    let pager = Fixture::start();
    let client = &pager.client;
    let image = pager.publish(20, |_| 1);
    let known = Lineage {
        image,
        parent: None,
    };
    assert_eq!(
        refusal(client.promise(image, PageCount(1))),
        PagerRefusal::AlreadyExists { image }
    );
    let again = client.publish(known, layer(known, 20, |_| 2));
    assert_eq!(refusal(again), PagerRefusal::AlreadyExists { image });
    assert_eq!(
        refusal(client.fail(image, "")),
        PagerRefusal::AlreadyExists { image }
    );

    let (other, stranger) = (lineage(None), ImageId::random());
    let unknown = PagerRefusal::UnknownImage { image: stranger };
    assert_eq!(refusal(client.retire(stranger)), unknown);
    assert_eq!(refusal(client.fail(stranger, "")), unknown);
    let orphan = lineage(Some(stranger));
    let parent = refusal(client.publish(orphan, layer(orphan, 20, |_| 1)));
    assert_eq!(parent, PagerRefusal::ParentUnknown { parent: stranger });
    client.promise(stranger, PageCount(20)).expect("new");
    let parent = refusal(client.publish(orphan, layer(orphan, 20, |_| 1)));
    assert_eq!(parent, PagerRefusal::ParentNotReady { parent: stranger });

    let (promised, got) = (PageCount(20), PageCount(21));
    let promise = Lineage {
        image: stranger,
        parent: None,
    };
    let size = refusal(client.publish(promise, layer(promise, 21, |_| 1)));
    assert_eq!(size, PagerRefusal::WrongSize { promised, got });
    let name = refusal(client.publish(other, layer(promise, 20, |_| 1)));
    assert_eq!(
        name,
        PagerRefusal::WrongLineage {
            image: stranger,
            parent: None
        }
    );
    let empty = anonymous_file("empty", ByteCount(0)).expect("memfd");
    let bad = refusal(client.publish(promise, empty));
    assert!(matches!(bad, PagerRefusal::BadLayer { .. }), "{bad:?}");
    // None of which has broken the promise.
    client
        .publish(promise, layer(promise, 20, |_| 1))
        .expect("publishes");
}

#[test]
fn damaged_page_is_an_error_and_its_neighbours_are_not() {
    let pager = Fixture::start();
    let lineage = lineage(None);
    let file = layer(lineage, 2000, filling);
    pager.client.publish(lineage, &file).expect("publishes");
    // Page 1500 is in slot 1500, behind the header.
    file.write_all_at(&[0], 1501 * 4096 + 17)
        .expect("not sealed");
    let open = pager.open(lineage.image).expect("opens");
    assert!(open.read_at(&mut [0; 4096], 1500 * 4096).is_err());
    let mut page = [0; 4096];
    open.read_exact_at(&mut page, 1499 * 4096).expect("intact");
    assert_eq!(page, [filling(1499); 4096]);
    // Where the kernel reads ahead over it, the page it wanted is still right.
    let mut clone = Puppet::start(2000, Some(&pager.path(lineage.image)));
    assert_eq!(clone.tell(Order::Read(1499)), Some(filling(1499)));
    assert_eq!(clone.tell(Order::Read(1500)), None);
    assert_eq!(clone.wait().signal(), Some(nix::libc::SIGBUS));
}

#[test]
fn layer_cut_short_under_the_pager_is_an_error() {
    let pager = Fixture::start();
    let lineage = lineage(None);
    let file = layer(lineage, 2000, |_| 1);
    pager.client.publish(lineage, &file).expect("publishes");
    file.set_len(4096 * 10).expect("not sealed");
    let open = pager.open(lineage.image).expect("opens");
    assert!(open.read_at(&mut [0; 4096], 1500 * 4096).is_err());
    pager.client.ping().expect("still there");
}

#[test]
fn images_outlive_the_client_that_made_them() {
    let mut pager = Fixture::start();
    let image = pager.publish(20, |_| 4);
    // Dropping the only client closes the connection.
    pager.client = pager.connect().expect("a second client");
    let views = pager.client.list().expect("lists");
    assert_eq!(
        views.iter().map(|view| view.id).collect::<Vec<_>>(),
        [image]
    );
    assert_eq!(byte(&pager.view(image, 20), 19), 4);
}

#[test]
fn clones_of_a_client_may_call_from_many_threads() {
    let pager = Fixture::start();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let client = pager.client.clone();
            scope.spawn(move || {
                for _ in 0..50 {
                    let lineage = lineage(None);
                    client
                        .publish(lineage, layer(lineage, 4, |_| 1))
                        .expect("publishes");
                    assert_eq!(
                        client.stats(lineage.image).expect("known").pages,
                        PageCount(4)
                    );
                    client.retire(lineage.image).expect("known");
                }
            });
        }
    });
    // The tidying thread may be looking at some of them.
    eventually("all layers are gone", || pager.layers_open() == 0);
}

#[test]
fn socket_is_its_owners_alone() {
    let pager = Fixture::start();
    let socket = pager.mount().with_file_name("socket");
    assert_eq!(
        socket.metadata().expect("exists").permissions().mode() & 0o777,
        0o600
    );
}

#[test]
fn second_pager_leaves_a_living_one_alone() {
    let pager = Fixture::start();
    let image = pager.publish(20, |_| 4);
    assert!(!pager.start_another());
    assert_eq!(byte(&pager.view(image, 20), 19), 4);
    pager.client.ping().expect("still there");
}

#[test]
fn pager_replaces_one_that_was_killed() {
    let mut pager = Fixture::start();
    let image = pager.publish(20, |_| 4);
    // Holds on to the dead mount.
    let _user: File = pager.open(image).expect("opens");
    pager.kill();
    assert!(pager.open(image).is_err());
    pager.restart();
    // The client notices by itself, and finds the new one.
    pager.client.ping().expect("connects again");
    assert!(pager.client.list().expect("lists").is_empty());
    let image = pager.publish(20, |_| 5);
    assert_eq!(byte(&pager.view(image, 20), 19), 5);
}

#[test]
fn shutdown_waits_for_no_one_but_refuses_while_files_are_open() {
    let mut pager = Fixture::start();
    let image = pager.publish(20, |_| 4);
    let view = pager.view(image, 20);
    let refused = refusal(pager.client.shutdown(Shutdown::WhenUnused));
    assert_eq!(refused, PagerRefusal::InUse { files: 1 });
    assert_eq!(byte(&view, 1), 4);
    drop(view);
    eventually("the file is closed", || pager.stats(image).users == 0);
    pager.client.shutdown(Shutdown::WhenUnused).expect("unused");
    assert!(pager.wait().success());
    assert!(!pager.path(image).exists() && pager.connect().is_err());
}

#[test]
fn shutdown_ends_it_although_a_program_has_a_copy_of_its_mount() {
    let mut pager = Fixture::start();
    let mut holder = Command::new("unshare");
    holder.args(["--mount", "--propagation", "private", "sh", "-c"]);
    holder.args(["echo there; read until_told"]);
    let pipes = holder.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = pipes.spawn().expect("util-linux");
    let mut there = [0; 6];
    let mut said = holder.stdout.take().expect("a pipe");
    said.read_exact(&mut there).expect("it has its mounts");
    pager.client.shutdown(Shutdown::WhenUnused).expect("unused");
    assert!(pager.wait().success());
    drop(holder.stdin.take());
    holder.wait().expect("told");
}

#[test]
fn shutdown_now_ends_it_although_files_are_open() {
    let mut pager = Fixture::start();
    let image = pager.publish(20, |_| 4);
    let mut clone = Puppet::start(20, Some(&pager.path(image)));
    pager.client.shutdown(Shutdown::Now).expect("forced");
    pager.wait();
    assert_eq!(clone.tell(Order::Read(3)), None);
    assert!(!pager.has_mount());
}
