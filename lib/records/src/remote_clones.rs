//! Clones on other hosts, as the hosts that sent them there record them.

use crate::{Records, RecordsError, row::parsed};
use forkyard_types::{FamilyId, ForkId};
use rusqlite::params;

impl Records {
    /// Records what a peer made, or is to make, of a fork. A family that has any
    /// is not empty.
    pub fn put_remote_clones(
        &self,
        (fork, peer): (ForkId, &str),
        family: FamilyId,
        entry: &str,
    ) -> Result<(), RecordsError> {
        let put = "INSERT INTO abroad VALUES (?1, ?2, ?3, ?4)
                   ON CONFLICT (fork, peer) DO UPDATE SET entry = ?4";
        self.lock()
            .execute(put, params![fork.as_str(), peer, family.as_str(), entry])
            .map_err(self.failed())?;
        Ok(())
    }

    /// Forgets it. No error if it is not recorded.
    pub fn remove_remote_clones(&self, (fork, peer): (ForkId, &str)) -> Result<(), RecordsError> {
        let remove = "DELETE FROM abroad WHERE fork = ?1 AND peer = ?2";
        self.lock()
            .execute(remove, params![fork.as_str(), peer])
            .map_err(self.failed())?;
        Ok(())
    }

    /// All remote clones: fork, peer, entry.
    pub fn remote_clones(&self) -> Result<Vec<(ForkId, String, String)>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT fork, peer, entry FROM abroad ORDER BY rowid")
            .map_err(self.failed())?;
        let rows = statement
            .query_map([], |row| {
                Ok((parsed(row, "fork")?, row.get("peer")?, row.get("entry")?))
            })
            .map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_whose_clones_are_all_remote_is_not_empty() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
        let (family, fork) = (FamilyId::random(), ForkId::random());
        store.found_family(family, 9, None).expect("room");
        store
            .put_remote_clones((fork, "b"), family, "sent")
            .expect("new");
        store
            .put_remote_clones((fork, "b"), family, "made")
            .expect("changed");
        let kept = store.remote_clones().expect("read");
        assert_eq!(kept, [(fork, "b".to_owned(), "made".to_owned())]);
        assert_eq!(store.remove_empty_families().expect("looked"), []);
        assert!(!store.remove_family_if_empty(family).expect("looked"));
        for _ in 0..2 {
            store.remove_remote_clones((fork, "b")).expect("removed");
        }
        assert!(store.remove_family_if_empty(family).expect("looked"));
    }
}
