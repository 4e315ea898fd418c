//! A VM that moves to another host, on the host that it leaves.

use super::{
    Images,
    converge::{Convergence, Next, Pace},
    copy::Copy,
    slow::Slow,
    together::{Member, Ready},
    volume::LeavingVolume,
    way_back::Below,
};
use crate::{
    Host, HostError, micros,
    remote::{Far, HERE, Hold, Peer, Share},
};
use forkyard_pager::PeerKey;
use forkyard_records::Moving;
use forkyard_snapshot::{Generation, Take, Taken};
use forkyard_types::{
    DiskTransfer, ErrorKind, ForkId, ForkMode, ForkReport, IfStuck, ImageId, Landed,
    MigrateRequest, MigrateResponse, MigrationOver, MigrationPhase, MigrationReached,
    MigrationReport, PageCount, PeerEndMigration, PeerMigration, PeerRound, VmId,
};
use forkyard_vm::{RunningVm, Turn, Vm, VmError, lock};
use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::{Instrument as _, debug_span, instrument};

/// A VM on its way.
pub(super) struct Leaving<'a> {
    pub id: ForkId,
    pub vm: &'a Arc<Vm>,
    pub body: Arc<RunningVm>,
    pub share: Share,
    pub key: PeerKey,
    pub pager: SocketAddr,
    /// Memory and disk as that host has them.
    pub sent: Images,
    /// The volumes that are disks of it.
    pub volumes: Vec<LeavingVolume>,
    /// The checkpoint that is to stay here.
    pub copy: Option<Copy>,
    /// State of its devices as that host has it.
    pub devices: Vec<u8>,
    /// Final names of the images.
    pub last: Images,
    /// All that is offered to it.
    pub offered: Vec<ImageId>,
    /// Keeps that from being taken for unused.
    pub hold: Option<Hold>,
    /// Generation that the VM is stopped with, made before that.
    pub next: Option<Generation>,
    /// End of tunnels of the other host, once its frames are expected there.
    pub tunnel: Option<Ipv4Addr>,
}

impl Leaving<'_> {
    pub fn peer(&self) -> &dyn Peer {
        &*self.share.peer
    }
}

impl Host {
    /// Moves a running VM to another host, or several as one. It goes on there once this returns, or
    /// here if this fails, unless the error says that this is not known yet. Not cancel-safe: run it
    /// on a task of its own.
    #[instrument(skip_all, fields(vm = vm, to = request.to))]
    pub async fn migrate(
        &self,
        vm: &str,
        request: MigrateRequest,
    ) -> Result<MigrateResponse, HostError> {
        let begun = Instant::now();
        if request.to == HERE {
            return Err(HostError::Invalid("it is here: name another host".into()));
        }
        if !request.together.is_empty() {
            return self.migrate_together(vm, request).await;
        }
        let vm = self.vm(vm)?;
        let peer = self.peer(&request.to)?;
        let pager = self.listen_to_peers().await?;
        let _under_way = self.begin_fork(&vm)?;
        let mut turn = vm.turn_to_fork().await;
        self.may_move(&vm)?;
        let mut leaving = self.begin_to_leave(&vm, &request, (peer, pager))?;
        let mut report = MigrationReport::default();
        let moved = self
            .move_out(&mut leaving, &mut turn, &request, &mut report)
            .await;
        let landed = match moved {
            Ok(landed) => landed,
            Err(error) => {
                self.tell_over(&leaving, &request, None, Some(&error));
                if let Some(next) = leaving.next.take() {
                    turn.leave(next);
                }
                drop(turn);
                self.give_copy_up(leaving.copy.take()).await;
                self.keep_warm(&vm, Vec::new());
                return Err(error);
            }
        };
        report.total_us = micros(begun.elapsed());
        self.tell_over(&leaving, &request, Some(&report), None);
        self.gone(leaving, turn, report, landed).await
    }

