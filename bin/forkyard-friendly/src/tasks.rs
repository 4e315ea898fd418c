//! Reader of `/proc` about threads.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

/// A thread, by its number and by when it started: numbers are given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId {
    /// Number; a process's is that of its first thread.
    pub number: u32,
    /// Time of its start, in the kernel's ticks.
    pub started: u64,
}

/// A thread that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Id of the task.
    pub id: TaskId,
    /// Name of its own; that of a process is its first thread's.
    pub name: String,
    /// Properties that it keeps for as long as it lives.
    pub kin: Kin,
    /// True if it runs, would run, or waits for a disk.
    pub runnable: bool,
    /// The CPU that it ran on last.
    pub cpu: u32,
    /// The process that made its own, or has taken that in since.
    pub parent: u32,
}

impl Task {
    /// Reads the properties of a thread that is not known; none if it is gone.
    pub fn of(number: u32) -> Option<Self> {
        Known::seen(number, None).map(|known| known.task)
    }
}

/// Process and namespace that a thread belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kin {
    /// Number of its process.
    pub process: u32,
    /// True if that is the first of the machine, or of a container: by its number in
    /// the innermost namespace that it is in.
    pub init: bool,
}

/// Content of `/proc/N/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    state: char,
    /// The process that started it, or has taken it in since.
    parent: u32,
    /// Number of threads of its process.
    threads: u32,
    started: u64,
    cpu: u32,
}

/// Looks after which a thread that slept at each of them is a sleeper.
const SLEEPS: u32 = 2;
/// A sleeper is looked at once in so many turns.
const RARE: u32 = 8;
/// All sleepers are looked at if of those whose turn it is this part or more do not sleep.
const AWAKE: usize = 4;

/// Looks at threads, over and over. Of each that it has seen before it reads one file:
/// where hundreds share an emulated CPU, more would cost more than it is worth. Of those
/// that have slept for a while, some in each turn, of which a look is one or more: a web
/// server's threads are many, and mostly wait. Where many of these have woken up, all: of
/// threads that wait for a lock dozens do at one moment, and until they are seen they have
/// the host read back what all of them use. And of those that stand still none: what
/// the kernel keeps of them may have been paged out by the host, and to look is to have it
/// read back.
#[derive(Debug, Default)]
pub struct Looks {
    known: BTreeMap<u32, Known>,
    /// Number of turns so far.
    turn: u32,
}

/// A thread that was seen, and at how many looks on end it slept.
#[derive(Clone, Debug)]
struct Known {
    task: Task,
    slept: u32,
}

impl Looks {
    /// Looks at all of these, so many turns after the look before. Those that are gone, or
    /// dead and not reaped yet, are left out, and any that are not among them are forgotten.
    pub fn look(
        &mut self,
        numbers: impl IntoIterator<Item = u32>,
        still: &BTreeSet<TaskId>,
        turns: u32,
    ) -> Vec<Task> {
        let mut before = std::mem::take(&mut self.known);
        let due = self.due(turns);
        let still: BTreeMap<u32, TaskId> = still.iter().map(|id| (id.number, *id)).collect();
        let mut awake = Awake::default();
        let mut asleep = Vec::new();
        for number in numbers {
            let seen = match before.remove(&number) {
                Some(known) if still.get(&number) == Some(&known.task.id) => Some(known.unseen(0)),
                Some(known) if known.slept >= SLEEPS && !due(number) => {
                    asleep.push(known);
                    None
                }
                Some(known) if known.slept >= SLEEPS => {
                    let seen = Known::seen(number, Some(known));
                    awake.count(seen.as_ref());
                    seen
                }
                known => Known::seen(number, known),
            };
            self.known.extend(seen.map(|seen| (number, seen)));
        }
        for known in asleep {
            let (number, slept) = (known.task.id.number, known.slept);
            let seen = match awake.many() {
                true => Known::seen(number, Some(known)),
                false => Some(known.unseen(slept)),
            };
            self.known.extend(seen.map(|seen| (number, seen)));
        }
        self.known
            .values()
            .map(|known| known.task.clone())
            .collect()
    }

    /// Selects those due in the next so many turns: by their numbers, so that not all are
    /// looked at in one look.
    fn due(&mut self, turns: u32) -> impl Fn(u32) -> bool + use<> {
        let before = self.turn;
        self.turn = before.wrapping_add(turns);
        move |number| {
            (1..=turns.min(RARE))
                .any(|turn| (number ^ before.wrapping_add(turn)).is_multiple_of(RARE))
        }
    }

    /// One was seen by another thread, since the last look.
    pub fn learn(&mut self, task: Task) {
        let slept = 0;
        self.known.insert(task.id.number, Known { task, slept });
    }

    /// The process of a thread that was there at the last look, or seen since, by its number.
    pub fn process_of(&self, number: u32) -> Option<u32> {
        let known = self.known.get(&number);
        known.map(|known| known.task.kin.process)
    }

