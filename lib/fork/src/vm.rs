//! One VM as its host knows it.

use crate::{
    HostError, calls::Disjoint, generation::Generation, noted::Notes, requests::Requests,
    under_way::UnderWay,
};
use forkyard_capture::Region;
use forkyard_guestlink::{Cloned, Guest};
use forkyard_network::Subnet;
use forkyard_store::{FamilyNo, Store, StoreError, VmRecord};
use forkyard_types::{
    Address, ByteCount, FamilyId, Member, PAGE_SIZE, VmId, VmName, VmState, VmView,
};
use forkyard_vmm::Machine;
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use tokio::sync::{MutexGuard as AsyncGuard, watch};

/// A VM that exists: it runs, or its record waits for `rm`.
#[derive(Debug)]
pub(crate) struct Vm {
    pub id: VmId,
    pub network: Subnet,
    /// A ticket's clone: no more once it has ended, as a process after fork(2).
    pub ephemeral: bool,
    /// How it came about as a clone, if this daemon made it.
    pub cloned: Option<Cloned>,
    /// What its programs have asked.
    pub requests: Requests,
    /// What its programs have marked as disjoint access.
    pub disjoint: Mutex<Disjoint>,
    record: Mutex<VmRecord>,
    body: Mutex<Option<Arc<Body>>>,
    notes: Mutex<Notes>,
    /// Forks and checkpoints of it under way; none begins once it is being removed.
    pub forks: UnderWay,
    /// How many wait for the turn to fork it.
    wanting: watch::Sender<u32>,
    /// Why it does not answer, if it does not.
    silence: Mutex<Option<String>>,
    /// It was asked to end.
    stopping: AtomicBool,
    /// Boots again, and is recorded as stopped meanwhile.
    starting: AtomicBool,
    /// How often its console had said that it restarts when it came up.
    restarts: AtomicUsize,
    /// Held through a fork and through the VM's end: one at a time.
    pub turn: tokio::sync::Mutex<Turn>,
}

/// One who waits for a turn, until dropped.
struct Waiting<'a>(&'a watch::Sender<u32>);

/// A VM that boots again, until dropped.
pub(crate) struct Starting<'a>(&'a AtomicBool);

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

/// What runs.
#[derive(Debug)]
pub(crate) struct Body {
    pub machine: Box<dyn Machine>,
    pub guest: Guest,
    noted: OnceLock<bool>,
}

impl Body {
    pub fn new(machine: Box<dyn Machine>, guest: Guest) -> Self {
        Self {
            machine,
            guest,
            noted: OnceLock::new(),
        }
    }

    /// Whether the kernel notes writes to its memory, from the first time this
    /// is asked.
    pub fn is_noted(&self, memory: Region) -> bool {
        *self.noted.get_or_init(|| {
            let Some(log) = self.machine.write_log() else {
                return false;
            };
            let len = ByteCount(memory.pages.0 * PAGE_SIZE as u64);
            match log.watch(memory.start, len) {
                Ok(()) => true,
                Err(error) => {
                    tracing::info!(%error, "writes to memory are not noted");
                    false
                }
            }
        })
    }
}

/// What only the holder of the turn may touch.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// What the next fork will use, as far as it has been made.
    pub next: Option<Generation>,
}

impl Vm {
    pub fn new(record: VmRecord, network: Subnet, body: Option<Body>) -> Self {
        Self {
            id: record.id,
            network,
            ephemeral: false,
            cloned: None,
            requests: Requests::default(),
            disjoint: Mutex::default(),
            record: Mutex::new(record),
            body: Mutex::new(body.map(Arc::new)),
            notes: Mutex::default(),
            forks: UnderWay::default(),
            wanting: watch::Sender::new(0),
            silence: Mutex::default(),
            stopping: AtomicBool::default(),
            starting: AtomicBool::default(),
            restarts: AtomicUsize::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Its record as of now.
    pub fn record(&self) -> VmRecord {
        lock(&self.record).clone()
    }

    /// Place in the order of VMs: by age, then by place in the family.
    pub fn place(&self) -> (u64, FamilyId, Member) {
        let record = lock(&self.record);
        (record.created, record.family, record.member)
    }

    /// vCPUs that it was granted, if these may not be all it has.
    pub fn granted(&self) -> Option<u8> {
        lock(&self.record).birth?.granted
    }

    pub fn name(&self) -> VmName {
        lock(&self.record).name.clone()
    }

    /// Changes its record, in memory and in the store.
    pub fn change(
        &self,
        store: &Store,
        change: impl FnOnce(&mut VmRecord),
    ) -> Result<(), StoreError> {
        let mut record = lock(&self.record);
        let mut changed = record.clone();
        change(&mut changed);
        store.put_vm(&changed)?;
        *record = changed;
        Ok(())
    }

    /// What runs of it, or the error that nothing does.
    pub fn body(&self) -> Result<Arc<Body>, HostError> {
        lock(&self.body).clone().ok_or_else(|| {
            let (vm, state) = (self.name(), self.state());
            match lock(&self.silence).clone() {
                Some(why) => HostError::Silent { vm, why },
                None => HostError::NotRunning { vm, state },
            }
        })
    }

    /// The turn, for a fork: whoever has it only to tidy up gives it up.
    pub async fn turn_to_fork(&self) -> AsyncGuard<'_, Turn> {
        self.wanting.send_modify(|waiting| *waiting += 1);
        let _waiting = Waiting(&self.wanting);
        self.turn.lock().await
    }

    /// Resolves once somebody waits for the turn to fork it.
    pub fn wanted(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut wanting = self.wanting.subscribe();
        async move {
            // A VM that is gone is wanted by nobody, and by then not folded.
            let _ = wanting.wait_for(|waiting| *waiting > 0).await;
        }
    }

    pub fn is_wanted(&self) -> bool {
        *self.wanting.borrow() > 0
    }

    /// It does not answer, for this reason; or it does again.
    pub fn note_silence(&self, why: Option<String>) {
        *lock(&self.silence) = why;
    }

    /// Why it does not answer, if it does not.
    pub fn silence(&self) -> Option<String> {
        lock(&self.silence).clone()
    }

    /// It was asked to end, or no longer is.
    pub fn note_stopping(&self, is: bool) {
        self.stopping.store(is, Ordering::SeqCst);
    }

    /// Whether it was asked to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// It boots again, until what this returns is dropped.
    pub fn starting(&self) -> Starting<'_> {
        self.starting.store(true, Ordering::SeqCst);
        Starting(&self.starting)
    }

