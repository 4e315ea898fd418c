//! Volumes that come without a VM, on the host that they come to.
//!
//! | fails | then |
//! |---|---|
//! | a stream, or the daemon before `Land` | what was new here goes; a copy is as it was, by the next stream |
//! | the daemon while it lands | its record, or the authority's, says whether it did |

use super::{super::over, plan::Plan};
use crate::{
    Host, HostError, blocking,
    volumes::{VolumeError, is_private, writer_of},
};
use forkyard_blockd::{Held, Request, Status, Writer};
use forkyard_records::{VolumeCopy, VolumeMove};
use forkyard_types::{
    PeerVolumeAnswer, PeerVolumeEnd, PeerVolumeLand, PeerVolumePrepare, PeerVolumePrepared,
    PeerVolumeStep, VmName, VolumeAt,
};
use forkyard_vm::lock;

/// Name of this host in messages about what comes.
const HERE: &str = "this host";

impl Host {
    /// Takes a step of a volume's way. Not cancel-safe: run it on a task of its own.
    pub async fn take_volume_step(
        &self,
        step: PeerVolumeStep,
    ) -> Result<PeerVolumeAnswer, HostError> {
        match step {
            PeerVolumeStep::Prepare(prepare) => self.prepare_volume(prepare).await,
            PeerVolumeStep::Land(land) => self.land_volume(land).await,
            PeerVolumeStep::End(end) => self.end_volume(end).await,
            PeerVolumeStep::Awaits(migration) => {
                let awaited = lock(&self.volumes.moves.awaited).contains(&migration);
                Ok(PeerVolumeAnswer::Awaits(awaited))
            }
            PeerVolumeStep::Give(give) => self.give_volume(give).await,
        }
    }

    /// Keeps a name for a volume that is about to come. Answers what of it is here.
    async fn prepare_volume(
        &self,
        prepare: PeerVolumePrepare,
    ) -> Result<PeerVolumeAnswer, HostError> {
        let PeerVolumePrepare {
            migration,
            name,
            id,
            term,
            from,
            snapshots,
        } = prepare;
        if self.volumes.guards.is_unsettled(&name) {
            // It may have been this host that sent it there.
            self.settle_volume_moves().await;
        }
        // Nothing begins to use the name meanwhile.
        let _name = self.volumes.guards.begin_soon(&name, HERE).await?;
        let mut known = self.copy_of(&name)?;
        if let Some(copy) = &known
            && let Some(former) = copy.arriving
            && former != migration
            && copy.id.as_ref() == Some(&id)
        {
            // Its host moves it once at a time.
            self.end_former(former).await;
            known = self.copy_of(&name)?;
        }
        let found = self.status_if_any(&name).await?;
        let records = self.parts.store.vms()?;
        let taken = || VolumeError::Taken {
            volume: name.clone(),
        };
        let is_other = found.as_ref().is_some_and(|it| it.id != id);
        let is_held = found
            .as_ref()
            .is_some_and(|it| matches!(it.held, Held::For(_)));
        let is_home = found.is_some() && known.is_none();
        let is_busy = known.as_ref().is_some_and(|it| it.arriving.is_some());
        let is_used = writer_of(&records, &name).is_some() || is_private(&records, &name);
        if is_other || is_held || is_home || is_busy || is_used {
            return Err(taken().into());
        }
        let later = self.known_term(&name, &id)?;
        if later > term {
            return Err(VolumeError::OldTerm {
                volume: name,
                term,
                known: later,
            }
            .into());
        }
        // Nothing here writes a copy: a stream did, when its server died.
        if found.as_ref().is_some_and(|it| it.writer == Writer::Open) {
            let (name, epoch) = (name.to_string(), None);
            self.volumes
                .disks
                .ask(Request::Close { name, epoch })
                .await?;
        }
        let is_new = found.is_none();
        let here = found.map(|it| it.snapshots).unwrap_or_default();
        let here: Vec<_> = here.into_iter().map(|it| it.name).collect();
        let plan = Plan::of(&snapshots, &here);
        if let Some(snapshot) = plan.clash.into_iter().next() {
            let volume = name;
            return Err(VolumeError::SnapshotClash { volume, snapshot }.into());
        }
        for snapshot in plan.stale {
            let at = VolumeAt {
                volume: name.clone(),
                snapshot,
            };
            if let Some(vm) = over(&records, &at).into_iter().next() {
                return Err(VolumeError::SnapshotInUse {
                    volume: name,
                    snapshot: at.snapshot,
                    vm,
                }
                .into());
            }
            self.volumes.disks.drop_snapshot(&at).await?;
        }
        self.parts.store.put_copy(&VolumeCopy {
            volume: name.clone(),
            id: Some(id),
            at: known.map_or(from, |copy| copy.at),
            arriving: Some(migration),
            is_new,
        })?;
        let arrivals = &self.incoming.volumes;
        arrivals.expect_alone(migration, &name, plan.since.clone());
        self.forget_volume_later(migration);
        Ok(PeerVolumeAnswer::Prepared(PeerVolumePrepared {
            since: plan.since,
            has: plan.same,
        }))
    }

