//! What the tests act on: processes that pass for VMs, dispatchers, groups.

use forkyard_dispatch::{
    freezer::PREFIX,
    protocol::{Level, Reply, Request, Shown, Wanted},
    socket::ask,
    threads,
};
use forkyard_sched::Policy;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// After this, whatever has not happened is taken for never to happen: a thousand
/// times what it takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// A process that passes for a VM.
#[derive(Debug)]
pub struct Vm(Child);

impl Vm {
    pub fn start(vcpus: u32) -> Self {
        let this = std::env::current_exe().expect("this test");
        let child = Command::new("taskset")
            .args(["-c", "0"])
            .arg(this)
            .args(["--exact", "--ignored", "--nocapture", "stand_in"])
            .env("VCPUS", vcpus.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("taskset, of util-linux");
        let vm = Self(child);
        until("the threads run", || {
            threads::vcpus(vm.pid()).is_ok_and(|found| found.len() == vcpus as usize)
        });
        vm
    }

    pub fn tell(&self, signal: Signal) {
        tell(self.pid(), signal);
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn tids(&self) -> Vec<u32> {
        let found = threads::vcpus(self.pid()).expect("its threads");
        found.into_iter().map(|thread| thread.tid).collect()
    }

    /// Time each vCPU has run, in ns.
    pub fn ran(&self) -> Vec<u64> {
        let one = |tid: &u32| {
            let text = fs::read_to_string(format!("/proc/{tid}/schedstat")).expect("alive");
            let ran = text.split(' ').next().expect("a number");
            ran.parse::<u64>().expect("a number")
        };
        self.tids().iter().map(one).collect()
    }

    pub fn all_run_on(&self) {
        let before = self.ran();
        until("every vCPU runs again", || {
            self.ran().iter().zip(&before).all(|(now, then)| now > then)
        });
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A dispatcher.
#[derive(Debug)]
pub struct Daemon {
    pub child: Child,
    folder: tempfile::TempDir,
}

impl Daemon {
    /// On one CPU, so that there is something to decide.
    pub fn start() -> Self {
        let daemon = Self::within(tempfile::tempdir().expect("a folder"));
        daemon.listens();
        daemon
    }

    /// Another one in the place of this one, which has ended. It may not listen yet.
    pub fn again(mut self) -> Self {
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"));
        Self::within(folder)
    }

    pub fn listens(&self) {
        until("it listens", || ask(&self.socket(), &Request::Show).is_ok());
    }

    fn within(folder: tempfile::TempDir) -> Self {
        let child = Command::new("taskset")
            .args([
                "-c",
                "0",
                env!("CARGO_BIN_EXE_forkyard-dispatcher"),
                "serve",
                "--socket",
            ])
            .arg(folder.path().join("sched.sock"))
            .stdin(Stdio::null())
            .spawn()
            .expect("taskset, of util-linux");
        Self { child, folder }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("sched.sock")
    }

    pub fn ask(&self, request: &Request) -> Result<Shown, String> {
        match ask(&self.socket(), request).expect("an answer") {
            Reply::Done(shown) => Ok(shown),
            Reply::Refused(why) => Err(why),
        }
    }

    pub fn show(&self) -> Shown {
        self.ask(&Request::Show).expect("shown")
    }

    pub fn enforce(&self, vm: &Vm, weight: u32) -> Shown {
        let wanted = Wanted {
            pid: vm.pid(),
            level: Some(Level::Enforce),
            policy: Some(Policy::Cfs),
            weight: Some(weight),
            ..Wanted::default()
        };
        self.ask(&Request::Set(wanted)).expect("taken")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn tell(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid"));
    kill(pid, signal).expect("it is there");
}

/// Whether a process that is nobody's child here has ended.
pub fn ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_none_or(|(_, after)| after.starts_with(['Z', 'X']))
}

pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The groups that were made for threads, of all hierarchies.
pub fn groups(tids: &[u32]) -> Vec<PathBuf> {
    fn below(folder: &Path, depth: u8, found: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(folder) else {
            return;
        };
        for entry in entries.flatten() {
            if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.push(entry.path());
                below(&entry.path(), depth - 1, found);
            }
        }
    }
    let mut all = Vec::new();
    below(Path::new("/sys/fs/cgroup"), 5, &mut all);
    let names: Vec<_> = tids.iter().map(|tid| format!("{PREFIX}{tid}")).collect();
    all.retain(|path| names.iter().any(|name| path.ends_with(name)));
    all
}

pub fn frozen(group: &Path) -> bool {
    let read = |name: &str| fs::read_to_string(group.join(name)).unwrap_or_default();
    read("cgroup.freeze").trim() == "1" || read("freezer.state").starts_with("FR")
}

pub fn affinity(tid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).expect("alive");
    let line = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list"));
    line.expect("a list").to_owned()
}
