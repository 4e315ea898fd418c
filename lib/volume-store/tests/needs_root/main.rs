//! Volumes on disks without room. Takes root: it mounts small ones.

use forkyard_volume::{Takeover, View};
use forkyard_volume_store::{AtRest, Library, Patience, Scratch, Store, StoreError};
use std::{path::Path, process::Command};

/// Small disk, unmounted when it is dropped.
struct Disk(tempfile::TempDir);

impl Disk {
    fn mount(size: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        run(
            "mount",
            &["-t", "tmpfs", "-o", size, "tmpfs"],
            folder.path(),
        );
        Self(folder)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &["-l"], self.0.path());
    }
}

fn run(program: &str, arguments: &[&str], path: &Path) {
    let status = Command::new(program).args(arguments).arg(path).status();
    assert!(status.expect("runs").success(), "{program} (as root)");
}

fn byte(store: &Store, block: u64) -> u8 {
    let (mut out, mut scratch) = ([0; 4096], Scratch::default());
    let view = View::Current;
    let read = store.read(view, block * 4096, &mut out, &mut scratch, Patience::Wait);
    read.expect("reads");
    assert_eq!(out, [out[0]; 4096]);
    out[0]
}

#[test]
fn a_write_without_room_fails_alone_and_nothing_of_it_comes_back() {
    let disk = Disk::mount("size=1m");
    let library = Library::new(disk.0.path()).expect("a folder");
    let store = library
        .create("v", 256 * 4096, &AtRest::Plain)
        .expect("made");
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    for block in 0..200 {
        store
            .write(epoch, block * 4096, &[1; 4096])
            .expect("writes");
    }
    // Some of it fits, and is whole.
    let refused = store.write(epoch, 0, &[2; 200 * 4096]);
    assert!(
        matches!(refused, Err(StoreError::NoRoom { .. })),
        "{refused:?}"
    );
    for block in 0..200 {
        assert_eq!(byte(&store, block), 1, "block {block}");
    }
    for block in [7, 0] {
        store
            .write(epoch, block * 4096, &[3; 4096])
            .expect("there is room for some");
    }
    store.flush().expect("flushes");
    drop((store, library));
    let library = Library::new(disk.0.path()).expect("a folder");
    let store = library.open("v").expect("opens");
    for block in 0..200 {
        let expected = if block == 7 || block == 0 { 3 } else { 1 };
        assert_eq!(byte(&store, block), expected, "block {block}");
    }
    // Compaction has no room, either, and harms nothing.
    let policy = forkyard_volume::CompactionPolicy {
        dead_percent: 0,
        most: 9,
    };
    let _ = store.tidy(policy);
    assert_eq!(byte(&store, 9), 1);
}
