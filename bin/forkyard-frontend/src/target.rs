//! A VM that a service leads to: what hosts say of it, its health, and what it has to do.

use forkyard_frontend::{Candidate, Health, HostName, ProbeOutcome, Sighting, Sights};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use tokio::sync::Semaphore;

/// A VM, as one service sees it.
#[derive(Debug)]
pub struct Target {
    /// Name or id.
    pub vm: String,
    sights: Mutex<Sights>,
    health: Mutex<Health>,
    open: AtomicUsize,
    /// Places for requests by HTTP.
    pub requests: Arc<Semaphore>,
}

/// A connection or request that a target has, until dropped.
#[derive(Debug)]
pub struct InUse(Arc<Target>);

impl Target {
    /// One that no host has told of.
    pub fn new(vm: &str, hosts: impl IntoIterator<Item = HostName>, requests: usize) -> Self {
        Self {
            vm: vm.to_owned(),
            sights: Mutex::new(Sights::new(hosts)),
            health: Mutex::default(),
            open: AtomicUsize::new(0),
            requests: Arc::new(Semaphore::new(requests)),
        }
    }

    /// Takes down what a host says; tells if that is new.
    pub fn see(&self, host: &HostName, seen: &Sighting) -> bool {
        lock(&self.sights).see(host, seen.clone())
    }

    /// Returns the host at which it runs, by that host's word.
    pub fn place(&self) -> Option<HostName> {
        lock(&self.sights).place().cloned()
    }

    /// Returns the hosts to ask for a connection, in order.
    pub fn routes(&self) -> Vec<HostName> {
        lock(&self.sights).routes()
    }

    /// Returns what a choice goes by.
    pub fn candidate(&self) -> Candidate {
        Candidate {
            standing: lock(&self.sights).standing(),
            health: *lock(&self.health),
            open: self.open.load(Relaxed),
        }
    }

    /// Takes down the outcome of a probe or a connection, unless the VM has moved since it was at
    /// `place`; tells if the target became sick or well by it.
    pub fn probed(
        &self,
        probe: ProbeOutcome,
        place: Option<&HostName>,
        fall: u8,
    ) -> Option<Health> {
        if probe == ProbeOutcome::Failed && (place.is_none() || self.place().as_ref() != place) {
            return None;
        }
        let mut health = lock(&self.health);
        let before = *health;
        *health = before.after(probe, fall);
        (before.may_be_chosen() != health.may_be_chosen()).then_some(*health)
    }

    /// Counts a connection or request.
    pub fn used(self: &Arc<Self>) -> InUse {
        self.open.fetch_add(1, Relaxed);
        InUse(Arc::clone(self))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole at every moment.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
