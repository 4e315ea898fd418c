//! A VM that stands still elsewhere and goes on here.

use super::{Images, arrive::Waiting};
use crate::{
    Host, HostError,
    life::{Body, Life},
    remote::unpacked,
    snapshot::WarmShell,
    vm::{Vm, address},
};
use forkyard_guestlink::Session;
use forkyard_types::{Landed, PeerLand, VmState};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::{Instrument as _, debug_span};

/// Time the agent of a guest that was loaded may take to answer.
const HELLO: Duration = Duration::from_secs(60);

impl Host {
    /// Loads what has come, and lets it go on. If it cannot, nothing is left of it.
    pub(super) async fn let_go_on(
        &self,
        waiting: Waiting,
        land: &PeerLand,
        begun: Instant,
    ) -> Result<Landed, HostError> {
        let Waiting {
            shell,
            layout,
            coming,
            here,
            devices,
            terms,
            written,
            ports,
            is_paused,
            ..
        } = waiting;
        let WarmShell {
            mut record,
            shell,
            guest,
            calls,
        } = shell;
        let last = Images {
            memory: land.memory.image,
            disk: land.disk.as_ref().map(|disk| disk.image),
        };
        let outcome = async {
            let devices = unpacked(&land.devices, &devices)?;
            let unlike = || HostError::Invalid("its disks are not what was said".into());
            let disk = async {
                match (&land.disk, here.disk) {
                    (Some(disk), Some(here)) => self.fetch_over(&coming, disk, here).await,
                    (None, None) => Ok(()),
                    (Some(_), None) | (None, Some(_)) => Err(unlike()),
                }
            };
            let volumes = async {
                if !land.snapshots.iter().map(|at| &at.volume).eq(&written) {
                    return Err(unlike());
                }
                for at in &land.snapshots {
                    self.volume_came(land.migration, at).await?;
                }
                Ok(())
            };
            let memory = self.fetch_over(&coming, &land.memory, here.memory);
            let (memory, disk, volumes) = tokio::join!(memory, disk, volumes);
            memory.and(disk).and(volumes)?;
            self.all_here(&record.name, last.all())
                .instrument(debug_span!("last pages"))
                .await?;
            record.state = VmState::Starting;
            self.store.put_vm(&record)?;
            let commands: Vec<_> = land.commands.iter().copied().map(Session).collect();
            let commands = guest.take_over(&commands);
            let machine = shell.load(&devices).instrument(debug_span!("load")).await?;
            let body = Arc::new(Body::new(machine, guest.clone()));
            let life = Life::Starting {
                body: Some(body.clone()),
                again: false,
            };
            let vm = Arc::new(Vm::new(record.clone(), layout.of.network, life));
            let ready = async {
                let hello = guest.hello_after_move(HELLO);
                hello.instrument(debug_span!("hello")).await?;
                self.network.open_port(record.family, record.id).await?;
                if !record.publish.is_empty() {
                    let (to, ports_of_it) =
                        (address(layout.of.network, &record).ip, &record.publish);
                    let published = self.network.publish(record.family, to, ports_of_it, ports);
                    published.await?;
                }
                let life = match is_paused {
                    // Its agent alone has run, to hear of its new host.
                    true => {
                        body.machine.stop().await?;
                        Life::Paused(body.clone())
                    }
                    false => Life::Running(body.clone()),
                };
                // From here on it is here.
                vm.enter(&self.store, life, |_| {})?;
                self.store.put_landed(land.migration, &self.view_of(&vm))?;
                self.volumes_landed(&vm.record())
            };
            if let Err(error) = ready.await {
                self.end_body(&vm).await;
                // Otherwise its former host would be told that it is here, and end it, too.
                self.store.remove_landed(land.migration)?;
                return Err(error);
            }
            Ok((vm, commands))
        };
        match outcome.await {
            Ok((vm, commands)) => {
                self.keep_commands(land, commands);
                self.incoming.volumes.forget(land.migration);
                self.take_in(vm.clone(), calls);
                if let Err(error) = self.take_terms(&vm, terms) {
                    tracing::warn!(vm = %vm.name(), error = &error as &dyn std::error::Error, "its labels and lifetime did not come along");
                }
                self.find_here(&vm).await;
                let took_us = crate::fork::micros(begun.elapsed());
                tracing::info!(vm = %vm.name(), took_us, "landed");
                let view = self.view_of(&vm);
                let host = self.handle();
                // Takes as long as they are large: the other host, and through it others, wait for
                // the answer.
                tokio::spawn(async move {
                    let Some(host) = host.upgrade() else { return };
                    let here: Vec<_> = here.all().collect();
                    host.forget_images(coming, &here).await;
                    host.forget_where_it_was(vm.id).await;
                    host.forget_former(vm.id).await;
                    host.tidy(&vm);
                    host.keep_warm(&vm, Vec::new());
                });
                Ok(Landed { vm: view, took_us })
            }
            Err(error) => {
                self.erase(&record).await;
                let images: Vec<_> = here.all().chain(last.all()).collect();
                self.forget_images(coming, &images).await;
                self.give_up_volumes(land.migration).await;
                self.end_family_if_empty(record.family).await;
                Err(error)
            }
        }
    }

    /// Lets a VM go on that has landed, unless it is paused, and has its family's hosts know where it is: those that this
    /// one tells at once.
    async fn find_here(&self, vm: &Arc<Vm>) {
        let resumed = async {
            match vm.body() {
                Ok(_) if vm.is_paused() => Ok(()),
                Ok(body) => Ok(body.guest.resume().await?),
                Err(error) => Err(error),
            }
        };
        let (resumed, ()) = tokio::join!(resumed, self.try_to_stretch(vm.record().family));
        if let Err(error) = resumed {
            // It is heard of as any agent that does not answer.
            tracing::warn!(vm = %vm.name(), error = &error as &dyn std::error::Error, "its agent was not told to go on");
        }
        let host = self.handle();
        tokio::spawn(async move {
            if let Some(host) = host.upgrade() {
                host.tell_borrowers().await;
            }
        });
    }
}
