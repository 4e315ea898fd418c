//! Resources of the next fork of a VM, made before it is requested: a page
//! image that does not exist yet, the overlay the parent will write to after
//! it, and warm shells over both.
//!
//! A generation serves one fork. Shells it made that no clone became are
//! ended with it: their disk lies over the instant that has passed.

use crate::{
    Host, HostError,
    snapshot::{AT_ONCE, Disk, WarmShell},
};
use forkyard_disk::copy_template;
use forkyard_records::VmRecord;
use forkyard_types::{ByteCount, ImageId, VolumeAt};
use forkyard_vm::{RunningVm, Vm};
use forkyard_vmm::{Limits, Machine, MachineSpec, Nic, Overlay, Owner};
use forkyard_volume_disks::has_volume;
use futures::{
    StreamExt,
    future::{self, join_all},
    stream,
};
use std::{
    num::NonZero,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Shells started or ended at once when no fork waits for it: half of the processors, for the VM
/// that has just forked runs on the others.
fn at_leisure() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    (processors / 2).clamp(1, AT_ONCE)
}

/// Way to freeze the parent's disk at the next fork, and the disk that it writes afterwards.
#[derive(Debug)]
pub(crate) enum Next {
    /// A slice over the one that it writes to now.
    Overlay { overlay: Overlay, path: PathBuf },
    /// The VM's volume, as before.
    Volume(VolumeAt),
}

/// Resources of the next fork of a VM.
#[derive(Debug)]
pub(crate) struct Generation {
    /// The parent's memory at the fork. Reads of it wait until then.
    pub image: ImageId,
    pub next: Next,
    /// An empty slice over the parent's disk, to be copied for each clone.
    template: PathBuf,
    pub shells: Vec<WarmShell>,
}

impl Host {
    /// The generation of the parent's next fork, made if there is none.
    pub(crate) async fn generation(
        &self,
        parent: &Vm,
        body: &RunningVm,
        next: Option<Generation>,
    ) -> Result<Generation, HostError> {
        if let Some(generation) = next {
            return Ok(generation);
        }
        // What is taken next lies over what it came from.
        self.bring_home(parent).await?;
        self.fold_deepest(parent, body).await;
        let record = parent.record();
        let image = ImageId::random();
        let folder = self.parts.folders.disks(parent.id);
        let template = folder.join(format!("{image}.template"));
        let overlay_path = folder.join(format!("{image}.qcow2"));
        let disk = Disk::of(&record, image);
        let access = self.parts.access(&record)?;
        let made = async {
            self.slice_over(&disk, &template).await?;
            let next = match disk.volume_below() {
                Some(at) => Next::Volume(at.clone()),
                None => {
                    copy_template(&template, &overlay_path, access)?;
                    Next::Overlay {
                        overlay: body.machine.prepare_overlay(&overlay_path).await?,
                        path: overlay_path.clone(),
                    }
                }
            };
            let promised = self
                .parts
                .pager_call(move |pager| pager.promise(image, record.memory.pages()));
            match promised.await {
                Ok(()) => Ok(next),
                Err(error) => {
                    next.discard(parent, &*body.machine).await;
                    Err(HostError::from(error))
                }
            }
        };
        match made.await {
            Ok(next) => Ok(Generation {
                image,
                next,
                template,
                shells: Vec::new(),
            }),
            Err(error) => {
                self.parts.remove_files(&[template, overlay_path]);
                if error.is_timeout() {
                    self.retire_later(image);
                }
                Err(error)
            }
        }
    }

    /// Makes as many shells as are missing; an error for each that failed.
    pub(crate) async fn fill(
        &self,
        parent: &Vm,
        generation: &mut Generation,
        want: usize,
    ) -> Vec<HostError> {
        let missing = want.saturating_sub(generation.shells.len());
        let layout = self.layout(parent, generation.image);
        let (made, failed) = self
            .make_shells(&layout, &generation.template, missing)
            .await;
        generation.shells.extend(made);
        failed
    }

    /// Keeps as many shells warm as are wanted, a few at a time: a fork asked for
    /// meanwhile need not wait for all of them. Before that it ends those that are
    /// of no more use.
    pub(crate) fn keep_warm(&self, parent: &Arc<Vm>, spare: Vec<WarmShell>) {
        let (host, parent) = (self.handle(), parent.clone());
        tokio::spawn(async move {
            let Some(host) = host.upgrade() else { return };
            // A QEMU that ends gives back all its memory at once: many of them would leave the
            // parent no processor.
            let ends = stream::iter(spare).map(|shell| host.end_shells(vec![shell]));
            ends.buffer_unordered(at_leisure())
                .for_each(future::ready)
                .await;
            loop {
                let mut turn = parent.turn().await;
                let want = host.shells_wanted(&parent);
                let Ok(body) = parent.body() else { return };
                let have = turn
                    .left::<Generation>()
                    .map_or(0, |generation| generation.shells.len());
                if have >= want {
                    return;
                }
                host.fold_slices(&parent, &body, &turn).await;
                let failed = match host
                    .generation(&parent, &body, turn.take::<Generation>())
                    .await
                {
                    Ok(mut generation) => {
                        let failed = host
                            .fill(&parent, &mut generation, want.min(have + at_leisure()))
                            .await;
                        turn.leave(generation);
                        failed
                    }
                    Err(error) => vec![error],
                };
                if let Some(error) = failed.first() {
                    // The fork itself will try again and report to its caller.
                    tracing::warn!(vm = %parent.name(), error = error as &dyn std::error::Error, "no warm shell");
                    return;
                }
            }
        });
    }

