//! The dispatcher on real threads: processes with threads named as QEMU names
//! its vCPUs', that do nothing but run. Needs root.

use forkyard_dispatch::{
    freezer::PREFIX,
    protocol::{Level, Reply, Request, Shown, Wanted},
    socket::ask,
    threads,
};
use forkyard_sched::Policy;
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// What a loaded machine may take for what should take milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the other tests run as a VM: one idle main thread, one busy thread that
/// is no vCPU's, and so many that are.
#[test]
#[ignore = "run by the other tests"]
fn stand_in() {
    let count: u32 = std::env::var("VCPUS").map_or(0, |n| n.parse().expect("a number"));
    let busy = |name: String| {
        let spin = || loop {
            std::hint::spin_loop();
        };
        thread::Builder::new()
            .name(name)
            .spawn(spin)
            .expect("a thread")
    };
    let threads: Vec<_> = (0..count).map(|n| busy(format!("CPU {n}/TCG"))).collect();
    let _worker = (count > 0).then(|| busy("worker".to_owned()));
    // Ends with whoever started it.
    let _ = std::io::stdin().read(&mut [0]);
    drop(threads);
    std::process::exit(0);
}

struct Vm(Child);

impl Vm {
    fn start(vcpus: u32) -> Self {
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

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn tids(&self) -> Vec<u32> {
        let found = threads::vcpus(self.pid()).expect("its threads");
        found.into_iter().map(|thread| thread.tid).collect()
    }

    /// Time each vCPU has run, in ns.
    fn ran(&self) -> Vec<u64> {
        let one = |tid: &u32| {
            let text = fs::read_to_string(format!("/proc/{tid}/schedstat")).expect("alive");
            let ran = text.split(' ').next().expect("a number");
            ran.parse::<u64>().expect("a number")
        };
        self.tids().iter().map(one).collect()
    }

    fn all_run_on(&self) {
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

struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
}

impl Daemon {
    /// On one CPU, so that there is something to decide.
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
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
        let daemon = Self { child, folder };
        until("it listens", || {
            ask(&daemon.socket(), &Request::Show).is_ok()
        });
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("sched.sock")
    }

    fn ask(&self, request: &Request) -> Result<Shown, String> {
        match ask(&self.socket(), request).expect("an answer") {
            Reply::Done(shown) => Ok(shown),
            Reply::Refused(why) => Err(why),
        }
    }

    fn enforce(&self, vm: &Vm, weight: u32) -> Shown {
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

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The groups that were made for threads, of all hierarchies.
fn groups(tids: &[u32]) -> Vec<PathBuf> {
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

fn frozen(group: &Path) -> bool {
    let read = |name: &str| fs::read_to_string(group.join(name)).unwrap_or_default();
    read("cgroup.freeze").trim() == "1" || read("freezer.state").starts_with("FR")
}

fn affinity(tid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).expect("alive");
    let line = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list"));
    line.expect("a list").to_owned()
}

#[test]
fn turns_are_given_by_weight() {
    let (light, heavy) = (Vm::start(1), Vm::start(1));
    let daemon = Daemon::start();
    daemon.enforce(&light, 256);
    daemon.enforce(&heavy, 768);
    let (light_before, heavy_before) = (light.ran()[0], heavy.ran()[0]);
    // As long as it takes the two to have run for three seconds.
    let had = || (light.ran()[0] - light_before, heavy.ran()[0] - heavy_before);
    until("both have run", || had().0 + had().1 > 3_000_000_000);
    let (light, heavy) = had();
    let part = heavy as f64 / (light + heavy) as f64;
    assert!((part - 0.75).abs() < 0.05, "{part}");
}

#[test]
fn whoever_is_not_to_run_is_frozen_and_nobody_else_is() {
    let vm = Vm::start(3);
    let daemon = Daemon::start();
    daemon.enforce(&vm, 256);
    let made = groups(&vm.tids());
    assert_eq!(made.len(), 3, "one for each vCPU and no other: {made:?}");
    until("two of three are frozen", || {
        made.iter().filter(|group| frozen(group)).count() == 2
    });
    // The main thread and the worker are in no such group.
    for entry in fs::read_dir(format!("/proc/{}/task", vm.pid())).expect("threads") {
        let path = entry.expect("a thread").path();
        let name = fs::read_to_string(path.join("comm")).expect("alive");
        let groups = fs::read_to_string(path.join("cgroup")).expect("alive");
        assert_eq!(groups.contains(PREFIX), name.starts_with("CPU "), "{name}");
    }
    let shown = daemon.ask(&Request::Show).expect("shown");
    assert_eq!(shown.cpus[0].waiting.len(), 2);
    assert!(shown.vms[0].vcpus.iter().all(|vcpu| vcpu.stacked));
}

#[test]
fn everything_runs_again_when_the_dispatcher_is_killed() {
    let vms = [Vm::start(2), Vm::start(2)];
    let tids: Vec<u32> = vms.iter().flat_map(Vm::tids).collect();
    let before: Vec<_> = tids.iter().map(|&tid| affinity(tid)).collect();
    let mut daemon = Daemon::start();
    for vm in &vms {
        daemon.enforce(vm, 256);
    }
    let made = groups(&tids);
    until("three of four are frozen", || {
        made.iter().filter(|group| frozen(group)).count() == 3
    });
    let begun = Instant::now();
    daemon.child.kill().expect("killed");
    until("all are thawed", || !made.iter().any(|group| frozen(group)));
    println!("thawed after {:?}", begun.elapsed());
    until("the groups are gone", || groups(&tids).is_empty());
    vms.iter().for_each(Vm::all_run_on);
    until("they may run where they might before", || {
        tids.iter()
            .zip(&before)
            .all(|(&tid, was)| affinity(tid) == *was)
    });
}

#[test]
fn a_killed_guard_is_replaced_and_the_next_one_knows_everything() {
    let vm = Vm::start(2);
    let mut daemon = Daemon::start();
    daemon.enforce(&vm, 256);
    let pid = daemon.child.id();
    let guard = move || {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = fs::read_to_string(path).expect("children");
        children.split_whitespace().next().map(str::to_owned)
    };
    let first = guard().expect("a guard");
    Command::new("kill")
        .args(["-9", &first])
        .status()
        .expect("kill");
    until("another has taken its place", || {
        guard().is_some_and(|now| now != first)
    });
    until("turns go on", || {
        groups(&vm.tids())
            .iter()
            .filter(|group| frozen(group))
            .count()
            == 1
    });
    daemon.child.kill().expect("killed");
    until("the groups are gone", || groups(&vm.tids()).is_empty());
    vm.all_run_on();
}

#[test]
fn a_vm_that_is_released_or_ends_leaves_nothing() {
    let (vm, ends) = (Vm::start(2), Vm::start(1));
    let daemon = Daemon::start();
    daemon.enforce(&vm, 256);
    daemon.enforce(&ends, 256);
    let gone = ends.tids();
    drop(ends);
    until("the ended one is forgotten", || {
        daemon.ask(&Request::Show).expect("shown").vms.len() == 1
    });
    assert_eq!(groups(&gone), Vec::<PathBuf>::new());
    let shown = daemon
        .ask(&Request::Release { pid: vm.pid() })
        .expect("released");
    assert!(shown.vms.is_empty());
    assert_eq!(groups(&vm.tids()), Vec::<PathBuf>::new());
    vm.all_run_on();
    daemon
        .ask(&Request::Release { pid: vm.pid() })
        .expect_err("unknown by now");
}

#[test]
fn placing_leaves_turns_to_the_host() {
    let vm = Vm::start(1);
    let daemon = Daemon::start();
    let set = |wanted| {
        daemon.ask(&Request::Set(Wanted {
            pid: vm.pid(),
            ..wanted
        }))
    };
    let placed = Wanted {
        level: Some(Level::Place),
        policy: Some(Policy::Cfs),
        weight: Some(512),
        ..Wanted::default()
    };
    set(placed).expect("taken");
    let stat = || {
        let text = fs::read_to_string(format!("/proc/{}/stat", vm.tids()[0])).expect("alive");
        let after = text.rsplit_once(") ").expect("a name").1.to_owned();
        let fields: Vec<_> = after.split(' ').map(str::to_owned).collect();
        // Niceness and scheduling policy.
        (fields[16].clone(), fields[38].clone())
    };
    assert_eq!(stat(), ("-3".to_owned(), "0".to_owned()));
    assert!(groups(&vm.tids()).is_empty());
    daemon
        .ask(&Request::Release { pid: vm.pid() })
        .expect("released");
    assert_eq!(stat().1, "0");
}

#[test]
fn what_cannot_be_is_refused_and_says_why() {
    let vm = Vm::start(1);
    let daemon = Daemon::start();
    let set = |wanted| daemon.ask(&Request::Set(wanted));
    let pid = vm.pid();
    let enforce = Wanted {
        pid,
        level: Some(Level::Enforce),
        policy: Some(Policy::Sbco),
        ..Wanted::default()
    };
    let weight = set(Wanted {
        weight: Some(0),
        ..enforce.clone()
    })
    .expect_err("no weight");
    assert!(weight.contains("65535"), "{weight}");
    let cap = set(Wanted {
        cap: Some(50),
        ..enforce
    })
    .expect_err("no rule for it");
    assert!(cap.contains("credit"), "{cap}");
    let this = set(Wanted {
        pid: std::process::id(),
        ..Wanted::default()
    })
    .expect_err("no VM");
    assert!(this.contains("debug-threads"), "{this}");
    set(Wanted {
        pid: u32::MAX,
        ..Wanted::default()
    })
    .expect_err("nobody");
    assert!(groups(&vm.tids()).is_empty());
}
