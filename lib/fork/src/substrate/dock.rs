//! Docking: a running VM becomes a substrate.

use super::{Entry, Leaving, Substrate, SubstrateError, sum_of};
use crate::{Host, HostError, blocking};
use forkyard_agent_link::VERSION;
use forkyard_agent_link::{Command, ExecOut, Stream};
use forkyard_records::VmRecord;
use forkyard_substrate::{LISTS, Lists, Plan, Prepared};
use forkyard_types::{
    ByteCount, CheckpointRequest, CloneResult, DockRequest, ExitStatus, ForkId, ForkRequest,
    SubstrateGuest, SubstrateKind, SubstrateView, VmName,
};
use forkyard_vm::Vm;
use std::{collections::BTreeMap, fs, sync::Arc};
use tracing::{Instrument as _, debug_span, instrument};

/// The agent's program in a guest.
const PROGRAM: &str = "/opt/forkyard/bin/forkyard-guest";
/// Free memory that is left to a guest, in KiB: what its kernel keeps for the worst.
pub(super) const MARGIN_KIB: u32 = 4 << 10;
/// Most bytes of a guest's report, and notes in it, that are kept.
const REPORT: usize = 256 << 10;
const MOST: usize = 64;

impl Host {
    /// Makes a substrate of a running VM, which ends as that, or of a clone of it. Once this
    /// returns it is on disk. Not cancel-safe: run it on a task of its own.
    #[instrument(skip_all, fields(vm = request.vm, name = %request.name))]
    pub async fn dock(
        &self,
        request: DockRequest,
        owner: Option<String>,
    ) -> Result<SubstrateView, HostError> {
        let _turn = self.substrates.docks.lock().await;
        let vm = self.vm(&request.vm)?;
        self.refuse_to_dock(&vm, request.live)?;
        let lists = self.lists()?;
        let record = vm.record();
        let margin = u64::from(request.margin_kib.unwrap_or(MARGIN_KIB)) << 10;
        let plan = lists.plan(
            request.kind,
            &request.keep_services,
            &record.secrets,
            margin,
        );
        let leaving = Leaving {
            checkpoint: passing_name()?,
            fork: request.live.then(ForkId::random),
            vm: None,
        };
        let mut substrate = self
            .begin_substrate(request.name, request.kind, &record, leaving)
            .await?;
        substrate.entry.owner = owner;
        self.parts.store.add_substrate(&substrate.record()?)?;
        let docked = self.dock_as(&mut substrate, &vm, plan).await;
        self.docked(substrate, docked).await
    }

    /// Records that a substrate is to be made of a VM.
    pub(super) async fn begin_substrate(
        &self,
        name: VmName,
        kind: SubstrateKind,
        record: &VmRecord,
        leaving: Leaving,
    ) -> Result<Substrate, HostError> {
        Ok(Substrate {
            name,
            entry: Entry {
                kind,
                owner: None,
                boot: false,
                from: record.name.clone(),
                image: record.image.clone(),
                vcpus: record.vcpus,
                memory: record.memory,
                booted: Some(record.booted),
                accel: record.accel.clone(),
                cpu: Some(self.cpu_of(&record.accel, record.cpu.as_ref())?),
                engine: self.engine_version().await?,
                agent: Some(VERSION),
                created: crate::now(),
                used: 0,
                parts: None,
                devices_sum: None,
                guest: None,
                backup: None,
                leaving: Some(leaving),
            },
        })
    }

    /// Returns the version of the program that saves and loads states here.
    pub(super) async fn engine_version(&self) -> Result<String, HostError> {
        let engine = self.parts.engine.clone();
        blocking(move || Ok::<_, HostError>(engine.version()?)).await
    }

    /// Ends a dock: removes what it leaves, or all of it.
    pub(super) async fn docked(
        &self,
        mut substrate: Substrate,
        outcome: Result<(), HostError>,
    ) -> Result<SubstrateView, HostError> {
        if let Err(error) = outcome {
            self.undock(&substrate).await;
            return Err(error);
        }
        self.leave(&mut substrate).await?;
        self.wake_backup();
        tracing::info!(name = %substrate.name, parts = ?substrate.entry.parts, "docked");
        self.view_of_substrate(&substrate)
    }

    fn refuse_to_dock(&self, vm: &Arc<Vm>, live: bool) -> Result<(), HostError> {
        vm.answering()?;
        Self::refuse_on_volume(&vm.record(), "it cannot be docked yet")?;
        Self::refuse_with_data(&vm.record(), "it cannot be docked yet")?;
        if vm.record().cpu.is_some() {
            let text = "its CPU is one that other hosts have, too: it cannot be docked yet";
            return Err(HostError::Conflict(text.into()));
        }
        if vm
            .record()
            .disk_image
            .is_some_and(|it| !self.is_of_substrate(it))
        {
            return Err(SubstrateError::FromElsewhere { vm: vm.name() }.into());
        }
        let all = self.parts.registry().all();
        let mut clones = all.iter().filter(|other| {
            let birth = other.record().birth;
            birth.is_some_and(|birth| birth.parent == vm.id) && other.is_running()
        });
        match clones.next() {
            Some(clone) if !live => Err(SubstrateError::HasClones {
                vm: vm.name(),
                clone: clone.name(),
            }
            .into()),
            Some(_) | None => Ok(()),
        }
    }

    /// The lists that are installed.
    pub(crate) fn lists(&self) -> Result<Lists, HostError> {
        let path = self.parts.folders.share.join(LISTS);
        let text = fs::read_to_string(&path).map_err(HostError::io("read", &path))?;
        Ok(Lists::parse(&text).map_err(SubstrateError::from)?)
    }

