//! Hooks of the image's owner around a fork: executables, run in order of their
//! names.

use super::{identity, userland};
use crate::foreign;
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command},
    thread::sleep,
    time::{Duration, Instant},
};

/// Run in a VM about to be forked, before it holds still; each may refuse.
pub const FORK: Occasion = Occasion {
    folder: "/etc/forkyard/fork.d",
    // The host waits for all of them, and for user code to hold still.
    limit: Duration::from_secs(2),
};
/// Run in a clone before its user code goes on.
pub const CLONE: Occasion = Occasion {
    folder: "/etc/forkyard/clone.d",
    limit: Duration::from_secs(10),
};
const LOOK: Duration = Duration::from_millis(5);

/// Occasion on which hooks run.
#[derive(Clone, Copy, Debug)]
pub struct Occasion {
    folder: &'static str,
    /// Time each may take.
    limit: Duration,
}

/// Runs them all, one after the other, with these variables beside those that
/// name this VM; one line for each that failed.
pub fn run(occasion: Occasion, extra: &[(&str, String)]) -> Vec<String> {
    let Ok(listing) = fs::read_dir(occasion.folder) else {
        return Vec::new();
    };
    let mut hooks: Vec<PathBuf> = listing
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_executable(path))
        .collect();
    hooks.sort();
    let mut variables = identity::variables();
    let extra = extra.iter().map(|(k, v)| ((*k).to_owned(), v.clone()));
    variables.extend(extra);
    hooks
        .iter()
        .filter_map(|hook| {
            run_one(hook, &variables, occasion.limit)
                .err()
                .map(|why| format!("{}: {why}", hook.display()))
        })
        .collect()
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

fn run_one(hook: &Path, variables: &[(String, String)], limit: Duration) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot be run: {error}");
    let mut command = Command::new(hook);
    command
        .envs(variables.iter().cloned())
        .current_dir("/")
        .stdin(foreign::null().map_err(failed)?)
        .process_group(0);
    forkyard_sys_guest::command::as_usual(&mut command);
    let procs = userland::hook_procs().map_err(failed)?;
    forkyard_sys_guest::command::in_cgroup(&mut command, vec![procs]);
    let mut child = command.spawn().map_err(failed)?;
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("failed: {status}")),
            Ok(None) if begun.elapsed() < limit => sleep(LOOK),
            Ok(None) => return Err(kill(&mut child, limit)),
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
    }
}

fn kill(child: &mut Child, limit: Duration) -> String {
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = nix::sys::signal::killpg(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        );
    }
    let _ = child.wait();
    format!("took longer than {limit:?} and was killed")
}
