//! Branches over snapshots, and over snapshots of branches, against plain buffers.

use fastrand::Rng;
use forkyard_volume::{CompactionPolicy, Geometry, SnapshotId, Takeover, View, WriterEpoch};
use forkyard_volume_store::{
    Ahead, AtRest, BaseFacts, Library, Patience, Scratch, Store, StoreError,
};
use std::{path::Path, sync::Arc};

const SIZE: u64 = 64 * 4096;

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

fn over(volume: &str, snapshot: &str) -> BaseFacts {
    BaseFacts {
        volume: volume.into(),
        snapshot: snapshot.into(),
    }
}

/// Volume that is written, and what it holds.
struct Written {
    name: String,
    store: Arc<Store>,
    epoch: WriterEpoch,
    model: Vec<u8>,
}

impl Written {
    fn open(library: &Library, name: &str, model: Vec<u8>) -> Self {
        let store = library.open(name).expect("opens");
        let epoch = store.open_writer(Takeover::Refused).expect("a writer");
        let name = name.to_owned();
        Self {
            name,
            store,
            epoch,
            model,
        }
    }

    fn change(&mut self, rng: &mut Rng) {
        let length = rng.usize(1..20_000);
        let at = rng.usize(0..self.model.len() - length);
        let part = &mut self.model[at..][..length];
        match rng.u8(0..3) {
            0 | 1 => {
                part.fill_with(|| rng.u8(..));
                let written = self.store.write(self.epoch, at as u64, part);
                written.expect("writes");
            }
            _ => {
                part.fill(0);
                let zeroed = self.store.zero(self.epoch, at as u64, length as u64);
                zeroed.expect("zeroes");
            }
        }
    }
}

#[test]
fn branches_of_branches_hold_what_was_below_and_what_was_written_and_touch_nothing_else() {
    for seed in 0..12 {
        let mut rng = Rng::with_seed(seed);
        let folder = tempfile::tempdir().expect("a folder");
        let mut library = library(folder.path());
        let made = library.create("v", SIZE, &at_rest(seed));
        made.expect("made");
        let zeroes = vec![0; usize::try_from(SIZE).expect("small")];
        let mut all = vec![Written::open(&library, "v", zeroes)];
        let mut kept: Vec<(String, String, Vec<u8>)> = Vec::new();
        for step in 0..60 {
            let which = rng.usize(0..all.len());
            match rng.u8(0..10) {
                0 if all.len() < 6 => {
                    let (name, snapshot) = (format!("b{step}"), format!("s{step}"));
                    let below = &all[which];
                    // Before the snapshot, as for a shell.
                    let over = over(&below.name, &snapshot);
                    library.branch(&name, over).expect("a branch");
                    below.store.snapshot_now(&snapshot).expect("a snapshot");
                    let model = below.model.clone();
                    kept.push((below.name.clone(), snapshot, model.clone()));
                    all.push(Written::open(&library, &name, model));
                }
                1 => {
                    let policy = CompactionPolicy {
                        dead_percent: 1,
                        most: usize::MAX,
                    };
                    all[which].store.tidy(policy).expect("compacts");
                }
                2 => {
                    let models: Vec<_> = all
                        .drain(..)
                        .map(|it| (it.name, it.epoch, it.model))
                        .collect();
                    drop(library);
                    library = self::library(folder.path());
                    for (name, epoch, model) in models {
                        let store = library.open(&name).expect("opens");
                        all.push(Written {
                            name,
                            store,
                            epoch,
                            model,
                        });
                    }
                }
                _ => all[which].change(&mut rng),
            }
            for it in &all {
                assert!(
                    content(&it.store, View::Current) == it.model,
                    "seed {seed}, step {step}, {}",
                    it.name
                );
            }
        }
        for (name, snapshot, model) in kept {
            let store = library.open(&name).expect("opens");
            let id: SnapshotId = store.snapshot_called(&snapshot).expect("there");
            assert!(
                content(&store, View::Snapshot(id)) == model,
                "seed {seed}: {name}@{snapshot}"
            );
        }
    }
}

