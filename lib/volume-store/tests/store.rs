//! Volumes in real files, against a plain buffer.

use fastrand::Rng;
use forkyard_volume::{
    ChangeRefusal, CompactionPolicy, Damage, Geometry, Opening, Takeover, View, WriterEpoch,
};
use forkyard_volume_store::{AtRest, Found, Library, Patience, Scratch, Store, StoreError};
use std::{fs, os::unix::fs::FileExt, path::Path, sync::Arc};

const SIZE: u64 = 200 * 4096;

fn library(folder: &Path) -> Library {
    let geometry = Geometry::new(5).expect("32 slots");
    Library::with_geometry(folder, geometry).expect("a folder")
}

/// Half of the histories are those of encrypted volumes.
fn at_rest(seed: u64) -> AtRest {
    match seed % 2 {
        0 => AtRest::Plain,
        _ => AtRest::Encrypted { key: None },
    }
}

fn content(store: &Store, view: View) -> Vec<u8> {
    let size = store.size(view).expect("there");
    let mut out = vec![1; usize::try_from(size).expect("small")];
    let mut scratch = Scratch::default();
    let read = store.read(view, 0, &mut out, &mut scratch, Patience::Wait);
    read.expect("reads");
    out
}

#[test]
fn bytes_written_anywhere_are_read_again_after_compaction_and_reopening() {
    for seed in 0..30 {
        let mut rng = Rng::with_seed(seed);
        let folder = tempfile::tempdir().expect("a folder");
        let mut library = library(folder.path());
        let made = library.create("v", SIZE, &at_rest(seed));
        let mut store = made.expect("made");
        let mut epoch = store.open_writer(Takeover::Refused).expect("opens");
        let mut model = vec![0u8; usize::try_from(SIZE).expect("small")];
        let mut kept: Vec<(String, Vec<u8>)> = Vec::new();
        for step in 0..150 {
            let longest = if rng.bool() { 40 } else { 50_000 };
            let length = rng.usize(1..longest);
            let at = rng.usize(0..model.len() - length);
            let offset = at as u64;
            match rng.u8(0..100) {
                0..55 => {
                    let data: Vec<u8> = (0..length).map(|_| rng.u8(..)).collect();
                    store.write(epoch, offset, &data).expect("writes");
                    model[at..][..length].copy_from_slice(&data);
                }
                55..70 => {
                    store.zero(epoch, offset, length as u64).expect("zeroes");
                    model[at..][..length].fill(0);
                }
                70..75 => store.flush().expect("flushes"),
                75..82 => {
                    let name = format!("s{step}");
                    store.snapshot(&name).expect("a snapshot");
                    kept.push((name, model.clone()));
                }
                82..86 => {
                    if !kept.is_empty() {
                        let (name, _) = kept.swap_remove(rng.usize(0..kept.len()));
                        let id = store.snapshot_called(&name).expect("there");
                        store.drop_snapshot(id).expect("removed");
                    }
                }
                86..94 => {
                    let policy = CompactionPolicy {
                        dead_percent: 10,
                        most: 3,
                    };
                    store.tidy(policy).expect("tidied");
                }
                94..97 => epoch = store.open_writer(Takeover::Allowed).expect("opens"),
                _ => {
                    drop((store, library));
                    library = self::library(folder.path());
                    store = library.open("v").expect("opens");
                    assert_eq!(store.writer(), (epoch, Opening::Open));
                }
            }
            let mut part = vec![9; length];
            let mut scratch = Scratch::default();
            let patience = Patience::Wait;
            let found = store.read(View::Current, offset, &mut part, &mut scratch, patience);
            assert_eq!(part, model[at..][..length], "seed {seed}, step {step}");
            if found.expect("reads") == Found::Zeroes {
                assert!(part.iter().all(|it| *it == 0));
            }
        }
        assert_eq!(content(&store, View::Current), model, "seed {seed}");
        for (name, then) in &kept {
            let id = store.snapshot_called(name).expect("there");
            assert_eq!(
                &content(&store, View::Snapshot(id)),
                then,
                "seed {seed}, {name}"
            );
        }
    }
}

