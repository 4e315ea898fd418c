//! A VM and its vCPU threads, as the dispatcher knows them.

use crate::{
    DispatchError, Habits, Step, Steps,
    freezer::{Frozen, ThreadGroup},
    guard::Before,
    mechanism::{Hands, Mechanism},
    place,
    protocol::Level,
    threads::{self, Watch},
};
use forkyard_sched::{DomainId, Nanos, Parallel, Params, Policy, VcpuId, World};
use forkyard_sys_host::sched::Class;
use std::io;

/// A vCPU's thread.
#[derive(Debug)]
pub(super) struct Vcpu {
    pub(super) index: u32,
    pub(super) tid: u32,
    pub(super) watch: Watch,
    /// Id in the policy, while its turns are enforced.
    pub(super) id: Option<VcpuId>,
    pub(super) pinned: Option<u32>,
    pub(super) account: Account,
    hold: Hold,
    before: Before,
    /// True if the host was told of another class for it.
    told: bool,
    /// Permission to run, by its own group and its VM's.
    frozen: Frozen,
    /// Since when it is frozen, if it is.
    frozen_since: Nanos,
    seen: Seen,
}

/// With what its turns are enforced.
#[derive(Debug)]
enum Hold {
    Nothing,
    /// A group of the freezer.
    Group(ThreadGroup),
    /// A queue of sched_ext, whose class it is of.
    Queue,
}

/// A vCPU's account as of the last judgement.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    sleeps: u64,
    /// Number and length of its freezes since, which the kernel counts as
    /// sleeps too, and as time neither running nor waiting.
    freezes: u64,
    frozen: Nanos,
    /// The kernel's time running and waiting.
    times: (u64, u64),
    waited: Nanos,
}

/// CPU time of one vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    /// The part of a CPU, and its speed, in the last period.
    pub(super) share: f64,
    pub(super) speed: f64,
    /// Time that turns gave it, and that it waited for them, before its
    /// present name.
    given: Nanos,
    waited: Nanos,
    /// The kernel's time running and waiting, and its wait for turns, at the
    /// end of the last period.
    times: (u64, u64),
    turns: Nanos,
}

/// A VM.
#[derive(Debug)]
pub(super) struct Vm {
    pub(super) pid: u32,
    pub(super) started: u64,
    pub(super) name: String,
    /// The level that was asked for, and whether a policy was ever named for it.
    pub(super) asked: Option<Level>,
    pub(super) named: bool,
    /// Level that follows from that.
    pub(super) level: Level,
    pub(super) params: Params,
    pub(super) steps: Steps,
    /// As last judged.
    pub(super) habits: Habits,
    pub(super) domain: Option<DomainId>,
    pub(super) vcpus: Vec<Vcpu>,
    /// The group that its vCPUs' are in.
    pub(super) nest: Option<ThreadGroup>,
    /// Since when its habits are looked at.
    watched: Nanos,
}

/// Chooses the level of a VM: as asked. Else one for which a policy was named is
/// enforced, but co-scheduled only if its vCPUs are known to wait for each other:
/// others would lose by it.
pub(super) fn level(asked: Option<Level>, named: bool, policy: Policy, params: &Params) -> Level {
    match (asked, named) {
        (Some(level), _) => level,
        (None, false) => Level::Observe,
        (None, true) if place::keeps_apart(policy) && params.parallel == Parallel::No => {
            Level::Place
        }
        (None, true) => Level::Enforce,
    }
}

impl Vm {
    /// Finds its vCPUs, by their names or as told, and begins to watch them.
    pub(super) fn attach(
        pid: u32,
        name: Option<String>,
        tids: Option<&[u32]>,
        now: Nanos,
    ) -> Result<Self, DispatchError> {
        let started = threads::started(pid).map_err(DispatchError::of_process(pid, "watch"))?;
        let found = match tids {
            Some(tids) => threads::given(pid, tids)?,
            None => threads::vcpus(pid)?,
        };
        let vcpus: Result<Vec<Vcpu>, DispatchError> = { found.into_iter() }
            .map(|thread| Vcpu::attach(pid, thread))
            .collect();
        Ok(Self {
            pid,
            started,
            name: name.unwrap_or_else(|| pid.to_string()),
            asked: None,
            named: false,
            level: Level::Observe,
            params: Params::default(),
            steps: Steps::default(),
            habits: Habits::default(),
            domain: None,
            vcpus: vcpus?,
            nest: None,
            watched: now,
        })
    }

