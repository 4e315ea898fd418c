//! A pager in a process of its own, with a directory of its own: this test
//! program, run again.

use forkyard_image::{LayerBuilder, Lineage, Slot};
use forkyard_pager::{
    Pager, PagerClient, PagerError, PagerOptions, PagerSetup, Prefetch, ProgramRole, Programs,
    Shutdown, StartError, image_path, keep, other_half,
};
use forkyard_sys_host::mapping::Mapping;
use forkyard_sys_host::memory::anonymous_file;
use forkyard_types::{ByteCount, ImageId, ImageUse, PAGE_SIZE, PageCount, PageNo};
use nix::mount::{MntFlags, umount2};
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Lines};
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const DIRECTORY: &str = "FORKYARD_TEST_PAGER";
/// Seconds, for a pager that compresses sooner than it would.
const COLD_AFTER: &str = "FORKYARD_TEST_COLD_AFTER";
/// Variable that chooses whether the pager has a keeper.
const KEPT: &str = "FORKYARD_TEST_KEPT";
const BE_A_PAGER: [&str; 4] = ["harness::be_a_pager", "--exact", "--ignored", "--nocapture"];
const PREFETCH: &str = "FORKYARD_TEST_PREFETCH";
/// Longer than anything here takes on a machine that is busy with other things: tidying
/// gives way to all of them.
const PATIENCE: Duration = Duration::from_secs(120);

/// A pager's process, mount and socket; all gone on drop.
pub struct Fixture {
    directory: TempDir,
    process: Process,
    settings: Settings,
    pub client: PagerClient,
}

/// Differences of a pager in a test from the usual.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub prefetch: Prefetch,
    pub cold_after: Option<Duration>,
    pub kept: bool,
}

impl Default for Settings {
    /// Nothing happens by itself that a test does not ask for.
    fn default() -> Self {
        Self {
            prefetch: Prefetch::No,
            cold_after: None,
            kept: false,
        }
    }
}

/// A pager's process and what it says: it would fail with no one to say it to.
pub struct Process {
    child: Child,
    _says: Lines<BufReader<ChildStdout>>,
}

impl Fixture {
    pub fn start() -> Self {
        Self::with(Settings::default())
    }

    pub fn with(settings: Settings) -> Self {
        let directory = tempfile::tempdir().expect("temporary directory");
        fs::create_dir(mount_of(directory.path())).expect("creates");
        let process = spawn(directory.path(), settings).expect("pager starts");
        let client = PagerClient::connect(&socket_of(directory.path())).expect("connects");
        Self {
            directory,
            process,
            settings,
            client,
        }
    }

    /// Starts another pager at the same place; answers whether it did.
    pub fn start_another(&self) -> bool {
        spawn(self.directory.path(), self.settings).is_some()
    }

    /// Replaces the pager, which must have died, by a new one.
    pub fn restart(&mut self) {
        self.process = spawn(self.directory.path(), self.settings).expect("pager starts again");
    }

    pub fn connect(&self) -> Result<PagerClient, PagerError> {
        PagerClient::connect(&socket_of(self.directory.path()))
    }

    pub fn mount(&self) -> PathBuf {
        mount_of(self.directory.path())
    }

    pub fn path(&self, image: ImageId) -> PathBuf {
        image_path(&self.mount(), image)
    }

    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    pub fn kill(&mut self) {
        self.process.child.kill().expect("ours");
        self.process.child.wait().expect("ours");
    }

