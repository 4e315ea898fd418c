//! Records of what is kept ready of substrates. They go with the substrate's own record.

use crate::{Records, RecordsError, row::parsed};
use forkyard_types::VmName;
use rusqlite::params;

impl Records {
    /// Records what is kept ready of a substrate that is recorded.
    pub fn put_standby(&self, substrate: &VmName, entry: &str) -> Result<(), RecordsError> {
        self.lock()
            .execute(
                "INSERT INTO standby VALUES (?1, ?2) ON CONFLICT (substrate) DO UPDATE SET entry = ?2",
                params![substrate.as_str(), entry],
            )
            .map_err(self.failed())?;
        Ok(())
    }

    /// Forgets it. No error if it is not recorded.
    pub fn remove_standby(&self, substrate: &VmName) -> Result<(), RecordsError> {
        self.lock()
            .execute(
                "DELETE FROM standby WHERE substrate = ?1",
                [substrate.as_str()],
            )
            .map_err(self.failed())?;
        Ok(())
    }

    /// Lists what is kept ready of all substrates.
    pub fn standbys(&self) -> Result<Vec<(VmName, String)>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT * FROM standby")
            .map_err(self.failed())?;
        let read = |row: &rusqlite::Row<'_>| Ok((parsed(row, "substrate")?, row.get("entry")?));
        let rows = statement.query_map([], read).map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Records, SubstrateRecord};

    #[test]
    fn what_is_kept_ready_goes_with_its_substrate() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
        let record = SubstrateRecord {
            name: "lamp".parse().expect("a name"),
            memory_image: None,
            disk_image: None,
            entry: "kept".into(),
        };
        store
            .put_standby(&record.name, "2")
            .expect_err("of no substrate");
        store.add_substrate(&record).expect("new");
        for entry in ["2", "3"] {
            store.put_standby(&record.name, entry).expect("recorded");
        }
        // A change of the substrate is none of it.
        store.update_substrate(&record).expect("changed");
        let known = store.standbys().expect("read");
        assert_eq!(known, [(record.name.clone(), "3".to_owned())]);
        store.remove_substrate(&record.name).expect("removed");
        assert!(store.standbys().expect("read").is_empty());
    }
}
