//! A QEMU that waits for a state.

use crate::{
    Exit, Machine, MachineRecord, QemuMachine, SchedBoost, Shell, VmmError, disk::Disk,
    inherited::StateFile, link::Link, qemu::Started, resources::KillOnDrop,
};
use async_trait::async_trait;
use futures::{FutureExt as _, future::BoxFuture};
use qapi::qmp;

/// A shell on QEMU.
#[derive(Debug)]
pub struct QemuShell {
    kill_on_drop: KillOnDrop,
    link: Link,
    record: MachineRecord,
    state_out: StateFile,
    state_in: StateFile,
    disk: Disk,
}

impl QemuShell {
    pub(crate) fn new(started: Started, state_in: StateFile, disk: Disk) -> Self {
        let Started {
            kill_on_drop,
            link,
            record,
            state_out,
        } = started;
        Self {
            kill_on_drop,
            link,
            record,
            state_out,
            state_in,
            disk,
        }
    }

    /// Cancel-safe: the shell stays as it is, or has taken the state.
    async fn take(&self, descriptor: &[u8]) -> Result<(), VmmError> {
        self.state_in.put(descriptor)?;
        let _precedence = SchedBoost::of(self.link.process());
        self.link
            .ask(qmp::migrate_incoming {
                uri: self.state_in.number().map(|number| format!("fd:{number}")),
                channels: None,
                exit_on_error: None,
            })
            .await?;
        // QEMU has begun to load and answers before it is done. Told to go on
        // meanwhile, it does so the moment the state is complete; a state it
        // cannot load is its death, and this says why a disk cannot be had.
        self.link.ask(qmp::cont {}).await?;
        self.link.resumed().await
    }
}

impl QemuShell {
    /// Takes a state, as [`Shell::load`] does.
    pub async fn load(self, descriptor: &[u8]) -> Result<QemuMachine, VmmError> {
        match self.take(descriptor).await {
            Ok(()) => {
                let resources = self.kill_on_drop.release();
                Ok(QemuMachine::new(
                    self.record,
                    self.link,
                    resources,
                    self.state_out,
                    self.disk,
                ))
            }
            Err(error) => Err(self.kill_on_drop.end_after(error).await),
        }
    }

    /// Ends it, as [`Shell::kill`] does.
    pub async fn kill(self) -> Result<(), VmmError> {
        self.kill_on_drop.end().await
    }
}

#[async_trait]
impl Shell for QemuShell {
    fn record(&self) -> &MachineRecord {
        &self.record
    }

    async fn load(self: Box<Self>, descriptor: &[u8]) -> Result<Box<dyn Machine>, VmmError> {
        Ok(Box::new(QemuShell::load(*self, descriptor).await?))
    }

    async fn kill(self: Box<Self>) -> Result<(), VmmError> {
        QemuShell::kill(*self).await
    }

    fn exited(&self) -> BoxFuture<'static, Exit> {
        self.link.process().exited().boxed()
    }
}
