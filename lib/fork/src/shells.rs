//! Shells over an instant that is not taken now: one that was kept here, or one
//! that comes from another host.

use crate::{
    Host, HostError,
    fork::{Wanted, assign},
    generation::WarmShell,
    vm::Vm,
};
use forkyard_disk::Backing;
use forkyard_network::Link;
use forkyard_types::ImageId;
use std::path::PathBuf;

/// What shells lie over.
#[derive(Clone, Debug)]
pub(crate) struct Over {
    /// Their memory.
    pub memory: ImageId,
    /// Their disk.
    pub disk: Backing,
    /// Where an empty slice over it may be for a moment.
    pub template: PathBuf,
}

/// Clones wanted and a shell for each, as far as there are, and why not for the
/// others.
pub(crate) type Assigned = (Vec<(Wanted, Option<WarmShell>)>, Vec<HostError>);

impl Host {
    /// Makes a shell for each clone wanted, and lets the network know who they
    /// will be. An error if there is none at all.
    pub(crate) async fn shells_over(
        &self,
        source: &Vm,
        over: &Over,
        wanted: &[Wanted],
    ) -> Result<Assigned, HostError> {
        if wanted.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        self.images
            .create_slice(&over.template, &over.disk, None)
            .await?;
        let (shells, mut failed) = self
            .make_shells(source, over.memory, &over.template, wanted.len())
            .await;
        self.remove_files(std::slice::from_ref(&over.template));
        if shells.is_empty() {
            return Err(failed
                .pop()
                .unwrap_or_else(|| HostError::Invalid("no clone was wanted".into())));
        }
        let assigned = assign(wanted, shells);
        self.admit(source, &assigned).await?;
        Ok((assigned, failed))
    }

    /// Makes a family's network unless it is there: after a restart of the host it
    /// is not, nor where the family comes from another one. And joins it with that of
    /// the family on other hosts, as far as these are known.
    pub(crate) async fn need_network(&self, vm: &Vm) -> Result<(), HostError> {
        let family = vm.record().family;
        if !self.network.has_link(Link::Bridge(family)) {
            let known = self.store.networks()?.into_iter();
            let mut own = known.filter(|(known, _)| known.id == family);
            let policy = own.next().map(|(_, policy)| policy).unwrap_or_default();
            self.network
                .create_family(family, vm.network, &policy, None)
                .await?;
        }
        self.stretch(family).await
    }
}
