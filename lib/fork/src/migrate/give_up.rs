//! Migrations to this host that come to nothing: ended by the host that the VM leaves, replaced by
//! another, or forgotten.

use super::arrive::{Stage, Waiting};
use crate::Host;
use forkyard_types::{ForkId, Landed, PeerEndMigration, PeerMigrated, VmView};
use forkyard_vm::lock;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// A migration of which nothing was heard for so long is given up.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Between two looks for those.
const LOOK: Duration = Duration::from_secs(30);

impl Host {
    /// Gives a migration up, unless its VM is here. Once this says so, it never comes.
    pub(super) async fn end_migration(&self, end: PeerEndMigration) -> PeerMigrated {
        if self.end_stage(end.migration).await {
            return PeerMigrated::Ended;
        }
        let landed = self.is_landed(end);
        if let PeerMigrated::Ended = landed {
            self.give_up_volumes(end.migration).await;
        }
        landed
    }

    /// Ends a migration that has not landed; false if none is under way. One that lands is waited
    /// for.
    async fn end_stage(&self, migration: ForkId) -> bool {
        loop {
            let over = self.incoming.over.notified();
            let mut over = std::pin::pin!(over);
            // Before it is looked: what happens from here on is heard.
            over.as_mut().enable();
            let stage = {
                let mut stages = lock(&self.incoming.stages);
                let stage = stages.remove(&migration);
                match &stage {
                    Some(Stage::Preparing { .. }) => {
                        stages.insert(migration, Stage::Preparing { ended: true });
                    }
                    Some(Stage::Landing) => {
                        stages.insert(migration, Stage::Landing);
                    }
                    Some(Stage::Waiting(_)) | None => {}
                }
                stage
            };
            match stage {
                Some(Stage::Landing) => {}
                // The task that prepares it gives it up.
                Some(Stage::Preparing { .. }) => return true,
                Some(Stage::Waiting(waiting)) => {
                    self.dispose(*waiting).await;
                    self.give_up_volumes(migration).await;
                    return true;
                }
                None => return false,
            }
            over.await;
        }
    }

    /// Ends an earlier migration of a volume whose host has begun another: nothing more is heard of
    /// it. Waits until nothing of it is left, but not for ever.
    pub(crate) async fn end_former(&self, migration: ForkId) {
        let ended = async {
            loop {
                let mut over = std::pin::pin!(self.incoming.over.notified());
                over.as_mut().enable();
                if !self.end_stage(migration).await {
                    return self.give_up_volumes(migration).await;
                }
                if self.incoming.knows(migration) {
                    over.await;
                }
            }
        };
        if timeout(self.parts.options.patience, ended).await.is_err() {
            tracing::warn!(%migration, "not ended yet, and another begins");
        }
    }

    /// Decides by the records whether the VM has landed: it may have gone on
    /// from here since, or have been removed.
    fn is_landed(&self, PeerEndMigration { migration, vm }: PeerEndMigration) -> PeerMigrated {
        let here = self.parts.registry().get(vm);
        let landed = match self.parts.store.landed(migration) {
            Ok(landed) => landed,
            Err(error) => {
                tracing::error!(%migration, error = &error as &dyn std::error::Error, "not known whether it landed");
                None
            }
        };
        match (here, landed) {
            (Some(vm), Some(_)) => landed_now(self.view_of(&vm)),
            (None, Some(view)) => landed_now(view),
            (Some(vm), None) if lock(&vm.moving).is_none() => landed_now(self.view_of(&vm)),
            (Some(_) | None, None) => PeerMigrated::Ended,
        }
    }

    /// Ends a machine that waits, and all that came for it.
    pub(super) async fn dispose(&self, waiting: Waiting) {
        let Waiting {
            shell,
            layout,
            coming,
            here,
            ..
        } = waiting;
        let last = [Some(layout.memory), layout.disk.base()];
        let of = &shell.record;
        self.expect_no_frames((of.family, of.member, of.id)).await;
        self.snapshots.end_shells(vec![shell]).await;
        let images: Vec<_> = here.all().chain(last.into_iter().flatten()).collect();
        self.forget_images(coming, &images).await;
        self.end_family_if_empty(layout.of.family).await;
    }

    /// Ends all machines that wait, and drops what is kept of VMs that have left: the daemon ends.
    pub(crate) async fn end_incoming(&self) {
        self.forget_all_former().await;
        let stages = std::mem::take(&mut *lock(&self.incoming.stages));
        for stage in stages.into_values() {
            if let Stage::Waiting(waiting) = stage {
                self.dispose(*waiting).await;
            }
        }
    }

    /// Gives a migration up of which nothing more is heard.
    pub(super) fn forget_later(&self, migration: ForkId) {
        let host = self.handle();
        tokio::spawn(async move {
            loop {
                sleep(LOOK).await;
                let Some(host) = host.upgrade() else { return };
                let forgotten = {
                    let mut stages = lock(&host.incoming.stages);
                    match stages.get(&migration) {
                        None => return,
                        Some(Stage::Waiting(waiting)) if waiting.heard.elapsed() > FORGOTTEN => {
                            stages.remove(&migration)
                        }
                        Some(Stage::Waiting(_) | Stage::Preparing { .. } | Stage::Landing) => None,
                    }
                };
                if let Some(Stage::Waiting(waiting)) = forgotten {
                    tracing::warn!(%migration, "given up: nothing was heard of it");
                    host.dispose(*waiting).await;
                    return host.give_up_volumes(migration).await;
                }
            }
        });
    }
}

fn landed_now(vm: VmView) -> PeerMigrated {
    PeerMigrated::Landed(Box::new(Landed { vm, took_us: 0 }))
}
