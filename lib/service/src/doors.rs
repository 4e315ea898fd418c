//! Places for connections over the network.
//!
//! ```text
//! accepted --> stranger --first admitted request--> its token's, or a node's
//!                 '-- closed, if others need its place
//! ```
//!
//! Strangers are never refused: when there is no place, the oldest connection of the
//! network that has most of them is closed. A client that authenticates at once keeps its
//! connection, however many idle ones others open. Tokens and nodes have places of their
//! own, so that users do not keep nodes out. So have sandboxes whose ports are public: those that
//! visit them have no token, but know the sandbox.
//!
//! A connection carries one request at a time: places bound streams, too.

use forkyard_auth::network;
use forkyard_types::VmId;
use std::{
    collections::{BTreeMap, HashMap},
    mem::discriminant,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// Connections at once that have not authenticated.
const STRANGERS: usize = 128;
/// Those of them from one IPv4 address, or one /64 of IPv6.
const OF_NETWORK: usize = 16;
/// Connections of all tokens.
const USERS: usize = 256;
/// Connections of one token.
const OF_TOKEN: usize = 128;
/// Connections of nodes.
const NODES: usize = 256;
/// Connections of all sandboxes' public ports.
const VISITORS: usize = 256;
/// Connections of one sandbox's.
const OF_SANDBOX: usize = 128;

/// Owner of an authenticated connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// The user of the token of this name.
    Token(String),
    /// A node of the cluster.
    Node,
    /// Visitors of this sandbox's public ports.
    Sandbox(VmId),
}

/// No place is left for an authenticated connection.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ListenerFull {
    /// One token has as many as it may.
    #[error("connection limit of this token reached: {OF_TOKEN}")]
    Token,
    /// All tokens together do.
    #[error("connection limit of this host reached: {USERS}")]
    Users,
    /// The cluster's nodes do.
    #[error("connection limit for nodes reached: {NODES}")]
    Nodes,
    /// Visitors of one sandbox do.
    #[error("connection limit of this sandbox's ports reached: {OF_SANDBOX}")]
    Sandbox,
    /// Visitors of all sandboxes do.
    #[error("connection limit for ports of sandboxes reached: {VISITORS}")]
    Visitors,
}

/// The places of one listener.
#[derive(Debug, Default)]
pub struct Doors(Mutex<Places>);

#[derive(Debug, Default)]
struct Places {
    next: u64,
    /// By number, hence the oldest first.
    strangers: BTreeMap<u64, Stranger>,
    known: HashMap<Party, usize>,
}

#[derive(Debug)]
struct Stranger {
    network: IpAddr,
    close: Arc<Notify>,
}

/// A connection's place, until dropped.
#[derive(Debug)]
pub struct Visit {
    doors: Arc<Doors>,
    number: u64,
    close: Arc<Notify>,
    party: Mutex<Option<Party>>,
}

impl Doors {
    /// Gives a connection from `address` a place; if need be, that of another stranger.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Arc<Visit> {
        let close = Arc::new(Notify::new());
        let mut places = lock(&self.0);
        let network = network(address);
        places.make_room(network);
        let number = places.next;
        places.next += 1;
        let stranger = Stranger {
            network,
            close: close.clone(),
        };
        places.strangers.insert(number, stranger);
        Arc::new(Visit {
            doors: self.clone(),
            number,
            close,
            party: Mutex::default(),
        })
    }
}

impl Places {
    /// Closes a stranger's connection, if there is no place for one of `network`.
    fn make_room(&mut self, network: IpAddr) {
        let mut each: HashMap<IpAddr, usize> = HashMap::new();
        for stranger in self.strangers.values() {
            *each.entry(stranger.network).or_default() += 1;
        }
        let crowded = if each.get(&network).is_some_and(|count| *count >= OF_NETWORK) {
            Some(network)
        } else if self.strangers.len() >= STRANGERS {
            let most = each.into_iter().max_by_key(|(_, count)| *count);
            most.map(|(network, _)| network)
        } else {
            None
        };
        let oldest = crowded.and_then(|crowded| {
            let mut strangers = self.strangers.iter();
            let found = strangers.find(|(_, stranger)| stranger.network == crowded);
            found.map(|(number, _)| *number)
        });
        if let Some(stranger) = oldest.and_then(|number| self.strangers.remove(&number)) {
            stranger.close.notify_one();
        }
    }

    fn admit(&mut self, party: &Party) -> Result<(), ListenerFull> {
        let of = |wanted: &Party| self.known.get(wanted).copied().unwrap_or(0);
        let of_kind = || {
            let known = self.known.iter();
            let alike = known.filter(|(other, _)| discriminant(*other) == discriminant(party));
            alike.map(|(_, count)| count).sum::<usize>()
        };
        match party {
            Party::Node if of(party) >= NODES => return Err(ListenerFull::Nodes),
            Party::Token(_) if of(party) >= OF_TOKEN => return Err(ListenerFull::Token),
            Party::Token(_) if of_kind() >= USERS => return Err(ListenerFull::Users),
            Party::Sandbox(_) if of(party) >= OF_SANDBOX => return Err(ListenerFull::Sandbox),
            Party::Sandbox(_) if of_kind() >= VISITORS => return Err(ListenerFull::Visitors),
            Party::Node | Party::Token(_) | Party::Sandbox(_) => {}
        }
        *self.known.entry(party.clone()).or_default() += 1;
        Ok(())
    }

