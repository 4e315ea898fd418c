//! One VM as its host knows it.

use crate::{
    Attached, Life, RunningVm, Turn, UnderWay, Uses, VmError, events, ports::Places, turn::Turns,
};
use forkyard_agent_link::Cloned;
use forkyard_events::Broadcast;
use forkyard_network::Subnet;
use forkyard_records::{Moving, Records, RecordsError, VmRecord};
use forkyard_types::{Address, FamilyId, Member, Terms, VmId, VmName, VmState, VmView};
use std::{
    any::Any,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

/// A VM that exists: it runs, or its record waits for `rm`.
#[derive(Debug)]
pub struct Vm {
    /// Id.
    pub id: VmId,
    /// Network of its family.
    pub network: Subnet,
    /// A ticket's clone: no more once it has ended, as a process after fork(2).
    pub ephemeral: bool,
    /// Origin as a clone, if this daemon made it.
    pub cloned: Option<Cloned>,
    record: Mutex<VmRecord>,
    /// Locked after the record, where both are.
    life: Mutex<Life>,
    /// Broadcast of its changes, once it is listed.
    events: OnceLock<Broadcast>,
    /// Forks and checkpoints of it under way; none begins once it is being removed.
    pub forks: UnderWay,
    /// Connections to its ports.
    pub(crate) ports: Places,
    /// Host on which it may run instead, if another host was asked to let it go on there.
    pub moving: Mutex<Option<Moving>>,
    /// Labels, environment, and its end.
    pub terms: Mutex<Terms>,
    /// Commands, copies and connections from outside.
    pub uses: Uses,
    /// Held while it is put to sleep for want of use, or woken.
    pub sleep: tokio::sync::Mutex<()>,
    turns: Turns,
    /// State of what is built on VMs.
    attached: Attached,
}

impl Vm {
    /// A VM in this state, which its record says as well.
    pub fn new(record: VmRecord, network: Subnet, life: Life) -> Self {
        Self {
            id: record.id,
            network,
            ephemeral: false,
            cloned: None,
            record: Mutex::new(record),
            life: Mutex::new(life),
            events: OnceLock::new(),
            forks: UnderWay::default(),
            ports: Places::default(),
            moving: Mutex::default(),
            terms: Mutex::default(),
            uses: Uses::default(),
            sleep: tokio::sync::Mutex::default(),
            turns: Turns::default(),
            attached: Attached::default(),
        }
    }

    /// Has its changes be told from here on.
    pub fn tell(&self, events: &Broadcast) {
        // Those of its host, at every call.
        let _ = self.events.set(events.clone());
    }

    /// Returns the record as of now.
    pub fn record(&self) -> VmRecord {
        lock(&self.record).clone()
    }

    /// Place in the order of VMs: by age, then by place in the family.
    pub fn place(&self) -> (u64, FamilyId, Member) {
        let record = lock(&self.record);
        (record.created, record.family, record.member)
    }

    /// Name as of now.
    pub fn name(&self) -> VmName {
        lock(&self.record).name.clone()
    }

    /// Changes its record, in memory and in the store.
    pub fn change(
        &self,
        store: &Records,
        change: impl FnOnce(&mut VmRecord),
    ) -> Result<(), RecordsError> {
        let mut record = lock(&self.record);
        let mut changed = record.clone();
        change(&mut changed);
        store.put_vm(&changed)?;
        *record = changed;
        Ok(())
    }

    /// Enters a state and changes its record, in memory and in the store.
    pub fn enter(
        &self,
        store: &Records,
        life: Life,
        change: impl FnOnce(&mut VmRecord),
    ) -> Result<(), RecordsError> {
        let mut record = lock(&self.record);
        let mut changed = record.clone();
        change(&mut changed);
        if let Some(state) = life.recorded() {
            changed.state = state;
        }
        store.put_vm(&changed)?;
        let before = std::mem::replace(&mut *record, changed);
        self.replace_life(life, &before, &record);
        Ok(())
    }

    /// Enters a state that is in the store already.
    pub fn entered(&self, life: Life) {
        let mut record = lock(&self.record);
        let before = record.clone();
        if let Some(state) = life.recorded() {
            record.state = state;
        }
        self.replace_life(life, &before, &record);
    }

    /// Enters a state that says of its record what that says already.
    pub fn pass(&self, life: Life) {
        let record = lock(&self.record);
        self.replace_life(life, &record, &record);
    }

    /// Puts it into a state, and tells of that if users see another one.
    fn replace_life(&self, life: Life, before: &VmRecord, after: &VmRecord) {
        // The end of a machine is told of once it is clear what comes after it.
        let told = |life: &Life, record: &VmRecord| match life {
            Life::Ending => record.state,
            Life::Starting { .. }
            | Life::Running(_)
            | Life::Paused(_)
            | Life::Unreached { .. }
            | Life::Stopped
            | Life::Checkpoint => life.shown(),
        };
        let to = told(&life, after);
        let former = std::mem::replace(&mut *lock(&self.life), life);
        let from = told(&former, before);
        if let Some(events) = self.events.get()
            && from != to
        {
            events::changed(events, after, from, to);
        }
    }

    /// Notes why its agent or machine does not answer; none: it does again.
    pub fn set_unresponsive(&self, body: &RunningVm, why: Option<String>) {
        let before = body.set_unresponsive(why.clone());
        if let Some(events) = self.events.get()
            && before != why
        {
            events::silent(events, &self.record(), why);
        }
    }

    /// Returns the present state.
    pub fn life(&self) -> Life {
        lock(&self.life).clone()
    }

    /// Returns the running machine, or the error that nothing runs.
    pub fn running(&self) -> Result<Arc<RunningVm>, VmError> {
        let life = lock(&self.life);
        if let Some(body) = life.running() {
            return Ok(body.clone());
        }
        let (state, silence) = (life.shown(), life.silence());
        drop(life);
        let vm = self.name();
        Err(match silence {
            Some(why) => VmError::Silent { vm, why },
            None => VmError::NotRunning { vm, state },
        })
    }

    /// Waits for the turn to change this VM: forks, its end and all else that takes more than one step
    /// come one after the other, in the order of their requests. Cancel-safe: the place in the queue is given
    /// up.
    pub async fn turn(&self) -> Turn<'_> {
        self.turns.next().await
    }

    /// The turn, for a fork: a holder that only tidies up gives it up. Cancel-safe, as [`turn`](Self::turn)
    /// is.
    pub async fn turn_to_fork(&self) -> Turn<'_> {
        self.turns.next_to_fork().await
    }

    /// The turn, if nothing has it.
    pub fn try_turn(&self) -> Option<Turn<'_>> {
        self.turns.try_next()
    }

    /// Resolves once a request waits for the turn to fork it.
    pub fn wanted(&self) -> impl Future<Output = ()> + Send + use<> {
        self.turns.wanted()
    }

    /// Tells whether a request waits for the turn to fork it.
    pub fn is_wanted(&self) -> bool {
        self.turns.is_wanted()
    }

    /// State of this type that a layer above keeps with the VM: the default, until it is changed.
    pub fn attached<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        self.attached.of()
    }

    /// Returns why it does not answer, if it does not.
    pub fn silence(&self) -> Option<String> {
        lock(&self.life).silence()
    }

    /// Sets the running machine: another connection to the same one.
    pub fn set_running(&self, body: Arc<RunningVm>) {
        let mut life = lock(&self.life);
        let replaced = match &*life {
            Life::Running(_) => Life::Running(body),
            Life::Paused(_) => Life::Paused(body),
            Life::Starting { .. }
            | Life::Unreached { .. }
            | Life::Ending
            | Life::Stopped
            | Life::Checkpoint => return,
        };
        *life = replaced;
    }

    /// Takes its machine, which has ended or is about to be ended by the caller.
    pub fn take_running(&self) -> Option<Arc<RunningVm>> {
        let mut life = lock(&self.life);
        let body = life.running()?.clone();
        *life = Life::Ending;
        Some(body)
    }

    /// Tells whether the VM was booted: its family began with it.
    pub fn is_founder(&self) -> bool {
        lock(&self.record).birth.is_none()
    }

    /// Tells whether the VM is an instant that a guest had kept.
    pub fn is_guests_checkpoint(&self) -> bool {
        let record = lock(&self.record);
        record.state == VmState::Checkpoint && record.request.is_some()
    }

    /// Returns the running machine, or the error that it is paused or does not
    /// run.
    pub fn awake(&self) -> Result<Arc<RunningVm>, VmError> {
        let moving = lock(&self.moving);
        let vm = self.name();
        match (self.is_paused(), moving.as_ref()) {
            (true, Some(Moving { peer, .. })) => Err(VmError::Moving {
                vm,
                host: peer.clone(),
            }),
            (true, None) => Err(VmError::Paused { vm }),
            (false, _) => self.running(),
        }
    }

    /// The running part of a VM whose agent answers; otherwise the error that says why it cannot.
    pub fn answering(&self) -> Result<Arc<RunningVm>, VmError> {
        let body = self.awake()?;
        match self.silence() {
            Some(why) => Err(VmError::Silent {
                vm: self.name(),
                why,
            }),
            None => Ok(body),
        }
    }

    /// The running part of a VM that can be forked: it stands still, or its agent answers.
    pub fn forkable(&self) -> Result<Arc<RunningVm>, VmError> {
        match self.is_paused() {
            true => self.running(),
            false => self.answering(),
        }
    }

    /// Tells whether the VM is paused to be handed over to another host.
    pub fn is_moving(&self) -> bool {
        lock(&self.moving).is_some()
    }

    /// Tells whether the VM runs as far as is known, or would if it were not
    /// paused.
    pub fn is_running(&self) -> bool {
        lock(&self.life).is_running()
    }

    /// Tells whether its user wants it to stand still.
    pub fn is_paused(&self) -> bool {
        lock(&self.life).is_paused()
    }

    /// As the API shows it.
    pub fn view(&self) -> VmView {
        let terms = lock(&self.terms).clone();
        // Held: a VM is paused to be handed over only while this says so.
        let moving = lock(&self.moving);
        let record = lock(&self.record);
        let life = self.life();
        let pid = life.running().map(|body| body.machine.record().process.pid);
        VmView {
            id: record.id,
            name: record.name.clone(),
            state: life.shown(),
            family: record.family,
            member: record.member,
            parent: record.birth.map(|birth| birth.parent),
            fork: record.birth.and_then(|birth| birth.fork),
            epoch: record.epoch,
            image: record.image.clone(),
            vcpus: record.vcpus,
            granted: record.birth.and_then(|birth| birth.granted),
            memory: record.memory,
            address: address(self.network, &record),
            published: Vec::new(),
            pid,
            accel: record.accel.clone(),
            created: record.created,
            silence: life.silence(),
            memory_wait_percent: life.memory_wait(),
            host: None,
            moving: moving.as_ref().map(|moving| moving.peer.clone()),
            awaits: Vec::new(),
            failure: record.failure.clone(),
            labels: terms.labels,
            ends: terms.ends,
            idle: terms.idle,
            asleep: terms.asleep,
            restart: terms.restart,
            starts: terms.restarts.due,
        }
    }
}

/// A VM's place on its family's network follows from its place in the family.
pub fn address(network: Subnet, record: &VmRecord) -> Address {
    network
        .address(record.member)
        .unwrap_or_else(|| network.founder())
}

/// Nothing here leaves a value half changed: a panic elsewhere is no reason
/// to refuse all later ones.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