    /// Docks a VM, or a clone of it, up to where the substrate is kept.
    pub(super) async fn dock_as(
        &self,
        substrate: &mut Substrate,
        vm: &Arc<Vm>,
        plan: Plan,
    ) -> Result<(), HostError> {
        let leaving = substrate.entry.leaving.clone();
        let leaving = leaving.ok_or_else(|| {
            HostError::Broken(
                "the record of the substrate does not say from what it is made".into(),
            )
        })?;
        let docked = match leaving.fork {
            Some(fork) => self.clone_to_dock(fork, vm).await?,
            None => vm.clone(),
        };
        let prepare = self.prepare(&docked, plan);
        let prepared = prepare.instrument(debug_span!("prepare")).await?;
        substrate.entry.guest = Some(told(prepared));
        let request = CheckpointRequest {
            name: Some(leaving.checkpoint.clone()),
            ..CheckpointRequest::default()
        };
        let taken = self.checkpoint_of(&docked, request, None).await?;
        let record = taken.record();
        let packed = self.pack(&record, &substrate.entry, docked.record().memory_image);
        let parts = packed.instrument(debug_span!("pack")).await?;
        substrate.entry.devices_sum = Some(sum_of(&self.devices_of(&parts).await?));
        let room = self.room_for(&parts).await;
        substrate.entry.parts = Some(parts);
        room?;
        substrate.entry.leaving = Some(Leaving {
            vm: leaving.fork.is_none().then_some(docked.id),
            ..leaving
        });
        self.parts.store.update_substrate(&substrate.record()?)?;
        self.parts.store.flush().map_err(HostError::from)
    }

    async fn clone_to_dock(&self, fork: ForkId, vm: &Arc<Vm>) -> Result<Arc<Vm>, HostError> {
        let request = ForkRequest {
            count: 1,
            inherit_secrets: true,
            ..ForkRequest::default()
        };
        let forked = self.fork_as(fork, vm.id.as_str(), request, || {}).await?;
        match forked.clones.into_iter().next() {
            Some(CloneResult::Vm(clone)) => self.vm(clone.id.as_str()),
            Some(CloneResult::Error(error)) => Err(SubstrateError::NotPrepared {
                vm: vm.name(),
                why: error.message,
            }
            .into()),
            None => Err(HostError::Broken(
                "the fork made no clone, and says no reason".into(),
            )),
        }
    }

    /// Has a guest carry out a plan.
    async fn prepare(&self, vm: &Arc<Vm>, plan: Plan) -> Result<Prepared, HostError> {
        let body = vm.answering()?;
        let command = Command::of_root(vec![PROGRAM.to_owned(), "dock".to_owned()]);
        let mut running = body.guest.exec(command).await?;
        let mut line = crate::to_text(&plan)?.into_bytes();
        line.push(b'\n');
        running.input().send(line).await?;
        let (mut said, mut complaint) = (Vec::new(), Vec::new());
        // The agent is watched over all the while; one that is silent ends this.
        let lost = vm.silent_for(self.parts.options.patience);
        // Nor may one that answers take for ever: it holds up all docks.
        let bound = self.parts.options.to_prepare(vm.record().memory);
        let late = tokio::time::sleep(bound);
        tokio::pin!(lost, late);
        let why = loop {
            let out = tokio::select! {
                out = running.next() => out,
                error = &mut lost => return Err(error.into()),
                () = &mut late => break format!("it took longer than {} s", bound.as_secs()),
            };
            match out {
                Some(ExecOut::Output { stream, data }) => {
                    let kept = match stream {
                        Stream::Out => &mut said,
                        Stream::Err => &mut complaint,
                    };
                    if kept.len() + data.len() > REPORT {
                        break "its agent says too much".to_owned();
                    }
                    kept.extend(data);
                }
                Some(ExecOut::Ended(ExitStatus::Code(0))) => match serde_json::from_slice(&said) {
                    Ok(prepared) => return Ok(prepared),
                    Err(error) => break format!("its report cannot be parsed: {error}"),
                },
                Some(ExecOut::Ended(status)) => {
                    let text = String::from_utf8_lossy(&complaint);
                    break format!("{status:?} {}", text.trim());
                }
                Some(ExecOut::NotStarted(why)) => break why.message,
                Some(ExecOut::Lost(error)) => return Err(error.into()),
                Some(ExecOut::Started { .. } | ExecOut::Kept(_)) | None => {
                    break "its agent gave up".to_owned();
                }
            }
        };
        let vm = vm.name();
        Err(SubstrateError::NotPrepared { vm, why }.into())
    }
}

/// A name for what is there for a moment.
pub(super) fn passing_name() -> Result<VmName, HostError> {
    let name = format!("docking-{}", forkyard_types::VmId::random());
    name.parse()
        .map_err(|_| HostError::Broken(format!("{name} is no name")))
}

/// Cuts a guest's account to the part that is kept.
fn told(prepared: Prepared) -> SubstrateGuest {
    let Prepared {
        mut stopped,
        cleared,
        given_back,
        used,
        mut problems,
    } = prepared;
    stopped.truncate(MOST);
    problems.truncate(MOST);
    let used: BTreeMap<_, _> = used.into_iter().take(MOST).collect();
    SubstrateGuest {
        stopped,
        cleared,
        given_back: ByteCount(given_back),
        used: used
            .into_iter()
            .map(|(what, bytes)| (what, ByteCount(bytes)))
            .collect(),
        notes: problems,
    }
}
