//! A group that freezes the threads in it.

use crate::{CgroupVersion, FreezerError};
use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Time between two trials to remove a group.
const PAUSE: Duration = Duration::from_millis(5);

/// Permission of a thread to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frozen {
    /// The thread may not.
    Yes,
    /// The thread may.
    No,
}

/// A group that was made here. It stays when this value goes: [`release`] removes it.
#[derive(Debug)]
pub struct Group {
    version: CgroupVersion,
    path: PathBuf,
    switch: File,
    frozen: Frozen,
}

impl Group {
    /// Makes a group, threaded in v2, whose threads may run. One that could be made in
    /// part only is removed again.
    pub fn make(path: PathBuf, version: CgroupVersion) -> Result<Self, FreezerError> {
        fs::create_dir(&path).map_err(FreezerError::of("create group", &path))?;
        match prepare(&path, version) {
            Ok(switch) => Ok(Self {
                version,
                path,
                switch,
                frozen: Frozen::No,
            }),
            Err(error) => {
                // What stopped it says more than that it is left.
                let _ = fs::remove_dir(&path);
                Err(error)
            }
        }
    }

    /// Moves a thread into it.
    pub fn add(&self, tid: u32) -> Result<(), FreezerError> {
        let list = self.path.join(self.version.threads());
        fs::write(&list, tid.to_string()).map_err(FreezerError::of("write", list))
    }

    /// Returns the version of its hierarchy.
    pub fn version(&self) -> CgroupVersion {
        self.version
    }

    /// Returns its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether its threads may run, as far as this group decides.
    pub fn frozen(&self) -> Frozen {
        self.frozen
    }

    /// Stops its threads or lets them go. Returns before they have stopped, which takes
    /// 20 to 30 µs.
    pub fn set(&mut self, frozen: Frozen) -> io::Result<()> {
        if self.frozen == frozen {
            return Ok(());
        }
        let word = match (self.version, frozen) {
            (CgroupVersion::V2, Frozen::Yes) => "1",
            (CgroupVersion::V2, Frozen::No) => "0",
            (CgroupVersion::V1, Frozen::Yes) => "FROZEN",
            (CgroupVersion::V1, Frozen::No) => "THAWED",
        };
        self.switch.write_all_at(word.as_bytes(), 0)?;
        self.frozen = frozen;
        Ok(())
    }
}

/// Makes a new group threaded, and opens the file that freezes it.
fn prepare(path: &Path, version: CgroupVersion) -> Result<File, FreezerError> {
    if version == CgroupVersion::V2 {
        let kind = path.join("cgroup.type");
        fs::write(&kind, "threaded").map_err(FreezerError::of("write", kind))?;
    }
    let switch = path.join(version.switch());
    let file = File::options().write(true).open(&switch);
    file.map_err(FreezerError::of("open", switch))
}

/// Lets go of all threads in a group. Of one that is not there, nothing.
pub fn thaw(path: &Path) -> Result<(), FreezerError> {
    let write = |(name, word)| {
        let file = path.join(name);
        match file.exists() {
            true => fs::write(&file, word).map_err(FreezerError::of("thaw by", file)),
            false => Ok(()),
        }
    };
    // Neither keeps the other from being tried.
    let thawed = [("cgroup.freeze", "0"), ("freezer.state", "THAWED")].map(write);
    thawed.into_iter().collect()
}

/// Lets go of all threads in a group, puts them back to the group above, and removes it,
/// and the groups within it before. Of one that is not there, nothing.
///
/// Blocks for `patience` at most for each, while those inside it end. An error is that a
/// group is left: how far it came with the others does not change by that.
pub fn release(path: &Path, patience: Duration) -> Result<(), FreezerError> {
    let mut within = Ok(());
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            within = within.and(release(&entry.path(), patience));
        }
    }
    let thawed = thaw(path);
    match (remove(path, patience), within.and(thawed)) {
        // A group that is gone holds nothing, whatever was refused before.
        (Ok(()), _) => Ok(()),
        (Err(_), Err(before)) => Err(before),
        (Err(left), Ok(())) => Err(left),
    }
}

/// Moves threads to the group above until the group can be removed: those that are born
/// while others are moved are in neither list, and one that ends is listed no more, and in
/// it for a moment.
fn remove(path: &Path, patience: Duration) -> Result<(), FreezerError> {
    let version = match path.join("cgroup.type").exists() {
        true => CgroupVersion::V2,
        false => CgroupVersion::V1,
    };
    let list = path.join(version.threads());
    let above = path.parent().unwrap_or(path).join(version.threads());
    let begun = Instant::now();
    loop {
        let inside = fs::read_to_string(&list).unwrap_or_default();
        for tid in inside.lines() {
            // A thread that has just ended is in no group.
            let _ = fs::write(&above, tid);
        }
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && begun.elapsed() < patience =>
            {
                thread::sleep(PAUSE);
            }
            removed => return removed.map_err(FreezerError::of("remove group", path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_released() {
        let dir = tempfile::tempdir().expect("a folder");
        let gone = dir.path().join("gone");
        thaw(&gone).expect("nothing to thaw");
        release(&gone, Duration::ZERO).expect("nothing to release");
    }

    #[test]
    fn both_freezers_let_go() {
        let dir = tempfile::tempdir().expect("a folder");
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).expect("read");
        for (name, frozen) in [("cgroup.freeze", "1"), ("freezer.state", "FROZEN")] {
            fs::write(dir.path().join(name), frozen).expect("written");
        }
        thaw(dir.path()).expect("thawed");
        assert_eq!(read("cgroup.freeze"), "0");
        assert_eq!(read("freezer.state"), "THAWED");
    }

    #[test]
    fn threads_go_up_and_groups_within_go_first() {
        let dir = tempfile::tempdir().expect("a folder");
        let group = dir.path().join("group");
        fs::create_dir_all(group.join("within")).expect("folders");
        fs::write(group.join("tasks"), "7\n").expect("written");
        // No group of the kernel: a file in it keeps it from being removed.
        let error = release(&group, Duration::ZERO).expect_err("not empty");
        assert_eq!(error.path, group);
        assert!(!group.join("within").exists());
        let above = fs::read_to_string(dir.path().join("tasks"));
        assert_eq!(above.expect("moved"), "7");
    }

    #[test]
    fn a_group_made_in_part_is_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("group");
        // An ordinary folder has no file that freezes.
        Group::make(path.clone(), CgroupVersion::V1).expect_err("no freezer");
        assert!(!path.exists());
    }
}
