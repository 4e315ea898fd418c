//! A site: what it stores, and what it may do with it.
//!
//! ```text
//! Idle --open--> Opening --Granted--> Writing --close--> Closing --Closed--> Idle
//!                   +-----Refused-----> Idle               |
//! Writing --restart--> Resuming --Resumed--> Writing
//!                          +-----Closed, Fenced--> Idle
//! Writing, Closing --Fenced--> Idle
//! ```
//!
//! Contents are kept by their stamps. Those of the last close that the site knows of stay until
//! it knows of another: a takeover goes back to them.

use crate::{
    AuthorityAnswer, AuthorityRequest, BlockEntry, GlobalMap, OpeningId, SiteId, Sites, Stamp,
};
use forkyard_volume::{BlockNo, Version, WriterEpoch};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Content of a block; `None` if it is zero.
pub type BlockContent = Option<Arc<[u8]>>;

/// One site's part of a volume.
#[derive(Clone, Debug)]
pub struct Site {
    id: SiteId,
    contents: BTreeMap<(BlockNo, Stamp), BlockContent>,
    /// Map as of the last close that the site knows of, and the epoch of that.
    known: GlobalMap,
    closed: WriterEpoch,
    opening: OpeningId,
    role: SiteRole,
}

/// Role of the site.
#[derive(Clone, Debug)]
pub enum SiteRole {
    /// Nothing.
    Idle,
    /// Waiting for the lease.
    Opening {
        /// Epoch to replace, if it is a takeover.
        from: Option<WriterEpoch>,
    },
    /// Writing.
    Writing(Box<SiteWriter>),
    /// Waiting for the end of its lease.
    Closing(Box<SiteWriter>),
    /// Waiting to hear whether it still has the lease, after a restart.
    Resuming(Box<SiteWriter>),
}

/// State of a writer.
#[derive(Clone, Debug)]
pub struct SiteWriter {
    epoch: WriterEpoch,
    map: GlobalMap,
    changed: BTreeSet<BlockNo>,
    /// Writes that may not be durable: block, and what was before.
    unflushed: Vec<(BlockNo, Option<BlockEntry>, u64)>,
}

/// Outcome of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Content.
    Here(BlockContent),
    /// Content is to be fetched from one of the sites.
    Fetch {
        /// Identity of it.
        stamp: Stamp,
        /// Sites that have it.
        from: Sites,
    },
}

/// Access without the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwritable;

/// Outcome of an answer of the authority, if it ends an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Nothing has ended.
    GoesOn,
    /// The epoch was closed.
    Closed(WriterEpoch),
    /// The epoch was replaced, and what it wrote is dropped.
    Dropped(WriterEpoch),
}

impl Site {
    /// A site that knows nothing of the volume.
    pub fn new(id: SiteId) -> Self {
        Self {
            id,
            contents: BTreeMap::new(),
            known: GlobalMap::default(),
            closed: WriterEpoch(0),
            opening: OpeningId(0),
            role: SiteRole::Idle,
        }
    }

    /// Returns the role.
    pub fn role(&self) -> &SiteRole {
        &self.role
    }

    /// Epoch in which it writes.
    pub fn writes(&self) -> Option<WriterEpoch> {
        match &self.role {
            SiteRole::Writing(writer) => Some(writer.epoch),
            SiteRole::Idle
            | SiteRole::Opening { .. }
            | SiteRole::Closing(_)
            | SiteRole::Resuming(_) => None,
        }
    }

    /// Begins to open, if it is idle: in place of the writer of `from`, if one is given.
    pub fn open(&mut self, from: Option<WriterEpoch>) {
        if let SiteRole::Idle = self.role {
            self.opening.0 += 1;
            self.role = SiteRole::Opening { from };
        }
    }

    /// Begins to close, if it writes. Everything written must be durable.
    pub fn close(&mut self) {
        match std::mem::replace(&mut self.role, SiteRole::Idle) {
            SiteRole::Writing(mut writer) => {
                writer.unflushed.clear();
                self.role = SiteRole::Closing(writer);
            }
            other @ (SiteRole::Idle
            | SiteRole::Opening { .. }
            | SiteRole::Closing(_)
            | SiteRole::Resuming(_)) => {
                self.role = other;
            }
        }
    }