    /// Returns the present level of the dispatcher's intervention.
    pub(super) fn now(&self) -> Level {
        match (self.level, self.steps.step()) {
            (Level::Enforce, Step::Down { .. } | Step::Alone) => Level::Observe,
            (level, _) => level,
        }
    }

    /// Tells whether these are its vCPUs' threads.
    pub(super) fn has(&self, tids: &[u32]) -> bool {
        let mine = self.vcpus.iter().map(|vcpu| vcpu.tid);
        mine.eq(tids.iter().copied())
    }

    /// Tells what it had in the last period.
    pub(super) fn measure(&mut self, world: &World, period: Nanos) {
        for vcpu in &mut self.vcpus {
            vcpu.measure(world, period.as_secs_f64());
        }
    }

    /// Looks at its habits from now on.
    pub(super) fn watch_anew(&mut self, world: &World) {
        self.watched = world.now;
        for vcpu in &mut self.vcpus {
            vcpu.seen = Seen {
                sleeps: vcpu.watch.sleeps().unwrap_or(vcpu.seen.sleeps),
                freezes: 0,
                frozen: Nanos::ZERO,
                times: vcpu.watch.times().unwrap_or(vcpu.seen.times),
                waited: vcpu.waited(world),
            };
            vcpu.frozen_since = world.now;
        }
    }

    /// Returns its habits since they were last looked at; nothing if that is less
    /// than this long ago.
    pub(super) fn habits(&mut self, world: &World, at_least: Nanos) -> Option<Habits> {
        let time = world.now.minus(self.watched);
        if time < at_least {
            return None;
        }
        let slept = |vcpu: &Vcpu| {
            let sleeps = vcpu.watch.sleeps().unwrap_or(vcpu.seen.sleeps);
            let slept = sleeps.saturating_sub(vcpu.seen.sleeps);
            Nanos(slept.saturating_sub(vcpu.seen.freezes)).as_f64()
        };
        let asleep = |vcpu: &Vcpu| vcpu.asleep(world.now, time).as_secs_f64();
        let waited = |vcpu: &Vcpu| vcpu.waited(world).minus(vcpu.seen.waited).as_secs_f64();
        let count = u32::try_from(self.vcpus.len()).unwrap_or(1).max(1);
        let all = f64::from(count) * time.as_secs_f64();
        self.habits = Habits {
            sleeps: self.vcpus.iter().map(slept).sum::<f64>() / all,
            asleep: self.vcpus.iter().map(asleep).sum::<f64>() / all,
            waits: self.vcpus.iter().map(waited).sum::<f64>() / all,
        };
        self.watch_anew(world);
        Some(self.habits)
    }
}

impl Vcpu {
    fn attach(pid: u32, thread: threads::Thread) -> Result<Self, DispatchError> {
        let threads::Thread { index, tid } = thread;
        let path = format!("/proc/{pid}/task/{tid}");
        let watch = Watch::of(pid, tid)?;
        let before = Before {
            cpus: place::allowed(tid).map_err(DispatchError::host("see the CPUs of", &path))?,
            nice: watch.niceness().unwrap_or(0),
        };
        let account = Account {
            speed: 1.0,
            times: watch.times().unwrap_or_default(),
            ..Account::default()
        };
        Ok(Self {
            index,
            tid,
            id: None,
            pinned: None,
            account,
            hold: Hold::Nothing,
            before,
            told: false,
            frozen: Frozen::No,
            frozen_since: Nanos::ZERO,
            seen: Seen {
                sleeps: watch.sleeps().unwrap_or_default(),
                times: account.times,
                ..Seen::default()
            },
            watch,
        })
    }