    /// Its state, as users see it.
    fn state(&self) -> VmState {
        let recorded = lock(&self.record).state;
        match recorded == VmState::Stopped && self.starting.load(Ordering::SeqCst) {
            true => VmState::Starting,
            false => recorded,
        }
    }

    /// Its console has said so often that it restarts.
    pub fn note_restarts(&self, said: usize) {
        self.restarts.store(said, Ordering::SeqCst);
    }

    /// How often its console had said that it restarts when it came up.
    pub fn restarts(&self) -> usize {
        self.restarts.load(Ordering::SeqCst)
    }

    /// What is known of the writes to its memory.
    pub fn notes(&self) -> MutexGuard<'_, Notes> {
        lock(&self.notes)
    }

    /// It runs from here on.
    pub fn embody(&self, body: Body) {
        *lock(&self.body) = Some(Arc::new(body));
    }

    /// The same machine, connected to again.
    pub fn replace_body(&self, body: Arc<Body>) {
        *lock(&self.body) = Some(body);
    }

    /// Its QEMU has ended, or is about to be ended by the caller.
    pub fn take_body(&self) -> Option<Arc<Body>> {
        lock(&self.body).take()
    }

    /// Whether it booted: its family began with it.
    pub fn is_founder(&self) -> bool {
        lock(&self.record).birth.is_none()
    }

    /// Whether it is an instant that a guest had kept.
    pub fn is_guests_checkpoint(&self) -> bool {
        let record = lock(&self.record);
        record.state == VmState::Checkpoint && record.request.is_some()
    }

    /// What runs of it, or the error that it stands still or does not run.
    pub fn awake(&self) -> Result<Arc<Body>, HostError> {
        match self.is_paused() {
            true => Err(HostError::Paused { vm: self.name() }),
            false => self.body(),
        }
    }

    /// The running part of a VM whose agent answers; otherwise the error that says why it cannot.
    pub fn answering(&self) -> Result<Arc<Body>, HostError> {
        let body = self.awake()?;
        match self.silence() {
            Some(why) => Err(HostError::Silent {
                vm: self.name(),
                why,
            }),
            None => Ok(body),
        }
    }

    /// Whether it runs as far as is recorded, or would if it were not paused.
    pub fn is_running(&self) -> bool {
        [VmState::Running, VmState::Paused].contains(&lock(&self.record).state)
    }

    pub fn is_paused(&self) -> bool {
        lock(&self.record).state == VmState::Paused
    }

    /// Clones kept warm for its next fork; none to be seen while one is under way.
    pub fn warm_shells(&self) -> u16 {
        let Ok(turn) = self.turn.try_lock() else {
            return 0;
        };
        let shells = turn.next.as_ref().map_or(0, |next| next.shells.len());
        u16::try_from(shells).unwrap_or(u16::MAX)
    }

    /// As the API shows it.
    pub fn view(&self) -> VmView {
        let pid = lock(&self.body)
            .as_ref()
            .map(|body| body.machine.record().process.pid);
        let state = self.state();
        let record = lock(&self.record);
        VmView {
            id: record.id,
            name: record.name.clone(),
            state,
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
            silence: lock(&self.silence).clone(),
            host: None,
            awaits: Vec::new(),
            failure: record.failure.clone(),
        }
    }
}

/// A VM's place on its family's network follows from its place in the family.
pub(crate) fn address(network: Subnet, record: &VmRecord) -> Address {
    network
        .address(record.member)
        .unwrap_or_else(|| network.founder())
}

/// The network of a family follows from its number.
pub(crate) fn network_of(number: FamilyNo) -> Result<Subnet, HostError> {
    Subnet::of(number.0)
        .ok_or_else(|| HostError::Invalid(format!("family number {} has no network", number.0)))
}

/// Nothing here leaves a value half changed: a panic elsewhere is no reason
/// to refuse everyone after.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
