//! Volumes that move to another host without a VM, on the host that they leave.
//!
//! ```text
//! here                                              there
//! held: nothing opens it; no VM has it
//! sealed: kept as a snapshot, durably
//!                            --- Prepare -------->  its name is kept; says what it has
//!                            === snapshots =====>   come, durably: nothing is active
//! recorded: it may be there
//!                            --- Land ---------->   at home there, in the next term (A)
//! recorded: a copy           <-- Landed ---------
//! ```
//!
//! (A) is the authority's change of its record where there is one, and that host's own record where there is
//! none. Until (A) it is at home here; after that, there. Snapshots of its user go along, and those below
//! clones and checkpoints stay, which lie over the copy.
//!
//! | fails | then |
//! |---|---|
//! | before it is recorded that it may be there | it is at home here as before; that host is told to give up what came |
//! | after that | the authority, or else that host, is asked; nothing opens it until that has said ([`settle`]) |
//! | a hand-over that came to nothing | it is at home here in a later term: what that host may still try comes too late |

mod bring;
mod land;
mod plan;
mod settle;

use super::{SENT, VolumeError, guard::HandOver, homes::AtHome, is_private, known_name, writer_of};
use crate::{
    Host, HostError, blocking, micros,
    migrate::{HOT, SMALL, Sending},
    remote::{HERE, Peer, late},
};
use forkyard_blockd::{Hot, Request, Status, Writer};
use forkyard_records::{KnownTerm, VolumeCopy, VolumeMove};
use forkyard_types::{
    ByteCount, DiskTransfer, ForkId, MoveVolume, PageCount, PeerVolumeAnswer, PeerVolumeEnd,
    PeerVolumeLand, PeerVolumePrepare, PeerVolumePrepared, PeerVolumeStep, Term, VmName, VolumeAt,
    VolumeMovePhase, VolumeMoveReport, VolumeMoved,
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Instant,
};
use tokio::time::timeout;

/// Snapshots kept that were sent to other hosts: each makes the way there shorter.
const KEPT: usize = 4;

/// Moves of volumes to this host.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Held while one lands or is ended: either comes before the other.
    landing: tokio::sync::Mutex<()>,
    /// Moves by which volumes are awaited.
    awaited: Mutex<BTreeSet<ForkId>>,
}

/// A volume on its way.
struct Leaving {
    migration: ForkId,
    peer: Arc<dyn Peer>,
    volume: AtHome,
    /// Term in which it is at home here.
    term: Term,
    snapshots: Vec<String>,
}

/// Parts of a volume that were sent.
#[derive(Debug, Default)]
struct Went {
    left: PageCount,
    snapshots: u32,
}

impl Leaving {
    fn at(&self, snapshot: &str) -> VolumeAt {
        VolumeAt {
            volume: self.volume.name.clone(),
            snapshot: snapshot.to_owned(),
        }
    }

    /// Name of the snapshot that it is there.
    fn last(&self) -> String {
        plan::last_of(self.migration)
    }

    fn record(&self) -> VolumeMove {
        VolumeMove {
            volume: self.volume.name.clone(),
            id: self.volume.id.clone(),
            peer: self.peer.name().to_owned(),
            migration: self.migration,
            term: self.term,
        }
    }
}

impl Host {
    /// Moves a volume that no VM has to another host. It is at home there once this returns, or here if
    /// this fails, unless the error says that this is not known yet. Not cancel-safe: run it on a task of
    /// its own.
    pub async fn move_volume(
        &self,
        name: &str,
        request: MoveVolume,
    ) -> Result<VolumeMoved, HostError> {
        if request.to == HERE {
            return Err(HostError::Invalid("it is here: name another host".into()));
        }
        let peer = self.peer(&request.to)?;
        self.hand_over_volume(&known_name(name)?, peer, (ForkId::random(), request.disk))
            .await
    }

