//! Lets everything go when the dispatcher dies.
//!
//! ```text
//! dispatcher --pipe: "+ group", "= thread nice cpus"--> guard
//!      X (killed)      end of file --> thaws, removes groups, puts threads back
//! ```
//!
//! The pipe and the process are those of [`forkyard_freezer::guard`]. Should the guard die
//! first, the dispatcher thaws everything before it starts another. Should both die
//! in between, threads may stay frozen; the next scheduler of the VM frees them.

use crate::{freezer, place};
use forkyard_freezer::guard::{self, Alive, Undo};
use forkyard_sys_host::sched::Class;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
    io,
    path::{Path, PathBuf},
    str::FromStr,
};

pub use forkyard_freezer::guard::{Processes, Program};

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

/// One thing that a guard is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardMessage {
    /// This group is to be let go.
    Group(PathBuf),
    /// This group is no more.
    NoGroup(PathBuf),
    /// This thread was as it says before.
    Thread(u32, Before),
    /// This thread is as it was before, or gone.
    NoThread(u32),
}

impl Display for GuardMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group(path) => write!(f, "+ {}", path.display()),
            Self::NoGroup(path) => write!(f, "- {}", path.display()),
            Self::Thread(tid, before) => write!(f, "= {tid} {before}"),
            Self::NoThread(tid) => write!(f, "/ {tid}"),
        }
    }
}

/// A line that is no word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoWord;

impl FromStr for GuardMessage {
    type Err = NoWord;

    fn from_str(line: &str) -> Result<Self, NoWord> {
        let number = |text: &str| text.parse().map_err(|_| NoWord);
        match line.split_at_checked(2) {
            Some(("+ ", path)) => Ok(Self::Group(path.into())),
            Some(("- ", path)) => Ok(Self::NoGroup(path.into())),
            Some(("= ", thread)) => {
                let (tid, before) = thread.split_once(' ').ok_or(NoWord)?;
                let before = Before::parse(before).ok_or(NoWord)?;
                Ok(Self::Thread(number(tid)?, before))
            }
            Some(("/ ", tid)) => Ok(Self::NoThread(number(tid)?)),
            Some(_) | None => Err(NoWord),
        }
    }
}

/// Groups and threads that were changed.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    groups: BTreeSet<PathBuf>,
    threads: BTreeMap<u32, Before>,
}

impl Changed {
    fn thaw(&self) {
        self.groups.iter().for_each(|path| freezer::thaw(path));
    }
}

impl Undo for Changed {
    type Word = GuardMessage;

    fn hear(&mut self, word: GuardMessage) {
        match word {
            GuardMessage::Group(path) => {
                self.groups.insert(path);
            }
            GuardMessage::NoGroup(path) => {
                self.groups.remove(&path);
            }
            GuardMessage::Thread(tid, before) => {
                self.threads.insert(tid, before);
            }
            GuardMessage::NoThread(tid) => {
                self.threads.remove(&tid);
            }
        }
    }

    fn words(&self) -> Vec<GuardMessage> {
        let groups = self.groups.iter().cloned().map(GuardMessage::Group);
        let threads = self.threads.iter();
        let threads = threads.map(|(tid, before)| GuardMessage::Thread(*tid, before.clone()));
        groups.chain(threads).collect()
    }

    fn undo(&self) {
        // All run again before any is tidied up. Those within others have the longer names.
        self.thaw();
        { self.groups.iter().rev() }.for_each(|path| freezer::release(path));
        for (&tid, before) in &self.threads {
            before.restore(tid);
        }
    }
}

/// A guard, from the dispatcher's side. Dropping it ends it, and it lets go of
/// whatever it still knows.
#[derive(Debug)]
pub struct DispatchGuard(guard::Guard<Changed>);

/// Outcome of a look at the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The guard lives.
    Lives,
    /// Another has taken its place; everything is thawed by now or will be.
    Replaced,
}

impl DispatchGuard {
    /// Starts one.
    pub fn start(program: Program) -> io::Result<Self> {
        guard::Guard::start(program).map(Self)
    }

    /// A group it is to let go.
    pub fn add(&mut self, group: &Path) -> io::Result<()> {
        self.0.tell(GuardMessage::Group(group.to_owned()))
    }

    /// A group that is no more.
    pub fn remove(&mut self, group: &Path) -> io::Result<()> {
        self.0.tell(GuardMessage::NoGroup(group.to_owned()))
    }

    /// Looks whether it lives. If not, thaws everything it was told of, and starts
    /// another.
    pub fn check(&mut self) -> io::Result<Look> {
        match self.0.alive()? {
            Alive::Yes => Ok(Look::Lives),
            Alive::No => {
                // No thread is frozen without a guard for longer than it takes to see it.
                self.0.undo().thaw();
                self.0.replace()?;
                Ok(Look::Replaced)
            }
        }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// A thread that is about to be pinned or told, and how it was before.
    pub fn changes(&mut self, tid: u32, before: &Before) -> io::Result<()> {
        self.0.tell(GuardMessage::Thread(tid, before.clone()))
    }

    /// A thread that is as it was before, or gone.
    pub fn is_as_before(&mut self, tid: u32) -> io::Result<()> {
        self.0.tell(GuardMessage::NoThread(tid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_freezer::guard::guard;

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
    fn words_are_understood_as_they_were_said() {
        let before = Before {
            cpus: vec![1],
            nice: 0,
        };
        for word in [
            GuardMessage::Group("/sys/fs/cgroup/a b".into()),
            GuardMessage::NoGroup("/sys/fs/cgroup/a".into()),
            GuardMessage::Thread(7, before),
            GuardMessage::NoThread(7),
        ] {
            assert_eq!(word.to_string().parse(), Ok(word));
        }
        for wrong in ["", "+", "= 7", "/ x", "? nothing"] {
            assert_eq!(wrong.parse::<GuardMessage>(), Err(NoWord), "{wrong}");
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
            guard::<Changed>(format!("{nowhere}= {tid} {before}\n/ {tid}\n").as_bytes());
            assert_eq!(place::allowed(0).expect("asked"), [last]);
            guard::<Changed>(format!("{nowhere}= {tid} {before}\n").as_bytes());
            assert_eq!(place::allowed(0).expect("asked"), before.cpus);
        });
        thread.join().expect("no panic");
    }
}