    /// Request to send to the authority, and to send again until it is answered.
    pub fn asks(&self) -> Option<AuthorityRequest> {
        let (site, opening, known) = (self.id, self.opening, self.closed);
        match &self.role {
            SiteRole::Idle | SiteRole::Writing(_) => None,
            SiteRole::Opening { from: None } => Some(AuthorityRequest::Open {
                site,
                opening,
                known,
            }),
            SiteRole::Opening { from: Some(from) } => Some(AuthorityRequest::TakeOver {
                site,
                opening,
                known,
                from: *from,
            }),
            SiteRole::Resuming(writer) => Some(AuthorityRequest::Resume {
                epoch: writer.epoch,
            }),
            SiteRole::Closing(writer) => {
                let changed = writer.changed.iter();
                let changes = changed.filter_map(|it| Some((*it, writer.map.get(*it)?)));
                Some(AuthorityRequest::Close {
                    epoch: writer.epoch,
                    changes: changes.collect(),
                })
            }
        }
    }

    /// Takes an answer of the authority. Those that are late or doubled change nothing.
    pub fn told(&mut self, told: AuthorityAnswer) -> Closing {
        let role = std::mem::replace(&mut self.role, SiteRole::Idle);
        let (role, outcome) = match (role, told) {
            (
                SiteRole::Opening { .. },
                AuthorityAnswer::Granted {
                    opening,
                    epoch,
                    closed,
                    changes,
                },
            ) if opening == self.opening => {
                for (block, entry) in changes {
                    self.known.set(block, entry);
                }
                self.closed = closed;
                self.tidy();
                let writer = SiteWriter {
                    epoch,
                    map: self.known.clone(),
                    changed: BTreeSet::new(),
                    unflushed: Vec::new(),
                };
                (SiteRole::Writing(Box::new(writer)), Closing::GoesOn)
            }
            (SiteRole::Opening { .. }, AuthorityAnswer::Refused { opening, .. })
                if opening == self.opening =>
            {
                (SiteRole::Idle, Closing::GoesOn)
            }
            (SiteRole::Resuming(writer), AuthorityAnswer::Resumed(epoch))
                if epoch == writer.epoch =>
            {
                (SiteRole::Writing(writer), Closing::GoesOn)
            }
            (
                SiteRole::Closing(writer) | SiteRole::Resuming(writer),
                AuthorityAnswer::Closed(epoch),
            ) if epoch == writer.epoch => {
                (self.known, self.closed) = (writer.map, epoch);
                self.tidy();
                (SiteRole::Idle, Closing::Closed(epoch))
            }
            (
                SiteRole::Writing(writer) | SiteRole::Closing(writer) | SiteRole::Resuming(writer),
                AuthorityAnswer::Fenced(epoch),
            ) if epoch == writer.epoch => {
                self.contents.retain(|(_, stamp), _| stamp.epoch != epoch);
                (SiteRole::Idle, Closing::Dropped(epoch))
            }
            (role, _) => (role, Closing::GoesOn),
        };
        self.role = role;
        outcome
    }

    /// Drops contents that neither the last close nor anything after it refers to.
    fn tidy(&mut self) {
        let (known, closed) = (&self.known, self.closed);
        self.contents.retain(|(block, stamp), _| {
            stamp.epoch > closed || known.get(*block).is_some_and(|it| it.stamp == *stamp)
        });
    }

    /// Reads a block, as a writer.
    pub fn read(&self, block: BlockNo) -> Result<Read, Unwritable> {
        let SiteRole::Writing(writer) = &self.role else {
            return Err(Unwritable);
        };
        let Some(entry) = writer.map.get(block) else {
            return Ok(Read::Here(None));
        };
        Ok(match self.contents.get(&(block, entry.stamp)) {
            Some(data) => Read::Here(data.clone()),
            None => Read::Fetch {
                stamp: entry.stamp,
                from: entry.holders,
            },
        })
    }

