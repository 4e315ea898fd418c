//! Stopping single threads, by control groups.
//!
//! Cgroup v2 lets a thread be frozen in a *threaded* group below the group its
//! process is in, even where v2 has no other controller. Where that cannot be
//! made, the v1 freezer takes threads one by one anywhere. Freezing takes 20 to
//! 30 µs until the thread has stopped. The groups of a VM's threads lie in one of
//! the VM's, where its threads come from one group: then all of them are stopped,
//! or let go, by one write.
//!
//! ```text
//! home of the VM / forkyard-sched-vm-PID / forkyard-sched-TID
//! ```
//!
//! A thread whose group goes is put back to where it was.

use crate::DispatchError;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Component, Path, PathBuf},
    thread,
    time::Duration,
};

/// Prefix of the name of every group made here.
pub const PREFIX: &str = "forkyard-sched-";

/// Version of the freezer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Cgroup v2, threaded.
    V2,
    /// The v1 freezer.
    V1,
}

/// Permission of a thread to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frozen {
    /// The thread may not.
    Yes,
    /// The thread may.
    No,
}

/// The group of one thread, or of a VM. Dropping it lets its threads go, and puts
/// them back.
#[derive(Debug)]
pub struct Group {
    kind: Kind,
    path: PathBuf,
    switch: File,
    frozen: Frozen,
}

impl Group {
    /// A group for those of a process' threads: of v2 alone, and only where all of
    /// them are in one. `tell` hears of the group before it is made.
    pub fn of_all(
        pid: u32,
        tids: impl IntoIterator<Item = u32>,
        tell: impl FnMut(&Path) -> io::Result<()>,
    ) -> Result<Option<Self>, DispatchError> {
        let homes: Result<BTreeSet<PathBuf>, _> = tids.into_iter().map(home).collect();
        let homes = homes?;
        let (Some(home), 1) = (homes.first(), homes.len()) else {
            return Ok(None);
        };
        let Some(mount) = mounted(&mounts()?, Kind::V2) else {
            return Ok(None);
        };
        let path = mount.within(home).join(format!("{PREFIX}vm-{pid}"));
        Self::make(Kind::V2, path, None, tell).map(Some)
    }

    /// Puts a thread into a group of its own, in that of its VM if there is one.
    /// `tell` hears of the group before it is made, and of one that cannot be
    /// made too.
    pub fn of(
        tid: u32,
        within: Option<&Self>,
        mut tell: impl FnMut(&Path) -> io::Result<()>,
    ) -> Result<Self, DispatchError> {
        let name = format!("{PREFIX}{tid}");
        if let Some(vm) = within {
            return Self::make(vm.kind, vm.path.join(name), Some(tid), tell);
        }
        let mounts = mounts()?;
        let mut failure = DispatchError::NoFreezer;
        for kind in [Kind::V2, Kind::V1] {
            let Some(mount) = mounted(&mounts, kind) else {
                continue;
            };
            let parent = match kind {
                Kind::V2 => mount.within(&home(tid)?),
                Kind::V1 => mount.at,
            };
            match Self::make(kind, parent.join(&name), Some(tid), &mut tell) {
                Ok(group) => return Ok(group),
                Err(error) => {
                    tracing::debug!(?kind, tid, ?error, "no group for a thread");
                    failure = error;
                }
            }
        }
        Err(failure)
    }

    fn make(
        kind: Kind,
        path: PathBuf,
        tid: Option<u32>,
        mut tell: impl FnMut(&Path) -> io::Result<()>,
    ) -> Result<Self, DispatchError> {
        // One may be left of a dispatcher and a guard that were both killed.
        if path.exists() {
            release(&path);
        }
        tell(&path).map_err(DispatchError::host("tell the guard of", &path))?;
        fs::create_dir(&path).map_err(DispatchError::host("create group", &path))?;
        let made = Self::fill(kind, &path, tid);
        if made.is_err() {
            release(&path);
        }
        made
    }

    fn fill(kind: Kind, path: &Path, tid: Option<u32>) -> Result<Self, DispatchError> {
        let write = |name: &str, text: &str| {
            let path = path.join(name);
            fs::write(&path, text).map_err(DispatchError::host("write", path))
        };
        if kind == Kind::V2 {
            write("cgroup.type", "threaded")?;
        }
        if let Some(tid) = tid {
            write(members(kind), &tid.to_string())?;
        }
        let switch = path.join(switch(kind));
        let file = File::options().write(true).open(&switch);
        Ok(Self {
            kind,
            path: path.to_owned(),
            switch: file.map_err(DispatchError::host("open", switch))?,
            frozen: Frozen::No,
        })
    }

    /// Returns its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether its threads may run, as far as this group decides.
    pub fn frozen(&self) -> Frozen {
        self.frozen
    }

    /// Stops its threads or lets them go. Returns before they have stopped.
    pub fn set(&mut self, frozen: Frozen) -> io::Result<()> {
        if self.frozen == frozen {
            return Ok(());
        }
        let word = match (self.kind, frozen) {
            (Kind::V2, Frozen::Yes) => "1",
            (Kind::V2, Frozen::No) => "0",
            (Kind::V1, Frozen::Yes) => "FROZEN",
            (Kind::V1, Frozen::No) => "THAWED",
        };
        self.switch.write_all_at(word.as_bytes(), 0)?;
        self.frozen = frozen;
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        release(&self.path);
    }
}

