//! Copies that every flush waits for, against plain buffers: whatever was answered is in a copy that is
//! promoted.

use fastrand::Rng;
use forkyard_volume::{ChangeRefusal, Geometry, Takeover, View, WriterEpoch};
use forkyard_volume_store::{
    AtRest, Held, Library, MirrorLine, MirrorPlan, Patience, Scratch, Store, StoreError, WhenAway,
};
use std::{
    collections::BTreeMap,
    io::{BufReader, Cursor, Read},
    path::Path,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

const SIZE: u64 = 120 * 4096;
const SOON: Duration = Duration::ZERO;

fn library(folder: &Path) -> Library {
    let geometry = Geometry::new(5).expect("32 slots");
    Library::with_geometry(folder, geometry).expect("a folder")
}

fn content(store: &Store) -> Vec<u8> {
    let mut out = vec![1; usize::try_from(SIZE).expect("small")];
    let mut scratch = Scratch::default();
    let read = store.read(View::Current, 0, &mut out, &mut scratch, Patience::Wait);
    read.expect("reads");
    out
}

fn plan(away: WhenAway) -> MirrorPlan {
    MirrorPlan {
        hosts: vec!["b".into()],
        away,
    }
}

fn line(store: &Arc<Store>, there: &Library) -> Result<MirrorLine, StoreError> {
    store.mirror("b", &there.holding("v", "a")?)
}

/// Sends a round, and has it held.
fn push(line: &mut MirrorLine, there: &Library) {
    let round = line.next(SOON).expect("wanted").expect("something");
    let mut stream = Vec::new();
    line.send(&round, &mut stream).expect("sent");
    let held = there.hold("v", "a", &mut Cursor::new(stream));
    assert_eq!(held.expect("held"), round.snapshot);
    line.held(round).expect("noted");
}

struct World {
    rng: Rng,
    folders: [tempfile::TempDir; 2],
    here: Library,
    there: Library,
    store: Arc<Store>,
    epoch: WriterEpoch,
    line: Option<MirrorLine>,
    now: Vec<u8>,
    /// Content at the last flush that was answered.
    answered: Vec<u8>,
    /// Contents of snapshots that were sent.
    sent: BTreeMap<String, Vec<u8>>,
    /// Content that the copy has.
    held: Option<Vec<u8>>,
    rounds: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let memory = || tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folders = [(); 2].map(|()| memory().expect("a folder"));
        let [here, there] = [0, 1].map(|at| library(folders[at].path()));
        let at_rest = match seed % 2 {
            0 => AtRest::Plain,
            _ => AtRest::Encrypted { key: None },
        };
        let store = here.create("v", SIZE, &at_rest).expect("made");
        store.set_mirrors(plan(WhenAway::Wait)).expect("kept");
        let epoch = store.open_writer(Takeover::Refused).expect("opens");
        let zeroes = vec![0; usize::try_from(SIZE).expect("small")];
        Self {
            rng: Rng::with_seed(seed),
            folders,
            here,
            there,
            store,
            epoch,
            line: None,
            now: zeroes.clone(),
            answered: zeroes,
            sent: BTreeMap::new(),
            held: None,
            rounds: 0,
        }
    }

    fn scribble(&mut self) {
        let length = self.rng.usize(1..20_000);
        let at = self.rng.usize(0..self.now.len() - length);
        let data: Vec<u8> = (0..length).map(|_| self.rng.u8(..)).collect();
        self.store
            .write(self.epoch, at as u64, &data)
            .expect("writes");
        self.now[at..][..length].copy_from_slice(&data);
    }

    /// One round, which may break off anywhere.
    fn round(&mut self) {
        let mut line = match self.line.take() {
            Some(line) => line,
            None => line(&self.store, &self.there).expect("a line"),
        };
        let Some(round) = line.next(SOON).expect("wanted") else {
            self.line = Some(line);
            return;
        };
        let mut stream = Vec::new();
        line.send(&round, &mut stream).expect("sent");
        self.sent.insert(round.snapshot.clone(), self.now.clone());
        if self.rng.u8(0..8) == 0 {
            stream.truncate(self.rng.usize(0..stream.len()));
            let cut = self.there.hold("v", "a", &mut Cursor::new(stream));
            cut.expect_err("cut off");
            return;
        }
        let held = self.there.hold("v", "a", &mut Cursor::new(stream));
        let held = held.expect("held");
        self.held = Some(self.sent[&held].clone());
        self.rounds += 1;
        // The answer may be lost.
        if self.rng.u8(0..8) > 0 {
            line.held(round).expect("noted");
            self.line = Some(line);
        }
    }

    fn flush(&mut self) {
        let mut target = None;
        loop {
            match self.store.flush_held(&mut target) {
                Ok(()) => break,
                Err(StoreError::Unheld(unheld)) => {
                    let (answer, answered) = mpsc::channel();
                    unheld.when_held(move |outcome| answer.send(outcome).expect("awaited"));
                    while answered.try_recv().is_err() {
                        self.round();
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        // Nothing was written meanwhile: what is answered is what the copy has.
        let held = self.held.as_ref().unwrap_or(&self.answered);
        assert!(*held == self.now, "answered, and not held");
        self.answered.clone_from(&self.now);
    }

    fn something(&mut self) {
        match self.rng.u8(0..100) {
            0..50 => self.scribble(),
            50..75 => self.flush(),
            75..85 => self.round(),
            85..90 => self.line = None,
            90..95 => {
                self.there = library(self.folders[1].path().join("new").as_path());
                self.there = library(self.folders[1].path());
            }
            _ => {
                self.line = None;
                self.store.flush().expect("flushes");
                let aside = library(self.folders[0].path().join("new").as_path());
                drop(std::mem::replace(&mut self.here, aside));
                let none = self.here.create("v", 4096, &AtRest::Plain).expect("made");
                drop(std::mem::replace(&mut self.store, none));
                self.here = library(self.folders[0].path());
                self.store = self.here.open("v").expect("opens");
                let _ = std::fs::remove_dir_all(self.folders[0].path().join("new"));
            }
        }
    }
}

#[test]
fn what_was_answered_is_in_a_copy_that_is_promoted_whatever_broke_off() {
    let (mut rounds, mut promoted) = (0, 0);
    for seed in 0..60 {
        let mut world = World::new(seed);
        for _ in 0..world.rng.u32(10..60) {
            world.something();
        }
        rounds += world.rounds;
        let held = world.held.clone();
        let Some(held) = held else {
            assert!(world.answered.iter().all(|it| *it == 0), "seed {seed}");
            continue;
        };
        // The copy is not written before.
        let copy = world.there.open("v").expect("there");
        assert_eq!(copy.held(), Held::For("a".into()));
        copy.refuse_held().expect_err("a copy");
        assert_eq!(copy.is_encrypted(), world.store.is_encrypted());
        world.there.promote("v").expect("promoted");
        copy.refuse_held().expect("at home");
        assert!(content(&copy) == held, "seed {seed}");
        // What is written at the former home reaches nothing, and its flushes are not answered.
        let ours = content(&copy);
        world.line = None;
        let refused = line(&world.store, &world.there);
        assert!(
            matches!(refused, Err(StoreError::IsPromoted(_))),
            "{refused:?}"
        );
        world.store.promoted_at("b").expect("fenced");
        let late = world.store.write(world.epoch, 0, b"late");
        let fenced = matches!(late, Err(StoreError::Refused(ChangeRefusal::Fenced { .. })));
        assert!(fenced, "{late:?}");
        assert!(content(&copy) == ours);
        promoted += 1;
    }
    assert!(
        rounds > 200 && promoted > 40,
        "{rounds} rounds, {promoted} promoted"
    );
}

#[test]
fn a_flush_waits_for_a_host_that_is_away_or_goes_on_and_it_is_said_how_far_that_is_behind() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [here, there] = [0, 1].map(|at| library(folders[at].path()));
    let store = here.create("v", SIZE, &AtRest::Plain).expect("made");
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    store.write(epoch, 0, &[7; 8192]).expect("writes");
    store.flush_everywhere().expect("to no other host");
    store.set_mirrors(plan(WhenAway::Wait)).expect("kept");
    let Err(StoreError::Unheld(unheld)) = store.flush_held(&mut None) else {
        panic!("it is held nowhere");
    };
    let (answer, answered) = mpsc::channel();
    unheld
        .clone()
        .when_held(move |it| answer.send(it).expect("awaited"));
    answered.try_recv().expect_err("it waits");
    store.expire_mirrors(Instant::now());
    answered.try_recv().expect_err("it waits still");
    store.expire_mirrors(Instant::now() + Duration::from_secs(60));
    let late = answered.try_recv().expect("it has waited for long enough");
    assert!(
        matches!(late, Err(StoreError::MirrorAway { .. })),
        "{late:?}"
    );

    store.set_mirrors(plan(WhenAway::GoOn)).expect("kept");
    store.flush_everywhere().expect("without it");
    let behind = || store.mirrors().remove(0);
    assert_eq!((behind().is_there, behind().behind), (false, 2));
    // Nor is what it has missed waited for, once there is a line.
    let mut to = line(&store, &there).expect("a line");
    store.flush_everywhere().expect("without it");
    push(&mut to, &there);
    assert_eq!((behind().is_there, behind().behind), (true, 0));
    // From then on it is waited for.
    store.write(epoch, 0, &[8; 4096]).expect("writes");
    let Err(StoreError::Unheld(unheld)) = store.flush_held(&mut None) else {
        panic!("it does not hold it yet");
    };
    let (answer, answered) = mpsc::channel();
    unheld.when_held(move |it| answer.send(it).expect("awaited"));
    let round = to.next(SOON).expect("wanted").expect("something");
    let mut stream = Vec::new();
    to.send(&round, &mut stream).expect("sent");
    there
        .hold("v", "a", &mut Cursor::new(stream))
        .expect("held");
    answered.try_recv().expect_err("it is not told of yet");
    to.held(round).expect("noted");
    answered
        .try_recv()
        .expect("it is held")
        .expect("and answered");
    assert_eq!((behind().is_there, behind().behind), (true, 0));
    // Another host's copy is not touched, and one that is not wanted any more ends.
    let other = there.holding("v", "c");
    assert!(matches!(other, Err(StoreError::Exists(_))), "{other:?}");
    store.set_mirrors(MirrorPlan::default()).expect("kept");
    let ended = to.next(SOON);
    assert!(
        matches!(ended, Err(StoreError::NotMirrored { .. })),
        "{ended:?}"
    );
    drop(to);
    assert_eq!(store.snapshot_names(), [""; 0]);
    // What is no copy cannot be promoted.
    let own = here.promote("v");
    assert!(matches!(own, Err(StoreError::NoCopy(_))), "{own:?}");
}

/// Copy that holds a round, of which a second one, of another size, came in but for its end.
fn torn(there: &Library) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let here = library(folder.path());
    let store = here.create("v", SIZE, &AtRest::Plain).expect("made");
    store.set_mirrors(plan(WhenAway::Wait)).expect("kept");
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    let first: Vec<u8> = (0..SIZE).map(|at| at.to_le_bytes()[1] | 1).collect();
    store.write(epoch, 0, &first).expect("writes");
    let mut to = line(&store, there).expect("a line");
    push(&mut to, there);
    store.resize(2 * SIZE).expect("grows");
    store.write(epoch, 0, &first[1..]).expect("writes");
    store.write(epoch, SIZE, &first).expect("writes");
    let round = to.next(SOON).expect("wanted").expect("something");
    let mut stream = Vec::new();
    to.send(&round, &mut stream).expect("sent");
    stream.pop();
    let cut = there.hold("v", "a", &mut Cursor::new(stream));
    cut.expect_err("cut off");
    first
}

#[test]
fn a_promotion_that_breaks_off_leaves_a_copy_and_can_be_repeated() {
    let folder = tempfile::tempdir().expect("a folder");
    let there = library(folder.path());
    let first = torn(&there);
    let copy = there.open("v").expect("there");
    assert_eq!(copy.size(View::Current), Some(2 * SIZE));
    let segments = std::fs::read_dir(folder.path().join("v")).expect("a folder");
    let names = segments.filter_map(|it| it.ok()?.file_name().into_string().ok());
    let last: Option<u64> = names
        .filter_map(|it| it.strip_suffix(".seg")?.parse().ok())
        .max();
    // The log cannot grow beyond its next segment: what is to be put back takes more.
    let next = format!("v/{:010}.seg", last.expect("a segment") + 2);
    let obstacle = folder.path().join(next);
    std::fs::create_dir(&obstacle).expect("made");
    let failed = there.promote("v");
    assert!(matches!(failed, Err(StoreError::Io { .. })), "{failed:?}");
    assert_eq!(copy.held(), Held::For("a".into()));
    copy.refuse_held().expect_err("a copy still");
    let mixed = content(&copy);
    assert!(mixed != first, "it broke off too late");
    assert!(mixed[..4096] == first[..4096], "it broke off too early");
    std::fs::remove_dir(&obstacle).expect("removed");
    // Another process goes on with it.
    drop((copy, there));
    let there = library(folder.path());
    let copy = there.open("v").expect("there");
    copy.refuse_held().expect_err("a copy still");
    there.promote("v").expect("promoted");
    copy.refuse_held().expect("at home");
    assert_eq!(copy.size(View::Current), Some(SIZE));
    assert!(content(&copy) == first, "torn");
    assert_eq!(copy.snapshot_names(), [""; 0]);
}

#[test]
fn a_stream_to_a_promoted_volume_leaves_its_writer_alone() {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [here, there] = [0, 1].map(|at| library(folders[at].path()));
    let store = here.create("v", SIZE, &AtRest::Plain).expect("made");
    store.set_mirrors(plan(WhenAway::Wait)).expect("kept");
    let mut to = line(&store, &there).expect("a line");
    push(&mut to, &there);
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    store.write(epoch, 0, &[1; 4096]).expect("writes");
    let round = to.next(SOON).expect("wanted").expect("something");
    let mut stream = Vec::new();
    to.send(&round, &mut stream).expect("sent");
    there.promote("v").expect("promoted");
    let copy = there.open("v").expect("there");
    let epoch = copy.open_writer(Takeover::Refused).expect("opens");
    let late = there.hold("v", "a", &mut Cursor::new(stream));
    assert!(matches!(late, Err(StoreError::IsPromoted(_))), "{late:?}");
    copy.write(epoch, 0, &[2; 4096]).expect("writes still");
}

#[test]
fn facts_are_told_while_a_stream_comes_in() {
    /// Stream that does not go on until it is told to.
    struct Slow(Cursor<Vec<u8>>, mpsc::Sender<()>, mpsc::Receiver<()>);
    impl Read for Slow {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            if self.0.position() > 0 && self.1.send(()).is_ok() {
                let _ = self.2.recv();
            }
            let count = out.len().min(256);
            self.0.read(&mut out[..count])
        }
    }
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let [here, there] = [0, 1].map(|at| library(folders[at].path()));
    let store = here.create("v", SIZE, &AtRest::Plain).expect("made");
    store.set_mirrors(plan(WhenAway::Wait)).expect("kept");
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    let mut to = line(&store, &there).expect("a line");
    push(&mut to, &there);
    let mut rng = Rng::with_seed(1);
    let noise: Vec<u8> = (0..SIZE).map(|_| rng.u8(..)).collect();
    store.write(epoch, 0, &noise).expect("writes");
    let round = to.next(SOON).expect("wanted").expect("something");
    let mut stream = Vec::new();
    to.send(&round, &mut stream).expect("sent");
    let (waits, waiting) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    std::thread::scope(|scope| {
        let slow = Slow(Cursor::new(stream), waits, goes_on);
        let held = scope.spawn(|| there.hold("v", "a", &mut BufReader::new(slow)));
        waiting.recv().expect("it has begun");
        let facts = there.inspect("v").expect("told");
        assert_eq!(facts.held, Held::For("a".into()));
        drop((go_on, waiting));
        held.join().expect("ends").expect("held");
    });
    let copy = there.open("v").expect("there");
    assert!(content(&copy) == noise);
}

#[test]
fn numbers_that_another_host_tells_break_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = library(folder.path());
    let store = here.create("v", SIZE, &AtRest::Plain).expect("made");
    store.set_mirrors(plan(WhenAway::Wait)).expect("kept");
    let last = u64::MAX;
    // Those of other snapshots are not counted.
    let other = [format!("daily-{last}"), format!("mirror-b-c-{last}")];
    let mut to = store.mirror("b", &other).expect("a line");
    let round = to.next(SOON).expect("wanted").expect("something");
    assert_eq!(round.snapshot, "mirror-b-1");
    let mut to = store
        .mirror("b", &[format!("mirror-b-{last}")])
        .expect("a line");
    let ended = to.next(SOON);
    assert!(
        matches!(ended, Err(StoreError::Refused(ChangeRefusal::Exhausted(_)))),
        "{ended:?}"
    );
}
