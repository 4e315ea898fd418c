//! Snapshots that go from one folder of volumes to another, against plain buffers.

use fastrand::Rng;
use forkyard_volume::{Geometry, Takeover, View, WriterEpoch};
use forkyard_volume_store::{Ahead, AtRest, Library, Patience, Scratch, Store, StoreError, relay};
use std::{io::Cursor, path::Path, sync::Arc};

const SIZE: u64 = 700 * 4096;

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

fn content(store: &Store, snapshot: Option<&str>) -> Vec<u8> {
    let view = snapshot.map(|name| store.snapshot_called(name).expect("there"));
    let view = view.map_or(View::Current, View::Snapshot);
    let size = store.size(view).expect("there");
    let mut out = vec![1; usize::try_from(size).expect("small")];
    let mut scratch = Scratch::default();
    let read = store.read(view, 0, &mut out, &mut scratch, Patience::Wait);
    read.expect("reads");
    out
}

fn sent(store: &Store, snapshot: &str, since: Option<&str>) -> Vec<u8> {
    let mut stream = Vec::new();
    store
        .send(snapshot, since, &Ahead::All, &mut stream)
        .expect("sent");
    // As a program passes it on: it ends where it ends.
    let (mut passed, mut from) = (Vec::new(), Cursor::new([&stream[..], b"more"].concat()));
    relay(&mut from, &mut passed).expect("whole");
    assert_eq!(passed, stream);
    stream
}

fn received(
    library: &Library,
    epoch: Option<WriterEpoch>,
    stream: &[u8],
) -> Result<Arc<Store>, StoreError> {
    library.receive("v", epoch, &mut Cursor::new(stream))?;
    library.open("v")
}

fn scribble(rng: &mut Rng, store: &Store, epoch: WriterEpoch) {
    for _ in 0..rng.usize(1..8) {
        let length = rng.usize(1..60_000);
        let size = store.size(View::Current).expect("there");
        let at = rng.u64(0..size - length as u64);
        match rng.u8(0..4) {
            0 => store.zero(epoch, at, length as u64).expect("zeroes"),
            _ => {
                let data: Vec<u8> = (0..length).map(|_| rng.u8(..)).collect();
                store.write(epoch, at, &data).expect("writes");
            }
        }
    }
}

#[test]
fn a_volume_goes_there_and_back_by_what_differs_whatever_was_left_of_a_broken_stream() {
    for seed in 0..10 {
        let mut rng = Rng::with_seed(seed);
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let libraries = [0, 1].map(|at| library(folders[at].path()));
        let [mut home, mut away] = [0, 1];
        let made = libraries[home].create("v", SIZE, &at_rest(seed));
        let store = made.expect("made");
        let mut epoch = store.open_writer(Takeover::Refused).expect("opens");
        let mut since: Option<String> = None;
        for round in 0..12 {
            let store = libraries[home].open("v").expect("there");
            scribble(&mut rng, &store, epoch);
            if rng.u8(0..4) == 0 {
                let grown = store.size(View::Current).expect("there") + 4096 * rng.u64(1..900);
                store.resize(grown).expect("grown");
            }
            let name = format!("s{round}");
            store.snapshot(&name).expect("kept");
            // What is written now is in no stream.
            scribble(&mut rng, &store, epoch);
            let stream = sent(&store, &name, since.as_deref());
            let cut = rng.usize(0..stream.len());
            let broken = received(&libraries[away], None, &stream[..cut]);
            broken.expect_err("cut off");
            let there = received(&libraries[away], None, &stream).expect("taken");
            assert_eq!(content(&there, None), content(&store, Some(&name)));
            assert_eq!(content(&there, Some(&name)), content(&there, None));
            since = Some(name);
            if rng.bool() {
                // It goes on there; what was written here since is forgotten.
                store.close_writer(epoch).expect("closed");
                (home, away) = (away, home);
                epoch = there.open_writer(Takeover::Refused).expect("opens");
            }
        }
    }
}

