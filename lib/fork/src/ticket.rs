//! Tickets: clones promised to a guest's program, and their fate.
//!
//! ```text
//! Granted --clone--> Cloned --every clone has ended, join--> (spent)
//!    +------------------+---- kill --> Killed --they are gone--> (spent)
//! ```
//!
//! A ticket belongs to the VM that asked for it: no other, not even another
//! member of its family, can clone, join or kill with it. A spent ticket is
//! unknown. Bookkeeping only: the caller makes and ends the VMs, and records
//! what changed, so that the next daemon goes on with it.

mod far;
mod given_back;
mod kept;
mod view;

use crate::{CloneRoom, quota::Places};
use forkyard_agent_link::CloneEnd;
use forkyard_types::{
    Member, RequestId, Ticket, TicketChanged, TicketClone, TicketId, TicketKind, VmId,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Reason why a ticket cannot be used so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Never granted to this VM, or spent.
    #[error("ticket {0} was not granted to this VM, or is used up")]
    Unknown(TicketId),
    /// The ticket has been cloned with already.
    #[error("ticket {0} has been cloned with already")]
    AlreadyCloned(TicketId),
    /// Granted on another host.
    #[error("ticket {0} was granted on another host: `forkyard ticket rm` it there")]
    Foreign(TicketId),
    /// There is nothing to wait for yet.
    #[error("ticket {0} has not been cloned with yet")]
    NotCloned(TicketId),
}

/// One clone promised, and the place in the family it will have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// Data that the asker was told.
    pub clone: TicketClone,
    /// The place its address follows from.
    pub member: Member,
    /// The host that is to make it, by its name here; none: this one.
    #[serde(default)]
    pub host: Option<String>,
}

/// Grant of one clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Processes in it that have numbers.
    pub processes: u8,
    /// vCPUs it has online.
    pub vcpus: u8,
}

/// Lays out so many clones, or processes, over clones of a VM with so many
/// vCPUs.
pub fn lay_out(count: u16, vcpus: u8, kind: TicketKind) -> Vec<Share> {
    let mut left = count;
    std::iter::from_fn(|| {
        let processes = match kind {
            TicketKind::Flat => 1,
            TicketKind::Hierarchical => u8::try_from(left).unwrap_or(u8::MAX).min(vcpus.max(1)),
        };
        left = left
            .checked_sub(processes.into())
            .filter(|_| processes > 0)?;
        let vcpus = match kind {
            TicketKind::Flat => vcpus,
            TicketKind::Hierarchical => processes,
        };
        Some(Share { processes, vcpus })
    })
    .collect()
}

/// Clones that a VM was granted.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// The clones.
    pub promises: Vec<Promise>,
    /// Their places among the family's clones; not recorded, but taken again.
    #[serde(skip)]
    pub places: Option<Places>,
    /// Room for them in the cluster; not recorded, but asked for again.
    #[serde(skip)]
    pub room: Option<Box<dyn CloneRoom>>,
}

/// Decision about a VM that asks for the clones it was granted.
#[derive(Debug)]
pub(crate) enum Begun {
    /// Make them.
    Now(Grant),
    /// Nothing: it asks again. These could not be made.
    Before(Vec<u16>),
}

/// Work that is left after a ticket is killed.
#[derive(Debug)]
pub(crate) struct Killed {
    /// The clones to end.
    pub alive: Vec<VmId>,
    /// Unused grant, if the ticket was never cloned with.
    pub unused: Option<Grant>,
}

/// Fate of one clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Fate {
    /// The clone is being made.
    Awaited,
    /// The clone could not be made.
    Unmade,
    /// The clone runs, or is about to.
    Alive(VmId),
    /// The clone has ended, with the status it gave to `exit` if it gave one.
    Ended(Option<u8>),
}

