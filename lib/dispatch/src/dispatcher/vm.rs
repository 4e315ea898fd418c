//! A VM and its vCPU threads, as the dispatcher knows them.

use crate::{
    DispatchError, Step, Steps,
    freezer::{Frozen, Group},
    guard::Guard,
    place,
    protocol::Level,
    threads::{self, Watch},
};
use forkyard_sched::{DomainId, Params, VcpuId, World};
use forkyard_sys_host::sched::Class;
use std::io;

/// A vCPU's thread.
#[derive(Debug)]
pub(super) struct Vcpu {
    pub(super) index: u32,
    pub(super) tid: u32,
    pub(super) watch: Watch,
    /// Its name to the policy, while its turns are enforced.
    pub(super) id: Option<VcpuId>,
    pub(super) pinned: Option<u32>,
    pub(super) share: f64,
    pub(super) speed: f64,
    group: Option<Group>,
    /// Where it was allowed to run before.
    allowed: Vec<u32>,
    times: (u64, u64),
    sleeps: u64,
}

/// A VM.
#[derive(Debug)]
pub(super) struct Vm {
    pub(super) pid: u32,
    pub(super) started: u64,
    pub(super) name: String,
    pub(super) level: Level,
    pub(super) params: Params,
    pub(super) steps: Steps,
    pub(super) sleeps: f64,
    pub(super) domain: Option<DomainId>,
    pub(super) vcpus: Vec<Vcpu>,
}

impl Vm {
    /// Finds its vCPUs and begins to watch them.
    pub(super) fn attach(pid: u32, name: Option<String>) -> Result<Self, DispatchError> {
        let path = format!("/proc/{pid}");
        let started = threads::started(pid).map_err(DispatchError::host("watch", &path))?;
        let attach = |thread: threads::Thread| -> Result<Vcpu, DispatchError> {
            let watch = Watch::of(pid, thread.tid)?;
            let allowed = place::allowed(thread.tid);
            Ok(Vcpu {
                index: thread.index,
                tid: thread.tid,
                id: None,
                pinned: None,
                share: 0.0,
                speed: 1.0,
                group: None,
                allowed: allowed.map_err(DispatchError::host("see the CPUs of", &path))?,
                times: watch.times().unwrap_or_default(),
                sleeps: watch.sleeps().unwrap_or_default(),
                watch,
            })
        };
        let vcpus: Result<Vec<Vcpu>, DispatchError> =
            threads::vcpus(pid)?.into_iter().map(attach).collect();
        Ok(Self {
            pid,
            started,
            name: name.unwrap_or_else(|| pid.to_string()),
            level: Level::Observe,
            params: Params::default(),
            steps: Steps::default(),
            sleeps: 0.0,
            domain: None,
            vcpus: vcpus?,
        })
    }

    /// How far the dispatcher goes with it now.
    pub(super) fn now(&self) -> Level {
        match (self.level, self.steps.step()) {
            (Level::Enforce, Step::Down { .. }) => Level::Observe,
            (level, _) => level,
        }
    }

    /// What it had in the last period, of so many seconds.
    pub(super) fn measure(&mut self, world: &World, seconds: f64) {
        let mut slept = 0.0;
        for vcpu in &mut self.vcpus {
            slept += vcpu.measure(world, seconds);
        }
        let count = u32::try_from(self.vcpus.len()).unwrap_or(1).max(1);
        self.sleeps = slept / f64::from(count);
    }
}

impl Vcpu {
    /// Whether it may run.
    pub(super) fn frozen(&self) -> Frozen {
        self.group.as_ref().map_or(Frozen::No, Group::frozen)
    }

    /// Stops it or lets it go.
    pub(super) fn set(&mut self, frozen: Frozen) -> io::Result<()> {
        self.group
            .as_mut()
            .map_or(Ok(()), |group| group.set(frozen))
    }

    /// Gives it a group, of which the guard knows first.
    pub(super) fn group(&mut self, guard: &mut Guard) -> Result<(), DispatchError> {
        if self.group.is_none() {
            self.group = Some(Group::of(self.tid, |path| guard.add(path))?);
        }
        Ok(())
    }

    /// Keeps it on a CPU.
    pub(super) fn pin(&mut self, cpu: u32, guard: &mut Guard) -> io::Result<()> {
        if self.pinned == Some(cpu) {
            return Ok(());
        }
        if self.pinned.is_none() {
            guard.pinned(self.tid, &self.allowed)?;
        }
        place::pin(self.tid, &[cpu])?;
        self.pinned = Some(cpu);
        Ok(())
    }

    /// Undoes all that was done to it. What cannot be undone has gone with it.
    pub(super) fn let_go(&mut self, guard: &mut Guard) {
        if let Some(group) = self.group.take() {
            let path = group.path().to_owned();
            drop(group);
            let _ = guard.remove(&path);
        }
        if self.pinned.take().is_some() {
            let _ = place::pin(self.tid, &self.allowed);
            let _ = guard.unpinned(self.tid);
        }
        let _ = place::tell(self.tid, Class::Usual(0));
    }

    /// Sleeps a second.
    fn measure(&mut self, world: &World, seconds: f64) -> f64 {
        let times = self.watch.times().unwrap_or(self.times);
        let since = |now: u64, then: u64| forkyard_sched::Nanos(now.saturating_sub(then));
        let ran = since(times.0, self.times.0).as_secs_f64();
        // The kernel's waiting time does not count being frozen.
        let waited = match self.id {
            Some(id) => (seconds - ran).max(0.0) * f64::from(u8::from(world.waited(id).0 > 0)),
            None => since(times.1, self.times.1).as_secs_f64(),
        };
        let sleeps = self.watch.sleeps().unwrap_or(self.sleeps);
        let slept = since(sleeps, self.sleeps).as_f64() / seconds;
        self.share = ran / seconds;
        self.speed = match ran + waited > 0.0 {
            true => ran / (ran + waited),
            false => 1.0,
        };
        self.times = times;
        self.sleeps = sleeps;
        slept
    }
}
