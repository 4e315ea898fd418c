//! Fixtures that tests of dispatchers share: processes that pass for VMs, and
//! dispatchers.

use forkyard_vcpu_dispatch::{
    protocol::{Reply, Request, Shown},
    socket::ask,
    threads,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    path::PathBuf,
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
    /// This test's `stand_in`, run by `command`, which names this test last.
    pub fn of(mut command: Command, vcpus: u32) -> Self {
        command
            .args(["--exact", "--ignored", "--nocapture", "stand_in"])
            .env("VCPUS", vcpus.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        let vm = Self(command.spawn().expect("this test"));
        until("the threads run", || {
            threads::vcpus(vm.pid()).is_ok_and(|found| found.len() == vcpus as usize)
        });
        vm
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

/// A dispatcher, and the folder of its socket.
#[derive(Debug)]
pub struct Daemon {
    pub child: Child,
    pub folder: tempfile::TempDir,
}

impl Daemon {
    pub fn listens(&self) {
        until("it listens", || ask(&self.socket(), &Request::Show).is_ok());
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("sched.sock")
    }

    pub fn ask(&self, request: &Request) -> Result<Shown, String> {
        match ask(&self.socket(), request).expect("an answer") {
            Reply::Done(shown) => Ok(shown),
            Reply::Refused(why) | Reply::Failed(why) => Err(why),
        }
    }

    pub fn show(&self) -> Shown {
        self.ask(&Request::Show).expect("shown")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn affinity(tid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).expect("alive");
    let line = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list"));
    line.expect("a list").to_owned()
}

pub fn tell(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid"));
    kill(pid, signal).expect("it is there");
}

/// Tells whether a process that is no child of this one has ended.
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
