//! The hand-over of a VM that moves: that the other host may have it is recorded, the guest stands
//! still, and what is left of it goes.

use super::{
    leave::{Leaving, key},
    volume::Frozen,
};
use crate::{Host, HostError, micros};
use forkyard_records::Moving;
use forkyard_snapshot::Taken;
use forkyard_types::{
    ForkMode, ForkReport, Landed, MigrationPhase, MigrationReport, PeerExpect, PeerLand,
    PeerMigrated, PeerMigration,
};
use forkyard_vm::{Life, lock};
use std::time::Instant;
use tracing::{Instrument as _, debug_span};

/// A VM that stands still, as the other host is to go on with it.
#[derive(Debug)]
pub(super) struct Handed {
    pub land: PeerLand,
    pub volumes: Vec<Frozen>,
    /// Time at which its guest stood still.
    pub still: Instant,
}

impl Host {
    /// Tells every site of its family that it is about to move, and has the other host take its frames.
    pub(super) async fn expect_there(&self, leaving: &mut Leaving<'_>) -> Result<(), HostError> {
        let vm = leaving.vm;
        let family = vm.record().family;
        let Some(place) = self.parts.store.tunnel(family)? else {
            return Ok(());
        };
        let Some(to) = self.tunnel_at(family, leaving.peer().name())? else {
            tracing::debug!(vm = %vm.name(), to = leaving.peer().name(), "it has no part in families' networks");
            return Ok(());
        };
        let generation = self.tell_moving(vm, place.own, to);
        let expect = PeerExpect {
            migration: leaving.id,
            from: place.own,
            generation: generation.0,
        };
        let expected = self.step(leaving, PeerMigration::Expect(expect)).await;
        if let Err(error) = expected {
            self.pass_on_no_more(vm).await;
            return Err(error);
        }
        leaving.tunnel = Some(to);
        Ok(())
    }

    /// Records that the other host may have it from here on.
    pub(super) fn note_intent(
        &self,
        leaving: &Leaving<'_>,
        report: &MigrationReport,
    ) -> Result<(), HostError> {
        let vm = leaving.vm;
        let moving = Moving {
            peer: leaving.peer().name().to_owned(),
            migration: leaving.id,
            was_paused: vm.is_paused(),
        };
        self.note_offered(key(&moving), &leaving.offered);
        let last: Vec<_> = leaving.last.all().collect();
        self.note_offered(key(&moving), &last);
        self.parts.store.put_moving(vm.id, &moving)?;
        *lock(&vm.moving) = Some(moving);
        self.tell_of(leaving, MigrationPhase::HandingOver, report.rounds, None);
        Ok(())
    }

    /// Stops it, and copies what is left. If this fails the caller lets it go on.
    pub(super) async fn stop_and_copy(
        &self,
        leaving: &mut Leaving<'_>,
        report: &mut MigrationReport,
    ) -> Result<Handed, HostError> {
        let vm = leaving.vm;
        let begun = Instant::now();
        let runs = !vm.is_paused();
        // Before its agent answers: by then its kernel has taken, and answered, what had reached
        // its port.
        if let Some(to) = leaving.tunnel
            && let Err(error) = self.pass_on(vm, to).await
        {
            tracing::warn!(vm = %vm.name(), error = &error as &dyn std::error::Error, "what comes for it while it stands still is lost");
        }
        if runs {
            leaving
                .body
                .hold(self.parts.options.to_hold_still())
                .await?;
            let paused = Life::Paused(leaving.body.clone());
            vm.enter(&self.parts.store, paused, |_| {})?;
        }
        let still = Instant::now();
        let next = leaving.next.take();
        let next =
            next.ok_or_else(|| HostError::Broken("the migration was not prepared".into()))?;
        let (_, _, rest) = next.split(0);
        let mut taking = ForkReport::default();
        let mode = (leaving.id, ForkMode::Fast);
        let taken = self
            .snapshots
            .take(vm, &leaving.body, mode, rest, &[], &mut taking);
        let taken: Taken = taken.instrument(debug_span!("stop")).await?;
        let volumes = self.freeze_last(leaving, &taken.snapshot, report).await?;
        let land = self.last_of(leaving, &taken, report).await?;
        report.stop_us = micros(begun.elapsed());
        Ok(Handed {
            land,
            volumes,
            still,
        })
    }

    /// Stops it, sends what is left, and has it go on there.
    pub(super) async fn stop_and_land(
        &self,
        leaving: &mut Leaving<'_>,
        report: &mut MigrationReport,
    ) -> Result<Landed, HostError> {
        let vm = leaving.vm;
        self.expect_there(leaving).await?;
        self.note_intent(leaving, report)?;
        let stopped = Instant::now();
        let Handed { land, volumes, .. } = match self.stop_and_copy(leaving, report).await {
            Ok(handed) => handed,
            Err(error) => {
                // Nothing was said that could make it go on there.
                self.back(vm).await?;
                return Err(error);
            }
        };
        let answer = self
            .step(leaving, PeerMigration::Land(Box::new(land)))
            .instrument(debug_span!("land"));
        // That host waits for both. What becomes of the volumes it says by its answer.
        let (answer, ()) = tokio::join!(answer, self.send_last(leaving, volumes));
        report.gap_us = micros(stopped.elapsed());
        report.hand_over_us = report.gap_us.saturating_sub(report.stop_us);
        match answer {
            Ok(PeerMigrated::Landed(landed)) => Ok(*landed),
            Ok(
                PeerMigrated::Here
                | PeerMigrated::LandedTogether(_)
                | PeerMigrated::Cpu(_)
                | PeerMigrated::Kept(_)
                | PeerMigrated::Since(_)
                | PeerMigrated::Ended,
            ) => {
                let unclear = crate::remote::untold(leaving.peer().name(), "that it goes on");
                self.ask_or(vm, unclear).await
            }
            Err(error) => self.ask_or(vm, error).await,
        }
    }
}
