//! The fork itself.
//!
//! ```text
//! fork -> make_clones: generation (warm.rs)                  shells over a layout
//!                      -> take (lib/snapshot)                the parent stands still
//!                      -> peer_requests (remote/hand_out.rs) what other hosts get of it
//!                      -> instantiate (instantiate.rs)
//!                           -> bring_up (clone.rs): load, identity, port, user code goes on
//! ```
//!
//! Until there is a snapshot, whatever fails fails the fork; after that it costs
//! one clone, not the others.

use crate::{
    Host, HostError,
    clone::{Asked, Origin},
    instantiate::Clones,
    micros,
    progress::Going,
    quota::{Asker, Places},
    remote::Dealt,
    telemetry::Counted,
};
use forkyard_snapshot::{Generation, Taken, WarmShell};
use forkyard_types::{
    CloneResult, ForkId, ForkPhase, ForkReport, ForkRequest, ForkResponse, ForkStarted, Member,
    TicketId, VmId, VmView,
};
use forkyard_vm::{Begun, Life, Vm, VmError};
use std::{sync::Arc, time::Instant};
use tokio::sync::oneshot;
use tracing::{Instrument as _, Span, debug_span, instrument};

/// Clones of one fork.
pub(crate) const MOST_CLONES: u16 = 256;

/// One clone to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Number among the clones of this fork, or in its ticket: 1 and up. 0 of one that
    /// founds a family.
    pub number: u16,
    /// Place in the family.
    pub member: Member,
    /// The ticket it was promised by.
    pub ticket: Option<TicketId>,
    /// Processes in it that have numbers.
    pub processes: u8,
    /// vCPUs it is to have online; none: as its parent.
    pub vcpus: Option<u8>,
}

impl Wanted {
    /// Clones that are asked for from outside, one for each place; their numbers
    /// begin with `first`.
    pub fn without_ticket(first: u16, members: Vec<Member>) -> Vec<Self> {
        let wanted = (first..).zip(members).map(|(number, member)| Self {
            number,
            member,
            ticket: None,
            processes: 1,
            vcpus: None,
        });
        wanted.collect()
    }
}

/// Result of a fork.
#[derive(Debug)]
pub(crate) struct Forked {
    pub id: ForkId,
    /// One entry for each clone wanted, in that order.
    pub clones: Clones,
    pub report: ForkReport,
}

impl Host {
    /// Forks a running VM from outside (transitive fork, paper section 2.3). Not cancel-safe: run it on a
    /// task of its own.
    pub async fn fork(&self, vm: &str, request: ForkRequest) -> Result<ForkResponse, HostError> {
        self.fork_as(ForkId::random(), vm, request, || {}).await
    }

    /// Starts a fork without waiting for it once it is clear that there is something to
    /// do: clones are listed as they come, and failures are in the log. `done` is told
    /// in the end which were made. If cancelled, the fork goes on.
    pub async fn launch_fork(
        &self,
        vm: String,
        request: ForkRequest,
        done: impl FnOnce(&[CloneResult]) + Send + 'static,
    ) -> Result<ForkStarted, HostError> {
        let fork = ForkId::random();
        let (begun, accepted) = oneshot::channel();
        let host = self.handle();
        let work = tokio::spawn(async move {
            let Some(host) = host.upgrade() else {
                return Err(HostError::Closing);
            };
            // The client may have gone away.
            let tell = || {
                let _ = begun.send(());
            };
            let made = host.fork_as(fork, &vm, request, tell).await;
            if let Err(error) = &made {
                tracing::error!(vm, %fork, error = error as &dyn std::error::Error, "not forked");
            }
            done(made.as_ref().map_or(&[], |made| &made.clones));
            made.map(drop)
        });
        match accepted.await {
            Ok(()) => Ok(ForkStarted { fork }),
            // It was never begun: the work has ended, and says why.
            Err(_) => match work.await {
                Ok(refused) => refused.map(|()| ForkStarted { fork }),
                Err(error) => Err(HostError::given_up("the VM was not forked", &error)),
            },
        }
    }

