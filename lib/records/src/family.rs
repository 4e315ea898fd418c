//! Families, and the numbers they give.

use crate::{
    Records, RecordsError,
    row::{from_json, json, parsed},
};
use forkyard_types::{FamilyId, NetworkPolicy};
use rusqlite::{OptionalExtension, Row, TransactionBehavior, params};
use std::{collections::BTreeSet, ops::Range};

/// Number of a family on its host: its network follows from it. Unique among
/// the families that exist, and given again when one has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FamilyNo(pub u16);

/// A family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyRecord {
    /// Id of the family.
    pub id: FamilyId,
    /// Number of the family.
    pub number: FamilyNo,
    /// Most clones that may be alive at once, if there is a limit.
    pub max_clones: Option<u16>,
}

impl Records {
    /// Founds a family under the lowest free number below `limit`.
    pub fn found_family(
        &self,
        id: FamilyId,
        limit: u16,
        max_clones: Option<u16>,
    ) -> Result<FamilyRecord, RecordsError> {
        self.found_family_from(0, id, limit, max_clones)
    }

    /// Founds a family under the first free number from `from` on, round and
    /// round.
    pub fn found_family_from(
        &self,
        from: u16,
        id: FamilyId,
        limit: u16,
        max_clones: Option<u16>,
    ) -> Result<FamilyRecord, RecordsError> {
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
        let exhausted = RecordsError::Exhausted {
            what: "family number",
            limit: limit.into(),
        };
        found.map_err(self.failed())?.ok_or(exhausted)
    }

    /// Lets a family of another host in, of which this one may give those places.
    /// One that is known keeps what it has.
    pub fn join_family(
        &self,
        family: FamilyRecord,
        own: Range<u16>,
        network: &NetworkPolicy,
    ) -> Result<(), RecordsError> {
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
                Err(RecordsError::NumberTaken {
                    number: family.number.0,
                })
            }
            Err(source) => Err(self.failed()(source)),
        }
    }

    /// Bounds the clones of a family, or no more.
    pub fn bound_family(&self, id: FamilyId, max_clones: Option<u16>) -> Result<(), RecordsError> {
        self.lock()
            .execute(
                "UPDATE family SET max_clones = ?2 WHERE id = ?1",
                params![id.as_str(), max_clones],
            )
            .map_err(self.failed())?;
        Ok(())
    }

    /// Records what a family may do on the network.
    pub fn put_network(&self, id: FamilyId, policy: &NetworkPolicy) -> Result<(), RecordsError> {
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
    pub fn networks(&self) -> Result<Vec<(FamilyRecord, NetworkPolicy)>, RecordsError> {
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
    pub fn family(&self, id: FamilyId) -> Result<Option<FamilyRecord>, RecordsError> {
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
    /// it: the next host must not be given theirs. Says whether it did.
    pub fn remove_family_if_empty(&self, id: FamilyId) -> Result<bool, RecordsError> {
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
    pub fn remove_empty_families(&self) -> Result<Vec<FamilyId>, RecordsError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Records) {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
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
            Err(RecordsError::Exhausted { limit: 1, .. })
        ));
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
            matches!(refused, Err(RecordsError::NumberTaken { number: 7 })),
            "{refused:?}"
        );
        let next = store.found_family_from(7, FamilyId::random(), 8, None);
        assert_eq!(next.expect("room").number, FamilyNo(0));
    }
}
