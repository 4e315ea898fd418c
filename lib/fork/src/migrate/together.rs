//! VMs that move as one: each is sent ahead until little is left of all of them, and they are cut
//! together.
//!
//! ```text
//! a  --- first copy --- rounds --- ready . . .| stop --+
//! b        --- what differs from a --- rounds | stop --+-- LandTogether --> all loaded, recorded
//! c           --- what differs from a ---     | stop --+                    at one stroke, let go
//! ```
//!
//! The other host records them in one transaction or not at all, so that what it says of one holds for
//! all of them.
//!
//! | fails | then |
//! |---|---|
//! | any of them before `LandTogether` is sent | all go on here |
//! | loading one there | none is recorded there, and all go on here |
//! | the answer, or a daemon | each is asked about as one that moves alone: all are there, or all here |

use super::{Images, hand_over::Handed, leave::Leaving, slow::Slow, way_back::Below};
use crate::{Host, HostError, micros, remote::no_answer};
use forkyard_snapshot::Generation;
use forkyard_types::{
    ByteCount, Landed, MigrateRequest, MigrateResponse, MigrationReport, PeerMigrated,
    PeerMigration,
};
use forkyard_vm::{Turn, lock};
use futures::future::join_all;
use std::{
    collections::BTreeSet,
    sync::Mutex,
    time::{Duration, Instant},
};
use tokio::{sync::Notify, time::timeout};

/// Most VMs that move as one.
const MOST: usize = 64;
/// Time between two looks at what a VM has written that waits for the others.
const LOOK: Duration = Duration::from_millis(50);

/// VMs that wait for each other before they are stopped.
#[derive(Debug)]
pub(super) struct Ensemble {
    of: usize,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    ready: BTreeSet<usize>,
    /// They are stopped, whatever they write from here on.
    go: bool,
    /// One of them cannot move.
    failed: bool,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'a> {
    ensemble: &'a Ensemble,
    number: usize,
}

/// Next step of a VM that has little left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// Stop.
    Stop,
    /// Look again at what it has written.
    Wait,
    /// Give up: another cannot move.
    Failed,
}

impl Ensemble {
    fn new(of: usize) -> Self {
        Self {
            of,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn member(&self, number: usize) -> Member<'_> {
        Member {
            ensemble: self,
            number,
        }
    }

    fn look(&self, change: impl FnOnce(&mut State)) -> Ready {
        let ready = {
            let mut state = lock(&self.state);
            change(&mut state);
            state.go |= state.ready.len() == self.of && !state.failed;
            match *state {
                State { go: true, .. } => Ready::Stop,
                State { failed: true, .. } => Ready::Failed,
                State { .. } => Ready::Wait,
            }
        };
        if ready != Ready::Wait {
            self.changed.notify_waiters();
        }
        ready
    }
}

impl Member<'_> {
    /// Notes that little is left of it, and waits a moment for the others. Cancel-safe.
    pub async fn is_ready(self) -> Ready {
        let mut changed = std::pin::pin!(self.ensemble.changed.notified());
        changed.as_mut().enable();
        let number = self.number;
        match self.ensemble.look(|state| {
            state.ready.insert(number);
        }) {
            Ready::Wait => {
                let _ = timeout(LOOK, changed).await;
                self.ensemble.look(|_| ())
            }
            ready @ (Ready::Stop | Ready::Failed) => ready,
        }
    }

    /// Notes that more is left of it than it may be stopped with. They may be stopping already.
    pub fn is_busy(self) -> Ready {
        let number = self.number;
        self.ensemble.look(|state| {
            if !state.go {
                state.ready.remove(&number);
            }
        })
    }

    fn failed(self) {
        self.ensemble.look(|state| state.failed = true);
    }
}

