//! State of the guest's vCPUs: running or stopped.

use forkyard_vmm::RunState;
use std::sync::{Condvar, Mutex};

#[derive(Debug)]
pub struct Vcpus {
    state: Mutex<RunState>,
    changed: Condvar,
}

impl Vcpus {
    pub fn new(waits: bool) -> Self {
        let state = if waits {
            RunState::Waiting
        } else {
            RunState::Running
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    pub fn state(&self) -> RunState {
        *self.state.lock().expect("no holder panics")
    }

    pub fn set(&self, state: RunState) {
        *self.state.lock().expect("no holder panics") = state;
        self.changed.notify_all();
    }

    /// Does something as the guest: once the vCPUs run, and while they do.
    pub fn running<T>(&self, work: impl FnOnce() -> T) -> T {
        let state = self.state.lock().expect("no holder panics");
        let stands = |state: &mut RunState| *state != RunState::Running;
        let _runs = self
            .changed
            .wait_while(state, stands)
            .expect("no holder panics");
        work()
    }
}
