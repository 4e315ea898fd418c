//! Decision on the distribution of clones, over a picture of the cluster. Knows
//! no etcd, no clock and no daemon.

use crate::{Grant, NodeClones, Offer};
use forkyard_types::{ByteCount, NodeName, Room};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Room that one clone takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneNeed {
    /// vCPUs; 0 counts as 1.
    pub vcpus: u8,
    /// Memory as its guest sees it.
    pub memory: ByteCount,
}

impl CloneNeed {
    fn vcpus(self) -> u32 {
        u32::from(self.vcpus.max(1))
    }

    /// Multiplies the need by a number of clones.
    fn times(self, clones: u16) -> Room {
        Room {
            vcpus: self.vcpus().saturating_mul(clones.into()),
            memory: ByteCount(self.memory.0.saturating_mul(clones.into())),
        }
    }
}

/// Layout of clones over nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CloneLayout {
    /// On as few nodes as will hold them: the nearest first, then the fullest.
    #[default]
    Pack,
    /// One at a time, each to the node with most vCPUs free.
    Spread,
}

/// Request for room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// User whose quota it counts against; none if absent.
    pub user: Option<String>,
    /// Clones.
    pub count: u16,
    /// Room that each takes.
    pub need: CloneNeed,
    /// Layout over nodes.
    pub layout: CloneLayout,
    /// The node that would be best, and is chosen of equals.
    pub near: Option<NodeName>,
    /// The one node they must be on, if there is no choice.
    pub only: Option<NodeName>,
}

/// The cluster at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// Offer of each node that is alive, and the room its VMs take.
    pub offers: BTreeMap<NodeName, Offer>,
    /// Grants that are no VMs yet.
    pub grants: Vec<Grant>,
    /// Nodes that are to take nothing new.
    pub draining: BTreeSet<NodeName>,
    /// vCPUs that users may have; no limit for those not named.
    pub quotas: BTreeMap<String, u32>,
}

/// Reason why nothing can be granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementDenied {
    /// For nothing.
    #[error("the request is for no clones")]
    Nothing,
    /// The user has what the quota allows.
    #[error(
        "{user} has {taken} vCPUs of the {limit} that the quota allows, and asks for {asked} more"
    )]
    Quota {
        /// The user.
        user: String,
        /// vCPUs taken.
        taken: u32,
        /// vCPUs allowed.
        limit: u32,
        /// vCPUs asked for.
        asked: u32,
    },
    /// The node that it must be is not there.
    #[error("node {node} is lost, or no node of this cluster")]
    Gone {
        /// Node.
        node: NodeName,
    },
    /// The node that it must be takes nothing new.
    #[error("node {node} is draining: nothing new is placed on it")]
    Draining {
        /// Node.
        node: NodeName,
    },
    /// No node has room for one.
    #[error("no node has room for {vcpus} vCPUs and {memory} of memory")]
    NoRoom {
        /// vCPUs of one.
        vcpus: u32,
        /// Memory of one.
        memory: ByteCount,
    },
}

impl PlacementDenied {
    /// Returns advice to the client.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Quota { .. } => Some(
                "remove VMs, or have an operator raise it: `forkyard node quota USER --vcpus N`",
            ),
            Self::Gone { .. } => Some("`forkyard node ls` lists the nodes"),
            Self::Draining { .. } => {
                Some("`forkyard node activate NODE` ends that; or choose another node")
            }
            Self::NoRoom { .. } => Some(
                "`forkyard node ls` shows what is taken; remove VMs, add nodes, or have nodes offer more \
                 (`forkyardd --offer-vcpus`, `--offer-memory`)",
            ),
        }
    }
}

impl Picture {
    /// Returns the room VMs and grants take of a node.
    pub fn taken(&self, node: &NodeName) -> Room {
        let mut taken = self.offers.get(node).map(|it| it.taken).unwrap_or_default();
        for grant in &self.grants {
            let more = grant.need.times(grant.on(node));
            taken.vcpus = taken.vcpus.saturating_add(more.vcpus);
            taken.memory.0 = taken.memory.0.saturating_add(more.memory.0);
        }
        taken
    }

    /// vCPUs that a user's VMs and grants take.
    pub fn taken_by(&self, user: &str) -> u32 {
        let vms = self
            .offers
            .values()
            .filter_map(|offer| offer.users.get(user));
        let grants = self
            .grants
            .iter()
            .filter(|it| it.user.as_deref() == Some(user));
        let grants = grants.map(|grant| grant.need.times(grant.count()).vcpus);
        vms.copied().chain(grants).fold(0, u32::saturating_add)
    }

