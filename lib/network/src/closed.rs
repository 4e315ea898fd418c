//! Destinations that no guest may reach, whatever its family is allowed: what lets in
//! the address of this host without asking for more, etcd and other nodes' ports.
//!
//! A guest's packets leave under its host's address. The set is asked before the rules
//! of the family.

use crate::{NetworkError, Networks, rules};
use forkyard_types::Transport;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
    sync::PoisonError,
};

/// A port of a host that guests do not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Closed {
    /// Address and port. The unspecified address is every address.
    pub at: SocketAddrV4,
    /// Protocol of the port.
    pub transport: Transport,
}

impl Networks {
    /// Closes these destinations to all guests, and opens those closed before.
    /// If cancelled, it happens or not.
    pub async fn close(&self, wanted: BTreeSet<Closed>) -> Result<(), NetworkError> {
        let before = {
            let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
            if *closed == wanted {
                return Ok(());
            }
            std::mem::replace(&mut *closed, wanted.clone())
        };
        let flush = json!({"flush": {"set": {
            "family": "ip", "table": rules::TABLE, "name": "closed"}}});
        let commands = std::iter::once(flush).chain(elements(&wanted)).collect();
        let done = self.nft.run(commands).await;
        if done.is_err() {
            *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = before;
        }
        done
    }

    /// Destinations that are closed to all guests now.
    pub fn closed_now(&self) -> BTreeSet<Closed> {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        closed.clone()
    }

    /// Commands that put into the set what belongs there.
    pub(crate) fn closed(&self) -> Option<Value> {
        elements(&self.closed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The command that puts these into the set, if there are any.
pub(crate) fn elements(closed: &BTreeSet<Closed>) -> Option<Value> {
    let everywhere = |it: &Closed| Closed {
        at: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, it.at.port()),
        ..*it
    };
    // The kernel takes no element that lies within another.
    let kept = closed
        .iter()
        .filter(|it| it.at.ip().is_unspecified() || !closed.contains(&everywhere(it)));
    let elements: Vec<_> = kept
        .map(|it| {
            let address = match it.at.ip().is_unspecified() {
                true => json!({"range": [Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST]}),
                false => json!(it.at.ip()),
            };
            json!({"concat": [address, it.transport, it.at.port()]})
        })
        .collect();
    (!elements.is_empty()).then(|| {
        json!({"add": {"element": {
            "family": "ip", "table": rules::TABLE, "name": "closed", "elem": elements}}})
    })
}
