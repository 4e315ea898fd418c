//! Terms in which volumes are at home at hosts, and moves of volumes that are not settled.
//!
//! | record | says |
//! |---|---|
//! | term | latest term of a volume that this host knows |
//! | leaving | another host was told to have the volume: it may have it, and nothing opens it here |
//! | landing | the authority was asked to have the volume here: it may be, and nothing opens it yet |
//! | landed | the volume came by this move, whatever became of it since |

use crate::{
    Records, RecordsError, VolumeCopy,
    row::{damaged_number, parsed},
};
use forkyard_types::{ForkId, Term, VmName};
use rusqlite::{Connection, OptionalExtension, Row, params};

/// Latest term of a volume that is known here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownTerm {
    /// Volume.
    pub volume: VmName,
    /// Identity of the volume.
    pub id: String,
    /// Term.
    pub term: Term,
}

/// Move of a volume that is not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeMove {
    /// Volume.
    pub volume: VmName,
    /// Identity of the volume.
    pub id: String,
    /// The other host, as it is called here.
    pub peer: String,
    /// The move.
    pub migration: ForkId,
    /// Term of the host that it leaves.
    pub term: Term,
}

impl Records {
    /// Records a term. It survives a power cut.
    pub fn put_volume_term(&self, known: &KnownTerm) -> Result<(), RecordsError> {
        put_term(&self.lock(), known).map_err(self.failed())?;
        self.flush()
    }

    /// All terms.
    pub fn volume_terms(&self) -> Result<Vec<KnownTerm>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT volume, id, term FROM volume_term")
            .map_err(self.failed())?;
        let rows = statement.query_map([], |row| {
            Ok(KnownTerm {
                volume: parsed(row, "volume")?,
                id: row.get("id")?,
                term: term(row)?,
            })
        });
        let rows = rows.map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }

    /// Records that there is no such volume here any more.
    pub fn forget_volume(&self, volume: &VmName) -> Result<(), RecordsError> {
        let connection = self.lock();
        connection
            .execute(
                "DELETE FROM volume_term WHERE volume = ?1",
                [volume.as_str()],
            )
            .and_then(|_| remove_copy(&connection, volume))
            .map_err(self.failed())
    }

    /// Records that another host is about to be told to have a volume. It survives a power cut.
    pub fn put_volume_leaving(&self, leaving: &VolumeMove) -> Result<(), RecordsError> {
        put_move(&self.lock(), "volume_leaving", leaving).map_err(self.failed())?;
        self.flush()
    }

    /// Volumes that other hosts may have.
    pub fn volumes_leaving(&self) -> Result<Vec<VolumeMove>, RecordsError> {
        self.volume_moves("volume_leaving")
    }

    /// Records that the other host has it: what is here is a copy. At one stroke, and it survives a power
    /// cut.
    pub fn volume_left(&self, copy: &VolumeCopy, known: &KnownTerm) -> Result<(), RecordsError> {
        self.at_one_stroke(|stroke| {
            crate::copies::put(stroke, copy)?;
            put_term(stroke, known)?;
            remove_move(stroke, "volume_leaving", &known.volume)
        })
    }

    /// Records that the other host has it not: it is at home here in a later term. At one stroke, and it
    /// survives a power cut.
    pub fn volume_stays(&self, known: &KnownTerm) -> Result<(), RecordsError> {
        self.at_one_stroke(|stroke| {
            put_term(stroke, known)?;
            remove_move(stroke, "volume_leaving", &known.volume)
        })
    }

    /// Records that the authority is about to be asked to have a volume here. It survives a power cut.
    pub fn put_volume_landing(&self, landing: &VolumeMove) -> Result<(), RecordsError> {
        put_move(&self.lock(), "volume_landing", landing).map_err(self.failed())?;
        self.flush()
    }

    /// Volumes that the authority was asked to have here.
    pub fn volumes_landing(&self) -> Result<Vec<VolumeMove>, RecordsError> {
        self.volume_moves("volume_landing")
    }

    /// Records that the authority has it elsewhere.
    pub fn remove_volume_landing(&self, volume: &VmName) -> Result<(), RecordsError> {
        remove_move(&self.lock(), "volume_landing", volume).map_err(self.failed())
    }

    /// Records that a volume is at home here, by a move. At one stroke, and it survives a power cut.
    pub fn volume_landed(&self, migration: ForkId, known: &KnownTerm) -> Result<(), RecordsError> {
        self.at_one_stroke(|stroke| {
            remove_copy(stroke, &known.volume)?;
            put_term(stroke, known)?;
            remove_move(stroke, "volume_landing", &known.volume)?;
            stroke
                .execute(
                    "INSERT OR REPLACE INTO volume_landed VALUES (?1, ?2, ?3)",
                    params![
                        migration.as_str(),
                        known.volume.as_str(),
                        number(known.term)
                    ],
                )
                .map(drop)
        })
    }

    /// Term in which a volume came to be at home here by this move, if it did.
    pub fn landed_volume(&self, migration: ForkId) -> Result<Option<Term>, RecordsError> {
        self.lock()
            .query_row(
                "SELECT term FROM volume_landed WHERE migration = ?1",
                [migration.as_str()],
                term,
            )
            .optional()
            .map_err(self.failed())
    }

    fn volume_moves(&self, table: &'static str) -> Result<Vec<VolumeMove>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached(&format!(
                "SELECT volume, id, peer, migration, term FROM {table}"
            ))
            .map_err(self.failed())?;
        let rows = statement.query_map([], |row| {
            Ok(VolumeMove {
                volume: parsed(row, "volume")?,
                id: row.get("id")?,
                peer: row.get("peer")?,
                migration: parsed(row, "migration")?,
                term: term(row)?,
            })
        });
        let rows = rows.map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }

    fn at_one_stroke(
        &self,
        change: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<(), RecordsError> {
        let mut connection = self.lock();
        let changed = connection.transaction().and_then(|stroke| {
            change(&stroke)?;
            stroke.commit()
        });
        drop(connection);
        changed.map_err(self.failed())?;
        self.flush()
    }
}

