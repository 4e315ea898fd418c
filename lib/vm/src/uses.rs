//! Uses of a VM from outside: counted, so that one that is not used can be put to sleep.

use crate::{RunningVm, Vm, VmError, alive::Lost};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Uses of a VM by the API: commands, sessions, copies, connections to its ports.
#[derive(Debug, Default)]
pub struct Uses(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    under_way: AtomicU32,
    begun: AtomicU64,
}

/// A use of a VM, until dropped.
#[derive(Debug)]
#[must_use = "the VM counts as not used once this is dropped"]
pub struct InUse(Arc<Counts>);

impl Uses {
    /// Counts one more.
    pub fn begin(&self) -> InUse {
        self.0.under_way.fetch_add(1, Ordering::SeqCst);
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        InUse(self.0.clone())
    }

    /// Tells whether there are any now.
    pub fn are_under_way(&self) -> bool {
        self.0.under_way.load(Ordering::SeqCst) > 0
    }

    /// Those that have ever begun.
    pub fn begun(&self) -> u64 {
        self.0.begun.load(Ordering::SeqCst)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A VM that is used, and awake: its commands, files and ports. The use lasts as long as this, or as
/// what it has begun.
#[derive(Debug)]
pub struct Used {
    pub(crate) vm: Arc<Vm>,
    pub(crate) in_use: InUse,
    /// Time for which the guest may be silent before what waits for it fails.
    pub(crate) patience: Duration,
}

impl Used {
    /// A VM that was woken if it slept, under an operator's patience.
    pub fn new(vm: Arc<Vm>, in_use: InUse, patience: Duration) -> Self {
        Self {
            vm,
            in_use,
            patience,
        }
    }

    /// Types on the console; waits while the guest does not read. Cancel-safe: all is typed or
    /// nothing.
    pub async fn type_in(&self, typed: Vec<u8>) -> Result<(), VmError> {
        let body = self.vm.running()?;
        match body.machine.console().write(typed).await {
            true => Ok(()),
            false => Err(VmError::NoConsole { vm: self.vm.name() }),
        }
    }

    pub(crate) fn answering(&self) -> Result<Arc<RunningVm>, VmError> {
        self.vm.answering()
    }

    /// Resolves when the guest has been silent for too long, with the reason. Cancel-safe.
    pub(crate) fn lost(&self) -> Lost {
        Lost::new(self.vm.silent_for(self.patience))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_counted_while_they_last_and_remembered_after() {
        let uses = Uses::default();
        let (one, two) = (uses.begin(), uses.begin());
        drop(one);
        assert!(uses.are_under_way());
        drop(two);
        assert!(!uses.are_under_way());
        assert_eq!(uses.begun(), 2);
    }
}
