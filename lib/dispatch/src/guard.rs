//! Lets everything go when the dispatcher dies.
//!
//! ```text
//! dispatcher --pipe: "+ group", "= thread cpus"--> guard
//!      X (killed)                end of file --> thaws, removes groups, unpins
//! ```
//!
//! The guard is a process of its own that does nothing but read a pipe. The
//! kernel closes the pipe when the dispatcher dies, however it dies, so the guard
//! knows at once and asks nobody. Should the guard die first, the dispatcher
//! notices at its next write or look, thaws, and starts another.

use crate::{freezer, place};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    io::{self, BufRead, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

/// Does a guard's work until `told` ends: for the main of its process.
pub fn guard(told: impl BufRead) {
    let mut groups = BTreeSet::new();
    let mut pinned_threads: BTreeMap<u32, String> = BTreeMap::new();
    for line in told.lines() {
        let Ok(line) = line else { break };
        match line.split_at_checked(2) {
            Some(("+ ", path)) => {
                groups.insert(PathBuf::from(path));
            }
            Some(("- ", path)) => {
                groups.remove(Path::new(path));
            }
            Some(("= ", pinned)) => {
                if let Some((tid, cpus)) = pinned.split_once(' ')
                    && let Ok(tid) = tid.parse::<u32>()
                {
                    pinned_threads.insert(tid, cpus.to_owned());
                }
            }
            Some(("/ ", tid)) => {
                if let Ok(tid) = tid.parse() {
                    pinned_threads.remove(&tid);
                }
            }
            Some(_) | None => {}
        }
    }
    // All run again before any is tidied up.
    groups.iter().for_each(|path| freezer::thaw(path));
    groups.iter().for_each(|path| freezer::release(path));
    for (tid, cpus) in pinned_threads {
        let cpus: Vec<u32> = cpus.split(',').filter_map(|cpu| cpu.parse().ok()).collect();
        // A thread that has ended is on no CPU.
        let _ = place::pin(tid, &cpus);
    }
}

/// How a guard is started.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// What makes it a guard.
    pub arguments: Vec<String>,
}

/// A guard, from the dispatcher's side. Dropping it ends it, and it lets go of
/// whatever it still knows.
#[derive(Debug)]
pub struct Guard {
    program: Program,
    child: Child,
    tell: Option<ChildStdin>,
    groups: BTreeSet<PathBuf>,
    pinned: BTreeMap<u32, Vec<u32>>,
}

/// Whether the guard had to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alive {
    /// It lives.
    Yes,
    /// Another has taken its place; everything is thawed by now or will be.
    Replaced,
}

impl Guard {
    /// Starts one.
    pub fn start(program: Program) -> io::Result<Self> {
        let (child, tell) = spawn(&program)?;
        Ok(Self {
            program,
            child,
            tell: Some(tell),
            groups: BTreeSet::new(),
            pinned: BTreeMap::new(),
        })
    }

    /// A group it is to let go.
    pub fn add(&mut self, group: &Path) -> io::Result<()> {
        self.groups.insert(group.to_owned());
        self.say("+", &group.display())
    }

    /// A group that is no more.
    pub fn remove(&mut self, group: &Path) -> io::Result<()> {
        self.groups.remove(group);
        self.say("-", &group.display())
    }

    /// Looks whether it lives, and starts another if not.
    pub fn check(&mut self) -> io::Result<Alive> {
        if self.child.try_wait()?.is_none() {
            return Ok(Alive::Yes);
        }
        let (child, tell) = spawn(&self.program)?;
        self.child = child;
        self.tell = Some(tell);
        for group in self.groups.clone() {
            self.say("+", &group.display())?;
        }
        for (tid, cpus) in self.pinned.clone() {
            self.say("=", &pinned(tid, &cpus))?;
        }
        Ok(Alive::Replaced)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A thread that is about to be pinned, and the CPUs it belongs on.
    pub fn pinned(&mut self, tid: u32, cpus: &[u32]) -> io::Result<()> {
        self.pinned.insert(tid, cpus.to_vec());
        self.say("=", &pinned(tid, cpus))
    }

    /// A thread that is where it belongs, or gone.
    pub fn unpinned(&mut self, tid: u32) -> io::Result<()> {
        self.pinned.remove(&tid);
        self.say("/", &tid)
    }

    fn say(&mut self, what: &str, of: &dyn Display) -> io::Result<()> {
        let tell = self.tell.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(tell, "{what} {of}")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.tell = None;
        let _ = self.child.wait();
    }
}

fn pinned(tid: u32, cpus: &[u32]) -> String {
    let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
    format!("{tid} {}", cpus.join(","))
}

fn spawn(program: &Program) -> io::Result<(Child, ChildStdin)> {
    use std::os::unix::process::CommandExt;
    let mut child = Command::new(&program.path)
        .args(&program.arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        // What ends a terminal's group of processes is not to end it.
        .process_group(0)
        .spawn()?;
    let tell = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((child, tell))
}
