//! A control group for each QEMU: what it may take of the host, and a way to
//! end all of it.
//!
//! Uses cgroup v2 wherever the host has it mounted, even if v1 has kept the
//! controllers; limits are then not enforced, and that is logged.

use crate::{Limits, VmmError};
use forkyard_sys_host::process::PidFd;
use forkyard_types::VmId;
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// The group all the VMs' groups lie in.
#[derive(Clone, Debug)]
pub(crate) struct Parent(PathBuf);

/// One VM's group. Exists after [`Cgroup::create`], until [`Cgroup::remove`].
#[derive(Clone, Debug)]
pub(crate) struct Cgroup(PathBuf);

impl Parent {
    /// Makes the group of this name, with the controllers the host offers.
    pub(crate) fn create(name: &str) -> Result<Self, VmmError> {
        const MOUNTS: &str = "/proc/self/mountinfo";
        let mounts = fs::read_to_string(MOUNTS).map_err(VmmError::io("read", MOUNTS))?;
        let root = find_v2(&mounts).ok_or(VmmError::NoCgroup)?;
        let path = root.join(name);
        fs::create_dir_all(&path).map_err(VmmError::io("create cgroup", &path))?;
        for group in [root, &path] {
            for controller in ["memory", "pids"] {
                enable(group, controller);
            }
        }
        Ok(Self(path))
    }

    /// Removes the group unless there are VMs in it.
    pub(crate) fn remove_if_empty(&self) -> Result<(), VmmError> {
        match fs::remove_dir(&self.0) {
            Err(error) if is_absent(&error) || error.kind() == io::ErrorKind::ResourceBusy => {
                Ok(())
            }
            outcome => outcome.map_err(VmmError::io("remove cgroup", &self.0)),
        }
    }

    /// The VMs that have a group.
    pub(crate) fn list(&self) -> Result<Vec<VmId>, VmmError> {
        let entries = fs::read_dir(&self.0).map_err(VmmError::io("list cgroup", &self.0))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter_map(|name| name.parse().ok()).collect())
    }

    /// The group of a VM, whether it exists or not.
    pub(crate) fn of(&self, id: VmId) -> Cgroup {
        Cgroup(self.0.join(id.as_str()))
    }
}

impl Cgroup {
    /// Makes the group, with the limits the host can enforce.
    pub(crate) fn create(&self, limits: Limits) -> Result<(), VmmError> {
        fs::create_dir(&self.0).map_err(VmmError::io("create cgroup", &self.0))?;
        let memory = limits.memory.map(|limit| limit.0.to_string());
        let pids = limits.pids.map(|limit| limit.to_string());
        for (file, limit) in [("memory.max", memory), ("pids.max", pids)] {
            let Some(limit) = limit else { continue };
            let path = self.0.join(file);
            if !path.exists() {
                tracing::debug!(path = %path.display(), "no controller: not limited");
                continue;
            }
            fs::write(&path, limit).map_err(VmmError::io("set limit", &path))?;
        }
        Ok(())
    }

    /// Opens the file that a process writes to in order to join the group.
    pub(crate) fn door(&self) -> Result<fs::File, VmmError> {
        let procs = self.0.join("cgroup.procs");
        let door = fs::File::options().write(true).open(&procs);
        door.map_err(VmmError::io("open", &procs))
    }

    /// Removes the group, which must be empty.
    pub(crate) fn remove_empty(&self) -> Result<(), VmmError> {
        fs::remove_dir(&self.0).map_err(VmmError::io("remove cgroup", &self.0))
    }

    /// Moves a process into the group.
    #[cfg(test)]
    pub(crate) fn add(&self, pid: u32) -> Result<(), VmmError> {
        let procs = self.0.join("cgroup.procs");
        fs::write(&procs, pid.to_string()).map_err(VmmError::io("add a process to", &procs))
    }

    /// Sends `SIGKILL` to all its processes. No error if it does not exist.
    pub(crate) fn kill(&self) -> Result<(), VmmError> {
        match fs::write(self.0.join("cgroup.kill"), "1") {
            Ok(()) => Ok(()),
            // Linux before 5.14 has no such file, or there is no such group.
            Err(error) if is_absent(&error) => self.kill_each(),
            Err(error) => Err(VmmError::io("kill cgroup", &self.0)(error)),
        }
    }

    fn kill_each(&self) -> Result<(), VmmError> {
        for pid in self.members()? {
            // A number read may have passed to a stranger: hold the process,
            // then see whether it is one of ours.
            let Ok(process) = PidFd::open(pid) else {
                continue;
            };
            if self.members()?.contains(&pid) {
                process
                    .kill()
                    .map_err(VmmError::io("kill a process of", &self.0))?;
            }
        }
        Ok(())
    }

    fn members(&self) -> Result<Vec<u32>, VmmError> {
        match fs::read_to_string(self.0.join("cgroup.procs")) {
            Ok(pids) => Ok(pids.lines().filter_map(|pid| pid.parse().ok()).collect()),
            Err(error) if is_absent(&error) => Ok(Vec::new()),
            Err(error) => Err(VmmError::io("list cgroup", &self.0)(error)),
        }
    }

