//! The fork itself.
//!
//! ```text
//! shells ready -> guest holds still -> [ stop, freeze disk + descriptor | capture, go on ] -> publish
//!                                                                                               |
//!      each clone: load, run -> identity applied -> port opened -> hooks, user code goes on  <--+
//! ```
//!
//! The bracket is the pause of the parent. Whatever fails inside it, the
//! parent goes on; whatever fails after it costs one clone, not the others.

use crate::{
    Host, HostError,
    blocking::blocking,
    clone::Origin,
    generation::{Rest, WarmShell},
    vm::{Body, Vm},
};
use forkyard_capture::{Captured, HostAddr, Region, capture};
use forkyard_guestlink::CallId;
use forkyard_image::Lineage;
use forkyard_store::VmRecord;
use forkyard_types::{
    ByteCount, CloneResult, ForkId, ForkReport, ForkRequest, ForkResponse, ImageId, Member,
    TicketId, VmView,
};
use forkyard_vmm::Machine as _;
use futures::future::join_all;
use std::{
    num::NonZeroUsize,
    sync::Arc,
    time::{Duration, Instant},
};

/// Clones of one fork.
pub(crate) const MOST_CLONES: u16 = 256;
/// How long a guest may take to hold still.
const QUIESCE: Duration = Duration::from_secs(10);

/// One clone to make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Its number among the clones of this fork, or in its ticket: 1 and up.
    pub number: u16,
    /// Its place in the family.
    pub member: Member,
    /// The ticket it was promised by.
    pub ticket: Option<TicketId>,
}

/// What a fork came to.
#[derive(Debug)]
pub(crate) struct Forked {
    pub id: ForkId,
    /// One entry for each clone wanted, in that order.
    pub clones: Vec<(u16, Result<VmView, HostError>)>,
    pub report: ForkReport,
}

/// What was taken of the parent at the instant of the fork.
struct Instantaneous {
    descriptor: Vec<u8>,
    captured: Captured,
}