    async fn status_if_any(&self, name: &VmName) -> Result<Option<Status>, HostError> {
        let (blockd, looked) = (self.volumes.disks.blockd.clone(), name.clone());
        match blocking(move || blockd.inspect(&looked)).await {
            Ok(status) => Ok(Some(status)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Has a volume be at home here that has come.
    async fn land_volume(&self, land: PeerVolumeLand) -> Result<PeerVolumeAnswer, HostError> {
        let _turn = self.volumes.moves.landing.lock().await;
        if let Some(term) = self.parts.store.landed_volume(land.migration)? {
            return Ok(PeerVolumeAnswer::Landed(term));
        }
        let copy = self.arriving(land.migration, &land.name)?;
        let status = self.status_if_any(&land.name).await?;
        let is_whole = |it: &Status| {
            let mut snapshots = it.snapshots.iter();
            copy.id.as_ref() == Some(&it.id) && snapshots.any(|it| it.name == land.snapshot)
        };
        let status = status.filter(is_whole).ok_or_else(|| {
            let why = format!("snapshot {} of {} did not come", land.snapshot, land.name);
            HostError::Conflict(why)
        })?;
        let record = VolumeMove {
            volume: land.name,
            id: status.id,
            peer: copy.at,
            migration: land.migration,
            term: land.term,
        };
        let Some(homes) = self.homes() else {
            let term = land.term.there();
            self.landed(&record, term)?;
            return Ok(PeerVolumeAnswer::Landed(term));
        };
        homes.may_act().map_err(|source| VolumeError::NotShown {
            volume: record.volume.clone(),
            source,
        })?;
        self.parts.store.put_volume_landing(&record)?;
        Ok(match self.settle_landing(&record).await? {
            Some(term) => PeerVolumeAnswer::Landed(term),
            None => PeerVolumeAnswer::Ended,
        })
    }

    /// Gives a move up, unless its volume is at home here. Once this says so, it never comes by it.
    async fn end_volume(
        &self,
        PeerVolumeEnd { migration, name }: PeerVolumeEnd,
    ) -> Result<PeerVolumeAnswer, HostError> {
        let _turn = self.volumes.moves.landing.lock().await;
        if let Some(term) = self.parts.store.landed_volume(migration)? {
            return Ok(PeerVolumeAnswer::Landed(term));
        }
        let mut landing = self.parts.store.volumes_landing()?.into_iter();
        if let Some(record) = landing.find(|it| it.migration == migration)
            && let Some(term) = self.settle_landing(&record).await?
        {
            return Ok(PeerVolumeAnswer::Landed(term));
        }
        self.give_up_volumes(migration).await;
        // What is recorded as coming might still land.
        let comes = self.copy_of(&name)?.and_then(|it| it.arriving);
        match comes == Some(migration) {
            true => Err(VolumeError::Coming { volume: name }.into()),
            false => Ok(PeerVolumeAnswer::Ended),
        }
    }
}