    /// `begun` is called once nothing speaks against it.
    pub(crate) async fn fork_as(
        &self,
        fork: ForkId,
        vm: &str,
        request: ForkRequest,
        begun: impl FnOnce(),
    ) -> Result<ForkResponse, HostError> {
        if !(1..=MOST_CLONES).contains(&request.count) {
            return Err(HostError::Invalid(format!(
                "count is {}: wanted 1 to {MOST_CLONES}",
                request.count
            )));
        }
        let mut dealt = Dealt::new(&request)?;
        let parent = self.vm(vm)?;
        let asleep = matches!(parent.life(), Life::Checkpoint);
        if !asleep {
            parent.running()?;
        }
        let family = parent.record().family;
        // Held until the clones count by themselves.
        let mut places = match dealt.here {
            0 => None,
            count => Some(self.places(family, count, Asker::Outside)?),
        };
        let far_places = match dealt.far() {
            0 => None,
            count => Some(self.places(family, count, Asker::Outside)?),
        };
        dealt.cut(far_places.as_ref().map_or(0, Places::count));
        let members = match &mut places {
            Some(places) => self.take_members(family, places)?,
            None => Vec::new(),
        };
        let here = u16::try_from(members.len()).unwrap_or(MOST_CLONES);
        let wanted = Wanted::without_ticket(1, members);
        let asked = Asked {
            fork,
            request: None,
            watch: request.watch,
            mode: request.mode,
            scrub: self.to_scrub(&parent, &request)?,
            home: None,
            far: self.far(&dealt, here, request.settle)?,
        };
        let granted = here + dealt.far();
        begun();
        let forked = match asleep {
            true => self.wake(&parent, &wanted, asked).await?,
            false => self.fork_vm(&parent, &wanted, asked).await?,
        };
        let limited = [&places, &far_places].into_iter().flatten();
        let refusal = limited.into_iter().find_map(Places::refusal);
        let refused = (granted..request.count).filter_map(|_| refusal);
        let result = |outcome: Result<VmView, HostError>| match outcome {
            Ok(vm) => CloneResult::Vm(Box::new(vm)),
            Err(error) => CloneResult::Error(error.to_api()),
        };
        Ok(ForkResponse {
            fork: forked.id,
            clones: forked
                .clones
                .into_iter()
                .map(|(_, outcome)| result(outcome))
                .chain(refused.map(|error| result(Err(error.into()))))
                .collect(),
            report: forked.report,
        })
    }

    /// Forks `parent`. Not cancel-safe: run it on a task of its own.
    #[instrument(name = "fork", skip_all, fields(fork, parent = %parent.name(), clones = wanted.len()))]
    pub(crate) async fn fork_vm(
        &self,
        parent: &Arc<Vm>,
        wanted: &[Wanted],
        asked: Asked,
    ) -> Result<Forked, HostError> {
        let _under_way = self.begin_fork(parent)?;
        let going = self.forks.progress.begin(parent, wanted.len(), &asked);
        let outcome = self.make_clones(parent, wanted, &asked, &going).await;
        let outcome = self.unless_removed(parent, outcome).await;
        going.over(&outcome);
        outcome
    }