impl Host {
    /// Moves running VMs to another host as one: all of them go on there once this returns, or here
    /// if this fails, unless the error says that this is not known yet. Not cancel-safe: run it on a
    /// task of its own.
    pub(super) async fn migrate_together(
        &self,
        first: &str,
        request: MigrateRequest,
    ) -> Result<MigrateResponse, HostError> {
        let begun = Instant::now();
        let names = [first]
            .into_iter()
            .chain(request.together.iter().map(String::as_str));
        let mut vms = names
            .map(|name| self.vm(name))
            .collect::<Result<Vec<_>, _>>()?;
        let distinct: BTreeSet<_> = vms.iter().map(|vm| vm.id).collect();
        if distinct.len() != vms.len() || vms.len() > MOST {
            let text = format!("{} VMs: {MOST} at most, and each once", vms.len());
            return Err(HostError::Invalid(text));
        }
        if request.keep_copy.is_some() {
            let text = "copies are kept of VMs that move alone: `checkpoint` them before";
            return Err(HostError::Invalid(text.into()));
        }
        let asked: Vec<_> = vms.iter().map(|vm| vm.id).collect();
        // Their turns are taken in one order, whichever others are asked for.
        vms.sort_by_key(|vm| vm.id);
        let peer = self.peer(&request.to)?;
        let pager = self.listen_to_peers().await?;
        let under_way: Result<Vec<_>, _> = vms.iter().map(|vm| self.begin_fork(vm)).collect();
        let _under_way = under_way?;
        let mut turns = Vec::new();
        for vm in &vms {
            turns.push(vm.turn_to_fork().await);
        }
        let mut leaving = Vec::new();
        for vm in &vms {
            self.may_move(vm)?;
            leaving.push(self.begin_to_leave(vm, &request, (peer.clone(), pager))?);
        }
        let mut reports = vec![MigrationReport::default(); vms.len()];
        let moved = self
            .move_out_together(&mut leaving, &mut turns, &request, &mut reports)
            .await;
        let landed = match moved {
            Ok(landed) => landed,
            Err(error) => {
                for ((leaving, mut turn), vm) in leaving.iter_mut().zip(turns).zip(&vms) {
                    self.tell_over(leaving, &request, None, Some(&error));
                    if let Some(next) = leaving.next.take() {
                        turn.leave(next);
                    }
                    drop(turn);
                    self.keep_warm(vm, Vec::new());
                }
                return Err(error);
            }
        };
        let gone = leaving.into_iter().zip(turns).zip(reports).zip(landed);
        let gone = gone.map(|(((leaving, turn), mut report), landed)| {
            report.total_us = micros(begun.elapsed());
            self.tell_over(&leaving, &request, Some(&report), None);
            self.gone(leaving, turn, report, landed)
        });
        let gone = join_all(gone).await.into_iter();
        let mut responses = gone.collect::<Result<Vec<_>, _>>()?;
        let at = |it: &MigrateResponse| asked.iter().position(|id| *id == it.vm.id);
        responses.sort_by_key(at);
        let mut all = responses.into_iter();
        let first = all.next();
        let first = first.ok_or_else(|| HostError::Broken("no VM was moved".into()))?;
        Ok(MigrateResponse {
            together: all.collect(),
            ..first
        })
    }

