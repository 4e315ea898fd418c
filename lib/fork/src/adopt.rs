//! What an earlier daemon left: running VMs are taken over, half-made ones are
//! undone.

use crate::{
    Host, HostError,
    vm::{Body, Vm, network_of},
};
use forkyard_guestlink::Guest;
use forkyard_network::Ports;
use forkyard_store::VmRecord;
use forkyard_types::VmState;
use forkyard_vmm::{Engine, Machine as _, RunState};
use std::{sync::Arc, time::Duration};
use tokio::sync::mpsc;

/// How long the agent of a VM that ran may take to answer.
const HELLO: Duration = Duration::from_secs(30);

impl Host {
    /// Goes through the records; called once, before anyone else.
    pub(crate) async fn adopt_all(&self) -> Result<(), HostError> {
        self.retire_unused().await?;
        let records = self.store.vms()?;
        records
            .iter()
            .for_each(|record| self.registry().occupy(record));
        self.restore_networks(&records).await?;
        for record in &records {
            match record.state {
                // Nobody was ever told of it.
                VmState::Starting | VmState::Warm => self.erase(record).await,
                VmState::Running | VmState::Paused => self.adopt_or_note(record).await?,
                VmState::Checkpoint => {
                    if let Err(error) = self.serve_checkpoint(record).await {
                        tracing::error!(name = %record.name, error = &error as &dyn std::error::Error, "this checkpoint cannot be forked");
                    }
                    let vm = Vm::new(record.clone(), self.network_of(record)?, None);
                    self.registry().insert(Arc::new(vm));
                }
                VmState::Stopped => {
                    let vm = Vm::new(record.clone(), self.network_of(record)?, None);
                    self.registry().insert(Arc::new(vm));
                }
            }
        }
        for family in self.store.remove_empty_families()? {
            self.network.remove_family(family).await?;
        }
        Ok(())
    }

    /// Puts the families' rules in force again. Ports lead to founders that run,
    /// or ran when the last daemon looked.
    async fn restore_networks(&self, records: &[VmRecord]) -> Result<(), HostError> {
        for (family, policy) in self.store.networks()? {
            let founder_runs = records.iter().any(|vm| {
                vm.family == family.id
                    && vm.birth.is_none()
                    && [VmState::Running, VmState::Paused].contains(&vm.state)
            });
            let ports = founder_runs.then(|| match self.network.take_ports(&policy.publish) {
                Ok(ports) => ports,
                Err(error) => {
                    // They lead to the founder all the same, before that program.
                    tracing::warn!(family = %family.id, error = &error as &dyn std::error::Error, "taken meanwhile");
                    Ports::default()
                }
            });
            let subnet = network_of(family.number)?;
            self.network
                .restore_family(family.id, subnet, &policy, ports)
                .await?;
        }
        Ok(())
    }

    async fn adopt_or_note(&self, record: &VmRecord) -> Result<(), HostError> {
        match self.adopt(record).await {
            Ok(vm) => tracing::info!(vm = %vm.name(), "taken over"),
            Err(error) => {
                tracing::warn!(vm = %record.name, error = &error as &dyn std::error::Error, "not taken over: it counts as stopped");
                let vm = Vm::new(record.clone(), self.network_of(record)?, None);
                self.discard_process(record).await;
                self.end_body(&vm).await;
                vm.change(&self.store, |record| {
                    record.state = VmState::Stopped;
                    record.machine = None;
                })?;
                self.registry().insert(Arc::new(vm));
            }
        }
        Ok(())
    }

    async fn adopt(&self, record: &VmRecord) -> Result<Arc<Vm>, HostError> {
        let network = self.network_of(record)?;
        let machine = record.machine.as_deref().unwrap_or_default();
        let machine =
            serde_json::from_str(machine).map_err(|e| HostError::Invalid(e.to_string()))?;
        let machine = self.engine.adopt(machine).await?;
        self.network
            .admit(&[(record.id, crate::vm::address(network, record))])
            .await?;
        // It may have been paused, or the daemon died in the middle of a fork,
        // with the guest holding still and its vCPUs stopped.
        if machine.run_state().await? == RunState::Paused {
            machine.cont().await?;
        }
        let (sender, calls) = mpsc::channel(crate::calls::WAITING);
        let guest = Guest::connect(machine.agent_socket(), sender).await?;
        guest.hello(HELLO).await?;
        let body = Body::new(machine, guest);
        match record.state == VmState::Paused {
            // Its agent alone has run, to hear of its new host: it has held user
            // code still since the pause, and does until it is told otherwise.
            true => body.machine.stop().await?,
            false => body.guest.resume().await?,
        }
        let vm = Arc::new(Vm::new(record.clone(), network, Some(body)));
        self.settle_chain(&vm, &vm.body()?.machine).await?;
        self.take_in(vm.clone(), calls);
        self.keep_warm(&vm, 0);
        Ok(vm)
    }

    fn network_of(&self, record: &VmRecord) -> Result<forkyard_network::Subnet, HostError> {
        let family = self.store.family(record.family)?;
        let number = family
            .ok_or_else(|| HostError::Invalid("the family is not recorded".into()))?
            .number;
        network_of(number)
    }
}
