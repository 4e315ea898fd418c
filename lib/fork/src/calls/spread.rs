//! A ticket's clones over hosts: where each is promised, and what becomes of those on
//! others.
//!
//! Addresses are told with the ticket, before anything is made. So the places in the
//! family are chosen here, also those of clones that other hosts will make: of what
//! these were lent, the half that is the lender's to promise.

use crate::{
    Granted, Host, HostError, Lot,
    fork::Wanted,
    quota::Places,
    remote::{self, Far},
    ticket::{Promise, Share},
};
use forkyard_network::Subnet;
use forkyard_records::Records;
use forkyard_types::{Member, PeerPromise, TicketId, VmId, VmView};
use forkyard_vm::Vm;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

/// A place in the family, and the host whose clone has it.
type Seat = (Option<String>, Member);

/// Clones of a ticket by what they take, the largest first.
pub(super) fn lots(shares: &[Share]) -> Vec<Lot> {
    let mut lots: Vec<Lot> = Vec::new();
    for share in shares {
        match lots.iter_mut().find(|lot| lot.vcpus == share.vcpus) {
            Some(lot) => lot.clones += 1,
            None => lots.push(Lot {
                vcpus: share.vcpus,
                clones: 1,
            }),
        }
    }
    lots.sort_by_key(|lot| Reverse(lot.vcpus));
    lots
}

/// Without a scheduler that hands out room there is room for all here.
pub(super) fn all_here(lots: Vec<Lot>) -> Vec<Granted> {
    let lots = lots.into_iter();
    lots.map(|lot| Granted { host: None, lot }).collect()
}

/// Assigns each clone its grant: on each host as much as there is room for.
pub(super) fn deal_shares(
    seats: Vec<Seat>,
    granted: &[Granted],
    mut shares: Vec<Share>,
) -> Vec<(Seat, Share)> {
    let mut left = granted.to_vec();
    let mut dealt = Vec::new();
    for seat in seats {
        let room = { left.iter_mut() }.find(|it| it.host == seat.0 && it.lot.clones > 0);
        let Some(Granted { lot, .. }) = room else {
            continue;
        };
        lot.clones -= 1;
        let vcpus = lot.vcpus;
        if let Some(place) = shares.iter().position(|share| share.vcpus == vcpus) {
            dealt.push((seat, shares.remove(place)));
        }
    }
    dealt
}

/// Room for these, where it was promised.
pub(super) fn places_of(promises: &[Promise]) -> Vec<Granted> {
    let mut counts: BTreeMap<(&Option<String>, u8), u16> = BTreeMap::new();
    for promise in promises {
        let key = (&promise.host, promise.clone.vcpus);
        *counts.entry(key).or_default() += 1;
    }
    let places = counts.into_iter().map(|((host, vcpus), clones)| Granted {
        host: host.clone(),
        lot: Lot { vcpus, clones },
    });
    places.collect()
}

/// Counts the clones on each host, this one first.
fn by_host(granted: &[Granted]) -> BTreeMap<&Option<String>, u16> {
    let mut counts = BTreeMap::new();
    for Granted { host, lot } in granted {
        *counts.entry(host).or_default() += lot.clones;
    }
    counts
}

impl Host {
    /// Takes a place in the family for each clone on each host. A host that can be lent
    /// none makes none.
    pub(super) fn take_seats(
        &self,
        vm: &Vm,
        places: &mut Places,
        granted: &[Granted],
    ) -> Result<Vec<Seat>, HostError> {
        let hosts = by_host(granted);
        let family = vm.record().family;
        let remote_clones = self.peers.remote_clones.members(family);
        let mut seats = Vec::new();
        let mut refused = None;
        let chosen = places.choose(|_, taken| {
            for (host, count) in &hosts {
                let members = match host {
                    None => self
                        .parts.store
                        .take_members(family, *count, Subnet::MEMBERS, taken)
                        .map_err(HostError::from),
                    Some(peer) => self.lent_to(family, peer).map(|lent| {
                        let taken = taken.union(&remote_clones).copied().collect();
                        Records::promise_members(lent, *count, &taken)
                    }),
                };
                match members {
                    Ok(members) => {
                        seats.extend(members.into_iter().map(|member| ((*host).clone(), member)));
                    }
                    Err(error) => {
                        tracing::warn!(%family, host, error = &error as &dyn std::error::Error, "it makes no clones");
                        refused = Some(error);
                    }
                }
            }
            match (seats.is_empty(), refused.take()) {
                (true, Some(error)) => Err(error),
                (_, _) => Ok(seats.iter().map(|(_, member)| *member).collect()),
            }
        });
        let granted = u16::try_from(chosen?.len()).unwrap_or(u16::MAX);
        places.cut(granted);
        Ok(seats)
    }

