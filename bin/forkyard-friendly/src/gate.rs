//! Has processes that begin while there is no room wait before they do anything.
//!
//! ```text
//! kernel --a program begins--> gate --no room: into the frozen group, and says so--> agent
//!        --a process ends----> gate --one waits: let it in-------------------------> agent
//!                               ^--how many more may run, which run, which go--------'
//! ```
//!
//! A process that has made several that wait is put into the frozen group, too, until few do,
//! if it is a process of one thread: of several the others may have work to do. The agent
//! passes over it.
//!
//! The kernel tells before the first instruction of the program. On several CPUs it runs
//! a little until it is stopped; on one, whose last word this thread has, hardly.

use crate::{
    events::{Event, Events},
    exempt::Exempt,
    group::Group,
    guard::{Guard, Word},
    stopper::{Hold, Stopper},
    tasks::{self, Task, TaskId},
    wake::Wake,
};
use forkyard_friendly::{Admission, Makers, ThreadState};
use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
};

/// State that the gate decides by: processes, by their numbers.
#[derive(Debug, Default)]
struct Shared {
    admission: Admission<u32>,
    makers: Makers<u32, TaskId>,
    exempt: Exempt,
}

/// Ways in which processes that begin come in.
#[derive(Debug)]
pub enum Passage {
    /// As they always did: nothing else was wished yet.
    Free,
    /// Past a gate.
    Gate(Gate),
    /// As they always did, for there can be no gate here.
    Gateless,
}

/// The gate, from the agent's side. Processes that begin go once it is dropped.
#[derive(Debug)]
pub struct Gate {
    shared: Arc<Mutex<Shared>>,
    hold: Arc<Hold>,
    held: Receiver<Task>,
    /// Those that were stopped before the last look had its say, and are not told of yet.
    late: Vec<Task>,
    /// Thread of the gate, which ends if the kernel reports no more.
    keeper: Option<JoinHandle<()>>,
}

impl Passage {
    /// Has a gate for a group, if there is none yet and if there can be one; the guard
    /// hears of it. A process that is to wait is held as the stopper would. The agent is told when
    /// one waits and there may be room.
    pub fn open(
        &mut self,
        group: &Group,
        stopper: &Stopper,
        guard: &mut Guard,
        tell: &Sender<Wake>,
    ) {
        if !matches!(self, Self::Free) {
            return;
        }
        let gate = stopper.hold().and_then(|hold| {
            guard.tell(Word::Hears)?;
            Gate::open(group.clone(), hold, tell.clone())
        });
        *self = match gate {
            Ok(gate) => Self::Gate(gate),
            Err(error) => {
                eprintln!(
                    "forkyard-friendly: no process can be kept waiting before it begins ({error}): \
                     over the limit they begin, and are stopped as others are"
                );
                Self::Gateless
            }
        };
    }

    /// Tells whether there is a gate.
    pub fn is_there(&self) -> bool {
        match self {
            Self::Gate(gate) => gate.keeper.as_ref().is_some_and(|one| !one.is_finished()),
            Self::Free | Self::Gateless => false,
        }
    }

    /// Those that were stopped since the last call.
    pub fn held(&mut self) -> impl Iterator<Item = Task> {
        let gate = match self {
            Self::Gate(gate) => Some(gate),
            Self::Free | Self::Gateless => None,
        };
        gate.into_iter()
            .flat_map(|gate| gate.late.drain(..).chain(gate.held.try_iter()))
    }

    /// Takes the result of a look: see [`Admission::look`]. A process stopped since the
    /// agent was last told of any stands still, whatever was seen of it.
    pub fn look(
        &mut self,
        room: (u32, u32),
        there: impl IntoIterator<Item = (u32, ThreadState)>,
        exempt: &Exempt,
    ) -> io::Result<()> {
        let Self::Gate(gate) = self else {
            return Ok(());
        };
        let mut shared = locked(&gate.shared);
        gate.late.extend(gate.held.try_iter());
        let late = gate.late.iter().map(|task| task.kin.process);
        let late: BTreeSet<u32> = late.collect();
        let there = there.into_iter().filter(|(id, _)| !late.contains(id));
        let still = late.iter().map(|&id| (id, ThreadState::StandsStill));
        let there: Vec<(u32, ThreadState)> = there.chain(still).collect();
        let still = there
            .iter()
            .filter(|(_, does)| *does == ThreadState::StandsStill);
        let still: BTreeSet<u32> = still.map(|(id, _)| *id).collect();
        shared.admission.look(room, there);
        if shared.exempt != *exempt {
            shared.exempt.clone_from(exempt);
        }
        let makers = shared.makers.keep(|child| still.contains(&child));
        all_go(&gate.hold, makers)
    }

