//! Families, and the numbers they give.

use crate::{
    Store, StoreError,
    row::{from_json, json, parsed},
};
use forkyard_types::{FamilyId, Member, NetworkPolicy};
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};
use std::{collections::BTreeSet, ops::Range};

/// Number of a family on its host: its network follows from it. Unique among
/// the families that exist, and given again when one has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FamilyNo(pub u16);

/// A family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyRecord {
    /// Its id.
    pub id: FamilyId,
    /// Its number.
    pub number: FamilyNo,
    /// Most clones that may be alive at once, if there is a limit.
    pub max_clones: Option<u16>,
}

impl Store {
    /// Founds a family under the lowest free number below `limit`.
    pub fn found_family(
        &self,
        id: FamilyId,
        limit: u16,
        max_clones: Option<u16>,
    ) -> Result<FamilyRecord, StoreError> {
        self.found_family_from(0, id, limit, max_clones)
    }

    /// The same, under the first free number from `from` on, round and round.
    pub fn found_family_from(
        &self,
        from: u16,
        id: FamilyId,
        limit: u16,
        max_clones: Option<u16>,
    ) -> Result<FamilyRecord, StoreError> {
        let mut connection = self.lock();
        let found = (|| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let taken: BTreeSet<u16> = transaction
                .prepare_cached("SELECT number FROM family")?
                .query_map([], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            let mut numbers = (from..limit).chain(0..from.min(limit));
            let Some(number) = numbers.find(|number| !taken.contains(number)) else {
                return Ok(None);
            };
            transaction.execute(
                "INSERT INTO family (id, number, next_member, max_clones) VALUES (?1, ?2, 0, ?3)",
                params![id.as_str(), number, max_clones],
            )?;
            transaction.commit()?;
            Ok(Some(FamilyRecord {
                id,
                number: FamilyNo(number),
                max_clones,
            }))
        })();
        let exhausted = StoreError::Exhausted {
            what: "family number",
            limit: limit.into(),
        };
        found.map_err(self.failed())?.ok_or(exhausted)
    }

