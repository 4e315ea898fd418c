//! Hierarchies of control groups, and where they are mounted.

use crate::FreezerError;
use std::{
    fs,
    path::{Path, PathBuf},
};

const MOUNTS: &str = "/proc/self/mountinfo";

/// Version of a hierarchy, and of its freezer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// Cgroup v2.
    V2,
    /// Cgroup v1, whatever its controllers.
    V1,
}

impl CgroupVersion {
    /// Returns the name of the file that lists a group's threads.
    pub fn threads(self) -> &'static str {
        match self {
            Self::V2 => "cgroup.threads",
            Self::V1 => "tasks",
        }
    }

    /// Returns the name of the file that freezes a group.
    pub(crate) fn switch(self) -> &'static str {
        match self {
            Self::V2 => "cgroup.freeze",
            Self::V1 => "freezer.state",
        }
    }
}

/// A hierarchy, or a part of one, and where it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Folder where it is mounted.
    pub at: PathBuf,
    /// Group of the hierarchy that is mounted there, its root most often.
    pub root: PathBuf,
    /// Version of the hierarchy.
    pub version: CgroupVersion,
    /// Controllers of v1, with the other options of the mount. Of v2, none.
    pub controllers: Vec<String>,
}

impl Mount {
    /// Tells whether it has a controller of v1.
    pub fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|one| one == controller)
    }

    /// Returns the folder of a group, by its name from the root of the hierarchy.
    pub fn folder(&self, group: &Path) -> PathBuf {
        let below = group.strip_prefix(&self.root).ok();
        let below = below.or(group.strip_prefix("/").ok());
        self.at.join(below.unwrap_or(group))
    }

    /// Returns the group of this hierarchy that a process is in, by the text of its
    /// `/proc/N/cgroup`.
    pub fn of_process<'a>(&self, text: &'a str) -> Option<&'a Path> {
        match self.version {
            CgroupVersion::V2 => group_of(text, str::is_empty),
            CgroupVersion::V1 => group_of(text, |all| all.split(',').any(|one| self.has(one))),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let (place, what) = line.split_once(" - ")?;
        let mut what = what.split(' ');
        let version = match what.next()? {
            "cgroup2" => CgroupVersion::V2,
            "cgroup" => CgroupVersion::V1,
            _ => return None,
        };
        let controllers = match version {
            CgroupVersion::V2 => Vec::new(),
            CgroupVersion::V1 => what.nth(1)?.split(',').map(str::to_owned).collect(),
        };
        let mut place = place.split(' ').skip(3);
        let (root, at) = (place.next()?.into(), place.next()?.into());
        Some(Self {
            at,
            root,
            version,
            controllers,
        })
    }
}

/// Returns the group that a thread is in, by the text of its `/proc/N/cgroup`, of the
/// hierarchy whose controllers are accepted: v2 has none.
pub fn group_of(text: &str, accepted: impl Fn(&str) -> bool) -> Option<&Path> {
    text.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        accepted(controllers).then(|| Path::new(group))
    })
}

/// Reads where hierarchies are mounted, as this process sees it.
pub fn mounts() -> Result<Vec<Mount>, FreezerError> {
    let text = fs::read_to_string(MOUNTS).map_err(FreezerError::of("read", MOUNTS))?;
    Ok(parse(&text))
}

/// Hierarchies in the text of a `mountinfo`, in its order.
pub fn parse(mountinfo: &str) -> Vec<Mount> {
    mountinfo.lines().filter_map(Mount::parse).collect()
}

/// Finds the mount of a hierarchy that freezes: the last, for it may cover others.
pub fn freezer(mounts: &[Mount], version: CgroupVersion) -> Option<&Mount> {
    let freezes = |mount: &&Mount| match version {
        CgroupVersion::V2 => mount.version == CgroupVersion::V2,
        CgroupVersion::V1 => mount.has("freezer"),
    };
    mounts.iter().rfind(freezes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_told_apart() {
        let text = "\
37 31 0:33 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
22 1 254:0 / / rw - ext4 /dev/root rw
";
        let found = parse(text);
        assert_eq!(found.len(), 3);
        assert!(found[0].has("freezer") && !found[0].has("cpu"));
        assert!(found[1].has("cpuacct"));
        assert_eq!(found[2].version, CgroupVersion::V2);
        assert_eq!(found[2].at, Path::new("/sys/fs/cgroup/unified"));
        let process = "9:freezer:/a/b\n4:cpu,cpuacct:/c\n0::/d:e\n";
        let groups = found.iter().map(|mount| mount.of_process(process));
        let wanted = ["/a/b", "/c", "/d:e"].map(|name| Some(Path::new(name)));
        assert_eq!(groups.collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn hierarchies_are_found_where_they_are_mounted() {
        let hybrid = "\
37 31 0:33 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        let at = |text: &str, version| {
            let mounts = parse(text);
            freezer(&mounts, version).map(|mount| mount.at.clone())
        };
        assert_eq!(
            at(hybrid, CgroupVersion::V1),
            Some("/sys/fs/cgroup/freezer".into())
        );
        assert_eq!(
            at(hybrid, CgroupVersion::V2),
            Some("/sys/fs/cgroup/unified".into())
        );
        assert_eq!(
            at("22 1 254:0 / / rw - ext4 /dev/root rw\n", CgroupVersion::V1),
            None
        );
    }

    #[test]
    fn a_group_is_found_where_only_a_part_is_mounted() {
        let covered = parse(
            "\
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
77 41 0:38 /part /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
",
        );
        let mount = freezer(&covered, CgroupVersion::V2).expect("mounted");
        let folder = |group: &str| mount.folder(Path::new(group));
        assert_eq!(folder("/part/vm"), Path::new("/sys/fs/cgroup/unified/vm"));
        assert_eq!(folder("/vm"), Path::new("/sys/fs/cgroup/unified/vm"));
    }
}
