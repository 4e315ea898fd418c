//! A ticket's clones over hosts: where each is promised, and what becomes of those on
//! others.
//!
//! Addresses are told with the ticket, before anything is made. So the places in the
//! family are chosen here, also those of clones that other hosts will make: of what
//! these were lent, the half that is the lender's to promise.

use crate::{
    Granted, Host, HostError,
    fork::Wanted,
    quota::Places,
    remote::{Far, Share},
    ticket::Promise,
    vm::Vm,
};
use forkyard_network::Subnet;
use forkyard_store::Store;
use forkyard_types::{Member, PeerPromise, TicketId, VmId, VmView};
use std::collections::BTreeMap;

/// Room for these, where it was promised.
pub(super) fn places_of(promises: &[Promise]) -> Vec<Granted> {
    let mut counts: BTreeMap<&Option<String>, u16> = BTreeMap::new();
    for promise in promises {
        *counts.entry(&promise.host).or_default() += 1;
    }
    let places = counts.into_iter();
    places.map(|(host, count)| (host.clone(), count)).collect()
}

impl Host {
    /// Takes a place in the family for each clone on each host. A host that can be lent
    /// none makes none.
    pub(super) fn take_seats(
        &self,
        vm: &Vm,
        places: &mut Places,
        hosts: &[Granted],
    ) -> Result<Vec<(Option<String>, Member)>, HostError> {
        let family = vm.record().family;
        let abroad = self.abroad.members(family);
        let mut seats = Vec::new();
        let mut refused = None;
        let chosen = places.choose(|_, taken| {
            for (host, count) in hosts {
                let members = match host {
                    None => self
                        .store
                        .take_members(family, *count, Subnet::MEMBERS, taken)
                        .map_err(HostError::from),
                    Some(peer) => self.lent_to(family, peer).map(|lent| {
                        let taken = taken.union(&abroad).copied().collect();
                        Store::promise_members(lent, *count, &taken)
                    }),
                };
                match members {
                    Ok(members) => {
                        seats.extend(members.into_iter().map(|member| (host.clone(), member)));
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

    /// Who makes which clones of a ticket: this host, and others. Those of hosts that are
    /// no more are not made.
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
                        far.shares.push(Share {
                            peer,
                            count: 0,
                            first: number,
                            promised: Vec::new(),
                        });
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
    /// that nobody waits for any more are ended.
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
        self.ended.notify_waiters();
        let hosts = places_of(promises).into_iter();
        for host in hosts.filter_map(|(host, _)| host) {
            self.follow(ticket, host);
        }
        self.end_all(unwanted).await;
    }
}
