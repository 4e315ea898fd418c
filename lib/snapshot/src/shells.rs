//! Shells over the layout of a snapshot: complete clones-to-be, which wait for memory and
//! devices.

use crate::{Layout, SnapshotError, Snapshots};
use forkyard_agent_link::{CallId, Growth, Guest, Request};
use forkyard_disk::copy_template;
use forkyard_host::to_text;
use forkyard_records::VmRecord;
use forkyard_types::{Member, VmId};
use forkyard_vmm::{Machine, MachineSpec, Shell, ShellSpec, VmmError, files};
use futures::{StreamExt, future::join_all, stream};
use std::{
    num::NonZeroU8,
    path::{Path, PathBuf},
};
use tokio::sync::mpsc;

/// Calls of one VM waiting to be looked at; more and its agent must wait.
pub const CALLS: usize = 16;
/// Shells started at once: QEMU starts are short and CPU-bound.
pub const AT_ONCE: usize = 4;

/// A clone-to-be: complete, and waiting for its memory and state.
#[derive(Debug)]
pub struct WarmShell {
    /// Record of the VM-to-be.
    pub record: VmRecord,
    /// Machine, with or without a state.
    pub shell: Vessel,
    /// Link to its agent, which has yet to wake.
    pub guest: Guest,
    /// Calls of its programs.
    pub calls: mpsc::Receiver<(CallId, Request)>,
}

/// The machine of a clone-to-be.
#[derive(Debug)]
pub enum Vessel {
    /// A shell that waits for memory and state.
    Shell(Box<dyn Shell>),
    /// A machine that has them. Its guest has woken, waits for an identity, and stands still with all
    /// its vCPUs.
    Woken(Box<dyn Machine>),
}

impl Vessel {
    /// Has its guest run; a shell takes the state first, and the vCPUs and the disk that it is to have.
    /// If that fails it has ended, or is ended with its record. Not cancel-safe.
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

    /// Ends it. If cancelled, a machine that was woken may run on until its record is erased.
    pub async fn kill(self) -> Result<(), VmmError> {
        match self {
            Self::Shell(shell) => shell.kill().await,
            Self::Woken(machine) => machine.kill().await,
        }
    }
}

impl Snapshots {
    /// Makes a shell for each of these places, over a snapshot that exists, and lets the network know
    /// their identity; an error for each that failed: the last places go without. `template` is where
    /// an empty slice over its disk may be for a moment. An error if there is no shell at all. Not
    /// cancel-safe.
    pub async fn shells_over(
        &self,
        layout: &Layout,
        template: &Path,
        places: &[Member],
    ) -> Result<(Vec<WarmShell>, Vec<SnapshotError>), SnapshotError> {
        if places.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        self.slice_over(&layout.disk, template).await?;
        let (shells, mut failed) = self.make_shells(layout, template, places.len()).await;
        self.parts.remove_files(&[template.to_owned()]);
        if shells.is_empty() {
            return Err(failed.pop().unwrap_or_else(|| {
                SnapshotError::Broken("no shell was made for any clone".into())
            }));
        }
        match self.admit(layout, &placed(&shells, places)).await {
            Ok(()) => Ok((shells, failed)),
            Err(error) => {
                self.end_shells(shells).await;
                Err(error)
            }
        }
    }

    /// Makes the shell of this id at this place, as [`shells_over`](Self::shells_over) makes several. Not
    /// cancel-safe.
    pub async fn shell_over(
        &self,
        layout: &Layout,
        template: &Path,
        (id, place): (VmId, Member),
    ) -> Result<WarmShell, SnapshotError> {
        // Of two VMs of one id the second would be recorded as the first.
        if self.parts.store.vms()?.iter().any(|record| record.id == id) {
            return Err(SnapshotError::IsHere { id });
        }
        self.slice_over(&layout.disk, template).await?;
        let shell = self.shell_as(layout, template, id, |record| record).await;
        self.parts.remove_files(&[template.to_owned()]);
        let shell = shell?;
        match self.admit(layout, &[(id, place)]).await {
            Ok(()) => Ok(shell),
            Err(error) => {
                self.end_shells(vec![shell]).await;
                Err(error)
            }
        }
    }

    /// Makes shells over a layout and copies of a template; an error for each that failed.
    pub(crate) async fn make_shells(
        &self,
        layout: &Layout,
        template: &Path,
        count: usize,
    ) -> (Vec<WarmShell>, Vec<SnapshotError>) {
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

    async fn make_shell(
        &self,
        layout: &Layout,
        template: &Path,
    ) -> Result<WarmShell, SnapshotError> {
        self.shell_as(layout, template, VmId::random(), |record| record)
            .await
    }

    /// Makes the shell of this id, whose record says what else it is. If that fails, nothing of it is
    /// left. Not cancel-safe.
    pub async fn shell_as(
        &self,
        layout: &Layout,
        template: &Path,
        id: VmId,
        dress: impl FnOnce(VmRecord) -> VmRecord,
    ) -> Result<WarmShell, SnapshotError> {
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
    ) -> Result<WarmShell, SnapshotError> {
        self.parts.make_folders(record.id)?;
        let access = self.parts.access(&record)?;
        // One that writes a volume itself has no slice.
        if let Some(slice) = record.chain.first() {
            copy_template(template, slice, access)?;
        }
        // Known by their names already: they are removed with the record.
        self.disks.begin_branches(&mut record).await?;
        let mac = layout.of.network.founder().mac;
        let spec = ShellSpec {
            machine: MachineSpec {
                vcpus: NonZeroU8::new(layout.of.saved_vcpus).unwrap_or(NonZeroU8::MIN),
                ..self.machine_spec(&record, mac).await?
            },
            memory_file: self.parts.folders.page_image(layout.memory),
        };
        let shell = self.parts.engine.shell(spec).await?;
        record.machine = Some(to_text(shell.record())?);
        self.parts.store.put_vm(&record)?;
        let (sender, calls) = mpsc::channel(CALLS);
        let socket = self.parts.folders.sockets(record.id).join(files::AGENT);
        let guest = Guest::connect(&socket, sender).await?;
        Ok(WarmShell {
            record,
            shell: Vessel::Shell(shell),
            guest,
            calls,
        })
    }

    /// Registers VMs' places with the network. Their ports stay shut. Cancel-safe: what is registered goes
    /// with the VM's record.
    pub async fn admit(
        &self,
        layout: &Layout,
        members: &[(VmId, Member)],
    ) -> Result<(), SnapshotError> {
        let addressed = |(id, member): &(VmId, Member)| {
            let address = layout.of.network.address(*member)?;
            Some((*id, address))
        };
        let members: Vec<_> = members.iter().filter_map(addressed).collect();
        Ok(self.parts.network.admit(&members).await?)
    }

    /// Ends shells, and removes all that there is of them. Not cancel-safe.
    pub async fn end_shells(&self, shells: Vec<WarmShell>) {
        // Together: the kernel takes its time over each tap.
        let ends = shells.into_iter().map(|shell| async move {
            if let Err(error) = shell.shell.kill().await {
                tracing::warn!(vm = %shell.record.id, error = &error as &dyn std::error::Error, "shell not ended");
            }
            self.erase(&shell.record).await;
        });
        join_all(ends).await;
    }
}

/// Gives each shell its place. Where there are fewer shells, the last places have none.
pub(crate) fn placed(shells: &[WarmShell], places: &[Member]) -> Vec<(VmId, Member)> {
    let ids = shells.iter().map(|shell| shell.record.id);
    ids.zip(places.iter().copied()).collect()
}
