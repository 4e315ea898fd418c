//! Volumes that are at home on another host, of which some is here.

use crate::{
    Records, RecordsError,
    row::{optional, parsed},
};
use forkyard_types::{ForkId, VmName};
use rusqlite::{Connection, params};

/// Copy here of another host's volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeCopy {
    /// Volume.
    pub volume: VmName,
    /// Identity of what comes, if it is known.
    pub id: Option<String>,
    /// Host that it is at, as it is called here.
    pub at: String,
    /// The migration that brings it here, if one does.
    pub arriving: Option<ForkId>,
    /// Nothing of it was here before that; with no migration, it is a mirror that is held for
    /// another host. A copy of a volume that was at home here is none, even if it was promoted once.
    pub is_new: bool,
}

impl Records {
    /// Records a copy, or what becomes of it. It survives a power cut.
    pub fn put_copy(&self, copy: &VolumeCopy) -> Result<(), RecordsError> {
        put(&self.lock(), copy).map_err(self.failed())?;
        self.flush()
    }

    /// Records that a volume is at home here, or not here at all.
    pub fn remove_copy(&self, volume: &VmName) -> Result<(), RecordsError> {
        self.lock()
            .execute(
                "DELETE FROM volume_copy WHERE volume = ?1",
                [volume.as_str()],
            )
            .map_err(self.failed())?;
        Ok(())
    }

    /// All of them.
    pub fn copies(&self) -> Result<Vec<VolumeCopy>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT volume, home, arriving, is_new, id FROM volume_copy")
            .map_err(self.failed())?;
        let rows = statement
            .query_map([], |row| {
                Ok(VolumeCopy {
                    volume: parsed(row, "volume")?,
                    id: row.get("id")?,
                    at: row.get("home")?,
                    arriving: optional(row, "arriving")?,
                    is_new: row.get("is_new")?,
                })
            })
            .map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }
}

pub(crate) fn put(connection: &Connection, copy: &VolumeCopy) -> rusqlite::Result<()> {
    connection
        .execute(
            "INSERT INTO volume_copy VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (volume) DO UPDATE SET home = ?2, arriving = ?3, is_new = ?4, id = ?5",
            params![
                copy.volume.as_str(),
                copy.at,
                copy.arriving.as_ref().map(ForkId::as_str),
                copy.is_new,
                copy.id
            ],
        )
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_copy_is_known_to_the_next_daemon() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
        let arriving = VolumeCopy {
            volume: "d".parse().expect("a name"),
            id: Some("7f".into()),
            at: "b".into(),
            arriving: Some(ForkId::random()),
            is_new: true,
        };
        store.put_copy(&arriving).expect("recorded");
        assert_eq!(
            store.copies().expect("read"),
            std::slice::from_ref(&arriving)
        );
        let copy = VolumeCopy {
            at: "c".into(),
            arriving: None,
            is_new: false,
            ..arriving
        };
        store.put_copy(&copy).expect("recorded");
        drop(store);
        let store = Records::open(&folder.path().join("db")).expect("again");
        assert_eq!(store.copies().expect("read"), std::slice::from_ref(&copy));
        store.remove_copy(&copy.volume).expect("removed");
        assert_eq!(store.copies().expect("read"), []);
    }
}