/// Lets go of all threads in a group, puts them back to the group above, and
/// removes it, and the groups within it before. Of one that is not there, nothing.
/// Blocks for half a second at most for each, while those inside it end.
pub fn release(path: &Path) {
    for within in fs::read_dir(path).into_iter().flatten().flatten() {
        if within.file_type().is_ok_and(|kind| kind.is_dir()) {
            release(&within.path());
        }
    }
    let kind = match path.join("cgroup.type").exists() {
        true => Kind::V2,
        false => Kind::V1,
    };
    thaw(path);
    let above = path.parent().unwrap_or(path).join(members(kind));
    let inside = fs::read_to_string(path.join(members(kind))).unwrap_or_default();
    for tid in inside.lines() {
        // A thread that has just ended is in no group.
        let _ = fs::write(&above, tid);
    }
    if let Err(error) = remove(path) {
        tracing::warn!(path = %path.display(), %error, "a group is left");
    }
}

/// Removes a group. A thread that ends is listed no more, and in it for a moment.
fn remove(path: &Path) -> io::Result<()> {
    const TRIES: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(5);
    let mut tries = 0;
    loop {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < TRIES => {
                tries += 1;
                thread::sleep(PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Lets go of all threads in a group.
pub fn thaw(path: &Path) {
    for (name, word) in [("cgroup.freeze", "0"), ("freezer.state", "THAWED")] {
        let file = path.join(name);
        if file.exists()
            && let Err(error) = fs::write(&file, word)
        {
            tracing::warn!(file = %file.display(), %error, "not thawed");
        }
    }
}

fn members(kind: Kind) -> &'static str {
    match kind {
        Kind::V2 => "cgroup.threads",
        Kind::V1 => "tasks",
    }
}

fn switch(kind: Kind) -> &'static str {
    match kind {
        Kind::V2 => "cgroup.freeze",
        Kind::V1 => "freezer.state",
    }
}

/// A hierarchy, or a part of one, and where it is mounted.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    at: PathBuf,
    part: PathBuf,
}

impl Mount {
    /// The folder of a group.
    fn within(&self, group: &Path) -> PathBuf {
        let below = group.strip_prefix(&self.part).ok();
        let below = below.or(group.strip_prefix("/").ok());
        self.at.join(below.unwrap_or(group))
    }
}

/// The mount of a hierarchy, as `mountinfo` has it: the last, for it may cover
/// others.
fn mounted(mountinfo: &str, kind: Kind) -> Option<Mount> {
    let mut mounts = mountinfo.lines().filter_map(|line| {
        let (place, what) = line.split_once(" - ")?;
        let mut what = what.split(' ');
        let is = match kind {
            Kind::V2 => what.next() == Some("cgroup2"),
            Kind::V1 => {
                let options = what.nth(2).unwrap_or_default();
                options.split(',').any(|option| option == "freezer")
            }
        };
        let mut place = place.split(' ').skip(3);
        let (part, at) = (place.next()?.into(), place.next()?.into());
        is.then_some(Mount { at, part })
    });
    mounts.next_back()
}

fn mounts() -> Result<String, DispatchError> {
    const MOUNTS: &str = "/proc/self/mountinfo";
    fs::read_to_string(MOUNTS).map_err(DispatchError::host("read", MOUNTS))
}

/// The group of v2 that a thread belongs in.
fn home(tid: u32) -> Result<PathBuf, DispatchError> {
    let path = format!("/proc/{tid}/cgroup");
    let text = fs::read_to_string(&path).map_err(DispatchError::host("read", &path))?;
    let found = text.lines().find_map(|line| line.strip_prefix("0::"));
    let found = found.ok_or(DispatchError::NoFreezer)?;
    Ok(not_ours(Path::new(found)))
}

/// A group, or the one that ours lie in: of a dispatcher and a guard that were both
/// killed, a thread is still in one.
fn not_ours(group: &Path) -> PathBuf {
    let ours = |part: &Component<'_>| {
        part.as_os_str()
            .as_encoded_bytes()
            .starts_with(PREFIX.as_bytes())
    };
    group.components().take_while(|part| !ours(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_found_where_they_are_mounted() {
        let hybrid = "\
37 31 0:33 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        let at = |text: &str, kind| mounted(text, kind).map(|mount| mount.at);
        assert_eq!(at(hybrid, Kind::V1), Some("/sys/fs/cgroup/freezer".into()));
        assert_eq!(at(hybrid, Kind::V2), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(
            at("22 1 254:0 / / rw - ext4 /dev/root rw\n", Kind::V1),
            None
        );
    }

    #[test]
    fn groups_of_an_earlier_dispatcher_are_nobodys_home() {
        for (group, home) in [
            ("/", "/"),
            ("/vms/p", "/vms/p"),
            ("/vms/p/forkyard-sched-vm-7/forkyard-sched-9", "/vms/p"),
            ("/forkyard-sched-9", "/"),
        ] {
            assert_eq!(not_ours(Path::new(group)), Path::new(home), "{group}");
        }
    }

    #[test]
    fn a_group_is_found_where_only_a_part_is_mounted() {
        let covered = "\
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
77 41 0:38 /part /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        let mount = mounted(covered, Kind::V2).expect("mounted");
        let within = |group: &str| mount.within(Path::new(group));
        assert_eq!(within("/part/vm"), Path::new("/sys/fs/cgroup/unified/vm"));
        assert_eq!(within("/vm"), Path::new("/sys/fs/cgroup/unified/vm"));
    }
}
