//! Traffic between this host and others.

use super::{Arriving, Peers};
use crate::catalog::Node;
use crate::service::Service;
use forkyard_transfer::{CountedLink, Received, Sent};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, MutexGuard, PoisonError};

/// All that passed on one link since the pager began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkUse {
    /// Peer of the link. To a group this host but sends: what came by one is
    /// counted for the host it came from.
    pub link: CountedLink,
    /// Traffic sent to it.
    pub sent: Sent,
    /// Traffic received from it.
    pub got: Got,
}

/// Traffic received from one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Got {
    /// Pages and packets.
    pub received: Received,
    /// Pages that were here when they were first read.
    pub used: u64,
}

/// Images on their way, and what came of those that are no more.
#[derive(Debug, Default)]
pub(super) struct Coming {
    pub now: HashMap<Node, Arc<Arriving>>,
    past: BTreeMap<IpAddr, Got>,
}

impl Got {
    fn add(&mut self, more: Self) {
        self.received.add(more.received);
        self.used += more.used;
    }
}

impl Arriving {
    fn got(&self) -> Got {
        let received = self
            .client
            .get()
            .map(forkyard_transfer::driver::PageClient::stats);
        Got {
            received: received.unwrap_or_default(),
            used: self.arrivals.used(),
        }
    }
}

impl Peers {
    pub(super) fn coming(&self) -> MutexGuard<'_, Coming> {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that it is not needed from another host any more.
    pub fn forget(&self, node: Node) {
        let mut coming = self.coming();
        let arriving = coming.now.remove(&node);
        // Under one lock: no reader sees its traffic nowhere, or twice.
        if let Some(arriving) = &arriving {
            let past = coming.past.entry(arriving.from.ip()).or_default();
            past.add(arriving.got());
        }
        drop(coming);
        // Not under the lock: it ends a thread.
        drop(arriving);
    }

    fn got(&self) -> BTreeMap<IpAddr, Got> {
        let coming = self.coming();
        let mut got = coming.past.clone();
        for arriving in coming.now.values() {
            got.entry(arriving.from.ip())
                .or_default()
                .add(arriving.got());
        }
        got
    }
}

impl Service {
    /// Lists the traffic of each link there was.
    pub fn links(&self) -> Vec<LinkUse> {
        let server = self.peers().server.get();
        let sent = server
            .map(forkyard_transfer::driver::PageServer::tally)
            .unwrap_or_default();
        let mut links: BTreeMap<CountedLink, (Sent, Got)> = BTreeMap::new();
        for (link, sent) in sent.links() {
            links.entry(link).or_default().0 = sent;
        }
        for (host, got) in self.peers().got() {
            links.entry(CountedLink::Host(host)).or_default().1 = got;
        }
        let each = links.into_iter();
        each.map(|(link, (sent, got))| LinkUse { link, sent, got })
            .collect()
    }
}
