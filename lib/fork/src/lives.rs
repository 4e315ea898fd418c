//! Changes in the lives of this host's VMs, for those that wait for them.

use forkyard_vmm::Verdict;
use std::sync::Arc;
use tokio::sync::{Notify, OnceCell, watch};

/// Changes in the lives of this host's VMs, for those that wait for them.
#[derive(Debug)]
pub(crate) struct Lives {
    /// Told whenever a clone has ended.
    pub ended: Notify,
    /// True once the state that an earlier daemon left is known; no guest is
    /// answered before.
    pub settled: watch::Sender<bool>,
    /// Told whenever a VM's end may have moved.
    pub terms_changed: Arc<Notify>,
    /// Accelerator that executes guests here, with the reason, once a VM has
    /// booted.
    pub accel: OnceCell<Verdict>,
}

impl Default for Lives {
    fn default() -> Self {
        Self {
            ended: Notify::new(),
            settled: watch::Sender::new(false),
            terms_changed: Arc::default(),
            accel: OnceCell::new(),
        }
    }
}
