//! A VM that moved, and one of which it is not known whether it did.

use super::leave::{end_of, key};
use crate::{Host, HostError};
use forkyard_records::Moving;
use forkyard_types::{ForkId, Landed, PeerMigrated, VmId, VmView};
use forkyard_vm::{Life, Turn, Vm, lock};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};

/// Knowledge of whether a VM goes on elsewhere.
enum Known {
    Landed(Box<Landed>),
    /// The VM never will.
    Ended,
}

/// Most that a request waits for a VM that is being handed over: a gap lasts some tens of
/// milliseconds, and is longer where the other host is slow or out of reach.
const SETTLING: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

impl Host {
    /// Waits while a VM, by name or id, is being handed over to another host, up to 10 s: what
    /// is asked of it meanwhile is for the host that it goes on at. Cancel-safe.
    pub async fn settled(&self, word: &str) {
        let moves = async || {
            while self
                .parts
                .registry()
                .find(word)
                .is_ok_and(|vm| vm.is_moving())
            {
                sleep(LOOK).await;
            }
        };
        // After that the answer is that it may run elsewhere.
        let _late = timeout(SETTLING, moves()).await;
    }

    /// Lets a VM go on that stood still to be moved, and was not; one that its user wants to stand
    /// still does. Its turn is the caller's.
    pub(super) async fn back(&self, vm: &Vm) -> Result<(), HostError> {
        self.pass_on_no_more(vm).await;
        if !was_paused(vm)
            && let Ok(body) = vm.running()
        {
            vm.enter(&self.parts.store, Life::Running(body.clone()), |_| {})?;
            body.go_on().await?;
        }
        self.no_longer_moving(vm).await
    }

    async fn no_longer_moving(&self, vm: &Vm) -> Result<(), HostError> {
        self.parts.store.remove_moving(vm.id)?;
        *lock(&vm.moving) = None;
        self.pass_on_no_more(vm).await;
        Ok(())
    }

    /// Asks the other host whether a VM goes on there, of which this error says nothing. If it
    /// does not, it goes on here.
    pub(super) async fn ask_or(&self, vm: &Vm, error: HostError) -> Result<Landed, HostError> {
        let Some(moving) = lock(&vm.moving).clone() else {
            return Err(error);
        };
        match self.ask_whether(vm.id, &moving).await {
            Ok(Known::Landed(landed)) => Ok(*landed),
            Ok(Known::Ended) => {
                self.back(vm).await?;
                Err(error)
            }
            Err(_) => Err(HostError::Unsettled {
                vm: vm.name(),
                host: moving.peer,
                source: error.to_api(),
            }),
        }
    }

    /// The VMs that another host was asked to let go on, of which it is not known yet whether
    /// they do: that host tells others of them if so.
    pub fn leaving(&self) -> Result<BTreeSet<VmId>, HostError> {
        let moving = self.parts.store.moving()?;
        Ok(moving.into_iter().map(|(vm, _)| vm).collect())
    }

    async fn ask_whether(&self, vm: VmId, moving: &Moving) -> Result<Known, HostError> {
        let neighbours = self.neighbours().ok_or(HostError::NoPeers)?;
        // A node that was cut off ends its VMs before the others take it for lost.
        if neighbours.is_lost(&moving.peer) || neighbours.is_gone(&moving.peer) {
            return Ok(Known::Ended);
        }
        let peer = self.peer(&moving.peer)?;
        let asked = peer.migration(end_of(moving, vm));
        let failed = |source| HostError::Peer {
            peer: moving.peer.clone(),
            source,
        };
        let answer = timeout(self.parts.options.patience, asked).await;
        let answer =
            answer.unwrap_or_else(|_| Err(crate::remote::late(self.parts.options.patience)));
        match answer.map_err(failed)? {
            PeerMigrated::Landed(landed) => Ok(Known::Landed(landed)),
            PeerMigrated::Ended => Ok(Known::Ended),
            PeerMigrated::Here
            | PeerMigrated::LandedTogether(_)
            | PeerMigrated::Cpu(_)
            | PeerMigrated::Kept(_)
            | PeerMigrated::Since(_) => Err(crate::remote::untold(
                &moving.peer,
                "whether the VM runs there",
            )),
        }
    }

