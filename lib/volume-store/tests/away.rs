//! Volumes that are opened elsewhere before all of them is there, against a single copy.
//!
//! A volume goes to and fro between two sites. Each time what is hot is sent, and the rest is
//! fetched: because it is read, or by and by. Lines break, sites die, and blocks come late.

use fastrand::Rng;
use forkyard_replicate::{BlockRun, Purpose};
use forkyard_volume::{CompactionPolicy, Geometry, Takeover, View, WriterEpoch};
use forkyard_volume_store::{Ahead, Asking, AtRest, Library, Patience, Scratch, Store, StoreError};
use std::{
    collections::VecDeque,
    io::Cursor,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const BLOCKS: u64 = 150;
const SIZE: u64 = BLOCKS * 4096;

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

struct Site {
    folder: PathBuf,
    library: Library,
}

impl Site {
    fn new(folder: PathBuf) -> Self {
        let library = library(&folder);
        Self { folder, library }
    }

    fn store(&self) -> Arc<Store> {
        self.library.open("v").expect("there")
    }

    /// Dies and starts again.
    fn die(self) -> Self {
        drop(self.library);
        Self::new(self.folder)
    }
}

/// Line that is open, with what was asked for and not answered.
struct Line {
    /// Snapshot at the other site.
    origin: String,
    asking: Asking,
    asked: VecDeque<Vec<BlockRun>>,
}

struct World {
    rng: Rng,
    sites: [Option<Site>; 2],
    /// Site that has the writer.
    home: usize,
    epoch: WriterEpoch,
    truth: Vec<u8>,
    /// Content at the last flush.
    flushed: Vec<u8>,
    moves: u32,
    /// Snapshot that both have.
    common: Option<String>,
    lines: Vec<Line>,
    fetched: u64,
}

fn read(store: &Store, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
    let (mut out, mut scratch) = (vec![9; length], Scratch::default());
    let patience = Patience::Disk;
    store.read(View::Current, offset, &mut out, &mut scratch, patience)?;
    Ok(out)
}

impl World {
    fn new(seed: u64, folder: &TempDir) -> Self {
        let site = |name| Some(Site::new(folder.path().join(name)));
        let sites = [site("a"), site("b")];
        let mut world = Self {
            rng: Rng::with_seed(seed),
            sites,
            home: 0,
            epoch: WriterEpoch(0),
            truth: vec![0; usize::try_from(SIZE).expect("small")],
            flushed: Vec::new(),
            moves: 0,
            common: None,
            lines: Vec::new(),
            fetched: 0,
        };
        let site = world.site(0);
        let made = site.library.create("v", SIZE, &at_rest(seed));
        let made = made.expect("made");
        world.epoch = made.open_writer(Takeover::Refused).expect("opens");
        world.flushed = world.truth.clone();
        world
    }

    fn site(&self, number: usize) -> &Site {
        self.sites[number].as_ref().expect("alive")
    }

    fn here(&self) -> Arc<Store> {
        self.site(self.home).store()
    }

    fn scribble(&mut self) {
        let store = self.here();
        let length = self.rng.usize(1..30_000);
        let at = self.rng.u64(0..SIZE - length as u64);
        let place = usize::try_from(at).expect("small")..;
        let data: Vec<u8> = (0..length).map(|_| self.rng.u8(..)).collect();
        let zeroes = self.rng.u8(0..4) == 0;
        loop {
            let patience = Patience::Disk;
            let written = match zeroes {
                true => store.zero_if(self.epoch, at, length as u64, patience),
                false => store.write_if(self.epoch, at, &data, patience),
            };
            match written {
                Ok(()) => break,
                Err(StoreError::Absent(absent)) => self.fetch_until(absent),
                Err(error) => panic!("{error}"),
            }
        }
        match zeroes {
            true => self.truth[place][..length].fill(0),
            false => self.truth[place][..length].copy_from_slice(&data),
        }
    }

    fn look(&mut self) {
        let store = self.here();
        let length = self.rng.usize(1..60_000);
        let at = self.rng.u64(0..SIZE - length as u64);
        loop {
            match read(&store, at, length) {
                Ok(found) => {
                    let at = usize::try_from(at).expect("small");
                    assert!(found == self.truth[at..][..length], "wrong bytes at {at}");
                    return;
                }
                Err(StoreError::Absent(absent)) => self.fetch_until(absent),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Has lines work until blocks are here.
    fn fetch_until(&mut self, absent: forkyard_volume_store::Absent) {
        let (sender, came) = std::sync::mpsc::channel();
        absent.when_here(move |outcome| {
            let _ = sender.send(outcome.is_ok());
        });
        for _ in 0..10_000 {
            if let Ok(came) = came.try_recv() {
                assert!(came);
                return;
            }
            self.work();
            self.here().expire(Instant::now());
        }
        panic!("blocks never came");
    }

    /// Has some line make a step.
    fn work(&mut self) {
        let purpose = match self.rng.bool() {
            true => Purpose::Demand,
            false => Purpose::Fill,
        };
        if self.lines.len() < 3 {
            let lacking = self.here().lacking();
            let Some(origin) = self.rng.choice(lacking).map(|it| it.snapshot) else {
                return;
            };
            match self.here().ask(&origin, purpose) {
                Ok(asking) => self.lines.push(Line {
                    origin,
                    asking,
                    asked: VecDeque::new(),
                }),
                Err(error) => panic!("{error}"),
            }
            return;
        }
        let number = self.rng.usize(0..self.lines.len());
        match self.rng.u8(0..20) {
            0 => drop(self.lines.remove(number)),
            1..10 => {
                let most = self.rng.usize(1..20);
                match self.lines[number].asking.next(most, Duration::ZERO) {
                    Ok(next) => self.lines[number].asked.push_back(next),
                    Err(_) => drop(self.lines.remove(number)),
                }
            }
            _ => {
                let Some(asked) = self.lines[number].asked.pop_front() else {
                    return;
                };
                let origin = self.lines[number].origin.clone();
                let (mut answer, there) = (Vec::new(), self.site(1 - self.home).store());
                there
                    .send_blocks(&origin, &asked, (Some("b"), Purpose::Demand), &mut answer)
                    .expect("answers");
                // A line may break in the middle of an answer.
                let end = match self.rng.u8(0..8) {
                    0 => self.rng.usize(0..answer.len()),
                    _ => answer.len(),
                };
                let taken = self.lines[number].asking.take(&asked, &mut &answer[..end]);
                self.fetched += asked.iter().map(|it| it.count).sum::<u64>();
                match end < answer.len() {
                    true => drop(self.lines.remove(number)),
                    false => taken.expect("whole"),
                }
            }
        }
    }

    /// Sends what differs, but for what is not hot, and goes on at the other site.
    fn go(&mut self) {
        let (here, there) = (self.here(), 1 - self.home);
        self.moves += 1;
        let snapshot = format!("m{}", self.moves);
        here.snapshot(&snapshot).expect("taken");
        let all = self.rng.u8(0..6) == 0 && here.lacking().is_empty();
        let ahead = match all {
            true => Ahead::All,
            false => Ahead::Hot {
                most: self.rng.usize(0..60),
                from: format!("site {}", self.home),
            },
        };
        let since = self.common.clone();
        let mut stream = Vec::new();
        here.send(&snapshot, since.as_deref(), &ahead, &mut stream)
            .expect("sent");
        let broken = (self.rng.u8(0..4) == 0).then(|| self.rng.usize(0..stream.len()));
        let library = &self.site(there).library;
        // Broken off, and sent again.
        if let Some(end) = broken {
            let broken = library.receive("v", None, &mut Cursor::new(&stream[..end]));
            broken.expect_err("cut off");
        }
        let received = library.receive("v", None, &mut Cursor::new(&stream));
        received.expect("received");
        self.lines.clear();
        here.close_writer(self.epoch).expect("closes");
        self.home = there;
        let store = self.here();
        self.epoch = store.open_writer(Takeover::Refused).expect("opens");
        self.flushed = self.truth.clone();
        self.common = Some(snapshot);
    }

    fn something(&mut self) {
        match self.rng.u8(0..40) {
            0..12 => self.scribble(),
            12..20 => self.look(),
            20..32 => (0..8).for_each(|_| self.work()),
            32..34 => {
                self.here().flush().expect("flushes");
                self.flushed = self.truth.clone();
            }
            34 => {
                self.here().tidy(CompactionPolicy::USUAL).expect("tidies");
                self.flushed = self.truth.clone();
            }
            35..37 => {
                self.here().flush().expect("flushes");
                self.lines.clear();
                let site = self.sites[self.home].take().expect("alive");
                self.sites[self.home] = Some(site.die());
            }
            // Both hosts keep what the other lacks: it goes on once all of it is here.
            _ if self.here().lacking().is_empty() || self.common_is_whole() => self.go(),
            _ => {}
        }
    }

    /// A volume that lacks blocks moves on only to where they are.
    fn common_is_whole(&self) -> bool {
        let there = self.site(1 - self.home);
        there.store().lacking().is_empty()
    }
}

#[test]
fn nothing_reads_otherwise_than_a_single_copy_wherever_its_blocks_are() {
    let (mut moves, mut fetched) = (0, 0);
    for seed in 0..120 {
        // Kept in memory: each move is durable several times over.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folder = folder.expect("a folder");
        let mut world = World::new(seed, &folder);
        for _ in 0..world.rng.u32(40..120) {
            world.something();
        }
        // In the end all is here.
        for _ in 0..10_000 {
            world.work();
            if world.here().lacking().is_empty() {
                break;
            }
        }
        assert!(world.here().lacking().is_empty(), "seed {seed}");
        let all = read(&world.here(), 0, usize::try_from(SIZE).expect("small")).expect("whole");
        assert!(all == world.truth, "seed {seed}");
        moves += world.moves;
        fetched += world.fetched;
    }
    assert!(
        moves > 200 && fetched > 2000,
        "{moves} moves, {fetched} blocks fetched"
    );
}

#[test]
fn blocks_that_are_at_no_host_that_is_known_are_an_error_and_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let (here, there) = (folder.path().join("a"), folder.path().join("b"));
    let source = library(&here);
    let store = source.create("v", SIZE, &AtRest::Plain).expect("made");
    let epoch = store.open_writer(Takeover::Refused).expect("opens");
    store
        .write_if(epoch, 0, &[7; 8192], Patience::Wait)
        .expect("written");
    store.snapshot("m").expect("taken");
    let ahead = Ahead::Hot {
        most: 0,
        from: "a".into(),
    };
    let mut stream = Vec::new();
    store.send("m", None, &ahead, &mut stream).expect("sent");
    let copy = library(&there);
    let received = copy.receive("v", None, &mut Cursor::new(&stream));
    received.expect("received");
    assert!(!copy.open("v").expect("there").lacking().is_empty());
    drop(copy);
    std::fs::remove_file(there.join("v/origins")).expect("it is told there");
    let store = library(&there).open("v").expect("there");
    for patience in [Patience::Wait, Patience::Disk, Patience::Now] {
        let (mut out, mut scratch) = ([0; 4096], Scratch::default());
        let found = store.read(View::Current, 0, &mut out, &mut scratch, patience);
        let error = found.expect_err("no host has it");
        assert!(matches!(error, StoreError::Orphan(_)), "{error}");
    }
}
