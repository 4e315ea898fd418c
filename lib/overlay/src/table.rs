//! Entries of one site's kernel for one family, and what a change of them takes.

use crate::{Holding, Part, Port, Span, Whereabout, holdings::rows};
use forkyard_types::Member;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

/// Entries of one site's kernel for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// That site's end of tunnels.
    tunnel: Ipv4Addr,
    /// Site that frames for each place are sent to, if that is another.
    sites: Vec<Option<Ipv4Addr>>,
    /// Ports that frames for a place go to whether or not it has spoken from there.
    ports: BTreeMap<Member, Port>,
    /// Sites that may speak for places.
    heard: Vec<Holding>,
    /// Sites that may pass on frames for a place, whichever of the family these are from.
    relayed: BTreeSet<(Ipv4Addr, Member)>,
}

/// Change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableChange {
    /// Frames for the place go to that site.
    Send {
        /// The place.
        member: Member,
        /// End of tunnels of the site.
        to: Ipv4Addr,
        /// Tells whether they went to a site before.
        had: bool,
    },
    /// Frames for the place go to a port of this site.
    Port {
        /// The place.
        member: Member,
        /// The port.
        port: Port,
    },
    /// Frames for the place are sent to no site.
    Forget {
        /// The place.
        member: Member,
        /// Tells whether they go to a port instead.
        ported: bool,
    },
}

/// Steps from one table to another, in their order. Frames for a place are never sent to a site
/// that passes them back, and a site is heard before it is spoken to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TablePlan {
    /// Not passed on any more: before frames go elsewhere.
    pub unrelayed: Vec<(Ipv4Addr, Member)>,
    /// Heard from now on, together with that.
    pub heard: Vec<Holding>,
    /// Changes of entries.
    pub changes: Vec<TableChange>,
    /// Heard no longer, once frames go elsewhere; with `narrowed`, at one stroke.
    pub unheard: Vec<Holding>,
    /// Heard instead of some of these.
    pub narrowed: Vec<Holding>,
    /// Passed on from now on: once frames go to the port.
    pub relayed: Vec<(Ipv4Addr, Member)>,
}

impl Table {
    /// Entries that follow from what a site knows.
    pub fn of(span: &Span) -> Self {
        let sites = span.sites();
        let mut heard: BTreeMap<Ipv4Addr, BTreeSet<u16>> = BTreeMap::new();
        for (place, site) in (0..).zip(&sites) {
            if let Some(site) = site {
                heard.entry(*site).or_default().insert(place);
            }
        }
        let mut also = |site: Ipv4Addr, member: Member| {
            if site != span.tunnel {
                heard.entry(site).or_default().insert(member.0);
            }
        };
        for said in span.seen.all() {
            // It says its first word from there.
            if let Whereabout::Moving { from, to } = said.at {
                also(from, said.member);
                also(to, said.member);
            }
        }
        let mut ports = BTreeMap::new();
        let mut relayed = BTreeSet::new();
        for (member, part) in &span.parts {
            if let Some(port) = part.port() {
                ports.insert(*member, port);
            }
            match *part {
                Part::Expecting { from, .. } => {
                    also(from, *member);
                    relayed.insert((from, *member));
                }
                Part::Arrived { from, .. } => drop(relayed.insert((from, *member))),
                Part::Passing { .. } | Part::Here { .. } => {}
            }
        }
        Self {
            tunnel: span.tunnel,
            sites,
            ports,
            heard: rows(&heard),
            relayed,
        }
    }

    /// A site that is joined with no other.
    pub fn empty(tunnel: Ipv4Addr) -> Self {
        Self {
            tunnel,
            sites: Vec::new(),
            ports: BTreeMap::new(),
            heard: Vec::new(),
            relayed: BTreeSet::new(),
        }
    }

    /// That site's end of tunnels.
    pub fn tunnel(&self) -> Ipv4Addr {
        self.tunnel
    }

    /// True if no other site has any place.
    pub fn is_alone(&self) -> bool {
        self.heard.is_empty() && self.sites.iter().all(Option::is_none)
    }

    /// Site that frames for a place are sent to, if that is another.
    pub fn site(&self, member: Member) -> Option<Ipv4Addr> {
        self.sites.get(usize::from(member.0)).copied().flatten()
    }

    /// Port that frames for a place go to whether or not it has spoken from there.
    pub fn port(&self, member: Member) -> Option<Port> {
        self.ports.get(&member).copied()
    }

    /// Tells whether a frame from a site is taken, by the place it is from and the place it is for.
    pub fn takes(&self, site: Ipv4Addr, from: Member, to: Member) -> bool {
        let speaks =
            { self.heard.iter() }.any(|it| it.tunnel == site && it.places.contains(&from.0));
        speaks || self.relayed.contains(&(site, to))
    }

    /// Number of entries that name another site.
    pub fn len(&self) -> usize {
        self.sites.iter().flatten().count()
    }

    /// True if no entry names another site.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Steps from this table to that one.
    pub fn plan(&self, wanted: &Self) -> TablePlan {
        let mut plan = TablePlan {
            unrelayed: self.relayed.difference(&wanted.relayed).copied().collect(),
            relayed: wanted.relayed.difference(&self.relayed).copied().collect(),
            changes: self.changes(wanted),
            ..TablePlan::default()
        };
        let without = |these: &[Holding], those: &[Holding]| -> Vec<Holding> {
            let these = these.iter().filter(|it| !those.contains(it));
            these.cloned().collect()
        };
        plan.unheard = without(&self.heard, &wanted.heard);
        let new = without(&wanted.heard, &self.heard).into_iter();
        // The kernel takes no two rows that meet.
        let meets = |row: &Holding| plan.unheard.iter().any(|gone| gone.meets(row));
        (plan.narrowed, plan.heard) = new.partition(meets);
        plan
    }

    fn changes(&self, wanted: &Self) -> Vec<TableChange> {
        let places = self.sites.len().max(wanted.sites.len());
        let places = (0..u16::try_from(places).unwrap_or(u16::MAX)).map(Member);
        let mut changes = Vec::new();
        for member in places {
            let (before, after) = (self.site(member), wanted.site(member));
            let (was, port) = (self.port(member), wanted.port(member));
            match port {
                Some(port) if was != Some(port) => changes.push(TableChange::Port { member, port }),
                Some(_) | None => {}
            }
            match (before, after) {
                (_, Some(to)) if before != after => changes.push(TableChange::Send {
                    member,
                    to,
                    had: before.is_some(),
                }),
                (Some(_), None) => changes.push(TableChange::Forget {
                    member,
                    ported: port.is_some(),
                }),
                (Some(_), Some(_)) | (None, Some(_) | None) => {}
            }
        }
        changes
    }
}