    /// Counts a fork of a VM, unless that is being removed or the daemon ends.
    pub(crate) fn begin_fork<'a>(
        &'a self,
        parent: &'a Vm,
    ) -> Result<(Begun<'a>, Begun<'a>), HostError> {
        let here = self.forks.under_way.begin().ok_or(HostError::Closing)?;
        let of_parent = parent.forks.begin().ok_or_else(|| removed(parent))?;
        Ok((here, of_parent))
    }

    /// Ends the clones of a VM that was removed while they were made: its removal
    /// waits for this, and leaves nothing unreported.
    pub(crate) async fn unless_removed(
        &self,
        parent: &Vm,
        outcome: Result<Forked, HostError>,
    ) -> Result<Forked, HostError> {
        if !parent.forks.is_closed() {
            return outcome;
        }
        if let Ok(forked) = outcome {
            let made = forked.clones.iter();
            let made = made.filter_map(|(_, made)| made.as_ref().ok());
            self.end_all(made.map(|vm| vm.id).collect()).await;
        }
        Err(removed(parent))
    }

    async fn make_clones(
        &self,
        parent: &Arc<Vm>,
        wanted: &[Wanted],
        asked: &Asked,
        going: &Going,
    ) -> Result<Forked, HostError> {
        let begun = Instant::now();
        let id = asked.fork;
        Span::current().record("fork", tracing::field::display(id));
        let counted = Counted::begin(wanted.len());
        let mut report = ForkReport::default();
        let mut turn = parent.turn_to_fork().await;
        if parent.forks.is_closed() {
            return Err(removed(parent));
        }
        let body = parent.forkable()?;
        let shells = async {
            let mut generation = self
                .generation(parent, &body, turn.take::<Generation>())
                .await?;
            let failed = self
                .snapshots
                .fill(parent, &mut generation, wanted.len())
                .await;
            Ok::<_, HostError>((generation, failed))
        };
        let (generation, mut failed) = shells.instrument(debug_span!("shells")).await?;
        report.shells_us = micros(begun.elapsed());
        if generation.shells.is_empty() && !wanted.is_empty() {
            self.snapshots.discard(parent, generation).await;
            return Err(failed.pop().map_or_else(
                || HostError::Broken("no shell was made for any clone".into()),
                HostError::from,
            ));
        }
        let image = generation.image;
        let (shells, spare, rest) = generation.split(wanted.len());
        let assigned = assign(wanted, shells);
        let members = members(&assigned);
        let taken =
            self.snapshots
                .take(parent, &body, (id, asked.mode), rest, &members, &mut report);
        let family = parent.record().family;
        let (taken, ()) = tokio::join!(taken, self.announce_hosts_early(family, &asked.far));
        let taken = match taken {
            Ok(taken) => {
                going.reach(ForkPhase::Received);
                // In the parent's turn: its frozen slices stay as they are meanwhile.
                let peer_requests = self.peer_requests(&taken.snapshot, asked).await;
                Ok((taken, peer_requests))
            }
            Err(error) => Err(HostError::from(error)),
        };
        drop(turn);
        let (Taken { snapshot, former }, peer_requests) = match taken {
            Ok(taken) => taken,
            Err(error) => {
                let shells = assigned.into_iter().filter_map(|(_, shell)| shell);
                self.snapshots.end_shells(shells.collect()).await;
                self.snapshots.tidy(parent);
                self.keep_warm(parent, spare);
                return Err(error);
            }
        };
        let origin = Origin {
            fork: id,
            asked,
            begun,
            going,
        };
        let clones = self
            .instantiate(
                &snapshot,
                (assigned, failed.into_iter().map(HostError::from).collect()),
                peer_requests,
                origin,
                &mut report,
            )
            .await;
        // Nothing waits for what is ended and started here, and the clones would
        // have shared the processors with it.
        if let Some(former) = former {
            self.snapshots.retire(former).await;
        }
        self.snapshots.tidy(parent);
        self.keep_warm(parent, spare);
        let served = self.parts.pager_call(move |pager| pager.stats(image)).await;
        report.pages_fetched = served.map(|usage| usage.pages_served).unwrap_or_default();
        if wanted.is_empty() {
            // No image here lies over it; others get it for as long as it is offered.
            self.snapshots.retire(image).await;
        }
        counted.done(&report, &clones);
        self.note_fork(id, parent, &report);
        tracing::info!(parent = %parent.name(), fork = %id, clones = clones.len(), ?report, "forked");
        Ok(Forked { id, clones, report })
    }

    /// Records how a fork went. Its clones are there whether that succeeds or
    /// not, as it cannot if the parent has gone meanwhile.
    pub(crate) fn note_fork(&self, fork: ForkId, parent: &Vm, report: &ForkReport) {
        if let Err(error) = self.parts.store.put_fork(fork, parent.id, report) {
            tracing::warn!(parent = %parent.name(), %fork, error = &error as &dyn std::error::Error, "report not recorded");
        }
    }
}

fn removed(parent: &Vm) -> HostError {
    let name = parent.name().to_string();
    HostError::Vm(VmError::Unknown { name })
}

/// Clones wanted and a shell for each, as far as there are, and why not for the
/// others.
pub(crate) type Assigned = (Vec<(Wanted, Option<WarmShell>)>, Vec<HostError>);

/// Gives each clone wanted its shell. Where there are fewer shells, the last
/// ones go without.
pub(crate) fn assign(
    wanted: &[Wanted],
    shells: Vec<WarmShell>,
) -> Vec<(Wanted, Option<WarmShell>)> {
    let mut shells = shells.into_iter();
    wanted
        .iter()
        .map(|wanted| (*wanted, shells.next()))
        .collect()
}

/// Names the VMs-to-be among clones that have a shell, with the places that they will have.
pub(crate) fn members(assigned: &[(Wanted, Option<WarmShell>)]) -> Vec<(VmId, Member)> {
    let member = |(wanted, shell): &(Wanted, Option<WarmShell>)| {
        let shell = shell.as_ref()?;
        Some((shell.record.id, wanted.member))
    };
    assigned.iter().filter_map(member).collect()
}