    fn leave(&mut self, party: &Party) {
        if let Some(count) = self.known.get_mut(party) {
            *count -= 1;
            if *count == 0 {
                self.known.remove(party);
            }
        }
    }
}

impl Visit {
    /// Waits until the place is needed for another. Cancel-safe.
    pub async fn closed(&self) {
        self.close.notified().await;
    }

    /// Makes the connection that of a party which has authenticated.
    pub fn admit(&self, party: Party) -> Result<(), ListenerFull> {
        let mut mine = lock(&self.party);
        if mine.as_ref() == Some(&party) {
            return Ok(());
        }
        let mut places = lock(&self.doors.0);
        places.admit(&party)?;
        match mine.replace(party) {
            Some(before) => places.leave(&before),
            None => drop(places.strangers.remove(&self.number)),
        }
        Ok(())
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let party = lock(&self.party).take();
        let mut places = lock(&self.doors.0);
        match party {
            Some(party) => places.leave(&party),
            None => drop(places.strangers.remove(&self.number)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use proptest::prelude::*;

    fn address(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    fn is_closed(visit: &Visit) -> bool {
        visit.closed().now_or_never().is_some()
    }

    fn token(name: &str) -> Party {
        Party::Token(name.into())
    }

    #[test]
    fn idle_connections_of_one_address_keep_out_neither_others_nor_newer_ones_of_it() {
        let doors = Arc::new(Doors::default());
        let other = doors.enter(address(1));
        let idle: Vec<_> = (0..256).map(|_| doors.enter(address(2))).collect();
        assert!(!is_closed(&other));
        let open = idle.iter().filter(|visit| !is_closed(visit)).count();
        assert_eq!(open, OF_NETWORK);
        let colleague = doors.enter(address(2));
        colleague.admit(token("ci")).expect("a place");
        let more: Vec<_> = (0..256).map(|_| doors.enter(address(2))).collect();
        assert!(!is_closed(&colleague), "authenticated connections stay");
        drop(more);
    }

    #[test]
    fn crowds_from_many_addresses_cost_the_largest_of_them_its_oldest() {
        let doors = Arc::new(Doors::default());
        let lone = doors.enter(address(1));
        let crowd: Vec<_> = (0..128).map(|n| doors.enter(address(10 + n / 8))).collect();
        assert!(!is_closed(&lone));
        assert_eq!(crowd.iter().filter(|visit| is_closed(visit)).count(), 1);
    }

    #[test]
    fn tokens_have_a_bound_each_and_together_and_keep_no_node_out() {
        let doors = Arc::new(Doors::default());
        let full = |party: &Party, most: usize| {
            let mut visits = Vec::new();
            for n in (0..).take(most) {
                let visit = doors.enter(address(n));
                visit.admit(party.clone()).expect("a place");
                visits.push(visit);
            }
            visits
        };
        let last = doors.enter(address(1));
        let a = full(&token("a"), OF_TOKEN);
        assert_eq!(last.admit(token("a")), Err(ListenerFull::Token));
        let b = full(&token("b"), OF_TOKEN);
        assert_eq!(last.admit(token("c")), Err(ListenerFull::Users));
        let nodes = full(&Party::Node, NODES);
        assert_eq!(last.admit(Party::Node), Err(ListenerFull::Nodes));
        drop((a, b, nodes));
        last.admit(token("a")).expect("places are given back");
    }

    #[test]
    fn visitors_of_a_sandbox_are_no_strangers_and_cost_users_no_place() {
        let doors = Arc::new(Doors::default());
        let mut visits = Vec::new();
        for sandbox in [VmId::random(), VmId::random()] {
            for _ in 0..OF_SANDBOX {
                let visit = doors.enter(address(2));
                visit.admit(Party::Sandbox(sandbox)).expect("a place");
                visits.push(visit);
            }
            let one_more = doors.enter(address(2));
            assert_eq!(
                one_more.admit(Party::Sandbox(sandbox)),
                Err(ListenerFull::Sandbox)
            );
        }
        assert!(
            !visits.iter().any(|visit| is_closed(visit)),
            "none makes room"
        );
        let third = doors.enter(address(3));
        let other = Party::Sandbox(VmId::random());
        assert_eq!(third.admit(other), Err(ListenerFull::Visitors));
        third.admit(token("ci")).expect("a place of users");
    }

    proptest! {
        #[test]
        fn all_places_are_given_back(
            events in prop::collection::vec((0..40u32, 0..4u8, any::<bool>()), 1..500)
        ) {
            let doors = Arc::new(Doors::default());
            let mut visits = Vec::new();
            for (from, party, stays) in events {
                let visit = doors.enter(address(from));
                match party {
                    0 => {}
                    1 => drop(visit.admit(Party::Node)),
                    n => drop(visit.admit(token(&n.to_string()))),
                }
                if stays {
                    visits.push(visit);
                }
                prop_assert!(lock(&doors.0).strangers.len() <= STRANGERS);
            }
            drop(visits);
            let places = lock(&doors.0);
            prop_assert!(places.strangers.is_empty() && places.known.is_empty());
        }
    }
}
