//! User code as one thing that can be held still: a cgroup of version 2.
//!
//! ```text
//! /            this agent
//! /user/image  the image's init and all it starts; it sees this as the root
//! /user/exec   commands that the host runs, each in a group of its own below where that can be
//! /hooks       what runs in a clone while user code still stands
//! ```

use crate::init::{Outcome, doing};
use nix::{
    mount::{MsFlags, mount},
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use std::{
    fs::{self, File},
    io::{Read, Seek},
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const CGROUPS: &str = "/opt/forkyard/cgroup";
const USER: &str = "user";
const HOOKS: &str = "hooks";
/// Looks for processes that a hook left behind: one that has forked since the
/// last look is seen by the next.
const LOOKS: u32 = 100;
/// A program that sits in the kernel for longer than this cannot be forked.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes the cgroups; the file through which process 1 enters the image's.
pub fn prepare() -> Outcome<PathBuf> {
    let root = Path::new(CGROUPS);
    fs::create_dir_all(root).map_err(doing("create the cgroup folder"))?;
    mount(
        Some("cgroup2"),
        root,
        Some("cgroup2"),
        MsFlags::empty(),
        None::<&str>,
    )
    .map_err(doing("mount cgroups"))?;
    let user = root.join(USER);
    let image = user.join("image");
    for group in [&user, &image, &user.join("exec"), &root.join(HOOKS)] {
        fs::create_dir(group).map_err(doing(format!("create {}", group.display())))?;
    }
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    for controller in controllers.split_whitespace() {
        for group in [root, &user] {
            // The image's init does without what the kernel will not give.
            let _ = fs::write(
                group.join("cgroup.subtree_control"),
                format!("+{controller}"),
            );
        }
    }
    Ok(image.join("cgroup.procs"))
}

/// Opens the door of the cgroup for hooks.
pub fn hook_procs() -> std::io::Result<File> {
    door(&Path::new(CGROUPS).join(HOOKS))
}

fn door(group: &Path) -> std::io::Result<File> {
    File::create(group.join("cgroup.procs"))
}

/// Reads the ids of the processes of a cgroup and of those below.
pub fn processes_in(group: &Path) -> Vec<i32> {
    let mut found = Vec::new();
    let mut groups = vec![group.to_owned()];
    while let Some(group) = groups.pop() {
        // A group of threads alone has none: their processes are another's.
        let inside = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        found.extend(inside.lines().filter_map(|pid| pid.parse::<i32>().ok()));
        let below = fs::read_dir(group).into_iter().flatten().flatten();
        let folders = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        groups.extend(folders.map(|entry| entry.path()));
    }
    found
}

/// User code, still or not.
#[derive(Clone, Debug)]
pub struct Userland {
    group: PathBuf,
}

impl Default for Userland {
    fn default() -> Self {
        Self {
            group: Path::new(CGROUPS).join(USER),
        }
    }
}

impl Userland {
    /// The user code of another tree of cgroups.
    #[cfg(test)]
    pub fn at(root: &Path) -> Self {
        Self {
            group: root.join(USER),
        }
    }

    /// Folder of the cgroup for commands.
    pub fn exec(&self) -> PathBuf {
        self.group.join("exec")
    }

    /// Opens the door of the cgroup for commands.
    pub fn exec_procs(&self) -> std::io::Result<File> {
        door(&self.exec())
    }

    /// Tells whether it was told to freeze.
    pub fn is_held(&self) -> bool {
        fs::read_to_string(self.group.join("cgroup.freeze")).is_ok_and(|told| told.trim() == "1")
    }

    /// The processes of all user code. Complete if it stands still.
    pub fn processes(&self) -> Vec<i32> {
        processes_in(&self.group)
    }

    /// Holds all user code still: returns once none of it runs, or lets it go
    /// on and says why it could not be stopped.
    pub fn freeze(&self) -> Outcome {
        let outcome = self.order("1").and_then(|()| self.wait_frozen());
        if outcome.is_err() {
            self.thaw();
        }
        outcome
    }

    /// Makes what the hooks left running user code like any other, to be held
    /// still with the rest.
    pub fn take_in_hooks(&self) {
        let from = Path::new(CGROUPS).join(HOOKS).join("cgroup.procs");
        let to = self.group.join("exec/cgroup.procs");
        for _ in 0..LOOKS {
            let left = fs::read_to_string(&from).unwrap_or_default();
            if left.is_empty() {
                return;
            }
            for process in left.lines() {
                // One that has ended meanwhile need not move.
                let _ = fs::write(&to, process);
            }
        }
        eprintln!("forkyard-guest: a hook's processes could not be taken in");
    }

    /// Lets user code go on. Harmless if it does.
    pub fn thaw(&self) {
        if let Err(error) = self.order("0") {
            eprintln!("forkyard-guest: {error}");
        }
    }

    fn order(&self, frozen: &str) -> Outcome {
        fs::write(self.group.join("cgroup.freeze"), frozen).map_err(doing("freeze user code"))
    }

    fn wait_frozen(&self) -> Outcome {
        let mut events =
            File::open(self.group.join("cgroup.events")).map_err(doing("watch user code"))?;
        let begun = Instant::now();
        loop {
            let mut text = String::new();
            events
                .rewind()
                .and_then(|()| events.read_to_string(&mut text))
                .map_err(doing("watch user code"))?;
            if text.lines().any(|line| line == "frozen 1") {
                return Ok(());
            }
            let left = PATIENCE.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(
                    "user code does not stand still: a process sits in the kernel".to_owned(),
                );
            }
            // The kernel reports a change to this file as an exception.
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
            poll(&mut fds, timeout).map_err(doing("watch user code"))?;
        }
    }
}
