//! Collection of pieces that no manifest names, while others push.
//!
//! ```text
//! push:       Lease -> Look -> Pieces -> Manifest -> Release -> End
//!                       ^ | while a collection is under way
//!                       +-+
//! collection: Mark -> Pieces -> Leases -> Manifests -> Delete -> Unmark -> End
//! ```
//!
//! A push that finds a piece in the store relies on it before any manifest of its own names it. So
//! each side first says that it is there and then looks for the other: a collection that began before a push
//! looked is waited for, and one that begins later sees the push's lease, which names all its
//! pieces. A collection reads leases before manifests, for a push writes its manifest before it
//! gives up its lease. That takes a store in which what was written is seen by all, as S3 and folders are.
//!
//! | fails | then |
//! |---|---|
//! | a push | its pieces are garbage once its lease is gone, or [`STALE`] |
//! | a collection | what it did not delete is left; its mark holds up pushes until it is [`STALE`] |
//!
//! Ages are told by the store's clock alone, of what was written and of what the asker has just written itself.
//! A push that could not renew its lease, and a collection that takes long, give up well before
//! others would take them for dead.

use crate::Digest;
use std::collections::HashSet;

/// Seconds after which a lease or a mark is that of a process that died.
pub const STALE: u64 = 3600;
/// Seconds between two renewals of a lease.
pub const RENEW: u64 = 300;
/// Seconds for which a lease or a mark is relied upon by its owner.
pub const SAFE: u64 = STALE / 2;

/// Step of a push that is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushStep {
    /// Write a lease that names all pieces.
    Lease,
    /// Look for marks of collections.
    Look,
    /// Send pieces that are not there.
    Pieces,
    /// Write the manifest.
    Manifest,
    /// Remove the lease.
    Release,
    /// Nothing is left to do.
    End,
}

/// Step of a collection that is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collection {
    /// Write a mark.
    Mark,
    /// List all pieces.
    Pieces,
    /// Read all leases.
    Leases,
    /// Read all manifests.
    Manifests,
    /// Delete what is [garbage](is_garbage).
    Delete,
    /// Remove the mark.
    Unmark,
    /// Nothing is left to do.
    End,
}

/// Other processes, as a step has seen them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// None that matters.
    None,
    /// A collection is under way.
    Collecting,
}

impl PushStep {
    /// The step after this one, which was done.
    pub fn after(self, seen: Others) -> Self {
        match (self, seen) {
            (Self::Lease, _) | (Self::Look, Others::Collecting) => Self::Look,
            (Self::Look, Others::None) => Self::Pieces,
            (Self::Pieces, _) => Self::Manifest,
            (Self::Manifest, _) => Self::Release,
            (Self::Release | Self::End, _) => Self::End,
        }
    }
}

impl Collection {
    /// The step after this one, which was done.
    pub fn after(self) -> Self {
        match self {
            Self::Mark => Self::Pieces,
            Self::Pieces => Self::Leases,
            Self::Leases => Self::Manifests,
            Self::Manifests => Self::Delete,
            Self::Delete => Self::Unmark,
            Self::Unmark | Self::End => Self::End,
        }
    }
}

/// Tells whether a lease or a mark is that of a process that died: by the times at which it and
/// something that was just written were stored.
pub fn is_stale(stored: u64, now: u64) -> bool {
    now.saturating_sub(stored) > STALE
}

