//! Has threads stand still, and lets them go.
//!
//! Where there is a freezer, one group below the chosen one is kept frozen, and
//! a thread that is to be stopped is moved into it: in v2 a threaded group, which takes
//! single threads; in v1 a group of the freezer. Where there is none, or it may
//! not be used, processes are stopped by signals.

use crate::{
    group::{CgroupVersion, Group},
    guard::{Guard, Word, raw},
    tasks::{self, Looks, Task, TaskId},
};
use anyhow::Context;
use forkyard_freezer::Frozen;
use forkyard_friendly::Unit;
use nix::sys::signal::{Signal, kill};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

/// Name of the group that is kept frozen.
const HELD: &str = "forkyard-friendly";
/// First part of the names of groups that Forkyard's agent makes for single commands.
const COMMAND: &str = "command-";
/// Trials to make the frozen group while commands begin.
const TRIES: u32 = 20;
/// Time that is waited for the threads in a group to end.
const PATIENCE: Duration = Duration::from_secs(1);

/// By what threads are stopped.
#[derive(Debug)]
enum Means {
    /// By a frozen group: that, and where threads go when they are let go.
    Freezer {
        held: PathBuf,
        free: PathBuf,
        version: CgroupVersion,
        hold: Hold,
    },
    /// By signals, whole processes.
    Signals,
}

/// Stops processes from another thread, as the stopper it is of would.
#[derive(Debug)]
pub struct Hold {
    held: File,
    free: File,
}

impl Hold {
    /// By the files, open for writing, that list the threads of a frozen group and of the
    /// one where they go when they are let go.
    pub fn of(held: File, free: File) -> Self {
        Self { held, free }
    }

    /// Has a process stand still that is there, for sure, and has no second thread. The
    /// stopper is to be told, unless the code that stopped it lets it go.
    pub fn stop(&self, process: u32) -> io::Result<()> {
        put(&self.held, process)
    }

    /// Has a thread stand still that may be gone meanwhile.
    fn stop_there(&self, id: TaskId) -> io::Result<()> {
        if_there(id, |number| put(&self.held, number))
    }

    /// Lets one go that may be gone meanwhile.
    pub fn go(&self, id: TaskId) -> io::Result<()> {
        if_there(id, |number| put(&self.free, number))
    }
}

/// Writes a number to an open list. The kernel takes a write for itself, wherever the one
/// before has ended.
fn put(mut list: &File, number: u32) -> io::Result<()> {
    moved(list.write_all(number.to_string().as_bytes()))
}

/// Does something to one that is gone or that one still: between this look and the deed the
/// number could pass on only if all others were given in between.
fn if_there(id: TaskId, deed: impl FnOnce(u32) -> io::Result<()>) -> io::Result<()> {
    match tasks::started(id.number) == Some(id.started) {
        true => deed(id.number),
        false => Ok(()),
    }
}

/// Stops and lets go the members of a group.
#[derive(Debug)]
pub struct Stopper {
    group: Group,
    means: Means,
    looks: Looks,
    still: BTreeSet<TaskId>,
    /// Members of the frozen group at the last look, by their numbers.
    inside: Vec<u32>,
}

impl Stopper {
    /// Finds means for a group, and tells the guard of them before they are used.
    /// What another agent left is let go first.
    pub fn of(group: Group, guard: &mut Guard) -> anyhow::Result<Self> {
        let v2 =
            (group.version == CgroupVersion::V2).then(|| (group.path.clone(), CgroupVersion::V2));
        let v1 = group.freezer().map(|path| (path, CgroupVersion::V1));
        let mut means = Means::Signals;
        for (free, version) in v2.into_iter().chain(v1) {
            let held = free.join(HELD);
            if held.exists() {
                release(&held);
            }
            guard
                .tell(Word::Held(held.clone()))
                .context("cannot tell the guard")?;
            let made =
                make_over(&held, &free, version).and_then(|()| Ok(open(&held, &free, version)?));
            match made {
                Ok(hold) => {
                    // Where the kernel will not, they stand still a little later.
                    let _ = put_last(&held, &free, version, guard);
                    means = Means::Freezer {
                        held,
                        free,
                        version,
                        hold,
                    };
                    break;
                }
                Err(error) => {
                    eprintln!(
                        "forkyard-friendly: {} cannot be used: {error:#}",
                        held.display()
                    );
                    release(&held);
                }
            }
        }
        Ok(Self {
            group,
            means,
            looks: Looks::default(),
            still: BTreeSet::new(),
            inside: Vec::new(),
        })
    }

