//! An agent in the background: started, looked for, ended.

use crate::{agent::Run, group::Group, guard::raw, status, tasks};
use anyhow::{Context, bail, ensure};
use nix::sys::signal::{Signal, kill};
use serde::Deserialize;
use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time an agent that was told to end may take to undo its changes.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);

/// Record by which an agent is found.
#[derive(Debug, Deserialize)]
pub struct Living {
    /// Process id of the agent.
    agent: u32,
    /// Time of its start.
    started: u64,
    /// The group it adapts.
    group: PathBuf,
    /// The group it is in itself, if it was told one.
    home: Option<PathBuf>,
}

impl Living {
    /// The one that says so there, if it lives.
    pub fn find(status: &Path) -> Option<Self> {
        Self::last(status).filter(Self::lives)
    }

    /// The last that said so there; it may have been killed since.
    fn last(status: &Path) -> Option<Self> {
        let text = fs::read_to_string(status).ok()?;
        serde_json::from_str(&text).ok()
    }

    fn lives(&self) -> bool {
        // One that has ended is seen until its parent looks; while any thread of it
        // is left, it holds what it held.
        let threads = fs::read_dir(format!("/proc/{}/task", self.agent));
        tasks::started(self.agent) == Some(self.started)
            && (tasks::lives(self.agent) || threads.is_ok_and(|all| all.count() > 1))
    }

    /// Tells whether it runs this very program: another may have taken its
    /// file's place.
    fn is_this_program(&self) -> bool {
        let program = |process: &str| fs::read_link(format!("/proc/{process}/exe")).ok();
        let ours = program("self");
        ours.is_some() && program(&self.agent.to_string()) == ours
    }

    fn end(&self) -> anyhow::Result<()> {
        kill(raw(self.agent), Signal::SIGTERM).context("cannot end the one that runs")?;
        let began = Instant::now();
        while self.lives() {
            ensure!(
                began.elapsed() < PATIENCE,
                "process {} was told to end and has not; `kill -9` is safe: its guard undoes what it did",
                self.agent
            );
            thread::sleep(LOOK);
        }
        self.tidy();
        Ok(())
    }

    /// Removes its own group, once it has ended.
    fn tidy(&self) {
        if let Some(home) = &self.home {
            // Another agent may be in it.
            let _ = fs::remove_dir(home);
        }
    }
}

/// Starts one, unless it runs and adapts that group. Returns once it does.
pub fn start(wanted: &Run) -> anyhow::Result<()> {
    if let Some(living) = Living::find(&wanted.status) {
        let group = Group::find(&wanted.cgroup)?;
        if living.group == group.path && living.is_this_program() {
            return Ok(());
        }
        living.end()?;
    }
    let log = wanted.status.with_extension("log");
    if let Some(folder) = wanted.status.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let errors = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    // By its own name, which is what others know it by.
    let mut command = Command::new(env::current_exe().context("which program is this?")?);
    command.arg("run").arg("--cgroup").arg(&wanted.cgroup);
    command.arg("--config").arg(&wanted.config);
    command.arg("--status").arg(&wanted.status);
    if let Some(home) = &wanted.home {
        command.arg("--home").arg(home);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .current_dir("/")
        // What ends this one's terminal or session does not end it.
        .process_group(0)
        .spawn()
        .context("cannot start an agent")?;
    let mut told = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut told)?;
    }
    if told.trim() == "ready" {
        return Ok(());
    }
    child.wait()?;
    let mut why = String::new();
    File::open(&log)?.read_to_string(&mut why)?;
    bail!("it did not start: {}", why.trim())
}

/// Ends the one that says there what it does; when it has ended, everything is
/// as it was. None running is no failure.
pub fn stop(status: &Path) -> anyhow::Result<()> {
    match Living::last(status) {
        Some(living) if living.lives() => living.end()?,
        killed => {
            println!("none was running");
            killed.iter().for_each(Living::tidy);
        }
    }
    status::forget(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_has_ended_or_was_somebody_else_is_not_found() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("status.json");
        assert!(Living::find(&path).is_none(), "nobody said anything");
        let me = std::process::id();
        let started = tasks::started(me).expect("alive");
        let said = |agent: u32, started: u64| {
            let said = json!({"agent": agent, "started": started, "group": "/x", "more": 1});
            status::write(&path, &said).expect("written");
        };
        said(me, started);
        let found = Living::find(&path).expect("this process");
        assert!(found.is_this_program());
        assert_eq!(found.home, None);
        said(me, started + 1);
        assert!(Living::find(&path).is_none(), "the number was given again");
        said(u32::MAX, started);
        assert!(Living::find(&path).is_none(), "there is none");
        fs::write(&path, "{").expect("written");
        assert!(Living::find(&path).is_none(), "no status");
        stop(&path).expect("none runs");
        assert!(!path.exists());
    }
}
