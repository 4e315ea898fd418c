//! Checkpoints: an instant of a VM, kept on disk until somebody forks it.
//!
//! A checkpoint is recorded as a VM that never runs. Its memory is a page image
//! in a file, its devices a descriptor beside it, its disk the slices that were
//! frozen with them; so it outlives its parent, the daemon and the host's restart,
//! and takes no memory. `checkpoint` and `create_clones` of the paper, section 4.1.

use crate::{
    Host, HostError,
    blocking::blocking,
    clone::{Asked, Origin},
    fork::{Forked, Wanted, micros},
    instant::Published,
    progress::Going,
    remote::Frozen,
    shells::Over,
    telemetry::Counted,
    vm::Vm,
};
use forkyard_disk::{Backing, Format};
use forkyard_image::{Lineage, write_file};
use forkyard_pager::{PagerError, Refusal};
use forkyard_store::VmRecord;
use forkyard_sys_host::private;
use forkyard_types::{
    CheckpointRequest, ForkId, ForkPhase, ForkReport, ImageId, RequestId, VmId, VmName, VmState,
    VmView,
};
use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File},
    io::Write,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};
use tracing::{Instrument as _, Span, debug_span, instrument};

/// Its memory, as a layer.
const MEMORY: &str = "memory.pages";
/// Its CPUs and devices, as QEMU wrote them.
const DEVICES: &str = "devices";

impl Host {
    /// Keeps the present instant of a running VM. Once this returns, it is on
    /// disk. Not cancel-safe: run it on a task of its own.
    #[instrument(skip_all, fields(parent = vm, fork))]
    pub async fn checkpoint(
        &self,
        vm: &str,
        request: CheckpointRequest,
    ) -> Result<VmView, HostError> {
        let kept = self.checkpoint_of(&self.vm(vm)?, request, None).await?;
        Ok(kept.view())
    }

    /// The same, for whoever asked; `asked` is the request of a guest's program,
    /// which returns in the clones.
    pub(crate) async fn checkpoint_of(
        &self,
        parent: &Arc<Vm>,
        request: CheckpointRequest,
        asked: Option<RequestId>,
    ) -> Result<Arc<Vm>, HostError> {
        let _under_way = self.begin_fork(parent)?;
        let fork = ForkId::random();
        Span::current().record("fork", tracing::field::display(fork));
        let mut report = ForkReport::default();
        let mut turn = parent.turn_to_fork().await;
        let body = parent.body()?;
        // Held until it is recorded. It is no clone that runs: no limit applies.
        let mut place = self.quotas.take(parent.record().family, 1, None, || 0)?;
        let member = self.take_members(parent, &mut place)?.remove(0);
        // Before anything is taken: without these there is nothing to keep it as.
        let name = match request.name {
            Some(name) => name,
            None => made_up(&parent.name(), member.0)?,
        };
        let uid = self.registry().take_uid()?;
        let generation = self.generation(parent, &body, turn.next.take()).await?;
        let image = generation.image;
        let (_, spare, rest) = generation.split(0);
        let taken = self
            .take_instant(parent, &body, (fork, request.mode), rest, &[], &mut report)
            .await;
        let of_parent = parent.record();
        drop(turn);
        self.keep_warm(parent, spare);
        let Published { descriptor, former } = taken?;
        if let Some(former) = former {
            self.retire(former).await;
        }
        let id = VmId::random();
        let record = VmRecord {
            id,
            name,
            member,
            birth: Some(forkyard_store::Birth {
                parent: parent.id,
                fork: Some(fork),
                granted: parent.granted(),
            }),
            // Given back with the record from here on.
            uid: uid.keep(),
            state: VmState::Starting,
            created: crate::now(),
            warm: 0,
            memory_image: Some(image),
            // All but the slice the parent has written since.
            chain: of_parent.chain[1..].to_vec(),
            machine: None,
            request: asked,
            failure: None,
            kernel: None,
            notes: Vec::new(),
            ..of_parent
        };
        let network = parent.network;
        let recorded = self.store.put_vm(&record);
        self.registry().occupy(&record);
        let kept = async {
            recorded?;
            self.keep(record.clone(), image, descriptor)
                .instrument(debug_span!("keep"))
                .await
        };
        match kept.await {
            Ok(record) => {
                self.note_fork(fork, parent, &report);
                let vm = Arc::new(Vm::new(record, network, None));
                self.registry().insert(vm.clone());
                if parent.forks.is_closed() {
                    self.end(&vm, None).await;
                    crate::fork::still_there(parent)?;
                }
                // Nobody maps it any more: the file has taken its place.
                self.retire(image).await;
                tracing::info!(parent = %parent.name(), name = %vm.name(), ?report, "checkpoint");
                Ok(vm)
            }
            Err(error) => {
                self.erase(&record).await;
                Err(error)
            }
        }
    }