    /// Makers that are stopped, of which the agent knows nothing else.
    pub fn makers(&self) -> BTreeSet<TaskId> {
        match self {
            Self::Gate(gate) => locked(&gate.shared).makers.still().clone(),
            Self::Free | Self::Gateless => BTreeSet::new(),
        }
    }

    /// Those in the frozen group that the agent has not put there, nor heard of, by their
    /// numbers.
    pub fn inside(&mut self) -> BTreeSet<u32> {
        let Self::Gate(gate) = self else {
            return BTreeSet::new();
        };
        // Processes that are in it by now have been told of.
        let shared = locked(&gate.shared);
        gate.late.extend(gate.held.try_iter());
        let late = gate.late.iter().map(|task| task.id.number);
        let makers = shared.makers.still().iter().map(|maker| maker.number);
        late.chain(makers).collect()
    }

    /// Returns the number of waiting processes that may go: see
    /// [`Admission::room`].
    pub fn room(&self) -> usize {
        match self {
            Self::Gate(gate) => locked(&gate.shared).admission.room(),
            Self::Free | Self::Gateless => 0,
        }
    }

    /// These processes have waited, and go.
    pub fn go(&self, processes: &[u32]) -> io::Result<()> {
        let Self::Gate(gate) = self else {
            return Ok(());
        };
        let mut shared = locked(&gate.shared);
        shared.admission.go(processes.iter().copied());
        let makers = processes.iter().filter_map(|id| shared.makers.goes(*id));
        all_go(&gate.hold, makers)
    }

    /// Lets processes that begin go until the next look, and those that make
    /// others.
    pub fn leave_open(&self) -> io::Result<()> {
        match self {
            Self::Gate(gate) => gate.leave_open(),
            Self::Free | Self::Gateless => Ok(()),
        }
    }
}

impl Gate {
    fn open(group: Group, hold: Hold, tell: Sender<Wake>) -> io::Result<Self> {
        let events = Events::hear()?;
        let shared = Arc::new(Mutex::new(Shared::default()));
        let (stopped, held) = channel();
        let hold = Arc::new(hold);
        let keeper = Keeper {
            group,
            hold: hold.clone(),
            shared: shared.clone(),
            stopped,
            tell,
        };
        let keep = move || {
            // Else a process has long begun when it is stopped.
            let _ = forkyard_sys_guest::first::go_first();
            if let Err(error) = keeper.keep(&events) {
                eprintln!("forkyard-friendly: no more is heard of new processes: {error}");
            }
        };
        Ok(Self {
            shared,
            hold,
            held,
            late: Vec::new(),
            keeper: Some(thread::Builder::new().name("gate".into()).spawn(keep)?),
        })
    }

    fn leave_open(&self) -> io::Result<()> {
        let mut shared = locked(&self.shared);
        shared.admission.open();
        all_go(&self.hold, shared.makers.keep(|_| false))
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // The guard lets all go.
        let _ = self.leave_open();
    }
}

