//! Lets everything go when the dispatcher dies.
//!
//! ```text
//! dispatcher --pipe: "+ group", "= thread nice cpus"--> guard
//!      X (killed)      end of file --> thaws, removes groups, puts threads back
//! ```
//!
//! The guard is a process of its own that does nothing but read a pipe. The
//! kernel closes the pipe when the dispatcher dies, however it dies, so the guard
//! knows at once without asking. Should the guard die first, the dispatcher
//! notices at its next write or look, thaws, and starts another. Should both die
//! in between, threads may stay frozen; the next scheduler of the VM frees them.

use crate::{freezer, place};
use forkyard_sys_host::sched::Class;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
    fs::File,
    io::{self, BufRead, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
};

/// Leaves the terminal, for the main of a guard's process: what ends the processes that
/// belong to a terminal is not to end it. Nor is the kernel to hang it up when the
/// dispatcher dies while it is stopped, as it does with groups that lose their
/// parent.
pub fn leave_terminal() -> io::Result<()> {
    nix::unistd::setsid()?;
    Ok(())
}

/// State of a thread before anything was done to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Before {
    /// The CPUs it might run on.
    pub cpus: Vec<u32>,
    /// Niceness of the thread.
    pub nice: i32,
}

impl Display for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus: Vec<String> = self.cpus.iter().map(u32::to_string).collect();
        write!(f, "{} {}", self.nice, cpus.join(","))
    }
}

impl Before {
    fn parse(text: &str) -> Option<Self> {
        let (nice, cpus) = text.split_once(' ')?;
        let cpus: Option<_> = cpus.split(',').map(|cpu| cpu.parse().ok()).collect();
        Some(Self {
            cpus: cpus?,
            nice: nice.parse().ok()?,
        })
    }

    /// A thread that has ended is on no CPU: no error is one.
    fn restore(&self, tid: u32) {
        let _ = place::tell(tid, Class::Usual(self.nice));
        let _ = place::pin(tid, &self.cpus);
    }
}

/// Does a guard's work until `told` ends: for the main of its process.
pub fn guard(told: impl BufRead) {
    let mut groups = BTreeSet::new();
    let mut threads: BTreeMap<u32, Before> = BTreeMap::new();
    for line in told.lines() {
        let Ok(line) = line else { break };
        match line.split_at_checked(2) {
            Some(("+ ", path)) => {
                groups.insert(PathBuf::from(path));
            }
            Some(("- ", path)) => {
                groups.remove(Path::new(path));
            }
            Some(("= ", thread)) => {
                if let Some((tid, before)) = thread.split_once(' ')
                    && let (Ok(tid), Some(before)) = (tid.parse(), Before::parse(before))
                {
                    threads.insert(tid, before);
                }
            }
            Some(("/ ", tid)) => {
                if let Ok(tid) = tid.parse() {
                    threads.remove(&tid);
                }
            }
            Some(_) | None => {}
        }
    }
    // All run again before any is tidied up. Those within others have the longer names.
    groups.iter().for_each(|path| freezer::thaw(path));
    { groups.iter().rev() }.for_each(|path| freezer::release(path));
    for (tid, before) in threads {
        before.restore(tid);
    }
}

/// Command that starts a guard.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Arguments that make it a guard.
    pub arguments: Vec<String>,
    /// A file it holds open while it runs: a process that locked it, locked it for
    /// the guard too, so that the next dispatcher can wait for both.
    pub holds: Option<Arc<File>>,
}

/// A guard, from the dispatcher's side. Dropping it ends it, and it lets go of
/// whatever it still knows.
#[derive(Debug)]
pub struct Guard {
    program: Program,
    child: Child,
    tell: Option<ChildStdin>,
    groups: BTreeSet<PathBuf>,
    threads: BTreeMap<u32, Before>,
}

/// State of the guard: alive, or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alive {
    /// The guard lives.
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
            threads: BTreeMap::new(),
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

    /// Looks whether it lives. If not, thaws everything it was told of, and starts
    /// another.
    pub fn check(&mut self) -> io::Result<Alive> {
        if self.child.try_wait()?.is_none() {
            return Ok(Alive::Yes);
        }
        // No thread is frozen without a guard for longer than it takes to see it.
        self.groups.iter().for_each(|path| freezer::thaw(path));
        let (child, tell) = spawn(&self.program)?;
        self.child = child;
        self.tell = Some(tell);
        for group in self.groups.clone() {
            self.say("+", &group.display())?;
        }
        for (tid, before) in self.threads.clone() {
            self.say("=", &format_args!("{tid} {before}"))?;
        }
        Ok(Alive::Replaced)
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A thread that is about to be pinned or told, and how it was before.
    pub fn changes(&mut self, tid: u32, before: &Before) -> io::Result<()> {
        self.threads.insert(tid, before.clone());
        self.say("=", &format_args!("{tid} {before}"))
    }

    /// A thread that is as it was before, or gone.
    pub fn is_as_before(&mut self, tid: u32) -> io::Result<()> {
        self.threads.remove(&tid);
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

fn spawn(program: &Program) -> io::Result<(Child, ChildStdin)> {
    let holds = match &program.holds {
        Some(file) => file.try_clone()?.into(),
        None => Stdio::null(),
    };
    let mut child = Command::new(&program.path)
        .args(&program.arguments)
        .stdin(Stdio::piped())
        // It prints nothing: this is how it comes to hold a file.
        .stdout(holds)
        .spawn()?;
    let tell = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((child, tell))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guard_is_told_of_a_thread_is_what_it_reads() {
        let before = Before {
            cpus: vec![0, 3, 17],
            nice: -5,
        };
        assert_eq!(before.to_string(), "-5 0,3,17");
        assert_eq!(Before::parse(&before.to_string()), Some(before));
        for wrong in ["", "0", "0 ", "x 1", "0 1,x"] {
            assert_eq!(Before::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_guard_puts_back_what_it_was_told_of_and_not_undone() {
        let thread = std::thread::spawn(|| {
            let tid = nix::unistd::gettid();
            let all = place::allowed(0).expect("asked");
            let last = *all.last().expect("a CPU");
            place::pin(0, &[last]).expect("pinned");
            let nowhere = "= 4294967295 0 0\n? nothing\n";
            let before = Before { cpus: all, nice: 3 };
            guard(format!("{nowhere}= {tid} {before}\n/ {tid}\n").as_bytes());
            assert_eq!(place::allowed(0).expect("asked"), [last]);
            guard(format!("{nowhere}= {tid} {before}\n").as_bytes());
            assert_eq!(place::allowed(0).expect("asked"), before.cpus);
        });
        thread.join().expect("no panic");
    }
}