#[test]
fn compaction_gives_room_back_while_others_read_and_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library(folder.path());
    let store = library.create("v", SIZE, &AtRest::Plain).expect("made");
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    std::thread::scope(|scope| {
        let writers: [_; 2] = std::array::from_fn(|half| {
            let store = Arc::clone(&store);
            scope.spawn(move || {
                let (mut scratch, mut out) = (Scratch::default(), [0; 4096]);
                let mut rng = Rng::with_seed(half as u64);
                let mut written = [0u8; 100];
                for _ in 0..5000 {
                    let index = rng.usize(0..100);
                    let offset = (half * 100 + index) as u64 * 4096;
                    let view = View::Current;
                    let read = store.read(view, offset, &mut out, &mut scratch, Patience::Wait);
                    read.expect("reads");
                    assert_eq!(out, [written[index]; 4096]);
                    written[index] = rng.u8(..);
                    let data = [written[index]; 4096];
                    store.write(epoch, offset, &data).expect("writes");
                }
            })
        });
        while !writers.iter().all(|it| it.is_finished()) {
            let policy = CompactionPolicy {
                dead_percent: 10,
                most: 100,
            };
            store.tidy(policy).expect("tidied");
        }
    });
    let before = store.facts().last_version;
    let policy = CompactionPolicy {
        dead_percent: 1,
        most: 1000,
    };
    for _ in 0..3 {
        store.tidy(policy).expect("tidied");
    }
    let segments = fs::read_dir(folder.path().join("v")).expect("listed");
    let segments = segments.filter(|it| {
        let name = it.as_ref().expect("named").file_name();
        name.to_string_lossy().ends_with(".seg")
    });
    let (segments, least) = (segments.count(), 200 / 32 + 1);
    assert!(
        segments <= least * 2,
        "{segments} segments of {} writes",
        before
    );
}

#[test]
fn volumes_are_listed_described_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library(folder.path());
    for name in ["", "a.b", "../x", "a/b", &"n".repeat(65)] {
        let refused = library.create(name, SIZE, &AtRest::Plain);
        assert!(matches!(refused, Err(StoreError::Name(_))), "{name}");
    }
    let odd = library.create("odd", 4097, &AtRest::Plain);
    assert!(matches!(odd, Err(StoreError::Size(4097))));
    let store = library.create("one", SIZE, &AtRest::Plain).expect("made");
    assert!(matches!(
        library.create("one", SIZE, &AtRest::Plain),
        Err(StoreError::Exists(_))
    ));
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    assert_eq!(epoch, WriterEpoch(1));
    store.write(epoch, 4096, &[1; 8192]).expect("writes");
    store.snapshot("s").expect("a snapshot");
    let facts = library.inspect("one").expect("there");
    assert_eq!((facts.size, facts.written), (SIZE, 8192));
    assert_eq!(
        (facts.epoch, facts.opening),
        (WriterEpoch(1), Opening::Open)
    );
    assert_eq!(facts.snapshots[0].name, "s");
    let refused = library.remove("one");
    assert!(matches!(
        refused,
        Err(StoreError::Refused(ChangeRefusal::Open(WriterEpoch(1))))
    ));
    store.close_writer(epoch).expect("closes");
    let late = store.write(epoch, 0, &[1; 4096]);
    assert!(matches!(
        late,
        Err(StoreError::Refused(ChangeRefusal::Fenced { .. }))
    ));
    let second = self::library(folder.path()).open("one");
    assert!(
        matches!(second, Err(StoreError::InUse(_))),
        "another has it open"
    );
    library.remove("one").expect("removed");
    assert_eq!(library.names().expect("listed"), Vec::<String>::new());
    assert!(matches!(library.open("one"), Err(StoreError::Unknown(_))));
}

#[test]
fn two_writers_are_refused_and_one_that_is_replaced_is_fenced() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library(folder.path());
    let store = library.create("v", SIZE, &AtRest::Plain).expect("made");
    let first = store.open_writer(Takeover::Refused).expect("opens");
    let refused = store.open_writer(Takeover::Refused);
    assert!(
        matches!(refused, Err(StoreError::Refused(ChangeRefusal::Open(epoch))) if epoch == first)
    );
    let second = store.open_writer(Takeover::Allowed).expect("takes over");
    assert!(second > first);
    for late in [store.write(first, 0, &[1; 10]), store.close_writer(first)] {
        assert!(matches!(
            late,
            Err(StoreError::Refused(ChangeRefusal::Fenced { .. }))
        ));
    }
    store.write(second, 0, &[1; 10]).expect("writes");
}

#[test]
fn raw_disks_go_in_and_out_with_their_holes() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library(folder.path());
    let (raw, out) = (folder.path().join("raw.img"), folder.path().join("out.img"));
    let mut disk = vec![0; 300_000];
    disk[100_000..200_001].fill(7);
    fs::write(&raw, &disk).expect("written");
    let store = library.create("v", SIZE, &AtRest::Plain).expect("made");
    store.import(&raw).expect("imports");
    assert_eq!(store.facts().written, 25 * 4096);
    assert_eq!(store.writer().1, Opening::Closed);
    store.export(View::Current, &out).expect("exports");
    disk.resize(usize::try_from(SIZE).expect("small"), 0);
    assert_eq!(fs::read(&out).expect("read"), disk);
    let small = library.create("small", 4096, &AtRest::Plain).expect("made");
    assert!(matches!(
        small.import(&raw),
        Err(StoreError::TooLarge { .. })
    ));
}