    /// Returns the name, for people.
    pub fn name(&self) -> &'static str {
        match self.means {
            Means::Freezer {
                version: CgroupVersion::V2,
                ..
            } => "cgroup v2 freezer",
            Means::Freezer {
                version: CgroupVersion::V1,
                ..
            } => "cgroup v1 freezer",
            Means::Signals => "signals",
        }
    }

    /// Returns the unit it stops as one, if this was wished.
    pub fn unit(&self, wished: Unit) -> Unit {
        match self.means {
            Means::Freezer { .. } => wished,
            Means::Signals => Unit::Process,
        }
    }

    /// Returns the handle by which another thread stops processes: an error
    /// where there is no freezer.
    pub fn hold(&self) -> io::Result<Hold> {
        match &self.means {
            Means::Freezer { hold, .. } => {
                Ok(Hold::of(hold.held.try_clone()?, hold.free.try_clone()?))
            }
            Means::Signals => Err(io::Error::other("there is no freezer")),
        }
    }

    /// Hears that one was stopped by [`Hold::stop`], and what was seen of it.
    pub fn stopped(&mut self, task: Task) {
        self.still.insert(task.id);
        self.looks.learn(task);
    }

    /// All threads of the group, those standing still among them, so many turns of looking
    /// after the last time.
    pub fn members(&mut self, turns: u32) -> io::Result<Vec<Task>> {
        let list = |path: PathBuf| -> io::Result<Vec<u32>> {
            let text = fs::read_to_string(path)?;
            Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
        };
        let mut numbers = match &self.means {
            Means::Freezer {
                held,
                free,
                version,
                ..
            } => {
                let outside = list(free.join(version.threads()))?;
                self.inside = list(held.join(version.threads()))?;
                outside
            }
            Means::Signals => list(self.group.path.join(self.group.version.threads()))?,
        };
        numbers.extend(&self.inside);
        // One that is being moved may be listed twice.
        numbers.sort_unstable();
        numbers.dedup();
        Ok(self.looks.look(numbers, &self.still, turns))
    }

    /// Lets those go that were in the frozen group at the last look by no request: born
    /// there, for a thread that is told to stop in the middle of making another makes it first.
    /// `known` are there by another's request.
    pub fn free_strays(&self, known: &BTreeSet<u32>, unit: Unit) -> io::Result<()> {
        let Means::Freezer { hold, .. } = &self.means else {
            return Ok(());
        };
        let ours: BTreeSet<u32> = self.still.iter().map(|id| id.number).collect();
        for number in &self.inside {
            // With a process all its threads are there.
            let of = match unit {
                Unit::Thread => Some(*number),
                Unit::Process => self.looks.process_of(*number),
            };
            if !of.is_none_or(|of| ours.contains(&of)) && !known.contains(number) {
                put(&hold.free, *number)?;
            }
        }
        Ok(())
    }

    /// Those that stand still.
    pub fn still(&self) -> &BTreeSet<TaskId> {
        &self.still
    }

    /// The process of one that the last look saw; of one that was stopped since, itself.
    pub fn process(&self, id: TaskId) -> u32 {
        self.looks.process(id).unwrap_or(id.number)
    }

    /// Has exactly these stand still. One that is gone meanwhile needs nothing.
    pub fn set(
        &mut self,
        wanted: &BTreeSet<TaskId>,
        unit: Unit,
        guard: &mut Guard,
    ) -> io::Result<()> {
        // Those to let go first, so that there is never less running than there may be.
        let go: Vec<TaskId> = self.still.difference(wanted).copied().collect();
        for id in go {
            self.go(id, unit)?;
            if matches!(self.means, Means::Signals) {
                guard.tell(Word::Goes(id.number))?;
            }
            self.still.remove(&id);
        }
        let stop: Vec<TaskId> = wanted.difference(&self.still).copied().collect();
        for id in stop {
            if matches!(self.means, Means::Signals) {
                guard.tell(Word::Stopped(id.number, id.started))?;
            }
            self.stop(id, unit)?;
            self.still.insert(id);
        }
        Ok(())
    }

    fn stop(&self, id: TaskId, unit: Unit) -> io::Result<()> {
        match (&self.means, unit) {
            (Means::Freezer { hold, .. }, Unit::Thread) => hold.stop_there(id),
            (Means::Freezer { held, .. }, Unit::Process) => move_process(held, id),
            (Means::Signals, _) => signal(id, Signal::SIGSTOP),
        }
    }

    fn go(&self, id: TaskId, unit: Unit) -> io::Result<()> {
        match (&self.means, unit) {
            (Means::Freezer { hold, .. }, Unit::Thread) => hold.go(id),
            (Means::Freezer { free, .. }, Unit::Process) => move_process(free, id),
            (Means::Signals, _) => signal(id, Signal::SIGCONT),
        }
    }
}

