//! Places in a row that are at one site.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    ops::Range,
};

/// Places in a row, and the site that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// End of tunnels of the site.
    pub tunnel: Ipv4Addr,
    /// The places.
    pub places: Range<u16>,
}

impl Holding {
    /// Tells whether both are of one site and have a place in common.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.tunnel == other.tunnel
            && self.places.start < other.places.end
            && other.places.start < self.places.end
    }
}

/// Places of each site as rows, as few as there can be.
pub(crate) fn rows(places: &BTreeMap<Ipv4Addr, BTreeSet<u16>>) -> Vec<Holding> {
    let mut rows: Vec<Holding> = Vec::new();
    for (tunnel, places) in places {
        for place in places {
            let end = place.saturating_add(1);
            match rows.last_mut() {
                Some(last) if last.tunnel == *tunnel && last.places.end == *place => {
                    last.places.end = end;
                }
                Some(_) | None => rows.push(Holding {
                    tunnel: *tunnel,
                    places: *place..end,
                }),
            }
        }
    }
    rows
}