    /// Writes a checkpoint to disk.
    async fn keep(
        &self,
        mut record: VmRecord,
        image: ImageId,
        descriptor: Vec<u8>,
    ) -> Result<VmRecord, HostError> {
        let folder = self.folders.disks(record.id);
        let seen = self.folders.page_image(image);
        let lineage = Lineage {
            image: ImageId::random(),
            parent: None,
        };
        let slices = record.chain.clone();
        let memory = blocking(move || {
            // It holds all of a guest's memory.
            DirBuilder::new()
                .mode(0o700)
                .create(&folder)
                .map_err(HostError::io("create", &folder))?;
            let devices = folder.join(DEVICES);
            let written = private::create_new(&devices).and_then(|mut file| {
                file.write_all(&descriptor)?;
                file.sync_all()
            });
            written.map_err(HostError::io("write", &devices))?;
            let memory = folder.join(MEMORY);
            let source = File::open(&seen).map_err(HostError::io("read", &seen))?;
            let file = private::create_new(&memory).map_err(HostError::io("create", &memory))?;
            write_file(&source, lineage, &file)?;
            file.sync_all().map_err(HostError::io("write", &memory))?;
            // The guest flushed its disk, and QEMU it to the host's cache.
            for slice in &slices {
                File::open(slice)
                    .and_then(|slice| slice.sync_all())
                    .map_err(HostError::io("write", slice))?;
            }
            // And the names, of slices that other VMs made as well.
            let parents = slices.iter().filter_map(|slice| slice.parent());
            let folders: BTreeSet<&Path> = [folder.as_path()]
                .into_iter()
                .chain(folder.parent())
                .chain(parents)
                .collect();
            for folder in folders {
                File::open(folder)
                    .and_then(|folder| folder.sync_all())
                    .map_err(HostError::io("write", folder))?;
            }
            Ok::<_, HostError>(file)
        })
        .await?;
        self.pager_call(move |pager| pager.publish(lineage, memory))
            .await?;
        record.memory_image = Some(lineage.image);
        record.state = VmState::Checkpoint;
        self.store.put_vm(&record)?;
        self.store.flush()?;
        Ok(record)
    }

