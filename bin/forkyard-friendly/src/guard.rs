//! Undoes what the agent did when the agent ends.
//!
//! ```text
//! agent --pipe: what there is to undo--> guard
//!   X (killed)              end of file --> undoes it
//! ```
//!
//! The kernel closes the pipe when the agent ends, however it ends. Should the
//! guard die first, the agent starts another and tells it everything again.
//!
//! Both hold one lock, which goes with the last of them: a process that waits for it finds
//! everything undone.

use crate::{events, stopper, tasks, wake};
use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    io::{BufRead, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
};

/// Something that is to be undone, or need not be any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// This group holds threads: they belong in the group above.
    Held(PathBuf),
    /// This file held that before.
    File(PathBuf, String),
    /// This process was stopped by a signal: its number, and when it started.
    Stopped(u32, u64),
    /// The process goes on.
    Goes(u32),
    /// The kernel tells the agent of processes.
    Hears,
}

/// All there is to undo.
#[derive(Clone, Debug, Default)]
pub struct Undo {
    held: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, String>,
    stopped: BTreeMap<u32, u64>,
    hears: bool,
}

impl Word {
    fn line(&self) -> String {
        match self {
            Self::Held(path) => format!("held\t{}", path.display()),
            Self::File(path, before) => format!("file\t{}\t{before}", path.display()),
            Self::Stopped(pid, started) => format!("stop\t{pid}\t{started}"),
            Self::Goes(pid) => format!("goes\t{pid}"),
            Self::Hears => "hears".to_owned(),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split('\t').collect();
        Some(match words.as_slice() {
            ["held", path] => Self::Held(path.into()),
            ["file", path, before] => Self::File(path.into(), (*before).to_owned()),
            ["stop", pid, started] => Self::Stopped(pid.parse().ok()?, started.parse().ok()?),
            ["goes", pid] => Self::Goes(pid.parse().ok()?),
            ["hears"] => Self::Hears,
            _ => return None,
        })
    }
}

impl Undo {
    fn hear(&mut self, word: Word) {
        match word {
            Word::Held(path) => {
                self.held.insert(path);
            }
            Word::File(path, before) => {
                self.files.entry(path).or_insert(before);
            }
            Word::Stopped(pid, started) => {
                self.stopped.insert(pid, started);
            }
            Word::Goes(pid) => {
                self.stopped.remove(&pid);
            }
            Word::Hears => self.hears = true,
        }
    }

    fn words(&self) -> impl Iterator<Item = Word> {
        let held = self.held.iter().cloned().map(Word::Held);
        let files = self.files.iter();
        let files = files.map(|(path, before)| Word::File(path.clone(), before.clone()));
        let stopped = self.stopped.iter();
        let stopped = stopped.map(|(pid, started)| Word::Stopped(*pid, *started));
        let hears = self.hears.then_some(Word::Hears);
        held.chain(files).chain(stopped).chain(hears)
    }

    /// Undoes it. What is gone needs nothing.
    fn undo(&self) {
        // All run again before any is tidied up.
        self.held.iter().for_each(|path| stopper::thaw(path));
        for (&pid, &started) in &self.stopped {
            // A number that has passed to another process is left alone.
            if tasks::started(pid) == Some(started) {
                let _ = kill(raw(pid), Signal::SIGCONT);
            }
        }
        for (path, before) in &self.files {
            if let Err(error) = fs::write(path, before)
                && error.kind() != io::ErrorKind::NotFound
            {
                eprintln!(
                    "forkyard-friendly: {} is not as it was ({before}): {error}",
                    path.display()
                );
            }
        }
        self.held.iter().for_each(|path| stopper::release(path));
        // An error is that the kernel has refused the agent, too.
        if self.hears {
            let _ = events::unhear();
        }
    }
}

/// A process by its number.
pub fn raw(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).unwrap_or(i32::MAX))
}

