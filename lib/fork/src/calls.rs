//! The fork API as guests call it (SnowFlock, Table I).
//!
//! A guest has authority over its own clones alone: a ticket works only for
//! the VM it was granted to, and a VM can end only itself.

mod checkpoint;
mod disjoint;
mod spread;

use crate::{
    Host, HostError,
    bounds::{BoundReached, Rated},
    clone::Asked,
    quota::Asker,
    requests::{Outcome, Requests},
    ticket::{Begun, Grant, Killed, Promise, lay_out},
};
use forkyard_agent_link::{Answer, Ask, CallId, CloneEnd, Request};
use forkyard_types::{
    ApiError, ErrorKind, ForkId, ForkMode, RequestId, Ticket, TicketClone, TicketId, TicketKind,
    VmId,
};
use forkyard_vm::{Vm, lock};
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};

/// Calls of one VM under way; more are refused.
const UNDER_WAY: usize = 64;
/// Reason why a clone was not made, as far as the next daemon knows.
const LOST: &str = "it was lost with the host's daemon, which died during the fork";

impl Host {
    /// Answers a VM's calls until its link closes.
    pub(crate) fn serve_calls(&self, vm: &Arc<Vm>, mut calls: mpsc::Receiver<(CallId, Request)>) {
        let (host, vm) = (self.handle(), Arc::downgrade(vm));
        let places = Arc::new(Semaphore::new(UNDER_WAY));
        tokio::spawn(async move {
            while let Some((call, request)) = calls.recv().await {
                let (Some(host), Some(vm)) = (host.upgrade(), vm.upgrade()) else {
                    return;
                };
                let place = places.clone().try_acquire_owned();
                // A task each: a join waits long, and others must not wait for it.
                tokio::spawn(async move {
                    let outcome = match &place {
                        Ok(_) => host.answer(&vm, request).await,
                        Err(_) => Err(too_many()),
                    };
                    let Some(outcome) = outcome.transpose() else {
                        return;
                    };
                    if let Ok(body) = vm.running()
                        && let Err(error) = body.guest.reply(call, outcome).await
                    {
                        tracing::info!(vm = %vm.id, %error, "answer not delivered");
                    }
                });
            }
        });
    }

    /// The answer, or none if the VM is no more. One that was given before is
    /// given again.
    async fn answer(&self, vm: &Arc<Vm>, request: Request) -> Outcome {
        // The sender is the host itself: it does not go meanwhile.
        let _ = self
            .lives
            .settled
            .subscribe()
            .wait_for(|settled| *settled)
            .await;
        let outcome = vm.attached::<Requests>().outcome(request.id);
        let carried_out = outcome.get_or_init(|| self.carry_out(vm, request));
        carried_out.await.clone()
    }

    async fn carry_out(&self, vm: &Arc<Vm>, request: Request) -> Outcome {
        let answer = match request.ask {
            Ask::RequestTicket { count, kind } => self
                .request_ticket(vm, count, kind, request.id)
                .await
                .map(Answer::Ticket),
            Ask::RequestDetached { count, kind } => {
                let granted = self.request_ticket(vm, count, kind, request.id).await;
                if let Ok(ticket) = &granted {
                    self.detach_ticket(ticket.id);
                }
                granted.map(Answer::Ticket)
            }
            Ask::Clone { ticket } => self.clone_ticket(vm, None, ticket, request.id).await,
            Ask::Join { ticket } => self.join(vm.id, ticket).await,
            Ask::Kill { ticket } => self.kill(vm.id, ticket).await.map(|()| Answer::Killed),
            Ask::Exit { status, others } => match self.exit(vm, status, others).await {
                Ok(()) => return Ok(None),
                Err(error) => Err(error),
            },
            Ask::Checkpoint => self.keep_instant(vm, request.id).await,
            Ask::CreateClones { checkpoint, ticket } => {
                self.create_clones(vm, checkpoint, ticket, request.id).await
            }
            Ask::DropCheckpoint { checkpoint } => self.drop_checkpoint(vm, checkpoint).await,
            Ask::DisjointFrames(frames) => disjoint::mark(vm, &frames),
            Ask::WaitFork { .. } => Err(HostError::Invalid(
                "this call is for the guest's agent, which knows of forks, not for the host".into(),
            )),
            Ask::EndWithMe { .. } => Err(HostError::Invalid(
                "this call is for the guest's agent, which knows its programs' ends, not for the host".into(),
            )),
            Ask::Disjoint { .. } => Err(HostError::Invalid(
                "this call is for the guest's agent, which knows its programs' addresses, not for the host".into(),
            )),
        };
        answer.map(Some).map_err(|error| told(&error))
    }