#[test]
fn streams_that_were_changed_are_refused_and_make_no_volume() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [here, there] = [0, 1].map(|at| library(folders[at].path()));
    let store = here.create("v", SIZE, &AtRest::Plain).expect("made");
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    let mut rng = Rng::with_seed(1);
    scribble(&mut rng, &store, epoch);
    store.snapshot("s").expect("kept");
    let stream = sent(&store, "s", None);
    for _ in 0..300 {
        let mut changed = stream.clone();
        let at = rng.usize(0..changed.len());
        changed[at] ^= 1 << rng.u8(0..8);
        // What only names the volume or its snapshot otherwise is another stream.
        let header = stream
            .iter()
            .position(|byte| *byte == b'\n')
            .expect("a line");
        if at > header {
            let refused = there.receive("v", None, &mut Cursor::new(&changed));
            refused.expect_err("changed");
            assert_eq!(there.names().expect("listed"), [""; 0]);
        }
    }
    for wrong in ["", "{}\n", "\n", "{\"format\":9}\n"] {
        there
            .receive("v", None, &mut Cursor::new(wrong))
            .expect_err(wrong);
    }
    // Of another volume, over what is not there, twice, over a writer.
    there.create("v", SIZE, &AtRest::Plain).expect("made");
    let refused = received(&there, None, &stream).expect_err("another");
    assert!(matches!(refused, StoreError::OtherVolume(_)), "{refused}");
    there.remove("v").expect("removed");
    let there_now = received(&there, None, &stream).expect("taken");
    received(&there, None, &stream).expect_err("it has that snapshot");
    store.snapshot("t").expect("kept");
    store.snapshot("u").expect("kept");
    received(&there, None, &sent(&store, "u", Some("t"))).expect_err("t is not there");
    let writer = there_now.open_writer(Takeover::Refused).expect("opens");
    let next = sent(&store, "t", Some("s"));
    received(&there, None, &next).expect_err("it is written");
    assert!(next.len() < 1000, "nothing differs: {}", next.len());
    received(&there, Some(writer), &next).expect("by that writer");
    assert_eq!(content(&there_now, None), content(&store, Some("t")));
    assert_eq!(store.changed("s").expect("counted").0, 0);
    store.write(epoch, 5000, &[7; 10_000]).expect("written");
    assert_eq!(store.changed("s").expect("counted").0, 3);
}

/// A stream that is held up before its last byte until a volume was given up.
struct HeldUp<'a> {
    stream: Cursor<&'a [u8]>,
    give_up: Option<Box<dyn FnOnce() + 'a>>,
}

impl std::io::Read for HeldUp<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let all = self.stream.get_ref().len() as u64;
        let left = usize::try_from(all - self.stream.position()).expect("small");
        if left == 1
            && let Some(give_up) = self.give_up.take()
        {
            give_up();
        }
        let most = to.len().min(if left > 1 { left - 1 } else { left });
        std::io::Read::read(&mut self.stream, &mut to[..most])
    }
}

#[test]
fn a_volume_that_is_removed_while_it_comes_never_is() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [here, there] = [0, 1].map(|at| library(folders[at].path()));
    let store = here.create("v", SIZE, &AtRest::Plain).expect("made");
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    store.write(epoch, 0, &[7; 9000]).expect("written");
    store.snapshot("s").expect("kept");
    let stream = sent(&store, "s", None);
    let held_up = HeldUp {
        stream: Cursor::new(&stream),
        give_up: Some(Box::new(|| {
            there.remove("v").expect("given up");
            there.remove("w").expect_err("there is none");
        })),
    };
    let refused = there.receive("v", None, &mut std::io::BufReader::new(held_up));
    assert!(
        matches!(refused, Err(StoreError::Unknown(_))),
        "{refused:?}"
    );
    assert_eq!(there.names().expect("listed"), [""; 0]);
    received(&there, None, &stream).expect("the next is not meant");
}
