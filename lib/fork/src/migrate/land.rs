//! A VM that stands still elsewhere and goes on here.

use super::{Images, arrive::Waiting};
use crate::{
    Host, HostError,
    life::{Body, Life},
    remote::unpacked,
    snapshot::WarmShell,
    vm::Vm,
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
            volume,
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
            let disk = async {
                match (&land.disk, here.disk, &land.snapshot, &volume) {
                    (Some(disk), Some(here), None, None) => {
                        self.fetch_over(&coming, disk, here).await
                    }
                    (None, None, Some(snapshot), Some(_)) => {
                        self.volume_came(land.migration, snapshot).await
                    }
                    _ => Err(HostError::Invalid("its disk is not what was said".into())),
                }
            };
            let memory = self.fetch_over(&coming, &land.memory, here.memory);
            let (memory, disk) = tokio::join!(memory, disk);
            memory.and(disk)?;
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
                // From here on it is here.
                vm.enter(&self.store, Life::Running(body.clone()), |_| {})?;
                self.store.put_landed(land.migration, &self.view_of(&vm))?;
                match &volume {
                    Some(volume) => self.volume_landed(volume),
                    None => Ok(()),
                }
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
                    host.tidy(&vm);
                    host.keep_warm(&vm, Vec::new());
                });
                Ok(Landed { vm: view, took_us })
            }
            Err(error) => {
                self.erase(&record).await;
                let images: Vec<_> = here.all().chain(last.all()).collect();
                self.forget_images(coming, &images).await;
                self.give_up_volume(land.migration).await;
                self.end_family_if_empty(record.family).await;
                Err(error)
            }
        }
    }

    /// Lets a VM go on that has landed, and has its family's hosts know where it is: those that this
    /// one tells at once.
    async fn find_here(&self, vm: &Arc<Vm>) {
        let resumed = async {
            match vm.body() {
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