/// A guard's life. Only the agent's end ends it, and not what the agent is told to end by: a
/// guard that has ended first undoes nothing.
pub fn stand() -> anyhow::Result<()> {
    wake::ends()
        .thread_block()
        .context("cannot block signals")?;
    guard(io::stdin().lock());
    Ok(())
}

/// The guard's work.
fn guard(told: impl BufRead) {
    let mut undo = Undo::default();
    for line in told.lines() {
        let Ok(line) = line else { break };
        if let Some(word) = Word::parse(&line) {
            undo.hear(word);
        }
    }
    undo.undo();
}

/// A guard, from the agent's side. Dropping it has it undo everything, and waits
/// until it has.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    tell: Option<ChildStdin>,
    undo: Undo,
    lock: File,
}

impl Guard {
    /// Starts one, which holds a lock until it has undone everything.
    pub fn start(lock: File) -> io::Result<Self> {
        let (child, tell) = spawn(&lock)?;
        Ok(Self {
            child,
            tell: Some(tell),
            undo: Undo::default(),
            lock,
        })
    }

    /// Tells it what is about to be done: an error means it must not be.
    pub fn tell(&mut self, word: Word) -> io::Result<()> {
        self.undo.hear(word.clone());
        self.say(&word)
    }

    /// Looks whether it lives, and starts another if not.
    pub fn check(&mut self) -> io::Result<()> {
        if self.child.try_wait()?.is_none() {
            return Ok(());
        }
        eprintln!("forkyard-friendly: the guard died; another takes its place");
        let (child, tell) = spawn(&self.lock)?;
        self.child = child;
        self.tell = Some(tell);
        let words: Vec<Word> = self.undo.words().collect();
        words.iter().try_for_each(|word| self.say(word))
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn say(&mut self, word: &Word) -> io::Result<()> {
        let tell = self.tell.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(tell, "{}", word.line())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.tell = None;
        let ended = self.child.wait();
        if !ended.is_ok_and(|status| status.success()) {
            self.undo.undo();
        }
    }
}

fn spawn(lock: &File) -> io::Result<(Child, ChildStdin)> {
    let mut child = Command::new("/proc/self/exe")
        .arg("guard")
        .stdin(Stdio::piped())
        // Where it says nothing: it has the lock for as long as it lives.
        .stdout(Stdio::from(lock.try_clone()?))
        // What ends a terminal's group of processes is not to end it.
        .process_group(0)
        .spawn()?;
    let tell = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((child, tell))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_as_they_were_said() {
        for word in [
            Word::Held("/sys/fs/cgroup/a b".into()),
            Word::File("/x/pids.max".into(), "max".to_owned()),
            Word::Stopped(7, 123),
            Word::Goes(7),
            Word::Hears,
        ] {
            assert_eq!(Word::parse(&word.line()), Some(word));
        }
        assert_eq!(Word::parse("stop\tx\t1"), None);
        assert_eq!(Word::parse(""), None);
    }

    #[test]
    fn files_are_put_back_to_what_they_held_first() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("limit");
        fs::write(&file, "3").expect("written");
        let told = format!("file\t{0}\tmax\nfile\t{0}\t9\nrubbish\n", file.display());
        guard(told.as_bytes());
        assert_eq!(fs::read_to_string(&file).expect("read"), "max");
    }

    #[test]
    fn a_stopped_process_goes_on() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let pid = child.id();
        let state = || tasks::stat(pid).map(|(state, _)| state);
        kill(raw(pid), Signal::SIGSTOP).expect("stopped");
        while state() != Some('T') {
            std::thread::yield_now();
        }
        let started = tasks::started(pid).expect("alive");
        guard(format!("stop\t{pid}\t{}\n", started + 1).as_bytes());
        assert_eq!(state(), Some('T'), "it is another process");
        guard(format!("stop\t{pid}\t{started}\n").as_bytes());
        while state() == Some('T') {
            std::thread::yield_now();
        }
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
}