    /// Removes the group once its processes have ended, which may be a moment
    /// after they were seen to. No error if it does not exist. Cancel-safe.
    pub(crate) async fn remove(&self, patience: Duration) -> Result<(), VmmError> {
        const PAUSE: Duration = Duration::from_millis(5);
        let removed = async {
            loop {
                match fs::remove_dir(&self.0) {
                    Err(error) if is_absent(&error) => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                        self.remove_below();
                        tokio::time::sleep(PAUSE).await;
                    }
                    other => return other.map_err(VmmError::io("remove cgroup", &self.0)),
                }
            }
        };
        let timeout = |_| VmmError::Timeout {
            what: "emptying a cgroup",
            after: patience,
        };
        tokio::time::timeout(patience, removed)
            .await
            .map_err(timeout)?
    }

    /// Removes empty groups within it: threads of its QEMU may have
    /// been put into some, and the program that did that may be gone.
    fn remove_below(&self) {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                // It may be a moment until the last has left: asked again.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

/// The group or the file is not there, or went while it was being used.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(nix::libc::ENODEV)
}

/// Finds where cgroup v2 is mounted, as `mountinfo` has it.
fn find_v2(mountinfo: &str) -> Option<&Path> {
    mountinfo.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mounted_at = place.split(' ').nth(4)?;
        (kind.split(' ').next() == Some("cgroup2")).then_some(Path::new(mounted_at))
    })
}

/// Hands a controller down to the children of a group, if it has it at all.
fn enable(group: &Path, controller: &str) {
    let offered = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    if !offered.split_whitespace().any(|name| name == controller) {
        return;
    }
    if let Err(error) = fs::write(
        group.join("cgroup.subtree_control"),
        format!("+{controller}"),
    ) {
        tracing::warn!(group = %group.display(), controller, %error, "limit not enforced");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn v2_is_found_on_hybrid_and_on_unified_hosts() {
        let hybrid = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        assert_eq!(find_v2(hybrid), Some(Path::new("/sys/fs/cgroup/unified")));
        let unified = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(find_v2(unified), Some(Path::new("/sys/fs/cgroup")));
        assert_eq!(find_v2("22 1 254:0 / / rw - ext4 /dev/root rw\n"), None);
    }

    /// A group of this test alone, removed with it.
    struct Scratch(Parent);

    impl Scratch {
        fn new() -> Self {
            let name = format!("forkyard-test-{}", VmId::random());
            Self(Parent::create(&name).expect("cgroup v2 and root"))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir(&self.0.0);
        }
    }

    #[tokio::test]
    async fn a_killed_group_can_be_removed() {
        let scratch = Scratch::new();
        let vm = VmId::random();
        let group = scratch.0.of(vm);
        group.create(Limits::default()).expect("created");
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        group.add(child.id()).expect("added");
        assert_eq!(group.members().expect("listed"), [child.id()]);
        assert_eq!(scratch.0.list().expect("listed"), [vm]);
        group.kill().expect("killed");
        child.wait().expect("reaped");
        group
            .remove(Duration::from_secs(30))
            .await
            .expect("removed");
        assert!(!group.0.exists());
    }

    #[tokio::test]
    async fn members_can_be_killed_one_by_one() {
        let scratch = Scratch::new();
        let group = scratch.0.of(VmId::random());
        group.create(Limits::default()).expect("created");
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        group.add(child.id()).expect("added");
        group.kill_each().expect("killed");
        child.wait().expect("reaped");
        group
            .remove(Duration::from_secs(30))
            .await
            .expect("removed");
    }

    #[tokio::test]
    async fn a_group_that_is_not_there_is_killed_and_removed_already() {
        let scratch = Scratch::new();
        let group = scratch.0.of(VmId::random());
        group.kill().expect("nothing to kill");
        group
            .remove(Duration::from_secs(1))
            .await
            .expect("nothing to remove");
    }

    #[tokio::test]
    async fn groups_within_it_go_with_it() {
        let scratch = Scratch::new();
        let group = scratch.0.of(VmId::random());
        group.create(Limits::default()).expect("created");
        fs::create_dir(group.0.join("within")).expect("created");
        group
            .remove(Duration::from_secs(30))
            .await
            .expect("removed");
        assert!(!group.0.exists());
    }

    #[tokio::test]
    async fn a_group_in_use_is_not_removed() {
        let scratch = Scratch::new();
        let group = scratch.0.of(VmId::random());
        group.create(Limits::default()).expect("created");
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        group.add(child.id()).expect("added");
        let refused = group.remove(Duration::from_millis(50)).await;
        assert!(matches!(refused, Err(VmmError::Timeout { .. })));
        group.kill().expect("killed");
        child.wait().expect("reaped");
        group
            .remove(Duration::from_secs(30))
            .await
            .expect("removed");
    }
}