/// Tells whether a piece goes: nothing names it.
pub fn is_garbage(piece: Digest, leased: &HashSet<Digest>, named: &HashSet<Digest>) -> bool {
    !leased.contains(&piece) && !named.contains(&piece)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// A store in which each operation is one step.
    #[derive(Debug, Default)]
    struct Store {
        pieces: BTreeSet<Digest>,
        manifests: BTreeMap<usize, Vec<Digest>>,
        leases: BTreeMap<usize, Vec<Digest>>,
        marks: BTreeSet<usize>,
    }

    #[derive(Debug)]
    enum Actor {
        /// Step, pieces, and number of them that it has seen to.
        Push(PushStep, Vec<Digest>, usize),
        /// Removes a manifest and collects.
        Collect {
            of: usize,
            removed: bool,
            at: Collection,
            listed: Vec<Digest>,
            leased: HashSet<Digest>,
            named: HashSet<Digest>,
        },
    }

    impl Actor {
        fn step(&mut self, id: usize, store: &mut Store) {
            match self {
                Self::Push(at, pieces, seen) => {
                    let mut others = Others::None;
                    match at {
                        PushStep::Lease => {
                            store.leases.insert(id, pieces.clone());
                        }
                        PushStep::Look if !store.marks.is_empty() => others = Others::Collecting,
                        PushStep::Look => {}
                        PushStep::Pieces => {
                            if let Some(piece) = pieces.get(*seen) {
                                // What is there is not sent.
                                store.pieces.insert(*piece);
                                *seen += 1;
                                return;
                            }
                        }
                        PushStep::Manifest => {
                            store.manifests.insert(id, pieces.clone());
                        }
                        PushStep::Release => {
                            store.leases.remove(&id);
                        }
                        PushStep::End => {}
                    }
                    *at = at.after(others);
                }
                Self::Collect {
                    of,
                    removed,
                    at,
                    listed,
                    leased,
                    named,
                } => {
                    if !*removed {
                        store.manifests.remove(of);
                        *removed = true;
                        return;
                    }
                    match at {
                        Collection::Mark => {
                            store.marks.insert(id);
                        }
                        Collection::Pieces => listed.extend(&store.pieces),
                        Collection::Leases => leased.extend(store.leases.values().flatten()),
                        Collection::Manifests => named.extend(store.manifests.values().flatten()),
                        Collection::Delete => {
                            if let Some(piece) = listed.pop() {
                                if is_garbage(piece, leased, named) {
                                    store.pieces.remove(&piece);
                                }
                                return;
                            }
                        }
                        Collection::Unmark => {
                            store.marks.remove(&id);
                        }
                        Collection::End => {}
                    }
                    *at = at.after();
                }
            }
        }

        fn has_ended(&self) -> bool {
            match self {
                Self::Push(at, ..) => *at == PushStep::End,
                Self::Collect { at, .. } => *at == Collection::End,
            }
        }
    }

    fn actors() -> impl Strategy<Value = Vec<Actor>> {
        let push = prop::collection::vec(0u8..5, 0..4).prop_map(|all| {
            let pieces = all.into_iter().map(|it| Digest::of(&[it])).collect();
            Actor::Push(PushStep::Lease, pieces, 0)
        });
        let collect = (0usize..6).prop_map(|of| Actor::Collect {
            of,
            removed: false,
            at: Collection::Mark,
            listed: Vec::new(),
            leased: HashSet::new(),
            named: HashSet::new(),
        });
        prop::collection::vec(prop_oneof![push, collect], 1..6)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]
        #[test]
        fn no_manifest_ever_names_a_piece_that_is_gone(
            mut actors in actors(),
            left in prop::collection::vec(0u8..5, 0..5),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..120),
        ) {
            let mut store = Store::default();
            // Of pushes that died.
            store.pieces.extend(left.into_iter().map(|it| Digest::of(&[it])));
            let whole = |store: &Store| store.manifests.values().flatten().all(|it| store.pieces.contains(it));
            for next in order {
                let id = next.index(actors.len());
                actors[id].step(id, &mut store);
                prop_assert!(whole(&store), "{store:?}");
            }
            // All come to an end, in whatever order.
            for _ in 0..64 {
                for (id, actor) in actors.iter_mut().enumerate() {
                    actor.step(id, &mut store);
                    prop_assert!(whole(&store), "{store:?}");
                }
            }
            prop_assert!(actors.iter().all(Actor::has_ended));
            prop_assert!(store.leases.is_empty() && store.marks.is_empty());
        }
    }

    #[test]
    fn what_nothing_names_goes_and_nothing_else() {
        let [a, b, c] = [b"a", b"b", b"c"].map(|it| Digest::of(it));
        let (leased, named) = (HashSet::from([a]), HashSet::from([b]));
        assert!(!is_garbage(a, &leased, &named));
        assert!(!is_garbage(b, &leased, &named));
        assert!(is_garbage(c, &leased, &named));
    }

    #[test]
    fn a_lease_is_given_up_by_its_owner_before_others_take_it_for_dead() {
        assert!(is_stale(0, STALE + 1) && !is_stale(0, STALE) && !is_stale(9, 0));
        const { assert!(RENEW * 2 < SAFE && SAFE < STALE) };
    }
}
