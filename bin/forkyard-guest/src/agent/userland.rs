//! User code as one thing that can be held still: a cgroup of version 2.
//!
//! ```text
//! /            this agent
//! /user/image  the image's init and all it starts; it sees this as the root
//! /user/exec   commands that the host runs
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
    for group in [&user, &user.join("image"), &user.join("exec")] {
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
    Ok(user.join("image/cgroup.procs"))
}

/// Opens the door of the cgroup for commands.
pub fn exec_procs() -> std::io::Result<File> {
    File::options()
        .write(true)
        .open(Path::new(CGROUPS).join(USER).join("exec/cgroup.procs"))
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
    /// Holds all user code still: returns once none of it runs, or lets it go
    /// on and says why it could not be stopped.
    pub fn freeze(&self) -> Outcome {
        let outcome = self.order("1").and_then(|()| self.wait_frozen());
        if outcome.is_err() {
            self.thaw();
        }
        outcome
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