fn put_term(connection: &Connection, known: &KnownTerm) -> rusqlite::Result<()> {
    connection
        .execute(
            "INSERT OR REPLACE INTO volume_term VALUES (?1, ?2, ?3)",
            params![known.volume.as_str(), known.id, number(known.term)],
        )
        .map(drop)
}

fn put_move(connection: &Connection, table: &str, it: &VolumeMove) -> rusqlite::Result<()> {
    connection
        .execute(
            &format!("INSERT OR REPLACE INTO {table} VALUES (?1, ?2, ?3, ?4, ?5)"),
            params![
                it.volume.as_str(),
                it.id,
                it.peer,
                it.migration.as_str(),
                number(it.term)
            ],
        )
        .map(drop)
}

fn remove_move(connection: &Connection, table: &str, volume: &VmName) -> rusqlite::Result<()> {
    connection
        .execute(
            &format!("DELETE FROM {table} WHERE volume = ?1"),
            [volume.as_str()],
        )
        .map(drop)
}

fn remove_copy(connection: &Connection, volume: &VmName) -> rusqlite::Result<()> {
    connection
        .execute(
            "DELETE FROM volume_copy WHERE volume = ?1",
            [volume.as_str()],
        )
        .map(drop)
}

/// Number that SQLite keeps: terms never come near its end.
fn number(term: Term) -> i64 {
    i64::try_from(term.0).unwrap_or(i64::MAX)
}

fn term(row: &Row<'_>) -> rusqlite::Result<Term> {
    let found: i64 = row.get("term")?;
    let term = u64::try_from(found).map_err(|error| damaged_number(row, "term", error))?;
    Ok(Term(term))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(term: u64) -> KnownTerm {
        KnownTerm {
            volume: "d".parse().expect("a name"),
            id: "7f".into(),
            term: Term(term),
        }
    }

    fn moving() -> VolumeMove {
        let KnownTerm { volume, id, term } = known(3);
        VolumeMove {
            volume,
            id,
            peer: "b".into(),
            migration: ForkId::random(),
            term,
        }
    }

    #[test]
    fn a_volume_that_leaves_is_a_copy_or_stays_in_a_later_term_and_the_next_daemon_knows() {
        let folder = tempfile::tempdir().expect("folder");
        let open = || Records::open(&folder.path().join("db")).expect("store");
        let store = open();
        let leaving = moving();
        store.put_volume_leaving(&leaving).expect("recorded");
        drop(store);
        let store = open();
        assert_eq!(
            store.volumes_leaving().expect("read"),
            std::slice::from_ref(&leaving)
        );
        store.volume_stays(&known(5)).expect("recorded");
        assert_eq!(store.volumes_leaving().expect("read"), []);
        assert_eq!(store.volume_terms().expect("read"), [known(5)]);
        store.put_volume_leaving(&leaving).expect("recorded");
        let copy = VolumeCopy {
            volume: leaving.volume.clone(),
            id: Some(leaving.id),
            at: leaving.peer,
            arriving: None,
            is_new: false,
        };
        store.volume_left(&copy, &known(6)).expect("recorded");
        drop(store);
        let store = open();
        assert_eq!(store.volumes_leaving().expect("read"), []);
        assert_eq!(store.copies().expect("read"), [copy]);
        assert_eq!(store.volume_terms().expect("read"), [known(6)]);
        store.forget_volume(&leaving.volume).expect("forgotten");
        assert_eq!(store.volume_terms().expect("read"), []);
        assert_eq!(store.copies().expect("read"), []);
    }

    #[test]
    fn a_volume_that_landed_is_no_copy_and_its_move_is_remembered() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
        let landing = moving();
        let copy = VolumeCopy {
            volume: landing.volume.clone(),
            id: Some(landing.id.clone()),
            at: landing.peer.clone(),
            arriving: Some(landing.migration),
            is_new: true,
        };
        store.put_copy(&copy).expect("recorded");
        store.put_volume_landing(&landing).expect("recorded");
        assert_eq!(
            store.volumes_landing().expect("read"),
            std::slice::from_ref(&landing)
        );
        assert_eq!(store.landed_volume(landing.migration).expect("read"), None);
        store
            .volume_landed(landing.migration, &known(4))
            .expect("recorded");
        assert_eq!(store.volumes_landing().expect("read"), []);
        assert_eq!(store.copies().expect("read"), []);
        store.forget_volume(&landing.volume).expect("forgotten");
        let landed = store.landed_volume(landing.migration).expect("read");
        assert_eq!(landed, Some(Term(4)), "its former host may ask late");
        store.put_volume_landing(&landing).expect("recorded");
        store
            .remove_volume_landing(&landing.volume)
            .expect("removed");
        assert_eq!(store.volumes_landing().expect("read"), []);
    }
}
