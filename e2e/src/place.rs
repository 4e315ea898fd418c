//! A place where a host's processes see no network, no mount and no cgroup but
//! their own, so that what they leave behind is found, and found to be theirs.
//!
//! One thread is in the namespaces; whatever it starts is born into them. The
//! place lasts as long as this thread or a process in it.

use forkyard_sys_host::process::PidFd;
use nix::{
    mount::{MsFlags, mount},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, unshare},
    unistd::geteuid,
};
use std::{
    fs, io,
    os::{fd::AsFd, linux::fs::MetadataExt},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

/// Milliseconds within which whatever was killed is gone.
const TO_DIE: u16 = 30_000;
/// The thread's own view; `/proc/self` would be the test program's.
const MOUNTS: &str = "/proc/thread-self/mountinfo";

type Work = Box<dyn FnOnce() + Send>;

/// Namespaces, and the thread in them.
#[derive(Debug)]
pub struct Place {
    work: mpsc::Sender<Work>,
    network: u64,
    cgroup: PathBuf,
}

/// A process in a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its command line, words apart by spaces.
    pub command: String,
}

impl Process {
    /// Kills it as a crash would, and waits until it is gone with all it had
    /// open. One that has ended already is no error.
    pub fn kill(&self) {
        let Ok(process) = PidFd::open(self.pid) else {
            return;
        };
        process.kill().expect("root may kill");
        let mut ends = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        let ended = poll(&mut ends, TO_DIE).expect("poll");
        assert_eq!(ended, 1, "{} does not die", self.command);
    }

    /// Whether it runs this program.
    pub fn is(&self, program: &str) -> bool {
        let path = self.command.split(' ').next().unwrap_or_default();
        Path::new(path)
            .file_name()
            .is_some_and(|name| name == program)
    }
}

impl Place {
    /// Makes one; `name` becomes that of its cgroup. Panics without root.
    pub fn new(name: &str) -> Self {
        assert!(geteuid().is_root(), "whole-system tests take root");
        let cgroup = cgroups().join(name);
        fs::create_dir(&cgroup).expect("a cgroup of version 2");
        let (work, inbox) = mpsc::channel::<Work>();
        let (born, network) = mpsc::channel();
        let own = cgroup.clone();
        thread::spawn(move || {
            enter(&own);
            // Nobody listens if the place was dropped meanwhile.
            let _ = born.send(namespace(Path::new("/proc/thread-self")).expect("own namespace"));
            inbox.iter().for_each(|work| work());
        });
        Self {
            work,
            network: network.recv().expect("the thread enters its namespaces"),
            cgroup,
        }
    }

    /// Does something in the place and waits for it.
    pub fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let work = Box::new(move || {
            let _ = done.send(work());
        });
        self.work.send(work).expect("the place's thread lives");
        result.recv().expect("the work does not panic")
    }

    /// Every process in it.
    pub fn processes(&self) -> Vec<Process> {
        let numbers = fs::read_dir("/proc").expect("/proc").flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        numbers
            .filter_map(|pid| {
                let folder = PathBuf::from(format!("/proc/{pid}"));
                (namespace(&folder).ok()? == self.network).then_some(())?;
                let words = fs::read(folder.join("cmdline")).ok()?;
                // A process that has ended and waits for its parent has none.
                let command = String::from_utf8_lossy(&words)
                    .trim_end_matches('\0')
                    .replace('\0', " ");
                (!command.is_empty()).then_some(Process { pid, command })
            })
            .collect()
    }

    /// Mount points at or under a folder.
    pub fn mounts_under(&self, folder: &Path) -> Vec<String> {
        let folder = folder.to_owned();
        self.within(move || {
            let mounts = fs::read_to_string(MOUNTS).expect("own mounts");
            let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
            points
                .filter(|point| Path::new(point).starts_with(&folder))
                .map(str::to_owned)
                .collect()
        })
    }

    /// The cgroup that its processes take for the root.
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }
}

impl Drop for Place {
    /// Ends what is still in it, and takes its cgroups away.
    fn drop(&mut self) {
        // What is killed cannot start anything more; what it has just started
        // is seen the next time.
        while let left @ [_, ..] = self.processes().as_slice() {
            left.iter().for_each(Process::kill);
        }
        if let Err(error) = remove_groups(&self.cgroup) {
            eprintln!("{} stays: {error}", self.cgroup.display());
        }
    }
}

fn enter(cgroup: &Path) {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("namespaces");
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("mounts of its own");
    mount(Some(cgroup), &cgroups(), none, MsFlags::MS_BIND, none).expect("cgroups of its own");
}

/// Number of the network namespace that a process, given as its folder in
/// `/proc`, is in.
fn namespace(process: &Path) -> io::Result<u64> {
    Ok(fs::metadata(process.join("ns/net"))?.st_ino())
}

/// Where cgroups of version 2 are.
fn cgroups() -> PathBuf {
    let mounts = fs::read_to_string(MOUNTS).expect("own mounts");
    let found = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let point = place.split(' ').nth(4)?;
        kind.starts_with("cgroup2 ").then(|| PathBuf::from(point))
    });
    found.expect("cgroups of version 2 are mounted")
}

fn remove_groups(group: &Path) -> io::Result<()> {
    for child in fs::read_dir(group)?.flatten() {
        if child.file_type()?.is_dir() {
            remove_groups(&child.path())?;
        }
    }
    fs::remove_dir(group)
}