    /// Processes of this pager: their numbers, and what they go by.
    pub fn halves(&self) -> Vec<(u32, String)> {
        let mark = format!("{DIRECTORY}={}", self.directory.path().display());
        let ours = |entry: fs::DirEntry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let environment = fs::read(entry.path().join("environ")).ok()?;
            let mut variables = environment.split(|byte| *byte == 0);
            variables.find(|variable| *variable == mark.as_bytes())?;
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            let name = command.split(|byte| *byte == 0).next()?;
            // One that has ended has none.
            let name = String::from_utf8_lossy(name).into_owned();
            (!name.is_empty()).then_some((pid, name))
        };
        let all = fs::read_dir("/proc").expect("lists").filter_map(Result::ok);
        all.filter_map(ours).collect()
    }

    /// The process of the keeper.
    pub fn keeper(&self) -> Option<u32> {
        let halves = self.halves();
        let keeper = halves.iter().find(|(_, name)| name == "forkyard-keeper");
        keeper.map(|(pid, _)| *pid)
    }

    pub fn wait(&mut self) -> ExitStatus {
        eventually("the pager ends", || {
            self.process.child.try_wait().expect("ours").is_some()
        });
        self.process.child.wait().expect("ours")
    }

    /// Tells whether anything is mounted where the pager was.
    pub fn has_mount(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("reads");
        mounts.contains(&*self.mount().to_string_lossy())
    }

    /// Publishes an image of its own with these pages.
    pub fn publish(&self, pages: u64, filled: impl Fn(u64) -> u8) -> ImageId {
        let lineage = Lineage {
            image: ImageId::random(),
            parent: None,
        };
        self.client
            .publish(lineage, layer(lineage, pages, filled))
            .expect("publishes");
        lineage.image
    }

    pub fn open(&self, image: ImageId) -> io::Result<File> {
        File::options()
            .read(true)
            .write(true)
            .open(self.path(image))
    }

    pub fn view(&self, image: ImageId, pages: u64) -> Mapping {
        Mapping::private(self.open(image).expect("opens"), size(pages)).expect("maps")
    }

    /// Waits until each of these processes waits for a page, and the pager has been asked for all of
    /// these pages.
    pub fn wait_asked(&self, pids: impl IntoIterator<Item = u32>) {
        for pid in pids {
            eventually("a process waits for a page", || waits_for_a_page(pid));
        }
        // The kernel asks in order: what it asked before this is in the pager's hands.
        let none = fs::metadata(self.path(ImageId::random()));
        assert!(none.is_err(), "no image has this name");
    }

    pub fn stats(&self, image: ImageId) -> ImageUse {
        self.client.stats(image).expect("known")
    }

    /// Bytes of memory that the layers of the pager take.
    pub fn memory(&self) -> u64 {
        let links = fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("lists");
        let paths = links.filter_map(|link| Some(link.ok()?.path()));
        let files = paths.filter(|path| {
            let target = fs::read_link(path).unwrap_or_default();
            target.to_string_lossy().contains("memfd:")
        });
        let blocks = files.filter_map(|path| Some(fs::metadata(path).ok()?.blocks()));
        blocks.sum::<u64>() * 512
    }

    /// Memory files the pager has open.
    pub fn layers_open(&self) -> usize {
        memory_files(self.pid()).expect("lists")
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if self.settings.kept {
            // Told to: what dies is replaced.
            let _ = self.client.shutdown(Shutdown::Now);
            let begin = Instant::now();
            while !self.halves().is_empty() && begin.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(2));
                let _ = self.process.child.try_wait();
            }
            self.halves().iter().for_each(|half| kill_9(half.0));
        }
        let _ = self.process.child.kill();
        let _ = self.process.child.wait();
        // Also what a test has left over it.
        while umount2(&self.mount(), MntFlags::MNT_DETACH).is_ok() {}
    }
}

/// Memory files a process has open.
pub fn memory_files(pid: u32) -> io::Result<usize> {
    let links = fs::read_dir(format!("/proc/{pid}/fd"))?;
    let targets = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
    let files = targets.filter(|target| target.to_string_lossy().contains("memfd:"));
    Ok(files.count())
}

/// Tells whether a thread of a process is blocked, and in no system call: then it has touched a
/// page that is not there.
fn waits_for_a_page(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let calls = threads.filter_map(|it| fs::read_to_string(it.ok()?.path().join("syscall")).ok());
    calls.into_iter().any(|call| call.starts_with("-1 "))
}

/// Kills a process of ours.
pub fn kill_9(pid: u32) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a pid"));
    // It may have ended by itself.
    let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
}

fn mount_of(directory: &Path) -> PathBuf {
    directory.join("mount")
}

fn socket_of(directory: &Path) -> PathBuf {
    directory.join("socket")
}