    /// Settles what VMs are that another host was asked to let go on, as far as that says.
    pub(crate) async fn settle_moving(&self) {
        for broken in self.broken_off() {
            let moving = Moving {
                peer: broken.peer,
                migration: broken.migration,
                was_paused: false,
            };
            if let Ok(Known::Ended) = self.ask_whether(broken.vm, &moving).await {
                self.release_moved(key(&moving)).await;
            }
        }
        let vms = self.parts.registry().all();
        for vm in vms {
            let Some(moving) = lock(&vm.moving).clone() else {
                continue;
            };
            // The host that has it is moving it.
            let Some(turn) = vm.try_turn() else {
                continue;
            };
            match self.ask_whether(vm.id, &moving).await {
                Ok(Known::Landed(landed)) => {
                    tracing::info!(vm = %vm.name(), to = moving.peer, "it goes on there");
                    self.left(&vm, turn, key(&moving), *landed).await;
                }
                Ok(Known::Ended) => {
                    tracing::info!(vm = %vm.name(), from = moving.peer, "it goes on here");
                    self.release_moved(key(&moving)).await;
                    if let Err(error) = self.take_back(&vm).await {
                        tracing::error!(vm = %vm.name(), error = &error as &dyn std::error::Error, "not let go on");
                    }
                }
                Err(error) => {
                    tracing::debug!(vm = %vm.name(), error = &error as &dyn std::error::Error, "not known yet where it goes on");
                }
            }
        }
    }

    /// A VM goes on here that this daemon, or the one before, had stopped.
    async fn take_back(&self, vm: &Arc<Vm>) -> Result<(), HostError> {
        if vm.running().is_ok() {
            return self.back(vm).await;
        }
        let was_paused = was_paused(vm);
        self.no_longer_moving(vm).await?;
        if matches!(vm.life(), Life::Unreached { .. }) {
            // As one that this daemon finds running: it is told to go on.
            let (why, paused) = ("it is taken over".to_owned(), was_paused);
            vm.enter(&self.parts.store, Life::Unreached { why, paused }, |_| {})?;
            self.adopt_or_note(&vm.record()).await?;
        }
        Ok(())
    }

    /// A VM goes on elsewhere: what it had here goes, and others are told where it is.
    pub(super) async fn left(
        &self,
        vm: &Arc<Vm>,
        turn: Turn<'_>,
        (migration, peer): (ForkId, &str),
        landed: Landed,
    ) -> VmView {
        let view = VmView {
            host: Some(peer.to_owned()),
            ..landed.vm
        };
        // Before its record goes: a volume that no record and no copy speaks of is at home.
        if let Err(error) = self.volumes_left(&vm.record(), peer) {
            // Asked about again within a second.
            tracing::error!(vm = %vm.name(), error = &error as &dyn std::error::Error, "not ended yet");
            return view;
        }
        self.supply_soon();
        // From here on it is listed there.
        self.answered((migration, peer), vec![view.clone()]);
        // A VM that has left is neither forked nor resumed.
        let body = vm.take_running();
        vm.pass(Life::Ending);
        if let Ok(Some(to)) = self.tunnel_at(vm.record().family, peer) {
            self.has_left(vm, to);
        }
        if let Some(body) = &body {
            self.follow_commands(body, (migration, peer));
        }
        // Before anything is ended here: they send to this host until they are told.
        let host = self.handle();
        tokio::spawn(async move {
            if let Some(host) = host.upgrade() {
                host.tell_borrowers().await;
            }
        });
        if let Some(body) = body
            && let Err(error) = body.machine.kill().await
        {
            tracing::warn!(vm = %vm.name(), error = &error as &dyn std::error::Error, "QEMU not ended");
        }
        self.try_to_sync_overlay(vm.record().family).await;
        drop(turn);
        self.end_alone(vm, None).await;
        self.retire_offered((migration, peer)).await;
        if let Err(error) = self.parts.store.remove_moving(vm.id) {
            tracing::warn!(vm = %vm.name(), error = &error as &dyn std::error::Error, "still noted as moving");
        }
        view
    }
}

/// Tells whether a VM that another host was asked to let go on stood still before.
fn was_paused(vm: &Vm) -> bool {
    let moving = lock(&vm.moving);
    moving.as_ref().is_some_and(|moving| moving.was_paused)
}