    /// Has the pager serve what the checkpoints need, after a restart of it.
    pub(crate) async fn serve_checkpoint(&self, record: &VmRecord) -> Result<(), HostError> {
        self.bases.serve_built().await?;
        let Some(image) = record.memory_image else {
            return Ok(());
        };
        let path = self.folders.disks(record.id).join(MEMORY);
        let lineage = Lineage {
            image,
            parent: None,
        };
        let layer = File::open(&path).map_err(HostError::io("read", &path))?;
        let served = self.pager_call(move |pager| Ok(pager.publish(lineage, layer)));
        match served.await? {
            Ok(()) | Err(PagerError::Refused(Refusal::AlreadyExists { .. })) => Ok(()),
            Err(source @ PagerError::Refused(_)) => Err(HostError::Damaged { path, source }),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes clones of a checkpoint. If a guest took it, it is that call of the
    /// guest's that returns in them.
    #[instrument(name = "fork", skip_all, fields(fork, parent = %asleep.name(), clones = wanted.len()))]
    pub(crate) async fn wake(
        &self,
        asleep: &Vm,
        wanted: &[Wanted],
        asked: Asked,
    ) -> Result<Forked, HostError> {
        let _under_way = self.begin_fork(asleep)?;
        let going = self.progress.begin(asleep, wanted.len(), &asked);
        let outcome = self.wake_clones(asleep, wanted, asked, &going).await;
        let outcome = self.unless_removed(asleep, outcome).await;
        going.over(&outcome);
        outcome
    }

    async fn wake_clones(
        &self,
        asleep: &Vm,
        wanted: &[Wanted],
        mut asked: Asked,
        going: &Going,
    ) -> Result<Forked, HostError> {
        let begun = Instant::now();
        let id = asked.fork;
        Span::current().record("fork", tracing::field::display(id));
        let counted = Counted::begin(wanted.len());
        let mut report = ForkReport::default();
        let turn = asleep.turn.lock().await;
        let record = asleep.record();
        // It may have been dropped while this waited for its turn.
        self.vm(asleep.id.as_str())?;
        asked.request = record.request;
        let (Some(image), Some(disk)) = (record.memory_image, record.chain.first().cloned()) else {
            return Err(HostError::Invalid(format!("{} is incomplete", record.name)));
        };
        let folder = self.folders.disks(record.id);
        let devices = folder.join(DEVICES);
        let descriptor = fs::read(&devices).map_err(HostError::io("read", &devices))?;
        // It could not be when this daemon took over; or it is now, and the cause
        // is told of here rather than by a QEMU that finds no memory.
        let memory = self.folders.page_image(image);
        if !blocking(move || Ok::<_, HostError>(memory.exists())).await? {
            self.serve_checkpoint(&record).await?;
        }
        self.need_network(asleep).await?;
        let over = Over {
            memory: image,
            disk: Backing {
                path: disk,
                format: Format::Qcow2,
            },
            template: folder.join(format!("{id}.template")),
        };
        going.reach(ForkPhase::Starting);
        let shells = self.shells_over(asleep, &over, wanted).await?;
        report.shells_us = micros(begun.elapsed());
        let frozen = Frozen {
            parent: asleep,
            memory: image,
            chain: &record.chain,
            devices: &descriptor,
        };
        let parcels = self.parcels(frozen, &asked).await;
        drop(turn);
        let origin = Origin {
            fork: id,
            asked: &asked,
            begun,
            going,
        };
        let clones = self
            .bring_up_everywhere(asleep, shells, parcels, origin, &descriptor, &mut report)
            .await;
        counted.done(&report, &clones);
        self.note_fork(id, asleep, &report);
        tracing::info!(checkpoint = %asleep.name(), fork = %id, clones = clones.len(), ?report, "woken");
        Ok(Forked { id, clones, report })
    }
}

/// The files a checkpoint has beside its disk.
pub(crate) fn files(folder: &Path) -> [PathBuf; 2] {
    [folder.join(MEMORY), folder.join(DEVICES)]
}

/// A name for a checkpoint that was given none: its parent's, as much of it as fits.
fn made_up(parent: &VmName, member: u16) -> Result<VmName, HostError> {
    let end = format!("-at-{member}");
    let parent = parent.as_str();
    let fits = parent.len().min(VmName::MAX.saturating_sub(end.len()));
    let begin = parent.get(..fits).unwrap_or(parent);
    let name = format!("{}{end}", begin.trim_end_matches('-'));
    name.parse()
        .map_err(|_| HostError::Invalid(format!("{name} is no name: give one")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_whose_name_is_long_has_checkpoints_with_names_that_fit() {
        let name = |text: &str| text.parse::<VmName>().expect("a name");
        let made = |text: &str| made_up(&name(text), 1042).map(|made| made.to_string());
        assert_eq!(made("p").expect("fits"), "p-at-1042");
        let long = "x".repeat(VmName::MAX);
        let kept = "x".repeat(55);
        assert_eq!(made(&long).expect("fits"), format!("{kept}-at-1042"));
        let cut = format!("{}-{}", "x".repeat(54), "y".repeat(8));
        assert_eq!(
            made(&cut).expect("fits"),
            format!("{}-at-1042", "x".repeat(54))
        );
    }
}