fn all_go(hold: &Hold, makers: impl IntoIterator<Item = TaskId>) -> io::Result<()> {
    makers.into_iter().try_for_each(|maker| hold.go(maker))
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of the gate's thread.
struct Keeper {
    group: Group,
    hold: Arc<Hold>,
    shared: Arc<Mutex<Shared>>,
    stopped: Sender<Task>,
    tell: Sender<Wake>,
}

impl Keeper {
    fn keep(&self, events: &Events) -> io::Result<()> {
        loop {
            let wake = match events.wait()? {
                Event::Exec(process) => self.begins(process).then_some(Wake::Waits),
                Event::Exit(process) => self.ends(process)?.then_some(Wake::Room),
                // A look finds out.
                Event::Lost => None,
            };
            if let Some(wake) = wake {
                // There is no receiver if the agent is on its way out.
                let _ = self.tell.send(wake);
            }
        }
    }

    /// Notes the beginning of a process; tells whether it is the first that waits. The lock is
    /// held until it stands still, so that the owner that drops the gate finds it either
    /// stopped or on its way.
    fn begins(&self, process: u32) -> bool {
        let mut shared = locked(&self.shared);
        // Mostly there is room, and it does not matter which one it is.
        if shared.admission.lets_in(process) {
            shared.admission.begins(process);
            return false;
        }
        // File by file, for where CPUs are emulated each is dear.
        if !self.group.has(process) {
            return false;
        }
        let Some(task) = Task::of(process) else {
            return false;
        };
        if shared.exempt.spares(&task, &task.name) {
            return false;
        }
        let first = !shared.admission.anybody_waits();
        shared.admission.begins(process);
        match self.hold.stop(process) {
            Ok(()) => {
                self.made(&task, &mut shared);
                self.stopped.send(task).is_ok() && first
            }
            // It goes, and a look finds it.
            Err(_) => shared.admission.ends(process),
        }
    }

    /// One waits: so may its maker.
    fn made(&self, task: &Task, shared: &mut Shared) {
        let Some((maker, alone)) = tasks::alone(task.parent) else {
            return;
        };
        // A stopped one was on its way, and in no other group than the frozen one by now.
        let known = shared.makers.still().contains(&maker);
        if !shared.makers.waits(task.kin.process, maker) {
            return;
        }
        let may = known || (alone && self.may_stop(maker, &shared.exempt));
        if !may || self.hold.stop(maker.number).is_err() {
            shared.makers.spare(maker);
        }
    }

    fn may_stop(&self, id: TaskId, exempt: &Exempt) -> bool {
        let task = self.group.has(id.number).then(|| Task::of(id.number));
        let is = |task: Task| task.id == id && !exempt.spares(&task, &task.name);
        task.flatten().is_some_and(is)
    }

    /// Notes the end of a process; tells whether another may be let in for it.
    fn ends(&self, process: u32) -> io::Result<bool> {
        let mut shared = locked(&self.shared);
        all_go(&self.hold, shared.makers.goes(process))?;
        Ok(shared.admission.ends(process))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, process::id};

    /// A gate without a kernel at it: what it is told of comes from the test.
    fn gate() -> (Passage, Sender<Task>) {
        let (stopped, held) = channel();
        let gate = Gate {
            shared: Arc::default(),
            hold: Arc::new(useless()),
            held,
            late: Vec::new(),
            keeper: None,
        };
        (Passage::Gate(gate), stopped)
    }

    /// Nothing can be written there.
    fn useless() -> Hold {
        let [held, free] = [(); 2].map(|()| File::open("/dev/null").expect("opened"));
        Hold::of(held, free)
    }

    fn this_process() -> Task {
        Task::of(id()).expect("alive")
    }

    #[test]
    fn a_gate_whose_thread_has_ended_is_none() {
        let (mut passage, _stopped) = gate();
        assert!(!passage.is_there() && !Passage::Gateless.is_there());
        let (end, told) = channel();
        if let Passage::Gate(gate) = &mut passage {
            gate.keeper = Some(thread::spawn(move || told.recv().expect("told")));
        }
        assert!(passage.is_there());
        end.send(()).expect("heard");
        while passage.is_there() {
            thread::yield_now();
        }
    }

    #[test]
    fn who_was_stopped_while_a_look_was_under_way_waits_and_is_told_of_once() {
        let (mut passage, stopped) = gate();
        let task = this_process();
        stopped.send(task.clone()).expect("heard");
        // The look has seen it before it was stopped.
        let looked = passage.look((2, 1), [(id(), ThreadState::Runs)], &Exempt::default());
        looked.expect("nobody is to be let go");
        assert_eq!(passage.room(), 1, "room, and one that waits");
        assert_eq!(passage.held().collect::<Vec<_>>(), [task]);
        assert_eq!(passage.held().count(), 0);
        passage.go(&[id()]).expect("it has no maker here");
        assert_eq!(passage.room(), 0, "it has gone");
    }

    #[test]
    fn one_that_cannot_be_stopped_is_not_waited_for() {
        let (stopped, held) = channel();
        let (tell, _told) = channel();
        let shared: Arc<Mutex<Shared>> = Arc::default();
        // No room: a process that begins is to wait.
        locked(&shared).admission.look((0, 0), []);
        let (task, group) = (
            this_process(),
            Group::of_this_process().expect("in a group"),
        );
        assert!(group.has(id()) && !Exempt::default().spares(&task, &task.name));
        let keeper = Keeper {
            group,
            hold: Arc::new(useless()),
            shared: shared.clone(),
            stopped,
            tell,
        };
        assert!(!keeper.begins(id()), "nobody is to be woken for it");
        assert!(!locked(&shared).admission.anybody_waits());
        assert_eq!(held.try_iter().count(), 0, "nor told that it stands still");
    }
}