    /// Takes the next `count` places of a family, round and round: never one that
    /// a recorded VM has, or that is `taken` in other ways, and one that was given
    /// back as late as can be.
    pub fn take_members(
        &self,
        family: FamilyId,
        count: u16,
        limit: u16,
        taken: &BTreeSet<Member>,
    ) -> Result<Vec<Member>, StoreError> {
        let mut connection = self.lock();
        let chosen = (|| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let (next, own) = places(&transaction, family, limit)?;
            let lent = lent(&transaction, family)?;
            let first = next.clamp(own.start, own.end);
            let recorded: BTreeSet<Member> = transaction
                .prepare_cached("SELECT member FROM vm WHERE family = ?1 AND state <> 'warm'")?
                .query_map([family.as_str()], |row| Ok(Member(row.get(0)?)))?
                .collect::<Result<_, _>>()?;
            let free = (first..own.end).chain(own.start..first).map(Member);
            let free = free.filter(|it| {
                !recorded.contains(it)
                    && !taken.contains(it)
                    && !lent.iter().any(|(_, places)| places.contains(&it.0))
            });
            let chosen: Vec<_> = free.take(count.into()).collect();
            if chosen.len() < usize::from(count) {
                return Ok(None);
            }
            if let Some(last) = chosen.last() {
                transaction.execute(
                    "UPDATE family SET next_member = ?2 WHERE id = ?1",
                    params![family.as_str(), last.0.saturating_add(1)],
                )?;
            }
            transaction.commit()?;
            Ok(Some(chosen))
        })();
        let exhausted = StoreError::Exhausted {
            what: "place in the family",
            limit: limit.into(),
        };
        chosen.map_err(self.failed())?.ok_or(exhausted)
    }

    /// Lends a peer places of a family: those it was lent before, or a block that
    /// nobody has any of, no more than `most` and a quarter of what there is here.
    pub fn lend_members(
        &self,
        family: FamilyId,
        peer: &str,
        most: u16,
        limit: u16,
    ) -> Result<Range<u16>, StoreError> {
        let mut connection = self.lock();
        let chosen = (|| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let lent = lent(&transaction, family)?;
            if let Some((_, places)) = lent.iter().find(|(to, _)| to == peer) {
                return Ok(Some(places.clone()));
            }
            let (_, own) = places(&transaction, family, limit)?;
            let size = most.min((own.end - own.start) / 4);
            let in_use: BTreeSet<u16> = transaction
                .prepare_cached("SELECT member FROM vm WHERE family = ?1 AND state <> 'warm'")?
                .query_map([family.as_str()], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            // The first ones stay here.
            let blocks = own.start.saturating_add(size)..own.end;
            let blocks = blocks
                .step_by(usize::from(size.max(1)))
                .filter_map(|start| {
                    let end = start.checked_add(size)?;
                    (size > 0 && end <= own.end).then_some(start..end)
                });
            let free = |places: &Range<u16>| {
                in_use.range(places.clone()).next().is_none()
                    && lent
                        .iter()
                        .all(|(_, other)| places.end <= other.start || other.end <= places.start)
            };
            let Some(chosen) = blocks.into_iter().find(free) else {
                return Ok(None);
            };
            transaction.execute(
                "INSERT INTO lent VALUES (?1, ?2, ?3, ?4)",
                params![
                    family.as_str(),
                    peer,
                    chosen.start,
                    chosen.end - chosen.start
                ],
            )?;
            transaction.commit()?;
            Ok(Some(chosen))
        })();
        let exhausted = StoreError::Exhausted {
            what: "block of places in the family",
            limit: limit.into(),
        };
        chosen.map_err(self.failed())?.ok_or(exhausted)
    }

    /// Lets a family of another host in, of which this one may give those places.
    /// One that is known keeps what it has.
    pub fn join_family(
        &self,
        family: FamilyRecord,
        own: Range<u16>,
        network: &NetworkPolicy,
    ) -> Result<(), StoreError> {
        let network = json(network).map_err(self.failed())?;
        let joined = self.lock().execute(
            "INSERT INTO family (id, number, next_member, max_clones, network, first_member, end_member)
             VALUES (?1, ?2, ?3, ?4, ?5, ?3, ?6) ON CONFLICT (id) DO NOTHING",
            params![
                family.id.as_str(),
                family.number.0,
                own.start,
                family.max_clones,
                network,
                own.end
            ],
        );
        match joined {
            Ok(_) => Ok(()),
            Err(rusqlite::Error::SqliteFailure(_, Some(text))) if text.contains("number") => {
                Err(StoreError::NumberTaken {
                    number: family.number.0,
                })
            }
            Err(source) => Err(self.failed()(source)),
        }
    }

    /// Records what a family may do on the network.
    pub fn put_network(&self, id: FamilyId, policy: &NetworkPolicy) -> Result<(), StoreError> {
        let policy = json(policy).map_err(self.failed())?;
        self.lock()
            .execute(
                "UPDATE family SET network = ?2 WHERE id = ?1",
                params![id.as_str(), policy],
            )
            .map_err(self.failed())?;
        Ok(())
    }

    /// Every family, and what it may do on the network.
    pub fn networks(&self) -> Result<Vec<(FamilyRecord, NetworkPolicy)>, StoreError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached(
                "SELECT id, number, max_clones, COALESCE(network, '{}') AS network FROM family",
            )
            .map_err(self.failed())?;
        let read = |row: &Row<'_>| {
            let family = FamilyRecord {
                id: parsed(row, "id")?,
                number: FamilyNo(row.get("number")?),
                max_clones: row.get("max_clones")?,
            };
            Ok((family, from_json(row, "network")?))
        };
        let rows = statement.query_map([], read).map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }

    /// A family.
    pub fn family(&self, id: FamilyId) -> Result<Option<FamilyRecord>, StoreError> {
        let found = self.lock().query_row(
            "SELECT id, number, max_clones FROM family WHERE id = ?1",
            [id.as_str()],
            |row| {
                Ok(FamilyRecord {
                    id: parsed(row, "id")?,
                    number: FamilyNo(row.get("number")?),
                    max_clones: row.get("max_clones")?,
                })
            },
        );
        found.optional().map_err(self.failed())
    }

    /// Removes a family that has no VM left, here or at a host that was lent places of
    /// it: who comes next must not be given theirs. Says whether it did.
    pub fn remove_family_if_empty(&self, id: FamilyId) -> Result<bool, StoreError> {
        let gone = self
            .lock()
            .execute(
                "DELETE FROM family WHERE id = ?1 AND id NOT IN
                     (SELECT family FROM vm UNION SELECT family FROM abroad
                      UNION SELECT family FROM family_host WHERE teller LIKE 'peer %')",
                [id.as_str()],
            )
            .map_err(self.failed())?;
        Ok(gone > 0)
    }

    /// Removes every family that has no VM left, and names them. Not while
    /// one may be being founded.
    pub fn remove_empty_families(&self) -> Result<Vec<FamilyId>, StoreError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached(
                "DELETE FROM family WHERE id NOT IN
                     (SELECT family FROM vm UNION SELECT family FROM abroad
                      UNION SELECT family FROM family_host WHERE teller LIKE 'peer %') RETURNING id",
            )
            .map_err(self.failed())?;
        let gone = statement
            .query_map([], |row| parsed(row, "id"))
            .map_err(self.failed())?;
        gone.collect::<Result<_, _>>().map_err(self.failed())
    }
}

