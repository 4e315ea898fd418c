//! Shells over the layout of a snapshot: complete clones-to-be, which wait for memory and
//! devices.

use super::Layout;
use crate::{
    Host, HostError,
    fork::{Wanted, assign},
};
use forkyard_agent_link::{CallId, Growth, Guest, Request};
use forkyard_disk::copy_template;
use forkyard_network::Link;
use forkyard_records::VmRecord;
use forkyard_types::VmId;
use forkyard_vmm::{Machine, MachineSpec, Shell, ShellSpec, VmmError, files};
use futures::{StreamExt, stream};
use std::{
    num::NonZeroU8,
    path::{Path, PathBuf},
};
use tokio::sync::mpsc;

/// Shells started at once: QEMU starts are short and CPU-bound.
pub(crate) const AT_ONCE: usize = 4;

/// A clone-to-be: complete, and waiting for its memory and state.
#[derive(Debug)]
pub(crate) struct WarmShell {
    pub record: VmRecord,
    pub shell: Vessel,
    pub guest: Guest,
    pub calls: mpsc::Receiver<(CallId, Request)>,
}

/// The machine of a clone-to-be.
#[derive(Debug)]
pub(crate) enum Vessel {
    /// A shell that waits for memory and state.
    Shell(Box<dyn Shell>),
    /// A machine that has them. Its guest has woken, waits for an identity, and stands still with all
    /// its vCPUs.
    Woken(Box<dyn Machine>),
}

impl Vessel {
    /// Has its guest run; a shell takes the state first, and the vCPUs and the disk that it is to have.
    /// If that
    /// fails it has ended, or is ended with its record.
    pub async fn load(
        self,
        devices: &[u8],
        growth: Option<Growth>,
    ) -> Result<Box<dyn Machine>, VmmError> {
        match self {
            Self::Shell(shell) => {
                let machine = shell.load(devices).await?;
                if let Some(total) = growth.and_then(|growth| NonZeroU8::new(growth.vcpus)) {
                    machine.add_vcpus(total).await?;
                }
                if let Some(size) = growth.map(|it| it.disk).filter(|size| size.0 > 0) {
                    machine.grow_disk(size).await?;
                }
                Ok(machine)
            }
            Self::Woken(machine) => {
                machine.cont().await?;
                Ok(machine)
            }
        }
    }

    /// Ends it.
    pub async fn kill(self) -> Result<(), VmmError> {
        match self {
            Self::Shell(shell) => shell.kill().await,
            Self::Woken(machine) => machine.kill().await,
        }
    }
}

/// Clones wanted and a shell for each, as far as there are, and why not for the
/// others.
pub(crate) type Assigned = (Vec<(Wanted, Option<WarmShell>)>, Vec<HostError>);

impl Host {
    /// Makes a shell for each clone wanted, over a snapshot that exists, and lets the
    /// network know their identity. `template` is where an empty slice over its disk may
    /// be for a moment. An error if there is no shell at all.
    pub(crate) async fn shells_over(
        &self,
        layout: &Layout,
        template: &Path,
        wanted: &[Wanted],
    ) -> Result<Assigned, HostError> {
        if wanted.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        self.slice_over(&layout.disk, template).await?;
        let (shells, mut failed) = self.make_shells(layout, template, wanted.len()).await;
        self.parts.remove_files(&[template.to_owned()]);
        if shells.is_empty() {
            return Err(failed
                .pop()
                .unwrap_or_else(|| HostError::Invalid("no clone was wanted".into())));
        }
        let assigned = assign(wanted, shells);
        self.admit(layout, &assigned).await?;
        Ok((assigned, failed))
    }

    /// Makes the shell of this id, as [`shells_over`](Self::shells_over) makes several.
    pub(crate) async fn shell_over(
        &self,
        layout: &Layout,
        template: &Path,
        (id, wanted): (VmId, &[Wanted]),
    ) -> Result<Assigned, HostError> {
        // Of two VMs of one id the second would be recorded as the first.
        if self.parts.store.vms()?.iter().any(|record| record.id == id) {
            return Err(HostError::Invalid(format!(
                "a VM of id {id} is here already"
            )));
        }
        self.slice_over(&layout.disk, template).await?;
        let shell = self.shell_as(layout, template, id, |record| record).await;
        self.parts.remove_files(&[template.to_owned()]);
        let assigned = assign(wanted, vec![shell?]);
        self.admit(layout, &assigned).await?;
        Ok((assigned, Vec::new()))
    }

