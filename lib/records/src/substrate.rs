//! Substrates, as the host writes them down.

use crate::{
    Records, RecordsError,
    row::{optional, parsed},
};
use forkyard_types::{ImageId, VmName};
use rusqlite::{Row, params};

/// A substrate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubstrateRecord {
    /// Name, unique.
    pub name: VmName,
    /// Page image of its memory; none before it is kept.
    pub memory_image: Option<ImageId>,
    /// Page image of its disk; none before it is kept.
    pub disk_image: Option<ImageId>,
    /// The rest.
    pub entry: String,
}

fn read(row: &Row<'_>) -> rusqlite::Result<SubstrateRecord> {
    Ok(SubstrateRecord {
        name: parsed(row, "name")?,
        memory_image: optional(row, "memory_image")?,
        disk_image: optional(row, "disk_image")?,
        entry: row.get("entry")?,
    })
}

impl Records {
    /// Records a new substrate.
    pub fn add_substrate(&self, substrate: &SubstrateRecord) -> Result<(), RecordsError> {
        let added = self.lock().execute(
            "INSERT INTO substrate VALUES (?1, ?2, ?3, ?4)",
            params![
                substrate.name.as_str(),
                substrate.memory_image.map(|image| image.to_string()),
                substrate.disk_image.map(|image| image.to_string()),
                substrate.entry,
            ],
        );
        match added {
            Ok(_) => Ok(()),
            Err(rusqlite::Error::SqliteFailure(_, Some(text)))
                if text.contains("substrate.name") =>
            {
                Err(RecordsError::SubstrateNameTaken {
                    name: substrate.name.to_string(),
                })
            }
            Err(source) => Err(self.failed()(source)),
        }
    }

    /// Records the present state of a substrate that is known.
    pub fn update_substrate(&self, substrate: &SubstrateRecord) -> Result<(), RecordsError> {
        self.lock()
            .execute(
                "UPDATE substrate SET memory_image = ?2, disk_image = ?3, entry = ?4 WHERE name = ?1",
                params![
                    substrate.name.as_str(),
                    substrate.memory_image.map(|image| image.to_string()),
                    substrate.disk_image.map(|image| image.to_string()),
                    substrate.entry,
                ],
            )
            .map_err(self.failed())?;
        Ok(())
    }

    /// Forgets a substrate. No error if it is not recorded.
    pub fn remove_substrate(&self, name: &VmName) -> Result<(), RecordsError> {
        self.lock()
            .execute("DELETE FROM substrate WHERE name = ?1", [name.as_str()])
            .map_err(self.failed())?;
        Ok(())
    }

    /// Every substrate, in the order in which they were recorded.
    pub fn substrates(&self) -> Result<Vec<SubstrateRecord>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT * FROM substrate ORDER BY rowid")
            .map_err(self.failed())?;
        let rows = statement.query_map([], read).map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }

    /// Tells whether a substrate is kept in this page image.
    pub fn is_of_substrate(&self, image: ImageId) -> Result<bool, RecordsError> {
        self.lock()
            .query_row(
                "SELECT EXISTS (SELECT 1 FROM substrate WHERE memory_image = ?1 OR disk_image = ?1)",
                [image.to_string()],
                |row| row.get(0),
            )
            .map_err(self.failed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_substrate_is_read_as_it_was_written_and_its_images_are_its_own() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
        let mut record = SubstrateRecord {
            name: "lamp".parse().expect("a name"),
            memory_image: None,
            disk_image: None,
            entry: "begun".into(),
        };
        store.add_substrate(&record).expect("new");
        assert!(matches!(
            store.add_substrate(&record),
            Err(RecordsError::SubstrateNameTaken { name }) if name == "lamp"
        ));
        let [memory, disk] = [(); 2].map(|()| ImageId::random());
        record.memory_image = Some(memory);
        record.disk_image = Some(disk);
        record.entry = "kept".into();
        store.update_substrate(&record).expect("changed");
        assert_eq!(store.substrates().expect("read"), [record.clone()]);
        for image in [memory, disk] {
            assert!(store.is_of_substrate(image).expect("looked"));
        }
        assert!(!store.is_of_substrate(ImageId::random()).expect("looked"));
        for _ in 0..2 {
            store.remove_substrate(&record.name).expect("removed");
        }
        assert!(!store.is_of_substrate(memory).expect("looked"));
    }
}
