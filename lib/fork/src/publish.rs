//! Ports of the host that lead to VMs while these run, and addresses of the VMs' own.
//!
//! ```text
//! recorded --> taken --> rules          each undone if the next one fails
//! ```
//!
//! They are in the VM's record alone. A daemon that dies in between leaves a port that is recorded,
//! and which the next one takes.

use crate::{Host, HostError};
use forkyard_agent_link::{Command, ExecOut};
use forkyard_types::{ExitStatus, Publish, Route, Unpublish, VmView};
use forkyard_vm::{Vm, address};
use std::sync::Arc;
use tokio::time::timeout;

/// The agent's program, in every guest.
const PROGRAM: &str = "/opt/forkyard/bin/forkyard-guest";
/// Most ports of the host that lead to one VM, its own addresses among them.
const MOST: usize = 256;

impl Host {
    /// Has more ports of the host lead to a VM that runs, and gives it more addresses of its own. Not cancel-safe: run it on a task of
    /// its own.
    pub async fn publish_ports(&self, vm: &str, more: &[Publish]) -> Result<VmView, HostError> {
        let vm = self.vm(vm)?;
        let _turn = vm.turn().await;
        vm.answering()?;
        let record = vm.record();
        let of_it = record.publish.len() + more.len();
        if more.is_empty() || of_it > MOST {
            return Err(HostError::Invalid(format!(
                "{} ports, with which {of_it} would lead to {}: wanted 1 or more, and {MOST} in all",
                more.len(),
                vm.name(),
            )));
        }
        let ports = self.parts.network.take_new_ports(more).await?;
        if self.parts.network.route(record.family).is_none() {
            let route = Route {
                gateway: vm.network.gateway(),
                resolvers: Vec::new(),
            };
            self.tell_route(&vm, &route).await?;
        }
        vm.change(&self.parts.store, |record| record.publish.extend(more))?;
        let to = address(vm.network, &record).ip;
        if let Err(error) = self
            .parts
            .network
            .publish(record.family, to, more, ports)
            .await
        {
            vm.change(&self.parts.store, |now| {
                now.publish.clone_from(&record.publish)
            })?;
            return Err(error.into());
        }
        Ok(self.view_of(&vm))
    }

    /// Closes a port of the host that leads to a VM, on whichever addresses, or takes an address of its
    /// own from it. Connections that are open go on. Not cancel-safe: run it on a task of its own.
    pub async fn unpublish(&self, vm: &str, what: Unpublish) -> Result<VmView, HostError> {
        let vm = self.vm(vm)?;
        let _turn = vm.turn().await;
        let record = vm.record();
        let mut kept = record.publish.clone();
        kept.retain(|it| !what.closes(*it));
        if kept.len() == record.publish.len() {
            return Err(HostError::NotPublished {
                vm: vm.name(),
                what,
            });
        }
        vm.change(&self.parts.store, |record| record.publish.clone_from(&kept))?;
        let to = address(vm.network, &record).ip;
        self.parts
            .network
            .unpublish(record.family, to, &kept)
            .await?;
        Ok(self.view_of(&vm))
    }

    /// Closes all ports that lead to a VM which has ended.
    pub(crate) async fn close_ports(&self, vm: &Vm) -> Result<(), HostError> {
        let record = vm.record();
        let to = address(vm.network, &record).ip;
        Ok(self.parts.network.unpublish(record.family, to, &[]).await?)
    }

    /// Tells a guest of its way out.
    pub(crate) async fn tell_route(&self, vm: &Arc<Vm>, route: &Route) -> Result<(), HostError> {
        let body = vm.answering()?;
        let mut argv = vec![
            PROGRAM.to_owned(),
            "route".to_owned(),
            route.gateway.to_string(),
        ];
        argv.extend(route.resolvers.iter().map(ToString::to_string));
        let mut running = body.guest.exec(Command::of_root(argv)).await?;
        let mut said = Vec::new();
        let ended = async {
            loop {
                match running.next().await {
                    Some(ExecOut::Ended(ExitStatus::Code(0))) => return Ok(()),
                    Some(ExecOut::Lost(error)) => return Err(HostError::from(error)),
                    Some(ExecOut::Output { data, .. }) => {
                        let room = 512_usize.saturating_sub(said.len());
                        said.extend_from_slice(&data[..room.min(data.len())]);
                    }
                    Some(ExecOut::Ended(_) | ExecOut::NotStarted(_)) | None => {
                        let said = String::from_utf8_lossy(&said).trim().to_owned();
                        return Err(HostError::NoWayOut {
                            vm: vm.name(),
                            said,
                        });
                    }
                    Some(ExecOut::Started { .. } | ExecOut::Kept(_)) => {}
                }
            }
        };
        let late = || HostError::NoWayOut {
            vm: vm.name(),
            said: "it did not answer in time".to_owned(),
        };
        let told = timeout(self.parts.options.patience, ended).await;
        told.unwrap_or_else(|_| Err(late()))
    }
}