    /// Decides which clones of a ticket this host makes, and which ones others do. Those
    /// of hosts that are no more are not made.
    pub(super) fn deal_promises(
        &self,
        owner: VmId,
        ticket: TicketId,
        promises: &[Promise],
    ) -> (Vec<Wanted>, Far, Vec<(u16, HostError)>) {
        let mut far = Far {
            ticket: Some((ticket, owner)),
            ..Far::default()
        };
        let (mut wanted, mut failed) = (Vec::new(), Vec::new());
        for promise in promises {
            let (number, member) = (promise.clone.id, promise.member);
            let Some(host) = &promise.host else {
                wanted.push(Wanted {
                    number,
                    member,
                    ticket: Some(ticket),
                    processes: promise.clone.processes,
                    vcpus: Some(promise.clone.vcpus),
                });
                continue;
            };
            let promised = PeerPromise {
                number,
                member,
                processes: promise.clone.processes,
                vcpus: promise.clone.vcpus,
            };
            let known = far
                .shares
                .iter()
                .position(|share| share.peer.name() == host);
            let share = match known {
                Some(place) => &mut far.shares[place],
                None => match self.peer(host) {
                    Ok(peer) => {
                        far.shares.push(remote::Share::of(peer, 0, number));
                        let last = far.shares.len() - 1;
                        &mut far.shares[last]
                    }
                    Err(error) => {
                        failed.push((number, error));
                        continue;
                    }
                },
            };
            share.count += 1;
            share.promised.push(promised);
        }
        (wanted, far, failed)
    }

    /// Notes which VMs the clones on other hosts are, and hears of them from now on. Those
    /// that are no longer awaited are ended.
    pub(super) async fn seat_far(
        &self,
        ticket: TicketId,
        promises: &[Promise],
        made: &[(u16, Result<VmView, HostError>)],
    ) {
        let mut unwanted = Vec::new();
        for promise in promises.iter().filter(|promise| promise.host.is_some()) {
            let number = promise.clone.id;
            let Some((_, outcome)) = made.iter().find(|(of, _)| *of == number) else {
                continue;
            };
            match outcome {
                Ok(vm) if !self.tickets(|tickets| tickets.born(ticket, number, vm.id)) => {
                    unwanted.push(vm.id);
                }
                Ok(_) => {}
                Err(_) => self.tickets(|tickets| tickets.unborn(ticket, number)),
            }
        }
        self.lives.ended.notify_waiters();
        let hosts = promises.iter().filter_map(|it| it.host.clone());
        for host in hosts.collect::<BTreeSet<_>>() {
            self.follow(ticket, host);
        }
        self.end_all(unwanted).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticket::lay_out;
    use forkyard_types::TicketKind;

    fn granted(host: Option<&str>, vcpus: u8, clones: u16) -> Granted {
        Granted {
            host: host.map(str::to_owned),
            lot: Lot { vcpus, clones },
        }
    }

    #[test]
    fn room_is_asked_for_what_clones_are_granted_and_not_for_all_they_have() {
        let of = |count, kind| lots(&lay_out(count, 4, kind));
        let lot = |vcpus, clones| Lot { vcpus, clones };
        assert_eq!(of(6, TicketKind::Hierarchical), [lot(4, 1), lot(2, 1)]);
        assert_eq!(of(1, TicketKind::Hierarchical), [lot(1, 1)]);
        assert_eq!(of(6, TicketKind::Flat), [lot(4, 6)]);
    }

    #[test]
    fn each_host_gets_clones_of_the_sizes_that_it_has_room_for() {
        let rooms = [granted(None, 2, 1), granted(Some("b"), 4, 2)];
        let seats = [(None, 1), (Some("b"), 128), (Some("b"), 129)]
            .map(|(host, member)| (host.map(str::to_owned), Member(member)));
        let shares = lay_out(10, 4, TicketKind::Hierarchical);
        let dealt = deal_shares(seats.to_vec(), &rooms, shares);
        let seen: Vec<_> = { dealt.iter() }
            .map(|((host, member), share)| (host.as_deref(), member.0, share.vcpus))
            .collect();
        let wanted = [(None, 1, 2), (Some("b"), 128, 4), (Some("b"), 129, 4)];
        assert_eq!(seen, wanted);
    }

    #[test]
    fn a_host_that_was_granted_two_sizes_is_asked_for_its_places_once() {
        let rooms = [
            granted(None, 4, 2),
            granted(None, 1, 1),
            granted(Some("b"), 4, 1),
        ];
        let hosts: Vec<_> = by_host(&rooms).into_values().collect();
        assert_eq!(hosts, [3, 1]);
    }
}