    /// Makes shells over a layout and copies of a template; an error for each that failed.
    pub(crate) async fn make_shells(
        &self,
        layout: &Layout,
        template: &Path,
        count: usize,
    ) -> (Vec<WarmShell>, Vec<HostError>) {
        let made: Vec<_> = stream::iter(0..count)
            .map(|_| self.make_shell(layout, template))
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let (mut shells, mut failed) = (Vec::new(), Vec::new());
        for shell in made {
            match shell {
                Ok(shell) => shells.push(shell),
                Err(error) => failed.push(error),
            }
        }
        (shells, failed)
    }

    async fn make_shell(&self, layout: &Layout, template: &Path) -> Result<WarmShell, HostError> {
        self.shell_as(layout, template, VmId::random(), |record| record)
            .await
    }

    /// Makes the shell of this id, whose record says what else it is.
    pub(crate) async fn shell_as(
        &self,
        layout: &Layout,
        template: &Path,
        id: VmId,
        dress: impl FnOnce(VmRecord) -> VmRecord,
    ) -> Result<WarmShell, HostError> {
        let uid = self.parts.registry().take_uid()?;
        let slice = self.unused_slice(id);
        let record = dress(layout.shell(id, uid.get(), slice)?);
        self.parts.store.put_vm(&record)?;
        uid.keep();
        self.parts.registry().occupy(&record);
        match self.furnish(layout, record.clone(), template).await {
            Ok(shell) => Ok(shell),
            Err(error) => {
                self.erase(&record).await;
                Err(error)
            }
        }
    }

    /// Name of a slice that nothing has. A VM that was here before and has come back may have left
    /// some that others lie over.
    fn unused_slice(&self, id: VmId) -> PathBuf {
        let folder = self.parts.folders.disks(id);
        let mut names = (0..u32::MAX).map(|number| folder.join(format!("{number}.qcow2")));
        names.find(|path| !path.exists()).unwrap_or(folder)
    }

    async fn furnish(
        &self,
        layout: &Layout,
        mut record: VmRecord,
        template: &Path,
    ) -> Result<WarmShell, HostError> {
        self.parts.make_folders(record.id)?;
        let access = self.parts.access(&record)?;
        // One that writes a volume itself has no slice.
        if let Some(slice) = record.chain.first() {
            copy_template(template, slice, access)?;
        }
        // Known by their names already: they are removed with the record.
        self.volumes.disks.begin_branches(&mut record).await?;
        let mac = layout.of.network.founder().mac;
        let spec = ShellSpec {
            machine: MachineSpec {
                vcpus: NonZeroU8::new(layout.of.saved_vcpus).unwrap_or(NonZeroU8::MIN),
                ..self.machine_spec(&record, mac).await?
            },
            memory_file: self.parts.folders.page_image(layout.memory),
        };
        let shell = self.parts.engine.shell(spec).await?;
        record.machine = Some(crate::to_text(shell.record())?);
        self.parts.store.put_vm(&record)?;
        let (sender, calls) = mpsc::channel(crate::calls::WAITING);
        let socket = self.parts.folders.sockets(record.id).join(files::AGENT);
        let guest = Guest::connect(&socket, sender).await?;
        Ok(WarmShell {
            record,
            shell: Vessel::Shell(shell),
            guest,
            calls,
        })
    }

    /// Registers the clones' identities with the network. Their ports stay shut.
    pub(crate) async fn admit(
        &self,
        layout: &Layout,
        assigned: &[(Wanted, Option<WarmShell>)],
    ) -> Result<(), HostError> {
        let members: Vec<_> = assigned
            .iter()
            .filter_map(|(wanted, shell)| {
                Some((
                    shell.as_ref()?.record.id,
                    layout.of.network.address(wanted.member)?,
                ))
            })
            .collect();
        Ok(self.parts.network.admit(&members).await?)
    }

    /// Makes the network of a snapshot's family unless it is there: after a restart of the
    /// host it is not, nor where the family comes from another one. And joins it with that
    /// of the family on other hosts, as far as these are known.
    pub(crate) async fn need_network(&self, layout: &Layout) -> Result<(), HostError> {
        let family = layout.of.family;
        if !self.parts.network.has_link(Link::Bridge(family)) {
            let known = self.parts.store.networks()?.into_iter();
            let mut own = known.filter(|(known, _)| known.id == family);
            let policy = own.next().map(|(_, policy)| policy).unwrap_or_default();
            self.parts
                .network
                .create_family(family, layout.of.network, &policy, None)
                .await?;
        }
        self.sync_overlay(family).await
    }
}
