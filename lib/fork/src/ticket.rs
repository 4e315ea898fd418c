//! Tickets: what was promised to whom, and what became of it.
//!
//! ```text
//! Granted --clone--> Cloned --every clone has ended, join--> (spent)
//!    +--------------- kill ------------------------------------> (spent)
//! ```
//!
//! A ticket belongs to the VM that asked for it: nobody else, not even another
//! member of its family, can clone, join or kill with it. A spent ticket is
//! unknown. Bookkeeping only: the caller makes and ends the VMs.

use crate::quota::Places;
use forkyard_guestlink::CloneEnd;
use forkyard_types::{Member, TicketClone, TicketId, TicketKind, VmId};
use std::collections::BTreeMap;

/// Why a ticket cannot be used so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Never granted to this VM, or spent.
    #[error("ticket {0} was not granted to this VM, or is used up")]
    Unknown(TicketId),
    /// It has been cloned with already.
    #[error("ticket {0} has been cloned with already")]
    AlreadyCloned(TicketId),
    /// There is nothing to wait for yet.
    #[error("ticket {0} has not been cloned with yet")]
    NotCloned(TicketId),
}

/// One clone promised, and the place in the family it will have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// What the asker was told.
    pub clone: TicketClone,
    /// The place its address follows from.
    pub member: Member,
}

/// What one clone is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Processes in it that have numbers.
    pub processes: u8,
    /// vCPUs it has online.
    pub vcpus: u8,
}

/// How so many clones, or processes, are laid out over clones of a VM with so
/// many vCPUs.
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

/// What a VM was granted.
#[derive(Debug)]
pub(crate) struct Grant {
    /// The clones.
    pub promises: Vec<Promise>,
    /// Their places among the family's clones.
    pub places: Places,
}

/// What became of one clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is being made.
    Awaited,
    /// It runs, or is about to.
    Alive(VmId),
    /// It has ended, with the status it gave to `exit` if it gave one.
    Ended(Option<u8>),
}

/// One clone, by the number of its first process.
#[derive(Debug)]
struct Seat {
    processes: u8,
    fate: Fate,
    /// How its other processes ended, as it said.
    told: BTreeMap<u16, Option<u8>>,
}

#[derive(Debug)]
enum Phase {
    Granted(Grant),
    Cloned(BTreeMap<u16, Seat>),
}

#[derive(Debug)]
struct Entry {
    owner: VmId,
    phase: Phase,
}

/// Every ticket that is not spent.
#[derive(Debug, Default)]
pub struct Tickets {
    entries: BTreeMap<TicketId, Entry>,
}

impl Tickets {
    /// Records what `owner` was granted.
    pub(crate) fn grant(&mut self, id: TicketId, owner: VmId, grant: Grant) {
        let phase = Phase::Granted(grant);
        self.entries.insert(id, Entry { owner, phase });
    }

    /// The clones to make. From here on the ticket cannot be cloned with again.
    pub(crate) fn begin(&mut self, id: TicketId, caller: VmId) -> Result<Grant, Denied> {
        let entry = self.owned(id, caller)?;
        let Phase::Granted(Grant { promises, .. }) = &entry.phase else {
            return Err(Denied::AlreadyCloned(id));
        };
        let seats = promises.iter().map(|promise| {
            let seat = Seat {
                processes: promise.clone.processes,
                fate: Fate::Awaited,
                told: BTreeMap::new(),
            };
            (promise.clone.id, seat)
        });
        let cloned = Phase::Cloned(seats.collect());
        match std::mem::replace(&mut entry.phase, cloned) {
            Phase::Granted(grant) => Ok(grant),
            Phase::Cloned(_) => Err(Denied::AlreadyCloned(id)),
        }
    }

    /// Records which VM a clone is, before that VM runs. False if the ticket
    /// was killed meanwhile: nobody waits for this clone, it must not run.
    #[must_use]
    pub fn born(&mut self, id: TicketId, number: u16, vm: VmId) -> bool {
        match self.fate(id, number) {
            Some(fate @ Fate::Awaited) => {
                *fate = Fate::Alive(vm);
                true
            }
            Some(Fate::Alive(_) | Fate::Ended(_)) | None => false,
        }
    }

