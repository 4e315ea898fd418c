//! VMs whose disk is to depend on nothing. It goes with the VM's own record.

use crate::{Records, RecordsError, row::parsed};
use forkyard_types::VmId;

impl Records {
    /// Records that a VM that is recorded is to be independent.
    pub fn put_independence(&self, vm: VmId) -> Result<(), RecordsError> {
        self.lock()
            .execute(
                "INSERT INTO independence VALUES (?1) ON CONFLICT (vm) DO NOTHING",
                [vm.as_str()],
            )
            .map_err(self.failed())?;
        Ok(())
    }

    /// Forgets that: it is, or is not to be any more. No error if it is not recorded.
    pub fn remove_independence(&self, vm: VmId) -> Result<(), RecordsError> {
        self.lock()
            .execute("DELETE FROM independence WHERE vm = ?1", [vm.as_str()])
            .map_err(self.failed())?;
        Ok(())
    }

    /// Checks if a VM is to be independent.
    pub fn wants_independence(&self, vm: VmId) -> Result<bool, RecordsError> {
        Ok(self.wanting_independence()?.contains(&vm))
    }

    /// VMs that are to be independent.
    pub fn wanting_independence(&self) -> Result<Vec<VmId>, RecordsError> {
        let connection = self.lock();
        let mut statement = connection
            .prepare_cached("SELECT vm FROM independence")
            .map_err(self.failed())?;
        let read = |row: &rusqlite::Row<'_>| parsed(row, "vm");
        let rows = statement.query_map([], read).map_err(self.failed())?;
        rows.collect::<Result<_, _>>().map_err(self.failed())
    }
}

#[cfg(test)]
mod tests {
    use crate::Records;
    use forkyard_types::VmId;

    #[test]
    fn only_a_vm_that_is_recorded_is_to_be_independent() {
        let folder = tempfile::tempdir().expect("folder");
        let store = Records::open(&folder.path().join("db")).expect("store");
        store
            .put_independence(VmId::random())
            .expect_err("of no VM");
        assert!(store.wanting_independence().expect("read").is_empty());
    }
}