    /// Writes a block, or has it read as zero. Durable once [`Self::flushed`] is called.
    pub fn write(&mut self, block: BlockNo, data: BlockContent) -> Result<Stamp, Unwritable> {
        let id = self.id;
        let SiteRole::Writing(writer) = &mut self.role else {
            return Err(Unwritable);
        };
        let last = writer.map.last();
        let version = Version::new(last + 1).ok_or(Unwritable)?;
        let stamp = Stamp {
            epoch: writer.epoch,
            version,
        };
        let before = writer.map.get(block);
        writer.unflushed.push((block, before, last));
        writer.changed.insert(block);
        let holders = Sites::only(id);
        writer.map.set(block, BlockEntry { stamp, holders });
        // The content before stays until the next flush, in case that this one is lost.
        self.contents.insert((block, stamp), data);
        Ok(stamp)
    }

    /// Notes that every write is durable.
    pub fn flushed(&mut self) {
        let SiteRole::Writing(writer) = &mut self.role else {
            return;
        };
        for (block, before, _) in writer.unflushed.drain(..) {
            if let Some(entry) = before
                && entry.stamp.epoch == writer.epoch
            {
                self.contents.remove(&(block, entry.stamp));
            }
        }
    }

    /// Number of writes that may not be durable.
    pub fn unflushed(&self) -> usize {
        match &self.role {
            SiteRole::Writing(writer) => writer.unflushed.len(),
            SiteRole::Idle
            | SiteRole::Opening { .. }
            | SiteRole::Closing(_)
            | SiteRole::Resuming(_) => 0,
        }
    }

    /// Starts again after a crash in which the last `lost` of its unflushed writes were lost.
    pub fn restart(&mut self, lost: usize) {
        self.role = match std::mem::replace(&mut self.role, SiteRole::Idle) {
            SiteRole::Idle | SiteRole::Opening { .. } => SiteRole::Idle,
            SiteRole::Writing(mut writer) => {
                for _ in 0..lost {
                    let Some((block, before, last)) = writer.unflushed.pop() else {
                        break;
                    };
                    if let Some(gone) = writer.map.get(block) {
                        self.contents.remove(&(block, gone.stamp));
                    }
                    writer.map.put_back(block, before, last);
                    let own = before.is_some_and(|it| it.stamp.epoch == writer.epoch);
                    if !own {
                        writer.changed.remove(&block);
                    }
                }
                // What is left is on disk: recovery flushes it.
                writer.unflushed.clear();
                SiteRole::Resuming(writer)
            }
            // A request to close may be under way: it must not find anything written behind it.
            SiteRole::Closing(writer) => SiteRole::Closing(writer),
            SiteRole::Resuming(writer) => SiteRole::Resuming(writer),
        };
    }

    /// Content for another site; `None` if it is not here.
    pub fn serve(&self, block: BlockNo, stamp: Stamp) -> Option<BlockContent> {
        self.contents.get(&(block, stamp)).cloned()
    }

    /// Content of a block that may be pushed to other sites: the last, once it is durable.
    ///
    /// What is not may be lost and its version given to another content.
    pub fn pushable(&self, block: BlockNo) -> Option<(Stamp, BlockContent)> {
        let SiteRole::Writing(writer) = &self.role else {
            return None;
        };
        if writer.unflushed.iter().any(|it| it.0 == block) {
            return None;
        }
        let stamp = writer.map.get(block)?.stamp;
        Some((stamp, self.serve(block, stamp)?))
    }

    /// Stores a content that was fetched, or pushed here. True if it is to be acknowledged: it
    /// must be durable then.
    pub fn store(&mut self, block: BlockNo, stamp: Stamp, data: BlockContent) -> bool {
        let late = stamp.epoch <= self.closed;
        let latest = self.known.get(block).is_some_and(|it| it.stamp == stamp);
        if late && !latest {
            return false;
        }
        self.contents.insert((block, stamp), data);
        true
    }

    /// Notes that a site has stored what was pushed to it.
    pub fn acknowledged(&mut self, block: BlockNo, stamp: Stamp, by: SiteId) {
        if let SiteRole::Writing(writer) = &mut self.role {
            writer.map.add_holder(block, stamp, by);
        }
    }
}