    async fn request_ticket(
        &self,
        vm: &Arc<Vm>,
        count: u16,
        kind: TicketKind,
        request: RequestId,
    ) -> Result<Ticket, HostError> {
        // Granted by a daemon that died before it could say so.
        if let Some(ticket) = self.tickets(|tickets| tickets.granted(vm.id, request)) {
            return Ok(ticket);
        }
        let mut shares = lay_out(count, vm.record().vcpus, kind);
        shares.truncate(crate::fork::MOST_CLONES.into());
        let wanted = u16::try_from(shares.len()).unwrap_or(crate::fork::MOST_CLONES);
        if wanted == 0 {
            return Err(HostError::Invalid("a ticket for no clones".into()));
        }
        let bounds = self.parts.options.guests;
        crate::bounds::check_depth(bounds, vm.record().generation)?;
        self.count(vm, Rated::Ticket)?;
        let mut places = self.places(vm.record().family, wanted, Asker::Guest)?;
        shares.truncate(places.count().into());
        let lots = spread::lots(&shares);
        let room = self.room(vm, lots.clone()).await?;
        let granted = match &room {
            Some(room) => room.places(),
            None => spread::all_here(lots),
        };
        let seats = self.take_seats(vm, &mut places, &granted)?;
        let mut next = 1;
        let promises: Vec<_> = spread::deal_shares(seats, &granted, shares)
            .into_iter()
            .filter_map(|((host, member), share)| {
                let ip = vm.network.address(member)?.ip;
                let id = next;
                next += u16::from(share.processes);
                let clone = TicketClone {
                    id,
                    vcpus: share.vcpus,
                    processes: share.processes,
                    ip,
                };
                Some(Promise {
                    clone,
                    member,
                    host,
                })
            })
            .collect();
        let clones = promises.iter().map(|promise| promise.clone.clone());
        let ticket = Ticket {
            id: TicketId::random(),
            kind,
            clones: clones.collect(),
        };
        let places = Some(places);
        let grant = Grant {
            promises,
            places,
            room,
        };
        self.tickets(|tickets| tickets.grant(ticket.id, vm.id, (request, kind), grant));
        // The clones are made ready while the program prepares for them.
        self.keep_warm(vm, Vec::new());
        Ok(ticket)
    }

    /// The clones that a ticket of this VM's promises, made of it or of a
    /// checkpoint.
    async fn clone_ticket(
        &self,
        vm: &Arc<Vm>,
        asleep: Option<&Vm>,
        id: TicketId,
        request: RequestId,
    ) -> Result<Answer, HostError> {
        if let Some(answer) = came_of(vm, request) {
            return Ok(answer);
        }
        // First, so that a ticket refused now can be used later.
        self.count(vm, Rated::Fork)?;
        let begun = self.tickets(|tickets| tickets.begin(id, vm.id, request))?;
        // The places are held until the clones count by themselves.
        let Grant {
            promises,
            places,
            room,
        } = match begun {
            Begun::Now(grant) => grant,
            Begun::Before(unmade) => {
                let lost = |number| (number, LOST.to_owned());
                return Ok(Answer::Cloned {
                    id: 0,
                    processes: 1,
                    failed: unmade.into_iter().map(lost).collect(),
                });
            }
        };
        let (wanted, far, mut failed) = self.deal_promises(vm.id, id, &promises);
        let asked = Asked {
            fork: ForkId::random(),
            request: Some(request),
            watch: None,
            mode: ForkMode::Fast,
            scrub: vm.record().secrets,
            home: Some(forkyard_vm::address(vm.network, &vm.record()).ip),
            far,
        };
        let outcome = async {
            let room = match room {
                None => self.room_at(vm, spread::places_of(&promises)).await?,
                Some(room) => {
                    // It may have been taken away since, and what is made in spite of that
                    // would soon be ended.
                    room.check().await.map_err(HostError::Room)?;
                    Some(room)
                }
            };
            if wanted.is_empty() && asked.far.shares.is_empty() {
                return Ok(Vec::new());
            }
            let forked = match asleep {
                None => self.fork_vm(vm, &wanted, asked).await?,
                // What was made ready for the ticket was for a clone of this VM.
                Some(asleep) => {
                    let woken = self.wake(asleep, &wanted, asked);
                    tokio::join!(woken, self.trim_shells(vm)).0?
                }
            };
            self.seat_far(id, &promises, &forked.clones).await;
            if let Some(room) = room {
                let made = forked.clones.iter();
                let made = made.filter_map(|(_, made)| made.as_ref().ok().cloned());
                room.settle(&made.collect::<Vec<_>>());
            }
            Ok::<_, HostError>(forked.clones)
        };
        let outcome = outcome.await;
        drop(places);
        let unmade: Vec<u16> = match &outcome {
            Ok(_) => failed.iter().map(|(number, _)| *number).collect(),
            Err(_) => promises.iter().map(|promise| promise.clone.id).collect(),
        };
        if !unmade.is_empty() {
            self.tickets(|tickets| {
                unmade
                    .into_iter()
                    .for_each(|number| tickets.unborn(id, number));
            });
            self.lives.ended.notify_waiters();
        }
        failed.extend(
            { outcome?.into_iter() }.filter_map(|(number, made)| Some((number, made.err()?))),
        );
        failed.sort_by_key(|(number, _)| *number);
        let told = failed.into_iter();
        Ok(Answer::Cloned {
            id: 0,
            processes: 1,
            failed: told
                .map(|(number, error)| (number, error.to_api().message))
                .collect(),
        })
    }

