//! Versions of the messages that the agents in checkpoints speak. They go with the VM's own record.

use crate::{Records, RecordsError};
use forkyard_types::VmId;
use rusqlite::{OptionalExtension, params};

impl Records {
    /// Records the version that the agent of a checkpoint speaks.
    pub fn put_agent(&self, vm: VmId, version: u16) -> Result<(), RecordsError> {
        self.lock()
            .execute(
                "INSERT INTO agent VALUES (?1, ?2) ON CONFLICT (vm) DO UPDATE SET version = ?2",
                params![vm.as_str(), version],
            )
            .map_err(self.failed())?;
        Ok(())
    }

    /// Version that the agent of a checkpoint speaks; 0 if it is an earlier one than those that are
    /// recorded, None if it is not known.
    pub fn agent(&self, vm: VmId) -> Result<Option<u16>, RecordsError> {
        self.lock()
            .query_row(
                "SELECT version FROM agent WHERE vm = ?1",
                [vm.as_str()],
                |row| row.get(0),
            )
            .optional()
            .map_err(self.failed())
    }
}
