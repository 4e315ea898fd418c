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

use forkyard_guestlink::CloneEnd;
use forkyard_types::{Member, TicketClone, TicketId, VmId};
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

#[derive(Debug)]
enum Phase {
    Granted(Vec<Promise>),
    Cloned(BTreeMap<u16, Fate>),
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
    pub fn grant(&mut self, id: TicketId, owner: VmId, promises: Vec<Promise>) {
        self.entries.insert(
            id,
            Entry {
                owner,
                phase: Phase::Granted(promises),
            },
        );
    }

    /// The clones to make. From here on the ticket cannot be cloned with again.
    pub fn begin(&mut self, id: TicketId, caller: VmId) -> Result<Vec<Promise>, Denied> {
        let entry = self.owned(id, caller)?;
        let Phase::Granted(promises) = &mut entry.phase else {
            return Err(Denied::AlreadyCloned(id));
        };
        let promises = std::mem::take(promises);
        entry.phase = Phase::Cloned(
            promises
                .iter()
                .map(|p| (p.clone.id, Fate::Awaited))
                .collect(),
        );
        Ok(promises)
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

    /// Records that a VM has ended, if a ticket waits for it.
    pub fn ended(&mut self, vm: VmId, status: Option<u8>) {
        for entry in self.entries.values_mut() {
            let Phase::Cloned(fates) = &mut entry.phase else {
                continue;
            };
            for fate in fates.values_mut().filter(|fate| **fate == Fate::Alive(vm)) {
                *fate = Fate::Ended(status);
            }
        }
    }

    /// How every clone ended, and the ticket is spent; `None` while one lives.
    pub fn join(&mut self, id: TicketId, caller: VmId) -> Result<Option<Vec<CloneEnd>>, Denied> {
        let entry = self.owned(id, caller)?;
        let Phase::Cloned(fates) = &entry.phase else {
            return Err(Denied::NotCloned(id));
        };
        let ends: Option<Vec<_>> = fates
            .iter()
            .map(|(number, fate)| match fate {
                Fate::Awaited | Fate::Alive(_) => None,
                Fate::Ended(status) => Some(CloneEnd {
                    id: *number,
                    status: *status,
                }),
            })
            .collect();
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
            Phase::Cloned(fates) => fates.get_mut(&number),
        }
    }
}

fn alive(entry: Entry) -> Vec<VmId> {
    let Phase::Cloned(fates) = entry.phase else {
        return Vec::new();
    };
    let living = |fate: &Fate| match fate {
        Fate::Alive(vm) => Some(*vm),
        Fate::Awaited | Fate::Ended(_) => None,
    };
    fates.values().filter_map(living).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    fn granted(n: u16) -> (Tickets, TicketId, VmId) {
        let (id, owner) = (TicketId::random(), VmId::random());
        let promise = |id| Promise {
            clone: TicketClone {
                id,
                vcpus: 1,
                ip: Ipv4Addr::LOCALHOST,
            },
            member: Member(id),
        };
        let mut tickets = Tickets::default();
        tickets.grant(id, owner, (1..=n).map(promise).collect());
        (tickets, id, owner)
    }

    #[test]
    fn only_its_owner_can_use_a_ticket() {
        let (mut tickets, id, owner) = granted(2);
        let thief = VmId::random();
        assert_eq!(tickets.begin(id, thief), Err(Denied::Unknown(id)));
        assert_eq!(tickets.kill(id, thief), Err(Denied::Unknown(id)));
        assert_eq!(tickets.begin(id, owner).map(|clones| clones.len()), Ok(2));
        assert_eq!(tickets.join(id, thief), Err(Denied::Unknown(id)));
    }

    #[test]
    fn a_ticket_clones_once() {
        let (mut tickets, id, owner) = granted(1);
        assert!(tickets.begin(id, owner).is_ok());
        assert_eq!(tickets.begin(id, owner), Err(Denied::AlreadyCloned(id)));
        assert!(tickets.born(id, 1, VmId::random()));
        assert_eq!(tickets.begin(id, owner), Err(Denied::AlreadyCloned(id)));
    }

    #[test]
    fn a_join_before_the_clone_is_refused() {
        let (mut tickets, id, owner) = granted(1);
        assert_eq!(tickets.join(id, owner), Err(Denied::NotCloned(id)));
    }

    #[test]
    fn a_clone_of_a_ticket_killed_meanwhile_must_not_run() {
        let (mut tickets, id, owner) = granted(1);
        assert!(tickets.begin(id, owner).is_ok());
        assert_eq!(tickets.kill(id, owner), Ok(vec![]));
        assert!(!tickets.born(id, 1, VmId::random()));
    }

    #[test]
    fn a_clone_never_promised_must_not_run() {
        let (mut tickets, id, owner) = granted(1);
        assert!(!tickets.born(id, 1, VmId::random()), "not cloned with yet");
        assert!(tickets.begin(id, owner).is_ok());
        assert!(!tickets.born(id, 2, VmId::random()), "of another number");
        assert!(tickets.born(id, 1, VmId::random()));
        assert!(!tickets.born(id, 1, VmId::random()), "twice");
    }

    #[test]
    fn kill_names_the_living_only() {
        let (mut tickets, id, owner) = granted(3);
        let vms = [VmId::random(), VmId::random()];
        assert!(tickets.begin(id, owner).is_ok());
        assert!(tickets.born(id, 1, vms[0]) && tickets.born(id, 2, vms[1]));
        tickets.unborn(id, 3);
        tickets.ended(vms[0], Some(0));
        assert_eq!(tickets.kill(id, owner), Ok(vec![vms[1]]));
        assert_eq!(tickets.join(id, owner), Err(Denied::Unknown(id)));
    }

    #[test]
    fn tickets_go_with_their_owner() {
        let (mut tickets, id, owner) = granted(1);
        tickets.forget(owner);
        assert_eq!(tickets.begin(id, owner), Err(Denied::Unknown(id)));
    }

    proptest! {
        #[test]
        fn join_returns_once_every_clone_has_ended_with_the_status_each_gave(
            // None: the clone could not be made. Some(status): it ended so.
            fates in prop::collection::vec(any::<Option<Option<u8>>>(), 1..8),
            turn in any::<prop::sample::Index>(),
        ) {
            let count = u16::try_from(fates.len()).expect("few");
            let (mut tickets, id, owner) = granted(count);
            prop_assert_eq!(tickets.begin(id, owner).map(|p| p.len()), Ok(fates.len()));
            let mut events: Vec<_> = (1u16..).zip(&fates).map(|(n, fate)| (n, *fate, VmId::random())).collect();
            events.rotate_left(turn.index(fates.len()));
            for (number, fate, vm) in events {
                prop_assert_eq!(tickets.join(id, owner), Ok(None));
                match fate {
                    None => tickets.unborn(id, number),
                    Some(status) => {
                        prop_assert!(tickets.born(id, number, vm));
                        prop_assert_eq!(tickets.join(id, owner), Ok(None));
                        tickets.ended(vm, status);
                        tickets.ended(vm, Some(99));
                    }
                }
            }
            let want: Vec<_> =
                (1..).zip(&fates).map(|(id, fate)| CloneEnd { id, status: fate.flatten() }).collect();
            prop_assert_eq!(tickets.join(id, owner), Ok(Some(want)));
            prop_assert_eq!(tickets.join(id, owner), Err(Denied::Unknown(id)));
        }
    }
}
