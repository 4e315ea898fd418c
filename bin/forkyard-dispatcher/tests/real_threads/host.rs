//! Objects that the tests act on: processes that pass for VMs, dispatchers,
//! groups.

use crate::common::{Daemon, Vm, tell};
use forkyard_sched::Policy;
use forkyard_vcpu_dispatch::{
    freezer::PREFIX,
    protocol::{Level, Request, Shown, Wanted},
};
use nix::sys::signal::Signal;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

impl Vm {
    pub fn start(vcpus: u32) -> Self {
        let mut command = Command::new("taskset");
        command
            .args(["-c", "0"])
            .arg(std::env::current_exe().expect("this test"));
        Self::of(command, vcpus)
    }

    pub fn tell(&self, signal: Signal) {
        tell(self.pid(), signal);
    }
}

impl Daemon {
    /// On one CPU, so that there is something to decide.
    pub fn start() -> Self {
        Self::on("0")
    }

    /// On these CPUs, as `taskset` has them.
    pub fn on(cpus: &str) -> Self {
        let daemon = Self::within(cpus, tempfile::tempdir().expect("a folder"));
        daemon.listens();
        daemon
    }

    /// Another one in the place of this one, which has ended. It may not listen yet.
    pub fn again(mut self) -> Self {
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a folder"));
        Self::within("0", folder)
    }

    fn within(cpus: &str, folder: tempfile::TempDir) -> Self {
        let child = Command::new("taskset")
            .args([
                "-c",
                cpus,
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

/// The groups that were made for threads, of all hierarchies.
pub fn groups(tids: &[u32]) -> Vec<PathBuf> {
    named(tids.iter().map(|tid| format!("{PREFIX}{tid}")).collect())
}

/// The groups that were made for whole VMs.
pub fn nests(vms: &[&Vm]) -> Vec<PathBuf> {
    named(
        { vms.iter() }
            .map(|vm| format!("{PREFIX}vm-{}", vm.pid()))
            .collect(),
    )
}

fn named(names: Vec<String>) -> Vec<PathBuf> {
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
    below(Path::new("/sys/fs/cgroup"), 6, &mut all);
    all.retain(|path| names.iter().any(|name| path.ends_with(name)));
    all
}

/// Tells whether a group is frozen, by itself or by its VM's.
pub fn frozen(group: &Path) -> bool {
    let above = group.parent().is_some_and(stopped);
    stopped(group) || above
}

/// Tells whether a group is frozen by itself.
pub fn stopped(group: &Path) -> bool {
    let read = |name: &str| fs::read_to_string(group.join(name)).unwrap_or_default();
    read("cgroup.freeze").trim() == "1" || read("freezer.state").starts_with("FR")
}
