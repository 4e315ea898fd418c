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

use crate::{Ask, Entry, GlobalMap, OpeningId, SiteId, Sites, Stamp, Told};
use forkyard_volume::{BlockNo, Epoch, Version};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Content of a block; `None` if it is zero.
pub type Data = Option<Arc<[u8]>>;

/// One site's part of a volume.
#[derive(Clone, Debug)]
pub struct Site {
    id: SiteId,
    contents: BTreeMap<(BlockNo, Stamp), Data>,
    /// Map as of the last close that the site knows of, and the epoch of that.
    known: GlobalMap,
    closed: Epoch,
    opening: OpeningId,
    role: Role,
}

/// Role of the site.
#[derive(Clone, Debug)]
pub enum Role {
    /// Nothing.
    Idle,
    /// Waiting for the lease.
    Opening {
        /// Epoch to replace, if it is a takeover.
        from: Option<Epoch>,
    },
    /// Writing.
    Writing(Box<Writer>),
    /// Waiting for the end of its lease.
    Closing(Box<Writer>),
    /// Waiting to hear whether it still has the lease, after a restart.
    Resuming(Box<Writer>),
}

/// State of a writer.
#[derive(Clone, Debug)]
pub struct Writer {
    epoch: Epoch,
    map: GlobalMap,
    changed: BTreeSet<BlockNo>,
    /// Writes that may not be durable: block, and what was before.
    unflushed: Vec<(BlockNo, Option<Entry>, u64)>,
}

/// Outcome of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Content.
    Here(Data),
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
    Closed(Epoch),
    /// The epoch was replaced, and what it wrote is dropped.
    Dropped(Epoch),
}

impl Site {
    /// A site that knows nothing of the volume.
    pub fn new(id: SiteId) -> Self {
        Self {
            id,
            contents: BTreeMap::new(),
            known: GlobalMap::default(),
            closed: Epoch(0),
            opening: OpeningId(0),
            role: Role::Idle,
        }
    }

    /// Returns the role.
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Epoch in which it writes.
    pub fn writes(&self) -> Option<Epoch> {
        match &self.role {
            Role::Writing(writer) => Some(writer.epoch),
            Role::Idle | Role::Opening { .. } | Role::Closing(_) | Role::Resuming(_) => None,
        }
    }

    /// Begins to open, if it is idle: in place of the writer of `from`, if one is given.
    pub fn open(&mut self, from: Option<Epoch>) {
        if let Role::Idle = self.role {
            self.opening.0 += 1;
            self.role = Role::Opening { from };
        }
    }

    /// Begins to close, if it writes. Everything written must be durable.
    pub fn close(&mut self) {
        match std::mem::replace(&mut self.role, Role::Idle) {
            Role::Writing(mut writer) => {
                writer.unflushed.clear();
                self.role = Role::Closing(writer);
            }
            other @ (Role::Idle | Role::Opening { .. } | Role::Closing(_) | Role::Resuming(_)) => {
                self.role = other;
            }
        }
    }

    /// Request to send to the authority, and to send again until it is answered.
    pub fn asks(&self) -> Option<Ask> {
        let (site, opening, known) = (self.id, self.opening, self.closed);
        match &self.role {
            Role::Idle | Role::Writing(_) => None,
            Role::Opening { from: None } => Some(Ask::Open {
                site,
                opening,
                known,
            }),
            Role::Opening { from: Some(from) } => Some(Ask::TakeOver {
                site,
                opening,
                known,
                from: *from,
            }),
            Role::Resuming(writer) => Some(Ask::Resume {
                epoch: writer.epoch,
            }),
            Role::Closing(writer) => {
                let changed = writer.changed.iter();
                let changes = changed.filter_map(|it| Some((*it, writer.map.get(*it)?)));
                Some(Ask::Close {
                    epoch: writer.epoch,
                    changes: changes.collect(),
                })
            }
        }
    }

    /// Takes an answer of the authority. Those that are late or doubled change nothing.
    pub fn told(&mut self, told: Told) -> Closing {
        let role = std::mem::replace(&mut self.role, Role::Idle);
        let (role, outcome) = match (role, told) {
            (
                Role::Opening { .. },
                Told::Granted {
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
                let writer = Writer {
                    epoch,
                    map: self.known.clone(),
                    changed: BTreeSet::new(),
                    unflushed: Vec::new(),
                };
                (Role::Writing(Box::new(writer)), Closing::GoesOn)
            }
            (Role::Opening { .. }, Told::Refused { opening, .. }) if opening == self.opening => {
                (Role::Idle, Closing::GoesOn)
            }
            (Role::Resuming(writer), Told::Resumed(epoch)) if epoch == writer.epoch => {
                (Role::Writing(writer), Closing::GoesOn)
            }
            (Role::Closing(writer) | Role::Resuming(writer), Told::Closed(epoch))
                if epoch == writer.epoch =>
            {
                (self.known, self.closed) = (writer.map, epoch);
                self.tidy();
                (Role::Idle, Closing::Closed(epoch))
            }
            (
                Role::Writing(writer) | Role::Closing(writer) | Role::Resuming(writer),
                Told::Fenced(epoch),
            ) if epoch == writer.epoch => {
                self.contents.retain(|(_, stamp), _| stamp.epoch != epoch);
                (Role::Idle, Closing::Dropped(epoch))
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
        let Role::Writing(writer) = &self.role else {
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
    pub fn write(&mut self, block: BlockNo, data: Data) -> Result<Stamp, Unwritable> {
        let id = self.id;
        let Role::Writing(writer) = &mut self.role else {
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
        writer.map.set(block, Entry { stamp, holders });
        // The content before stays until the next flush, in case that this one is lost.
        self.contents.insert((block, stamp), data);
        Ok(stamp)
    }

    /// Notes that every write is durable.
    pub fn flushed(&mut self) {
        let Role::Writing(writer) = &mut self.role else {
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
            Role::Writing(writer) => writer.unflushed.len(),
            Role::Idle | Role::Opening { .. } | Role::Closing(_) | Role::Resuming(_) => 0,
        }
    }

    /// Starts again after a crash in which the last `lost` of its unflushed writes were lost.
    pub fn restart(&mut self, lost: usize) {
        self.role = match std::mem::replace(&mut self.role, Role::Idle) {
            Role::Idle | Role::Opening { .. } => Role::Idle,
            Role::Writing(mut writer) => {
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
                Role::Resuming(writer)
            }
            // A request to close may be under way: it must not find anything written behind it.
            Role::Closing(writer) => Role::Closing(writer),
            Role::Resuming(writer) => Role::Resuming(writer),
        };
    }

    /// Content for another site; `None` if it is not here.
    pub fn serve(&self, block: BlockNo, stamp: Stamp) -> Option<Data> {
        self.contents.get(&(block, stamp)).cloned()
    }

    /// Content of a block that may be pushed to other sites: the last, once it is durable.
    ///
    /// What is not may be lost and its version given to another content.
    pub fn pushable(&self, block: BlockNo) -> Option<(Stamp, Data)> {
        let Role::Writing(writer) = &self.role else {
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
    pub fn store(&mut self, block: BlockNo, stamp: Stamp, data: Data) -> bool {
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
        if let Role::Writing(writer) = &mut self.role {
            writer.map.add_holder(block, stamp, by);
        }
    }
}
