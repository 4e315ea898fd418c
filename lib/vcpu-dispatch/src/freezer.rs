//! Groups of the freezer for a VM's threads.
//!
//! A thread is frozen in a group of its own, of [`forkyard_freezer`]. The groups of a VM's
//! threads lie in one of the VM's, where its threads come from one group: then all of them
//! are stopped, or let go, by one write.
//!
//! ```text
//! home of the VM / forkyard-sched-vm-PID / forkyard-sched-TID
//! ```
//!
//! A thread whose group goes is put back to where it was.

use crate::DispatchError;
use forkyard_freezer::{CgroupVersion, freezer, group_of, mounts};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Component, Path, PathBuf},
    time::Duration,
};

pub use forkyard_freezer::Frozen;

/// Prefix of the name of every group made here.
pub const PREFIX: &str = "forkyard-sched-";

/// Time that is waited for the threads in a group to end: turns wait meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);

/// The group of one thread, or of a VM. Dropping it lets its threads go, and puts
/// them back.
#[derive(Debug)]
pub struct ThreadGroup(forkyard_freezer::Group);

impl ThreadGroup {
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
        let mounts = mounts()?;
        let Some(mount) = freezer(&mounts, CgroupVersion::V2) else {
            return Ok(None);
        };
        let path = mount.folder(home).join(format!("{PREFIX}vm-{pid}"));
        Self::make(CgroupVersion::V2, path, None, tell).map(Some)
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
            let path = vm.path().join(name);
            return Self::make(vm.0.version(), path, Some(tid), tell);
        }
        let mounts = mounts()?;
        let mut failure = DispatchError::NoFreezer;
        for version in [CgroupVersion::V2, CgroupVersion::V1] {
            let Some(mount) = freezer(&mounts, version) else {
                continue;
            };
            let parent = match version {
                CgroupVersion::V2 => mount.folder(&home(tid)?),
                CgroupVersion::V1 => mount.at.clone(),
            };
            match Self::make(version, parent.join(&name), Some(tid), &mut tell) {
                Ok(group) => return Ok(group),
                Err(error) => {
                    tracing::debug!(?version, tid, ?error, "no group for a thread");
                    failure = error;
                }
            }
        }
        Err(failure)
    }

    fn make(
        version: CgroupVersion,
        path: PathBuf,
        tid: Option<u32>,
        mut tell: impl FnMut(&Path) -> io::Result<()>,
    ) -> Result<Self, DispatchError> {
        // One may be left of a dispatcher and a guard that were both killed.
        if path.exists() {
            release(&path);
        }
        tell(&path).map_err(DispatchError::host("tell the guard of", &path))?;
        let made = Self(forkyard_freezer::Group::make(path, version)?);
        if let Some(tid) = tid {
            made.0.add(tid)?;
        }
        Ok(made)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Stops its threads or lets them go. Returns before they have stopped.
    pub fn set(&mut self, frozen: Frozen) -> io::Result<()> {
        self.0.set(frozen)
    }
}

impl Drop for ThreadGroup {
    fn drop(&mut self) {
        release(self.path());
    }
}

/// Lets go of all threads in a group, puts them back to the group above, and removes it,
/// and the groups within it before.
pub(crate) fn release(path: &Path) {
    if let Err(error) = forkyard_freezer::release(path, PATIENCE) {
        let why = &error.source;
        tracing::warn!(path = %path.display(), %error, %why, "a group is left");
    }
}

/// Lets go of all threads in a group.
pub(crate) fn thaw(path: &Path) {
    if let Err(error) = forkyard_freezer::thaw(path) {
        let why = &error.source;
        tracing::warn!(path = %path.display(), %error, %why, "not thawed");
    }
}

/// The group of v2 that a thread belongs in.
fn home(tid: u32) -> Result<PathBuf, DispatchError> {
    let path = format!("/proc/{tid}/cgroup");
    let text = fs::read_to_string(&path).map_err(DispatchError::host("read", &path))?;
    let found = group_of(&text, str::is_empty).ok_or(DispatchError::NoFreezer)?;
    Ok(not_ours(found))
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
}