    async fn hand_over_volume(
        &self,
        volume: &VmName,
        peer: Arc<dyn Peer>,
        (migration, disk): (ForkId, DiskTransfer),
    ) -> Result<VolumeMoved, HostError> {
        let begun = Instant::now();
        let _under_way = self.forks.under_way.begin().ok_or(HostError::Closing)?;
        // Held from before the first look to the end.
        let hand_over = self.volumes.guards.begin_soon(volume, peer.name()).await?;
        let status = self.may_leave(volume).await?;
        let at_home = AtHome::of(volume, &status);
        let term = self.show_home(&at_home).await?;
        let mut leaving = Leaving {
            migration,
            peer,
            volume: at_home,
            term,
            snapshots: status.snapshots.iter().map(|it| it.name.clone()).collect(),
        };
        let went = match self
            .send_ahead(&mut leaving, &hand_over, (disk, &status))
            .await
        {
            Ok(went) => went,
            Err(error) => {
                self.give_up_leaving(&leaving).await;
                self.drop_sent(leaving.at(&leaving.last()));
                return Err(error);
            }
        };
        let handing = Instant::now();
        let sent = hand_over.sent.load(Ordering::Relaxed);
        let term = self.let_go_of(&leaving, hand_over).await?;
        let report = VolumeMoveReport {
            total_us: micros(begun.elapsed()),
            hand_over_us: micros(handing.elapsed()),
            sent: ByteCount(sent),
            left: went.left.bytes().unwrap_or_default(),
            snapshots: went.snapshots,
            term,
        };
        tracing::info!(%volume, to = leaving.peer.name(), ?report, "moved");
        self.supply_soon();
        self.drop_older(&leaving, &status);
        let volume = self.volume(volume.as_str()).await?;
        Ok(VolumeMoved { volume, report })
    }

    /// Refuses a volume that cannot leave.
    async fn may_leave(&self, volume: &VmName) -> Result<Status, HostError> {
        self.refuse_copy(volume)?;
        let records = self.parts.store.vms()?;
        if let Some(vm) = writer_of(&records, volume) {
            return Err(VolumeError::HasVm {
                volume: volume.clone(),
                vm: vm.name.clone(),
            }
            .into());
        }
        let (blockd, name) = (self.volumes.disks.blockd.clone(), volume.clone());
        let status = blocking(move || blockd.inspect(&name)).await?;
        if status.base.is_some() || is_private(&records, volume) {
            let text = format!("{volume} is a clone's, and moves with it");
            return Err(HostError::Invalid(text));
        }
        if let Some(mirror) = status.mirrors.first() {
            return Err(VolumeError::Mirrored {
                volume: volume.clone(),
                host: mirror.host.clone(),
            }
            .into());
        }
        if status.writer == Writer::Open {
            let volume = volume.clone();
            return Err(VolumeError::Busy { volume }.into());
        }
        Ok(status)
    }

    /// Seals it, and sends what the other host lacks. Nothing is active there.
    async fn send_ahead(
        &self,
        leaving: &mut Leaving,
        hand_over: &HandOver,
        (disk, status): (DiskTransfer, &Status),
    ) -> Result<Went, HostError> {
        let last = leaving.last();
        self.volumes
            .disks
            .ask(Request::Snapshot {
                name: leaving.volume.name.to_string(),
                snapshot: last.clone(),
                // Durable with what it was taken of, and with the snapshots before it.
                at_once: false,
            })
            .await?;
        let asked = PeerVolumeStep::Prepare(PeerVolumePrepare {
            migration: leaving.migration,
            name: leaving.volume.name.clone(),
            id: leaving.volume.id.clone(),
            term: leaving.term,
            from: self.name_among_hosts(),
            snapshots: leaving.snapshots.clone(),
        });
        let PeerVolumeAnswer::Prepared(PeerVolumePrepared { since, has }) =
            self.volume_step(&*leaving.peer, asked).await?
        else {
            return Err(crate::remote::untold(
                leaving.peer.name(),
                "what it has of the volume",
            ));
        };
        if since
            .iter()
            .chain(&has)
            .any(|it| !leaving.snapshots.contains(it))
        {
            return Err(crate::remote::untold(
                leaving.peer.name(),
                "what it has of the volume",
            ));
        }
        hand_over.is_in(VolumeMovePhase::Copying);
        let lacking = match &since {
            None => ByteCount(status.written).pages(),
            Some(since) => self.changed_since(&leaving.volume.name, since).await?,
        };
        let on_demand = match disk {
            DiskTransfer::Ahead => false,
            DiskTransfer::OnDemand => true,
            DiskTransfer::Auto => lacking > SMALL,
        };
        let mut went = Went::default();
        let users = leaving.snapshots.iter();
        let users = users.filter(|it| plan::is_users(it) && !has.contains(it));
        let mut since = since;
        for snapshot in users.cloned().chain([last]).collect::<Vec<_>>() {
            let at = leaving.at(&snapshot);
            let hot = match on_demand {
                true => {
                    // Before that host may lack any of it: it says itself when it does not any more.
                    self.keep_for(&at, leaving.peer.name()).await?;
                    Some(Hot {
                        most: usize::try_from(HOT.0).unwrap_or(usize::MAX),
                        from: self.own_name(),
                    })
                }
                false => None,
            };
            let sending = Sending {
                at,
                there: leaving.volume.name.clone(),
                since: since.replace(snapshot.clone()),
                hot,
                sent: hand_over.sent.clone(),
            };
            let peer = (&*leaving.peer, leaving.migration);
            went.left.0 += self.stream_snapshot(peer, sending).await?;
            went.snapshots += u32::from(plan::is_users(&snapshot));
        }
        Ok(went)
    }

