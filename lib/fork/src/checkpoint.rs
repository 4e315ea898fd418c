//! Checkpoints: an instant of a VM, kept on disk until it is forked.
//!
//! A checkpoint is recorded as a VM that never runs. Its memory is a page image
//! in a file, its devices a descriptor beside it, its disk the slices that were
//! frozen with them; so it outlives its parent, the daemon and the host's restart,
//! and takes no memory. `checkpoint` and `create_clones` of the paper, section 4.1.

use crate::{
    Host, HostError,
    clone::{Asked, Origin},
    fork::{Forked, Wanted},
    micros,
    progress::Going,
    quota::Places,
    telemetry::Counted,
};
use forkyard_records::VmRecord;
use forkyard_snapshot::{Generation, Snapshot, Taken};
use forkyard_types::{
    CheckpointRequest, ForkId, ForkPhase, ForkReport, Member, RequestId, VmId, VmName, VmState,
    VmView, VolumeUse,
};
use forkyard_vm::{Life, Uid, Vm};
use std::{sync::Arc, time::Instant};
use tracing::{Instrument as _, Span, debug_span, instrument};

/// Facts that a checkpoint will be recorded by.
#[derive(Debug)]
pub(crate) struct Keeping {
    name: VmName,
    member: Member,
    uid: Uid,
    /// Held until it is recorded.
    _place: Places,
}

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

    /// Takes a checkpoint for the given asker; `asked` is the request of a
    /// guest's program, which returns in the clones.
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
        let body = parent.forkable()?;
        let keeping = self.keeping(parent, request.name)?;
        let generation = self
            .generation(parent, &body, turn.take::<Generation>())
            .await?;
        let (_, spare, rest) = generation.split(0);
        let taken = self
            .snapshots
            .take(parent, &body, (fork, request.mode), rest, &[], &mut report)
            .await;
        let of_parent = parent.record();
        drop(turn);
        self.keep_warm(parent, spare);
        let Taken { snapshot, former } = taken?;
        let image = snapshot.layout.memory;
        if let Some(former) = former {
            self.snapshots.retire(former).await;
        }
        let begun = self.begin_keeping(keeping, (of_parent, fork), &snapshot, asked);
        let vm = self.keep(&snapshot, begun).await?;
        self.note_fork(fork, parent, &report);
        if parent.forks.is_closed() {
            self.end(&vm, None).await;
            snapshot.layout.of.still_there()?;
        }
        // No process maps it any more: the file has taken its place.
        self.snapshots.retire(image).await;
        tracing::info!(parent = %parent.name(), name = %vm.name(), ?report, "checkpoint");
        Ok(vm)
    }

    /// Reserves what a checkpoint of a VM will be recorded by. Before anything is taken: without
    /// these there is nothing to keep it as.
    pub(crate) fn keeping(&self, of: &Vm, name: Option<VmName>) -> Result<Keeping, HostError> {
        let family = of.record().family;
        // It is no clone that runs: no limit applies.
        let mut place = self.families.quotas.take(family, 1, None, || 0)?;
        let member = self.take_members(family, &mut place)?.remove(0);
        let name = match name {
            Some(name) => name,
            None => self.unused_name(&of.name(), member.0)?,
        };
        Ok(Keeping {
            name,
            member,
            uid: self.parts.registry().take_uid()?,
            _place: place,
        })
    }

    /// A name for a checkpoint that was given none: by its place in the family, unless another family has one
    /// of that name.
    fn unused_name(&self, of: &VmName, member: u16) -> Result<VmName, HostError> {
        let name = made_up(of, &member.to_string())?;
        let is_taken = self.parts.registry().find(name.as_str()).is_ok();
        match is_taken {
            true => made_up(of, &VmId::random().as_str()[..4]),
            false => Ok(name),
        }
    }

    /// Records that a snapshot is being kept, of a VM with this record: the files that it needs stay.
    /// The caller goes on with [`Self::keep`].
    pub(crate) fn begin_keeping(
        &self,
        keeping: Keeping,
        (of, fork): (VmRecord, ForkId),
        snapshot: &Snapshot,
        asked: Option<RequestId>,
    ) -> (VmRecord, Result<(), HostError>) {
        let record = VmRecord {
            id: VmId::random(),
            name: keeping.name,
            member: keeping.member,
            birth: Some(forkyard_records::Birth {
                parent: of.id,
                fork: Some(fork),
                granted: snapshot.layout.of.granted,
            }),
            // Given back with the record from here on.
            uid: keeping.uid.keep(),
            state: VmState::Starting,
            created: crate::now(),
            warm: 0,
            memory_image: Some(snapshot.layout.memory),
            chain: snapshot.layout.disk.slices().to_vec(),
            machine: None,
            request: asked,
            failure: None,
            kernel: None,
            notes: Vec::new(),
            volume: snapshot.layout.disk.volume().cloned().map(VolumeUse::Below),
            publish: Vec::new(),
            data: snapshot.layout.data.clone(),
            ..of
        };
        let recorded = self.parts.store.put_vm(&record);
        self.parts.registry().occupy(&record);
        (record, recorded.map_err(HostError::from))
    }

    /// Keeps a snapshot on disk, and lists it. Nothing is left of it if that fails. Not cancel-safe.
    pub(crate) async fn keep(
        &self,
        snapshot: &Snapshot,
        (record, recorded): (VmRecord, Result<(), HostError>),
    ) -> Result<Arc<Vm>, HostError> {
        let kept = async {
            recorded?;
            let kept = self.snapshots.persist(snapshot, record.clone());
            Ok::<_, HostError>(kept.instrument(debug_span!("keep")).await?)
        };
        match kept.await {
            Ok(record) => {
                let network = snapshot.layout.of.network;
                let vm = Arc::new(Vm::new(record, network, Life::Checkpoint));
                self.parts.registry().insert(vm.clone());
                Ok(vm)
            }
            Err(error) => {
                self.snapshots.erase(&record).await;
                Err(error)
            }
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
        let going = self.forks.progress.begin(asleep, wanted.len(), &asked);
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
        let turn = asleep.turn().await;
        let record = asleep.record();
        // It may have been dropped while this waited for its turn.
        self.vm(asleep.id.as_str())?;
        asked.request = record.request;
        let snapshot = self.snapshots.open(asleep, &record).await?;
        self.need_network(&snapshot.layout).await?;
        let template = self
            .parts
            .folders
            .disks(record.id)
            .join(format!("{id}.template"));
        going.reach(ForkPhase::Starting);
        let shells = self
            .shells_over(&snapshot.layout, &template, wanted)
            .await?;
        report.shells_us = micros(begun.elapsed());
        let peer_requests = self.peer_requests(&snapshot, &asked).await;
        drop(turn);
        let origin = Origin {
            fork: id,
            asked: &asked,
            begun,
            going,
        };
        let clones = self
            .instantiate(&snapshot, shells, peer_requests, origin, &mut report)
            .await;
        counted.done(&report, &clones);
        self.note_fork(id, asleep, &report);
        tracing::info!(checkpoint = %asleep.name(), fork = %id, clones = clones.len(), ?report, "woken");
        Ok(Forked { id, clones, report })
    }
}

/// A name after that of the parent, as much of it as fits.
fn made_up(parent: &VmName, end: &str) -> Result<VmName, HostError> {
    let end = format!("-at-{end}");
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
        let made = |text: &str| made_up(&name(text), "1042").map(|made| made.to_string());
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
