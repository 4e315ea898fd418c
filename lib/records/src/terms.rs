//! Terms of VMs: labels, environment, time of their ends. They go with the VM's own record.

use crate::{
    Records, RecordsError,
    row::{from_json, json, parsed},
};
use forkyard_types::{Terms, VmId};
use rusqlite::{OptionalExtension as _, params};

impl Records {
    /// Records the terms of a VM that is recorded.
    pub fn put_terms(&self, vm: VmId, terms: &Terms) -> Result<(), RecordsError> {
        let entry = json(terms).map_err(self.failed())?;
        self.lock()
            .execute(
                "INSERT INTO terms VALUES (?1, ?2) ON CONFLICT (vm) DO UPDATE SET entry = ?2",
                params![vm.as_str(), entry],
            )
            .map_err(self.failed())?;
        Ok(())
    }

    /// Terms of a VM, if it has some.
    pub fn terms_of(&self, vm: VmId) -> Result<Option<Terms>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT entry FROM terms WHERE vm = ?1")
            .map_err(self.failed())?;
        let read = |row: &rusqlite::Row<'_>| from_json(row, "entry");
        let found = statement.query_row([vm.as_str()], read).optional();
        found.map_err(self.failed())
    }

    /// Terms of all VMs that have some.
    pub fn terms(&self) -> Result<Vec<(VmId, Terms)>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT * FROM terms")
            .map_err(self.failed())?;
        let read = |row: &rusqlite::Row<'_>| Ok((parsed(row, "vm")?, from_json(row, "entry")?));
        let rows = statement.query_map([], read).map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }
}
