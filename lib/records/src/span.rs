//! Families that are on several hosts: what this host has heard of the others.

use crate::{
    Records, RecordsError,
    row::{optional, parsed},
};
use forkyard_types::{FamilyHost, FamilyId, Member};
use rusqlite::{OptionalExtension, TransactionBehavior, params};
use std::{net::Ipv4Addr, ops::Range};

/// Source of the knowledge of a host of a family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Teller {
    /// The host that let this one into the family.
    Lender,
    /// One that this one has lent places, by its name here.
    Borrower(String),
    /// One that had been lent places, and is no more: what it said of others stands.
    Gone,
}

/// This host's place in the network of a family that is on several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyTunnel {
    /// End of the tunnels.
    pub own: Ipv4Addr,
    /// That of the host that let it in; none if the family was founded here.
    pub lender: Option<Ipv4Addr>,
}

/// Places that were lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loan {
    /// Of which family.
    pub family: FamilyId,
    /// Receiver, by its name here.
    pub peer: String,
    /// Places.
    pub places: Range<u16>,
}

impl Teller {
    const LENDER: &str = "lender";
    const GONE: &str = "gone";
    const PEER: &str = "peer ";

    fn word(&self) -> String {
        match self {
            Self::Lender => Self::LENDER.to_owned(),
            Self::Borrower(peer) => format!("{}{peer}", Self::PEER),
            Self::Gone => Self::GONE.to_owned(),
        }
    }

    fn of(word: &str) -> Self {
        match word.strip_prefix(Self::PEER) {
            Some(peer) => Self::Borrower(peer.to_owned()),
            None if word == Self::GONE => Self::Gone,
            None => Self::Lender,
        }
    }
}

impl Records {
    /// Records this host's place in a family's network, unless that is known; and
    /// says what it is. None if the family is not known.
    pub fn place_tunnel(
        &self,
        family: FamilyId,
        tunnel: FamilyTunnel,
    ) -> Result<Option<FamilyTunnel>, RecordsError> {
        self.lock()
            .execute(
                "UPDATE family SET tunnel = ?2, lender = ?3 WHERE id = ?1 AND tunnel IS NULL",
                params![
                    family.as_str(),
                    tunnel.own.to_string(),
                    tunnel.lender.map(|it| it.to_string())
                ],
            )
            .map_err(self.failed())?;
        self.tunnel(family)
    }

    /// This host's place in a family's network, if that is on several hosts.
    pub fn tunnel(&self, family: FamilyId) -> Result<Option<FamilyTunnel>, RecordsError> {
        let found = self.lock().query_row(
            "SELECT tunnel, lender FROM family WHERE id = ?1",
            [family.as_str()],
            |row| {
                let lender = optional(row, "lender")?;
                let own: Option<Ipv4Addr> = optional(row, "tunnel")?;
                Ok(own.map(|own| FamilyTunnel { own, lender }))
            },
        );
        Ok(found.optional().map_err(self.failed())?.flatten())
    }

    /// Places of a family that this host gives, those it has lent among them, of
    /// `limit` that there are.
    pub fn own_places(&self, family: FamilyId, limit: u16) -> Result<Range<u16>, RecordsError> {
        let found = self.lock().query_row(
            "SELECT COALESCE(first_member, 0), COALESCE(end_member, ?2) FROM family WHERE id = ?1",
            params![family.as_str(), limit],
            |row| Ok(row.get(0)?..row.get(1)?),
        );
        let found = found.optional().map_err(self.failed())?;
        Ok(found.unwrap_or_default())
    }

