//! Reports of forks.

use crate::{
    Records, RecordsError,
    row::{from_json, json, parsed},
};
use forkyard_types::{ForkId, ForkReport, VmId};
use rusqlite::params;
use std::collections::HashMap;

impl Records {
    /// Records where the time of a fork went.
    pub fn put_fork(
        &self,
        id: ForkId,
        parent: VmId,
        report: &ForkReport,
    ) -> Result<(), RecordsError> {
        let report = json(report).map_err(self.failed())?;
        self.lock()
            .execute(
                "INSERT INTO fork VALUES (?1, ?2, ?3)",
                params![id.as_str(), parent.as_str(), report],
            )
            .map_err(self.failed())?;
        Ok(())
    }

    /// Returns the number of each VM's forks; none for one that never forked.
    pub fn fork_counts(&self) -> Result<HashMap<VmId, u32>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT parent, count(*) AS forks FROM fork GROUP BY parent")
            .map_err(self.failed())?;
        let rows = statement
            .query_map([], |row| Ok((parsed(row, "parent")?, row.get("forks")?)))
            .map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }

    /// Reports of a VM's own forks, the newest last.
    pub fn forks_of(&self, parent: VmId) -> Result<Vec<ForkReport>, RecordsError> {
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
