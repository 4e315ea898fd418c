//! Decisions of the authority of a volume: one transaction a request.
//!
//! Keeps the lease, the epoch and the map as of the last close. Answers a request that comes
//! again as it did the first time, while the asker may still act on the answer.

use crate::{BlockEntry, GlobalMap, OpeningId, SiteId};
use forkyard_volume::{BlockNo, WriterEpoch};
use std::collections::BTreeMap;

/// Request to the authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorityRequest {
    /// Open a volume that nothing writes.
    Open {
        /// Site that asks.
        site: SiteId,
        /// Number of the opening, greater than the site's former ones.
        opening: OpeningId,
        /// Epoch of the last close whose map the site knows.
        known: WriterEpoch,
    },
    /// Open a volume in place of a writer that is gone.
    TakeOver {
        /// Site that asks.
        site: SiteId,
        /// Number of the opening, greater than the site's former ones.
        opening: OpeningId,
        /// Epoch of the last close whose map the site knows.
        known: WriterEpoch,
        /// Epoch of the writer to replace: that of another is not.
        from: WriterEpoch,
    },
    /// Find out what became of a writer's epoch, after a restart.
    Resume {
        /// Epoch of the writer.
        epoch: WriterEpoch,
    },
    /// Close, with what was written since the opening. All of it is durable at the site.
    Close {
        /// Epoch of the writer.
        epoch: WriterEpoch,
        /// Blocks written.
        changes: Vec<(BlockNo, BlockEntry)>,
    },
}

/// Answer of the authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorityAnswer {
    /// The site writes from now on.
    Granted {
        /// Number of the opening.
        opening: OpeningId,
        /// Epoch to write in.
        epoch: WriterEpoch,
        /// Epoch of the last close, of which the map is.
        closed: WriterEpoch,
        /// Entries that the site lacks.
        changes: Vec<(BlockNo, BlockEntry)>,
    },
    /// Another has the lease, or the request is out of date.
    Refused {
        /// Number of the opening.
        opening: OpeningId,
        /// Epoch of the lease.
        epoch: WriterEpoch,
    },
    /// The epoch has the lease.
    Resumed(WriterEpoch),
    /// The epoch was closed, and its map is open to all sites.
    Closed(WriterEpoch),
    /// The epoch was replaced before it closed. What it wrote is to be dropped.
    Fenced(WriterEpoch),
}

/// Outcome of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Closed,
    Fenced,
}

/// Authority of one volume.
#[derive(Clone, Debug)]
pub struct VolumeAuthority {
    epoch: WriterEpoch,
    holder: Option<(SiteId, OpeningId)>,
    map: GlobalMap,
    /// Epoch of the last close.
    closed: WriterEpoch,
    ended: BTreeMap<WriterEpoch, Ended>,
    /// Last opening granted to each site.
    openings: BTreeMap<SiteId, OpeningId>,
}

impl Default for VolumeAuthority {
    fn default() -> Self {
        Self {
            epoch: WriterEpoch(0),
            holder: None,
            map: GlobalMap::default(),
            closed: WriterEpoch(0),
            ended: BTreeMap::new(),
            openings: BTreeMap::new(),
        }
    }
}

impl VolumeAuthority {
    /// Epoch of the last opening.
    pub fn epoch(&self) -> WriterEpoch {
        self.epoch
    }

    /// Site with the lease.
    pub fn holder(&self) -> Option<SiteId> {
        self.holder.map(|it| it.0)
    }

    /// Answers a request.
    pub fn ask(&mut self, ask: AuthorityRequest) -> AuthorityAnswer {
        match ask {
            AuthorityRequest::Open {
                site,
                opening,
                known,
            } => self.open(site, opening, known, None),
            AuthorityRequest::TakeOver {
                site,
                opening,
                known,
                from,
            } => self.open(site, opening, known, Some(from)),
            AuthorityRequest::Resume { epoch } => self.state(epoch),
            AuthorityRequest::Close { epoch, changes } => {
                if epoch == self.epoch && self.holder.is_some() {
                    for (block, entry) in changes {
                        self.map.set(block, entry);
                    }
                    self.holder = None;
                    self.closed = epoch;
                    self.ended.insert(epoch, Ended::Closed);
                }
                self.state(epoch)
            }
        }
    }

    fn state(&self, epoch: WriterEpoch) -> AuthorityAnswer {
        match self.ended.get(&epoch) {
            Some(Ended::Closed) => AuthorityAnswer::Closed(epoch),
            Some(Ended::Fenced) => AuthorityAnswer::Fenced(epoch),
            None => AuthorityAnswer::Resumed(epoch),
        }
    }

    fn open(
        &mut self,
        site: SiteId,
        opening: OpeningId,
        known: WriterEpoch,
        from: Option<WriterEpoch>,
    ) -> AuthorityAnswer {
        let refused = AuthorityAnswer::Refused {
            opening,
            epoch: self.epoch,
        };
        if self.holder != Some((site, opening)) {
            let stale = self.openings.get(&site).is_some_and(|it| *it >= opening);
            let replaces = from == Some(self.epoch);
            let free = self.holder.is_none() || replaces;
            let Some(next) = self.epoch.next().filter(|_| free && !stale) else {
                return refused;
            };
            if self.holder.is_some() {
                self.ended.insert(self.epoch, Ended::Fenced);
            }
            self.epoch = next;
            self.holder = Some((site, opening));
            self.openings.insert(site, opening);
        }
        AuthorityAnswer::Granted {
            opening,
            epoch: self.epoch,
            closed: self.closed,
            changes: self.map.since(known),
        }
    }
}
