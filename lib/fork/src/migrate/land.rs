//! VMs that stand still elsewhere and go on here: one, or several as one.
//!
//! ```text
//! loaded, user code held --- all of them ---> recorded at one stroke (A) ---> let go
//!       |                                          |
//!       `---------------- one fails ---------------'--> nothing is left of any
//! ```

use super::{
    Images,
    arrive::{Stage, Waiting},
};
use crate::{
    Host, HostError, micros,
    remote::{Coming, unpacked},
};
use forkyard_agent_link::{CallId, Request, Session, Visitors};
use forkyard_records::{Landing, VmRecord};
use forkyard_snapshot::WarmShell;
use forkyard_types::{Landed, PeerLand, PeerMigrated, Terms, VmState, VmView};
use forkyard_vm::{Life, RunningVm, Vm, address};
use futures::future::join_all;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use tracing::{Instrument as _, debug_span, instrument};

/// Time the agent of a guest that was loaded may take to answer.
const HELLO: Duration = Duration::from_secs(60);

/// A VM that was loaded, and whose user code is held.
struct Loaded {
    vm: Arc<Vm>,
    body: Arc<RunningVm>,
    is_paused: bool,
    land: PeerLand,
    commands: Visitors,
    calls: mpsc::Receiver<(CallId, Request)>,
    terms: Terms,
    coming: Coming,
    here: Images,
}

impl Host {
    #[instrument(name = "land", skip_all, fields(migration = %land.migration))]
    pub(super) async fn land(&self, land: PeerLand) -> Result<PeerMigrated, HostError> {
        let landed = self.land_all(vec![land]).await?;
        let landed = landed.into_iter().next();
        let landed = landed.ok_or_else(|| HostError::Broken("nothing landed".into()))?;
        Ok(PeerMigrated::Landed(Box::new(landed)))
    }

    /// Has several VMs go on here, or none of them.
    #[instrument(name = "land", skip_all, fields(vms = lands.len()))]
    pub(super) async fn land_together(
        &self,
        lands: Vec<PeerLand>,
    ) -> Result<PeerMigrated, HostError> {
        Ok(PeerMigrated::LandedTogether(self.land_all(lands).await?))
    }

    async fn land_all(&self, lands: Vec<PeerLand>) -> Result<Vec<Landed>, HostError> {
        let begun = Instant::now();
        let migrations: Vec<_> = lands.iter().map(|land| land.migration).collect();
        let mut waiting = Vec::new();
        for land in lands {
            match self.take_waiting(land.migration, Stage::Landing) {
                Ok(it) => waiting.push((*it, land)),
                Err(error) => {
                    for (waiting, land) in waiting {
                        self.dispose(waiting).await;
                        self.give_up_volumes(land.migration).await;
                        self.over_with(land.migration);
                    }
                    return Err(error);
                }
            }
        }
        let loads = waiting.into_iter().map(|(it, land)| self.load(it, land));
        let loaded = join_all(loads).await;
        let landed = self.let_all_go_on(loaded, begun).await;
        for migration in migrations {
            self.over_with(migration);
        }
        landed
    }

    async fn let_all_go_on(
        &self,
        loaded: Vec<Result<Loaded, HostError>>,
        begun: Instant,
    ) -> Result<Vec<Landed>, HostError> {
        let (mut all, mut failed) = (Vec::new(), None);
        for loaded in loaded {
            match loaded {
                Ok(loaded) => all.push(loaded),
                Err(error) => failed = Some(error),
            }
        }
        let recorded = match failed {
            Some(error) => Err(error),
            None => self.record_landed(&all),
        };
        if let Err(error) = recorded {
            // Otherwise their former host would be told that they are here, and end them, too.
            let came: Vec<_> = { all.iter() }
                .map(|loaded| (loaded.land.migration, loaded.vm.id))
                .collect();
            let removed = self.parts.store.unland(&came);
            for loaded in all {
                self.unload(loaded).await;
            }
            return Err(removed.err().map_or(error, HostError::from));
        }
        Ok(join_all(all.into_iter().map(|loaded| self.let_go(loaded, begun))).await)
    }

    /// Records VMs as running here: all of them are from here on, and survive a power cut if volumes
    /// came with them.
    fn record_landed(&self, all: &[Loaded]) -> Result<(), HostError> {
        let landings = all.iter().map(|loaded| {
            let state = match loaded.is_paused {
                true => VmState::Paused,
                false => VmState::Running,
            };
            Landing {
                migration: loaded.land.migration,
                vm: VmRecord {
                    state,
                    ..loaded.vm.record()
                },
                view: VmView {
                    state,
                    ..self.view_of(&loaded.vm)
                },
            }
        });
        self.parts.store.land(&landings.collect::<Vec<_>>())?;
        for loaded in all {
            loaded.vm.entered(match loaded.is_paused {
                true => Life::Paused(loaded.body.clone()),
                false => Life::Running(loaded.body.clone()),
            });
            self.volumes_landed(&loaded.vm.record())?;
        }
        Ok(())
    }

