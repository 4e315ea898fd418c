//! A VM that stands still because its user wants it to.
//!
//! It holds still as for a fork, and then its vCPUs stop: so it can be forked
//! as it stands, with no word from its guest. It is recorded last and forgotten
//! first: a daemon that dies midway leaves a VM that the next one lets go on.

use crate::{
    Host, HostError,
    life::{Body, Life},
    vm::{Vm, lock},
};
use forkyard_types::{ForkId, VmView};
use std::time::Duration;

impl Host {
    /// Has a VM stand still until [`Host::resume`]; the daemon's end changes
    /// nothing. No error if it does. Not cancel-safe: run it on a task of its own.
    pub async fn pause(&self, vm: &str) -> Result<VmView, HostError> {
        let vm = self.vm(vm)?;
        let _one = vm.sleep.lock().await;
        self.pause_vm(&vm).await?;
        self.is_where_wanted(&vm);
        Ok(vm.view())
    }

    pub(crate) async fn pause_vm(&self, vm: &Vm) -> Result<(), HostError> {
        let _turn = vm.turn.lock().await;
        let body = vm.body()?;
        if vm.is_paused() {
            return Ok(());
        }
        hold(&body, self.options.to_hold_still()).await?;
        if let Err(error) = vm.enter(&self.store, Life::Paused(body.clone()), |_| {}) {
            go_on(&body).await?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Lets a paused VM go on. No error if it runs. Not cancel-safe: run it on
    /// a task of its own.
    pub async fn resume(&self, vm: &str) -> Result<VmView, HostError> {
        let vm = self.vm(vm)?;
        let _one = vm.sleep.lock().await;
        self.unpause(&vm).await?;
        drop(vm.uses.begin());
        self.is_where_wanted(&vm);
        Ok(vm.view())
    }

    pub(crate) async fn unpause(&self, vm: &Vm) -> Result<(), HostError> {
        let _turn = vm.turn.lock().await;
        let body = vm.body()?;
        if let Some(moving) = lock(&vm.moving).clone() {
            return Err(HostError::Moving {
                vm: vm.name(),
                host: moving.peer,
            });
        }
        if vm.is_paused() {
            vm.enter(&self.store, Life::Running(body.clone()), |_| {})?;
            go_on(&body).await?;
        }
        Ok(())
    }
}

/// Has a guest hold still within that time, and stops it. If that fails it goes on.
pub(crate) async fn hold(body: &Body, patience: Duration) -> Result<(), HostError> {
    body.guest.quiesce(ForkId::random(), patience).await?;
    if let Err(error) = body.machine.stop().await {
        // It may have stopped all the same, and only its answer was late.
        go_on(body).await?;
        return Err(error.into());
    }
    Ok(())
}

pub(crate) async fn go_on(body: &Body) -> Result<(), HostError> {
    body.machine.cont().await?;
    Ok(body.guest.resume().await?)
}
