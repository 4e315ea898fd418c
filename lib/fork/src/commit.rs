//! A VM's disk becomes an image.
//!
//! ```text
//! running: sync in the guest -> a checkpoint for the moment --+
//! stopped, checkpoint ----------------------------------------+-> one raw disk -> scrubbed -> image
//! ```
//!
//! | fails | then |
//! |---|---|
//! | the guest does not sync, or hold still | the VM runs on; no image |
//! | the disk cannot be read or scrubbed | the checkpoint is removed; no image |
//! | the daemon dies | the next one removes the checkpoint, and what the image was to be |

use crate::{Host, HostError, blocking};
use forkyard_agent_link::{Command, ExecOut};
use forkyard_guest_image::Scrub;
use forkyard_types::{
    CheckpointRequest, ExitStatus, ExportFormat, GuestImage, ImageCommitRequest, ImageName,
    SubstrateKind, VmId, VmName, VmState,
};
use forkyard_vm::{Vm, VmError};
use std::sync::Arc;
use tokio::time::timeout;
use tracing::instrument;

/// The agent's program in a guest.
const PROGRAM: &str = "/opt/forkyard/bin/forkyard-guest";
/// Prefix of the names of temporary checkpoints.
const PASSING: &str = "committing-";

impl Host {
    /// Makes an image of the disk of a VM, which runs on if it runs, without what is that VM's
    /// alone. Not cancel-safe: run it on a task of its own.
    #[instrument(skip_all, fields(name, vm = request.vm))]
    pub async fn commit(
        &self,
        name: &str,
        request: ImageCommitRequest,
    ) -> Result<GuestImage, HostError> {
        let name: ImageName = name
            .parse()
            .map_err(|error| HostError::Invalid(format!("{error}")))?;
        let (bases, wanted) = (self.parts.bases(), name.clone());
        blocking(move || bases.refuse_taken(&wanted)).await?;
        let vm = self.vm(&request.vm)?;
        let record = vm.record();
        Self::refuse_on_volume(&record, "its disk is the volume, and can be copied as that")?;
        let plan = self
            .lists()?
            .plan(SubstrateKind::Restricted, &[], &record.secrets, 0);
        let what = Scrub {
            remove: plan.remove,
            empty: plan.empty,
        };
        let passing = match record.state {
            VmState::Stopped | VmState::Checkpoint => None,
            VmState::Running => {
                self.sync(&vm).await?;
                Some(self.keep_for_now(&vm).await?)
            }
            VmState::Paused => Some(self.keep_for_now(&vm).await?),
            state @ (VmState::Starting | VmState::Warm | VmState::Ending) => {
                return Err(HostError::Vm(VmError::NotRunning {
                    vm: vm.name(),
                    state,
                }));
            }
        };
        let from = passing.as_ref().unwrap_or(&vm);
        let made = async {
            let disk = self
                .export_disk(from.id.as_str(), ExportFormat::Raw)
                .await?;
            let (bases, vm) = (self.parts.bases(), vm.name().to_string());
            let image = record.image.clone();
            let made = blocking(move || bases.commit(&name, (&vm, &image), disk.file, &what));
            Ok::<_, HostError>(made.await?)
        };
        let made = made.await;
        if let Some(passing) = passing {
            self.end(&passing, None).await;
        }
        made
    }

    async fn keep_for_now(&self, vm: &Arc<Vm>) -> Result<Arc<Vm>, HostError> {
        let name = format!("{PASSING}{}", VmId::random());
        let name = name
            .parse()
            .map_err(|_| HostError::Broken(format!("{name} is no name")))?;
        let request = CheckpointRequest {
            name: Some(name),
            ..CheckpointRequest::default()
        };
        self.checkpoint_of(vm, request, None).await
    }

    /// Has a guest write to its disk all that it has in memory of its files.
    async fn sync(&self, vm: &Arc<Vm>) -> Result<(), HostError> {
        let body = vm.answering()?;
        let command = Command::of_root(vec![PROGRAM.to_owned(), "sync".to_owned()]);
        let mut running = body.guest.exec(command).await?;
        let ended = async {
            loop {
                match running.next().await {
                    Some(ExecOut::Ended(ExitStatus::Code(0))) => return Ok(()),
                    Some(ExecOut::Lost(error)) => return Err(error.into()),
                    Some(ExecOut::Ended(_) | ExecOut::NotStarted(_)) | None => {
                        return Err(HostError::NotSynced { vm: vm.name() });
                    }
                    Some(ExecOut::Output { .. } | ExecOut::Started { .. } | ExecOut::Kept(_)) => {}
                }
            }
        };
        let late = HostError::NotSynced { vm: vm.name() };
        timeout(self.parts.options.to_prepare(vm.record().memory), ended)
            .await
            .unwrap_or(Err(late))
    }
}

/// True of the name of a checkpoint that a daemon has left which died over it.
pub(crate) fn is_passing(name: &VmName) -> bool {
    let rest = name.as_str().strip_prefix(PASSING);
    rest.is_some_and(|rest| rest.parse::<VmId>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_name_is_no_passing_one() {
        let is = |name: &str| is_passing(&name.parse().expect("a name"));
        assert!(is(&format!("{PASSING}{}", VmId::random())));
        assert!(!is("committing-web") && !is("committing-1") && !is("web"));
    }
}
