//! Undoes what the agent did when the agent ends.
//!
//! ```text
//! agent --pipe: what there is to undo--> guard
//!   X (killed)              end of file --> undoes it
//! ```
//!
//! The pipe and the process are those of [`forkyard_freezer::guard`].
//!
//! Both hold one lock, which goes with the last of them: a process that waits for it finds
//! everything undone.

use crate::{events, stopper, tasks, wake};
use anyhow::Context;
use forkyard_freezer::guard::{self, Alive, Processes, Program, guard};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::{self, File},
    io,
    path::PathBuf,
    str::FromStr,
    sync::Arc,
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

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held(path) => write!(f, "held\t{}", path.display()),
            Self::File(path, before) => write!(f, "file\t{}\t{before}", path.display()),
            Self::Stopped(pid, started) => write!(f, "stop\t{pid}\t{started}"),
            Self::Goes(pid) => write!(f, "goes\t{pid}"),
            Self::Hears => f.write_str("hears"),
        }
    }
}

/// A line that is no word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoWord;

impl FromStr for Word {
    type Err = NoWord;

    fn from_str(line: &str) -> Result<Self, NoWord> {
        let words: Vec<&str> = line.split('\t').collect();
        let pid = |text: &str| text.parse().map_err(|_| NoWord);
        Ok(match words.as_slice() {
            ["held", path] => Self::Held(path.into()),
            ["file", path, before] => Self::File(path.into(), (*before).to_owned()),
            ["stop", number, started] => {
                Self::Stopped(pid(number)?, started.parse().map_err(|_| NoWord)?)
            }
            ["goes", number] => Self::Goes(pid(number)?),
            ["hears"] => Self::Hears,
            _ => return Err(NoWord),
        })
    }
}

impl guard::Undo for Undo {
    type Word = Word;

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

    fn words(&self) -> Vec<Word> {
        let held = self.held.iter().cloned().map(Word::Held);
        let files = self.files.iter();
        let files = files.map(|(path, before)| Word::File(path.clone(), before.clone()));
        let stopped = self.stopped.iter();
        let stopped = stopped.map(|(pid, started)| Word::Stopped(*pid, *started));
        let hears = self.hears.then_some(Word::Hears);
        held.chain(files).chain(stopped).chain(hears).collect()
    }

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
    guard::<Undo>(io::stdin().lock());
    Ok(())
}

/// A guard, from the agent's side. Dropping it has it undo everything, and waits
/// until it has.
#[derive(Debug)]
pub struct Guard(guard::Guard<Undo>);

impl Guard {
    /// Starts one, which holds a lock until it has undone everything.
    pub fn start(lock: File) -> io::Result<Self> {
        let program = Program {
            path: "/proc/self/exe".into(),
            arguments: vec!["guard".to_owned()],
            holds: Some(Arc::new(lock)),
            // What ends a terminal's group of processes is not to end it.
            processes: Processes::Own,
        };
        guard::Guard::start(program).map(Self)
    }

    /// Tells it what is about to be done: an error means it must not be.
    pub fn tell(&mut self, word: Word) -> io::Result<()> {
        self.0.tell(word)
    }

    /// Looks whether it lives, and starts another if not.
    pub fn check(&mut self) -> io::Result<()> {
        match self.0.alive()? {
            Alive::Yes => Ok(()),
            Alive::No => {
                eprintln!("forkyard-friendly: the guard died; another takes its place");
                self.0.replace()
            }
        }
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn words_are_understood_as_they_were_said() {
        for word in [
            Word::Held("/sys/fs/cgroup/a b".into()),
            Word::File("/x/pids.max".into(), "max".to_owned()),
            Word::Stopped(7, 123),
            Word::Goes(7),
            Word::Hears,
        ] {
            assert_eq!(word.to_string().parse(), Ok(word));
        }
        assert_eq!("stop\tx\t1".parse::<Word>(), Err(NoWord));
        assert_eq!("".parse::<Word>(), Err(NoWord));
    }

    #[test]
    fn files_are_put_back_to_what_they_held_first() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("limit");
        fs::write(&file, "3").expect("written");
        let told = format!("file\t{0}\tmax\nfile\t{0}\t9\nrubbish\n", file.display());
        guard::<Undo>(told.as_bytes());
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
        guard::<Undo>(format!("stop\t{pid}\t{}\n", started + 1).as_bytes());
        assert_eq!(state(), Some('T'), "it is another process");
        guard::<Undo>(format!("stop\t{pid}\t{started}\n").as_bytes());
        while state() == Some('T') {
            std::thread::yield_now();
        }
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
}