#[test]
fn what_a_branch_lies_over_stays_until_the_branch_has_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library(folder.path());
    let store = library.create("v", SIZE, &AtRest::Plain).expect("made");
    store.snapshot("s").expect("taken");
    store.snapshot("t").expect("taken");
    let branch = library.branch("b", over("v", "s")).expect("a branch");
    assert_eq!(branch.facts().base, Some(over("v", "s")));
    assert!(matches!(library.remove("v"), Err(StoreError::Below { .. })));
    let dropped = library.drop_snapshot("v", "s");
    assert!(matches!(dropped, Err(StoreError::Below { .. })));
    library.drop_snapshot("v", "t").expect("needed by none");
    let refused = branch.resize(SIZE * 2);
    assert!(matches!(refused, Err(StoreError::Branch { .. })));
    // What comes lies over nothing: a branch is not written by a stream.
    branch.snapshot("x").expect("taken");
    let mut stream = Vec::new();
    branch
        .send("x", None, &Ahead::All, &mut stream)
        .expect("sent");
    let taken = library.receive("b", None, &mut &stream[..]);
    assert!(matches!(taken, Err(StoreError::Branch { .. })));
    assert!(matches!(
        library.branch("c", over("nosuch", "s")),
        Err(StoreError::Unknown(_))
    ));
    drop((branch, store));
    library.remove("b").expect("removed");
    library.drop_snapshot("v", "s").expect("needed by none");
    library.remove("v").expect("removed");
}

#[test]
fn a_branch_is_sent_as_what_it_reads_as_and_then_by_what_differs() {
    for seed in 0..8 {
        let mut rng = Rng::with_seed(seed);
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let [here, there] = [0, 1].map(|at| library(folders[at].path()));
        here.create("v", SIZE, &AtRest::Plain).expect("made");
        let zeroes = vec![0; usize::try_from(SIZE).expect("small")];
        let mut below = Written::open(&here, "v", zeroes);
        let mut since: Option<String> = None;
        for name in ["b", "c"] {
            for _ in 0..rng.usize(0..4) {
                below.change(&mut rng);
            }
            below.store.snapshot(name).expect("taken");
            let over = over(&below.name, name);
            here.branch(name, over).expect("a branch");
            below = Written::open(&here, name, below.model);
        }
        for round in 0..5 {
            for _ in 0..rng.usize(0..4) {
                below.change(&mut rng);
            }
            let snapshot = format!("sent{round}");
            below.store.snapshot(&snapshot).expect("taken");
            let mut stream = Vec::new();
            let sent = below
                .store
                .send(&snapshot, since.as_deref(), &Ahead::All, &mut stream);
            sent.expect("sent");
            let taken = there.receive("c", None, &mut &stream[..]);
            taken.expect("taken");
            let came = there.open("c").expect("opens");
            assert_eq!(came.facts().base, None);
            assert!(
                content(&came, View::Current) == below.model,
                "seed {seed}, round {round}"
            );
            since = Some(snapshot);
        }
    }
}

#[test]
fn a_discard_in_a_branch_costs_nothing_and_shows_no_block_of_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library(folder.path());
    let store = library.create("v", SIZE, &AtRest::Plain).expect("made");
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    store.write(epoch, 0, &[7; 8192]).expect("writes");
    store.snapshot("s").expect("taken");
    let branch = library.branch("b", over("v", "s")).expect("a branch");
    let epoch = branch.open_writer(Takeover::Refused).expect("opens");
    branch.write(epoch, 0, &[9; 4096]).expect("writes");
    branch
        .discard(epoch, 0, SIZE, Patience::Wait)
        .expect("discards");
    let seen = content(&branch, View::Current);
    assert!(seen[..4096] == [0; 4096], "what it wrote is gone");
    assert!(seen[4096..8192] == [7; 4096] && seen[8192..].iter().all(|it| *it == 0));
    assert_eq!(branch.facts().written, 0);
}
