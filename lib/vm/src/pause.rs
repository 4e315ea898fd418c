//! A VM that stands still because its user wants it to.
//!
//! The guest holds still as for a fork, and then the vCPUs stop: so a paused VM can be forked as it
//! stands, with no word from its guest. The pause is recorded last and forgotten first: a daemon that
//! dies midway leaves a VM that the next one lets go on.

use crate::{Life, RunningVm, Vm, VmError, lock};
use forkyard_records::Records;
use forkyard_types::ForkId;
use std::time::Duration;

impl Vm {
    /// Has the VM stand still, within that time, until it is let go on. No error if it does. Not
    /// cancel-safe.
    pub async fn pause(&self, store: &Records, patience: Duration) -> Result<(), VmError> {
        let _turn = self.turn().await;
        let body = self.running()?;
        if self.is_paused() {
            return Ok(());
        }
        self.answering()?.hold(patience).await?;
        if let Err(error) = self.enter(store, Life::Paused(body.clone()), |_| {}) {
            body.go_on().await?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Lets a paused VM go on. No error if it runs. Not cancel-safe.
    pub async fn unpause(&self, store: &Records) -> Result<(), VmError> {
        let _turn = self.turn().await;
        let body = self.running()?;
        if let Some(moving) = lock(&self.moving).clone() {
            return Err(VmError::Moving {
                vm: self.name(),
                host: moving.peer,
            });
        }
        if self.is_paused() {
            self.enter(store, Life::Running(body.clone()), |_| {})?;
            body.go_on().await?;
        }
        Ok(())
    }
}

impl RunningVm {
    /// Has the guest hold still within that time, and stops it. If that fails it goes on. Not cancel-safe: it
    /// may stand still for good. Call it from a task that runs to its end.
    pub async fn hold(&self, patience: Duration) -> Result<(), VmError> {
        self.guest.quiesce(ForkId::random(), patience).await?;
        if let Err(error) = self.machine.stop().await {
            // It may have stopped all the same, and only its answer was late.
            self.go_on().await?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Lets the vCPUs go on, and the guest's programs. Not cancel-safe: the vCPUs may run while the programs
    /// hold still. A second call lets these go on.
    pub async fn go_on(&self) -> Result<(), VmError> {
        self.machine.cont().await?;
        Ok(self.guest.resume().await?)
    }
}