    /// Counts what a VM's guest does for its family, unless it does it too often.
    fn count(&self, vm: &Vm, what: Rated) -> Result<(), BoundReached> {
        let family = vm.record().family;
        let now = std::time::Instant::now();
        lock(&self.families.recent_forks).count(family, what, self.parts.options.guests, now)
    }

    async fn join(&self, caller: VmId, ticket: TicketId) -> Result<Answer, HostError> {
        loop {
            // Registered before looking, so that no end is missed between.
            let ended = self.lives.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if let Some(ends) = self.tickets(|tickets| tickets.join(ticket, caller))? {
                return Ok(Answer::Joined(ends));
            }
            ended.await;
        }
    }

    /// Ends a ticket's clones, gives back what it promised, and uses it up.
    pub(crate) async fn kill(&self, caller: VmId, ticket: TicketId) -> Result<(), HostError> {
        let Killed { alive, unused } = self.tickets(|tickets| tickets.kill(ticket, caller))?;
        self.lives.ended.notify_waiters();
        if let Some(grant) = unused {
            // Its places are taken until the shells kept for them have gone.
            let caller = self.parts.registry().get(caller);
            if let Some(caller) = caller {
                self.trim_shells(&caller).await;
            }
            drop(grant);
        }
        self.end_all(alive).await;
        self.tickets(|tickets| tickets.spend(ticket));
        Ok(())
    }

    /// Ends a clone that asked for it; its memory and disk vanish.
    async fn exit(&self, vm: &Arc<Vm>, status: u8, others: Vec<CloneEnd>) -> Result<(), HostError> {
        if vm.record().birth.is_none() {
            return Err(HostError::Invalid(
                "this VM was booted, not cloned: it has nowhere to exit to".into(),
            ));
        }
        self.tickets(|tickets| tickets.told(vm.id, &others));
        self.end(vm, Some(status)).await;
        Ok(())
    }

    /// Ends VMs, wherever they are.
    pub(crate) async fn end_all(&self, vms: Vec<VmId>) {
        let ends = vms.into_iter().map(|id| async move {
            let found = self.parts.registry().get(id);
            match found {
                Some(vm) => self.end(&vm, None).await,
                None => self.end_far(id).await,
            }
        });
        futures::future::join_all(ends).await;
    }
}

/// Finds the answer to a request that is repeated in a clone: if it is the
/// request that made the clone, the parent's program asks again from here,
/// because the agent that should have told it has died.
fn came_of(vm: &Vm, request: RequestId) -> Option<Answer> {
    let cloned = vm.cloned?;
    (cloned.request == Some(request)).then(|| Answer::Cloned {
        id: cloned.id,
        processes: cloned.processes,
        failed: Vec::new(),
    })
}

/// Tells a guest of an error.
fn told(error: &HostError) -> ApiError {
    let mut told = error.to_api();
    if forkyard_host::is_full(error) {
        // By which file that was noticed is no matter of a guest's.
        told.message = "the host's disk is full".to_owned();
        told.hint = None;
    }
    told
}

fn too_many() -> ApiError {
    ApiError {
        kind: ErrorKind::Exhausted,
        message: format!("{UNDER_WAY} calls of this VM are under way"),
        hint: None,
    }
}
