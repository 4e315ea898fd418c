//! Three hosts at a time, or as many as `FORKYARD_E2E_HOSTS` says: guests are emulated, and
//! with many of them on two cores every test would be as slow as its neighbours; but half
//! of its time a test waits for something else than a core.
//!
//! The holder of a slot knows that any other host there is of the same slot was
//! abandoned: its test program was itself killed. It is cleared away, by a guard that
//! outlives the test program or, if that was killed as well, by the next holder of the slot. Hosts
//! of the other slots are left alone.

use crate::place::cgroups;
use std::{
    env,
    io::{self, ErrorKind, Write as _},
    ops::Range,
    os::{
        fd::OwnedFd,
        linux::net::SocketAddrExt as _,
        unix::{
            net::{SocketAddr, UnixListener},
            process::CommandExt as _,
        },
    },
    process::{Child, ChildStdin, Command, Stdio},
    thread::{self, sleep},
    time::{Duration, Instant},
};

/// Number of hosts there may be, unless set otherwise.
const SLOTS: u8 = 3;
/// Those of hosts whose machines are made up.
const FAKE: Range<u8> = 100..132;
/// That of the host that keeps a boot for all others.
const KEEPER: Range<u8> = 99..100;
/// Time between looks for a free one.
const LOOK: Duration = Duration::from_millis(50);

/// The right to have a host, until dropped; also between test programs. A program that has had it
/// tells how long: `cargo xtask test` lists those that took longest.
#[derive(Debug)]
pub struct Slot {
    number: u8,
    since: Instant,
    /// A name that only one can have at a time: unlike a file's, it is gone with them.
    lock: UnixListener,
    guard: Option<Guard>,
}

impl Slot {
    /// Waits for one.
    pub fn wait() -> Self {
        Self::of(0..slots())
    }

    /// Waits for one of those for hosts whose machines are made up: they take next to
    /// no processor time, and any number of tests may have one.
    pub fn wait_fake() -> Self {
        Self::of(FAKE)
    }

    /// Waits for the one of the host that keeps a boot for all others.
    pub fn wait_to_keep() -> Self {
        Self::of(KEEPER)
    }

    fn of(numbers: Range<u8>) -> Self {
        let mut slot = loop {
            if let Some(free) = numbers.clone().find_map(Self::take) {
                break free;
            }
            sleep(LOOK);
        };
        let cleared = clear(&slot.prefix(), Stdio::null(), Stdio::null()).wait();
        assert!(
            cleared.expect("waited for").success(),
            "what was left stays"
        );
        let lock = slot.lock.try_clone().expect("a lock that is held twice");
        slot.guard = Some(Guard::new(&slot.prefix(), lock.into()));
        slot
    }

    /// Returns the prefix of every host's folder and cgroup.
    pub fn prefix(&self) -> String {
        prefix(self.number)
    }

    fn take(number: u8) -> Option<Self> {
        let name = format!("{}lock", prefix(number));
        let address = SocketAddr::from_abstract_name(&name).expect("a short name");
        match UnixListener::bind_addr(&address) {
            Ok(lock) => Some(Self {
                number,
                since: Instant::now(),
                lock,
                guard: None,
            }),
            Err(taken) if taken.kind() == ErrorKind::AddrInUse => None,
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let thread = thread::current();
        let name = thread.name().unwrap_or("a host");
        let took = self.since.elapsed().as_secs_f64();
        // Past what keeps a test's words back. No test fails for want of it.
        let line = format!("\ntook {took:.1} s: {name}\n");
        let _ = io::stdout().write_all(line.as_bytes());
    }
}

fn slots() -> u8 {
    let told = env::var("FORKYARD_E2E_HOSTS").ok();
    told.map_or(SLOTS, |told| told.parse().expect("a number of hosts"))
}

fn prefix(number: u8) -> String {
    format!("forkyard-e2e.{number}.")
}

/// Guard that takes the hosts of a slot away when the holder of the slot has ended, in
/// whatever way. No other program gets the slot before it is done.
#[derive(Debug)]
struct Guard {
    clearing: Child,
    /// Ends with us.
    alive: Option<ChildStdin>,
}

impl Guard {
    fn new(prefix: &str, lock: OwnedFd) -> Self {
        let mut clearing = clear(prefix, Stdio::piped(), lock.into());
        let alive = clearing.stdin.take();
        Self { clearing, alive }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.alive.take());
        let _ = self.clearing.wait();
    }
}

/// Takes away what is left of a slot's hosts once `until` ends. Holds `lock` meanwhile, and
/// goes on when a terminal's Ctrl-C ends all others.
fn clear(prefix: &str, until: Stdio, lock: Stdio) -> Child {
    let mut clearing = Command::new("sh");
    clearing.args(["-c", include_str!("clear.sh"), "clear"]);
    clearing.arg(env::temp_dir().join(prefix)).arg(cgroups());
    let clearing = clearing.stdin(until).stdout(lock).process_group(0);
    clearing.spawn().expect("a shell")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;
    use std::{ffi::OsStr, fs, process::Command};
    use tempfile::TempDir;

    fn folder_of(slot: &str) -> TempDir {
        let prefix = format!("forkyard-e2e.{slot}.");
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir();
        folder.expect("a folder")
    }

    fn place_of(folder: &TempDir) -> Place {
        let name = folder.path().file_name().and_then(OsStr::to_str);
        Place::new(name.expect("text"))
    }

    /// One process known by its variables, and one by its cgroup alone.
    #[allow(clippy::zombie_processes)] // the end of the place waits for them
    fn two_processes(folder: &TempDir, place: &Place) {
        // Which in there leads to its own.
        let door = cgroups().join("cgroup.procs");
        let run = folder.path().join("run");
        let started = place.within(move || {
            let mut told = Command::new("sleep");
            told.arg("600").env("FORKYARD_RUN_DIR", run).spawn()?;
            let mut script = Command::new("sh");
            script.args(["-c", "echo 0 >$0; exec sleep 600"]).arg(door);
            script.spawn()
        });
        started.expect("started");
        crate::eventually("a process in the cgroup", || {
            let members = fs::read_to_string(place.cgroup().join("cgroup.procs"));
            !members.expect("there").is_empty() && place.processes().len() == 2
        });
    }

    #[test]
    fn what_a_killed_run_left_goes_and_its_neighbours_host_stays() {
        let [left, neighbour] = ["test-left", "test-near"].map(folder_of);
        let [lost, near] = [&left, &neighbour].map(place_of);
        two_processes(&left, &lost);
        two_processes(&neighbour, &near);
        let guard = Guard::new(
            "forkyard-e2e.test-left.",
            tempfile::tempfile().expect("a file").into(),
        );
        assert_eq!(lost.processes().len(), 2, "nothing has ended");
        drop(guard);
        assert_eq!(lost.processes(), []);
        assert!(!lost.cgroup().exists() && !left.path().exists());
        assert_eq!(near.processes().len(), 2);
        assert!(near.cgroup().exists() && neighbour.path().exists());
    }
}
