//! One host at a time: guests are emulated, and two of them on two cores would
//! make every test as slow as its neighbour.
//!
//! Whoever has the slot knows that any other host there is was abandoned: its
//! test program was itself killed. It is cleared away.

use crate::place;
use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
};

/// What every host's folder, and its cgroup, is called first.
pub const PREFIX: &str = "forkyard-e2e.";

/// The right to have a host, until dropped; also between test programs.
#[derive(Debug)]
pub struct Slot(#[expect(dead_code, reason = "held, never read")] File);

impl Slot {
    /// Waits for it.
    pub fn wait() -> Self {
        let path = env::temp_dir().join(format!("{PREFIX}lock"));
        let file = File::create(&path).expect("a lock file");
        file.lock().expect("a lock");
        hosts().iter().for_each(|folder| clear(folder));
        Self(file)
    }
}

/// Folders of hosts, which are all abandoned.
fn hosts() -> Vec<PathBuf> {
    let entries = fs::read_dir(env::temp_dir()).expect("temporary files");
    let ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        path.is_dir() && name.is_some_and(|name| name.starts_with(PREFIX))
    };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.filter(ours).collect()
}

fn clear(folder: &Path) {
    let name = folder.display().to_string();
    eprintln!("clearing away {name}, whose test program was killed");
    let all = place::processes(|_| true);
    let left = all
        .iter()
        .filter(|p| p.command.contains(&format!("{name}/")));
    for process in left {
        process.end().expect("root may end it");
    }
    if let Some(name) = folder.file_name() {
        place::remove_groups(&place::cgroups().join(name));
    }
    fs::remove_dir_all(folder).expect("removed");
}