/// The place of a family to try next, and those this host may give.
fn places(
    records: &Connection,
    family: FamilyId,
    limit: u16,
) -> rusqlite::Result<(u16, Range<u16>)> {
    records.query_row(
        "SELECT next_member, COALESCE(first_member, 0), COALESCE(end_member, ?2)
         FROM family WHERE id = ?1",
        params![family.as_str(), limit],
        |row| {
            let (first, end): (u16, u16) = (row.get(1)?, row.get(2)?);
            Ok((
                row.get(0)?,
                first.min(limit)..end.clamp(first, limit.max(first)),
            ))
        },
    )
}

/// Places of a family that other hosts give, and which.
fn lent(records: &Connection, family: FamilyId) -> rusqlite::Result<Vec<(String, Range<u16>)>> {
    records
        .prepare_cached("SELECT peer, first, places FROM lent WHERE family = ?1")?
        .query_map([family.as_str()], |row| {
            let (first, places): (u16, u16) = (row.get(1)?, row.get(2)?);
            Ok((row.get(0)?, first..first.saturating_add(places)))
        })?
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().expect("folder");
        let store = Store::open(&folder.path().join("db")).expect("store");
        (folder, store)
    }

    #[test]
    fn the_lowest_free_number_is_given() {
        let (_folder, store) = store();
        let numbers: Vec<_> = (0..3)
            .map(|_| {
                store
                    .found_family(FamilyId::random(), 9, None)
                    .expect("room")
                    .number
                    .0
            })
            .collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(store.remove_empty_families().expect("removed").len(), 3);
        assert_eq!(
            store
                .found_family(FamilyId::random(), 9, None)
                .expect("room")
                .number
                .0,
            0
        );
    }

    #[test]
    fn a_familys_limit_is_remembered() {
        let (_folder, store) = store();
        let founded = store.found_family(FamilyId::random(), 9, Some(3));
        let founded = founded.expect("room");
        assert_eq!(founded.max_clones, Some(3));
        assert_eq!(store.family(founded.id).expect("read"), Some(founded));
    }

    #[test]
    fn what_a_family_may_do_is_kept_and_nothing_unless_recorded() {
        let (_folder, store) = store();
        let [one, other] = [(); 2].map(|()| FamilyId::random());
        for family in [one, other] {
            store.found_family(family, 9, None).expect("room");
        }
        let policy = NetworkPolicy {
            publish: vec!["8080:80".parse().expect("a port")],
            rate: "10mbit".parse().ok(),
            ..NetworkPolicy::default()
        };
        store.put_network(one, &policy).expect("recorded");
        let mut kept = store.networks().expect("read");
        kept.sort_by_key(|(family, _)| family.number);
        let kept: Vec<_> = kept.into_iter().map(|(f, policy)| (f.id, policy)).collect();
        assert_eq!(kept, [(one, policy), (other, NetworkPolicy::default())]);
    }

    #[test]
    fn a_full_host_says_so() {
        let (_folder, store) = store();
        store
            .found_family(FamilyId::random(), 1, None)
            .expect("room");
        assert!(matches!(
            store.found_family(FamilyId::random(), 1, None),
            Err(StoreError::Exhausted { limit: 1, .. })
        ));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn no_place_that_is_taken_is_given_and_a_refusal_takes_none(
            asks in prop::collection::vec((0..9u16, any::<bool>()), 1..40),
        ) {
            let (_folder, store) = store();
            let family = FamilyId::random();
            store.found_family(family, 1, None).expect("room");
            let mut held = BTreeSet::new();
            for (ask, give_back) in asks {
                match store.take_members(family, ask, 30, &held) {
                    Ok(members) => {
                        prop_assert_eq!(members.len(), usize::from(ask));
                        prop_assert!(members.into_iter().all(|member| held.insert(member)));
                    }
                    Err(StoreError::Exhausted { .. }) => prop_assert!(held.len() + usize::from(ask) > 30),
                    Err(other) => panic!("{other}"),
                }
                if give_back {
                    held.pop_first();
                }
            }
            prop_assert!(held.last().is_none_or(|last| last.0 < 30));
        }
    }

    #[test]
    fn a_place_given_back_is_given_again_after_all_others() {
        let (_folder, store) = store();
        let family = FamilyId::random();
        store.found_family(family, 1, None).expect("room");
        let held = BTreeSet::from([Member(2)]);
        let take = || store.take_members(family, 1, 4, &held).expect("room");
        let given: Vec<_> = (0..5).flat_map(|_| take()).map(|it| it.0).collect();
        assert_eq!(given, [0, 1, 3, 0, 1]);
    }

    #[test]
    fn places_that_are_lent_are_given_by_one_host_alone() {
        let (_here, here) = store();
        let (_there, there) = store();
        let family = here
            .found_family(FamilyId::random(), 9, None)
            .expect("room");
        let nobody = BTreeSet::new();
        let lent = here.lend_members(family.id, "b", 8, 40).expect("room");
        assert_eq!(lent, 8..16);
        let again = here.lend_members(family.id, "b", 8, 40).expect("the same");
        assert_eq!(again, lent);
        assert_eq!(
            here.lend_members(family.id, "c", 99, 40).expect("room"),
            20..30
        );
        let mine = here.take_members(family.id, 22, 40, &nobody).expect("room");
        assert_eq!(mine.last(), Some(&Member(39)));
        here.take_members(family.id, 23, 40, &nobody)
            .expect_err("the others are lent");
        let policy = NetworkPolicy::default();
        there
            .join_family(family, lent.clone(), &policy)
            .expect("new");
        there.join_family(family, 0..1, &policy).expect("known");
        let theirs = there.take_members(family.id, 8, 40, &nobody).expect("room");
        assert!(theirs.iter().all(|member| lent.contains(&member.0)));
        there
            .take_members(family.id, 9, 40, &nobody)
            .expect_err("it has no more");
        // What it was lent it may lend in part.
        assert_eq!(
            there.lend_members(family.id, "d", 8, 40).expect("room"),
            10..12
        );
    }

    #[test]
    fn two_families_with_one_network_are_not_on_one_host() {
        let (_folder, store) = store();
        let first = store
            .found_family_from(7, FamilyId::random(), 9, None)
            .expect("room");
        assert_eq!(first.number, FamilyNo(7));
        let other = FamilyRecord {
            id: FamilyId::random(),
            ..first
        };
        let refused = store.join_family(other, 0..9, &NetworkPolicy::default());
        assert!(
            matches!(refused, Err(StoreError::NumberTaken { number: 7 })),
            "{refused:?}"
        );
        let next = store.found_family_from(7, FamilyId::random(), 8, None);
        assert_eq!(next.expect("room").number, FamilyNo(0));
    }
}