    /// Returns the process of a thread that is still the same one.
    pub fn process(&self, id: TaskId) -> Option<u32> {
        let known = self.known.get(&id.number);
        let known = known.filter(|known| known.task.id == id);
        known.map(|known| known.task.kin.process)
    }
}

/// Number of the sleepers that a look has looked at and that do not sleep any
/// more.
#[derive(Clone, Copy, Debug, Default)]
struct Awake {
    awake: usize,
    looked_at: usize,
}

impl Awake {
    /// One that slept has been looked at, and may be gone.
    fn count(&mut self, seen: Option<&Known>) {
        self.looked_at += 1;
        self.awake += usize::from(seen.is_some_and(|seen| seen.task.runnable));
    }

    /// Tells whether so many do not that the others are to be looked at, too.
    fn many(self) -> bool {
        self.awake > 0 && self.awake * AWAKE >= self.looked_at
    }
}

impl Known {
    /// Reads of it; none if it is gone.
    fn seen(number: u32, before: Option<Self>) -> Option<Self> {
        let stat = read(number)?;
        let id = TaskId {
            number,
            started: stat.started,
        };
        if matches!(stat.state, 'Z' | 'X') {
            return None;
        }
        let before = before.filter(|before| before.task.id == id);
        let runnable = matches!(stat.state, 'R' | 'D');
        let slept = before.as_ref().map_or(0, |before| before.slept);
        Some(Self {
            task: Task {
                id,
                kin: before
                    .map(|before| before.task.kin)
                    .or_else(|| kin(number))?,
                runnable,
                cpu: stat.cpu,
                parent: stat.parent,
                name: stat.name,
            },
            slept: if runnable { 0 } else { slept + 1 },
        })
    }

    /// Derives the state of one that was not looked at, and does not run.
    fn unseen(self, slept: u32) -> Self {
        let runnable = false;
        Self {
            task: Task {
                runnable,
                ..self.task
            },
            slept,
        }
    }
}

fn read(number: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    // Names may hold anything, brackets too.
    let (before, rest) = text.rsplit_once(") ")?;
    let (_, name) = before.split_once(" (")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.chars().next()?;
    // Of all fields, counted from 1, the 4th, the 20th, the 22nd and the 39th.
    let parent = fields.next()?.parse().ok()?;
    let threads = fields.nth(15)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    let cpu = fields.nth(16)?.parse().ok()?;
    Some(Stat {
        name: name.to_owned(),
        state,
        parent,
        threads,
        started,
        cpu,
    })
}

fn kin(number: u32) -> Option<Kin> {
    let status = |number: u32| fs::read_to_string(format!("/proc/{number}/status")).ok();
    let text = status(number)?;
    let process = text.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    let process: u32 = process.trim().parse().ok()?;
    let first = match process == number {
        true => text,
        false => status(process)?,
    };
    Some(Kin {
        process,
        init: process == 1 || innermost(&first) == Some(1),
    })
}

/// The state of a thread, and when it started. None if there is none.
pub fn stat(number: u32) -> Option<(char, u64)> {
    read(number).map(|stat| (stat.state, stat.started))
}

/// A process, and whether it has one thread alone.
pub fn alone(process: u32) -> Option<(TaskId, bool)> {
    let stat = read(process)?;
    let id = TaskId {
        number: process,
        started: stat.started,
    };
    Some((id, stat.threads == 1))
}

/// Returns the time at which a thread started.
pub fn started(number: u32) -> Option<u64> {
    stat(number).map(|(_, started)| started)
}