    async fn move_out_together(
        &self,
        leaving: &mut [Leaving<'_>],
        turns: &mut [Turn<'_>],
        request: &MigrateRequest,
        reports: &mut [MigrationReport],
    ) -> Result<Vec<Landed>, HostError> {
        for (leaving, turn) in leaving.iter().zip(turns) {
            // Its shells are over what it is now.
            if let Some(generation) = turn.take::<Generation>() {
                self.snapshots.discard(leaving.vm, generation).await;
            }
        }
        let ahead = self.ahead_together(leaving, request, reports).await;
        let landed = match ahead {
            Ok(()) => self.stop_and_land_together(leaving, reports).await,
            Err(error) => Err(error),
        };
        let error = match landed {
            Ok(landed) => return Ok(landed),
            Err(error) => error,
        };
        for leaving in leaving {
            self.stays(leaving).await;
        }
        Err(error)
    }

    async fn ahead_together(
        &self,
        leaving: &mut [Leaving<'_>],
        request: &MigrateRequest,
        reports: &mut [MigrationReport],
    ) -> Result<(), HostError> {
        let begun = Instant::now();
        // One after the other: what a later one shares with an earlier one is not sent again.
        let mut sent: Vec<(ByteCount, Images)> = Vec::new();
        for (leaving, report) in leaving.iter_mut().zip(reports.iter_mut()) {
            let size = leaving.vm.record().memory;
            let mut as_large = sent.iter().filter(|(other, _)| *other == size);
            let like = Below {
                memory: as_large.next().map(|(_, images)| images.memory),
                disk: sent.iter().find_map(|(_, images)| images.disk),
            };
            self.first_copy(leaving, like, (request.disk, report))
                .await?;
            report.prepare_us = micros(begun.elapsed());
            sent.push((size, leaving.sent));
        }
        let ensemble = Ensemble::new(leaving.len());
        let converged = leaving.iter_mut().zip(reports).enumerate();
        let converged = converged.map(|(number, (leaving, report))| {
            let member = ensemble.member(number);
            async move {
                let mut slow = None;
                let converged = self
                    .converge(leaving, request, report, begun, (&mut slow, Some(member)))
                    .await;
                if converged.is_err() {
                    member.failed();
                }
                if let Some((slow, _)) = slow {
                    Slow::end(slow).await;
                }
                converged
            }
        });
        let mut outcomes = join_all(converged).await;
        // What was wrong with one, rather than that something was with another.
        outcomes.sort_by_key(|it| matches!(it, Err(HostError::NotTogether { .. })));
        outcomes.into_iter().collect()
    }

    async fn stop_and_land_together(
        &self,
        leaving: &mut [Leaving<'_>],
        reports: &mut [MigrationReport],
    ) -> Result<Vec<Landed>, HostError> {
        let begun = Instant::now();
        let expected = leaving.iter_mut().map(|leaving| self.expect_there(leaving));
        for expected in join_all(expected).await {
            expected?;
        }
        let mut handed: Result<Vec<Handed>, HostError> = Ok(Vec::new());
        for (leaving, report) in leaving.iter().zip(reports.iter()) {
            if let Err(error) = self.note_intent(leaving, report) {
                handed = Err(error);
                break;
            }
        }
        if handed.is_ok() {
            let stops = leaving.iter_mut().zip(reports.iter_mut());
            let stops = stops.map(|(leaving, report)| self.stop_and_copy(leaving, report));
            handed = join_all(stops).await.into_iter().collect();
        }
        let handed = match handed {
            Ok(handed) => handed,
            Err(error) => {
                // Nothing was said that could make any of them go on there.
                let noted = leaving.iter().filter(|it| lock(&it.vm.moving).is_some());
                for back in join_all(noted.map(|it| self.back(it.vm))).await {
                    back?;
                }
                return Err(error);
            }
        };
        let stills = || handed.iter().map(|handed| handed.still);
        let spread = stills().max().zip(stills().min());
        let spread = spread.map_or(Duration::ZERO, |(last, first)| last - first);
        let (lands, volumes): (Vec<_>, Vec<_>) = handed
            .into_iter()
            .map(|handed| (handed.land, handed.volumes))
            .unzip();
        let stopped = begun.elapsed();
        let answer = self.step(&leaving[0], PeerMigration::LandTogether(lands));
        let rest = leaving.iter().zip(volumes);
        let rest = rest.map(|(leaving, volumes)| self.send_last(leaving, volumes));
        let (answer, _) = tokio::join!(answer, join_all(rest));
        for report in reports.iter_mut() {
            // Of each from the stop of the first: they are one cut.
            report.stop_us = micros(stopped);
            report.gap_us = micros(begun.elapsed());
            report.hand_over_us = micros(begun.elapsed().saturating_sub(stopped));
            report.spread_us = micros(spread);
        }
        let why = match answer {
            Ok(PeerMigrated::LandedTogether(landed)) if landed.len() == leaving.len() => {
                let times = || landed.iter().map(|it| it.took_us);
                let spread = times().max().zip(times().min());
                for report in reports.iter_mut() {
                    report.resume_spread_us = spread.map_or(0, |(last, first)| last - first);
                }
                return Ok(landed);
            }
            Ok(
                PeerMigrated::Here
                | PeerMigrated::Landed(_)
                | PeerMigrated::LandedTogether(_)
                | PeerMigrated::Cpu(_)
                | PeerMigrated::Kept(_)
                | PeerMigrated::Since(_)
                | PeerMigrated::Ended,
            ) => no_answer("that they go on"),
            Err(HostError::Peer { source, .. }) => source,
            Err(error) => error.to_api(),
        };
        // That host has one answer for all of them. Each is asked about, though one is not heard of.
        let asked = { leaving.iter() }
            .map(|leaving| (leaving.vm, leaving.peer().name().to_owned(), why.clone()));
        let asked =
            asked.map(|(vm, peer, source)| self.ask_or(vm, HostError::Peer { peer, source }));
        join_all(asked).await.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn none_stops_before_all_are_ready_and_then_all_do() {
        let ensemble = Ensemble::new(2);
        let [a, b] = [0, 1].map(|number| ensemble.member(number));
        assert_eq!(a.is_ready().await, Ready::Wait);
        assert_eq!(a.is_busy(), Ready::Wait);
        assert_eq!(b.is_ready().await, Ready::Wait);
        let (one, other) = tokio::join!(b.is_ready(), a.is_ready());
        assert_eq!((one, other), (Ready::Stop, Ready::Stop));
        assert_eq!(a.is_busy(), Ready::Stop, "too late to go on");
    }

    #[tokio::test]
    async fn all_give_up_if_one_cannot_move() {
        let ensemble = Ensemble::new(2);
        let [a, b] = [0, 1].map(|number| ensemble.member(number));
        let (waited, ()) = tokio::join!(a.is_ready(), async { b.failed() });
        assert_eq!(waited, Ready::Failed);
        assert_eq!(b.is_ready().await, Ready::Failed);
    }
}