/// `None` if it says that it does not start.
fn spawn(directory: &Path, settings: Settings) -> Option<Process> {
    let mut command = Command::new(env::current_exe().expect("we are a program"));
    if let Some(after) = settings.cold_after {
        command.env(COLD_AFTER, after.as_millis().to_string());
    }
    if settings.kept {
        command.env(KEPT, "yes");
    }
    if settings.prefetch == Prefetch::Yes {
        command.env(PREFETCH, "yes");
    }
    let mut child = command
        .args(BE_A_PAGER)
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut says = BufReader::new(child.stdout.take().expect("piped")).lines();
    if says
        .by_ref()
        .map_while(Result::ok)
        .any(|line| line == "ready")
    {
        return Some(Process { child, _says: says });
    }
    let _ = child.wait();
    None
}

fn options() -> PagerOptions {
    let milliseconds = |text: String| text.parse().expect("a number");
    PagerOptions {
        prefetch: match env::var(PREFETCH) {
            Ok(_) => Prefetch::Yes,
            Err(_) => Prefetch::No,
        },
        cold_after: env::var(COLD_AFTER)
            .ok()
            .map(|text| Duration::from_millis(milliseconds(text))),
    }
}

#[test]
#[ignore = "run by other tests, in a process of its own"]
fn be_a_pager() {
    let directory = PathBuf::from(env::var_os(DIRECTORY).expect("started as a pager"));
    let programs = Programs {
        program: env::current_exe().expect("we are a program"),
        arguments: BE_A_PAGER.iter().map(OsString::from).collect(),
    };
    let kept = env::var_os(KEPT).is_some();
    let setup = PagerSetup {
        mount: mount_of(&directory),
        socket: socket_of(&directory),
        options: options(),
        programs: kept.then(|| programs.clone()),
    };
    let started = match ProgramRole::given() {
        ProgramRole::First => Pager::start(setup),
        ProgramRole::Successor => Pager::succeed(setup, other_half().expect("is there")),
        ProgramRole::Keeper => {
            return keep(other_half().expect("is there"), programs).expect("keeps");
        }
    };
    match started {
        Ok(pager) => {
            println!("\nready");
            pager.wait().expect("serves until unmounted");
        }
        Err(StartError::AlreadyRunning { .. }) => println!("\nanother runs"),
        Err(error) => panic!("{error:?}"),
    }
}

/// `pages` pages of memory as a mapping's length.
pub fn size(pages: u64) -> NonZeroUsize {
    NonZeroUsize::new(usize::try_from(pages).expect("fits") * PAGE_SIZE).expect("not empty")
}

/// Returns the byte that a page is filled with in these tests; never 0.
pub fn filling(page: u64) -> u8 {
    u8::try_from(page % 250 + 1).expect("a byte")
}

/// A layer whose pages are filled with one byte each; 0 leaves a page absent.
pub fn layer(lineage: Lineage, pages: u64, filled: impl Fn(u64) -> u8) -> File {
    let file = anonymous_file("layer", ByteCount(0)).expect("memfd");
    let mut builder = LayerBuilder::new(lineage, PageCount(pages));
    let mut slot = Slot(0);
    for number in 0..pages {
        let bytes = [filled(number); PAGE_SIZE];
        if bytes[0] != 0 {
            file.write_all_at(&bytes, slot.offset().expect("fits"))
                .expect("writes");
            builder.data(PageNo(number), slot, forkyard_image::Checksum::of(&bytes));
            slot.0 += 1;
        }
    }
    builder.finish(&file).expect("a layer");
    file
}

/// First and last byte of a page of a mapping, which must be alike.
pub fn byte(view: &Mapping, page: u64) -> u8 {
    let start = usize::try_from(page).expect("fits") * PAGE_SIZE;
    let (mut first, mut last) = ([0], [0]);
    view.read(start, &mut first).expect("inside");
    view.read(start + PAGE_SIZE - 1, &mut last).expect("inside");
    assert_eq!(first, last, "page {page} is torn");
    first[0]
}

/// Waits until something becomes true that has no event to wait for.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
