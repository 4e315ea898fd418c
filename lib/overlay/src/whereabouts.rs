//! Sightings of members, and which of two counts.
//!
//! A sighting that says something new has a generation above all that its sender knows of that
//! place, and of two the higher one counts. So sites that have heard the same sightings agree,
//! in whatever order and however often these came.

use crate::Subnet;
use forkyard_types::Member;
use std::{collections::BTreeMap, net::Ipv4Addr};

/// Number of times that news of a place were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceGeneration(pub u32);

impl PlaceGeneration {
    /// The one after. The last is its own.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Site of a member, by its end of tunnels. Of two with one generation, the greater counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Whereabout {
    /// Runs at one site, and is about to run at another, which may speak for it from now on.
    Moving {
        /// Site that has it.
        from: Ipv4Addr,
        /// Site that will have it.
        to: Ipv4Addr,
    },
    /// Is at this site.
    At(Ipv4Addr),
}

/// News of one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceNews {
    /// The place.
    pub member: Member,
    /// Rank among news of that place.
    pub generation: PlaceGeneration,
    /// Site of the member.
    pub at: Whereabout,
}

/// All that is known of places that are not, or were not, where they were lent to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts(BTreeMap<Member, (PlaceGeneration, Whereabout)>);

impl Whereabouts {
    /// Learns of a sighting; false if it is no news.
    pub fn learn(&mut self, said: PlaceNews) -> bool {
        if said.member.0 >= Subnet::MEMBERS {
            return false;
        }
        let new = (said.generation, said.at);
        match self.0.get(&said.member) {
            Some(known) if *known >= new => false,
            Some(_) | None => {
                self.0.insert(said.member, new);
                true
            }
        }
    }

    /// Makes news of a place, which count for more than all that is known of it, and learns them.
    pub fn tell(&mut self, member: Member, at: Whereabout) -> PlaceNews {
        let known = self.0.get(&member);
        let generation = known.map_or(PlaceGeneration::default(), |(known, _)| *known);
        let said = PlaceNews {
            member,
            generation: generation.next(),
            at,
        };
        self.learn(said);
        said
    }

    /// Site of a member, if anything was ever said of it.
    pub fn get(&self, member: Member) -> Option<Whereabout> {
        self.0.get(&member).map(|(_, at)| *at)
    }

    /// Every sighting, by place.
    pub fn all(&self) -> impl Iterator<Item = PlaceNews> + '_ {
        self.0.iter().map(|(member, (generation, at))| PlaceNews {
            member: *member,
            generation: *generation,
            at: *at,
        })
    }

    /// True if nothing was ever said of any place.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