#[test]
fn a_block_that_was_changed_on_disk_is_never_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library(folder.path());
    let store = library.create("v", SIZE, &AtRest::Plain).expect("made");
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    store.write(epoch, 0, &[1; 8192]).expect("writes");
    let file = folder.path().join("v/0000000001.seg");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(file)
        .expect("opens");
    // The first slot is the opening.
    file.write_all_at(&[9], 64 + 4144 + 1000).expect("written");
    let (mut out, mut scratch) = ([0; 4096], Scratch::default());
    let damaged = store.read(View::Current, 0, &mut out, &mut scratch, Patience::Wait);
    assert!(matches!(
        damaged,
        Err(StoreError::Damaged(Damage::Block { .. }))
    ));
    let whole = store.read(View::Current, 4096, &mut out, &mut scratch, Patience::Wait);
    assert_eq!(whole.expect("reads"), Found::Data);
    assert_eq!(out, [1; 4096]);
}

#[test]
fn a_checkpoint_is_due_by_what_was_written_and_not_by_the_size() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = Library::new(folder.path()).expect("a folder");
    let store = library.create("v", 4 << 40, &AtRest::Plain).expect("made");
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    let piece = vec![5; 1 << 20];
    for _ in 0..3 {
        for at in 0..100 {
            store.write(epoch, at << 20, &piece).expect("writes");
        }
    }
    let done = store.upkeep().expect("kept up");
    assert!(done.checkpoint);
    assert!(done.removed >= 2, "two thirds are dead: {done:?}");
    assert!(!store.upkeep().expect("kept up").checkpoint);
}

#[test]
fn a_read_that_may_not_wait_says_that_a_disk_has_to_be_asked() {
    // On a disk: what is in a file system of memory is always there.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let library = library(folder.path());
    let store = library.create("v", SIZE, &AtRest::Plain).expect("made");
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    store.write(epoch, 0, &vec![6; 100 * 4096]).expect("writes");
    store.flush().expect("flushes");
    let file = fs::File::open(folder.path().join("v/0000000002.seg")).expect("opens");
    let advice = rustix::fs::Advice::DontNeed;
    rustix::fs::fadvise(&file, 0, None, advice).expect("evicted");
    let (mut out, mut scratch) = (vec![0; 20 * 4096], Scratch::default());
    let mut read = |patience| {
        // The second segment begins with block 31.
        store.read(View::Current, 40 * 4096, &mut out, &mut scratch, patience)
    };
    assert!(matches!(read(Patience::Now), Err(StoreError::NotCached)));
    assert_eq!(read(Patience::Wait).expect("reads"), Found::Data);
    assert_eq!(read(Patience::Now).expect("is cached now"), Found::Data);
    assert!(out.iter().all(|it| *it == 6));
}

#[test]
fn an_import_that_fails_or_is_cut_off_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let raw = folder.path().join("raw.img");
    fs::write(&raw, vec![7; 10_000]).expect("written");
    // What a server leaves that was killed meanwhile.
    let cut = folder.path().join("d.3.new");
    fs::create_dir(&cut).expect("made");
    fs::write(cut.join("0000000001.seg"), "half").expect("written");
    let library = library(folder.path());
    assert!(!cut.exists());
    let none = library.import("d", Path::new("/dev/zero"), None, &AtRest::Plain);
    assert!(matches!(none, Err(StoreError::NoDisk(_))), "{none:?}");
    let small = library.import("d", &raw, Some(4096), &AtRest::Plain);
    assert!(
        matches!(small, Err(StoreError::TooLarge { .. })),
        "{small:?}"
    );
    let entries = fs::read_dir(folder.path()).expect("listed").count();
    assert_eq!(entries, 1, "the raw disk alone");
    library
        .import("d", &raw, Some(SIZE), &AtRest::Plain)
        .expect("imports");
    let store = library.open("d").expect("opens");
    let read = content(&store, View::Current);
    assert_eq!((read.len() as u64, read[9_999], read[10_000]), (SIZE, 7, 0));
    assert_eq!(store.writer().1, Opening::Closed);
    let taken = library.import("d", &raw, None, &AtRest::Plain);
    assert!(matches!(taken, Err(StoreError::Exists(_))), "{taken:?}");
}

#[test]
fn a_volume_that_is_damaged_can_be_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = library(folder.path());
    drop(first.create("v", SIZE, &AtRest::Plain).expect("made"));
    drop(first);
    for entry in fs::read_dir(folder.path().join("v")).expect("listed") {
        let path = entry.expect("an entry").path();
        if fs::metadata(&path).expect("there").len() > 0 {
            fs::write(&path, "no checkpoint").expect("written");
        }
    }
    let library = library(folder.path());
    let opened = library.open("v").map(drop);
    assert!(matches!(opened, Err(StoreError::Damaged(_))), "{opened:?}");
    library.remove("v").expect("removed");
    assert!(library.names().expect("listed").is_empty());
}
