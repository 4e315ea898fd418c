//! One clone: from a warm shell to a VM with an identity of its own.

use crate::{Host, HostError, fork::Wanted, progress::Going, remote::Far, ticket::Denied};
use forkyard_agent_link::{Cloned, Identify, LinkError};
use forkyard_records::{Birth, RecordsError, VmRecord};
use forkyard_snapshot::{Original, Snapshot, WarmShell};
use forkyard_types::{
    Address, Epoch, ForkId, ForkMode, Identity, RequestId, Route, VmName, VmState,
};
use forkyard_vm::{Life, Vm};
use std::{
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::{Instrument as _, debug_span, instrument};

/// Most notes of a guest that are kept, and bytes of each.
const NOTES: usize = 32;
const NOTE: usize = 500;

/// Origin of a fork, and the data that its clones do not inherit.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Id of the fork.
    pub fork: ForkId,
    /// The request of the guest's program that returns in each clone; none if
    /// the fork was asked for from outside.
    pub request: Option<RequestId>,
    /// Id by which observers follow it while it is made.
    pub watch: Option<RequestId>,
    /// Mode of the fork.
    pub mode: ForkMode,
    /// Paths in the guest.
    pub scrub: Vec<String>,
    /// Address that the clones are told is their parent's; none: that of the VM
    /// they are made of.
    pub home: Option<Ipv4Addr>,
    /// Clones that other hosts make of it.
    pub far: Far,
}

/// The fork that clones come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    pub fork: ForkId,
    pub asked: &'a Asked,
    /// Time of the request.
    pub begun: Instant,
    /// Receiver of its progress.
    pub going: &'a Going,
}

/// A clone that goes about its work.
pub(crate) struct Made {
    pub vm: Arc<Vm>,
    /// From the request for the fork until its vCPUs ran.
    pub running: Duration,
    /// From the request for the fork until its user code went on.
    pub ready: Duration,
}

impl Host {
    /// Makes a clone of a snapshot and a shell over it. If that fails, nothing of it is left.
    #[instrument(name = "clone", level = "debug", skip_all, fields(vm = %shell.record.id))]
    pub(crate) async fn bring_up(
        &self,
        snapshot: &Snapshot,
        shell: WarmShell,
        wanted: Wanted,
        origin: Origin<'_>,
    ) -> Result<Made, HostError> {
        let of = &snapshot.layout.of;
        let WarmShell {
            mut record,
            shell,
            guest,
            calls,
        } = shell;
        record.member = wanted.member;
        record.birth = (!of.founds).then_some(Birth {
            parent: of.id,
            fork: Some(origin.fork),
            granted: wanted.vcpus.or(of.granted),
        });
        record.state = VmState::Starting;
        let network = of.network;
        let outcome = async {
            of.still_there()?;
            match of.founds {
                true => self.name_founder(&mut record, of)?,
                false => self.name_clone(&mut record, of)?,
            }
            let address = forkyard_vm::address(network, &record);
            let own = network
                .address(of.member)
                .unwrap_or_else(|| network.founder());
            let parent_ip = origin.asked.home.unwrap_or(own.ip);
            let cloned = Cloned {
                id: wanted.number,
                processes: wanted.processes,
                vcpus: wanted.vcpus,
                request: origin.asked.request,
            };
            if let Some(ticket) = wanted.ticket
                && !self.tickets(|tickets| tickets.born(ticket, wanted.number, record.id))
            {
                return Err(HostError::Ticket(Denied::Unknown(ticket)));
            }
            let route = self.parts.network.route(record.family);
            let told = Identify {
                identity: identity(&record, address, route, parent_ip),
                cloned: Some(cloned),
                scrub: origin.asked.scrub.clone(),
                growth: None,
            };
            let made = self.snapshots.instantiate(snapshot, (shell, &guest), told);
            let body = Arc::new(made.await?);
            let running = origin.begun.elapsed();
            let life = Life::Starting {
                body: Some(body.clone()),
                again: false,
            };
            let mut vm = Vm::new(record.clone(), network, life);
            vm.ephemeral = wanted.ticket.is_some();
            vm.cloned = Some(cloned);
            let vm = Arc::new(vm);
            let ready = async {
                self.inherit_terms(of.id, &vm)?;
                self.settle(&vm, &guest).await?;
                vm.enter(&self.parts.store, Life::Running(body), |_| {})?;
                Ok::<_, HostError>(origin.begun.elapsed())
            };
            match ready.await {
                Ok(ready) => Ok(Made { vm, running, ready }),
                Err(error) => {
                    self.end_running(&vm).await;
                    Err(error)
                }
            }
        };
        match outcome.await {
            Ok(made) => {
                self.register_running(made.vm.clone(), calls);
                self.snapshots.tidy(&made.vm);
                Ok(made)
            }
            Err(error) => {
                self.snapshots.erase(&record).await;
                if let Some(ticket) = wanted.ticket {
                    self.tickets(|tickets| tickets.unborn(ticket, wanted.number));
                }
                self.lives.ended.notify_waiters();
                Err(error)
            }
        }
    }

