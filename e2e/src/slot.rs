//! Two hosts at a time: guests are emulated, and more of them on two cores would
//! make every test as slow as its neighbours.
//!
//! Whoever has a slot knows that any other host there is of the same slot was
//! abandoned: its test program was itself killed. It is cleared away. Hosts of
//! the other slot are nobody's business but their own.

use crate::place;
use std::{
    env,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

/// How many hosts there may be.
const SLOTS: u8 = 2;
/// Time between looks for a free one.
const LOOK: Duration = Duration::from_millis(50);

/// The right to have a host, until dropped; also between test programs.
#[derive(Debug)]
pub struct Slot {
    number: u8,
    #[expect(dead_code, reason = "held, never read")]
    lock: File,
}

impl Slot {
    /// Waits for one.
    pub fn wait() -> Self {
        let slot = loop {
            if let Some(free) = (0..SLOTS).find_map(Self::take) {
                break free;
            }
            sleep(LOOK);
        };
        let abandoned = hosts(&slot.prefix());
        abandoned.iter().for_each(|folder| clear(folder));
        slot
    }

    /// What every host's folder, and its cgroup, is called first.
    pub fn prefix(&self) -> String {
        prefix(self.number)
    }

    fn take(number: u8) -> Option<Self> {
        let path = env::temp_dir().join(format!("{}lock", prefix(number)));
        let lock = File::create(&path).expect("a lock file");
        match lock.try_lock() {
            Ok(()) => Some(Self { number, lock }),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Error(error)) => panic!("{}: {error}", path.display()),
        }
    }
}

fn prefix(number: u8) -> String {
    format!("forkyard-e2e.{number}.")
}

/// Folders of a slot's hosts, which are all abandoned.
fn hosts(prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(env::temp_dir()).expect("temporary files");
    let ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        path.is_dir() && name.is_some_and(|name| name.starts_with(prefix))
    };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(ours).collect()
}

fn clear(folder: &Path) {
    let name = folder.display();
    eprintln!("clearing away {name}, whose test program was killed");
    let all = place::processes(|process| place::speaks_of(process, folder));
    for process in all {
        process.end().expect("root may end it");
    }
    if let Some(name) = folder.file_name() {
        place::remove_groups(&place::cgroups().join(name));
    }
    fs::remove_dir_all(folder).expect("removed");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;
    use std::{ffi::OsStr, process::Command};
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
    #[allow(clippy::zombie_processes)] // whoever ends the place waits for them
    fn two_processes(folder: &TempDir, place: &Place) {
        // Which in there leads to its own.
        let door = place::cgroups().join("cgroup.procs");
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
        let found = hosts("forkyard-e2e.test-left.");
        assert_eq!(found, [left.path()]);
        clear(&found[0]);
        assert_eq!(lost.processes(), []);
        assert!(!lost.cgroup().exists() && !left.path().exists());
        assert_eq!(near.processes().len(), 2);
        assert!(near.cgroup().exists() && neighbour.path().exists());
    }
}