    /// Returns its permission to run.
    pub(super) fn frozen(&self) -> Frozen {
        self.frozen
    }

    /// Tells whether it has the means by which turns are enforced.
    pub(super) fn is_held(&self) -> bool {
        !matches!(self.hold, Hold::Nothing)
    }

    /// Stops it or lets it go, as far as its own group goes.
    pub(super) fn set(&mut self, frozen: Frozen) -> io::Result<()> {
        match &mut self.hold {
            Hold::Group(group) => group.set(frozen),
            Hold::Nothing | Hold::Queue => Ok(()),
        }
    }

    /// Notes that it was stopped or let go.
    pub(super) fn note(&mut self, frozen: Frozen, now: Nanos) {
        if !matches!(self.hold, Hold::Group(_)) {
            return;
        }
        match (self.frozen, frozen) {
            (Frozen::No, Frozen::Yes) => {
                self.seen.freezes += 1;
                self.frozen_since = now;
            }
            (Frozen::Yes, Frozen::No) => self.seen.frozen += now.minus(self.frozen_since),
            (Frozen::Yes, Frozen::Yes) | (Frozen::No, Frozen::No) => {}
        }
        self.frozen = frozen;
    }

    /// Returns the part of the time since it was last looked at that it slept,
    /// of its own accord.
    fn asleep(&self, now: Nanos, time: Nanos) -> Nanos {
        let still = match self.frozen() {
            Frozen::Yes => now.minus(self.frozen_since),
            Frozen::No => Nanos::ZERO,
        };
        let (ran, waited) = self.watch.times().unwrap_or(self.seen.times);
        let awake =
            ran.saturating_sub(self.seen.times.0) + waited.saturating_sub(self.seen.times.1);
        time.minus(self.seen.frozen + still).minus(Nanos(awake))
    }

    /// Gives it what its turns are enforced with, on these CPUs: of the freezer, a group
    /// in its VM's, if that has one. The guard knows first.
    pub(super) fn take(
        &mut self,
        cpus: &[u32],
        within: Option<&ThreadGroup>,
        hands: &mut Hands,
    ) -> Result<(), DispatchError> {
        if self.is_held() {
            return Ok(());
        }
        match &mut hands.mechanism {
            Mechanism::Freezer => {
                let group = ThreadGroup::of(self.tid, within, |path| hands.guard.add(path))?;
                self.hold = Hold::Group(group);
            }
            Mechanism::SchedExt(scheduler) => {
                scheduler.take(self.tid)?;
                self.hold = Hold::Queue;
                let path = format!("/proc/{}", self.tid);
                // It has a CPU when it has a turn, whatever it might run on before.
                self.tell(Class::External(self.before.nice), hands)
                    .and_then(|()| place::pin(self.tid, cpus))
                    .map_err(DispatchError::host("give to sched_ext", path))?;
            }
        }
        Ok(())
    }

    /// Keeps it on a CPU.
    pub(super) fn pin(&mut self, cpu: u32, hands: &mut Hands) -> io::Result<()> {
        if self.pinned == Some(cpu) {
            return Ok(());
        }
        self.tell_guard(hands)?;
        place::pin(self.tid, &[cpu])?;
        self.pinned = Some(cpu);
        Ok(())
    }

    /// Has the host schedule it so.
    pub(super) fn tell(&mut self, class: Class, hands: &mut Hands) -> io::Result<()> {
        self.tell_guard(hands)?;
        place::tell(self.tid, class)?;
        self.told = true;
        Ok(())
    }

    fn tell_guard(&self, hands: &mut Hands) -> io::Result<()> {
        match self.pinned.is_none() && !self.told {
            true => hands.guard.changes(self.tid, &self.before),
            false => Ok(()),
        }
    }

