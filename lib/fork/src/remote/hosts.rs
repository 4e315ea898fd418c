//! Hosts of a family: what is believed of what others say of them. Pure.

use crate::HostError;
use forkyard_records::{Loan, Teller};
use forkyard_types::{FamilyHost, FamilyStanding, Member};
use std::{collections::BTreeSet, net::Ipv4Addr, ops::Range};

/// Most hosts of a family that are heard of.
pub(super) const MOST_HOSTS: usize = 1024;

/// End of tunnels of a borrower. Others that it tells of have parts of what it was lent.
pub(super) fn tunnel_of(told: &[(Teller, FamilyHost)], peer: &str) -> Option<Ipv4Addr> {
    let by_it = told.iter().filter(|(by, _)| is(by, peer));
    let itself = by_it.max_by_key(|(_, host)| host.places);
    itself.map(|(_, host)| host.tunnel)
}

pub(super) fn is(teller: &Teller, peer: &str) -> bool {
    matches!(teller, Teller::Borrower(name) if name == peer)
}

/// The hosts of a family: this one, and those it was told of. Where its own places
/// are it knows better than the host that lent them.
pub(super) fn compose(
    tunnel: Ipv4Addr,
    own: &Range<u16>,
    told: impl Iterator<Item = (Teller, FamilyHost)>,
) -> Vec<FamilyHost> {
    let here = FamilyHost {
        tunnel,
        first: Member(own.start),
        places: own.end.saturating_sub(own.start),
    };
    let about_others = told.filter(|(by, host)| match by {
        Teller::Borrower(_) | Teller::Gone => true,
        Teller::Lender => {
            let theirs = host.range();
            let apart = theirs.end <= own.start || own.end <= theirs.start;
            apart || host.places > here.places
        }
    });
    let hosts = about_others.map(|(_, host)| host);
    [here].into_iter().chain(hosts).collect()
}

/// Takes a borrower's account of places that it was lent; of others it has nothing
/// to say. One that has nothing of the family, and is not about to, is no host of
/// it. Of places of VMs that moved there it says where they went.
pub(super) fn hosts_of(
    loan: &Loan,
    standing: &FamilyStanding,
    (expected, moved): (bool, &BTreeSet<Member>),
) -> Vec<FamilyHost> {
    let places = &loan.places;
    let itself = standing.tunnel.map(|tunnel| FamilyHost {
        tunnel,
        first: Member(places.start),
        places: places.end.saturating_sub(places.start),
    });
    let itself = itself.filter(|_| standing.member || expected);
    let within = |host: &&FamilyHost| {
        let theirs = host.range();
        let is_lent = places.start <= theirs.start && theirs.end <= places.end;
        is_lent || (host.places == 1 && moved.contains(&host.first))
    };
    let lent = standing.lent.iter().filter(within).copied();
    let hosts = itself
        .into_iter()
        .flat_map(|itself| [itself].into_iter().chain(lent.clone()));
    let hosts = hosts.filter(|host| is_station(host.tunnel));
    hosts.take(MOST_HOSTS).collect()
}

/// Refuses what hosts of a family cannot be.
pub(crate) fn check(hosts: &[FamilyHost]) -> Result<(), HostError> {
    if hosts.len() > MOST_HOSTS {
        return Err(HostError::Invalid(format!(
            "the family has {} hosts: {MOST_HOSTS} at most",
            hosts.len()
        )));
    }
    match hosts.iter().find(|host| !is_station(host.tunnel)) {
        Some(host) => Err(HostError::Invalid(format!(
            "{} is no host's address",
            host.tunnel
        ))),
        None => Ok(()),
    }
}

fn is_station(address: Ipv4Addr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_broadcast()
}

#[cfg(test)]
mod tests;
