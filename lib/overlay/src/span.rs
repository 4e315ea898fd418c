//! Knowledge of one site of a family's network.

use crate::{Part, Subnet, Whereabout, Whereabouts};
use forkyard_types::{FamilyHost, Member};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

/// The hosts of a family, as one of them sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// That host's own end of tunnels.
    pub tunnel: Ipv4Addr,
    /// All of them, this one among them if it gives any place. Of two with as many places, the
    /// later one has those that both name.
    pub hosts: Vec<FamilyHost>,
    /// News of members, which count for more.
    pub seen: Whereabouts,
    /// Members that this host has a part in the move of.
    pub parts: BTreeMap<Member, Part>,
}

impl Span {
    /// Ends of tunnels of all other sites.
    pub fn others(&self) -> BTreeSet<Ipv4Addr> {
        let hosts = self.hosts.iter().map(|host| host.tunnel);
        let seen = self.seen.all().flat_map(|said| match said.at {
            Whereabout::At(at) => [at, at],
            Whereabout::Moving { from, to } => [from, to],
        });
        let mut others: BTreeSet<_> = hosts.chain(seen).collect();
        others.remove(&self.tunnel);
        others
    }

    /// Site of each place, by place; none where it is here, or no site's.
    pub(crate) fn sites(&self) -> Vec<Option<Ipv4Addr>> {
        let mut hosts = self.hosts.clone();
        // A borrower of places comes after their lender.
        hosts.sort_by_key(|host| std::cmp::Reverse(host.places));
        let mut sites = vec![None; usize::from(Subnet::MEMBERS)];
        for host in hosts {
            let range = host.range();
            let end = range.end.min(Subnet::MEMBERS);
            let range = usize::from(range.start.min(end))..usize::from(end);
            sites[range].fill(Some(host.tunnel));
        }
        for said in self.seen.all() {
            if let Some(site) = sites.get_mut(usize::from(said.member.0)) {
                *site = Some(match said.at {
                    Whereabout::At(at) => at,
                    Whereabout::Moving { from, .. } => from,
                });
            }
        }
        for (member, part) in &self.parts {
            if let Some(site) = sites.get_mut(usize::from(member.0)) {
                *site = Some(match part {
                    Part::Expecting { .. } | Part::Arrived { .. } | Part::Here { .. } => {
                        self.tunnel
                    }
                    Part::Passing { to, .. } => *to,
                });
            }
        }
        for site in &mut sites {
            *site = site.filter(|site| *site != self.tunnel);
        }
        sites
    }
}