    /// Lets it run, anywhere it might before. Its group stays, for the next time.
    pub(super) fn rest(&mut self, hands: &mut Hands, now: Nanos) {
        self.note(Frozen::No, now);
        if let Err(error) = self.set(Frozen::No) {
            // Its VM may have ended; else a group that does not thaw is no use.
            tracing::debug!(tid = self.tid, %error, "not thawed");
            self.drop_group(hands);
        }
        let queued = matches!(self.hold, Hold::Queue);
        if self.pinned.is_none() && !self.told && !queued {
            return;
        }
        // A thread that has ended is on no CPU.
        if std::mem::take(&mut self.told) {
            let _ = place::tell(self.tid, Class::Usual(self.before.nice));
        }
        if self.pinned.take().is_some() || queued {
            let _ = place::pin(self.tid, &self.before.cpus);
        }
        if queued {
            self.drop_queue(hands);
        }
        let _ = hands.guard.is_as_before(self.tid);
    }

    /// Removes its group, which lets it go. What cannot be undone has gone with it.
    pub(super) fn drop_group(&mut self, hands: &mut Hands) {
        if let Hold::Group(group) = &self.hold {
            let path = group.path().to_owned();
            self.hold = Hold::Nothing;
            let _ = hands.guard.remove(&path);
        }
    }

    fn drop_queue(&mut self, hands: &mut Hands) {
        self.hold = Hold::Nothing;
        if let Mechanism::SchedExt(scheduler) = &mut hands.mechanism
            && let Err(error) = scheduler.forget(self.tid)
        {
            tracing::warn!(tid = self.tid, %error, "a queue is left");
        }
    }

    /// Closes the account of its name to the policy, which it loses.
    pub(super) fn close(&mut self, world: &World) -> Option<VcpuId> {
        let (given, waited) = (self.given(world), self.waited(world));
        self.account.given = given;
        self.account.waited = waited;
        self.id.take()
    }

    /// Time that turns have given it.
    pub(super) fn given(&self, world: &World) -> Nanos {
        self.account.given + self.id.map_or(Nanos::ZERO, |id| world.ran(id))
    }

    /// Time it has waited for its turns.
    pub(super) fn waited(&self, world: &World) -> Nanos {
        self.account.waited + self.id.map_or(Nanos::ZERO, |id| world.waited(id))
    }

    fn measure(&mut self, world: &World, seconds: f64) {
        let times = self.watch.times().unwrap_or(self.account.times);
        let turns = self.waited(world);
        let account = &mut self.account;
        let since = |now: u64, then: u64| Nanos(now.saturating_sub(then)).as_secs_f64();
        let ran = since(times.0, account.times.0);
        // The kernel's waiting time does not count being frozen.
        let waited = match self.id {
            Some(_) => turns.minus(account.turns).as_secs_f64(),
            None => since(times.1, account.times.1),
        };
        account.share = ran / seconds;
        account.speed = match ran + waited > 0.0 {
            true => ran / (ran + waited),
            false => 1.0,
        };
        account.times = times;
        account.turns = turns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_guests_that_wait_for_themselves_are_co_scheduled_unasked() {
        let of = |parallel| Params {
            parallel,
            ..Params::default()
        };
        let (yes, no) = (of(Parallel::Yes), of(Parallel::No));
        let unasked = |named, policy, params| level(None, named, policy, params);
        assert_eq!(unasked(false, Policy::Sbco, &yes), Level::Observe);
        assert_eq!(unasked(true, Policy::Sbco, &yes), Level::Enforce);
        assert_eq!(unasked(true, Policy::Sbco, &no), Level::Place);
        assert_eq!(unasked(true, Policy::Credit, &no), Level::Enforce);
        let asked = level(Some(Level::Enforce), false, Policy::Sbco, &no);
        assert_eq!(asked, Level::Enforce);
    }

    #[test]
    fn a_process_that_is_not_there_is_the_requests_fault() {
        let error = Vm::attach(0, None, None, Nanos(0)).expect_err("no process");
        assert_eq!(error.blame(), crate::error::Blame::Request, "{error}");
    }
}
