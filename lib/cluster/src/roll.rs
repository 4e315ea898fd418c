//! List of the nodes, and of those that are alive: a copy of the records in
//! etcd, kept up as they change. While etcd cannot be reached it is as it last
//! was.

use crate::{ClusterError, records::Member};
use forkyard_etcd::{Etcd, EtcdError, EventBatch, KeyEntry, KeyEvent, Op, Revision, Txn};
use forkyard_placement::{Book, Offer};
use forkyard_types::{NodeName, NodeState};
use serde::de::DeserializeOwned;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::watch;

/// After this the whole is looked at again: a connection may be dead without
/// any node having said so.
const WHOLE: Duration = Duration::from_secs(20);
/// Before etcd is tried again.
const AGAIN: Duration = Duration::from_millis(500);
/// Parts of the book that are followed.
const PARTS: [&str; 3] = ["nodes", "offers", "draining"];

/// The nodes as they were last heard of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes {
    pub members: BTreeMap<NodeName, Member>,
    pub offers: BTreeMap<NodeName, Offer>,
    pub draining: BTreeSet<NodeName>,
}

impl Nodes {
    /// Returns the state of a node; none if there is no such node.
    pub fn state(&self, node: &NodeName) -> Option<NodeState> {
        self.members.get(node)?;
        Some(match self.offers.contains_key(node) {
            false => NodeState::Lost,
            true if self.draining.contains(node) => NodeState::Draining,
            true => NodeState::Active,
        })
    }

    /// The node that shows this certificate.
    pub fn who(&self, fingerprint: &str) -> Option<&NodeName> {
        let mut all = self.members.iter();
        all.find_map(|(name, member)| (member.fingerprint == fingerprint).then_some(name))
    }

    fn put(&mut self, book: &Book, entry: &KeyEntry) {
        if let Some(node) = name_in(book, PARTS[0], &entry.key) {
            if let Some(member) = read(entry) {
                self.members.insert(node, member);
            }
        } else if let Some(node) = name_in(book, PARTS[1], &entry.key) {
            if let Some(offer) = read(entry) {
                self.offers.insert(node, offer);
            }
        } else if let Some(node) = name_in(book, PARTS[2], &entry.key) {
            self.draining.insert(node);
        }
    }

    fn delete(&mut self, book: &Book, key: &str) {
        if let Some(node) = name_in(book, PARTS[0], key) {
            self.members.remove(&node);
        } else if let Some(node) = name_in(book, PARTS[1], key) {
            self.offers.remove(&node);
        } else if let Some(node) = name_in(book, PARTS[2], key) {
            self.draining.remove(&node);
        }
    }
}

fn name_in(book: &Book, part: &str, key: &str) -> Option<NodeName> {
    key.strip_prefix(&book.key(part, ""))?.parse().ok()
}

/// A record of another version is passed over: it is not to stop everything.
fn read<T: DeserializeOwned>(entry: &KeyEntry) -> Option<T> {
    let read = serde_json::from_slice(&entry.value);
    read.inspect_err(|error| tracing::warn!(key = entry.key, %error, "record not understood"))
        .ok()
}

/// The copy.
#[derive(Debug)]
pub(crate) struct Roll {
    etcd: Etcd,
    book: Book,
    nodes: Mutex<Nodes>,
    changed: watch::Sender<()>,
}

impl Roll {
    pub fn new(etcd: Etcd, book: Book) -> Self {
        Self {
            etcd,
            book,
            nodes: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }

    /// The nodes as they were last heard of.
    pub fn nodes(&self) -> Nodes {
        self.lock().clone()
    }

    /// Does something with them, at once.
    pub fn with<T>(&self, look: impl FnOnce(&Nodes) -> T) -> T {
        look(&self.lock())
    }

    /// Told whenever something has changed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Looks at all of them, now.
    pub async fn refresh(&self) -> Result<Revision, ClusterError> {
        let outcome = self.etcd.txn(Txn {
            then: PARTS.map(|part| Op::Get(self.book.all(part))).into(),
            ..Txn::default()
        });
        let outcome = outcome.await?;
        let revision = outcome.revision;
        let mut nodes = Nodes::default();
        for entry in outcome.found().iter().flatten() {
            nodes.put(&self.book, entry);
        }
        *self.lock() = nodes;
        self.changed.send_replace(());
        Ok(revision)
    }

    /// Keeps the copy up, for ever. Cancel-safe.
    pub async fn follow(&self) {
        loop {
            if let Ok(Err(error)) = tokio::time::timeout(WHOLE, self.follow_once()).await {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "nodes not followed"
                );
                tokio::time::sleep(AGAIN).await;
            }
        }
    }

    async fn follow_once(&self) -> Result<(), ClusterError> {
        let next = Revision(self.refresh().await?.0 + 1);
        let [nodes, offers, draining] = PARTS.map(|part| self.book.all(part));
        let mut nodes = self.etcd.watch(&nodes, next).await?;
        let mut offers = self.etcd.watch(&offers, next).await?;
        let mut draining = self.etcd.watch(&draining, next).await?;
        loop {
            let batch: Result<EventBatch, EtcdError> = tokio::select! {
                batch = nodes.next() => batch,
                batch = offers.next() => batch,
                batch = draining.next() => batch,
            };
            self.apply(&batch?.events);
        }
    }

    fn apply(&self, events: &[KeyEvent]) {
        let mut nodes = self.lock();
        for event in events {
            match event {
                KeyEvent::Put(entry) => nodes.put(&self.book, entry),
                KeyEvent::Deleted(key) => nodes.delete(&self.book, key),
            }
        }
        drop(nodes);
        self.changed.send_replace(());
    }

    fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