/// Opens the lists of threads in the frozen group, and of those outside.
fn open(held: &Path, free: &Path, version: CgroupVersion) -> io::Result<Hold> {
    let [held, free] = [held, free].map(|group| {
        let file = group.join(version.threads());
        File::options().write(true).open(file)
    });
    Ok(Hold::of(held?, free?))
}

/// Makes the frozen group, once the groups of single commands below are empty: the kernel lets no group
/// have threads of its own and processes below. A command that begins meanwhile makes another.
fn make_over(held: &Path, free: &Path, version: CgroupVersion) -> anyhow::Result<()> {
    let mut made = Ok(());
    for _ in 0..TRIES {
        if version == CgroupVersion::V2 {
            take_in_commands(free)?;
        }
        made = make(held, version);
        if made.is_ok() {
            break;
        }
        let _ = fs::remove_dir(held);
    }
    made
}

fn make(held: &Path, version: CgroupVersion) -> anyhow::Result<()> {
    let mut group = forkyard_freezer::Group::make(held.to_owned(), version)?;
    let frozen = group.set(Frozen::Yes);
    frozen.with_context(|| format!("cannot freeze {}", held.display()))
}

/// Moves processes of the groups that Forkyard's agent makes for single commands into the group
/// above. It starts commands there as long as this group is threaded.
fn take_in_commands(group: &Path) -> io::Result<()> {
    for entry in fs::read_dir(group)?.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(COMMAND) {
            continue;
        }
        let inside = fs::read_to_string(entry.path().join("cgroup.procs")).unwrap_or_default();
        for process in inside.lines() {
            moved(fs::write(group.join("cgroup.procs"), process))?;
        }
    }
    Ok(())
}

/// Puts stopped threads last in the order of reclaim: a thread that is stopped in the middle
/// of a system call finishes it first, and may have a megabyte read back for it. Dozens that
/// were woken at one moment would take all the CPU time for that, and the host's disk; so the
/// group has next to none beside those that may run.
fn put_last(held: &Path, free: &Path, version: CgroupVersion, guard: &mut Guard) -> io::Result<()> {
    if version == CgroupVersion::V1 {
        return Ok(());
    }
    let control = free.join("cgroup.subtree_control");
    let given = fs::read_to_string(&control)?;
    if given.split_whitespace().all(|one| one != "cpu") {
        guard.tell(Word::File(control.clone(), "-cpu".into()))?;
        fs::write(&control, "+cpu")?;
    }
    fs::write(held.join("cpu.weight"), "1")
}

fn move_process(group: &Path, id: TaskId) -> io::Result<()> {
    if_there(id, |number| {
        moved(fs::write(group.join("cgroup.procs"), number.to_string()))
    })
}

/// One that has just ended needs no move.
fn moved(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => Ok(()),
        written => written,
    }
}

fn signal(id: TaskId, signal: Signal) -> io::Result<()> {
    if_there(id, |number| match kill(raw(number), signal) {
        Err(nix::errno::Errno::ESRCH) => Ok(()),
        sent => Ok(sent?),
    })
}

/// Lets go of all threads in a group.
pub fn thaw(path: &Path) {
    if let Err(error) = forkyard_freezer::thaw(path) {
        let why = &error.source;
        eprintln!("forkyard-friendly: {error}: {why}");
    }
}

/// Lets go of all threads in a group, puts them back to the group above, and
/// removes it. Of one that is not there, nothing.
pub fn release(path: &Path) {
    if let Err(error) = forkyard_freezer::release(path, PATIENCE) {
        let why = &error.source;
        eprintln!("forkyard-friendly: {error}: {why}");
    }
}