/// Tells whether there is such a thread, and it is not dead.
pub fn lives(number: u32) -> bool {
    read(number).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

/// The name of a process.
pub fn name(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

fn innermost(status: &str) -> Option<u32> {
    let numbers = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn this_thread_is_seen_as_it_is() {
        let me = std::process::id();
        let task = Task::of(me).expect("alive");
        assert_eq!((task.id.number, task.kin.process), (me, me));
        assert!(!task.name.is_empty() && name(me) == task.name, "{task:?}");
        assert_eq!(started(me), Some(task.id.started));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("started");
        let parent = Task::of(child.id()).expect("alive").parent;
        assert_eq!(parent, me);
        assert_eq!(alone(parent).map(|(parent, _)| parent), Some(task.id));
        child.kill().and_then(|()| child.wait()).expect("ended");
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let number = nix::unistd::gettid().as_raw();
            tell.send(number).expect("heard");
            let number = u32::try_from(number).expect("a number");
            Task::of(number).expect("alive")
        });
        let number = told.recv().expect("told");
        let task = thread.join().expect("no panic");
        assert_eq!(i64::from(task.id.number), i64::from(number));
        assert_eq!(task.kin.process, me);
        assert!(task.runnable, "it looked at itself");
    }

    #[test]
    fn nobody_is_not_seen() {
        assert_eq!(Task::of(u32::MAX), None);
        assert!(!lives(u32::MAX));
        assert_eq!(name(u32::MAX), "");
    }

    #[test]
    fn inits_of_containers_are_inits() {
        assert_eq!(innermost("Tgid:\t70\nNSpid:\t70\t12\t1\nx: 1"), Some(1));
        assert_eq!(innermost("NSpid:\t70\t1\t12\n"), Some(12));
        assert_eq!(innermost("Tgid:\t1\n"), None);
        assert!(kin(1).is_some_and(|kin| kin.init));
    }

    #[test]
    fn who_is_seen_again_is_the_same_and_who_is_gone_is_forgotten() {
        let me = std::process::id();
        let mut looks = Looks::default();
        let nobody = BTreeSet::new();
        let first = looks.look([me, u32::MAX], &nobody, 1);
        let again = looks.look([me], &nobody, 1);
        assert_eq!((first.len(), looks.known.len()), (1, 1));
        assert_eq!((first[0].id, first[0].kin), (again[0].id, again[0].kin));
        // It would be seen running, were it looked at.
        let still = looks.look([me], &BTreeSet::from([first[0].id]), 1);
        assert_eq!((still[0].id, still[0].runnable), (first[0].id, false));
        looks.look([], &nobody, 1);
        assert!(looks.known.is_empty());
    }

    #[test]
    fn where_many_sleepers_wake_all_are_seen_at_once() {
        use std::sync::{Barrier, mpsc::channel};
        const SLEEPERS: u32 = 2 * RARE;
        let (wakes, ends) = (Barrier::new(SLEEPERS as usize + 1), AtomicBool::new(false));
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            for _ in 0..SLEEPERS {
                let tell = tell.clone();
                scope.spawn(|| {
                    let number = nix::unistd::gettid().as_raw();
                    tell.send(u32::try_from(number).expect("a number"))
                        .expect("heard");
                    drop(tell);
                    wakes.wait();
                    while !ends.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let numbers: Vec<u32> = told.iter().take(SLEEPERS as usize).collect();
            let until = |wanted: char| {
                let is = |number: &u32| stat(*number).is_some_and(|(state, _)| state == wanted);
                while !numbers.iter().all(is) {
                    std::thread::yield_now();
                }
            };
            let mut looks = Looks::default();
            let nobody = BTreeSet::new();
            let asleep = |known: &Known| known.slept >= SLEEPS;
            until('S');
            while looks.known.is_empty() || !looks.known.values().all(asleep) {
                looks.look(numbers.clone(), &nobody, 1);
            }
            let mut run = || {
                let seen = looks.look(numbers.clone(), &nobody, 1);
                seen.iter().filter(|task| task.runnable).count()
            };
            wakes.wait();
            until('R');
            let seen: Vec<usize> = (0..RARE).map(|_| run()).collect();
            ends.store(true, Ordering::Relaxed);
            let first = seen.iter().position(|run| *run > 0).expect("seen");
            assert_eq!(seen[first], SLEEPERS as usize, "{seen:?}");
        });
        let awake = |awake, looked_at| Awake { awake, looked_at }.many();
        assert!(awake(1, 1) && awake(1, AWAKE) && awake(3, 3 * AWAKE));
        assert!(!awake(0, 0) && !awake(1, AWAKE + 1));
    }

    #[test]
    fn a_sleeper_is_looked_at_rarely_and_seen_in_the_end() {
        let (wakes, ends) = (AtomicBool::new(false), AtomicBool::new(false));
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                tell.send(nix::unistd::gettid().as_raw()).expect("heard");
                while !wakes.load(Ordering::Relaxed) {
                    std::thread::park();
                }
                while !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let number = u32::try_from(told.recv().expect("told")).expect("a number");
            while stat(number).is_none_or(|(state, _)| state != 'S') {
                std::thread::yield_now();
            }
            // Its turn has just been when it wakes up.
            let mut looks = Looks {
                turn: number.wrapping_sub(SLEEPS),
                ..Looks::default()
            };
            let mut runs = || {
                let seen = looks.look([number], &BTreeSet::new(), 1).pop();
                seen.expect("alive").runnable
            };
            assert!((0..SLEEPS).all(|_| !runs()));
            wakes.store(true, Ordering::Relaxed);
            sleeper.thread().unpark();
            while stat(number).is_none_or(|(state, _)| state != 'R') {
                std::thread::yield_now();
            }
            let seen: Vec<bool> = (0..3 * RARE).map(|_| runs()).collect();
            ends.store(true, Ordering::Relaxed);
            let first = seen.iter().position(|runs| *runs).expect("seen");
            assert_eq!(first, RARE as usize - 1, "{seen:?}");
            assert!(seen[first..].iter().all(|runs| *runs), "{seen:?}");
        });
    }
}