impl Host {
    /// Forks a running VM from outside (transitive fork, paper section 2.3).
    pub async fn fork(&self, vm: &str, request: ForkRequest) -> Result<ForkResponse, HostError> {
        if !(1..=MOST_CLONES).contains(&request.count) {
            return Err(HostError::Invalid(format!(
                "count is {}: wanted 1 to {MOST_CLONES}",
                request.count
            )));
        }
        let parent = self.vm(vm)?;
        parent.body()?;
        let members = self.take_members(&parent, request.count)?;
        let wanted: Vec<_> = (1..)
            .zip(members)
            .map(|(number, member)| Wanted {
                number,
                member,
                ticket: None,
            })
            .collect();
        let forked = self.fork_vm(&parent, &wanted, None).await?;
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
                .collect(),
            report: forked.report,
        })
    }

    /// Forks `parent`. `call` is the guest's call that asked for it, which
    /// returns in each clone. Not cancel-safe: run it on a task of its own.
    pub(crate) async fn fork_vm(
        &self,
        parent: &Arc<Vm>,
        wanted: &[Wanted],
        call: Option<CallId>,
    ) -> Result<Forked, HostError> {
        let begun = Instant::now();
        let id = ForkId::random();
        let mut report = ForkReport::default();
        let mut turn = parent.turn.lock().await;
        let body = parent.body()?;
        turn.forks += 1;
        let mut generation = self.generation(parent, &body, turn.next.take()).await?;
        let mut failed = self.fill(parent, &mut generation, wanted.len()).await;
        report.shells_us = micros(begun.elapsed());
        if generation.shells.is_empty() {
            self.discard(parent, generation).await;
            return Err(failed
                .pop()
                .unwrap_or_else(|| HostError::Invalid("no clone was wanted".into())));
        }
        let image = generation.image;
        let (shells, rest) = generation.split(wanted.len());
        let mut shells = shells.into_iter();
        // Where there are fewer shells than wanted, the last ones go without.
        let assigned: Vec<_> = wanted
            .iter()
            .map(|wanted| (*wanted, shells.next()))
            .collect();
        let outcome = self
            .take_instant(parent, &body, id, rest, &assigned, &mut report)
            .await;
        drop(turn);
        self.keep_warm(parent, 0);
        let published = micros(begun.elapsed());
        let origin = Origin {
            fork: id,
            call,
            begun,
        };
        let mut clones = Vec::new();
        match outcome {
            Ok(descriptor) => {
                let made = assigned.into_iter().map(|(wanted, shell)| {
                    let lost = shell.is_none().then(|| failed.pop()).flatten();
                    let descriptor = &descriptor;
                    async move {
                        let made = match shell {
                            Some(shell) => {
                                self.bring_up(parent, shell, wanted, origin, descriptor)
                                    .await
                            }
                            None => Err(lost
                                .unwrap_or_else(|| HostError::Invalid("no shell was left".into()))),
                        };
                        (wanted.number, made)
                    }
                });
                for (number, made) in join_all(made).await {
                    let made = made.map(|clone| {
                        report.running_us = report.running_us.max(micros(clone.running));
                        report.ready_us = report.ready_us.max(micros(clone.ready));
                        clone.vm.view()
                    });
                    clones.push((number, made));
                }
                report.load_us = report.running_us.saturating_sub(published);
                let served = self.pager_call(move |pager| pager.stats(image)).await;
                report.pages_fetched = served.map(|usage| usage.pages_served).unwrap_or_default();
            }
            Err(error) => {
                let shells = assigned
                    .into_iter()
                    .filter_map(|(_, shell)| shell)
                    .collect();
                self.end_shells(shells).await;
                return Err(error);
            }
        }
        self.store.put_fork(id, parent.id, &report)?;
        tracing::info!(parent = %parent.name(), fork = %id, clones = clones.len(), ?report, "forked");
        Ok(Forked { id, clones, report })
    }

    /// Takes the instant of the fork and publishes it. The parent goes on,
    /// whatever happens; the generation is used up.
    async fn take_instant(
        &self,
        parent: &Vm,
        body: &Body,
        fork: ForkId,
        rest: Rest,
        assigned: &[(Wanted, Option<WarmShell>)],
        report: &mut ForkReport,
    ) -> Result<Vec<u8>, HostError> {
        let quiesced = Instant::now();
        let admitted = self.admit(parent, assigned);
        let (admitted, still) = tokio::join!(admitted, body.guest.quiesce(fork, QUIESCE));
        report.quiesce_us = micros(quiesced.elapsed());
        let lineage = Lineage {
            image: rest.image,
            parent: parent.record().memory_image,
        };
        let (template, image, overlay_path) =
            (rest.template, rest.image, rest.overlay_path.clone());
        let ready = admitted.and(still.map_err(HostError::from));
        let taken = match ready {
            Ok(()) => {
                self.pause(
                    parent,
                    body,
                    rest.overlay,
                    rest.overlay_path,
                    lineage,
                    report,
                )
                .await
            }
            Err(error) => {
                if let Err(error) = body.machine.discard_overlay(rest.overlay).await {
                    tracing::warn!(vm = %parent.name(), error = &error as &dyn std::error::Error, "overlay kept open");
                }
                Err(error)
            }
        };
        // Said even if the guest did not hold still: it may have heard late.
        let resumed = body.guest.resume().await;
        let published = match (taken, resumed) {
            (Ok(taken), Ok(())) => self.publish(taken, lineage).await,
            (Err(error), _) => Err(error),
            (Ok(_), Err(error)) => Err(error.into()),
        };
        if published.is_err() {
            self.retire(image).await;
            if parent.record().chain.first() != Some(&overlay_path) {
                self.remove_files(&[overlay_path]);
            }
        }
        self.use_up(template, rest.spare).await;
        published
    }

    /// The parent's pause.
    async fn pause(
        &self,
        parent: &Vm,
        body: &Body,
        overlay: forkyard_vmm::Overlay,
        overlay_path: std::path::PathBuf,
        lineage: Lineage,
        report: &mut ForkReport,
    ) -> Result<Instantaneous, HostError> {
        let machine = &body.machine;
        let ram = machine.ram().await?;
        let region = Region {
            start: HostAddr(ram.hva),
            pages: ram.len.pages(),
        };
        let pid = machine.record().process.pid;
        let stopped = Instant::now();
        if let Err(error) = machine.stop().await {
            // It may have stopped all the same, and only its answer was late.
            let _ = machine.cont().await;
            return Err(error.into());
        }
        // Once it has stopped no device touches memory: what is saved here
        // and what is copied there are of the same instant.
        let copy = blocking(move || {
            let begun = Instant::now();
            capture(pid, region, lineage, threads()).map(|captured| (captured, begun.elapsed()))
        });
        let devices = async {
            let begun = Instant::now();
            // Recorded first: a daemon that takes over in the middle of this
            // must not take the frozen slice for the one that is written to.
            self.lengthen_chain(parent, overlay_path)?;
            if let Err(error) = machine.freeze_disk(overlay).await {
                // It may have been frozen all the same.
                self.settle_chain(parent, machine).await?;
                return Err(error.into());
            }
            let frozen = begun.elapsed();
            let descriptor = machine.save_descriptor().await?;
            Ok::<_, HostError>((descriptor, frozen, begun.elapsed() - frozen))
        };
        let (copied, saved) = tokio::join!(copy, devices);
        let going_on = machine.cont().await;
        report.pause_us = micros(stopped.elapsed());
        going_on?;
        let (captured, copying) = copied?;
        let (descriptor, frozen, saving) = saved?;
        let counts = captured.counts();
        report.disk_us = micros(frozen);
        report.descriptor_us = micros(saving);
        report.capture_us = micros(copying);
        report.descriptor = ByteCount(descriptor.len() as u64);
        report.pages_scanned = counts.scanned;
        report.pages_captured = counts.captured;
        Ok(Instantaneous {
            descriptor,
            captured,
        })
    }

    async fn publish(&self, taken: Instantaneous, lineage: Lineage) -> Result<Vec<u8>, HostError> {
        let layer = blocking(move || taken.captured.finish()).await?;
        self.pager_call(move |pager| pager.publish(lineage, layer))
            .await?;
        Ok(taken.descriptor)
    }

    /// Lets the network know who the clones will be. Their ports stay shut.
    async fn admit(
        &self,
        parent: &Vm,
        assigned: &[(Wanted, Option<WarmShell>)],
    ) -> Result<(), HostError> {
        let members: Vec<_> = assigned
            .iter()
            .filter_map(|(wanted, shell)| {
                Some((
                    shell.as_ref()?.record.id,
                    parent.network.address(wanted.member)?,
                ))
            })
            .collect();
        Ok(self.network.admit(&members).await?)
    }

    /// Takes the next places of a VM's family.
    pub(crate) fn take_members(&self, parent: &Vm, count: u16) -> Result<Vec<Member>, HostError> {
        let limit = forkyard_network::Subnet::MEMBERS;
        Ok(self
            .store
            .take_members(parent.record().family, count, limit)?)
    }

    /// Ends an image once no VM's memory is a view of it.
    pub(crate) async fn retire(&self, image: ImageId) {
        let used = self.store.vms().map(|vms| {
            vms.iter()
                .any(|vm: &VmRecord| vm.memory_image == Some(image))
        });
        if matches!(used, Ok(false))
            && let Err(error) = self.pager_call(move |pager| pager.retire(image)).await
        {
            tracing::warn!(%image, error = &error as &dyn std::error::Error, "page image not retired");
        }
    }
}

fn threads() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
