//! Commands to one QEMU process, whose death is told from a refusal.

use crate::{Exit, QmpError, VmmError, process::Process, qmp::Qmp};
use qapi::qmp::QmpCommand;
use std::{path::Path, time::Duration};

/// Time a process may take to end after it has closed its monitor.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A process and the connection to its monitor.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) qmp: Qmp,
    process: Process,
}

impl Link {
    /// Connects to the monitor of a process. Cancel-safe.
    pub(crate) async fn open(
        process: Process,
        socket: &Path,
        patience: Duration,
    ) -> Result<Self, VmmError> {
        match Qmp::connect(socket, patience).await {
            Ok(qmp) => Ok(Self { qmp, process }),
            Err(source) => Err(blame(&process, "qmp_capabilities", source).await),
        }
    }

    /// Carries out a command. Cancel-safe as [`Qmp::execute`] is.
    pub(crate) async fn ask<C>(&self, command: C) -> Result<C::Ok, VmmError>
    where
        C: QmpCommand + Send + 'static,
        C::Ok: Send + 'static,
    {
        match self.qmp.execute(command).await {
            Ok(answer) => Ok(answer),
            Err(source) => Err(blame(&self.process, C::NAME, source).await),
        }
    }

    /// Carries out a command of the monitor for humans. Cancel-safe likewise.
    pub(crate) async fn ask_human(&self, line: &str) -> Result<String, VmmError> {
        self.ask(qapi::qmp::human_monitor_command {
            command_line: line.to_owned(),
            cpu_index: None,
        })
        .await
    }

    /// Waits until the vCPUs run. Cancel-safe.
    pub(crate) async fn resumed(&self) -> Result<(), VmmError> {
        match self.qmp.resumed().await {
            Ok(()) => Ok(()),
            Err(source) => Err(blame(&self.process, "cont", source).await),
        }
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }
}

/// Returns why a command failed: if the connection broke, most likely because the
/// process died, and its last words say more.
async fn blame(process: &Process, command: &'static str, source: QmpError) -> VmmError {
    let broken = match &source {
        QmpError::Connect { .. } | QmpError::Greeting { .. } | QmpError::Closed => true,
        QmpError::Refused { .. } | QmpError::Answer { .. } | QmpError::Timeout { .. } => false,
    };
    if broken && let Ok(exit) = tokio::time::timeout(LAST_WORDS, process.exited()).await {
        let Exit { status, stderr } = exit;
        let pid = process.id().pid;
        return VmmError::Died {
            pid,
            status,
            stderr,
        };
    }
    VmmError::Qmp { command, source }
}