    /// Sees a guest through its identity: applied, then its port opened, then
    /// its user code let go.
    pub(crate) async fn settle(
        &self,
        vm: &Vm,
        guest: &forkyard_agent_link::Guest,
    ) -> Result<(), HostError> {
        let patience = self.parts.options.to_identify();
        let identified = async {
            loop {
                let before = self.away(vm).await?;
                match guest.identified(patience).await {
                    // Each page that it touches and that is on another host costs a round trip.
                    Err(LinkError::Timeout { .. }) if self.away(vm).await? < before => {}
                    answer => return Ok::<_, HostError>(answer?),
                }
            }
        };
        let problems = identified.instrument(debug_span!("identity")).await?;
        if !problems.is_empty() {
            return Err(HostError::Identity { problems });
        }
        self.parts
            .network
            .open_port(vm.record().family, vm.id)
            .await?;
        // A hook that fails is the user's to see, not a reason to take the
        // clone away from them.
        let hooks = guest.release(patience).instrument(debug_span!("hooks"));
        let notes = bounded(hooks.await?);
        for note in &notes {
            tracing::warn!(vm = %vm.name(), note, "the guest goes on all the same");
        }
        if !notes.is_empty() {
            vm.change(&self.parts.store, |record| record.notes = notes)?;
        }
        Ok(())
    }

    /// Names what is made of a substrate as it was asked for.
    fn name_founder(&self, record: &mut VmRecord, of: &Original) -> Result<(), HostError> {
        record.name = of.name.clone();
        Ok(self.parts.store.put_vm(record)?)
    }

    /// Names a clone after its family's founder and its place; by its id if
    /// that name has been taken for something else.
    fn name_clone(&self, record: &mut VmRecord, parent: &Original) -> Result<(), HostError> {
        let own = record.name.clone();
        if let Some(name) = clone_name(parent, record.member.0) {
            record.name = name;
        }
        match self.parts.store.put_vm(record) {
            Err(RecordsError::NameTaken { .. }) => {
                record.name = own;
                Ok(self.parts.store.put_vm(record)?)
            }
            other => Ok(other?),
        }
    }
}

/// Cuts the messages of a guest to the length that is kept.
fn bounded(mut notes: Vec<String>) -> Vec<String> {
    notes.truncate(NOTES);
    for note in &mut notes {
        let end = (0..=NOTE).rev().find(|at| note.is_char_boundary(*at));
        note.truncate(end.unwrap_or(0));
    }
    notes
}

/// `p-3` for the third clone in the family that `p` founded, whichever its parent.
fn clone_name(parent: &Original, member: u16) -> Option<VmName> {
    let own = parent.name.as_str();
    let suffix = format!("-{}", parent.member.0);
    let founder = match parent.is_clone {
        true => own.strip_suffix(&suffix).unwrap_or(own),
        false => own,
    };
    format!("{founder}-{member}").parse().ok()
}

/// Builds the identity that a VM is to assume, with fresh randomness and the
/// present time.
pub(crate) fn identity(
    record: &VmRecord,
    address: Address,
    route: Option<Route>,
    parent_ip: std::net::Ipv4Addr,
) -> Identity {
    let mut seed = [0; 32];
    for half in seed.chunks_mut(16) {
        // Version 4 UUIDs come from the kernel's generator; two of them hold
        // 244 bits of it.
        half.copy_from_slice(Epoch::random().0.as_bytes());
    }
    Identity {
        vm: record.id,
        family: record.family,
        member: record.member,
        epoch: record.epoch,
        name: record.name.clone(),
        address,
        route,
        parent_ip,
        seed,
    }
}