    /// Loads what has come; its user code is held. If it cannot, nothing is left of it.
    async fn load(&self, waiting: Waiting, land: PeerLand) -> Result<Loaded, HostError> {
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
        let last = last_of(&land);
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
            self.parts.store.put_vm(&record)?;
            let commands: Vec<_> = land.commands.iter().copied().map(Session).collect();
            let commands = guest.take_over(&commands);
            let machine = shell
                .load(&devices, None)
                .instrument(debug_span!("load"))
                .await?;
            let body = Arc::new(RunningVm::new(machine, guest.clone()));
            let life = Life::Starting {
                body: Some(body.clone()),
                again: false,
            };
            let vm = Arc::new(Vm::new(record.clone(), layout.of.network, life));
            let ready = async {
                let hello = guest.hello_after_move(HELLO);
                hello.instrument(debug_span!("hello")).await?;
                if !record.publish.is_empty() {
                    let to = address(layout.of.network, &record).ip;
                    let (family, wanted) = (record.family, &record.publish);
                    self.parts
                        .network
                        .publish(family, to, wanted, ports)
                        .await?;
                }
                match is_paused {
                    // Its agent alone has run, to hear of its new host.
                    true => Ok(body.machine.stop().await?),
                    false => Ok::<_, HostError>(()),
                }
            };
            if let Err(error) = ready.await {
                self.end_running(&vm).await;
                return Err(error);
            }
            Ok((vm, body, commands))
        };
        match outcome.await {
            Ok((vm, body, commands)) => Ok(Loaded {
                vm,
                body,
                is_paused,
                land,
                commands,
                calls,
                terms,
                coming,
                here,
            }),
            Err(error) => {
                let of = (record.family, record.member, record.id);
                self.expect_no_frames(of).await;
                self.snapshots.erase(&record).await;
                let images: Vec<_> = here.all().chain(last.all()).collect();
                self.forget_images(coming, &images).await;
                self.give_up_volumes(land.migration).await;
                self.end_family_if_empty(record.family).await;
                Err(error)
            }
        }
    }

    /// Ends one that was loaded and is not to go on here. Nothing is left of it.
    async fn unload(&self, loaded: Loaded) {
        let record = loaded.vm.record();
        self.end_running(&loaded.vm).await;
        let of = (record.family, record.member, record.id);
        self.expect_no_frames(of).await;
        self.snapshots.erase(&record).await;
        let images = loaded.here.all().chain(last_of(&loaded.land).all());
        let images: Vec<_> = images.collect();
        self.forget_images(loaded.coming, &images).await;
        self.give_up_volumes(loaded.land.migration).await;
        self.end_family_if_empty(record.family).await;
    }

    /// Lets one go on that is recorded.
    async fn let_go(&self, loaded: Loaded, begun: Instant) -> Landed {
        let Loaded {
            vm,
            land,
            commands,
            calls,
            terms,
            coming,
            here,
            ..
        } = loaded;
        self.keep_commands(&land, commands);
        self.incoming.volumes.forget(land.migration);
        self.register_running(vm.clone(), calls);
        if let Err(error) = self.take_terms(&vm, terms) {
            tracing::warn!(vm = %vm.name(), error = &error as &dyn std::error::Error, "its labels and lifetime did not come along");
        }
        self.find_here(&vm).await;
        let took_us = micros(begun.elapsed());
        tracing::info!(vm = %vm.name(), took_us, "landed");
        let view = self.view_of(&vm);
        let host = self.handle();
        // Takes as long as they are large: the other host, and through it others, wait for the answer.
        tokio::spawn(async move {
            let Some(host) = host.upgrade() else { return };
            let here: Vec<_> = here.all().collect();
            host.forget_images(coming, &here).await;
            host.forget_where_it_was(vm.id).await;
            host.forget_former(vm.id).await;
            host.snapshots.tidy(&vm);
            host.keep_warm(&vm, Vec::new());
        });
        Landed { vm: view, took_us }
    }

    /// Lets a VM go on that has landed, unless it is paused, and has its family's hosts know where it
    /// is: those that this one tells at once.
    async fn find_here(&self, vm: &Arc<Vm>) {
        let resumed = async {
            match vm.running() {
                Ok(_) if vm.is_paused() => Ok(()),
                Ok(body) => Ok(body.guest.resume().await?),
                Err(error) => Err(error),
            }
        };
        let (resumed, ()) = tokio::join!(resumed, self.announce(vm));
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

/// Images that a VM lies over in the end.
fn last_of(land: &PeerLand) -> Images {
    Images {
        memory: land.memory.image,
        disk: land.disk.as_ref().map(|disk| disk.image),
    }
}