/// One clone, by the number of its first process.
#[derive(Debug, Serialize, Deserialize)]
struct Seat {
    processes: u8,
    fate: Fate,
    /// The host that makes it; none: this one.
    #[serde(default)]
    host: Option<String>,
    /// Reported ends of its other processes.
    told: BTreeMap<u16, Option<u8>>,
}

type Seats = BTreeMap<u16, Seat>;

#[derive(Debug, Serialize, Deserialize)]
enum Phase {
    Granted(Grant),
    Cloned { request: RequestId, seats: Seats },
    Killed(Vec<VmId>),
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    owner: VmId,
    /// By which it was asked for.
    request: RequestId,
    kind: TicketKind,
    phase: Phase,
    /// Granted on another host, at this time, in seconds since 1970; none: here.
    #[serde(default)]
    foreign: Option<u64>,
    /// Time at which it is given back unless it is cloned with before, in seconds since
    /// 1970; none: it ends with the process that asked for it.
    #[serde(default)]
    until: Option<u64>,
}

impl Entry {
    /// Kills it as the end of the process that holds it does: names the clones to end. None if no
    /// process holds it.
    fn end_with_its_process(&mut self) -> Vec<VmId> {
        let alive: Vec<_> = match &self.phase {
            Phase::Cloned { seats, .. } if self.until.is_none() => {
                seats.values().filter_map(Seat::living).collect()
            }
            Phase::Cloned { .. } | Phase::Granted(_) | Phase::Killed(_) => Vec::new(),
        };
        if !alive.is_empty() {
            self.phase = Phase::Killed(alive.clone());
        }
        alive
    }
}

/// Every ticket that is not spent.
#[derive(Debug, Default)]
pub struct Tickets {
    entries: BTreeMap<TicketId, Entry>,
    changed: BTreeSet<TicketId>,
    /// Owners of those that were told of, and what was told last.
    told: BTreeMap<TicketId, (VmId, TicketChanged)>,
}

impl Tickets {
    /// Records what `owner` was granted when it asked by this request.
    pub(crate) fn grant(
        &mut self,
        id: TicketId,
        owner: VmId,
        (request, kind): (RequestId, TicketKind),
        grant: Grant,
    ) {
        let entry = Entry {
            owner,
            request,
            kind,
            phase: Phase::Granted(grant),
            foreign: None,
            until: None,
        };
        self.entries.insert(id, entry);
        self.changed.insert(id);
    }

    /// Finds the grant of a request that is made again.
    pub(crate) fn granted(&self, owner: VmId, request: RequestId) -> Option<Ticket> {
        let mut entries = self.entries.iter();
        let same = |entry: &Entry| (entry.owner, entry.request) == (owner, request);
        let (id, entry) = entries.find(|(_, entry)| same(entry))?;
        let Phase::Granted(grant) = &entry.phase else {
            return None;
        };
        let clones = grant.promises.iter().map(|promise| promise.clone.clone());
        Some(Ticket {
            id: *id,
            kind: entry.kind,
            clones: clones.collect(),
        })
    }

    /// The most clones on this host that a ticket of this VM's promises, which its next
    /// fork may be for.
    pub fn promised_to(&self, owner: VmId) -> usize {
        let own = self.entries.values().filter(|entry| entry.owner == owner);
        let promised = own.map(|entry| match &entry.phase {
            Phase::Granted(grant) => {
                let here = grant.promises.iter().filter(|it| it.host.is_none());
                here.count()
            }
            Phase::Cloned { .. } | Phase::Killed(_) => 0,
        });
        promised.max().unwrap_or(0)
    }

