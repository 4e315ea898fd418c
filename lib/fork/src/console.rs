//! Output of a VM's guest on its serial console. It needs nothing of the guest,
//! not even the agent.

use crate::{Host, HostError, blocking};
use forkyard_vmm::console::{self, ConsoleOutput};

/// Output of a guest on its console, 1 MiB at most.
#[derive(Debug)]
pub enum ConsoleText {
    /// And may go on to say.
    Running(ConsoleOutput),
    /// Before its VM ended.
    Ended(Vec<u8>),
}

impl Host {
    /// Follows the console output of a VM's guest from now on. Cancel-safe.
    pub async fn listen(&self, vm: &str) -> Result<ConsoleOutput, HostError> {
        let body = self.vm(vm)?.running()?;
        let mut said = body.machine.console().follow().await?;
        said.so_far.clear();
        Ok(said)
    }

    /// Reads the console output of a VM's guest so far, and follows it if the
    /// VM runs. Cancel-safe.
    pub async fn said(&self, vm: &str) -> Result<ConsoleText, HostError> {
        let vm = self.vm(vm)?;
        match vm.running() {
            Ok(body) => Ok(ConsoleText::Running(body.machine.console().follow().await?)),
            Err(_) => {
                let dir = self.parts.folders.sockets(vm.id);
                let kept = blocking(move || Ok::<_, HostError>(console::kept(&dir)?));
                Ok(ConsoleText::Ended(kept.await?))
            }
        }
    }
}
