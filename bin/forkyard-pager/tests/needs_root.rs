//! The program: how it starts, and how signals end it. Needs to be root.

use forkyard_image::{Checksum, LayerBuilder, Lineage, Slot};
use forkyard_pager::{PagerClient, image_path};
use forkyard_types::{ImageId, PAGE_SIZE, PageCount, PageNo};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

struct Program {
    child: Child,
    mount: PathBuf,
    socket: PathBuf,
}

impl Program {
    /// Starts it and waits for its first line, or for its end.
    fn start(directory: &TempDir) -> (Self, String) {
        let (mount, socket) = (
            directory.path().join("a/b"),
            directory.path().join("socket"),
        );
        let mut child = Command::new(env!("CARGO_BIN_EXE_forkyard-pager"))
            .args(["--mount".as_ref(), mount.as_os_str()])
            .args(["--socket".as_ref(), socket.as_os_str()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        // The pipe is closed after that line, as a daemon that ends would.
        BufReader::new(stdout).read_line(&mut line).expect("text");
        (
            Self {
                child,
                mount,
                socket,
            },
            line,
        )
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        kill(pid, signal).expect("ours");
    }

    /// Publishes an image of one page and opens its file.
    fn open_image(&self, byte: u8) -> File {
        let client = PagerClient::connect(&self.socket).expect("listens");
        let lineage = Lineage {
            image: ImageId::random(),
            parent: None,
        };
        let layer = tempfile::tempfile().expect("temporary file");
        let page = [byte; PAGE_SIZE];
        let mut builder = LayerBuilder::new(lineage, PageCount(1));
        layer
            .write_all_at(&page, Slot(0).offset().expect("fits"))
            .expect("writes");
        builder.data(PageNo(0), Slot(0), Checksum::of(&page));
        builder.finish(&layer).expect("a layer");
        client.publish(lineage, layer).expect("publishes");
        let path = image_path(&self.mount, lineage.image);
        File::options()
            .read(true)
            .write(true)
            .open(path)
            .expect("opens")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        while umount2(&self.mount, MntFlags::MNT_DETACH).is_ok() {}
    }
}

fn first_byte(file: &File) -> u8 {
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).expect("reads");
    byte[0]
}

#[test]
fn terminated_it_serves_open_files_to_the_end_and_makes_room_for_another() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (mut old, line) = Program::start(&directory);
    assert_eq!(line, "ready\n");
    let old_file = old.open_image(1);
    old.signal(Signal::SIGTERM);
    let begin = Instant::now();
    while old.socket.exists() {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "keeps its socket"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    let (new, line) = Program::start(&directory);
    assert_eq!(line, "ready\n");
    let new_file = new.open_image(2);
    assert_eq!((first_byte(&old_file), first_byte(&new_file)), (1, 2));
    assert!(
        old.child.try_wait().expect("ours").is_none(),
        "ended under an open file"
    );
    drop(old_file);
    assert!(old.child.wait().expect("ours").success());
    assert_eq!(first_byte(&new_file), 2);
    assert!(
        new.socket.exists(),
        "the old one took the new one's socket away"
    );
}

#[test]
fn terminated_twice_it_ends_although_files_are_open() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (mut program, _) = Program::start(&directory);
    let file = program.open_image(1);
    program.signal(Signal::SIGTERM);
    let begin = Instant::now();
    while program.child.try_wait().expect("ours").is_none() {
        // Two that come at once may be one.
        program.signal(Signal::SIGTERM);
        assert!(begin.elapsed() < Duration::from_secs(20), "does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(file.read_at(&mut [0], 0).is_err());
}

#[test]
fn unused_it_ends_at_once() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (mut program, _) = Program::start(&directory);
    drop(program.open_image(1));
    program.signal(Signal::SIGINT);
    assert!(program.child.wait().expect("ours").success());
    assert!(!program.socket.exists());
}

#[test]
fn second_program_at_the_same_place_says_no_and_harms_nothing() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (first, _) = Program::start(&directory);
    let file = first.open_image(1);
    let mut second = Command::new(env!("CARGO_BIN_EXE_forkyard-pager"))
        .args(["--mount".as_ref(), first.mount.as_os_str()])
        .args(["--socket".as_ref(), first.socket.as_os_str()])
        .spawn()
        .expect("starts");
    assert!(!second.wait().expect("ours").success());
    assert_eq!(first_byte(&file), 1);
    drop(first.open_image(2));
}