    /// The clones to make. From here on the ticket cannot be cloned with again;
    /// the same request is told how it went.
    pub(crate) fn begin(
        &mut self,
        id: TicketId,
        caller: VmId,
        request: RequestId,
    ) -> Result<Begun, Denied> {
        let entry = self.owned(id, caller)?;
        let promises = match &entry.phase {
            Phase::Granted(grant) => &grant.promises,
            Phase::Cloned {
                request: first,
                seats,
            } if *first == request => {
                let unmade = seats.iter().filter(|(_, seat)| seat.fate == Fate::Unmade);
                return Ok(Begun::Before(unmade.map(|(number, _)| *number).collect()));
            }
            Phase::Cloned { .. } => return Err(Denied::AlreadyCloned(id)),
            Phase::Killed(_) => return Err(Denied::Unknown(id)),
        };
        let seats = promises.iter().map(|promise| {
            let seat = Seat {
                processes: promise.clone.processes,
                fate: Fate::Awaited,
                host: promise.host.clone(),
                told: BTreeMap::new(),
            };
            (promise.clone.id, seat)
        });
        let cloned = Phase::Cloned {
            request,
            seats: seats.collect(),
        };
        let begun = match std::mem::replace(&mut entry.phase, cloned) {
            Phase::Granted(grant) => Ok(Begun::Now(grant)),
            Phase::Cloned { .. } | Phase::Killed(_) => Err(Denied::AlreadyCloned(id)),
        };
        self.changed.insert(id);
        begun
    }

    /// Records which VM a clone is, before that VM runs. False if the ticket
    /// was killed meanwhile: this clone is not awaited, it must not run.
    #[must_use]
    pub fn born(&mut self, id: TicketId, number: u16, vm: VmId) -> bool {
        match self.fate(id, number) {
            Some(fate @ Fate::Awaited) => {
                *fate = Fate::Alive(vm);
                true
            }
            Some(Fate::Alive(_) | Fate::Unmade | Fate::Ended(_)) | None => false,
        }
    }

    /// Records that a clone could not be made.
    pub fn unborn(&mut self, id: TicketId, number: u16) {
        if let Some(fate) = self.fate(id, number) {
            *fate = Fate::Unmade;
        }
    }

    /// Records what a VM says of its processes. What it says of others' is
    /// nothing to it.
    pub fn told(&mut self, vm: VmId, ends: &[CloneEnd]) {
        self.seats_of(vm, |first, seat| {
            let own = others(first, seat.processes);
            let ends = ends.iter().filter(|end| own.contains(&end.id));
            seat.told = ends.map(|end| (end.id, end.status)).collect();
        });
    }

    /// Records that a VM has ended, if a ticket waits for it.
    pub fn ended(&mut self, vm: VmId, status: Option<u8>) {
        self.seats_of(vm, |_, seat| seat.fate = Fate::Ended(status));
    }

    /// Returns the ends of all clones, and spends the ticket; `None` while one
    /// lives.
    pub fn join(&mut self, id: TicketId, caller: VmId) -> Result<Option<Vec<CloneEnd>>, Denied> {
        let entry = self.owned(id, caller)?;
        let seats = match &entry.phase {
            Phase::Granted(_) => return Err(Denied::NotCloned(id)),
            Phase::Cloned { seats, .. } => seats,
            Phase::Killed(_) => return Err(Denied::Unknown(id)),
        };
        let ends: Option<Vec<_>> = seats
            .iter()
            .map(|(number, seat)| seat.ends(*number))
            .collect();
        let ends = ends.map(|ends| ends.concat());
        if ends.is_some() {
            self.spend(id);
        }
        Ok(ends)
    }

    /// Names the clones to end. Once they have gone, the ticket is to be spent.
    pub(crate) fn kill(&mut self, id: TicketId, caller: VmId) -> Result<Killed, Denied> {
        let entry = self.owned(id, caller)?;
        let alive = match &entry.phase {
            Phase::Granted(_) => Vec::new(),
            Phase::Cloned { seats, .. } => seats.values().filter_map(Seat::living).collect(),
            Phase::Killed(alive) => alive.clone(),
        };
        let unused = match std::mem::replace(&mut entry.phase, Phase::Killed(alive.clone())) {
            Phase::Granted(grant) => Some(grant),
            Phase::Cloned { .. } | Phase::Killed(_) => None,
        };
        self.changed.insert(id);
        Ok(Killed { alive, unused })
    }