    /// Records that a clone could not be made.
    pub fn unborn(&mut self, id: TicketId, number: u16) {
        if let Some(fate) = self.fate(id, number) {
            *fate = Fate::Ended(None);
        }
    }

    /// Records what a VM says of its processes. What it says of others' is
    /// nothing to it.
    pub fn told(&mut self, vm: VmId, ends: Vec<CloneEnd>) {
        for (first, seat) in self.seats_of(vm) {
            let own = others(*first, seat.processes);
            let ends = ends.iter().filter(|end| own.contains(&end.id));
            seat.told = ends.map(|end| (end.id, end.status)).collect();
        }
    }

    /// Records that a VM has ended, if a ticket waits for it.
    pub fn ended(&mut self, vm: VmId, status: Option<u8>) {
        for (_, seat) in self.seats_of(vm) {
            seat.fate = Fate::Ended(status);
        }
    }

    /// How every clone ended, and the ticket is spent; `None` while one lives.
    pub fn join(&mut self, id: TicketId, caller: VmId) -> Result<Option<Vec<CloneEnd>>, Denied> {
        let entry = self.owned(id, caller)?;
        let Phase::Cloned(seats) = &entry.phase else {
            return Err(Denied::NotCloned(id));
        };
        let ends: Option<Vec<_>> = seats
            .iter()
            .map(|(number, seat)| seat.ends(*number))
            .collect();
        let ends = ends.map(|ends| ends.concat());
        if ends.is_some() {
            self.entries.remove(&id);
        }
        Ok(ends)
    }

    /// Spends the ticket and names the clones to end.
    pub fn kill(&mut self, id: TicketId, caller: VmId) -> Result<Vec<VmId>, Denied> {
        self.owned(id, caller)?;
        Ok(self.entries.remove(&id).map(alive).unwrap_or_default())
    }

    /// Spends every ticket of a VM that is no more. Its clones live on: they
    /// are VMs like any other.
    pub fn forget(&mut self, owner: VmId) {
        self.entries.retain(|_, entry| entry.owner != owner);
    }

    fn owned(&mut self, id: TicketId, caller: VmId) -> Result<&mut Entry, Denied> {
        self.entries
            .get_mut(&id)
            .filter(|entry| entry.owner == caller)
            .ok_or(Denied::Unknown(id))
    }

    fn fate(&mut self, id: TicketId, number: u16) -> Option<&mut Fate> {
        match &mut self.entries.get_mut(&id)?.phase {
            Phase::Granted(_) => None,
            Phase::Cloned(seats) => seats.get_mut(&number).map(|seat| &mut seat.fate),
        }
    }

    fn seats_of(&mut self, vm: VmId) -> impl Iterator<Item = (&u16, &mut Seat)> {
        let seats = self
            .entries
            .values_mut()
            .filter_map(|entry| match &mut entry.phase {
                Phase::Granted(_) => None,
                Phase::Cloned(seats) => Some(seats),
            });
        seats
            .flatten()
            .filter(move |(_, seat)| seat.fate == Fate::Alive(vm))
    }
}

impl Seat {
    /// How its processes ended, in order of their numbers; none while it lives.
    fn ends(&self, first: u16) -> Option<Vec<CloneEnd>> {
        let Fate::Ended(status) = self.fate else {
            return None;
        };
        let others = others(first, self.processes).map(|id| CloneEnd {
            id,
            status: self.told.get(&id).copied().flatten(),
        });
        let own = CloneEnd { id: first, status };
        Some(std::iter::once(own).chain(others).collect())
    }
}

/// Numbers of a clone's processes after its first.
fn others(first: u16, processes: u8) -> std::ops::Range<u16> {
    let next = first.saturating_add(1);
    next..first.saturating_add(processes.into()).max(next)
}

fn alive(entry: Entry) -> Vec<VmId> {
    let Phase::Cloned(seats) = entry.phase else {
        return Vec::new();
    };
    let living = |seat: &Seat| match seat.fate {
        Fate::Alive(vm) => Some(vm),
        Fate::Awaited | Fate::Ended(_) => None,
    };
    seats.values().filter_map(living).collect()
}

#[cfg(test)]
mod tests;
