//! Reports of forks.

use crate::{
    Store, StoreError,
    row::{from_json, json},
};
use forkyard_types::{ForkId, ForkReport, VmId};
use rusqlite::params;

impl Store {
    /// Records where the time of a fork went.
    pub fn put_fork(
        &self,
        id: ForkId,
        parent: VmId,
        report: &ForkReport,
    ) -> Result<(), StoreError> {
        let report = json(report).map_err(self.failed())?;
        self.lock()
            .execute(
                "INSERT INTO fork VALUES (?1, ?2, ?3)",
                params![id.as_str(), parent.as_str(), report],
            )
            .map_err(self.failed())?;
        Ok(())
    }

    /// Reports of a VM's own forks, the newest last.
    pub fn forks_of(&self, parent: VmId) -> Result<Vec<ForkReport>, StoreError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT report FROM fork WHERE parent = ?1 ORDER BY rowid")
            .map_err(self.failed())?;
        let rows = statement
            .query_map([parent.as_str()], |row| from_json(row, "report"))
            .map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }
}