    async fn changed_since(&self, volume: &VmName, since: &str) -> Result<PageCount, HostError> {
        let asked = Request::Changed {
            name: volume.to_string(),
            since: since.to_owned(),
        };
        let blockd = self.volumes.disks.blockd.clone();
        let answer = blocking(move || blockd.ask(&asked)).await?;
        Ok(PageCount(answer.blocks().unwrap_or_default()))
    }

    /// Has it be at home there; the term in which it is. It is recorded before that host is told that it may
    /// be.
    async fn let_go_of(&self, leaving: &Leaving, hand_over: HandOver) -> Result<Term, HostError> {
        let record = leaving.record();
        self.parts.store.put_volume_leaving(&record)?;
        hand_over.is_in(VolumeMovePhase::HandingOver);
        let land = PeerVolumeStep::Land(PeerVolumeLand {
            migration: leaving.migration,
            name: leaving.volume.name.clone(),
            snapshot: leaving.last(),
            term: leaving.term,
        });
        let failed = match self.volume_step(&*leaving.peer, land).await {
            Ok(PeerVolumeAnswer::Landed(term)) => {
                return match self.volume_is_there(&record, term) {
                    Ok(()) => Ok(term),
                    Err(error) => {
                        hand_over.leave_unsettled();
                        Err(error)
                    }
                };
            }
            Ok(_) => crate::remote::untold(leaving.peer.name(), "that it has the volume"),
            Err(error) => error,
        };
        match self.settle_leaving(&record).await {
            Ok(settle::Outcome::Left(term)) => Ok(term),
            Ok(settle::Outcome::Stays) => {
                self.give_up_leaving(leaving).await;
                Err(failed)
            }
            Err(_) => {
                hand_over.leave_unsettled();
                Err(VolumeError::Unsettled {
                    volume: record.volume,
                    to: record.peer,
                    source: failed.to_api(),
                }
                .into())
            }
        }
    }

    /// Records that it is at home there: what is here is a copy.
    fn volume_is_there(&self, record: &VolumeMove, term: Term) -> Result<(), HostError> {
        let copy = VolumeCopy {
            volume: record.volume.clone(),
            id: Some(record.id.clone()),
            at: record.peer.clone(),
            arriving: None,
            is_new: false,
        };
        let known = KnownTerm {
            volume: record.volume.clone(),
            id: record.id.clone(),
            term,
        };
        Ok(self.parts.store.volume_left(&copy, &known)?)
    }

    /// Has the other host give up what came; what it does not hear of now, it forgets. What was a copy there
    /// is one still, and may have the last snapshot by now.
    async fn give_up_leaving(&self, leaving: &Leaving) {
        let end = PeerVolumeStep::End(PeerVolumeEnd {
            migration: leaving.migration,
            name: leaving.volume.name.clone(),
        });
        if let Err(error) = self.volume_step(&*leaving.peer, end).await {
            tracing::debug!(volume = %leaving.volume.name, error = &error as &dyn std::error::Error, "not told that it does not come");
        }
    }

    /// Drops what was sent long ago, to any host.
    fn drop_older(&self, leaving: &Leaving, status: &Status) {
        let sent = leaving.snapshots.iter().filter(|it| it.starts_with(SENT));
        let sent: Vec<_> = sent.collect();
        let needed = |name: &str| status.needs.iter().any(|it| it.snapshot == name);
        for snapshot in &sent[..sent.len().saturating_sub(KEPT)] {
            if !needed(snapshot) {
                self.drop_sent(leaving.at(snapshot));
            }
        }
    }

    /// Has another host take a step.
    async fn volume_step(
        &self,
        peer: &dyn Peer,
        step: PeerVolumeStep,
    ) -> Result<PeerVolumeAnswer, HostError> {
        let patience = self.parts.options.patience;
        let answer = timeout(patience, peer.volume_step(step)).await;
        let answer = answer.unwrap_or_else(|_| Err(late(patience)));
        answer.map_err(|source| HostError::Peer {
            peer: peer.name().to_owned(),
            source,
        })
    }

    /// Name of this host for others: that of a node, or as it calls itself.
    fn name_among_hosts(&self) -> String {
        self.homes().map_or_else(|| self.own_name(), |it| it.own())
    }
}
