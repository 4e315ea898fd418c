//! The control group, wherever it is.

use anyhow::bail;
use forkyard_freezer::{Mount, mounts};
use std::{
    fs,
    num::NonZero,
    path::{Path, PathBuf},
    thread,
};

pub use forkyard_freezer::CgroupVersion;

/// A group that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Folder of the group.
    pub path: PathBuf,
    /// Of which hierarchy.
    pub version: CgroupVersion,
    /// Name, from the root of hierarchies.
    pub name: PathBuf,
    /// The hierarchy it is of.
    mount: Mount,
    mounts: Vec<Mount>,
}

impl Group {
    /// Finds a group by its folder, or by its name: below v2's mount first, then
    /// below that of v1's freezer.
    pub fn find(wanted: &Path) -> anyhow::Result<Self> {
        let mounts = mounts()?;
        let name = wanted.strip_prefix("/").unwrap_or(wanted);
        let below = |mount: &Mount| wanted.strip_prefix(&mount.at).ok().map(Path::to_owned);
        // The longest, for one may be mounted below another.
        let by_folder = mounts
            .iter()
            .filter_map(|mount| Some((mount, below(mount)?)))
            .max_by_key(|(mount, _)| mount.at.as_os_str().len());
        let by_name = || {
            let v2 = mounts
                .iter()
                .filter(|mount| mount.version == CgroupVersion::V2);
            let freezer = mounts.iter().filter(|mount| mount.has("freezer"));
            let mut found = v2.chain(freezer);
            let found = found.find(|mount| mount.at.join(name).join("cgroup.procs").exists());
            found.map(|mount| (mount, name.to_owned()))
        };
        let Some((mount, name)) = by_folder.or_else(by_name) else {
            bail!(
                "there is no control group {}: make it, as by mkdir /sys/fs/cgroup/NAME, and put \
                 the processes into it",
                wanted.display()
            );
        };
        if name.as_os_str().is_empty() || name == Path::new(".") {
            bail!("the root group cannot be limited: choose one below it");
        }
        let path = mount.at.join(&name);
        if !path.join("cgroup.procs").exists() {
            bail!("{} is no control group", path.display());
        }
        Ok(Self {
            path,
            version: mount.version,
            name,
            mount: mount.clone(),
            mounts: mounts.clone(),
        })
    }

    /// Tells whether a process is directly in it.
    pub fn has(&self, process: u32) -> bool {
        let text = fs::read_to_string(format!("/proc/{process}/cgroup"));
        let group = self.mount.root.join(&self.name);
        text.is_ok_and(|text| self.mount.of_process(&text) == Some(&group))
    }

    /// That of this process, by whatever hierarchy the kernel knows, mounted or not.
    #[cfg(test)]
    pub fn of_this_process() -> Option<Self> {
        let text = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mut parts = text.lines().next()?.splitn(3, ':').skip(1);
        let controllers = parts.next()?;
        let mount = Mount {
            at: "/nowhere".into(),
            root: parts.next()?.into(),
            version: match controllers {
                "" => CgroupVersion::V2,
                _ => CgroupVersion::V1,
            },
            controllers: controllers.split(',').map(str::to_owned).collect(),
        };
        Some(Self {
            path: mount.at.clone(),
            version: mount.version,
            name: PathBuf::new(),
            mount,
            mounts: Vec::new(),
        })
    }

    /// A file of the group, of v2 or of the hierarchy of v1 that has the
    /// controller, if there is one.
    pub fn file(&self, v2: &str, controller: &str, v1: &str) -> Option<(PathBuf, CgroupVersion)> {
        let of = |mount: &Mount| {
            let file = match mount.version {
                CgroupVersion::V2 => v2,
                CgroupVersion::V1 => v1,
            };
            (mount.at.join(&self.name).join(file), mount.version)
        };
        let fits = |mount: &&Mount| mount.version == CgroupVersion::V2 || mount.has(controller);
        let mut files = self.mounts.iter().filter(fits).map(of);
        files.find(|(path, _)| path.exists())
    }

    /// Returns the number of CPUs its members may run on.
    pub fn cpus(&self) -> u32 {
        let file = self.file("cpuset.cpus.effective", "cpuset", "cpuset.effective_cpus");
        let list = file.and_then(|(path, _)| fs::read_to_string(path).ok());
        let own = list.and_then(|list| cpus_in(list.trim()));
        let all = || thread::available_parallelism().map_or(1, NonZero::get);
        own.unwrap_or_else(|| u32::try_from(all()).unwrap_or(u32::MAX))
    }

    /// Returns the group of the same name in v1's freezer, if it is there.
    pub fn freezer(&self) -> Option<PathBuf> {
        let freezers = self.mounts.iter().filter(|mount| mount.has("freezer"));
        let mut paths = freezers.map(|mount| mount.at.join(&self.name));
        paths.find(|path| path.join("freezer.state").exists())
    }
}

/// The file that tells when the group that this process is in was frozen, of cgroup v2.
pub fn own_events() -> Option<PathBuf> {
    let mounts = mounts().ok()?;
    let process = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut v2 = mounts
        .iter()
        .filter(|mount| mount.version == CgroupVersion::V2);
    v2.find_map(|mount| {
        let name = mount.of_process(&process)?.strip_prefix(&mount.root).ok()?;
        let file = mount.at.join(name).join("cgroup.events");
        file.exists().then_some(file)
    })
}

/// CPUs in a list such as `0-3,8`. None of what is none.
fn cpus_in(list: &str) -> Option<u32> {
    let part = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        to.checked_sub(from)?.checked_add(1)
    };
    list.split(',')
        .map(part)
        .try_fold(0u32, |sum, part| sum.checked_add(part?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted_by_the_kernels_lists() {
        for (list, wanted) in [
            ("0", Some(1)),
            ("0-3,8", Some(5)),
            ("2,4,6-7", Some(4)),
            ("", None),
            ("3-1", None),
            ("a", None),
        ] {
            assert_eq!(cpus_in(list), wanted, "{list}");
        }
    }

    #[test]
    fn what_is_no_group_is_refused() {
        for wanted in ["/no/such/group", "/", "/proc", "/sys/fs/cgroup/unified"] {
            Group::find(Path::new(wanted)).expect_err(wanted);
        }
    }
}
