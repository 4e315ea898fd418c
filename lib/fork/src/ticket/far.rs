//! Tickets whose clones are on several hosts.
//!
//! ```text
//! where it was granted                 where some of its clones are
//! Cloned, seats with a host <--asks--- foreign: Cloned, these seats alone
//!   born, reported                        born, told, ended
//! ```
//!
//! A host that makes clones of another's ticket keeps an account of these, and is asked
//! for it until they have all ended. It keeps what was not asked for for a day.

use super::{Entry, Fate, Phase, Seat, Seats, Tickets};
use forkyard_types::{PeerEnd, PeerProcessEnd, PeerTicket, RequestId, TicketId, TicketKind, VmId};
use std::collections::{BTreeMap, BTreeSet};

/// Time an account that was never asked for is kept: a day, in seconds.
const KEPT: u64 = 24 * 60 * 60;

/// The hosts that have living clones.
pub(super) fn followed(seats: &Seats) -> BTreeSet<String> {
    let living = seats.values().filter(|seat| seat.living().is_some());
    living.filter_map(|seat| seat.host.clone()).collect()
}

impl Tickets {
    /// Opens the account of clones that are to be made here of a ticket granted on
    /// another host. False: there is one.
    #[must_use]
    pub(crate) fn open(&mut self, ticket: &PeerTicket, now: u64) -> bool {
        // Those of hosts that are no more.
        let stale = self.entries.extract_if(.., |_, entry| {
            entry
                .foreign
                .is_some_and(|since| since.saturating_add(KEPT) < now)
                && entry.is_over()
        });
        self.changed.extend(stale.map(|(id, _)| id));
        if self.entries.contains_key(&ticket.id) {
            return false;
        }
        let seats = ticket.clones.iter().map(|clone| {
            let seat = Seat {
                processes: clone.processes,
                fate: Fate::Awaited,
                host: None,
                told: BTreeMap::new(),
            };
            (clone.number, seat)
        });
        let entry = Entry {
            owner: ticket.owner,
            request: ticket.request.unwrap_or_else(RequestId::random),
            kind: TicketKind::Flat,
            phase: Phase::Cloned {
                request: ticket.request.unwrap_or_else(RequestId::random),
                seats: seats.collect(),
            },
            foreign: Some(now),
            until: None,
        };
        self.entries.insert(ticket.id, entry);
        self.changed.insert(ticket.id);
        true
    }

    /// The clones of another host's ticket that have ended here; none if it is not
    /// known.
    pub(crate) fn account(&self, id: TicketId) -> Option<Vec<PeerEnd>> {
        let entry = self.entries.get(&id)?;
        entry.foreign?;
        let Phase::Cloned { seats, .. } = &entry.phase else {
            return None;
        };
        let ended = seats.iter().filter_map(|(number, seat)| {
            let mut ends = seat.ends(*number)?.into_iter();
            let status = ends.next()?.status;
            let others = ends.map(|end| PeerProcessEnd {
                id: end.id,
                status: end.status,
            });
            Some(PeerEnd {
                number: *number,
                status,
                others: others.collect(),
            })
        });
        Some(ended.collect())
    }

    /// That account will not be asked for again.
    pub(crate) fn close(&mut self, id: TicketId) {
        if { self.entries.get(&id) }.is_some_and(|entry| entry.foreign.is_some()) {
            self.spend(id);
        }
    }

    /// The clones on a host whose ends are known, and how many live on there.
    pub(crate) fn at(&self, id: TicketId, host: &str) -> (Vec<u16>, usize) {
        let seats = self.entries.get(&id).and_then(|entry| match &entry.phase {
            Phase::Cloned { seats, .. } => Some(seats),
            Phase::Granted(_) | Phase::Killed(_) => None,
        });
        let there = seats.into_iter().flatten();
        let there = there.filter(|(_, seat)| seat.host.as_deref() == Some(host));
        let (living, ended): (Vec<_>, Vec<_>) =
            there.partition(|(_, seat)| seat.living().is_some());
        (
            ended.into_iter().map(|(number, _)| *number).collect(),
            living.len(),
        )
    }

    /// Records how clones on a host ended, as that says; `None`: it cannot say, all of
    /// them have. Those of which that was news.
    pub(crate) fn reported(
        &mut self,
        id: TicketId,
        host: &str,
        ends: Option<&[PeerEnd]>,
    ) -> Vec<VmId> {
        let mut news = Vec::new();
        let Some(Entry {
            phase: Phase::Cloned { seats, .. },
            ..
        }) = self.entries.get_mut(&id)
        else {
            return news;
        };
        for (number, seat) in seats {
            let Some(vm) = seat.living().filter(|_| seat.host.as_deref() == Some(host)) else {
                continue;
            };
            let end = ends.map(|ends| ends.iter().find(|end| end.number == *number));
            match end {
                None => seat.fate = Fate::Ended(None),
                Some(Some(end)) => {
                    let own = super::others(*number, seat.processes);
                    let others = end.others.iter().filter(|other| own.contains(&other.id));
                    seat.told = others.map(|other| (other.id, other.status)).collect();
                    seat.fate = Fate::Ended(end.status);
                }
                Some(None) => continue,
            }
            news.push(vm);
            self.changed.insert(id);
        }
        news
    }
}