    /// Decides on a wish. Places are in the order in which nodes were chosen.
    pub fn lay_out(&self, wish: &Wish) -> Result<Vec<NodeClones>, PlacementDenied> {
        if wish.count == 0 {
            return Err(PlacementDenied::Nothing);
        }
        let count = wish.count.min(self.allowed(wish)?);
        let mut candidates = self.candidates(wish)?;
        match wish.layout {
            CloneLayout::Pack => candidates.sort_by_key(|it| (!it.near, it.free, it.node)),
            CloneLayout::Spread => candidates.sort_by_key(|it| (!it.near, it.node)),
        }
        let mut left = count;
        match wish.layout {
            CloneLayout::Pack => {
                for candidate in &mut candidates {
                    candidate.clones = candidate.fits.min(left);
                    left -= candidate.clones;
                }
            }
            CloneLayout::Spread => {
                while left > 0 {
                    let free = |it: &&mut Candidate| it.free - u64::from(it.clones) * it.each;
                    let open = candidates.iter_mut().filter(|it| it.clones < it.fits);
                    // The first of equals: the nearest, as they are sorted.
                    let Some(best) = open.rev().max_by_key(free) else {
                        break;
                    };
                    best.clones += 1;
                    left -= 1;
                }
            }
        }
        let places: Vec<_> = candidates
            .into_iter()
            .filter(|it| it.clones > 0)
            .map(|it| NodeClones {
                node: it.node.clone(),
                clones: it.clones,
            })
            .collect();
        match places.is_empty() {
            true => Err(PlacementDenied::NoRoom {
                vcpus: wish.need.vcpus(),
                memory: wish.need.memory,
            }),
            false => Ok(places),
        }
    }

    /// Clones that the user's quota allows.
    fn allowed(&self, wish: &Wish) -> Result<u16, PlacementDenied> {
        let Some((user, limit)) = wish
            .user
            .as_ref()
            .and_then(|user| Some((user, *self.quotas.get(user)?)))
        else {
            return Ok(u16::MAX);
        };
        let taken = self.taken_by(user);
        match limit.saturating_sub(taken) / wish.need.vcpus() {
            0 => Err(PlacementDenied::Quota {
                user: user.clone(),
                taken,
                limit,
                asked: wish.need.times(wish.count).vcpus,
            }),
            clones => Ok(u16::try_from(clones).unwrap_or(u16::MAX)),
        }
    }

    fn candidates(&self, wish: &Wish) -> Result<Vec<Candidate<'_>>, PlacementDenied> {
        if let Some(node) = &wish.only {
            let node = node.clone();
            if !self.offers.contains_key(&node) {
                return Err(PlacementDenied::Gone { node });
            }
            if self.draining.contains(&node) {
                return Err(PlacementDenied::Draining { node });
            }
        }
        let open = self.offers.iter().filter(|(node, _)| {
            !self.draining.contains(*node) && wish.only.as_ref().is_none_or(|only| only == *node)
        });
        let candidate = |(node, offer): (_, &Offer)| {
            let taken = self.taken(node);
            let vcpus = offer.offers.vcpus.saturating_sub(taken.vcpus);
            // A node that is over what it offers has room for nothing.
            let memory = offer.offers.memory.0.checked_sub(taken.memory.0);
            let by_memory = memory.map_or(0, |memory| {
                memory.checked_div(wish.need.memory.0).unwrap_or(u64::MAX)
            });
            let fits = by_memory.min(u64::from(vcpus / wish.need.vcpus()));
            Candidate {
                node,
                near: wish.near.as_ref() == Some(node),
                free: vcpus.into(),
                each: wish.need.vcpus().into(),
                fits: u16::try_from(fits).unwrap_or(u16::MAX),
                clones: 0,
            }
        };
        Ok(open.map(candidate).collect())
    }
}

/// A node that may get some.
#[derive(Debug)]
struct Candidate<'a> {
    node: &'a NodeName,
    near: bool,
    /// vCPUs free before.
    free: u64,
    /// vCPUs a clone takes.
    each: u64,
    /// Clones that fit.
    fits: u16,
    /// Clones dealt to it.
    clones: u16,
}

#[cfg(test)]
mod tests;
