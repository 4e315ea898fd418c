//! Objects that the tests act on: processes that pass for VMs, dispatchers, the
//! kernel.

use crate::common::{Daemon, Vm, until};
use forkyard_vcpu_dispatch::protocol::{Request, Shown, Wanted};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, clock_gettime},
    unistd::Pid,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// Selection of the guest's CPUs.
#[derive(Clone, Copy, Debug)]
pub enum Cpus {
    All,
    First,
    Last,
}

/// Keeps the calling thread, and what it starts, on these.
pub fn on(cpus: Cpus) {
    let count = thread_count();
    let wanted = match cpus {
        Cpus::All => 0..count,
        Cpus::First => 0..1,
        Cpus::Last => count - 1..count,
    };
    let mut set = CpuSet::new();
    for cpu in wanted {
        set.set(cpu).expect("few");
    }
    sched_setaffinity(Pid::from_raw(0), &set).expect("it has them");
}

/// The CPUs of the guest, whatever this thread is kept on.
fn thread_count() -> usize {
    let all = sched_getaffinity(Pid::from_raw(1)).expect("init is there");
    let is_there = |&cpu: &usize| all.is_set(cpu) == Ok(true);
    (0..CpuSet::count()).filter(is_there).count()
}

/// Behaviour of a VM's vCPUs.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// They run all the time.
    Busy,
    /// They sleep now and then.
    Naps,
}

impl Vm {
    pub fn start(vcpus: u32, kind: Kind) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        match kind {
            Kind::Busy => {}
            Kind::Naps => {
                command.env("NAPS", "1");
            }
        }
        Self::of(command, vcpus)
    }

    pub fn some_run_on(&self) {
        let before = self.ran();
        until("a vCPU runs again", || {
            self.ran().iter().zip(&before).any(|(now, then)| now > then)
        });
    }
}

/// The scheduler in BPF.
pub fn object() -> PathBuf {
    let path = std::env::var_os("FORKYARD_SCHED_EXT");
    path.expect("FORKYARD_SCHED_EXT, the scheduler in BPF")
        .into()
}

fn serve(object: &Path, folder: &tempfile::TempDir) -> Command {
    let program = std::env::var_os("FORKYARD_DISPATCHER");
    let mut command = Command::new(program.expect("FORKYARD_DISPATCHER, the program"));
    command
        .args(["serve", "--socket"])
        .arg(folder.path().join("sched.sock"))
        .arg("--sched-ext")
        .arg(object)
        .stdin(Stdio::null());
    command
}

impl Daemon {
    pub fn start(cpus: Cpus) -> Self {
        // The last one's scheduler may be about to go.
        until("no scheduler is loaded", || state() == "disabled");
        let daemon = Self::with(&object(), cpus);
        daemon.listens();
        daemon
    }

    /// With any scheduler. It may not listen yet, nor ever.
    pub fn with(object: &Path, cpus: Cpus) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = serve(object, &folder);
        on(cpus);
        let child = command.spawn();
        on(Cpus::All);
        Self {
            child: child.expect("the dispatcher"),
            folder,
        }
    }

    /// Returns the message of a dispatcher that does not start.
    pub fn refused(object: &Path) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let output = serve(object, &folder).output().expect("the dispatcher");
        assert!(!output.status.success(), "{}", output.status);
        String::from_utf8(output.stderr).expect("text")
    }

    pub fn set(&self, wanted: Wanted) -> Result<Shown, String> {
        self.ask(&Request::Set(wanted))
    }

    pub fn release(&self, vm: &Vm) -> Result<Shown, String> {
        self.ask(&Request::Release { pid: vm.pid() })
    }
}

/// Returns the state of its scheduler in BPF that the kernel gives.
pub fn state() -> String {
    let state = fs::read_to_string("/sys/kernel/sched_ext/state").expect("it has sched_ext");
    state.trim().to_owned()
}

/// A thread's class.
pub fn class(tid: u32) -> u32 {
    let text = fs::read_to_string(format!("/proc/{tid}/stat")).expect("alive");
    let after = text.rsplit_once(") ").expect("a name").1;
    let field = after.split(' ').nth(38).expect("a field");
    field.parse().expect("a number")
}

/// The CPU time of the calling thread.
pub fn own_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
    Duration::from(time)
}