    /// As many as the VM's owner wants, or as a ticket promises. Those for tickets
    /// are bounded as clones are: a ticket holds their places in the family.
    fn shells_wanted(&self, parent: &Vm) -> usize {
        let promised = self.tickets(|tickets| tickets.promised_to(parent.id));
        promised.max(parent.record().warm.into())
    }

    /// Ends the shells that are not wanted any more, now that a ticket is gone.
    /// Once this returns, they are.
    pub(crate) async fn trim_shells(&self, parent: &Vm) {
        let mut turn = parent.turn().await;
        let want = self.shells_wanted(parent);
        match turn.take::<Generation>() {
            Some(generation) if want == 0 => self.discard(parent, generation).await,
            Some(mut generation) => {
                let kept = want.min(generation.shells.len());
                let spare = generation.shells.split_off(kept);
                turn.leave(generation);
                self.end_shells(spare).await;
            }
            None => {}
        }
    }

    /// Ends a generation that will not be used.
    pub(crate) async fn discard(&self, parent: &Vm, generation: Generation) {
        self.parts.remove_files(&generation.files());
        if let Ok(body) = parent.body() {
            generation.next.discard(parent, &*body.machine).await;
        }
        self.end_shells(generation.shells).await;
        self.retire(generation.image).await;
    }

    pub(crate) async fn end_shells(&self, shells: Vec<WarmShell>) {
        // Together: the kernel takes its time over each tap.
        let ends = shells.into_iter().map(|shell| async move {
            if let Err(error) = shell.shell.kill().await {
                tracing::warn!(vm = %shell.record.id, error = &error as &dyn std::error::Error, "shell not ended");
            }
            self.erase(&shell.record).await;
        });
        join_all(ends).await;
    }

    pub(crate) async fn machine_spec(
        &self,
        record: &VmRecord,
        mac: forkyard_types::Mac,
    ) -> Result<MachineSpec, HostError> {
        let tap = self.parts.network.create_tap(record.id)?;
        Ok(MachineSpec {
            id: record.id,
            dir: self.parts.folders.sockets(record.id),
            owner: Owner {
                uid: record.uid,
                gid: self.parts.gid_of(record.family)?,
            },
            vcpus: std::num::NonZeroU8::new(record.vcpus).unwrap_or(std::num::NonZeroU8::MIN),
            memory: record.memory,
            booted: record.booted,
            accel: crate::accel_of(&record.accel),
            withheld: self.withheld(record)?,
            disk: Some(self.volumes.disks.root_disk(record).await?),
            data: self.volumes.disks.data_drives(record).await?,
            volumes: has_volume(record).then(|| self.parts.folders.sockets_of_volumes()),
            nic: Some(Nic { tap, mac }),
            limits: limits(record),
            page_reporting: self.parts.options.page_reporting,
        })
    }
}

/// Counts the clones that are kept warm for a VM's next fork; none to be seen while one is under way.
pub(crate) fn warm_shells(vm: &Vm) -> u16 {
    let Some(turn) = vm.try_turn() else {
        return 0;
    };
    let shells = turn
        .left::<Generation>()
        .map_or(0, |next| next.shells.len());
    u16::try_from(shells).unwrap_or(u16::MAX)
}

/// Computes the limits of a QEMU: its guest's memory, and the memory QEMU needs
/// itself, of which the cache of translated code is most; a thread for each vCPU,
/// and those that do I/O.
fn limits(record: &VmRecord) -> Limits {
    const BESIDE: u64 = 1536 << 20;
    const THREADS: u32 = 128;
    Limits {
        memory: Some(ByteCount(record.memory.0 + record.memory.0 / 8 + BESIDE)),
        pids: Some(u32::from(record.vcpus) + THREADS),
    }
}

impl Generation {
    /// The files it has beside its shells'.
    pub fn files(&self) -> Vec<PathBuf> {
        let overlay = self.next.overlay_path().map(Path::to_owned);
        overlay.into_iter().chain([self.template.clone()]).collect()
    }

    /// Takes it apart: the shells to use, those to spare, and the rest.
    pub fn split(mut self, wanted: usize) -> (Vec<WarmShell>, Vec<WarmShell>, Rest) {
        let spare = self.shells.split_off(wanted.min(self.shells.len()));
        let rest = Rest {
            image: self.image,
            next: self.next,
            template: self.template,
        };
        (self.shells, spare, rest)
    }
}

impl Next {
    /// File of the slice that the parent goes on with.
    pub fn overlay_path(&self) -> Option<&Path> {
        match self {
            Self::Overlay { path, .. } => Some(path),
            Self::Volume(_) => None,
        }
    }

    /// Closes what was not put to use.
    pub async fn discard(self, parent: &Vm, machine: &dyn Machine) {
        if let Self::Overlay { overlay, .. } = self
            && let Err(error) = machine.discard_overlay(overlay).await
        {
            tracing::warn!(vm = %parent.name(), error = &error as &dyn std::error::Error, "overlay kept open");
        }
    }
}

/// A generation without its shells.
#[derive(Debug)]
pub(crate) struct Rest {
    pub image: ImageId,
    pub next: Next,
    pub template: PathBuf,
}