    /// Records what a host says of a family's hosts, in place of what they said
    /// before, and of what one that is gone said of the same places. Whether anything
    /// has changed. A family that a borrower has hosts of is not empty.
    pub fn put_family_hosts(
        &self,
        family: FamilyId,
        teller: &Teller,
        hosts: &[FamilyHost],
    ) -> Result<bool, RecordsError> {
        let mut hosts = hosts.to_vec();
        hosts.sort_unstable();
        hosts.dedup();
        let known = self.family_hosts(family)?.into_iter();
        let known = known.filter(|(by, _)| by == teller).map(|(_, host)| host);
        if known.eq(hosts.iter().copied()) {
            return Ok(false);
        }
        let mut connection = self.lock();
        let put = (|| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute(
                "DELETE FROM family_host WHERE family = ?1 AND teller = ?2",
                params![family.as_str(), teller.word()],
            )?;
            for host in &hosts {
                let places = host.range();
                transaction.execute(
                    "DELETE FROM family_host WHERE family = ?1 AND teller = ?2
                     AND first < ?4 AND first + places > ?3",
                    params![family.as_str(), Teller::GONE, places.start, places.end],
                )?;
                transaction.execute(
                    "INSERT INTO family_host VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![
                        family.as_str(),
                        teller.word(),
                        host.tunnel.to_string(),
                        host.first.0,
                        host.places
                    ],
                )?;
            }
            transaction.commit()
        })();
        put.map_err(self.failed())?;
        Ok(true)
    }

    /// Lists the statements about a family's hosts, with their sources, in
    /// order.
    pub fn family_hosts(
        &self,
        family: FamilyId,
    ) -> Result<Vec<(Teller, FamilyHost)>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached(
                "SELECT teller, tunnel, first, places FROM family_host WHERE family = ?1",
            )
            .map_err(self.failed())?;
        let rows = statement
            .query_map([family.as_str()], |row| {
                let host = FamilyHost {
                    tunnel: parsed(row, "tunnel")?,
                    first: Member(row.get("first")?),
                    places: row.get("places")?,
                };
                let teller: String = row.get("teller")?;
                Ok((Teller::of(&teller), host))
            })
            .map_err(self.failed())?;
        let mut hosts: Vec<_> = rows.collect::<Result<_, _>>().map_err(self.failed())?;
        hosts.sort_unstable();
        Ok(hosts)
    }

    /// Forgets a host that a family's places were lent to, for it is no more; not
    /// those that it lent some of them. Whether anything has changed.
    pub fn forget_borrower(&self, family: FamilyId, peer: &str) -> Result<bool, RecordsError> {
        let mut connection = self.lock();
        let teller = Teller::Borrower(peer.to_owned()).word();
        let forgotten = (|| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // Itself it said all of what it was lent of.
            let itself = transaction.execute(
                "DELETE FROM family_host WHERE family = ?1 AND teller = ?2 AND (first, places) IN
                     (SELECT first, places FROM lent WHERE family = ?1 AND peer = ?3)",
                params![family.as_str(), teller, peer],
            )?;
            let others = transaction.execute(
                "UPDATE family_host SET teller = ?3 WHERE family = ?1 AND teller = ?2",
                params![family.as_str(), teller, Teller::GONE],
            )?;
            transaction.commit()?;
            Ok(itself + others > 0)
        })();
        forgotten.map_err(self.failed())
    }

    /// All places that were lent.
    pub fn loans(&self) -> Result<Vec<Loan>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT family, peer, first, places FROM lent")
            .map_err(self.failed())?;
        let rows = statement
            .query_map([], |row| {
                let (first, places): (u16, u16) = (row.get("first")?, row.get("places")?);
                Ok(Loan {
                    family: parsed(row, "family")?,
                    peer: row.get("peer")?,
                    places: first..first.saturating_add(places),
                })
            })
            .map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8, first: u16) -> FamilyHost {
        FamilyHost {
            tunnel: Ipv4Addr::new(192, 0, 2, last),
            first: Member(first),
            places: 8,
        }
    }

    #[test]
    fn what_is_said_anew_replaces_what_the_same_one_said_and_ends_with_the_family() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("db");
        let store = Records::open(&path).expect("store");
        let family = FamilyId::random();
        store.found_family(family, 9, None).expect("room");
        assert_eq!(store.tunnel(family).expect("read"), None);
        let tunnel = FamilyTunnel {
            own: Ipv4Addr::new(192, 0, 2, 1),
            lender: None,
        };
        let placed = store.place_tunnel(family, tunnel).expect("recorded");
        assert_eq!(placed, Some(tunnel));
        let later = FamilyTunnel {
            own: Ipv4Addr::new(192, 0, 2, 9),
            lender: Some(tunnel.own),
        };
        let placed = store.place_tunnel(family, later).expect("looked");
        assert_eq!(placed, Some(tunnel), "the first one stands");
        let (b, lender) = (Teller::Borrower("b".into()), Teller::Lender);
        let put = |teller, hosts: &[FamilyHost]| {
            let put = store.put_family_hosts(family, teller, hosts);
            put.expect("recorded")
        };
        assert!(put(&b, &[host(3, 16), host(2, 8)]));
        assert!(!put(&b, &[host(2, 8), host(3, 16)]), "nothing new");
        assert!(put(&lender, &[host(4, 24)]));
        assert!(put(&b, &[host(2, 8)]));
        drop(store);
        let store = Records::open(&path).expect("store");
        let told = store.family_hosts(family).expect("read");
        assert_eq!(told, [(lender, host(4, 24)), (b, host(2, 8))]);
        let b = Teller::Borrower("b".into());
        assert!(store.put_family_hosts(family, &b, &[]).expect("recorded"));
        assert!(store.remove_family_if_empty(family).expect("removed"));
        assert_eq!(store.family_hosts(family).expect("read"), []);
        assert_eq!(store.place_tunnel(family, later).expect("looked"), None);
    }

    #[test]
    fn a_family_lives_as_long_as_a_borrower_has_some_of_it_and_outlives_one_that_is_gone() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
        let family = FamilyId::random();
        store.found_family(family, 9, None).expect("room");
        let places = store.lend_members(family, "b", 8, 40).expect("room");
        assert_eq!(places, 8..16);
        let (b, c) = (Teller::Borrower("b".into()), Teller::Borrower("c".into()));
        let lent_on = FamilyHost {
            places: 2,
            ..host(3, 10)
        };
        let put = |teller, hosts: &[FamilyHost]| {
            let put = store.put_family_hosts(family, teller, hosts);
            assert!(put.expect("recorded"));
        };
        put(&Teller::Lender, &[host(9, 30)]);
        put(&b, &[host(2, 8), lent_on]);
        assert!(!store.remove_family_if_empty(family).expect("looked"));
        assert_eq!(store.remove_empty_families().expect("looked"), []);
        assert!(store.forget_borrower(family, "b").expect("forgotten"));
        assert!(!store.forget_borrower(family, "b").expect("nothing is left"));
        let told = store.family_hosts(family).expect("read");
        let lender = (Teller::Lender, host(9, 30));
        assert_eq!(told, [lender.clone(), (Teller::Gone, lent_on)]);
        // A host that is heard now knows better than one that is gone.
        put(&c, &[host(4, 11)]);
        let told = store.family_hosts(family).expect("read");
        assert_eq!(told, [lender, (c.clone(), host(4, 11))]);
        put(&c, &[]);
        assert!(store.remove_family_if_empty(family).expect("looked"));
    }

    #[test]
    fn what_was_lent_is_known_and_what_is_given_here() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
        let family = FamilyId::random();
        store.found_family(family, 9, None).expect("room");
        assert_eq!(store.own_places(family, 40).expect("read"), 0..40);
        let places = store.lend_members(family, "b", 8, 40).expect("room");
        let loan = Loan {
            family,
            peer: "b".into(),
            places,
        };
        assert_eq!(store.loans().expect("read"), [loan]);
    }
}
