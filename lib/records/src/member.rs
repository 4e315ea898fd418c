//! Places in families, and the hosts that give them.
//!
//! ```text
//! all places of a family, on the host where it was founded
//!      \-- a block, lent to another host: | it gives these | the lender promises these |
//!                                            \-- a part of those, lent on
//! ```

use crate::{Records, RecordsError};
use forkyard_types::{FamilyId, Member};
use rusqlite::{Connection, TransactionBehavior, params};
use std::{collections::BTreeSet, ops::Range};

impl Records {
    /// Takes the next `count` places of a family, round and round: never one that
    /// a recorded VM has, or that is `taken` in other ways, and one that was given
    /// back as late as can be.
    pub fn take_members(
        &self,
        family: FamilyId,
        count: u16,
        limit: u16,
        taken: &BTreeSet<Member>,
    ) -> Result<Vec<Member>, RecordsError> {
        let mut connection = self.lock();
        let chosen = (|| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let (next, own) = places(&transaction, family, limit)?;
            let own = own.given();
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
        let exhausted = RecordsError::Exhausted {
            what: "place in the family",
            limit: limit.into(),
        };
        chosen.map_err(self.failed())?.ok_or(exhausted)
    }

    /// Lends a peer places of a family: those it was lent before, or a block that
    /// no host has any of, no more than `most` and a quarter of what there is here.
    pub fn lend_members(
        &self,
        family: FamilyId,
        peer: &str,
        most: u16,
        limit: u16,
    ) -> Result<Range<u16>, RecordsError> {
        let mut connection = self.lock();
        let chosen = (|| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let lent = lent(&transaction, family)?;
            if let Some((_, places)) = lent.iter().find(|(to, _)| to == peer) {
                return Ok(Some(places.clone()));
            }
            let own = places(&transaction, family, limit)?.1.given();
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
        let exhausted = RecordsError::Exhausted {
            what: "block of places in the family",
            limit: limit.into(),
        };
        chosen.map_err(self.failed())?.ok_or(exhausted)
    }

    /// Chooses places for clones that a peer will make, of those it was lent: `count`
    /// of them, or fewer, that are not `taken`. What was lent is lent to be given by
    /// two: the lower half by the borrower, as it likes, the upper half by the
    /// lender, which can so say which they are before the borrower knows of anything.
    pub fn promise_members(lent: Range<u16>, count: u16, taken: &BTreeSet<Member>) -> Vec<Member> {
        let upper = middle(&lent)..lent.end;
        let free = upper.map(Member).filter(|it| !taken.contains(it));
        free.take(count.into()).collect()
    }

    /// Checks that places of a family that its lender has promised can be given now:
    /// they are among those it promises, and no recorded VM has them, nor are they
    /// `taken` in other ways.
    pub fn are_free(
        &self,
        family: FamilyId,
        members: &[Member],
        limit: u16,
        taken: &BTreeSet<Member>,
    ) -> Result<bool, RecordsError> {
        let connection = self.lock();
        let checked = (|| {
            let (_, own) = places(&connection, family, limit)?;
            let recorded: BTreeSet<Member> = connection
                .prepare_cached("SELECT member FROM vm WHERE family = ?1 AND state <> 'warm'")?
                .query_map([family.as_str()], |row| Ok(Member(row.get(0)?)))?
                .collect::<Result<_, _>>()?;
            Ok(members.iter().all(|it| {
                own.promised().contains(&it.0) && !recorded.contains(it) && !taken.contains(it)
            }))
        })();
        checked.map_err(self.failed())
    }
}

/// Places of a family that are a host's.
struct Own {
    all: Range<u16>,
    /// True if they were lent by another.
    borrowed: bool,
}

impl Own {
    /// Places it may give to any host.
    fn given(&self) -> Range<u16> {
        match self.borrowed {
            true => self.all.start..middle(&self.all),
            false => self.all.clone(),
        }
    }

    /// Those that the lender promises.
    fn promised(&self) -> Range<u16> {
        self.given().end..self.all.end
    }
}

fn middle(places: &Range<u16>) -> u16 {
    places.start + (places.end.saturating_sub(places.start)).div_ceil(2)
}

/// The place of a family to try next, and those this host may give.
fn places(records: &Connection, family: FamilyId, limit: u16) -> rusqlite::Result<(u16, Own)> {
    records.query_row(
        "SELECT next_member, COALESCE(first_member, 0), COALESCE(end_member, ?2),
             first_member IS NOT NULL
         FROM family WHERE id = ?1",
        params![family.as_str(), limit],
        |row| {
            let (first, end): (u16, u16) = (row.get(1)?, row.get(2)?);
            let own = Own {
                all: first.min(limit)..end.clamp(first, limit.max(first)),
                borrowed: row.get(3)?,
            };
            Ok((row.get(0)?, own))
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
    use forkyard_types::NetworkPolicy;
    use proptest::prelude::*;

    fn store() -> (tempfile::TempDir, Records) {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Records::open(&folder.path().join("records")).expect("new");
        (folder, store)
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
                    Err(RecordsError::Exhausted { .. }) => prop_assert!(held.len() + usize::from(ask) > 30),
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
        let theirs = there.take_members(family.id, 4, 40, &nobody).expect("room");
        assert!(theirs.iter().all(|member| lent.contains(&member.0)));
        there
            .take_members(family.id, 5, 40, &nobody)
            .expect_err("it has no more");
        // What it was lent it may lend in part.
        assert_eq!(
            there.lend_members(family.id, "d", 8, 40).expect("room"),
            9..10
        );
    }

    #[test]
    fn what_a_lender_promises_the_borrower_gives_to_nobody_else() {
        let (_here, here) = store();
        let (_there, there) = store();
        let family = here
            .found_family(FamilyId::random(), 9, None)
            .expect("room");
        let lent = here.lend_members(family.id, "b", 8, 40).expect("room");
        let nobody = BTreeSet::new();
        let promised = Records::promise_members(lent.clone(), 3, &nobody);
        assert_eq!(promised, [12, 13, 14].map(Member));
        let taken = promised.iter().copied().collect();
        let more = Records::promise_members(lent.clone(), 3, &taken);
        assert_eq!(more, [Member(15)], "fewer, where there are no more");
        let policy = NetworkPolicy::default();
        there.join_family(family, lent, &policy).expect("new");
        let theirs = there.take_members(family.id, 4, 40, &nobody).expect("room");
        assert!(theirs.iter().all(|member| !promised.contains(member)));
        let free = |members: &[Member], taken| {
            let free = there.are_free(family.id, members, 40, taken);
            free.expect("read")
        };
        assert!(free(&promised, &nobody));
        assert!(!free(&promised, &taken), "promised to somebody else");
        assert!(!free(&theirs, &nobody), "its own to give");
        assert!(!free(&[Member(16)], &nobody), "not lent");
    }
}