impl Entry {
    /// Tells whether all its clones have ended.
    fn is_over(&self) -> bool {
        match &self.phase {
            Phase::Cloned { seats, .. } => seats
                .values()
                .all(|seat| !matches!(seat.fate, Fate::Awaited | Fate::Alive(_))),
            Phase::Granted(_) | Phase::Killed(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_agent_link::CloneEnd;
    use forkyard_types::{Member, PeerPromise};

    fn ticket(clones: &[(u16, u8)]) -> PeerTicket {
        let clones = clones.iter().map(|&(number, processes)| PeerPromise {
            number,
            member: Member(number),
            processes,
            vcpus: processes,
        });
        PeerTicket {
            id: TicketId::random(),
            owner: VmId::random(),
            request: Some(RequestId::random()),
            home: [10, 0, 0, 2].into(),
            clones: clones.collect(),
        }
    }

    #[test]
    fn an_account_tells_of_those_that_have_ended_and_is_closed_by_whoever_asked() {
        let mut there = Tickets::default();
        let of = ticket(&[(2, 1), (3, 2)]);
        assert!(there.open(&of, 0));
        assert!(!there.open(&of, 0), "it is there");
        let (one, two) = (VmId::random(), VmId::random());
        assert!(there.born(of.id, 2, one));
        assert!(there.born(of.id, 3, two));
        assert_eq!(there.account(of.id), Some(Vec::new()));
        assert!(there.has(two));
        there.told(
            two,
            &[CloneEnd {
                id: 4,
                status: Some(8),
            }],
        );
        there.ended(two, Some(7));
        let ended = PeerEnd {
            number: 3,
            status: Some(7),
            others: vec![PeerProcessEnd {
                id: 4,
                status: Some(8),
            }],
        };
        assert_eq!(there.account(of.id), Some(vec![ended]));
        there.close(of.id);
        assert_eq!(there.account(of.id), None);
    }

    #[test]
    fn nobody_who_runs_here_can_use_an_account() {
        let mut there = Tickets::default();
        let of = ticket(&[(1, 1)]);
        assert!(there.open(&of, 0));
        there.join(of.id, VmId::random()).expect_err("a stranger");
        // Its owner is on another host; the next daemon keeps it for that.
        assert_eq!(there.settle(|_| false), []);
        assert!(there.account(of.id).is_some_and(|ends| ends.len() == 1));
    }

    #[test]
    fn what_nobody_asks_for_is_kept_for_a_day() {
        let mut there = Tickets::default();
        let (old, alive, next) = (ticket(&[(1, 1)]), ticket(&[(1, 1)]), ticket(&[(1, 1)]));
        assert!(there.open(&old, 0) && there.open(&alive, 0));
        there.unborn(old.id, 1);
        assert!(there.open(&next, KEPT));
        assert!(there.account(old.id).is_some());
        let last = ticket(&[(1, 1)]);
        assert!(there.open(&last, KEPT + 1));
        assert!(there.account(old.id).is_none());
        assert!(there.account(alive.id).is_some(), "it has not ended");
    }

    /// A ticket of this host's, with one clone here and one of two processes there.
    fn spread() -> (Tickets, TicketId, VmId) {
        let (mut here, owner) = (Tickets::default(), VmId::random());
        let (id, request) = (TicketId::random(), RequestId::random());
        let promise = |id, processes, host: Option<&str>| super::super::Promise {
            clone: forkyard_types::TicketClone {
                id,
                vcpus: 1,
                processes,
                ip: [10, 0, 0, 3].into(),
            },
            member: Member(id),
            host: host.map(str::to_owned),
        };
        let grant = super::super::Grant {
            promises: vec![promise(1, 1, None), promise(2, 2, Some("b"))],
            places: None,
            room: None,
        };
        here.grant(id, owner, (request, TicketKind::Hierarchical), grant);
        assert!(here.begin(id, owner, request).is_ok());
        (here, id, owner)
    }

    #[test]
    fn a_join_waits_for_those_on_other_hosts_and_has_their_statuses() {
        let (mut here, id, owner) = spread();
        let (near, far) = (VmId::random(), VmId::random());
        assert!(here.born(id, 1, near) && here.born(id, 2, far));
        here.ended(near, Some(0));
        assert_eq!(here.at(id, "b"), (vec![], 1));
        here.reported(id, "b", Some(&[]));
        assert_eq!(here.join(id, owner), Ok(None));
        // The next daemon asks on, though it does not have that VM.
        let left = here.settle(|vm| vm == owner);
        assert_eq!(left, [super::super::kept::Left::Follow(id, "b".into())]);
        let others = vec![PeerProcessEnd {
            id: 3,
            status: Some(5),
        }];
        let end = PeerEnd {
            number: 2,
            status: Some(4),
            others,
        };
        here.reported(id, "c", None);
        here.reported(id, "b", Some(&[end]));
        assert_eq!(here.at(id, "b"), (vec![2], 0));
        let ends = here
            .join(id, owner)
            .expect("its own")
            .expect("all have ended");
        let statuses: Vec<_> = ends.iter().map(|end| (end.id, end.status)).collect();
        assert_eq!(statuses, [(1, Some(0)), (2, Some(4)), (3, Some(5))]);
    }

    #[test]
    fn clones_on_a_host_that_is_lost_have_ended() {
        let (mut here, id, owner) = spread();
        here.unborn(id, 1);
        assert!(here.born(id, 2, VmId::random()));
        here.reported(id, "b", None);
        let ends = here
            .join(id, owner)
            .expect("its own")
            .expect("all have ended");
        assert!(ends.iter().all(|end| end.status.is_none()));
    }
}
