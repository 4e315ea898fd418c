//! What the image's owner wants done in a clone before its user code goes on:
//! executables in /etc/forkyard/clone.d, in order of their names.

use super::{identity, userland};
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

const FOLDER: &str = "/etc/forkyard/clone.d";
const LIMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);

/// Runs them all, one after the other; one line for each that failed.
pub fn run() -> Vec<String> {
    let Ok(listing) = fs::read_dir(FOLDER) else {
        return Vec::new();
    };
    let mut hooks: Vec<PathBuf> = listing
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_executable(path))
        .collect();
    hooks.sort();
    let variables = identity::variables();
    hooks
        .iter()
        .filter_map(|hook| {
            run_one(hook, &variables)
                .err()
                .map(|why| format!("{}: {why}", hook.display()))
        })
        .collect()
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

fn run_one(hook: &Path, variables: &[(String, String)]) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot be run: {error}");
    let mut command = Command::new(hook);
    command
        .envs(variables.iter().cloned())
        .current_dir("/")
        .stdin(Stdio::null())
        .process_group(0);
    forkyard_sys_guest::command::in_cgroup(&mut command, userland::hook_procs().map_err(failed)?);
    let mut child = command.spawn().map_err(failed)?;
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("failed: {status}")),
            Ok(None) if begun.elapsed() < LIMIT => sleep(LOOK),
            Ok(None) => return Err(kill(&mut child)),
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
    }
}

fn kill(child: &mut Child) -> String {
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = nix::sys::signal::killpg(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        );
    }
    let _ = child.wait();
    format!("took longer than {LIMIT:?} and was killed")
}
