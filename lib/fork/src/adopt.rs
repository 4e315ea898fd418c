//! Adoption of the state an earlier daemon left: running VMs are taken over,
//! half-made ones are undone.

use crate::{Host, HostError, commit, network_of};
use forkyard_agent_link::{Guest, LinkError};
use forkyard_network::Ports;
use forkyard_records::{Moving, VmRecord};
use forkyard_types::{Member, NetworkPolicy, VmId, VmState};
use forkyard_vm::{Life, RunningVm, Vm, address, lock};
use forkyard_vmm::{RunState, VmmErrorKind};
use futures::future::join_all;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc;

/// Time to wait for the agent of a VM that ran. It may answer later: until then
/// its VM counts as silent.
const HELLO: Duration = Duration::from_secs(5);
/// After this another attempt is made to take over a QEMU that did not answer.
const AGAIN: Duration = Duration::from_secs(5);

impl Host {
    /// Goes through the records; called once, before any other method.
    pub(crate) async fn adopt_all(&self) -> Result<(), HostError> {
        self.retire_unused().await?;
        if let Err(error) = self.parts.bases().sweep().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "what an import left stays"
            );
        }
        self.load_tickets()?;
        let moving: BTreeMap<_, _> = self.parts.store.moving()?.into_iter().collect();
        let records = self.parts.store.vms()?;
        records
            .iter()
            .for_each(|record| self.parts.registry().occupy(record));
        // Of those that run it is known later which slice they write.
        let is_still =
            |record: &&VmRecord| matches!(record.state, VmState::Stopped | VmState::Checkpoint);
        for record in records.iter().filter(is_still) {
            self.parts.seal_frozen(record);
        }
        self.restore_networks(&records).await?;
        // Those are waited for together: one that is silent must not make all
        // the others wait.
        let runs = |record: &&VmRecord| [VmState::Running, VmState::Paused].contains(&record.state);
        let stays = |record: &&VmRecord| !moving.contains_key(&record.id);
        let adopted = records.iter().filter(runs).filter(stays);
        let adopted = join_all(adopted.map(|record| self.adopt_or_note(record))).await;
        adopted.into_iter().collect::<Result<(), _>>()?;
        self.keep_still(&records, moving)?;
        for record in &records {
            match record.state {
                // Never announced, or being removed when the last daemon ended.
                VmState::Starting | VmState::Warm | VmState::Ending => {
                    self.snapshots.erase(record).await
                }
                VmState::Running | VmState::Paused => {}
                VmState::Checkpoint if commit::is_passing(&record.name) => {
                    self.snapshots.erase(record).await;
                }
                VmState::Checkpoint => {
                    if let Err(error) = self.snapshots.serve_checkpoint(record).await {
                        tracing::error!(name = %record.name, error = &error as &dyn std::error::Error, "this checkpoint cannot be forked");
                    }
                    let life = Life::Checkpoint;
                    let vm = Vm::new(record.clone(), self.network_of(record)?, life);
                    self.parts.registry().insert(Arc::new(vm));
                }
                VmState::Stopped => {
                    let life = Life::Stopped;
                    let vm = Vm::new(record.clone(), self.network_of(record)?, life);
                    // It was about to boot again.
                    self.undo_boot(&vm).await;
                    self.parts.registry().insert(Arc::new(vm));
                }
            }
        }
        for family in self.parts.store.remove_empty_families()? {
            self.parts.network.remove_family(family).await?;
        }
        self.settle_tickets().await?;
        let families: BTreeSet<_> = records.iter().map(|record| record.family).collect();
        for family in families {
            self.end_orphans(family).await;
        }
        self.settle_volumes().await?;
        self.settle_substrates().await?;
        // What was made for a fork that was never done, and is in no record.
        for left in self.clear_up().await? {
            tracing::info!(kind = left.kind, name = left.name, "cleared up");
        }
        let vms = self.parts.registry().all();
        vms.iter().for_each(|vm| self.keep_warm(vm, Vec::new()));
        Ok(())
    }

    /// Leaves VMs as they stand that may run on another host, which is asked.
    fn keep_still(
        &self,
        records: &[VmRecord],
        moving: BTreeMap<VmId, Moving>,
    ) -> Result<(), HostError> {
        for (id, moving) in moving {
            let record = records.iter().find(|record| record.id == id);
            let Some(record) = record else {
                self.parts.store.remove_moving(id)?;
                continue;
            };
            let life = Life::Unreached {
                why: format!("it may run on {}, which is asked", moving.peer),
                paused: true,
            };
            let vm = Vm::new(record.clone(), self.network_of(record)?, life);
            *lock(&vm.moving) = Some(moving);
            self.parts.registry().insert(Arc::new(vm));
        }
        Ok(())
    }

    /// Puts the families' rules in force again. Ports lead to VMs that run,
    /// or ran when the last daemon looked.
    async fn restore_networks(&self, records: &[VmRecord]) -> Result<(), HostError> {
        let runs = |vm: &&VmRecord| [VmState::Running, VmState::Paused].contains(&vm.state);
        // What was given to the host itself meanwhile leads there.
        let leads = |vm: &VmRecord| {
            let mut leads = vm.publish.clone();
            leads.retain(|lead| !self.parts.network.is_hosts(lead));
            leads
        };
        let take = |vm: &VmRecord| match self.parts.network.take_ports(&leads(vm)) {
            Ok(ports) => ports,
            Err(error) => {
                // They lead to the VM all the same, before that program.
                tracing::warn!(vm = %vm.name, error = &error as &dyn std::error::Error, "taken meanwhile");
                Ports::default()
            }
        };
        for (family, policy) in self.parts.store.networks()? {
            let members = records.iter().filter(|vm| vm.family == family.id);
            let (founder, clones): (Vec<_>, Vec<_>) =
                members.partition(|vm| vm.member == Member(0));
            let founder = founder.first().copied();
            let policy = NetworkPolicy {
                publish: founder.map_or_else(Vec::new, leads),
                ..policy
            };
            let ports = founder.filter(runs).map(take);
            let subnet = network_of(family.number)?;
            self.parts
                .network
                .restore_family(family.id, subnet, &policy, ports)
                .await?;
            let clones = clones.into_iter().filter(runs);
            for vm in clones.filter(|vm| !vm.publish.is_empty()) {
                let to = address(subnet, vm).ip;
                self.parts
                    .network
                    .publish(family.id, to, &leads(vm), take(vm))
                    .await?;
            }
            // One that had moved here may have been recorded and no more.
            let all = records.iter().filter(|vm| vm.family == family.id);
            for vm in all.filter(runs) {
                if let Err(error) = self.parts.network.open_port(family.id, vm.id).await {
                    tracing::debug!(vm = %vm.name, error = &error as &dyn std::error::Error, "port not opened");
                }
            }
            self.try_to_sync_overlay(family.id).await;
        }
        Ok(())
    }

    /// Takes a VM over as far as it lets itself be: one that runs runs on,
    /// whether it answers or not.
    pub(crate) async fn adopt_or_note(&self, record: &VmRecord) -> Result<(), HostError> {
        match self.adopt(record).await {
            Ok(vm) => {
                self.recall_terms(&vm)?;
                tracing::info!(vm = %vm.name(), "taken over");
            }
            Err(HostError::Vmm(error)) if error.kind() == VmmErrorKind::Gone => {
                tracing::warn!(vm = %record.name, error = &error as &dyn std::error::Error, "it has ended");
                let vm = Vm::new(record.clone(), self.network_of(record)?, Life::Ending);
                self.snapshots.discard_process(record).await;
                self.end_running(&vm).await;
                vm.enter(&self.parts.store, Life::Stopped, |record| {
                    record.machine = None
                })?;
                self.recall_terms(&vm)?;
                // One that stood still stays where it is, and one that sleeps is woken by its use.
                if record.state == VmState::Running {
                    let terms = lock(&vm.terms).clone();
                    let terms = crate::restart::unseen(terms, crate::now());
                    self.parts.store.put_terms(vm.id, &terms)?;
                    *lock(&vm.terms) = terms;
                }
                self.parts.registry().insert(Arc::new(vm));
                self.lives.terms_changed.notify_one();
            }
            Err(error) => {
                tracing::warn!(vm = %record.name, error = &error as &dyn std::error::Error, "not taken over yet");
                let life = Life::Unreached {
                    why: error.to_api().message,
                    paused: record.state == VmState::Paused,
                };
                let vm = Arc::new(Vm::new(record.clone(), self.network_of(record)?, life));
                self.recall_terms(&vm)?;
                self.parts.registry().insert(vm.clone());
                self.try_again(vm);
            }
        }
        Ok(())
    }

    /// Takes a VM over later whose QEMU does not answer now.
    fn try_again(&self, vm: Arc<Vm>) {
        let host = self.handle();
        tokio::spawn(async move {
            tokio::time::sleep(AGAIN).await;
            let Some(host) = host.upgrade() else { return };
            let _turn = vm.turn().await;
            let current = host.parts.registry().get(vm.id);
            if !current.is_some_and(|current| Arc::ptr_eq(&current, &vm)) {
                return;
            }
            if let Err(error) = host.adopt_or_note(&vm.record()).await {
                tracing::error!(vm = %vm.name(), error = &error as &dyn std::error::Error, "not taken over");
            }
            if let Some(vm) = host.parts.registry().get(vm.id) {
                host.resume_independence_of(&vm);
            }
        });
    }

    async fn adopt(&self, record: &VmRecord) -> Result<Arc<Vm>, HostError> {
        let network = self.network_of(record)?;
        let machine = record.machine.as_deref().unwrap_or_default();
        let machine = serde_json::from_str(machine).map_err(|error| {
            HostError::Broken(format!(
                "the record of its process cannot be parsed: {error}"
            ))
        })?;
        let machine = self.parts.engine.adopt(machine).await?;
        self.parts
            .network
            .admit(&[(record.id, forkyard_vm::address(network, record))])
            .await?;
        // It may have been paused, or the daemon died in the middle of a fork,
        // with the guest holding still and its vCPUs stopped.
        match machine.run_state().await? {
            RunState::Paused => machine.cont().await?,
            // Its disk was full; whether it is now is seen by this.
            RunState::Failed => machine.cont().await.unwrap_or_else(|error| {
                tracing::debug!(vm = %record.name, error = &error as &dyn std::error::Error, "it cannot go on");
            }),
            RunState::Running | RunState::Waiting | RunState::Ended => {}
        }
        let (sender, calls) = mpsc::channel(forkyard_snapshot::CALLS);
        let guest = Guest::connect(machine.agent_socket(), sender).await?;
        let silence = guest.hello(HELLO).await.err();
        let body = Arc::new(RunningVm::new(machine, guest.clone()));
        let paused = record.state == VmState::Paused;
        match paused {
            // Its agent alone has run, to hear of its new host: it has held user
            // code still since the pause, and does until it is told otherwise.
            true => body.machine.stop().await?,
            false => body.guest.resume().await?,
        }
        let life = match paused {
            true => Life::Paused(body.clone()),
            false => Life::Running(body.clone()),
        };
        let mut vm = Vm::new(record.clone(), network, life);
        vm.ephemeral = lock(&self.families.tickets).has(vm.id);
        let vm = Arc::new(vm);
        self.parts.settle_chain(&vm, &*body.machine).await?;
        self.parts.seal_frozen(&vm.record());
        self.register_running(vm.clone(), calls);
        if let Some(error) = silence {
            self.await_agent(vm.clone(), &body, error);
        }
        Ok(vm)
    }

    /// Notes that a VM's agent is silent, until it says something.
    fn await_agent(&self, vm: Arc<Vm>, body: &Arc<RunningVm>, error: LinkError) {
        tracing::warn!(vm = %vm.name(), error = &error as &dyn std::error::Error, "its agent is silent");
        vm.set_unresponsive(body, Some(HostError::from(error).to_api().message));
        let (guest, body) = (body.guest.clone(), Arc::downgrade(body));
        tokio::spawn(async move {
            // It was asked already; what it says later is heard here, or the end
            // of its QEMU.
            if guest.hello_again().await.is_ok() {
                tracing::info!(vm = %vm.name(), "its agent answers");
                if let Some(body) = body.upgrade() {
                    vm.set_unresponsive(&body, None);
                }
            }
        });
    }

    fn network_of(&self, record: &VmRecord) -> Result<forkyard_network::Subnet, HostError> {
        let family = self.parts.store.family(record.family)?;
        let number = family
            .ok_or_else(|| HostError::Broken("its family is not on record".into()))?
            .number;
        Ok(network_of(number)?)
    }
}
