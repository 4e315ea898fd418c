//! The control group of one command. Its processes are in it from their first instruction on, and those
//! that change session, parent or environment stay in it.
//!
//! ```text
//! make --> command enters /user/exec/command-MARK --> end --> removed when it is empty
//!   |                                                          +-- processes are left: by a later `make`
//!   +-- refused (`forkyard-friendly` has made /user/exec threaded): command enters /user/exec alone
//! ```
//!
//! If the agent dies, its successor knows by the groups which commands lost their clients with it: those that
//! are kept, and those that had ended before, have a limit that no other has.
//!
//! A process with the right to do so may still move itself elsewhere: see [`super::group`].

use super::userland::{Userland, processes_in};
use std::{
    collections::{BTreeSet, VecDeque},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// First part of the groups' names. `forkyard-friendly` knows it, too.
const PREFIX: &str = "command-";
/// Removals that one `make` tries: a command starts as fast however many groups are left.
const TRIES: usize = 8;
/// Most levels below a command's group that are removed with it.
const DEPTH: u32 = 16;

/// Limit of groups below a group, which the kernel does not set.
const LIMIT: &str = "cgroup.max.descendants";
/// The limit of a command that no client waits for, and that of the others.
const SPARED: &str = "65536";
const WAITED_FOR: &str = "max";

/// Groups that held processes when their commands had ended.
type Left = Arc<Mutex<VecDeque<PathBuf>>>;

/// Maker of commands' groups.
#[derive(Debug)]
pub struct CommandGroups {
    above: PathBuf,
    left: Left,
}

impl CommandGroups {
    /// Groups below that of all commands. Those of an earlier worker are removed once they are
    /// empty.
    pub fn of(userland: &Userland) -> Self {
        let above = userland.exec();
        let found = fs::read_dir(&above).into_iter().flatten().flatten();
        let ours = found.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
        let left = ours.map(|entry| entry.path()).collect();
        Self {
            above,
            left: Arc::new(Mutex::new(left)),
        }
    }

    /// Groups of an earlier worker's commands that clients waited for, with their names.
    pub fn lost(&self) -> Vec<(String, CommandGroup)> {
        let left = lock(&self.left).clone();
        let lost = left.into_iter().filter(|folder| {
            let limit = fs::read_to_string(folder.join(LIMIT)).unwrap_or_default();
            limit.trim_end() == WAITED_FOR
        });
        lost.filter_map(|folder| {
            let name = folder.file_name()?.to_str()?.strip_prefix(PREFIX)?;
            let left = self.left.clone();
            Some((name.to_owned(), CommandGroup { folder, left }))
        })
        .collect()
    }

    /// Makes a group of this name; none where the kernel refuses.
    pub fn make(&self, name: &str) -> Option<CommandGroup> {
        self.remove_some();
        let folder = self.above.join(format!("{PREFIX}{name}"));
        fs::create_dir(&folder).ok()?;
        let left = self.left.clone();
        Some(CommandGroup { folder, left })
    }

    /// Removes groups whose last processes have ended since.
    fn remove_some(&self) {
        let mut left = lock(&self.left);
        for _ in 0..TRIES.min(left.len()) {
            if let Some(folder) = left.pop_front()
                && !is_gone(&folder)
            {
                left.push_back(folder);
            }
        }
    }
}

/// Control group of one command.
#[derive(Clone, Debug)]
pub struct CommandGroup {
    folder: PathBuf,
    left: Left,
}

impl CommandGroup {
    /// Opens the file by which a process enters it.
    pub fn procs(&self) -> io::Result<File> {
        File::options()
            .write(true)
            .open(self.folder.join("cgroup.procs"))
    }

    /// Reads the ids of its processes, and of those in groups below.
    pub fn processes(&self) -> BTreeSet<i32> {
        processes_in(&self.folder).into_iter().collect()
    }

    /// Kills all processes at once, those started meanwhile included. Without effect before Linux
    /// 5.14.
    pub fn kill(&self) {
        let _ = fs::write(self.folder.join("cgroup.kill"), "1");
    }

    /// No client waits for its command: it does not end with the agent.
    pub fn spare(&self) {
        // A kernel that refuses has it end with the agent.
        let _ = fs::write(self.folder.join(LIMIT), SPARED);
    }

    /// Removes it now that its command has ended, or as soon as what that left running has.
    pub fn remove(&self) {
        if !is_gone(&self.folder) {
            self.spare();
            lock(&self.left).push_back(self.folder.clone());
        }
    }
}

/// Removes a group and those below. False: it holds processes.
fn is_gone(folder: &Path) -> bool {
    if fs::remove_dir(folder).is_ok() || !folder.exists() {
        return true;
    }
    let events = fs::read_to_string(folder.join("cgroup.events")).unwrap_or_default();
    if events.lines().any(|line| line == "populated 0") {
        remove_below(folder, DEPTH);
    }
    fs::remove_dir(folder).is_ok()
}

fn remove_below(folder: &Path, depth: u32) {
    if depth == 0 {
        return;
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&entry.path(), depth - 1);
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_with_processes_is_removed_by_a_later_command_once_they_have_ended() {
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(root.path().join("user/exec")).expect("made");
        let groups = CommandGroups::of(&Userland::at(root.path()));
        let first = groups.make("a").expect("made");
        // The kernel refuses to remove a group that has a process; a folder that has a file.
        let process = first.folder.join("process");
        fs::write(&process, "").expect("written");
        first.remove();
        let second = groups.make("b").expect("made");
        // Which the kernel makes.
        fs::write(second.folder.join(LIMIT), "max\n").expect("written");
        let lost = CommandGroups::of(&Userland::at(root.path())).lost();
        let names: Vec<_> = lost.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b"], "the command of the other has ended");
        second.spare();
        assert!(
            CommandGroups::of(&Userland::at(root.path()))
                .lost()
                .is_empty()
        );
        fs::remove_file(second.folder.join(LIMIT)).expect("removed");
        fs::remove_file(first.folder.join(LIMIT)).expect("removed");
        assert!(first.folder.exists(), "its process lives");
        fs::remove_file(process).expect("removed");
        second.remove();
        assert!(!second.folder.exists());
        // Groups of an earlier worker are known by their names.
        let groups = CommandGroups::of(&Userland::at(root.path()));
        fs::create_dir(root.path().join("user/exec/jobs")).expect("made");
        groups.make("c").expect("made").remove();
        let mut left = fs::read_dir(root.path().join("user/exec")).expect("listed");
        let name = left.next().expect("one").expect("read").file_name();
        assert_eq!((name.to_str(), left.count()), (Some("jobs"), 0));
    }

    #[test]
    fn groups_that_a_command_made_below_its_own_go_with_it() {
        let root = tempfile::tempdir().expect("a folder");
        let group = root.path().join("user/exec/command-x");
        fs::create_dir_all(group.join("a/b")).expect("made");
        // Files of the kernel's do not keep a group.
        let events = group.join("cgroup.events");
        fs::write(&events, "populated 1\nfrozen 0\n").expect("written");
        assert!(!is_gone(&group));
        assert!(group.join("a/b").exists(), "a process may want them");
        fs::write(&events, "populated 0\nfrozen 0\n").expect("written");
        is_gone(&group);
        assert!(!group.join("a").exists());
    }
}