    /// Reserves what a VM that leaves needs. Its turn is the caller's.
    pub(super) fn begin_to_leave<'a>(
        &self,
        vm: &'a Arc<Vm>,
        request: &MigrateRequest,
        (peer, pager): (Arc<dyn Peer>, SocketAddr),
    ) -> Result<Leaving<'a>, HostError> {
        let is_on_volume = vm.record().volume.is_some();
        let images = Images {
            memory: ImageId::random(),
            disk: (!is_on_volume).then(ImageId::random),
        };
        Ok(Leaving {
            id: ForkId::random(),
            vm,
            body: vm.running()?,
            share: Share::of(peer, 1, 1),
            key: crate::remote::draw()?,
            pager,
            sent: images,
            last: images,
            volumes: Vec::new(),
            copy: { request.keep_copy.clone() }
                .map(|name| self.plan_copy(vm, name))
                .transpose()?,
            devices: Vec::new(),
            offered: Vec::new(),
            hold: Some(self.hold([])?),
            next: None,
            tunnel: None,
        })
    }

    /// A VM goes on elsewhere: what it had here goes, but for what shortens its way back and the copy
    /// that is to stay.
    pub(super) async fn gone(
        &self,
        mut leaving: Leaving<'_>,
        turn: Turn<'_>,
        mut report: MigrationReport,
        landed: Landed,
    ) -> Result<MigrateResponse, HostError> {
        let vm = leaving.vm;
        let kept = self.hold(leaving.last.all())?;
        drop(leaving.hold.take());
        report.land_us = landed.took_us;
        let peer = leaving.share.peer.clone();
        tracing::info!(vm = %vm.name(), to = peer.name(), ?report, "moved");
        let copy = leaving.copy.take();
        let copy = copy.and_then(|copy| self.begin_copy(copy, (vm.record(), leaving.id)));
        let view = self.left(vm, turn, (leaving.id, peer.name()), landed).await;
        let no_copy = match copy {
            Some(copy) => self.keep_copy(copy).await.err(),
            None => None,
        };
        let no_copy = no_copy.map(|error| error.to_api().message);
        self.keep_former(vm.id, leaving.last, kept).await;
        Ok(MigrateResponse {
            vm: view,
            report,
            no_copy,
            together: Vec::new(),
        })
    }

    /// Tells what a migration came to, as an event.
    pub(super) fn tell_over(
        &self,
        leaving: &Leaving<'_>,
        request: &MigrateRequest,
        report: Option<&MigrationReport>,
        error: Option<&HostError>,
    ) {
        let over = MigrationOver {
            to: request.to.clone(),
            gap_us: report.map(|report| report.gap_us),
            why: error.map(|error| error.to_api().message),
        };
        crate::events::migration_over(self.events(), &leaving.vm.record(), over);
    }

    /// Publishes how far a VM is, as an event.
    pub(super) fn tell_of(
        &self,
        leaving: &Leaving<'_>,
        phase: MigrationPhase,
        rounds: u32,
        left: Option<(PageCount, Duration)>,
    ) {
        let reached = MigrationReached {
            to: leaving.peer().name().to_owned(),
            phase,
            rounds,
            left: left.map(|(left, _)| left),
            gap_us: left.map(|(_, gap)| micros(gap)),
        };
        crate::events::migration_reached(self.events(), &leaving.vm.record(), reached);
    }

    async fn move_out(
        &self,
        leaving: &mut Leaving<'_>,
        turn: &mut Turn<'_>,
        request: &MigrateRequest,
        report: &mut MigrationReport,
    ) -> Result<Landed, HostError> {
        // Its shells are over what it is now.
        if let Some(generation) = turn.take::<Generation>() {
            self.snapshots.discard(leaving.vm, generation).await;
        }
        let ahead = async {
            let begun = Instant::now();
            self.first_copy(leaving, Below::default(), (request.disk, report))
                .await?;
            report.prepare_us = micros(begun.elapsed());
            let mut slow = None;
            let converged = self
                .converge(leaving, request, report, begun, (&mut slow, None))
                .await;
            // Before it is stopped for good, or goes on here.
            if let Some((slow, _)) = slow {
                slow.end().await;
            }
            converged
        };
        let stopped = match ahead.await {
            Ok(()) => self.stop_and_land(leaving, report).await,
            Err(error) => Err(error),
        };
        if stopped.is_err() {
            self.stays(leaving).await;
        }
        stopped
    }

    /// Sends a first copy of all it has, as far as it reads otherwise than what is there: images that
    /// the other host has kept of it, or those of another VM that moves with it.
    pub(super) async fn first_copy(
        &self,
        leaving: &mut Leaving<'_>,
        like: Below,
        (disk, report): (DiskTransfer, &mut MigrationReport),
    ) -> Result<(), HostError> {
        self.tell_of(leaving, MigrationPhase::Copying, 0, None);
        let key = (leaving.id, leaving.peer().name());
        self.note_outgoing_migration(key, &leaving.vm.record(), leaving.key)?;
        self.send_volumes_first(leaving, disk, report).await?;
        self.send_first(leaving, like, report).await
    }

    /// Keeps a VM that did not go: what was sent of it is given up, unless it may go on there yet.
    pub(super) async fn stays(&self, leaving: &mut Leaving<'_>) {
        drop(leaving.hold.take());
        if lock(&leaving.vm.moving).is_none() {
            self.pass_on_no_more(leaving.vm).await;
            self.give_up(leaving).await;
            self.keep_volumes(leaving);
        }
    }

    /// Sends a first copy of all it has, and has a machine made there.
    async fn send_first(
        &self,
        leaving: &mut Leaving<'_>,
        like: Below,
        report: &mut MigrationReport,
    ) -> Result<(), HostError> {
        let vm = leaving.vm;
        let family = vm.record().family;
        let below = self.ask_kept(leaving).await.or(like);
        let generation = self.generation(vm, &leaving.body, None).await?;
        let (_, _, rest) = generation.split(0);
        let planned = self.snapshots.plan(vm, &leaving.body, ImageId::random());
        let mode = match planned.await?.is_noted() {
            true => ForkMode::Live,
            false => ForkMode::Fast,
        };
        let mut taking = ForkReport::default();
        let taken = self.snapshots.take(
            vm,
            &leaving.body,
            (leaving.id, mode),
            rest,
            &[],
            &mut taking,
        );
        let far = Far {
            shares: vec![leaving.share.clone()],
            ..Default::default()
        };
        let (taken, ()) = tokio::join!(taken, self.announce_hosts_early(family, &far));
        let Taken { snapshot, former } = taken?;
        if let Some(former) = former {
            self.snapshots.retire(former).await;
        }
        self.snapshots.tidy(vm);
        leaving.sent.memory = snapshot.layout.memory;
        match snapshot.layout.disk.volume() {
            // It goes by snapshots of its own.
            Some(at) => self.volumes.disks.drop_unused(at).await,
            None => leaving.sent.disk = Some(self.disk_image(&snapshot.layout.disk).await?.image),
        }
        self.volumes.disks.drop_data(&snapshot.layout.data).await;
        leaving.devices = snapshot.devices.clone();
        let next = self.generation(vm, &leaving.body, None).await?;
        leaving.last.memory = next.image;
        leaving.next = Some(next);
        let sent: Vec<_> = leaving.sent.all().collect();
        self.note_offered((leaving.id, leaving.peer().name()), &sent);
        let (pages, over) = self.offer_first(leaving, below, report).await?;
        let prepare = self.describe_move(leaving, &snapshot, over).await?;
        let began = Instant::now();
        self.step(leaving, PeerMigration::Prepare(Box::new(prepare)))
            .instrument(debug_span!("first copy"))
            .await?;
        report.pages_ahead.0 += pages.0;
        tracing::debug!(pages = pages.0, took = ?began.elapsed(), "first copy sent");
        Ok(())
    }

    /// Sends what is written until little is left, of it and of those that move with it.
    pub(super) async fn converge(
        &self,
        leaving: &mut Leaving<'_>,
        request: &MigrateRequest,
        report: &mut MigrationReport,
        begun: Instant,
        (slow, member): (&mut Option<(Slow, Pace)>, Option<Member<'_>>),
    ) -> Result<(), HostError> {
        let vm = leaving.vm.name();
        let together = |ready: Ready| match ready {
            Ready::Failed => Err(HostError::NotTogether { vm: vm.clone() }),
            Ready::Stop => Ok(true),
            Ready::Wait => Ok(false),
        };
        let millis = |ms: u64| Duration::from_millis(ms);
        let mut convergence = Convergence::new(
            leaving.share.round_trip.clone().await,
            request.max_gap_ms.map(|ms| millis(ms.into())),
            request.deadline_ms.map(millis),
        );
        let sent = PageCount(report.pages_ahead.0 + report.blocks_ahead);
        convergence.sent(sent, begun.elapsed());
        let rounds = Instant::now();
        loop {
            if leaving.vm.forks.is_closed() {
                return Err(HostError::Vm(VmError::Unknown {
                    name: leaving.vm.name().to_string(),
                }));
            }
            if self.forks.under_way.is_closed() {
                return Err(HostError::Closing);
            }
            let take = self
                .snapshots
                .plan(leaving.vm, &leaving.body, ImageId::random())
                .await?;
            // What was written is found by comparing, while it stands still.
            if !take.is_noted() {
                let Some(member) = member else { break };
                while !together(member.is_ready().await)? {}
                break;
            }
            let mut left = take.count().await?;
            left.0 += self.unsent(leaving).await?.0;
            let gap = convergence.gap(left);
            let known = Some((left, gap));
            self.tell_of(leaving, MigrationPhase::Converging, report.rounds, known);
            let next = convergence.next(left, begun.elapsed());
            // Those that move together are stopped together: one that may be waits for the others.
            let is_ready = match next {
                Next::Stop => true,
                Next::Stuck { .. } => request.if_stuck == IfStuck::Stop,
                Next::Round => false,
            };
            let all_ready = match member {
                None => is_ready,
                Some(member) if is_ready => together(member.is_ready().await)?,
                Some(member) => together(member.is_busy())?,
            };
            if all_ready {
                break;
            }
            match next {
                Next::Stop => continue,
                Next::Stuck { .. } if is_ready => {}
                Next::Stuck { gap, late } => {
                    let slower = match request.if_stuck {
                        IfStuck::Stop => None,
                        IfStuck::GiveUp => None,
                        IfStuck::Slow if late => None,
                        IfStuck::Slow => Pace::below(slow.as_ref().map(|(_, share)| *share)),
                    };
                    let Some(share) = slower else {
                        return Err(HostError::NotConverging {
                            vm: leaving.vm.name(),
                            left,
                            gap_ms: u64::try_from(gap.as_millis()).unwrap_or(u64::MAX),
                            late,
                        });
                    };
                    tracing::info!(vm = %leaving.vm.name(), ?share, "slowed: it writes as fast as its pages are sent");
                    report.slowed_to_percent = Some(share.percent());
                    *slow = Some(match slow.take() {
                        None => (Slow::start(&leaving.body, share), share),
                        Some((slow, _)) => {
                            slow.set(share);
                            (slow, share)
                        }
                    });
                    convergence.is_slower();
                }
                Next::Round => {}
            }
            let round = Instant::now();
            let blocks = self.send_volumes(leaving).await?;
            let sent = self.round(leaving, take).await?;
            convergence.sent(PageCount(sent.0 + blocks.0), round.elapsed());
            report.blocks_ahead += blocks.0;
            report.rounds += 1;
            report.pages_ahead.0 += sent.0;
            report.rounds_us = micros(rounds.elapsed());
            tracing::debug!(left = left.0, sent = sent.0, took = ?round.elapsed(), "round");
        }
        Ok(())
    }

    /// Copies what was written, and sends it.
    async fn round(&self, leaving: &mut Leaving<'_>, take: Take) -> Result<PageCount, HostError> {
        let before = leaving.sent.memory;
        let image = take.image();
        let copied = take.copy(leaving.vm, NonZeroUsize::MIN).await?;
        let former = self
            .snapshots
            .publish(leaving.vm, take, copied.captured)
            .await?;
        let (memory, sent) = self.delta(leaving, image, before).await?;
        let round = PeerRound {
            migration: leaving.id,
            memory,
        };
        self.step(leaving, PeerMigration::Round(round)).await?;
        leaving.sent.memory = image;
        // That host has all of it.
        self.withdraw(&[before], leaving.key).await;
        leaving.offered.retain(|offered| *offered != before);
        leaving.hold.iter_mut().for_each(|hold| hold.let_go(before));
        if let Some(former) = former {
            self.snapshots.retire(former).await;
        }
        Ok(sent)
    }

    /// Nothing there is to go on: what was sent is given up, and nothing is left of it here.
    async fn give_up(&self, leaving: &Leaving<'_>) {
        let end = PeerEndMigration {
            migration: leaving.id,
            vm: leaving.vm.id,
        };
        let ended = self.step(leaving, PeerMigration::End(end)).await;
        if let Err(error) = ended
            && error.kind() != ErrorKind::NotFound
        {
            // It gives it up by itself when it hears no more of it.
            tracing::warn!(vm = %leaving.vm.name(), error = &error as &dyn std::error::Error, "not given up there yet");
        }
        self.withdraw(&leaving.offered, leaving.key).await;
        self.forget_remote_clones((leaving.id, leaving.peer().name()));
        for image in &leaving.offered {
            self.snapshots.retire(*image).await;
        }
    }
}

/// Names a migration as other hosts' clones are kept by.
pub(super) fn key(moving: &Moving) -> (ForkId, &str) {
    (moving.migration, &moving.peer)
}

/// Names what the other host is asked to end.
pub(super) fn end_of(moving: &Moving, vm: VmId) -> PeerMigration {
    PeerMigration::End(PeerEndMigration {
        migration: moving.migration,
        vm,
    })
}