    /// Spends a ticket.
    pub fn spend(&mut self, id: TicketId) {
        self.entries.remove(&id);
        self.changed.insert(id);
    }

    /// Ends the tickets of a VM that is no more, and with it the processes that held them. Names
    /// the clones to end, by tickets to be spent once they have gone. Clones of tickets that no
    /// process held live on: they are VMs like any other.
    #[must_use = "these clones are to be ended"]
    pub fn forget(&mut self, owner: VmId) -> Vec<(TicketId, Vec<VmId>)> {
        let mut killed = Vec::new();
        let changed = &mut self.changed;
        self.entries.retain(|id, entry| {
            if entry.owner != owner || matches!(entry.phase, Phase::Killed(_)) {
                return true;
            }
            changed.insert(*id);
            let alive = entry.end_with_its_process();
            let stays = !alive.is_empty();
            if stays {
                killed.push((*id, alive));
            }
            stays
        });
        killed
    }

    /// Returns true if a VM has a ticket, or one waits for its end.
    pub fn concern(&self, vm: VmId) -> bool {
        self.has(vm) || self.entries.values().any(|entry| entry.owner == vm)
    }

    /// Tells whether a ticket waits for the end of a VM.
    pub fn has(&self, vm: VmId) -> bool {
        let phases = self.entries.values().map(|entry| &entry.phase);
        phases.into_iter().any(|phase| match phase {
            Phase::Granted(_) | Phase::Killed(_) => false,
            Phase::Cloned { seats, .. } => seats.values().any(|seat| seat.fate == Fate::Alive(vm)),
        })
    }

    fn owned(&mut self, id: TicketId, caller: VmId) -> Result<&mut Entry, Denied> {
        self.entries
            .get_mut(&id)
            .filter(|entry| entry.owner == caller)
            .ok_or(Denied::Unknown(id))
    }

    fn fate(&mut self, id: TicketId, number: u16) -> Option<&mut Fate> {
        let fate = match &mut self.entries.get_mut(&id)?.phase {
            Phase::Granted(_) | Phase::Killed(_) => None,
            Phase::Cloned { seats, .. } => seats.get_mut(&number).map(|seat| &mut seat.fate),
        };
        self.changed.insert(id);
        fate
    }

    fn seats_of(&mut self, vm: VmId, act: impl Fn(u16, &mut Seat)) {
        for (id, entry) in &mut self.entries {
            let seats = match &mut entry.phase {
                Phase::Granted(_) | Phase::Killed(_) => continue,
                Phase::Cloned { seats, .. } => seats,
            };
            let mut own = seats
                .iter_mut()
                .filter(|(_, seat)| seat.fate == Fate::Alive(vm));
            if let Some((first, seat)) = own.next() {
                act(*first, seat);
                self.changed.insert(*id);
            }
        }
    }
}

impl Seat {
    /// Returns the ends of its processes, in order of their numbers; none while
    /// it lives.
    fn ends(&self, first: u16) -> Option<Vec<CloneEnd>> {
        let status = match self.fate {
            Fate::Awaited | Fate::Alive(_) => return None,
            Fate::Unmade => None,
            Fate::Ended(status) => status,
        };
        let others = others(first, self.processes).map(|id| CloneEnd {
            id,
            status: self.told.get(&id).copied().flatten(),
        });
        let own = CloneEnd { id: first, status };
        Some(std::iter::once(own).chain(others).collect())
    }

    fn living(&self) -> Option<VmId> {
        match self.fate {
            Fate::Alive(vm) => Some(vm),
            Fate::Awaited | Fate::Unmade | Fate::Ended(_) => None,
        }
    }
}

/// Numbers of a clone's processes after its first.
fn others(first: u16, processes: u8) -> std::ops::Range<u16> {
    let next = first.saturating_add(1);
    next..first.saturating_add(processes.into()).max(next)
}

#[cfg(test)]
mod tests;
